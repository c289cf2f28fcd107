"""Runs with leaps against one loop over pooled columns, and asynchronous runs in which nobody is slow against rounds.

The pooled loop has no parties, no messages and no masks. It takes the order of play from the protocol: a step along the
mean gradient, freeze, the products of all rows, the leap, the tables, the certificate; then steps.
"""

import itertools
from dataclasses import replace
from math import isnan

import numpy as np
import pytest
import scipy.sparse
from centralised_rounds import BATCH, SEED, InverseCurvature, rounds_before_surveys, steps_by_metric

from offbeat.learning.losses import LOGISTIC, SQUARED
from offbeat.learning.penalties import L2, NONCONVEX, NONE
from offbeat.learning.sampling import Schedule
from offbeat.learning.subspace import Quadratic, Search
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import SumOptions
from offbeat.runtime.simulator import CostModel, Simulator
from offbeat.testing.linear_checkers import linear_checkers
from offbeat.testing.small_problem import build_parties, draw_problem, method_named

NOISE_OF_A_SUM = 2.0**-40
CALM = CostModel()


class Pooled:
    """All columns in one place, the constant last. Weights are those of the centred columns, where parties centre."""

    def __init__(self, problem, direction, chosen, by_curvature):
        X = problem.dense()
        if problem.intercept and not scipy.sparse.issparse(problem.X):
            X = X - X.mean(axis=0)
        self.X = np.hstack([X, np.ones((len(X), 1))])
        self.problem, self.direction, self.chosen = problem, direction, chosen
        self.w = np.zeros(self.X.shape[1])
        self.by_metric = steps_by_metric(problem, by_curvature, direction)
        self.curvature = InverseCurvature(problem, X)
        self.take_metric(np.full(len(X), problem.loss.curvature))
        self.leaps = problem.penalty is not NONCONVEX
        self.kept = 40 if self.leaps else 1
        self.point, self.moves, self.along, self.last, self.objective = None, [], [], None, np.inf
        self.pace, self.pace_most = 1.0, max(1.0, 1.0 / (chosen.smoothness * chosen.eta)) if chosen.smoothness else 1.0

    def take_metric(self, second):
        """The constant has a metric of its own, and rests where the model has none."""
        width = self.X.shape[1] - 1
        self.metric = np.eye(width + 1)
        if self.by_metric:
            self.metric[:width, :width] = self.curvature(second, self.w[:width])
            self.metric[width, width] = 1.0 / second.mean()
        self.metric[width, width] *= self.problem.intercept

    def penalty_slope(self):
        return np.append(self.problem.strength * self.problem.penalty.gradient(self.w[:-1]), 0.0)

    def step(self, start, stop):
        rows = slice(start, stop)
        theta = self.problem.loss.derivative(self.X[rows] @ self.w, self.problem.y[rows])
        correction = self.X[rows].T @ (theta - self.table[rows])
        pace = self.pace if self.chosen.smoothness else 1.0
        move = correction / len(theta) + self.mean + self.penalty_slope()
        self.w = self.w - self.chosen.eta * pace * (self.metric @ move)
        if self.direction == "saga":
            self.table[rows] = theta
            self.mean = self.mean + correction / len(self.X)

    def survey(self):
        """(where the leap ended, the objective, the gradient's norm, the duality gap)"""
        if self.point is not None and self.chosen.smoothness:
            self.w = self.w - self.metric @ (self.mean + self.penalty_slope()) / self.chosen.smoothness
        best, moves = self.find()
        self.w = self.point + sum((a * move for a, move in zip(best.coefficients, moves, strict=True)), 0.0 * self.w)
        self.w[-1] += best.constants[0]
        self.table = self.problem.loss.derivative(self.X @ self.w, self.problem.y)
        self.mean = self.X.T @ self.table / len(self.X)
        if self.problem.loss is LOGISTIC:
            self.take_metric(np.abs(self.table) * (1.0 - np.abs(self.table)))
        return self.w.copy(), *self.certificate()

    def find(self):
        """The best point in the span of the last moves; a run whose steps led uphill searches from the last one."""
        problem, products = self.problem, self.X @ self.w
        first = self.point is None
        moves = [] if first else [*self.moves, self.w - self.point]
        along = [] if first else [*self.along, products - self.products]
        search = self.search(products, along, np.array(moves).reshape(-1, len(self.w))[:, :-1])
        start = None
        if not first:
            here, self.pace_most = search.value(np.zeros(len(moves) + 1)), 1.05 * self.pace_most
            if not self.leaps:
                self.pace_most = min(self.pace_most, 1.0)
            if not here <= self.objective * (1.0 + 1e-12):
                self.pace_most, self.pace = 0.7 * self.pace, max(self.pace / 2.0, 2.0**-10)
                landing = np.concatenate((self.last.coefficients, [-1.0, self.last.constants[0]]))
                start = landing if search.value(landing) < here else None
            else:
                self.pace = max(self.pace, min(1.5 * self.pace, self.pace_most))
        best = search.run(start) if self.leaps else search.stay()
        self.point, self.products, self.objective = self.w, products, best.objective
        self.moves, self.along = moves[-self.kept :], along[-self.kept :]
        self.last = replace(best, coefficients=best.coefficients[-self.kept :])
        assert problem.intercept or best.constants[0] == 0.0
        return best, moves

    def search(self, products, along, moves):
        problem, w = self.problem, self.w[:-1]
        strength = problem.strength if problem.penalty is L2 else 0.0
        noise = len(problem.names) ** 0.5 * NOISE_OF_A_SUM + 2.0**-51 * np.abs(products).max()
        price = problem.loss.curvature * (1e5 * noise) ** 2
        inner = strength * moves @ moves.T + price * np.eye(len(moves))
        penalty = Quadratic(1.0, strength * float(w @ w), strength * moves @ w, inner)
        directions = np.ascontiguousarray(along).reshape(len(along), len(products))
        nothing = np.empty(0)
        return Search(problem.loss, problem.y, nothing, products, directions, penalty, constant=problem.intercept)

    def certificate(self):
        problem, w = self.problem, self.w[:-1]
        value = np.mean(problem.loss.value(self.X @ self.w, problem.y)) + problem.strength * problem.penalty.value(w)
        slope = self.mean[:-1] + problem.strength * problem.penalty.gradient(w)
        return value, np.linalg.norm(slope), slope @ slope / (2.0 * problem.strength)


