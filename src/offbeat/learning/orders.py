"""Weights that must rise or fall from one to the next: those of the bins of a column.

Such weights are a closed convex cone, and all that a method needs is the nearest point of it: steps end there, and the
certificate stays a duality gap, since the conjugate of s |w|^2 / 2 on a cone is |nearest point|^2 / (2 s).
The nearest point joins neighbours that are out of order into their mean, until none is (pool adjacent violators).
"""

from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Order = tuple[int, int, int]
"""From this place up to that one, weights rise (1) or fall (-1)."""


@numba.njit("void(float64[::1], float64[::1])", cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _rise(values: Floats, factors: Floats) -> None:
    """The nearest values that rise, squares multiplied by these factors; in place."""
    n = len(values)
    mean, factor, count = np.empty(n), np.empty(n), np.empty(n, np.int64)
    last = -1
    for i in range(n):
        last += 1
        mean[last], factor[last], count[last] = values[i], factors[i], 1
        while last > 0 and mean[last - 1] > mean[last]:
            both = factor[last - 1] + factor[last]
            mean[last - 1] += (mean[last] - mean[last - 1]) * factor[last] / both
            factor[last - 1] = both
            count[last - 1] += count[last]
            last -= 1
    at = 0
    for k in range(last + 1):
        for _ in range(count[k]):
            values[at] = mean[k]
            at += 1


def put_in_order(values: Floats, orders: Sequence[Order], factors: Floats | None = None) -> None:
    """Replace values by the nearest ones that are in order."""
    for start, stop, sign in orders:
        some = sign * values[start:stop]
        _rise(some, np.ones(stop - start) if factors is None else np.ascontiguousarray(factors[start:stop]))
        values[start:stop] = sign * some


def in_order(values: Floats, orders: Sequence[Order]) -> Floats:
    found = values.copy()
    put_in_order(found, orders)
    return found


# -- for solvers that know bounds ------------------------------------------------------------------------------------


def from_rises(rises: Floats, orders: Sequence[Order]) -> Floats:
    """Weights from the first of each order and the rises behind it."""
    found = rises.copy()
    for start, stop, sign in orders:
        found[start:stop] = sign * np.cumsum(rises[start:stop])
    return found


def slope_by_rises(slope: Floats, orders: Sequence[Order]) -> Floats:
    """The gradient by these, from that by the weights."""
    found = slope.copy()
    for start, stop, sign in orders:
        found[start:stop] = sign * np.cumsum(slope[start:stop][::-1])[::-1]
    return found


def least_rises(width: int, orders: Sequence[Order]) -> Floats:
    """Their lower bounds."""
    found = np.full(width, -np.inf)
    for start, stop, _ in orders:
        found[start + 1 : stop] = 0.0
    return found
