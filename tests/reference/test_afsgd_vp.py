"""AFSGD-VP and its synchronous counterparts against the centralised method and a loop transcribed from the paper."""

from collections import deque
from dataclasses import replace
from functools import partial
from operator import eq

import numpy as np
import pytest
import scipy.sparse
from centralised_rounds import check_rounds

from offbeat.data.load import load_dataset
from offbeat.data.places import find_set
from offbeat.data.synthetic import credit_like
from offbeat.data.vertical import vertical_from_dataset
from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC, SQUARED
from offbeat.learning.penalties import L2, NONCONVEX, NONE
from offbeat.learning.sampling import Schedule
from offbeat.party.contract import Broadcast, Compute, Computed, Finish, Received, Send, Started
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import PRODUCTS, ShareAsked
from offbeat.party.survey_messages import Mark
from offbeat.runtime.simulator import CostModel, Simulator
from offbeat.testing.small_problem import SmallProblem, build_parties, draw_problem, method_named, weights_of

ROUNDS = ("fsgd-vp", "fsvrg-vp", "fsaga-vp")


def problem_with(parties, *, penalty=L2, sparse=False, loss=LOGISTIC, rows=150):
    drawn = draw_problem(11, parties=parties, rows=rows, sparse=sparse, loss=loss, intercept=False)
    return replace(drawn, penalty=penalty)


@pytest.mark.parametrize("method", ROUNDS)
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED], ids=lambda loss: loss.name)
@pytest.mark.parametrize(
    ("sparse", "penalty"),
    [(False, L2), (False, NONCONVEX), (True, L2), (True, NONE)],
    ids=["dense l2", "dense nonconvex", "sparse l2", "sparse without penalty"],
)
@pytest.mark.parametrize("parties", [3, 4, 8])
def test_rounds_follow_the_centralised_method_step_by_step(method, loss, sparse, penalty, parties):
    check_rounds(method, problem_with(parties, sparse=sparse, loss=loss, penalty=penalty))


@pytest.mark.parametrize("method", ["fsvrg-vp", "fsaga-vp"])
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED], ids=lambda loss: loss.name)
@pytest.mark.parametrize(
    ("sparse", "penalty", "by_curvature"),
    [(False, L2, None), (False, NONCONVEX, True), (True, NONE, True), (True, L2, None)],
    ids=["dense, chosen", "dense nonconvex", "sparse without penalty", "sparse, chosen"],
)
def test_rounds_by_curvature_follow_the_centralised_method(method, loss, sparse, penalty, by_curvature):
    check_rounds(method, problem_with(4, sparse=sparse, loss=loss, penalty=penalty), by_curvature=by_curvature)


@pytest.mark.parametrize("scheme", ["two-tree", "tree"])
@pytest.mark.parametrize("method", ROUNDS)
def test_rounds_do_not_depend_on_how_sums_are_hidden(method, scheme):
    check_rounds(method, problem_with(5, rows=120), scheme=scheme)


# -- the paper's loop ------------------------------------------------------------------------------------------------


class Turns:
    """One worker at a time: a question about products is held back until the worker's turn, everything else is at once.

    So between a question and its step nothing moves, which is the paper's algorithm with delay 0."""

    def __init__(self, parties):
        self.parties = {party.name: party for party in parties}
        self.queue = deque((name, Started()) for name in self.parties)
        self.held = {}
        self.play = []  # ("step", workers, number) and ("survey",)
        for name, party in self.parties.items():  # nobody's answer waits for its own step
            party.party.judge.is_slow = partial(eq, name)
        self.finished = False

    def settle(self):
        while self.queue:
            name, event = self.queue.popleft()
            for effect in self.parties[name].handle(event):
                self._do(name, effect)

    def _do(self, name, effect):
        if isinstance(effect, Broadcast) and isinstance(effect.body, ShareAsked) and effect.body.kind == PRODUCTS:
            self.held[name] = effect
        elif isinstance(effect, Send | Broadcast):
            if isinstance(effect.body, Mark):
                self.play.append(("survey",))
            to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
            self.queue.extend((peer, Received(name, effect.body)) for peer in to)
        elif isinstance(effect, Compute):
            self.queue.append((name, Computed(effect.ticket)))
        elif isinstance(effect, Finish):
            self.finished = True

    def run(self, rng, turns):
        self.settle()
        self._let_ask(*self.held)  # nobody takes its first step before all have asked
        for _ in range(turns):
            if self.finished:
                return
            self._let_ask(str(rng.choice(sorted(self.held))))

    def _let_ask(self, *names):
        asks = {name: self.held.pop(name) for name in names}
        self.play.append(("step", names, asks[names[0]].body.first))
        self.queue.extend((peer, Received(name, ask.body)) for name, ask in asks.items() for peer in ask.to)
        self.settle()


BATCH, SEED, STEP = 8, 9, 0.2