class Landings:
    """Where every leap ended, by survey and party."""

    def __init__(self):
        self.points = {}

    def handled(self, now_s, party, event, effects):
        for survey, point in party.party.survey.points.items():
            self.points.setdefault(survey, {}).setdefault(party.name, point[0].copy())

    def ended(self, outcome, parties):
        pass

    def pooled(self, problem):
        return [problem.pooled(self.points[survey]) for survey in sorted(self.points)]


def landings_of(method, problem, *, costs=CALM, scheme="pairwise", **options):
    """(where every leap ended, the certificates, the parties, the outcome)"""
    chosen = LinearOptions(
        method=method_named(method).direction,
        batch=BATCH,
        **{"passes": 9.0, "survey_passes": 1.0, "sums": SumOptions(scheme=scheme), **options},
    )
    seen, parties = Landings(), build_parties(method, problem, chosen, SEED)
    checkers = [seen, *linear_checkers(method, problem, chosen)]
    outcome = Simulator(seed=SEED, costs=costs, checkers=checkers).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"passes"}
    certificates = [value for _, _, name, value in outcome.observations if name == "certificate"]
    return seen.pooled(problem), certificates, parties, outcome


def check_leaps(method, problem, *, by_curvature=None, least=5, **options):
    """Every leap of the rounds ends where the pooled loop's does, with the same certificate. Sums are rounded, and a
    leap multiplies the rounding of its moves by its coefficients."""
    slow = CostModel(slow={problem.names[1]: 7.0, problem.names[0]: 2.0})
    found, certificates, parties, outcome = landings_of(
        method, problem, costs=slow, by_curvature=by_curvature, **options
    )
    schedule, chosen = Schedule(problem.X.shape[0], BATCH, SEED), parties[0].party.lifecycle
    pooled, done = Pooled(problem, method_named(method).direction, chosen, by_curvature), 0
    assert len(found) == len(certificates) >= least
    tolerance = 1e-9
    for at, rounds in enumerate(rounds_before_surveys(schedule, outcome)):
        for number in range(done, rounds):
            pooled.step(*schedule.block(number))
        done = rounds
        w, objective, norm, gap = pooled.survey()
        tolerance = max(tolerance, 1e-9 * np.abs(pooled.last.coefficients).max(initial=0.0))
        assert np.abs(found[at] - w).max() < tolerance
        assert certificates[at]["objective"] == pytest.approx(objective, abs=1e-9)
        assert certificates[at]["gradient_norm"] == pytest.approx(norm, abs=2.0 * tolerance)
        certified = problem.penalty is L2
        assert isnan(certificates[at]["gap"]) if not certified else abs(certificates[at]["gap"] - gap) < 1e-9
    assert np.abs(w).max() > 0.05
    return [value["objective"] for value in certificates]


