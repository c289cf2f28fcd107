"""The losses of counts and amounts, whose curvature has no bound, against obvious formulas."""

import numpy as np
import pytest
from sklearn.metrics import mean_gamma_deviance, mean_poisson_deviance

from offbeat.learning.blocks import finish_product
from offbeat.learning.kernels import REACH
from offbeat.learning.losses import GAMMA, GROWING, POISSON, derivative_of, loss_named, second_of, value_of
from offbeat.learning.subspace import Quadratic, Search

BY_NAME = pytest.mark.parametrize("loss", GROWING, ids=lambda loss: loss.name)


def drawn(loss, rows=200, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.poisson(3.0, rows).astype(float) if loss is POISSON else rng.gamma(2.0, 3.0, rows)
    return rng.normal(size=rows), y


@BY_NAME
def test_the_value_is_half_the_deviance_and_the_rest_its_derivatives(loss):
    z, y = drawn(loss)
    deviance = mean_poisson_deviance if loss is POISSON else mean_gamma_deviance
    assert 2.0 * loss.value(z, y).mean() == pytest.approx(deviance(y, np.exp(z)), rel=1e-12)
    h = 1e-6
    np.testing.assert_allclose(
        loss.derivative(z, y), (loss.value(z + h, y) - loss.value(z - h, y)) / (2 * h), atol=1e-7
    )
    slope = (loss.derivative(z + h, y) - loss.derivative(z - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.second(z, y), slope, rtol=1e-6)
    theta = loss.derivative(z, y)
    np.testing.assert_allclose(loss.value(z, y) - loss.dual(theta, y), theta * z, atol=1e-10)
    for compiled, plain in ((value_of, loss.value), (derivative_of, loss.derivative), (second_of, loss.second)):
        each = [compiled.py_func(loss.code, loss.delta, a, b) for a, b in zip(z, y, strict=True)]
        np.testing.assert_allclose(each, plain(z, y), atol=1e-12)
    assert loss_named(loss.name) is loss


def test_the_dual_ends_where_the_conjugate_does():
    assert POISSON.dual(np.array([-2.0]), np.array([1.0]))[0] == -np.inf
    assert GAMMA.dual(np.array([1.0]), np.array([1.0]))[0] == -np.inf


@BY_NAME
def test_a_product_far_out_is_neither_infinite_nor_wrong_in_sign(loss):
    far = np.array([-2000.0, 2000.0])
    assert np.isfinite(loss.derivative(far, np.ones(2))).all() and np.isfinite(loss.value(far, np.ones(2))).all()


@BY_NAME
@pytest.mark.parametrize("weighted", [False, True])
def test_a_derivative_is_exact_within_reach_and_straight_beyond(loss, weighted):
    known, y = drawn(loss, 50, seed=1)
    weights = np.linspace(0.0, 2.0, 50) if weighted else np.empty(0)
    times = weights if weighted else np.ones(50)
    curvature = loss.second(known, y) * times
    sign = 1.0 if loss is POISSON else -1.0

    def at(move):
        z = known + sign * move
        words = np.zeros(50, np.uint64)
        return finish_product(words, z, 0, y, loss, 1.0, weights, curvature)[1]

    for move in (-3.0, 0.0, REACH):
        np.testing.assert_allclose(at(move), times * loss.derivative(known + sign * move, y), rtol=1e-9, atol=1e-12)
    rise = (at(500.0) - at(400.0)) / 100.0
    np.testing.assert_allclose(rise, sign * np.exp(REACH) * curvature, rtol=1e-9, atol=1e-12)


@BY_NAME
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_the_constant_evens_out_whatever_the_size_of_the_labels(loss, scale):
    z, y = drawn(loss)
    search = Search(loss, scale * y, np.empty(0), 3.0 * z, np.empty((0, 200)), Quadratic(1.0, 0.0, *_nothing()), True)
    best = search.stay()
    assert abs(best.derivatives.mean()) <= 1e-12 * np.abs(best.derivatives).mean()


def _nothing():
    return np.zeros(0), np.zeros((0, 0))
