"""What can be done to one column, or to counts, once its parameters are known."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
import scipy.sparse as sp

from offbeat.data.matrix import Floats, Integers, Matrix, scale_columns

Counts = Literal["as-is", "log1p", "tf-idf"]


@dataclass(frozen=True)
class Levels:
    """One raw column turned into 0/1 columns from `start` on: one for each of the `values`; or, for bins, one below the
    first of the `values` and one from each of them up to the next. Then, perhaps, one for all `other` values, and one
    for `missing` ones. Without these a value of no bin or category is 0 in all columns, or goes to bin `missing_bin`.
    """

    column: int
    start: int
    values: Floats = field(repr=False)
    is_bins: bool = False
    other: bool = False
    missing: bool = False
    missing_bin: int = -1
    order: int = 0  # 1: the weights of the bins must rise, -1: they must fall

    @property
    def width(self) -> int:
        return self.values.size + self.is_bins + self.other + self.missing

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.width)

    def places(self, values: Floats) -> Integers:
        """Which of its columns is 1 in each row; -1 for none."""
        if self.is_bins:
            places = np.searchsorted(self.values, values, side="right")
        else:
            places = self._categories(values)
        missing = np.isnan(values)
        if missing.any():
            without = self.missing_bin if self.is_bins else self._elsewhere
            places[missing] = self.width - 1 if self.missing else without
        return places

    @property
    def _elsewhere(self) -> int:
        """Where values of no category go."""
        return self.values.size if self.other else -1

    def _categories(self, values: Floats) -> Integers:
        if not self.values.size:
            return np.full(values.size, self._elsewhere, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.values, values), self.values.size - 1)
        places[self.values[places] != values] = self._elsewhere
        return places


def write_indicators(block: Floats, values: Floats, item: Levels) -> None:
    """Set the 1s of one column's indicators in a block of zeros."""
    places = item.places(values)
    known = np.flatnonzero(places >= 0)
    block[known, item.start + places[known]] = 1.0


def bin_edges(values: Floats, bins: int) -> Floats:
    """Lower edges of bins with about equally many rows. A value that alone fills a bin (many zeros, say) gets one to
    itself, and what is left is shared out among the bins that are left."""
    distinct, counts = np.unique(values, return_counts=True)
    below = np.cumsum(counts)
    edges: list[float] = []
    done = 0
    for left in range(bins, 1, -1):
        last = int(np.searchsorted(below, done + (values.size - done) / left))
        if last + 1 >= distinct.size:
            break
        done = int(below[last])
        edges.append(float(distinct[last + 1]))
    return np.array(edges)


def bin_names(column: str, edges: Floats) -> list[str]:
    if not edges.size:
        return [f"{column} any"]
    spelled = told_apart(edges)
    inner = [f"{column} in [{a}, {b})" for a, b in pairwise(spelled)]
    return [f"{column} < {spelled[0]}", *inner, f"{column} >= {spelled[-1]}"]


def told_apart(values: Floats, digits: int = 6) -> list[str]:
    """Different numbers, each with as few digits, and so many at least, as tell them all apart."""
    spellings = ([f"{value:.{shown}g}" for value in values.tolist()] for shown in range(digits, 18))
    return next(spelled for spelled in spellings if len(set(spelled)) == len(spelled))


def spell(values: Floats, names: Sequence[str] | None) -> list[str]:
    """The names of levels: their texts where the column was text, otherwise their numbers."""
    if names is not None:
        return [names[int(value)] for value in values]
    whole = values == np.floor(values)
    return [str(int(v)) if w else text for v, w, text in zip(values, whole, told_apart(values), strict=True)]


def inverse_document_frequency(counts: Matrix) -> Floats:
    """ln((1 + rows) / (1 + rows that have it)) + 1, column by column."""
    rows, width = counts.shape
    if isinstance(counts, np.ndarray):
        frequency = np.count_nonzero(counts, axis=0)
    else:
        frequency = np.bincount(counts.indices[counts.data != 0], minlength=width)
    return np.asarray(np.log((1.0 + rows) / (1.0 + frequency)) + 1.0)


def count_weights(counts: Matrix, how: Counts, idf: Floats | None) -> Matrix:
    if how == "as-is":
        return counts
    if how == "tf-idf":
        assert idf is not None
        return scale_columns(counts, idf)
    if isinstance(counts, np.ndarray):
        return np.log1p(counts)
    return sp.csr_matrix((np.log1p(counts.data), counts.indices, counts.indptr), shape=counts.shape)
