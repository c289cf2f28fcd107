"""The crossing rule, on curves small enough to check by hand."""

import math

import pytest

from offbeat.errors import BadInput
from offbeat.metrics.curves import (
    CurveRow,
    looks_per_pass,
    points,
    to_target,
)


def curve(values, quantity="suboptimality"):
    return [
        CurveRow(time_s=2.0 * look, passes=look / 8, bytes=1000 * look, **{quantity: value})
        for look, value in enumerate(values)
    ]


def test_the_target_is_met_at_the_third_look_of_a_mean_below_it():
    # geometric means of three: 1e-2, 1e-3, 10**(-11/3) = 2.2e-4, 4.6e-5
    rows = curve([1e-1, 1e-2, 1e-3, 1e-4, 1e-4, 1e-5])
    assert to_target(rows, 5e-3) == 6.0
    assert to_target(rows, 1e-4) == 10.0
    assert to_target(rows, 1e-4, axis="passes") == 5 / 8
    assert to_target(rows, 1e-4, axis="bytes") == 5000.0
    assert to_target(rows, 1e-5) is None


def test_one_lucky_look_does_not_meet_a_target():
    # the third mean is (1e-3 * 2e-5 * 1e-3) ** (1/3) = 2.7e-4: a plain first crossing would have stopped at look 2
    rows = curve([1e-2, 1e-3, 2e-5, 1e-3, 1e-3])
    assert to_target(rows, 1e-4) is None


def test_fewer_than_three_looks_meet_nothing():
    assert to_target(curve([1e-9, 1e-9]), 1e-4) is None
    assert to_target(curve([1e-9, 1e-9, 1e-9]), 1e-4) == 4.0


def test_looks_without_the_quantity_are_passed_over():
    assert to_target(curve([1e-5, None, 1e-5, None, 1e-5]), 1e-4) == 8.0


def test_a_look_that_is_not_finite_breaks_the_three():
    assert to_target(curve([1e-5, 1e-5, math.nan, 1e-5, 1e-5]), 1e-4) is None
    assert to_target(curve([1e-5, math.inf, 1e-5, 1e-5, 1e-5]), 1e-4) == 8.0


def test_a_value_at_rounding_counts_as_rounding():
    assert to_target(curve([0.0, -1e-18, 1e-16]), 1e-15) == 4.0
    # and does not drag two large looks below the target: (1 * 1 * 2.2e-16) ** (1/3) = 6.1e-6
    assert to_target(curve([1.0, 1.0, 0.0]), 1e-6) is None


def test_other_quantities_follow_the_same_rule():
    assert to_target(curve([1e-3, 1e-5, 1e-5], "gap"), 1e-4, "gap") == 4.0


def test_points_leave_out_what_was_not_measured():
    rows = curve([0.5, None, math.nan, 0.25])
    assert points(rows, "time_s", "suboptimality") == [(0.0, 0.5), (6.0, 0.25)]
    assert points(rows, "bytes", "gap") == []


def test_looks_per_pass():
    assert looks_per_pass(curve([1.0] * 17)) == 8.0
    assert looks_per_pass(curve([1.0])) == 0.0


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
def test_a_target_that_has_no_logarithm_is_refused(target):
    with pytest.raises(BadInput, match="above 0"):
        to_target([], target)