def problem_with(parties, holders, *, penalty=L2, sparse=False, loss=LOGISTIC, strength=0.02, intercept=False, seed=13):
    drawn = draw_problem(
        seed, parties=parties, rows=150, sparse=sparse, loss=loss, strength=strength, intercept=intercept
    )
    return replace(drawn, labels_at=drawn.names[:holders], penalty=penalty)


ROUNDS = ("fsvrg-vp", "fsaga-vp", "vfb-svrg", "vfb-saga")


@pytest.mark.parametrize("method", ROUNDS)
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED], ids=lambda loss: loss.name)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("intercept", [False, True], ids=["no constant", "constant"])
@pytest.mark.parametrize(("parties", "holders"), [(3, 1), (8, 3)])
def test_leaps_of_rounds_are_those_of_a_pooled_loop(method, loss, sparse, intercept, parties, holders):
    objectives = check_leaps(
        method, problem_with(parties, holders, sparse=sparse, loss=loss, intercept=intercept, strength=1e-3)
    )
    assert all(after <= before + 1e-10 for before, after in itertools.pairwise(objectives))


@pytest.mark.parametrize("method", ["fsaga-vp", "vfb-svrg"])
@pytest.mark.parametrize("by_curvature", [True, False])
@pytest.mark.parametrize("step", [None, 0.1])
@pytest.mark.parametrize("penalty", [NONE, NONCONVEX], ids=lambda penalty: penalty.name)
def test_leaps_with_any_metric_step_and_penalty_are_those_of_a_pooled_loop(method, by_curvature, step, penalty):
    problem = problem_with(4, 2, penalty=penalty, strength=0.1, intercept=True)
    check_leaps(method, problem, by_curvature=by_curvature, step=step)


@pytest.mark.parametrize("scheme", ["two-tree", "tree"])
def test_leaps_do_not_depend_on_how_sums_are_hidden(scheme):
    check_leaps("vfb-svrg", problem_with(5, 2, strength=1e-3, intercept=True), scheme=scheme)


@pytest.mark.parametrize("method", ["vfb-svrg", "vfb-saga"])
def test_steps_that_are_far_too_long_come_back_by_the_leaps(method):
    """The parties and the pooled loop take the same way back: the span holds where the last leap ended."""
    problem = problem_with(3, 1, loss=SQUARED, strength=1e-3)
    objectives = check_leaps(method, problem, by_curvature=False, step=0.7, survey_passes=0.25)
    assert objectives[-1] < objectives[1] < objectives[0]


# -- nobody is slow: asynchronous runs are rounds --------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["svrg", "saga"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("leap", [True, False], ids=["leaps", "no leaps"])
@pytest.mark.parametrize("parties", [3, 8])
def test_with_one_label_holder_and_nobody_slow_asynchronous_surveys_are_those_of_rounds(
    direction, sparse, leap, parties
):
    problem = problem_with(parties, 1, sparse=sparse, intercept=True)
    rounds, expected, _, _ = landings_of(f"vfb-{direction}", problem, leap=leap)
    found, certificates, _, _ = landings_of(f"vfb2-{direction}", problem, leap=leap)
    assert len(found) == len(rounds) >= 5
    assert max(np.abs(w - v).max() for w, v in zip(found, rounds, strict=True)) < 1e-9
    assert certificates == expected


@pytest.mark.parametrize("direction", ["svrg", "saga"])
def test_where_somebody_is_slow_asynchronous_surveys_are_not_those_of_rounds(direction):
    """The test above would find a difference."""
    problem = problem_with(3, 1)
    slow = CostModel(slow={problem.names[-1]: 16.0})
    rounds, _, _, _ = landings_of(f"vfb-{direction}", problem, costs=slow)
    found, _, _, _ = landings_of(f"vfb2-{direction}", problem, costs=slow)
    assert max(np.abs(w - v).max() for w, v in zip(found, rounds, strict=False)) > 1e-4
