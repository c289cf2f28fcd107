"""The diagonal metric: exact numbers, its bounds, and what it is good for."""

import numpy as np
import pytest
import scipy.sparse

from offbeat.learning import central
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LOGISTIC, SQUARED
from offbeat.learning.metric import diagonal_metric, steepest_penalty
from offbeat.learning.penalties import L2, NONCONVEX, NONE, PENALTIES


def test_exact_numbers():
    squares, weights = np.array([0.3, 0.1, 0.0]), np.array([0.0, 2.0, 200.0])
    assert diagonal_metric(squares, weights, L2, 0.1) == pytest.approx([1 / 0.4, 1 / 0.2, 1 / 0.1])
    # around 0 the curvature is 1, beyond 1 it is at most 1/4, beyond 100 next to nothing: a thousandth is kept
    assert diagonal_metric(squares, weights, NONCONVEX, 0.1) == pytest.approx([1 / 0.4, 1 / 0.125, 1 / 1e-4])
    assert diagonal_metric(squares, weights, NONE, 0.0) == pytest.approx([1 / 0.3, 1 / 0.1, 1 / 3e-7])
    assert diagonal_metric(np.zeros(2), np.zeros(2), NONE, 0.0) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: penalty.name)
def test_the_curvature_beyond_a_weight_is_the_largest_there(penalty):
    grid = np.linspace(0.0, 30.0, 30001)
    second = np.abs(np.gradient(penalty.gradient(grid), grid))
    largest = np.maximum.accumulate(second[::-1])[::-1]
    np.testing.assert_allclose(penalty.curvature_beyond(grid)[1:-1], largest[1:-1], atol=2e-4)
    np.testing.assert_array_equal(penalty.curvature_beyond(-grid), penalty.curvature_beyond(grid))


def test_the_penalty_is_at_most_as_steep_as_one_in_the_metric():
    rng = np.random.default_rng(0)
    for penalty in (L2, NONCONVEX):
        squares, weights = rng.exponential(0.1, 50), 5.0 * rng.standard_normal(50)
        metric = diagonal_metric(squares, weights, penalty, 0.2)
        assert 0.0 < 0.2 * steepest_penalty(metric, weights, penalty) <= 1.0


@pytest.mark.parametrize("kind", ["whole", "sparse"])
def test_columns_of_any_scale_take_the_same_way(kind):
    """Without a penalty, multiplying columns by constants divides the weights by them, step for step."""
    rng = np.random.default_rng(1)
    X, scales = rng.standard_normal((80, 4)), np.array([0.5, 1.0, 3.0, 2.0])
    tables = [table if kind == "whole" else scipy.sparse.csr_matrix(table) for table in (X, X * scales)]
    blocks = [make_block(table, penalty=NONE, strength=0.0) for table in tables]
    residuals = rng.standard_normal((10, 8))
    for block in blocks:
        block.step_by_curvature(np.full(80, 0.25))
        for at, residual in enumerate(residuals):
            block.step(8 * at, 8 * at + 8, residual, 0.05)
    np.testing.assert_allclose(blocks[1].weights() * scales, blocks[0].weights(), rtol=1e-4)


def test_a_narrow_dense_block_takes_a_newton_step():
    """All of the curvature at once: one whole step on the squared loss is at the optimum."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((50, 5)) @ rng.standard_normal((5, 5))
    y = rng.standard_normal(50)
    block = make_block(X, penalty=L2, strength=0.1)
    block.step_by_curvature(np.full(50, SQUARED.curvature))
    block.step(0, 50, SQUARED.derivative(np.zeros(50), y), 1.0)
    expected = central.optimum(X, y, SQUARED, 0.1)[0]
    np.testing.assert_allclose(block.weights(), expected, atol=1e-3)


def test_the_pooled_solver_by_curvature_ends_at_a_stationary_point():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((400, 6)) * np.geomspace(0.05, 5.0, 6)
    y = np.where(X @ rng.standard_normal(6) + rng.standard_normal(400) > 0, 1.0, -1.0)
    start = central.optimum(X, y, LOGISTIC, 1e-3)[0]
    found = central.fit_by_curvature(
        X, y, start, LOGISTIC, NONCONVEX, 1e-3, eta=0.05, batch=32, passes=400, norm_most=1e-7, snapshot_passes=2
    )
    assert np.linalg.norm(central.gradient(X, y, found.weights, LOGISTIC, NONCONVEX, 1e-3)) <= 1e-7
    assert found.objective < central.objective(X, y, start, LOGISTIC, NONCONVEX, 1e-3)
    assert 0 < found.passes < 400 and found.passes % 3 == 0
