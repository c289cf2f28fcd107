"""The metrics: exact numbers, their bounds, and what they are good for."""

from unittest import mock

import numpy as np
import pytest
import scipy.sparse

from offbeat.learning import central
from offbeat.learning import metric as metrics
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LOGISTIC, SQUARED
from offbeat.learning.metric import diagonal_metric, is_news, steepest_penalty
from offbeat.learning.penalties import L2, NONCONVEX, NONE, PENALTIES, elastic_net

KINDS = pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix], ids=["dense", "sparse"])


def metric_of(block):
    """The metric of the first output, as a matrix."""
    return block.in_metric(np.eye(block.width + 1))[:-1, :-1]


def test_exact_numbers():
    squares, weights = np.array([0.3, 0.1, 0.0]), np.array([0.0, 2.0, 200.0])
    assert diagonal_metric(squares, weights, L2, 0.1) == pytest.approx([1 / 0.4, 1 / 0.2, 1 / 0.1])
    # around 0 the curvature is 1, beyond 1 it is at most 1/4, beyond 100 next to nothing: a thousandth is kept
    assert diagonal_metric(squares, weights, NONCONVEX, 0.1) == pytest.approx([1 / 0.4, 1 / 0.125, 1 / 1e-4])
    assert diagonal_metric(squares, weights, NONE, 0.0) == pytest.approx([1 / 0.3, 1 / 0.1, 1 / 3e-7])
    assert diagonal_metric(squares, weights, elastic_net(0.75), 0.4) == pytest.approx([1 / 0.4, 1 / 0.2, 1 / 0.1])
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


def test_news_is_a_quarter_of_any_column():
    before = np.array([1.0, 2.0, 0.0])
    assert not is_news(np.array([1.25, 1.5, 0.0]), before)
    assert is_news(np.array([1.26, 2.0, 0.0]), before)
    assert is_news(np.array([1.0, 2.0, 1e-9]), before)
    assert is_news(before, np.empty(0))


@KINDS
def test_a_block_keeps_its_metric_while_the_curvature_hardly_changes(kind):
    X = np.random.default_rng(0).standard_normal((40, 3))
    block = make_block(kind(X), penalty=NONE, strength=0.0)
    block.step_by_curvature(np.full((1, 40), 0.2), "diagonal")
    first = metric_of(block)
    np.testing.assert_allclose(first, np.diag(1.0 / (0.2 * (X**2).mean(axis=0))), rtol=1e-12)
    block.step_by_curvature(np.full((1, 40), 0.24), "diagonal")
    assert np.array_equal(metric_of(block), first)
    block.step_by_curvature(np.full((1, 40), 0.1), "diagonal")
    np.testing.assert_allclose(metric_of(block), 2.0 * first, rtol=1e-12)
    block.step_by_curvature(np.full((1, 40), 0.1), "none")
    assert np.array_equal(metric_of(block), np.eye(3)) and block.metric_kind == "none"


def test_all_of_the_curvature_for_narrow_blocks_of_smooth_penalties_alone():
    X = np.random.default_rng(0).standard_normal((400, 3)) @ np.array([[1.0, 0.9, 0.0], [0.0, 1.0, 0.0], [0, 0, 2.0]])
    second = np.full((1, 400), 0.25)
    hessian = 0.25 * X.T @ X / 400 + 0.1 * np.eye(3)
    narrow = make_block(X, penalty=L2, strength=0.1)
    narrow.step_by_curvature(second, "whole")
    np.testing.assert_allclose(metric_of(narrow), np.linalg.inv(hessian), rtol=1e-4)
    netted = make_block(X, penalty=elastic_net(0.5), strength=0.2)
    netted.step_by_curvature(second, "whole")
    np.testing.assert_allclose(metric_of(netted), np.diag(1.0 / np.diag(hessian)), rtol=1e-12)
    with mock.patch.object(metrics, "WHOLE_WIDTH_MOST", 2):
        wide = make_block(X, penalty=L2, strength=0.1)
        wide.step_by_curvature(second, "whole")
    np.testing.assert_allclose(metric_of(wide), np.diag(1.0 / np.diag(hessian)), rtol=1e-12)


