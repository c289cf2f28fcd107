"""The search on a span: its loops against numpy, its end against scipy's minimum on the same span."""

from unittest import mock

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.learning import subspace
from offbeat.learning.losses import DEBIASED_LOGISTIC, LOGISTIC, LOSSES, SQUARED, SQUARED_HINGE, huber
from offbeat.learning.subspace import SOME_ROWS, Quadratic, Search, curvature, evaluate, solve

ALL = (*LOSSES, DEBIASED_LOGISTIC, huber(0.7))
NO_WEIGHTS = np.empty(0)
BY_NAME = pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.name)


def labels_for(loss, z, rng):
    return np.where(z + rng.standard_normal(len(z)) > 0.3, 1.0, -1.0 if loss.binary else 0.0)


class Span:
    """A problem of some columns, a base and directions in it: what the search knows of it, and all of it."""

    def __init__(self, loss, rows=300, count=3, width=12, strength=0.05, constant=True, weighted=False, seed=0):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((rows, width))
        self.loss, self.constant, self.strength = loss, constant, strength
        self.y = labels_for(loss, X @ rng.standard_normal(width), rng)
        self.weights = rng.uniform(0.2, 3.0, rows) if weighted else NO_WEIGHTS
        self.point, self.moves = rng.standard_normal(width), rng.standard_normal((count, width))
        self.base, self.along = X @ self.point, np.ascontiguousarray(self.moves @ X.T)
        point, moves = self.point, self.moves
        self.penalty = Quadratic(strength, float(point @ point), moves @ point, moves @ moves.T)

    def search(self):
        return Search(self.loss, self.y, self.weights, self.base, self.along, self.penalty, self.constant)

    def objective(self, a):
        """Written out: all the weights, all the products."""
        z = self.base + a[:-1] @ self.along + a[-1]
        w = self.point + a[:-1] @ self.moves
        row_weights = self.weights if len(self.weights) else 1.0
        return float(np.mean(row_weights * self.loss.value(z, self.y))) + 0.5 * self.strength * float(w @ w)

    def minimum(self):
        """By scipy, from the base."""
        free = len(self.moves) + self.constant

        def padded(a):
            return self.objective(np.append(a, np.zeros(len(self.moves) + 1 - free)))

        options = {"gtol": 1e-10}
        return float(scipy.optimize.minimize(padded, np.zeros(free), method="BFGS", options=options).fun)


# -- compiled loops --------------------------------------------------------------------------------------------------


@BY_NAME
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 1024, 2500])
def test_evaluate_and_curvature_against_numpy(loss, weighted, rows):
    span = Span(loss, rows=rows, weighted=weighted)
    a = np.array([0.3, -0.2, 0.1])
    z, theta, slope = np.empty(rows), np.empty(rows), np.empty(4)
    value = evaluate(span.base, span.along, a, 0.7, span.y, span.weights, loss.code, loss.delta, z, theta, slope)
    row_weights = span.weights if weighted else np.ones(rows)
    np.testing.assert_allclose(z, span.base + a @ span.along + 0.7, atol=1e-12)
    np.testing.assert_allclose(theta, row_weights * loss.derivative(z, span.y), rtol=1e-12)
    assert value == pytest.approx(np.mean(row_weights * loss.value(z, span.y)), rel=1e-12)
    designs = np.vstack([span.along, np.ones(rows)])
    np.testing.assert_allclose(slope, designs @ theta / rows, atol=1e-11)
    hessian = np.empty((4, 4))
    some = max(rows // 2, 1)
    curvature(span.along, z, span.y, span.weights, loss.code, loss.delta, some, hessian)
    second = (row_weights * loss.second(z, span.y))[:some]
    np.testing.assert_allclose(hessian, (designs[:, :some] * second) @ designs[:, :some].T / some, atol=1e-11)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 8), rank=st.integers(0, 8), spread=st.integers(0, 6))
