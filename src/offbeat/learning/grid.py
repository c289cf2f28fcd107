"""Whole numbers on a public grid: how a row's vector is rounded so that its norm keeps an exact bound.

Noise that is to protect a row is added to whole numbers (`privacy.discrete` says why), and what one row can change must
be known exactly. So the vector of each row is

1. clipped in floating point at `reach`, which is a little less than the bound,
2. divided by the step and rounded: each of d coordinates moves by at most 1/2, so the norm by at most sqrt(d)/2,
3. held to the bound by an exact test on the whole numbers; a row that fails it counts for nothing,
4. added up exactly.

What a floating-point error can do in 1 and 2 is bounded by the test in 3. In 3 and 4 doubles hold whole numbers: the
bound is at most 2^20, so squared norms that pass are below 2^41, and sums of up to 2^32 rows below 2^53, where doubles
are exact in any order of addition. A squared norm above 2^53 may be inexact, and is far above the bound all the same.
"""

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

BOUND_MOST = 2**20
"""Steps in a clip, at most: fine enough that rounding takes one part in two thousand of a million coordinates' clip."""


@dataclass(frozen=True)
class Grid:
    """`step`: what one unit is worth. `bound`: the norm, in steps, that no rounded vector of a row exceeds."""

    step: float
    bound: int

    def reach(self, dimension: int) -> float:
        """The norm, in units of the vector, at which to clip: room for the rounding and one step for the arithmetic."""
        return max(0.0, self.bound - 0.5 * math.sqrt(dimension) - 1.0) * self.step

    def factors(self, norms: npt.NDArray[np.float64], dimension: int) -> npt.NDArray[np.float64]:
        """What to multiply the vector of each row with before rounding; nan where a norm is not finite."""
        reach = self.reach(dimension)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.where(norms <= reach, 1.0, np.where(norms < np.inf, reach / norms, np.nan)) / self.step


def round_rows(rows: npt.NDArray[Any], grid: Grid) -> Integers:
    """Each row on its own: clipped, rounded and held to the bound. A row that is not finite becomes zero."""
    values = np.asarray(rows, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.linalg.norm(values, axis=1)
        rounded = np.rint(values * grid.factors(norms, values.shape[1])[:, None])
        kept = np.square(rounded).sum(axis=1) <= grid.bound**2
    return np.where(kept[:, None], rounded, 0.0).astype(np.int64)


def sum_rounded(rows: npt.NDArray[Any], norms: npt.NDArray[np.float64], grid: Grid) -> Integers:
    """The exact sum of the rows, each clipped, rounded and held to the bound. `norms` are those of the rows."""
    total = np.zeros(rows.shape[1])
    _sum_rounded(rows, grid.factors(norms, rows.shape[1]), float(grid.bound**2), total)
    return total.astype(np.int64)


def sum_outer(left: npt.NDArray[np.float64], right: Any, ones: bool, grid: Grid) -> Integers:
    """The exact sum over i of the outer product of left[i] and right[i], each clipped, rounded and held to the bound.

    `right` is an array or a CSR matrix without repeated entries. `ones`: a column of ones follows its columns.
    """
    total = np.zeros((left.shape[1], right.shape[1] + ones))
    with np.errstate(over="ignore", invalid="ignore"):  # such a row is not within the bound
        squares = right.multiply(right).sum(axis=1) if hasattr(right, "multiply") else np.square(right).sum(axis=1)
        norms = np.linalg.norm(left, axis=1) * np.sqrt(np.asarray(squares).ravel() + ones)
        scaled = left * grid.factors(norms, total.size)[:, None]
    limit = float(grid.bound**2)
    if hasattr(right, "indptr"):
        assert right.has_canonical_format, "a repeated entry would be rounded in two parts"
        _sum_outer_sparse(scaled, right.indptr, right.indices, right.data, ones, limit, total)
    else:
        _sum_outer(scaled, right, ones, limit, total)
    return total.astype(np.int64)


# Each row is rounded twice, for the test and for the sum. A product of two doubles, rounded to a whole number, is the
# same both times, and a second pass is faster than keeping the first one's result.


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums of whole numbers: exact in any order
def squared_rounded(row, factor):  # type: ignore[no-untyped-def]
    """The squared norm of the row times the factor, rounded."""
    squared = 0.0
    for j in range(row.size):
        whole = np.rint(row[j] * factor)
        squared += whole * whole
    return squared


@numba.njit(cache=True, nogil=True)
def add_rounded(row, factor, total):  # type: ignore[no-untyped-def]
    for j in range(row.size):
        total[j] += np.rint(row[j] * factor)


@numba.njit(cache=True, nogil=True)
def outer_within(left, right, ones, limit):  # type: ignore[no-untyped-def]
    """Whether the rounded outer product has a squared norm within the limit; nan is not within."""
    squared = 0.0
    for k in range(left.size):
        squared += squared_rounded(right, left[k])
        if ones:
            squared += np.rint(left[k]) ** 2
    return squared <= limit


@numba.njit(cache=True, nogil=True)
def add_outer(left, right, ones, total):  # type: ignore[no-untyped-def]
    for k in range(left.size):
        add_rounded(right, left[k], total[k])
        if ones:
            total[k, right.size] += np.rint(left[k])


@numba.njit(cache=True, nogil=True)
def _sum_rounded(rows, factors, limit, total):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        if squared_rounded(rows[i], factors[i]) <= limit:
            add_rounded(rows[i], factors[i], total)


@numba.njit(cache=True, nogil=True)
def _sum_outer(left, right, ones, limit, total):  # type: ignore[no-untyped-def]
    for i in range(left.shape[0]):
        if outer_within(left[i], right[i], ones, limit):
            add_outer(left[i], right[i], ones, total)


@numba.njit(cache=True, nogil=True)
def _sum_outer_sparse(left, indptr, indices, data, ones, limit, total):  # type: ignore[no-untyped-def]
    for i in range(left.shape[0]):
        entries, columns = data[indptr[i] : indptr[i + 1]], indices[indptr[i] : indptr[i + 1]]
        if outer_within(left[i], entries, ones, limit):
            for k in range(left.shape[1]):
                for p in range(entries.size):
                    total[k, columns[p]] += np.rint(entries[p] * left[i, k])
                if ones:
                    total[k, -1] += np.rint(left[i, k])