def test_all_of_the_curvature_over_some_rows_has_the_diagonal_of_all():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((5000, 4)) @ rng.standard_normal((4, 4))
    X[2000:] *= 1.3
    with mock.patch.multiple(metrics, HESSIAN_WORK_MOST=0, HESSIAN_ROWS_LEAST=2000):
        block = make_block(X, penalty=L2, strength=0.1)
        block.step_by_curvature(np.full((1, 5000), 0.25), "whole")
    hessian = 0.25 * X[:2000].T @ X[:2000] / 2000
    np.fill_diagonal(hessian, 0.25 * (X**2).mean(axis=0) * (1.0 + 4 / 2000))
    np.testing.assert_allclose(metric_of(block), np.linalg.inv(hessian + 0.1 * np.eye(4)), rtol=1e-3)


def test_columns_without_values_or_penalty_have_a_metric_too():
    X = np.zeros((10, 2))
    for kind in ("diagonal", "whole"):
        block = make_block(X, penalty=NONE, strength=0.0)
        block.step_by_curvature(np.full((1, 10), 0.25), kind)
        assert np.array_equal(metric_of(block), np.eye(2))


def test_each_output_of_a_dense_block_has_its_own_metric():
    X = np.random.default_rng(0).standard_normal((30, 3))
    second = np.random.default_rng(1).uniform(0.1, 1.0, (2, 30))
    block = make_block(X, penalty=NONE, strength=0.0, outputs=2, method="sgd")
    block.step_by_curvature(second, "whole")
    theta = np.random.default_rng(2).standard_normal((2, 30))
    block.step(0, 30, theta.ravel(), 1.0)
    for k in range(2):
        newton = -np.linalg.solve((X.T * second[k]) @ X / 30, X.T @ theta[k] / 30)
        np.testing.assert_allclose(block.weights()[k, :-1], newton, rtol=1e-4)


@pytest.mark.parametrize("kind", ["whole", "diagonal", "sparse"])
def test_columns_of_any_scale_take_the_same_way(kind):
    """Without a penalty, multiplying columns by constants divides the weights by them, step for step."""
    rng = np.random.default_rng(1)
    X, scales = rng.standard_normal((80, 4)), np.array([0.5, 1.0, 3.0, 2.0])
    tables = [scipy.sparse.csr_matrix(table) if kind == "sparse" else table for table in (X, X * scales)]
    blocks = [make_block(table, penalty=NONE, strength=0.0) for table in tables]
    thetas = rng.standard_normal((10, 8))
    for block in blocks:
        block.step_by_curvature(np.full((1, 80), 0.25), "whole" if kind == "whole" else "diagonal")
        for at, theta in enumerate(thetas):
            block.step(8 * at, 8 * at + 8, theta, 0.05)
    np.testing.assert_allclose(blocks[1].weights()[0, :-1] * scales, blocks[0].weights()[0, :-1], rtol=1e-4)


def test_a_narrow_dense_block_takes_a_newton_step():
    """All of the curvature at once: one whole step on the squared loss is at the optimum."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((50, 5)) @ rng.standard_normal((5, 5))
    y = rng.standard_normal(50)
    block = make_block(X, penalty=L2, strength=0.1, method="sgd")
    block.step_by_curvature(np.full((1, 50), SQUARED.curvature), "whole")
    block.step(0, 50, SQUARED.derivative(np.zeros(50), y), 1.0)
    expected = central.optimum(X, y, SQUARED, 0.1)[0]
    np.testing.assert_allclose(block.weights()[0, :-1], expected, atol=1e-3)


@KINDS
def test_a_new_metric_moves_neither_weights_nor_mean_gradient(kind):
    X = np.random.default_rng(3).standard_normal((50, 5))
    block = make_block(kind(X), penalty=L2, strength=0.1, method="saga")
    rng = np.random.default_rng(0)
    for factor in (1.0, 4.0, 0.5):
        block.step_by_curvature(factor * rng.uniform(0.1, 0.25, (1, 50)), "diagonal")
        for start in range(0, 50, 10):
            block.step(start, start + 10, rng.standard_normal(10), 0.05)
        weights, mean, share = block.weights(), block.mean_gradient(), block.share(0, 50)
        block.step_by_curvature(20 * factor * rng.uniform(0.1, 0.25, (1, 50)), "diagonal")
        np.testing.assert_allclose(block.weights(), weights, rtol=1e-13)
        np.testing.assert_allclose(block.mean_gradient(), mean, rtol=1e-13)
        np.testing.assert_allclose(block.share(0, 50), share, atol=1e-13)


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
