"""Huber's loss against obvious formulas, plain and compiled."""

import numpy as np
import pytest

from offbeat.learning.losses import derivative_of, huber, second_of, value_of


@pytest.mark.parametrize("delta", [0.1, 1.0, 5.0])
def test_value_derivatives_and_dual(delta):
    rng = np.random.default_rng(0)
    z, y, loss = 3.0 * rng.normal(size=300), rng.normal(size=300), huber(delta)
    away = np.abs(z - y)
    np.testing.assert_allclose(
        loss.value(z, y), np.where(away <= delta, away**2, 2 * delta * away - delta**2), rtol=1e-12
    )
    h = 1e-7
    slope = (loss.value(z + h, y) - loss.value(z - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.derivative(z, y), slope, atol=1e-6)
    np.testing.assert_array_equal(loss.second(z, y), np.where(away <= delta, 2.0, 0.0))
    theta = loss.derivative(z, y)
    np.testing.assert_allclose(loss.value(z, y) - loss.dual(theta, y), theta * z, atol=1e-10)
    assert loss.dual(np.array([2.1 * delta]), np.zeros(1))[0] == -np.inf
    for compiled, plain in ((value_of, loss.value), (derivative_of, loss.derivative), (second_of, loss.second)):
        each = [compiled.py_func(loss.code, delta, a, b) for a, b in zip(z, y, strict=True)]
        np.testing.assert_allclose(each, plain(z, y), atol=1e-12)


def test_no_number_is_told_as_no_number():
    assert np.isnan(derivative_of.py_func(8, 1.0, float("nan"), 0.0))
    assert np.isnan(huber(1.0).derivative(np.array([np.nan]), np.zeros(1))[0])
