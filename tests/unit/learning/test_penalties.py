"""Penalties: gradients by finite differences, constants, duality gaps, names."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadJob
from offbeat.learning import central
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LOGISTIC, LOSSES
from offbeat.learning.penalties import (
    L2,
    NONCONVEX,
    NONE,
    PENALTIES,
    after_penalty,
    elastic_net,
    penalty_named,
    penalty_slope,
)

W = np.linspace(-3.0, 3.0, 61)
NET = elastic_net(0.3)


@numba.njit
def compiled_slopes(code, w):
    out = np.empty_like(w)
    for i in range(len(w)):
        out[i] = penalty_slope(code, w[i])
    return out


@numba.njit
def compiled_after(code, w, owed):
    out = np.empty_like(w)
    for i in range(len(w)):
        out[i] = after_penalty(code, w[i], owed)
    return out


def test_values_by_hand():
    w = np.array([1.0, -2.0])
    assert L2.value(w) == 2.5
    assert NONCONVEX.value(w) == pytest.approx(0.5 * (0.5 + 0.8))
    assert NONE.value(w) == 0.0
    assert NET.value(w) == pytest.approx(0.3 * 3.0 + 0.7 * 2.5)


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


@pytest.mark.parametrize("penalty", [*PENALTIES, NET], ids=lambda penalty: penalty.name)
def test_gradient_is_a_fresh_array(penalty):
    w = W.copy()
    penalty.gradient(w)[:] = 7.0
    assert np.array_equal(w, W)


def test_nonconvex_bends_down_by_a_quarter_at_most():
    bend = np.diff(NONCONVEX.gradient(W)) / np.diff(W)
    assert -0.25 - 1e-9 <= bend.min() < -0.2


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: penalty.name)
def test_a_penalty_that_is_owed_is_read_as_paid(penalty):
    """u + owed g'(u) = w, exactly for l2, to third derivatives for the nonconvex penalty."""
    assert np.array_equal(compiled_after(penalty.code, W, 0.0), W)
    if penalty is not NONE:
        u = compiled_after(penalty.code, W, 0.1)
        np.testing.assert_allclose(u + 0.1 * penalty.gradient(u), W, atol=1e-15 if penalty is L2 else 2e-3)


def test_penalty_named():
    assert penalty_named("nonconvex") is NONCONVEX
    with pytest.raises(BadJob, match="Expected one of: l2, nonconvex, none"):
        penalty_named("l1")


def test_elastic_net():
    assert elastic_net(0.0) is L2
    assert (NET.smooth, NET.l1, NET.convex) == (0.7, 0.3, True)
    assert NET.curvature_beyond(W).tolist() == [0.7] * 61
    for bad in (-0.1, 1.0, np.nan):
        with pytest.raises(BadJob, match="at least 0 and below 1"):
            elastic_net(bad)


# -- slopes and duality gaps -----------------------------------------------------------------------------------------


def test_slope_by_hand():
    w, mean = np.array([2.0, 0.0, 0.0, -1.0]), np.array([1.0, 0.5, -0.01, 0.0])
    assert L2.slope(w, mean, 0.1) == pytest.approx([1.2, 0.5, -0.01, -0.1])
    # strength 0.1, l1 0.3: within 0.03 of zero the net holds a weight at zero
    assert NET.slope(w, mean, 0.1) == pytest.approx([1.0 + 0.14 + 0.03, 0.47, 0.0, -0.07 - 0.03])


def test_the_slope_of_a_net_is_its_steepest_descent():
    """-slope is the one-sided derivative of f, in each coordinate's better direction."""
    h, mean = 1e-7, np.array([0.5, 0.02, -0.01, -0.4, 0.1])
    w = np.array([1.0, 0.0, 0.0, 0.0, -0.3])

    def f(point):
        return mean @ point + 0.1 * NET.value(point)

    for j, slope in enumerate(NET.slope(w, mean, 0.1)):
        falls = []
        for sign in (1.0, -1.0):
            moved = w.copy()
            moved[j] += sign * h
            falls.append((f(w) - f(moved)) / h)
        assert max(*falls, 0.0) == pytest.approx(abs(slope), abs=1e-6)


