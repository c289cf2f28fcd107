"""Directions: residuals by hand, refreshed tables, SAGA's scalar table against whole gradients."""

import numpy as np
import pytest
import scipy.sparse

from offbeat.learning.blocks import make_block, step_along
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2, NONE
from offbeat.learning.sampling import Schedule

KINDS = pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix], ids=["dense", "sparse"])
X = np.array([[1.0, 0.0], [2.0, -1.0], [0.0, 3.0], [0.0, 0.0]])


def block_with(kind, method, table, outputs=1):
    block = make_block(kind(X), penalty=NONE, strength=0.0, method=method, outputs=outputs)
    block.adopt(table, np.hstack([table @ X, table.sum(axis=1, keepdims=True)]) / 4)
    return block


@KINDS
def test_residuals_by_hand(kind):
    theta, table = np.array([1.0, 2.0]), np.array([[9.0, 0.5, -1.0, 9.0]])
    sgd = make_block(kind(X), penalty=NONE, strength=0.0, method="sgd")
    assert sgd.residual(1, 3, theta).tolist() == [1.0, 2.0]
    svrg = block_with(kind, "svrg", table)
    assert svrg.residual(1, 3, theta).tolist() == [0.5, 3.0]
    assert svrg.table.tolist() == [[9.0, 0.5, -1.0, 9.0]]
    saga = block_with(kind, "saga", table)
    assert saga.residual(1, 3, theta).tolist() == [0.5, 3.0]
    assert saga.table.tolist() == [[9.0, 1.0, 2.0, 9.0]]
    assert theta.tolist() == [1.0, 2.0] and table.tolist() == [[9.0, 0.5, -1.0, 9.0]]


@KINDS
def test_residuals_of_several_outputs_by_hand(kind):
    saga = block_with(kind, "saga", np.array([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]), outputs=2)
    assert saga.residual(1, 3, np.array([10.0, 20.0, 30.0, 40.0])).tolist() == [9.0, 18.0, 25.0, 34.0]
    assert saga.table.tolist() == [[0.0, 10.0, 20.0, 3.0], [4.0, 30.0, 40.0, 7.0]]


@KINDS
@pytest.mark.parametrize(("method", "means"), [("sgd", 0.0), ("svrg", 1.0), ("saga", 1.0)])
def test_one_step_of_each_method_by_hand(kind, method, means):
    """Rows 1 and 2, theta (1, 2), table (0.5, -1): SGD follows theta, the others the difference and the mean."""
    if method == "sgd":
        block = make_block(kind(X), penalty=NONE, strength=0.0, method=method)
    else:
        block = block_with(kind, method, np.array([[0.0, 0.5, -1.0, 0.0]]))
    block.move_constant(np.array([0.1]))
    block.step(1, 3, np.array([1.0, 2.0]), 0.5)
    residual = np.array([1.0, 2.0]) if method == "sgd" else np.array([0.5, 3.0])
    mean = means * np.array([1.0, -3.5, -0.5]) / 4  # X^T table / 4, and the table's mean
    g = np.array([2 * residual[0], -residual[0] + 3 * residual[1], residual.sum()])
    expected = -0.5 * np.array([1.0, 1.0, 0.1]) * (g / 2 + mean)
    np.testing.assert_allclose(block.weights(), [expected], rtol=1e-14)
    moved = g / 4 if method == "saga" else 0.0
    np.testing.assert_allclose(block.mean_gradient(), [mean + moved], rtol=1e-14)


@KINDS
@pytest.mark.parametrize("method", ["svrg", "saga"])
def test_a_refreshed_table_keeps_the_mean_gradient_true_and_the_weights(kind, method):
    block = block_with(kind, method, np.array([[0.0, 0.5, -1.0, 0.0]]))
    block.step(0, 3, np.array([0.3, -0.2, 0.1]), 0.7)
    before = block.weights()
    block.refresh(2, 4, np.array([5.0, 6.0]))
    np.testing.assert_allclose(block.weights(), before, rtol=1e-14)
    assert block.table[0, 2:].tolist() == [5.0, 6.0]
    expected = np.hstack([block.table @ X, block.table.sum(axis=1, keepdims=True)]) / 4
    np.testing.assert_allclose(block.mean_gradient(), expected, rtol=1e-13)
    assert block.version == 1


