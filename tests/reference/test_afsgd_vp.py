"""AFSGD-VP and its synchronous counterparts against the centralised method and a loop transcribed from the paper."""

from collections import deque

import numpy as np
import pytest
import scipy.sparse
from centralised_rounds import check_rounds

from offbeat.data import load_dataset, vertical_from_dataset
from offbeat.data.places import find_set
from offbeat.data.synthetic import credit_like
from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC, SQUARED
from offbeat.party.contract import Broadcast, Compute, Computed, Finish, Received, Send, Started
from offbeat.party.masked_sum import ShareAsked, SumOptions
from offbeat.party.member import LinearOptions
from offbeat.party.survey import Mark
from offbeat.runtime.simulator import CostModel, Simulator
from offbeat.testing.small_problem import SmallProblem, build_parties, draw_problem, method_named, weights_of


@pytest.mark.parametrize("method", ["fsgd-vp", "fsvrg-vp", "fsaga-vp"])
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED], ids=lambda loss: loss.name)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("parties", [3, 4, 8])
def test_rounds_follow_the_centralised_method_step_by_step(method, loss, sparse, parties):
    problem = draw_problem(11, parties=parties, rows=150, sparse=sparse, loss=loss)
    check_rounds(method, problem)


@pytest.mark.parametrize("scheme", ["two-tree", "tree"])
@pytest.mark.parametrize("method", ["fsgd-vp", "fsvrg-vp", "fsaga-vp"])
def test_rounds_do_not_depend_on_how_sums_are_hidden(method, scheme):
    problem = draw_problem(12, parties=5, rows=120, sparse=False, loss=LOGISTIC)
    check_rounds(method, problem, scheme=scheme)


# -- the paper's loop ------------------------------------------------------------------------------------------------


class Turns:
    """One worker at a time: a request for products is held back until the worker's turn, everything else is at once.

    So between a request and its step nothing moves, which is the paper's algorithm with delay 0."""

    def __init__(self, parties):
        self.parties = {party.name: party for party in parties}
        self.queue = deque((name, Started()) for name in self.parties)
        self.held = {}
        self.play = []  # ("step", worker, rows) and ("snapshot",)
        self.finished = False

    def settle(self):
        while self.queue:
            name, event = self.queue.popleft()
            for effect in self.parties[name].handle(event):
                self._do(name, effect)

    def _do(self, name, effect):
        if isinstance(effect, Broadcast) and isinstance(effect.body, ShareAsked) and effect.body.point == -1:
            self.held[name] = effect
        elif isinstance(effect, (Send, Broadcast)):
            if isinstance(effect.body, Mark):
                self.play.append(("snapshot",))
            to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
            self.queue.extend((peer, Received(name, effect.body)) for peer in to)
        elif isinstance(effect, Compute):
            self.queue.append((name, Computed(effect.ticket)))
        elif isinstance(effect, Finish):
            self.finished = True

    def run(self, rng, turns):
        self.settle()
        for _ in range(turns):
            if self.finished:
                return
            name = str(rng.choice(sorted(self.held)))
            ask = self.held.pop(name)
            self.play.append(("step", name, (ask.body.start, ask.body.stop)))
            self.queue.extend((peer, Received(name, ask.body)) for peer in ask.to)
            self.settle()


def papers_loop(problem, direction, eta, play):
    """Algorithms 3, 4 and 5 of AFSGD-VP with delay 0, as printed but for scalars in place of gradient tables."""
    X, y, n = problem.dense(), problem.y, problem.X.shape[0]
    w = np.zeros(X.shape[1])
    updates = dict.fromkeys(problem.names, 0)
    at_snapshot, full_gradient = None, None  # theta_i(w^s) and the mean of theta_i(w^s) x_i
    alpha = {name: np.zeros(n) for name in problem.names}  # SAGA: worker l's table
    for what, *rest in play:
        if what == "snapshot":
            at_snapshot = np.array([problem.loss.derivative(X[i] @ w, y[i]) for i in range(n)])
            full_gradient = sum(at_snapshot[i] * X[i] for i in range(n)) / n
            continue
        worker, (start, stop) = rest
        block = problem.columns[worker]
        rows = range(start, stop)
        theta = {i: float(problem.loss.derivative(X[i] @ w, y[i])) for i in rows}
        penalty = problem.strength * w[block]
        if direction == "sgd":
            v = sum(theta[i] * X[i, block] for i in rows) / len(rows) + penalty
            step = eta / (1 + eta * problem.strength * updates[worker])
        elif direction == "svrg":
            v = sum((theta[i] - at_snapshot[i]) * X[i, block] for i in rows) / len(rows)
            v = v + full_gradient[block] + penalty
            step = eta
        else:
            mean = sum(alpha[worker][i] * X[i, block] for i in range(n)) / n
            v = sum((theta[i] - alpha[worker][i]) * X[i, block] for i in rows) / len(rows) + mean + penalty
            for i in rows:
                alpha[worker][i] = theta[i]
            step = eta
        w[block] = w[block] - step * v
        updates[worker] += 1
    return w


