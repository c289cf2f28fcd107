"""What a run looked like on the way: curves, and times to a target.

Two runs are compared only by the same rule. A look is one row of a curve. A target is met at the look where the
geometric mean of this look and the two before it falls below the target, so that one lucky look decides nothing;
its time is the time of that third look. Both sides of a comparison must be looked at equally often: this module
cannot see that, so `looks_per_pass` is there to be checked.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from offbeat.errors import BadInput

LOOKS_TOGETHER = 3

Axis = Literal["time_s", "passes", "bytes"]
Quantity = Literal["suboptimality", "gap", "objective", "gradient_norm", "test_metric"]


class CurveRow(msgspec.Struct, frozen=True, gc=False):
    """One look at a run. What was not measured is None; bytes are all payload bytes sent so far, by anyone."""

    time_s: float
    passes: float
    bytes: int
    objective: float | None = None
    gradient_norm: float | None = None
    gap: float | None = None
    suboptimality: float | None = None
    test_metric: float | None = None


def points(rows: Iterable[CurveRow], axis: Axis, quantity: Quantity) -> list[tuple[float, float]]:
    """The (axis, quantity) pairs of all looks at which the quantity was measured and finite."""
    pairs = ((float(getattr(row, axis)), getattr(row, quantity)) for row in rows)
    return [(x, float(y)) for x, y in pairs if y is not None and math.isfinite(y)]


def measured(rows: Iterable[CurveRow], quantity: Quantity) -> bool:
    """Whether some look has measured it."""
    return bool(points(rows, "time_s", quantity))


def to_target(
    rows: Sequence[CurveRow], target: float, quantity: Quantity = "suboptimality", axis: Axis = "time_s"
) -> float | None:
    """Where on the axis the target was met, or None if it was not.

    Looks that did not measure the quantity are passed over; a look that is not finite breaks the run of three. A
    value at or below zero (a sub-optimality at rounding) counts as one unit of rounding.
    """
    if not target > 0:
        raise BadInput(f"A target must be above 0, as distances are compared by their logarithms; got {target:g}.")
    logs: list[float] = []
    for row in rows:
        value = getattr(row, quantity)
        if value is None:
            continue
        logs.append(_log(value))
        latest = logs[-LOOKS_TOGETHER:]
        if len(latest) == LOOKS_TOGETHER and sum(latest) / LOOKS_TOGETHER < math.log(target):
            return float(getattr(row, axis))
    return None


_ROUNDING_LOG = math.log(np.finfo(float).eps)


def _log(value: float) -> float:
    if not math.isfinite(value):
        return math.inf
    return math.log(value) if value > 0 else _ROUNDING_LOG


def looks_per_pass(rows: Sequence[CurveRow]) -> float:
    """How often a curve was looked at, to be compared between two sides before their times are."""
    if len(rows) < 2 or rows[-1].passes <= rows[0].passes:
        return 0.0
    return (len(rows) - 1) / (rows[-1].passes - rows[0].passes)
