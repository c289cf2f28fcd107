"""Penalties: gradients by finite differences, constants, names."""

import numba
import numpy as np
import pytest

from offbeat.errors import BadJob
from offbeat.learning.penalties import L2, NONCONVEX, NONE, PENALTIES, penalty_named, penalty_slope

W = np.linspace(-3.0, 3.0, 61)


@numba.njit
def compiled_slopes(code, w):
    out = np.empty_like(w)
    for i in range(len(w)):
        out[i] = penalty_slope(code, w[i])
    return out


def test_values_by_hand():
    w = np.array([1.0, -2.0])
    assert L2.value(w) == 2.5
    assert NONCONVEX.value(w) == pytest.approx(0.5 * (0.5 + 0.8))
    assert NONE.value(w) == 0.0


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: penalty.name)
def test_gradients_are_slopes(penalty):
    h = 1e-6
    gradient = penalty.gradient(W)
    for j in range(len(W)):
        up, down = W.copy(), W.copy()
        up[j] += h
        down[j] -= h
        assert gradient[j] == pytest.approx((penalty.value(up) - penalty.value(down)) / (2 * h), abs=1e-8)
    np.testing.assert_allclose(compiled_slopes(penalty.code, W), gradient, rtol=1e-15)
    bend = np.diff(gradient) / np.diff(W)
    assert np.all(np.abs(bend) <= penalty.curvature + 1e-12)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: penalty.name)
def test_gradient_is_a_fresh_array(penalty):
    w = W.copy()
    penalty.gradient(w)[:] = 7.0
    assert np.array_equal(w, W)


def test_nonconvex_bends_down_by_a_quarter_at_most():
    bend = np.diff(NONCONVEX.gradient(W)) / np.diff(W)
    assert -0.25 - 1e-9 <= bend.min() < -0.2


def test_penalty_named():
    assert penalty_named("nonconvex") is NONCONVEX
    with pytest.raises(BadJob, match="Expected one of: l2, nonconvex, none"):
        penalty_named("l1")