def test_solve_is_least_squares_whatever_the_rank(seed, width, rank, spread):
    """matrix step = -slope, for every slope that the matrix reaches; columns of very different scales."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((width, min(rank, width))) * 10.0 ** rng.uniform(-spread, spread, (width, 1))
    matrix = root @ root.T
    slope = root @ rng.standard_normal(root.shape[1])
    step = np.full(width, np.nan)
    solve(matrix, slope, 1e-11, step)
    scale = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    np.testing.assert_allclose(matrix @ step / scale, -slope / scale, atol=1e-4)
    expected = np.linalg.lstsq(matrix / np.outer(scale, scale), -slope / scale, rcond=1e-11)[0] / scale
    assert np.sqrt(max((step - expected) @ matrix @ (step - expected), 0.0)) < 1e-4
    assert np.count_nonzero(step) <= root.shape[1]


def test_solve_by_hand():
    step = np.empty(3)
    solve(np.diag([2.0, 4.0, 0.0]), np.array([1.0, -2.0, 5.0]), 1e-11, step)
    assert step == pytest.approx([-0.5, 0.5, 0.0])
    solve(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), np.array([3.0, 3.0, 1.0]), 1e-11, step)
    assert step.sum() == pytest.approx(-4.0) and np.count_nonzero(step[:2]) == 1
    solve(np.array([[4.0, 2.0], [2.0, 3.0]]), np.array([1.0, 2.0]), 1e-11, step[:2])
    assert step[:2] == pytest.approx(-np.linalg.solve([[4.0, 2.0], [2.0, 3.0]], [1.0, 2.0]))


def test_the_penalty_on_the_span():
    span = Span(LOGISTIC)
    a, w = np.array([0.5, -1.0, 2.0]), span.point + np.array([0.5, -1.0, 2.0]) @ span.moves
    assert span.penalty.value(a) == pytest.approx(0.5 * 0.05 * w @ w)
    np.testing.assert_allclose(span.penalty.slope(a), 0.05 * span.moves @ w, rtol=1e-12)


# -- the search ------------------------------------------------------------------------------------------------------


@BY_NAME
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_run_reaches_the_minimum_on_the_span(loss, constant, weighted):
    span = Span(loss, constant=constant, weighted=weighted)
    best = span.search().run()
    a = np.append(best.coefficients, best.constants[0])
    start = span.objective(np.zeros(4))
    assert best.objective == pytest.approx(span.objective(a), rel=1e-12)
    assert best.objective - span.minimum() <= 1e-4 * (start - span.minimum())
    np.testing.assert_allclose(best.products, span.base + a[:-1] @ span.along + a[-1], atol=1e-10)
    row_weights = span.weights if weighted else 1.0
    np.testing.assert_allclose(best.derivatives, row_weights * loss.derivative(best.products, span.y), atol=1e-12)
    assert best.loss == pytest.approx(best.objective - span.penalty.value(best.coefficients), rel=1e-12)
    if constant:
        assert abs(best.derivatives.mean()) <= 1e-12 * np.abs(best.derivatives).mean()
    else:
        assert best.constants[0] == 0.0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED_HINGE], ids=lambda loss: loss.name)
def test_on_many_rows_some_of_them_lead_to_the_minimum_over_all(loss, weighted):
    span = Span(loss, rows=3 * SOME_ROWS, weighted=weighted)
    best = span.search().run()
    start, least = span.objective(np.zeros(4)), span.minimum()
    assert best.objective == pytest.approx(span.objective(np.append(best.coefficients, best.constants[0])), rel=1e-12)
    assert best.objective - least <= 1e-3 * (start - least)
    assert len(best.derivatives) == 3 * SOME_ROWS


def test_rows_that_are_not_like_the_first_cannot_mislead_it():
    """The first rows want the opposite: the linear term and the look at all rows correct that."""
    span = Span(LOGISTIC, rows=600)
    span.y[:60] *= -1.0
    with mock.patch.object(subspace, "SOME_ROWS", 60):
        best = span.search().run()
    assert best.objective < span.objective(np.zeros(4))


def test_a_quadratic_takes_one_newton_step():
    """Squared loss: the minimum over the span is a linear system."""
    span = Span(SQUARED)
    designs = np.vstack([span.along, np.ones(300)])
    hessian = 2.0 * designs @ designs.T / 300
    hessian[:3, :3] += 0.05 * span.moves @ span.moves.T
    slope = 2.0 * designs @ (span.base - span.y) / 300
    slope[:3] += 0.05 * span.moves @ span.point
    best = span.search().run()
    np.testing.assert_allclose(
        np.append(best.coefficients, best.constants[0]), -np.linalg.solve(hessian, slope), atol=1e-9
    )


def test_directions_that_repeat_one_another_do_no_harm():
    """The second is twice the first, the third is nothing."""
    span = Span(LOGISTIC)
    span.moves[1], span.moves[2] = 2.0 * span.moves[0], 0.0
    span.along[1], span.along[2] = 2.0 * span.along[0], 0.0
    point, moves = span.point, span.moves
    span.penalty = Quadratic(0.05, float(point @ point), moves @ point, moves @ moves.T)
    best = span.search().run()
    assert best.objective - span.minimum() <= 1e-4 * (span.objective(np.zeros(4)) - span.minimum())
    assert best.coefficients[2] == 0.0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.sampled_from(ALL),
    count=st.integers(0, 4),
    constant=st.booleans(),
    weighted=st.booleans(),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
    some=st.sampled_from([16, SOME_ROWS]),
)
def test_the_end_is_never_worse_than_the_start(seed, loss, count, constant, weighted, size, some):
    span = Span(loss, rows=40, count=count, width=5, constant=constant, weighted=weighted, seed=seed)
    start = size * np.random.default_rng(seed).standard_normal(count + 1) * np.append(np.ones(count), constant)
    with mock.patch.object(subspace, "SOME_ROWS", some):
        from_there, from_base = span.search().run(start), span.search().run()
    for best, begin in ((from_there, start), (from_base, np.zeros(count + 1))):
        end = span.objective(np.append(best.coefficients, best.constants[0]))
        assert best.objective == pytest.approx(end, rel=1e-9)
        assert end <= span.objective(begin) * (1.0 + 1e-12)


def test_without_directions_only_the_constant_moves():
    span = Span(LOGISTIC, count=0)
    stay, run = span.search().stay(), span.search().run()
    assert stay.coefficients.shape == run.coefficients.shape == (0,)
    assert stay.constants[0] == pytest.approx(run.constants[0], abs=1e-9)
    assert stay.objective == pytest.approx(span.minimum(), rel=1e-9)
    fixed = Span(LOGISTIC, count=0, constant=False).search().stay()
    assert fixed.constants[0] == 0.0 and fixed.objective == pytest.approx(span.objective(np.zeros(1)))


def test_to_stay_is_to_stay():
    span = Span(LOGISTIC)
    best = span.search().stay()
    assert not best.coefficients.any()
    np.testing.assert_allclose(best.products, span.base + best.constants[0], atol=1e-12)


@BY_NAME
@pytest.mark.parametrize("away", [-300.0, -30.0, -3.0, 0.0, 3.0, 30.0, 300.0])
@pytest.mark.parametrize("rare", [0.5, 0.02])
def test_derivatives_add_up_to_nothing_from_however_far(loss, away, rare):
    """Newton's method alone would jump over the minimum of a loss that is flat on one side, and not come back."""
    rng = np.random.default_rng(0)
    base = away + rng.standard_normal(500)
    y = np.where(rng.random(500) < rare, 1.0, -1.0 if loss.binary else 0.0)
    none = Quadratic(0.1, 0.0, np.zeros(0), np.zeros((0, 0)))
    search = Search(loss, y, NO_WEIGHTS, base, np.empty((0, 500)), none, constant=True)
    start = search.value(np.zeros(1))
    best = search.stay()
    assert abs(best.derivatives.mean()) <= 1e-12 * np.abs(best.derivatives).mean()
    assert best.objective <= start and best.loss == pytest.approx(
        float(np.mean(loss.value(base + best.constants[0], y)))
    )