@KINDS
def test_sgd_knows_the_mean_gradient_and_does_not_step_along_it(kind):
    block = make_block(kind(X), penalty=NONE, strength=0.0, method="sgd")
    theta = np.array([1.0, -1.0, 2.0, 0.5])
    block.refresh(0, 4, np.ones(4))
    block.refresh(0, 4, theta)
    mean = np.append(X.T @ theta, theta.sum()) / 4
    np.testing.assert_allclose(block.mean_gradient(), [mean], rtol=1e-14)
    block.step_along_mean(0.1)
    assert not block.weights().any()
    block.step(0, 4, np.ones(4), 0.1)
    np.testing.assert_allclose(block.weights(), [np.append(-0.1 * X.sum(axis=0) / 4, 0.0)], rtol=1e-14)
    np.testing.assert_allclose(block.mean_gradient(), [mean], rtol=1e-14)
    assert block.table.tolist() == [theta.tolist()]


@KINDS
def test_after_a_refresh_of_all_rows_a_step_along_the_mean_is_a_gradient_step(kind):
    block = make_block(kind(X), penalty=L2, strength=0.5, method="svrg")
    block.set_weights(np.array([[1.0, -2.0, 0.0]]))
    block.step(0, 1, np.ones(1), 0.1)
    w, theta = block.weights()[0, :-1], np.array([1.0, -1.0, 2.0, 0.5])
    block.refresh(0, 2, theta[:2])
    block.refresh(2, 4, theta[2:])
    block.step_along_mean(0.2)
    np.testing.assert_allclose(block.weights()[0, :-1], w - 0.2 * (X.T @ theta / 4 + 0.5 * w), rtol=1e-13)


@KINDS
@pytest.mark.parametrize("method", ["svrg", "saga"])
def test_a_step_along_another_gradient_leaves_the_mean_one_and_the_table(kind, method):
    block = make_block(kind(X), penalty=L2, strength=0.5, method=method)
    block.set_weights(np.array([[1.0, -2.0, 0.0]]))
    block.refresh(0, 4, np.array([1.0, -1.0, 2.0, 0.5]))
    w, mean, table, other = block.weights(), block.mean_gradient(), block.table.copy(), np.array([[3.0, -1.0, 0.0]])
    step_along(block, other, 0.2)
    np.testing.assert_allclose(block.weights()[0, :-1], (w - 0.2 * (other + 0.5 * w))[0, :-1], rtol=1e-13)
    np.testing.assert_allclose(block.mean_gradient(), mean, rtol=1e-14)
    assert np.array_equal(block.table, table)


@KINDS
def test_a_constant_that_rests_is_not_forgotten(kind):
    """A party that becomes the chair moves the constant from then on: its mean derivative must be true by then."""
    block = make_block(kind(X), penalty=NONE, strength=0.0, method="saga")
    block.step(0, 2, np.array([1.0, 2.0]), 0.1)
    block.apply_gradient(block.gradient_job(2, 4, block.residual(2, 4, np.array([-1.0, 4.0])))(), 2, 0.1)
    assert block.weights()[0, -1] == 0.0
    assert block.mean_gradient()[0, -1] == pytest.approx(6.0 / 4)
    block.move_constant(np.array([0.5]))
    block.step_along_mean(0.1)
    assert block.weights()[0, -1] == pytest.approx(-0.1 * 0.5 * 1.5)


@KINDS
def test_saga_scalar_vs_dense(kind):
    """One scalar a row does what a table of whole gradients does, over 10^4 steps; the mean does not drift."""
    rng = np.random.default_rng(0)
    rows, width, eta, strength = 60, 8, 0.4, 1e-2
    table = rng.standard_normal((rows, width)) * (rng.random((rows, width)) < 0.4)
    y = rng.choice([-1.0, 1.0], rows)
    block = make_block(kind(table), penalty=L2, strength=strength, method="saga")
    w, gradients, mean = np.zeros(width), np.zeros((rows, width)), np.zeros(width)
    schedule = Schedule(rows, 2, seed=0)
    for number in range(10_000):
        start, stop = schedule.block(number)
        batch = slice(start, stop)
        block.step(start, stop, LOGISTIC.derivative(block.share(start, stop), y[batch]), eta)
        new = LOGISTIC.derivative(table[batch] @ w, y[batch])[:, None] * table[batch]
        difference = (new - gradients[batch]).sum(axis=0)
        w = w - eta * (difference / (stop - start) + mean + strength * w)
        mean = mean + difference / rows
        gradients[batch] = new
    assert np.max(np.abs(block.weights()[0, :-1] - w)) < 1e-12
    assert np.max(np.abs(block.mean_gradient()[0, :-1] - table.T @ block.table[0] / rows)) < 1e-9
