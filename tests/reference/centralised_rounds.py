"""Rounds of a synchronous method, watched step by step and held against the centralised method on the same batches."""

import numpy as np
import scipy.sparse

from offbeat.algorithms.vfb2 import Backward
from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.sampling import Schedule
from offbeat.learning.steps import decayed
from offbeat.party.contract import Broadcast
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import SumOptions
from offbeat.runtime.simulator import CostModel, Simulator
from offbeat.testing.linear_checkers import linear_checkers
from offbeat.testing.small_problem import build_parties, method_named

SEED, BATCH, PASSES = 5, 16, 8.0


class Trajectory:
    """Every block's weights after each of its steps, and every derivative that was sent."""

    def __init__(self):
        self.blocks, self.derivatives = {}, []

    def handled(self, now_s, party, event, effects):
        steps = self.blocks.setdefault(party.name, [])
        if party.block.version > len(steps):
            steps.append(party.block.weights()[0])
        for effect in effects:
            if isinstance(effect, Broadcast) and isinstance(effect.body, Backward):
                self.derivatives.append(effect.body)

    def ended(self, outcome, parties):
        pass

    def after(self, problem, steps):
        if not steps:
            return np.zeros(problem.X.shape[1] + 1)
        return problem.pooled({name: blocks[steps - 1] for name, blocks in self.blocks.items()})


def sgd_sizes(eta, strength, plan, schedule):
    """SGD's t-th step along a plan: a block with fewer rows than a whole one counts for as many as it has."""
    rows = [stop - start for start, stop in (batch for batch in plan if batch is not None)]
    return lambda t: decayed(eta, strength, t) * rows[t] / schedule.whole


def step_for(problem, by_metric):
    """A step that is not chosen by the run: the methods then take it as it is."""
    return 0.1 if by_metric else 0.8 if problem.loss is LOGISTIC else 0.2


def steps_by_metric(problem, by_curvature, direction):
    sparse = scipy.sparse.issparse(problem.X)
    return direction != "sgd" and (bool(by_curvature) or (by_curvature is None and not sparse))


def run_rounds(method, problem, *, scheme="pairwise", by_curvature=False, step=None):
    """The trajectory, the step size and the outcome of a classical run (no leaps) in which two parties are slow."""
    direction = method_named(method).direction
    by_curvature = None if direction == "sgd" else by_curvature
    options = LinearOptions(
        method=direction,
        passes=PASSES,
        batch=BATCH,
        step=step or step_for(problem, steps_by_metric(problem, by_curvature, direction)),
        survey_passes=1.0,
        leap=False,
        by_curvature=by_curvature,
        sums=SumOptions(scheme=scheme),
    )
    seen, parties = Trajectory(), build_parties(method, problem, options, SEED)
    slow = {problem.names[1]: 7.0, problem.names[0]: 2.0}
    checkers = [seen, *linear_checkers(method, problem, options)]
    outcome = Simulator(seed=SEED, costs=CostModel(slow=slow), checkers=checkers).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"passes"}
    return seen, options.step, outcome


def rounds_before_surveys(schedule, outcome):
    """How many rounds had been made when each survey began: a survey counts as a pass, too."""
    looks = [v["passes"] for _, _, name, v in outcome.observations if name == "certificate"]
    return [round((passes - before) * schedule.blocks_a_pass) for before, passes in enumerate(looks)]


def order_of_play(problem, outcome):
    """The batches of all rounds, and a None before the batch at which a survey was taken."""
    schedule = Schedule(problem.X.shape[0], BATCH, SEED)
    surveys = rounds_before_surveys(schedule, outcome)
    plan = []
    for number in range(surveys[-1]):
        plan += [None] * (number in surveys) + [schedule.block(number)]
    return plan


class InverseCurvature:
    """Every party's curvature within its columns, inverted: all of it where they are dense, else its diagonal. A party
    takes it anew when the curvature of one of its columns has changed by a quarter."""

    def __init__(self, problem, X=None):
        self.problem, self.sparse = problem, scipy.sparse.issparse(problem.X)
        self.X = problem.dense() if X is None else X
        width = problem.X.shape[1]
        self.metric, self.squares = np.zeros((width, width)), {}

    def __call__(self, second, w):
        for name, columns in self.problem.columns.items():
            X = self.X[:, columns]
            hessian = (X.T * second) @ X / len(X)
            squares, before = np.diag(hessian), self.squares.get(name)
            if before is None or (np.abs(squares - before) > 0.25 * before).any():
                self.squares[name] = squares
                self.metric[np.ix_(columns, columns)] = self.inverse(hessian, w[columns])
        return self.metric.copy()

    def inverse(self, hessian, w):
        problem = self.problem
        held = problem.strength * np.maximum(problem.penalty.curvature_beyond(w / 2), 1e-3)
        if self.sparse:
            curvature = np.diag(hessian) + held
            return np.diag(1.0 / np.maximum(curvature, 1e-6 * curvature.max()))
        curvature = hessian + np.diag(held)
        return np.linalg.inv(curvature + 1e-6 * np.diag(curvature).max() * np.eye(len(w)))


def check_rounds(method, problem, *, scheme="pairwise", by_curvature=False, step=None):
    """Every step is the centralised method's; returns the step size."""
    seen, eta, outcome = run_rounds(method, problem, scheme=scheme, by_curvature=by_curvature, step=step)
    direction = method_named(method).direction
    plan = order_of_play(problem, outcome)
    steps = sum(batch is not None for batch in plan)
    assert steps == len(seen.blocks[problem.names[0]]) >= 3 * problem.X.shape[0] // BATCH
    assert plan.count(None) >= 3 and (plan[0] is None) == (direction != "sgd")
    schedule = Schedule(problem.X.shape[0], BATCH, SEED)
    sizes = sgd_sizes(eta, problem.strength, plan, schedule) if direction == "sgd" else eta
    for upto in sorted({1, 2, steps // 3, steps // 2, steps}):
        done, cut = 0, 0
        while done < upto:
            done += plan[cut] is not None
            cut += 1
        terms = (problem.loss, problem.penalty, problem.strength)
        metric_at = InverseCurvature(problem) if steps_by_metric(problem, by_curvature, direction) else None
        expected = central.run(problem.X, problem.y, *terms, direction, sizes, plan[:cut], metric_at=metric_at)
        found = seen.after(problem, upto)
        assert found[-1] == 0.0 and np.abs(found[:-1] - expected).max() < 1e-9
    assert np.abs(expected).max() > 0.02
    return eta
