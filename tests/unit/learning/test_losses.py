"""Losses: values by hand, derivatives by finite differences, duals by Fenchel's equality, tails with all digits."""

import numba
import numpy as np
import pytest

from offbeat.errors import BadJob
from offbeat.learning.losses import (
    DEBIASED_LOGISTIC,
    LOGISTIC,
    LOSSES,
    LS_SVM,
    SQUARED,
    SQUARED_HINGE,
    derivative_of,
    logistic_rows,
    loss_named,
    second_of,
    value_of,
)

Z = np.linspace(-4.03, 4.03, 81)  # clear of the hinge's kinks at -1 and 1


ALL = (*LOSSES, DEBIASED_LOGISTIC)


@numba.njit
def compiled_derivative(code, z, y):
    out = np.empty_like(z)
    for i in range(len(z)):
        out[i] = derivative_of(code, 0.0, z[i], y[i])
    return out


@numba.njit
def compiled_value(code, z, y):
    out = np.empty_like(z)
    for i in range(len(z)):
        out[i] = value_of(code, 0.0, z[i], y[i])
    return out


@numba.njit
def compiled_second(code, z, y):
    out = np.empty_like(z)
    for i in range(len(z)):
        out[i] = second_of(code, 0.0, z[i], y[i])
    return out


def labels_for(loss):
    return (-1.0, 1.0) if loss.binary else (-1.5, 0.0, 2.0)


def test_values_by_hand():
    z, y = np.array([0.5]), np.array([-1.0])
    assert LOGISTIC.value(z, y)[0] == pytest.approx(np.log(1 + np.exp(0.5)), rel=1e-15)
    assert SQUARED.value(z, np.array([2.0]))[0] == 2.25
    assert SQUARED_HINGE.value(z, y)[0] == 2.25
    assert SQUARED_HINGE.value(np.array([3.0]), np.array([1.0]))[0] == 0.0
    assert LS_SVM.value(np.array([3.0]), np.array([1.0]))[0] == 4.0


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.name)
def test_derivatives_are_slopes(loss):
    h = 1e-6
    for label in labels_for(loss):
        y = np.full_like(Z, label)
        slope = (loss.value(Z + h, y) - loss.value(Z - h, y)) / (2 * h)
        np.testing.assert_allclose(loss.derivative(Z, y), slope, atol=5e-8)
        bend = (loss.derivative(Z + h, y) - loss.derivative(Z - h, y)) / (2 * h)
        np.testing.assert_allclose(loss.second(Z, y), bend, atol=5e-8)
        assert np.all(np.abs(bend) <= loss.curvature + 1e-7)


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.name)
def test_compiled_derivative_is_the_same(loss):
    z = np.concatenate([Z, [-700.0, -36.0, 36.0, 700.0]])
    for label in labels_for(loss):
        y = np.full_like(z, label)
        np.testing.assert_allclose(compiled_derivative(loss.code, z, y), loss.derivative(z, y), rtol=4e-16)
        assert np.isnan(compiled_derivative(loss.code, np.array([np.nan]), np.array([label])))[0]


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.name)
def test_compiled_value_and_second_derivative_are_the_same(loss):
    z = np.concatenate([Z, [-700.0, -36.0, -1.0, 0.0, 1.0, 36.0, 700.0]])
    for label in labels_for(loss):
        y = np.full_like(z, label)
        np.testing.assert_allclose(compiled_value(loss.code, z, y), loss.value(z, y), rtol=4e-15, atol=1e-300)
        np.testing.assert_allclose(compiled_second(loss.code, z, y), loss.second(z, y), rtol=4e-15)
        bad = np.array([np.nan]), np.array([label])
        assert np.isnan(compiled_value(loss.code, *bad))[0]


def test_the_second_derivative_from_the_first():
    for label in (-1.0, 1.0):
        y = np.full_like(Z, label)
        second = LOGISTIC.second_from_derivative(LOGISTIC.derivative(Z, y))
        np.testing.assert_allclose(second, LOGISTIC.second(Z, y), rtol=1e-12)
    assert [loss.name for loss in ALL if loss.second_from_derivative is not None] == ["logistic"]