def papers_loop(problem, direction, eta, play):
    """Algorithms 3, 4 and 5 of AFSGD-VP with delay 0, as printed but for scalars in place of gradient tables, which a
    survey sets anew: SVRG's snapshot, and the same for SAGA."""
    X, y, n = problem.dense(), problem.y, problem.X.shape[0]
    schedule = Schedule(n, BATCH, SEED)
    w = np.zeros(X.shape[1])
    updates = dict.fromkeys(problem.names, 0)
    alpha = {name: np.zeros(n) for name in problem.names}  # worker l's table
    for what, *rest in play:
        if what == "survey":
            at_survey = np.array([problem.loss.derivative(X[i] @ w, y[i]) for i in range(n)])
            alpha = {name: at_survey.copy() for name in problem.names}
            continue
        workers, number = rest
        rows = range(*schedule.block(number))
        theta = {i: float(problem.loss.derivative(X[i] @ w, y[i])) for i in rows}
        for worker in workers:
            block, table = problem.columns[worker], alpha[worker]
            penalty, step = problem.strength * w[block], eta
            if direction == "sgd":
                v = sum(theta[i] * X[i, block] for i in rows) / len(rows) + penalty
                step = eta / (1 + eta * problem.strength * updates[worker]) * len(rows) / schedule.whole
            else:
                mean = sum(table[i] * X[i, block] for i in range(n)) / n
                v = sum((theta[i] - table[i]) * X[i, block] for i in rows) / len(rows) + mean + penalty
            if direction == "saga":
                for i in rows:
                    table[i] = theta[i]
            w[block] = w[block] - step * v
            updates[worker] += 1
    return w


@pytest.mark.parametrize("method", ["afsgd-vp", "afsvrg-vp", "afsaga-vp"])
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED], ids=lambda loss: loss.name)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_one_worker_at_a_time_is_the_papers_loop(method, loss, sparse):
    problem = draw_problem(3, parties=4, rows=60, sparse=sparse, loss=loss, intercept=False)
    direction = method_named(method).direction
    options = LinearOptions(
        method=direction,
        passes=1000.0,
        batch=BATCH,
        step=STEP,
        survey_passes=1.0,
        leap=False,
        by_curvature=None if direction == "sgd" else False,
    )
    parties = build_parties(method, problem, options, SEED)
    turns = Turns(parties)
    turns.run(np.random.default_rng(2), 150)
    assert sum(entry[0] == "step" for entry in turns.play) == 151
    assert turns.play.count(("survey",)) >= 3
    expected = papers_loop(problem, direction, STEP, turns.play)
    found = problem.pooled({party.name: party.block.weights()[0] for party in parties})
    assert np.abs(found[:-1] - expected).max() < 1e-9
    assert np.abs(expected).max() > 0.1


# -- how far it gets -------------------------------------------------------------------------------------------------


def check_convergence(problem, method):
    """The certificate reaches 1e-6, and bounds what is left; one party is slow."""
    options = LinearOptions(method=method_named(method).direction, passes=200.0, target=1e-6)
    parties = build_parties(method, problem, options, 1)
    outcome = Simulator(seed=1, costs=CostModel(slow={problem.names[-1]: 3.0})).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"target"}
    looks = [value for _, _, name, value in outcome.observations if name == "certificate"]
    X, free = (problem.with_ones(), 1) if problem.intercept else (problem.X, 0)
    _, optimum = central.optimum(X, problem.y, problem.loss, problem.strength, free=free)
    kept = problem.objective(problem.pooled(weights_of(parties)))
    assert -1e-12 <= kept - optimum <= min(value["gap"] for value in looks) + 1e-12 <= 1e-6 + 1e-12
    for look in looks:
        assert look["objective"] - optimum <= look["gap"] + 1e-12
    assert min(value["objective"] for value in looks) == pytest.approx(kept, abs=1e-10)


def pooled(dataset, parties, intercept=False):
    """The training rows as the parties prepared them, shuffled once."""
    data = vertical_from_dataset(dataset, parties=parties)
    blocks = [data.train[name] for name in data.names]
    stack = scipy.sparse.hstack if scipy.sparse.issparse(blocks[0]) else np.hstack
    X = scipy.sparse.csr_matrix(stack(blocks)) if scipy.sparse.issparse(blocks[0]) else stack(blocks)
    ends = np.cumsum([0, *(block.shape[1] for block in blocks)])
    columns = {name: np.arange(ends[i], ends[i + 1]) for i, name in enumerate(data.names)}
    order = np.random.default_rng(4).permutation(X.shape[0])
    return SmallProblem(X[order], data.y_train[order], LOGISTIC, 1e-4, columns, intercept=intercept)


def real(name):
    if find_set(name) is None:
        pytest.skip(f"the real set {name} is not on this machine")
    return load_dataset(name)


CONVERGE = ("afsvrg-vp", "afsaga-vp", "vfb2-svrg", "vfb2-saga")


@pytest.mark.parametrize("method", [*CONVERGE, "vfb-saga", "fsvrg-vp"])
@pytest.mark.parametrize("intercept", [False, True], ids=["no constant", "constant"])
def test_the_target_is_reached_and_bounds_what_is_left_on_generated_credit(method, intercept):
    check_convergence(pooled(credit_like(n=4000), 4, intercept), method)


@pytest.mark.shared
@pytest.mark.parametrize("method", CONVERGE)
@pytest.mark.parametrize("intercept", [False, True], ids=["no constant", "constant"])
def test_the_target_is_reached_and_bounds_what_is_left_on_uci_credit(method, intercept):
    check_convergence(pooled(real("uci_credit_card"), 4, intercept), method)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("method", CONVERGE)
def test_the_target_is_reached_and_bounds_what_is_left_on_news(method):
    check_convergence(pooled(real("news20_ngrams"), 8), method)
