"""Step and batch rules: their limits and the figures they were published with."""

import numpy as np
import pytest

from offbeat.errors import BadJob
from offbeat.learning import steps


def test_batch_smoothness_goes_from_the_largest_row_to_the_whole():
    assert sum(steps._batch_parts(0.1, 0.25, 1, 1000)) == pytest.approx(0.25)
    assert sum(steps._batch_parts(0.1, 0.25, 1000, 1000)) == pytest.approx(0.1)
    assert sum(steps._batch_parts(0.1, 0.25, 64, 1000)) == pytest.approx(
        1000 * 63 / (64 * 999) * 0.1 + 936 / (64 * 999) * 0.25
    )
    assert sum(steps._batch_parts(0.1, 0.1, 1, 1)) == 0.1


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_staleness_bound_is_where_the_delayed_recursion_turns_unstable(lag):
    def grows(product):
        w = [1.0] * (lag + 1)
        for _ in range(4000):
            w.append(w[-1] - product * w[-1 - lag])
            if abs(w[-1]) > 1e6:
                return True
        return max(abs(value) for value in w[-20:]) > 1.0

    bound = steps.staleness_bound(lag)
    assert not grows(0.98 * bound)
    assert grows(1.02 * bound)


def test_staleness_bound_figures():
    assert steps.staleness_bound(0) == 2.0
    assert steps.staleness_bound(2) == pytest.approx(0.618, abs=1e-3)


def test_default_step():
    assert steps.default_step("svrg", 0.1, 0.1, 64, 1000) == pytest.approx(0.5 / 0.1, rel=1e-12)
    assert steps.default_step("saga", 0.1, 0.1, 64, 1000, lag=2) == pytest.approx(3.5, rel=1e-12)
    assert steps.default_step("saga", 0.1, 0.1, 64, 1000, lag=7) == pytest.approx(
        3.5 * steps.staleness_bound(7) / steps.staleness_bound(2)
    )
    assert steps.default_step("svrg", 0.1, 0.25, 1, 1000, lag=0) == steps.default_step("svrg", 0.1, 0.25, 1, 1000)
    whole = steps.default_step("svrg", 0.1, 0.25, 1000, 1000, lag=0)
    assert whole == pytest.approx(2.0 / steps.staleness_bound(2) * 0.5 / 0.1)
    with pytest.raises(BadJob, match="Did you mean 'saga'"):
        steps.default_step("sag", 0.1, 0.1, 64, 1000)
    with pytest.raises(BadJob, match="positive smoothness"):
        steps.default_step("saga", 0.0, 0.0, 64, 1000)


def test_decayed():
    assert steps.decayed(2.0, 0.1, 0) == 2.0
    assert steps.decayed(2.0, 0.1, 10) == pytest.approx(2.0 / 3.0)
    assert steps.decayed(2.0, 0.0, 10**9) == 2.0


@pytest.mark.parametrize(
    ("ratio", "floor", "batch"),
    [(44, 16, 64), (3.5, 16, 16), (3.5, 64, 64), (74, 16, 128), (7, 8, 16), (0.5, 1, 1)],
)
def test_default_batch(ratio, floor, batch):
    assert steps.default_batch(1.0, ratio, floor) == batch


def test_grid():
    values = steps.grid(3)
    np.testing.assert_allclose(values, [5.0, 1.0, 0.5, 0.1, 0.05, 0.01])