def test_logistic_derivative_is_never_saturated_within_36():
    z = np.linspace(-36.0, 36.0, 2001)
    for label in (-1.0, 1.0):
        size = np.abs(LOGISTIC.derivative(z, np.full_like(z, label)))
        assert np.all((size > 0.0) & (size < 1.0))
        compiled = np.abs(compiled_derivative(LOGISTIC.code, z, np.full_like(z, label)))
        assert np.all((compiled > 0.0) & (compiled < 1.0))


def test_label_from_theta():
    """What a collaborator can do with one logistic derivative: its sign is the label, and the product follows."""
    rng = np.random.default_rng(0)
    z, y = rng.normal(0.0, 2.0, 500), rng.choice([-1.0, 1.0], 500)
    theta = LOGISTIC.derivative(z, y)
    assert np.array_equal(-np.sign(theta), y)
    size = np.abs(theta)
    np.testing.assert_allclose(y * (np.log1p(-size) - np.log(size)), z, atol=1e-12)


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.name)
def test_fenchel_equality_and_inequality(loss):
    """value(z) = z theta + dual(theta) at the derivative, and value(z) >= z theta + dual(theta) elsewhere."""
    rng = np.random.default_rng(1)
    for label in labels_for(loss):
        y = np.full_like(Z, label)
        theta = loss.derivative(Z, y)
        np.testing.assert_allclose(Z * theta + loss.dual(theta, y), loss.value(Z, y), atol=1e-13)
        other = loss.derivative(rng.normal(0.0, 2.0, len(Z)), y)
        assert np.all(Z * other + loss.dual(other, y) <= loss.value(Z, y) + 1e-13)


def test_dual_domain():
    y = np.array([1.0, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(LOGISTIC.dual(np.array([-1.0, 0.0, 0.1, -1.1]), y), [0.0, 0.0, -np.inf, -np.inf])
    assert SQUARED_HINGE.dual(np.array([0.1]), y[:1])[0] == -np.inf


def test_debiased_logistic_is_logistic_for_certain_labels():
    for label in (-1.0, 1.0):
        y, t = np.full_like(Z, label), np.full_like(Z, (label + 1) / 2)
        np.testing.assert_allclose(DEBIASED_LOGISTIC.value(Z, t), LOGISTIC.value(Z, y), atol=1e-14)
        np.testing.assert_allclose(DEBIASED_LOGISTIC.derivative(Z, t), LOGISTIC.derivative(Z, y), atol=1e-15)


def test_loss_named():
    assert loss_named("ls-svm") is LS_SVM
    with pytest.raises(BadJob, match="Did you mean 'logistic'"):
        loss_named("logistc")


@numba.njit(fastmath={"reassoc", "contract", "nsz", "arcp"})
def compiled_rows(z, y, values, slopes):
    logistic_rows(z, y, values, slopes)


def many_rows(z, y):
    values, slopes = np.empty_like(z), np.empty_like(z)
    compiled_rows(z, y, values, slopes)
    return values, slopes


@pytest.mark.parametrize("label", [1.0, -1.0])
def test_many_rows_at_once_have_all_digits_in_both_tails(label):
    z = np.concatenate((np.linspace(-40.0, 40.0, 8001), np.linspace(-700.0, 700.0, 141), [0.0, -0.0, 1e-300]))
    t, small = z.astype(np.longdouble) * label, np.exp(-np.abs(z.astype(np.longdouble)))
    values, slopes = many_rows(z, np.full_like(z, label))
    expected = np.log1p(small) + np.maximum(-t, 0.0)
    assert np.abs(values / expected - 1.0).max() < 1e-13  # of numbers down to 1e-304
    near = np.abs(z) <= 40.0
    assert np.abs(values / expected - 1.0)[near].max() < 2e-15
    assert np.abs(slopes / (-label * np.where(t >= 0.0, small, 1.0) / (1.0 + small)) - 1.0)[near].max() < 3e-15


def test_many_rows_at_once_do_not_hide_what_is_no_number():
    values, slopes = many_rows(np.array([np.nan, np.inf, -np.inf, 1e300]), np.ones(4))
    assert np.isnan(values[0])
    assert np.isnan(slopes[0])
    assert values[2] == np.inf
    assert np.allclose(values[[1, 3]], 0.0)
    assert np.allclose(slopes[1:], [0.0, -1.0, 0.0])