@pytest.mark.parametrize("method", ["afsgd-vp", "afsvrg-vp", "afsaga-vp"])
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED], ids=lambda loss: loss.name)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_one_worker_at_a_time_is_the_papers_loop(method, loss, sparse):
    problem = draw_problem(3, parties=4, rows=60, sparse=sparse, loss=loss)
    direction = method_named(method).direction
    options = LinearOptions(method=direction, passes=1000.0, batch=8, snapshot_passes=1.0, certify_passes=1000.0)
    parties = build_parties(method, problem, options, 9)
    turns = Turns(parties)
    turns.run(np.random.default_rng(2), 150)
    assert sum(entry[0] == "step" for entry in turns.play) == 150
    assert direction != "svrg" or turns.play.count(("snapshot",)) >= 3
    expected = papers_loop(problem, direction, parties[0].member.conduct.eta, turns.play)
    assert np.abs(problem.pooled(weights_of(parties)) - expected).max() < 1e-9


# -- how far it gets -------------------------------------------------------------------------------------------------


def converge(problem, method, target, *, passes=200.0, costs=None, scheme="pairwise"):
    options = LinearOptions(
        method=method_named(method).direction, passes=passes, target=target, sums=SumOptions(scheme=scheme)
    )
    parties = build_parties(method, problem, options, 1)
    costs = costs or CostModel(slow={problem.names[-1]: 3.0})
    outcome = Simulator(seed=1, costs=costs).run(parties)
    best = min((v for _, _, n, v in outcome.observations if n == "certificate"), key=lambda v: v["objective"])
    _, optimum = central.optimum(problem.X, problem.y, problem.loss, problem.strength)
    kept = problem.objective(problem.pooled(weights_of(parties)))
    return kept, kept - optimum, best, outcome


def check_convergence(problem, method, **options):
    kept, reached, best, outcome = converge(problem, method, 1e-6, **options)
    assert {finish.verdict for finish in outcome.finished.values()} == {"target"}
    assert reached <= 1e-6
    gaps = [v["gap"] for _, _, name, v in outcome.observations if name == "certificate"]
    assert reached <= min(gaps) + 1e-12
    assert abs(best["objective"] - kept) <= 1e-10


def pooled(dataset, parties):
    """The training rows as the parties prepared them, shuffled once."""
    data = vertical_from_dataset(dataset, parties=parties)
    blocks = [data.train[name] for name in data.names]
    stack = scipy.sparse.hstack if scipy.sparse.issparse(blocks[0]) else np.hstack
    X = scipy.sparse.csr_matrix(stack(blocks)) if scipy.sparse.issparse(blocks[0]) else stack(blocks)
    ends = np.cumsum([0, *(block.shape[1] for block in blocks)])
    columns = {name: np.arange(ends[i], ends[i + 1]) for i, name in enumerate(data.names)}
    order = np.random.default_rng(4).permutation(X.shape[0])
    return SmallProblem(X[order], data.y_train[order], LOGISTIC, 1e-4, columns)


def real(name):
    if find_set(name) is None:
        pytest.skip(f"the real set {name} is not on this machine")
    return load_dataset(name)


@pytest.mark.parametrize("method", ["afsvrg-vp", "afsaga-vp"])
def test_the_target_is_reached_and_bounds_what_is_left_on_generated_credit(method):
    check_convergence(pooled(credit_like(n=4000), 4), method)


@pytest.mark.shared
@pytest.mark.parametrize("method", ["afsvrg-vp", "afsaga-vp"])
def test_the_target_is_reached_and_bounds_what_is_left_on_uci_credit(method):
    check_convergence(pooled(real("uci_credit_card"), 4), method)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("method", ["afsvrg-vp", "afsaga-vp"])
def test_the_target_is_reached_and_bounds_what_is_left_on_news(method):
    check_convergence(pooled(real("news20_ngrams"), 8), method)
