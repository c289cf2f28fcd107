"""The softmax loss and its compiled loops, against obvious ones."""

import numpy as np
import pytest

from offbeat.learning.blocks import finish_product
from offbeat.learning.class_kernels import curvature_classes, evaluate_classes
from offbeat.learning.losses import LOGISTIC, softmax, weighted
from offbeat.learning.subspace import Quadratic, Search

NONE = np.empty(0)


def drawn(rows, classes, seed=0):
    rng = np.random.default_rng(seed)
    z = 3.0 * rng.standard_normal((classes, rows))
    return z, rng.integers(0, classes, rows).astype(np.float64), rng


def obvious(z, y):
    """(value, probabilities) of each row, one row at a time."""
    values, chances = [], []
    for row, label in zip(z.T, y.astype(int), strict=True):
        p = np.exp(row) / np.exp(row).sum()
        values.append(-np.log(p[label]))
        chances.append(p)
    return np.array(values), np.array(chances).T


def test_value_derivative_and_curvature_one_row_at_a_time():
    z, y, _ = drawn(50, 4)
    loss = softmax(4)
    values, p = obvious(z, y)
    np.testing.assert_allclose(loss.value(z, y), values, rtol=1e-12)
    expected = p.copy()
    expected[y.astype(int), np.arange(50)] -= 1.0
    np.testing.assert_allclose(loss.derivative(z, y), expected, atol=1e-14)
    np.testing.assert_allclose(loss.second(z, y), p * (1 - p), atol=1e-14)
    np.testing.assert_allclose(loss.second_from_derivative(loss.derivative(z, y)), p * (1 - p), atol=1e-14)
    u = np.random.default_rng(1).standard_normal(z.shape)
    for i in range(50):
        whole = np.diag(p[:, i]) - np.outer(p[:, i], p[:, i])
        np.testing.assert_allclose(loss.hessian(z, y, u)[:, i], whole @ u[:, i], atol=1e-13)
        assert np.linalg.eigvalsh(whole)[-1] <= loss.curvature + 1e-12


def test_far_products_keep_their_digits():
    z = np.array([[1000.0, -1000.0], [0.0, 0.0], [-1000.0, 1000.0]])
    assert softmax(3).value(z, np.array([0.0, 1.0])).tolist() == [0.0, 1000.0]
    assert np.isfinite(softmax(3).derivative(z, np.array([0.0, 1.0]))).all()


def test_two_classes_are_the_logistic_loss():
    z, y, _ = drawn(40, 2)
    signs = np.where(y > 0, 1.0, -1.0)
    np.testing.assert_allclose(softmax(2).value(z, y), LOGISTIC.value(z[1] - z[0], signs), rtol=1e-12)
    np.testing.assert_allclose(softmax(2).derivative(z, y)[1], LOGISTIC.derivative(z[1] - z[0], signs), atol=1e-14)


def test_fenchels_equality_and_the_domain_of_the_dual():
    z, y, _ = drawn(60, 5)
    loss = softmax(5)
    theta = loss.derivative(z, y)
    np.testing.assert_allclose(loss.value(z, y) - loss.dual(theta, y), (theta * z).sum(axis=0), atol=1e-10)
    assert (loss.dual(theta + 0.1, y) == -np.inf).all()
    vertex = np.zeros((5, 1))
    assert loss.dual(vertex, np.array([2.0]))[0] == 0.0


@pytest.mark.parametrize("rows", [1, 1023, 2500])
@pytest.mark.parametrize("with_weights", [False, True])
def test_the_loops_of_the_search_against_numpy(rows, with_weights):
    z, y, rng = drawn(rows, 3)
    weights = rng.uniform(0.0, 2.0, rows) if with_weights else NONE
    loss, directions = weighted(softmax(3), weights), rng.standard_normal((2, 3 * rows))
    a, constants = np.array([0.3, -0.2]), np.array([0.5, 0.0, -1.0])
    at, theta, slope = np.empty(3 * rows), np.empty(3 * rows), np.empty(5)
    value = evaluate_classes(z.ravel(), directions, a, constants, y, weights, at, theta, slope)
    expected = z + np.tensordot(a, directions.reshape(2, 3, rows), 1) + constants[:, None]
    np.testing.assert_allclose(at.reshape(3, -1), expected, atol=1e-12)
    assert value == pytest.approx(loss.value(expected, y).mean(), rel=1e-12)
    derivatives = loss.derivative(expected, y)
    np.testing.assert_allclose(theta.reshape(3, -1), derivatives, atol=1e-13)
    basis = np.vstack([directions, np.kron(np.eye(3), np.ones(rows))])
    np.testing.assert_allclose(slope, basis @ derivatives.ravel() / rows, atol=1e-12)
    into = np.empty((5, 5))
    curvature_classes(directions, at, weights, 3, into)
    images = [loss.hessian(expected, y, one.reshape(3, -1)).ravel() for one in basis]
    np.testing.assert_allclose(into, basis @ np.array(images).T / rows, atol=1e-12)


@pytest.mark.parametrize("with_weights", [False, True])
def test_finishing_a_product_gives_all_classes_at_once(with_weights):
    z, y, rng = drawn(1500, 4)
    scale, weights = 2.0**40, rng.uniform(0.5, 2.0, 1600) if with_weights else NONE
    labels = np.concatenate([np.zeros(100), y])
    own = rng.standard_normal(z.size)
    words = np.rint((z.ravel() - own) * scale).astype(np.int64).view(np.uint64)
    products, theta = finish_product(words, own, 100, labels, softmax(4), scale, weights)
    np.testing.assert_allclose(products, z.ravel(), atol=1e-11)
    expected = weighted(softmax(4), weights[100:]).derivative(z, y)
    np.testing.assert_allclose(theta.reshape(4, -1), expected, atol=1e-10)


@pytest.mark.parametrize("rows", [60, 9000])
def test_a_search_ends_at_the_best_point_of_the_span_with_even_derivatives(rows):
    z, y, rng = drawn(rows, 4, seed=2)
    directions = rng.standard_normal((3, 4 * rows))
    penalty = Quadratic(0.05, 1.0, 0.1 * rng.standard_normal(3), np.eye(3))
    search = Search(softmax(4), y, NONE, z.ravel(), directions, penalty, constant=True)
    best = search.run()
    assert np.abs(best.derivatives.reshape(4, -1).mean(axis=1)).max() <= 1e-12
    assert best.constants.shape == (4,) and abs(best.constants.sum()) <= 1e-9
    slope = directions @ best.derivatives / rows + penalty.slope(best.coefficients)
    assert np.abs(slope).max() <= 1e-3
    assert best.objective <= search.value(search.origin)
    fixed = Search(softmax(4), y, NONE, z.ravel(), directions, penalty, constant=False).run()
    assert not fixed.constants.any() and fixed.objective >= best.objective