def test_slack_by_hand():
    assert L2.slack(np.array([1.0, -2.0]), np.array([0.5, 0.1]), 0.2) == pytest.approx((0.7**2 + 0.3**2) / 0.4)
    # one weight 1, strength 0.1, mean -0.5: 0.03 + 0.035 + (0.5 - 0.03)^2 / (2 * 0.07) - 0.5
    assert NET.slack(np.ones(1), np.array([-0.5]), 0.1) == pytest.approx(0.065 + 0.47**2 / 0.14 - 0.5)
    assert np.isnan(NONE.slack(W, W, 0.1)) and np.isnan(NONCONVEX.slack(W, W, 0.1)) and np.isnan(L2.slack(W, W, 0.0))


def conjugate(penalty, strength, pull):
    """max over u of pull u - strength g(u), on a fine grid around its place."""
    bend, quadratic = strength * penalty.l1, strength * penalty.smooth
    best = np.sign(pull) * max(abs(pull) - bend, 0.0) / quadratic
    u = best + np.linspace(-0.1, 0.1, 20001)
    return float(np.max(pull * u - bend * np.abs(u) - 0.5 * quadratic * u * u))


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
    ratio=st.sampled_from([0.0, 0.1, 0.9]),
    strength=st.sampled_from([1e-3, 0.1, 2.0]),
)
def test_slack_is_never_negative_and_is_what_the_conjugate_says(weights, seed, ratio, strength):
    w, penalty = np.array(weights), elastic_net(ratio)
    mean = 3.0 * strength * np.random.default_rng(seed).standard_normal(len(w))
    slack = penalty.slack(w, mean, strength)
    assert slack >= 0.0
    expected = strength * penalty.value(w) + float(w @ mean) + sum(conjugate(penalty, strength, -m) for m in mean)
    assert slack == pytest.approx(expected, abs=1e-8)


def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 6))
    return X, np.where(X @ rng.standard_normal(6) + rng.standard_normal(80) > 0, 1.0, -1.0)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("ratio", [0.0, 0.4])
def test_the_slacks_of_all_blocks_add_up_to_the_duality_gap(loss, ratio):
    """Primal minus dual, for parties with 1, 2 and 3 columns, from each party's own weights and mean gradient."""
    (X, y), penalty, strength = problem(), elastic_net(ratio), 0.05
    w = np.random.default_rng(1).standard_normal(6)
    theta = loss.derivative(X @ w, y)
    slacks = 0.0
    for columns in (slice(0, 1), slice(1, 3), slice(3, 6)):
        block = make_block(X[:, columns], penalty=penalty, strength=strength)
        block.refresh(0, 80, theta)
        slacks += penalty.slack(w[columns], block.mean_gradient()[0, :-1], strength)
    primal = np.mean(loss.value(X @ w, y)) + strength * penalty.value(w)
    soft = np.maximum(np.abs(X.T @ theta / 80) - strength * penalty.l1, 0.0)
    dual = np.mean(loss.dual(theta, y)) - soft @ soft / (2 * strength * penalty.smooth)
    assert slacks == pytest.approx(primal - dual, rel=1e-10)
    assert slacks > 0.0


@pytest.mark.parametrize("ratio", [0.0, 0.4])
def test_slack_and_slope_vanish_at_the_optimum(ratio):
    (X, y), penalty, strength = problem(), elastic_net(ratio), 0.3
    block = make_block(X, penalty=penalty, strength=strength, method="sgd")
    block.step_by_curvature(np.full((1, 80), LOGISTIC.curvature), "diagonal")
    for _ in range(5000):
        block.step(0, 80, LOGISTIC.derivative(block.share(0, 80), y), 0.3)
    w = block.weights()[0, :-1]
    mean = X.T @ LOGISTIC.derivative(X @ w, y) / 80
    assert np.abs(penalty.slope(w, mean, strength)).max() < 1e-12
    assert 0.0 <= penalty.slack(w, mean, strength) < 1e-14
    if ratio == 0.0:
        np.testing.assert_allclose(w, central.optimum(X, y, LOGISTIC, strength)[0], atol=1e-9)
    else:
        assert np.any(w == 0.0) and np.any(w != 0.0)