def test_labels_of_one_kind_have_no_best_constant_and_the_search_ends():
    base = np.random.default_rng(0).standard_normal(50)
    none = Quadratic(0.1, 0.0, np.zeros(0), np.zeros((0, 0)))
    best = Search(LOGISTIC, np.ones(50), NO_WEIGHTS, base, np.empty((0, 50)), none, constant=True).stay()
    assert 20.0 < best.constants[0] < 60.0 and 0.0 < best.loss < 1e-9


def test_products_that_are_no_numbers_end_at_once():
    span = Span(LOGISTIC)
    span.base[3] = np.nan
    with mock.patch.object(subspace, "evaluate", wraps=evaluate) as evaluated:
        best = span.search().stay()
    assert np.isnan(best.objective) and evaluated.call_count == 1


def test_the_search_itself_can_go_on_after_its_end():
    """The judge looks at other points before and after: each look must be at the point it names."""
    span = Span(LOGISTIC)
    search = span.search()
    first = search.run()
    for a in (np.zeros(4), np.array([0.1, 0.2, -0.3, 0.4])):
        assert search.value(a) == pytest.approx(span.objective(a), rel=1e-12)
    again = search.run()
    assert np.array_equal(first.coefficients, again.coefficients) and first.constants[0] == again.constants[0]


@pytest.mark.parametrize("rows", [300, 2 * SOME_ROWS])
def test_at_the_best_point_there_is_nothing_to_search_for(rows):
    """What is left there is rounding: a search for it halved its steps in vain, dozens of looks at all rows."""
    for seed in range(8):
        span = Span(LOGISTIC, rows=rows, seed=seed)
        for _ in range(3):  # each search leaves less than the one before
            best = span.search().run()
            moved = best.coefficients @ span.moves
            span.point, span.base = span.point + moved, best.products
            span.penalty = Quadratic(
                0.05, float(span.point @ span.point), span.moves @ span.point, span.penalty.products
            )
        with mock.patch.object(subspace, "evaluate", wraps=evaluate) as evaluated:
            again = span.search().run()
        assert evaluated.call_count <= 8 and again.objective == pytest.approx(best.objective, rel=1e-13)
