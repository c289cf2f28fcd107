"""Step and batch rules: their limits and exact figures."""

import numpy as np
import pytest

from offbeat.errors import BadJob
from offbeat.learning import steps
from offbeat.learning.steps import Steepness


def test_batch_smoothness_goes_from_the_largest_row_to_the_whole():
    assert steps.batch_smoothness(0.1, 0.25, 1, 1000) == pytest.approx(0.25)
    assert steps.batch_smoothness(0.1, 0.25, 1000, 1000) == pytest.approx(0.1)
    assert steps.batch_smoothness(0.1, 0.25, 5000, 1000) == pytest.approx(0.1)
    expected = 1000 * 63 / (64 * 999) * 0.1 + 936 / (64 * 999) * 0.25
    assert steps.batch_smoothness(0.1, 0.25, 64, 1000) == pytest.approx(expected)
    assert steps.batch_smoothness(0.1, 0.1, 1, 1) == 0.1


def test_batch_smoothness_bounds_what_a_batch_shows():
    """The mean over all pairs of rows of |batch gradient|^2 is at most 2 L_b (f - min f), here where min f = 0."""
    X = np.random.default_rng(0).standard_normal((12, 3))
    whole = float(np.linalg.eigvalsh(X.T @ X / 12)[-1])
    single = float((X**2).sum(axis=1).max())
    bound = steps.batch_smoothness(whole, single, 2, 12)
    for w in np.random.default_rng(1).standard_normal((20, 3)):
        pairs = [(i, j) for i in range(12) for j in range(i)]
        mean = np.mean([np.sum((X[[i, j]].T @ (X[[i, j]] @ w) / 2) ** 2) for i, j in pairs])
        assert mean <= 2.0 * bound * 0.5 * np.mean((X @ w) ** 2) * (1 + 1e-12)


def test_default_step():
    assert steps.default_step("svrg", 0.1, 0.1, 64, 1000) == pytest.approx(10.0, rel=1e-12)
    assert steps.default_step("saga", 0.1, 0.25, 1, 1000) == pytest.approx(4.0, rel=1e-12)
    assert steps.default_step("sgd", 0.1, 0.25, 1000, 1000) == pytest.approx(5.0, rel=1e-12)
    with pytest.raises(BadJob, match="Did you mean 'saga'"):
        steps.default_step("sag", 0.1, 0.1, 64, 1000)
    for bad in (0.0, np.nan, np.inf):
        with pytest.raises(BadJob, match="positive smoothness"):
            steps.default_step("saga", bad, bad, 64, 1000)


def test_lag_factor():
    assert steps.lag_factor(0.0) == 1.0
    assert steps.lag_factor(1.0) == pytest.approx(1 / 1.4)
    assert steps.lag_factor(5.0) == pytest.approx(1 / 3)


@pytest.mark.parametrize("lag", [0, 1, 2, 3, 5, 20])
def test_the_lag_factor_beside_what_is_stable_under_a_constant_lag(lag):
    """2 sin(pi / (2 (2k + 1))) is where w -= p w_old turns unstable; the factor is near it."""

    def grows(product):
        w = [1.0] * (lag + 1)
        for _ in range(8000):
            w.append(w[-1] - product * w[-1 - lag])
            if abs(w[-1]) > 1e6:
                return True
        return max(abs(value) for value in w[-50:]) > 1.0

    bound = 2.0 * np.sin(np.pi / (2 * (2 * lag + 1)))
    assert not grows(0.98 * bound) and grows(1.02 * bound)
    assert 0.5 * bound <= steps.lag_factor(lag) <= (1.0 if lag <= 2 else 1.6) * bound


def test_decayed():
    assert steps.decayed(2.0, 0.1, 0) == 2.0
    assert steps.decayed(2.0, 0.1, 10) == pytest.approx(2.0 / 3.0)
    assert steps.decayed(2.0, 0.0, 10**9) == 2.0


@pytest.mark.parametrize(
    ("ratio", "batch"),
    [(1, 64), (32, 64), (44, 64), (46, 128), (1000, 128)],
)
def test_default_batch_where_updates_go_forward(ratio, batch):
    """2 L_max / L to the nearest power of two, between 64 and 128."""
    for method in ("sgd", "svrg"):
        assert steps.default_batch(Steepness(1.0, float(ratio), plain=True), method, 10**6) == batch
    assert steps.default_batch(Steepness(1.0, float(ratio), plain=False), "sgd", 10**6) == batch


@pytest.mark.parametrize(("rows", "batch"), [(100, 12), (500, 16), (1600, 50), (32000, 1000), (10**6, 4096), (5, 1)])
def test_default_batch_by_all_of_the_curvature(rows, batch):
    """A 32nd of the rows, at least 16, at most 4096; and at least 8 blocks make a pass."""
    assert steps.default_batch(Steepness(1.0, 40.0, plain=False), "saga", rows) == batch


def test_default_batch_grows_with_the_trip():
    plain = Steepness(1.0, 10.0, plain=True)
    assert steps.default_batch(plain, "svrg", 10**6, trip_rows=50.0) == 64
    assert steps.default_batch(plain, "svrg", 10**6, trip_rows=700.9) == 700
    assert steps.default_batch(plain, "svrg", 10**6, trip_rows=1e9) == 4096
    assert steps.default_batch(plain, "svrg", 800, trip_rows=700.0) == 100
    assert steps.default_batch(Steepness(0.0, 0.0, plain=True), "svrg", 10**6) == 64


def test_grid():
    values = steps.grid(3)
    np.testing.assert_allclose(values, [5.0, 1.0, 0.5, 0.1, 0.05, 0.01])
