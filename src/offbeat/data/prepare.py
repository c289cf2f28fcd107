"""Preparing one party's columns, from that party's training rows alone.

Order: missing values → one-hot and quantile bins → counts (log1p or tf-idf) → standardisation → row scaling. All but
the last work on one column at a time, so a party needs nobody else, and the result does not depend on how the other
columns are shared out. The row scalings are

    party-unit    each party scales its own part of every row to norm 1/sqrt(q): no row is longer than 1, and nothing
                  is pooled (a part that is all zero stays zero)
    pooled-unit   every whole row is scaled to norm 1, as in the published experiments. It needs the sum of the
                  parties' squared norms for each row, which a real run would have to share: for comparisons only

What is learned (levels, medians, means, ...) is kept in a `Fitted` value, and serves rows that come later.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import scipy.sparse as sp

from offbeat.data.matrix import Csr, Floats, Integers, Matrix, row_norms, scale_columns, scale_rows, squared_row_norms
from offbeat.data.names import did_you_mean
from offbeat.errors import BadData, BadJob

Rows = Literal["as-is", "party-unit", "pooled-unit"]


@dataclass(frozen=True)
class Preparation:
    """What is done to the columns before learning.

    one_hot       names of categorical columns: one 0/1 column per level seen in training; an unseen level is all zero
    bins          cut every other column at so many training quantiles and one-hot encode the bins; 0 for none
    missing       `refuse` them, or fill with the column's training `median`
    counts        leave as they are, or `log1p`, or `tf-idf` (idf = ln((1+n)/(1+df)) + 1 over the training rows)
    standardise   `none`; `numeric` (z-scores, 0/1 columns of one-hot left alone); `all` (the 0/1 columns as well)
    rows          `as-is`, `party-unit`, `pooled-unit`
    """

    one_hot: tuple[str, ...] = ()
    bins: int = 0
    missing: Literal["refuse", "median"] = "refuse"
    counts: Literal["as-is", "log1p", "tf-idf"] = "as-is"
    standardise: Literal["none", "numeric", "all"] = "none"
    rows: Rows = "as-is"

    def sentence(self) -> str:
        """How the columns were prepared, in words, for a record's source line."""
        return ", ".join(part for part in self._parts() if part) or "columns as they are"

    def _parts(self) -> tuple[str, ...]:
        return (
            "missing values filled with training medians" if self.missing == "median" else "",
            "categorical columns one-hot" if self.one_hot else "",
            f"quantile bins ({self.bins}) one-hot" if self.bins else "",
            {"as-is": "", "log1p": "log(1 + count)", "tf-idf": "tf-idf from training rows"}[self.counts],
            {
                "none": "",
                "numeric": "numeric columns standardised and one-hot left 0/1",
                "all": "all columns standardised",
            }[self.standardise],
            {
                "as-is": "",
                "party-unit": "each party's part of a row scaled to norm 1/sqrt(q)",
                "pooled-unit": "whole rows scaled to norm 1 (row norms pooled)",
            }[self.rows],
        )


AS_IS = Preparation()


@dataclass(frozen=True)
class Levels:
    """One raw column turned into 0/1 columns: `values` for a categorical one, `edges` for quantile bins."""

    column: int
    start: int
    values: Floats
    is_bins: bool = False

    @property
    def width(self) -> int:
        return self.values.size + self.is_bins


@dataclass(frozen=True)
class Fitted:
    """What one party learned from its training rows; `apply` gives its prepared block for any rows."""

    preparation: Preparation
    width_raw: int
    columns: Sequence[str]
    plain: Integers = field(repr=False)
    plain_start: Integers = field(repr=False)
    fill: Floats = field(repr=False)
    levels: tuple[Levels, ...] = field(repr=False)
    idf: Floats | None = field(repr=False)
    centre: Floats | None = field(repr=False)
    scale: Floats | None = field(repr=False)
    constant: tuple[str, ...] = ()

    def apply(self, features: Matrix) -> Matrix:
        """The prepared columns of these rows, before any row scaling."""
        if features.shape[1] != self.width_raw:
            raise BadData(f"This preparation was learned on {self.width_raw} columns; {features.shape[1]} came.")
        if not isinstance(features, np.ndarray):
            return _count_weights(features, self.preparation, self.idf)
        block = _count_weights(self._encode(features), self.preparation, self.idf)
        assert isinstance(block, np.ndarray)
        return block if self.centre is None or self.scale is None else (block - self.centre) * self.scale

    def _encode(self, features: Floats) -> Floats:
        if not self.levels:
            return _filled(features, self.fill)
        block = np.zeros((features.shape[0], len(self.columns)))
        block[:, self.plain_start] = _filled(features[:, self.plain], self.fill)
        for item in self.levels:
            block[:, item.start : item.start + item.width] = _indicators(features[:, item.column], item)
        return block


def fit(
    features: Matrix,
    columns: Sequence[str],
    preparation: Preparation,
    level_names: Mapping[str, Sequence[str]] | None = None,
) -> Fitted:
    """Learn one party's preparation from its training rows. `level_names` spells the codes of text columns."""
    if not isinstance(features, np.ndarray):
        return _fit_sparse(features, columns, preparation)
    _known_columns(columns, preparation.one_hot)
    medians = _medians(features, columns, preparation)
    encoded = _fit_levels(features, columns, preparation, level_names or {}, medians)
    return _fit_scales(encoded, features)


def _known_columns(columns: Sequence[str], wanted: tuple[str, ...]) -> None:
    if wanted and len(set(wanted)) < len(wanted):
        raise BadJob(f"A column is listed twice under one_hot: {list(wanted)}.")
    for name in wanted:
        if name not in columns:
            raise BadJob(
                f"one_hot names column {name!r}, which this party does not have. {did_you_mean(name, columns)}"
            )


def _medians(features: Floats, columns: Sequence[str], preparation: Preparation) -> Floats:
    missing = np.isnan(features)
    if not missing.any():
        return np.zeros(features.shape[1]) if preparation.missing == "refuse" else np.median(features, axis=0)
    if preparation.missing == "refuse":
        row, column = (int(i) for i in np.argwhere(missing)[0])
        raise BadData(
            f"Column {columns[column]!r} has a missing value (training row {row + 1} is the first). Fill it in, "
            'or set missing = "median" to fill it with the median of the party\'s training rows.'
        )
    empty = missing.all(axis=0)
    if empty.any():
        raise BadData(
            f"Column {columns[int(np.argmax(empty))]!r} has no value at all in the training rows; leave it out."
        )
    return np.asarray(np.nanmedian(features, axis=0))


def _fit_levels(
    features: Floats,
    columns: Sequence[str],
    preparation: Preparation,
    level_names: Mapping[str, Sequence[str]],
    medians: Floats,
) -> Fitted:
    names: list[str] = []
    plain: list[int] = []
    plain_start: list[int] = []
    levels: list[Levels] = []
    categorical = set(preparation.one_hot)
    for j, column in enumerate(columns if categorical or preparation.bins else ()):
        values = features[:, j]
        if column in categorical:
            found = np.unique(values[~np.isnan(values)])
            levels.append(Levels(j, len(names), found))
            names += [f"{column}={_spell(value, level_names.get(column))}" for value in found]
        elif preparation.bins:
            edges = _edges(_filled(values, medians[j]), preparation.bins)
            levels.append(Levels(j, len(names), edges, is_bins=True))
            names += _bin_names(column, edges)
        else:
            plain.append(j)
            plain_start.append(len(names))
            names.append(column)
    if not levels:
        plain = plain_start = list(range(len(columns)))
    return Fitted(
        preparation=preparation,
        width_raw=len(columns),
        columns=tuple(names) if levels else columns,
        plain=np.array(plain, dtype=np.int64),
        plain_start=np.array(plain_start, dtype=np.int64),
        fill=medians[np.array(plain, dtype=np.int64)],
        levels=tuple(levels),
        idf=None,
        centre=None,
        scale=None,
    )


def _fit_scales(encoded: Fitted, features: Floats) -> Fitted:
    preparation = encoded.preparation
    block = encoded._encode(features)
    idf = _inverse_document_frequency(block) if preparation.counts == "tf-idf" else None
    weighted = _count_weights(block, preparation, idf)
    assert isinstance(weighted, np.ndarray)
    if preparation.standardise == "none":
        return replace(encoded, idf=idf)
    deviation = weighted.std(axis=0)
    still = deviation <= 1e-12 * np.maximum(1.0, np.abs(weighted).max(axis=0, initial=0.0))
    centre, scale = weighted.mean(axis=0), 1.0 / np.where(still, 1.0, deviation)
    if preparation.standardise == "numeric":
        alone = _indicator_columns(encoded)
        centre[alone], scale[alone] = 0.0, 1.0
    constant = tuple(encoded.columns[int(j)] for j in np.flatnonzero(still))
    return replace(encoded, idf=idf, centre=centre, scale=scale, constant=constant)


def _fit_sparse(features: Csr, columns: Sequence[str], preparation: Preparation) -> Fitted:
    if preparation.one_hot or preparation.bins or preparation.standardise != "none":
        raise BadJob(
            "Sparse columns stay sparse: one-hot, bins and standardisation are for dense columns (centring would fill "
            f"the matrix). Came {preparation}. Use counts and rows only, or bring the columns as a dense table."
        )
    everything = np.arange(features.shape[1], dtype=np.int64)
    return Fitted(
        preparation=preparation,
        width_raw=features.shape[1],
        columns=columns,
        plain=everything,
        plain_start=everything,
        fill=np.zeros(0),
        levels=(),
        idf=_inverse_document_frequency(features) if preparation.counts == "tf-idf" else None,
        centre=None,
        scale=None,
    )


# -- pieces --------------------------------------------------------------------------------------------------------


def _filled(values: Floats, fill: Floats | float) -> Floats:
    missing = np.isnan(values)
    return np.where(missing, fill, values) if missing.any() else values


def _indicators(values: Floats, item: Levels) -> Floats:
    if not item.is_bins:
        return np.asarray(values[:, None] == item.values[None, :], dtype=np.float64)
    block = np.zeros((values.size, item.width))
    known = ~np.isnan(values)
    block[np.flatnonzero(known), np.searchsorted(item.values, values[known], side="right")] = 1.0
    return block


def _edges(values: Floats, bins: int) -> Floats:
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


def _bin_names(column: str, edges: Floats) -> list[str]:
    if not edges.size:
        return [f"{column} any"]
    inner = [f"{column} in [{a:g}, {b:g})" for a, b in itertools.pairwise(edges)]
    return [f"{column} < {edges[0]:g}", *inner, f"{column} >= {edges[-1]:g}"]


def _spell(value: float, names: Sequence[str] | None) -> str:
    if names is not None:
        return names[int(value)]
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def _indicator_columns(fitted: Fitted) -> Integers:
    ranges = [np.arange(item.start, item.start + item.width) for item in fitted.levels]
    return np.concatenate([np.empty(0, dtype=np.int64), *ranges])


def _inverse_document_frequency(counts: Matrix) -> Floats:
    rows, width = counts.shape
    if isinstance(counts, np.ndarray):
        frequency = np.count_nonzero(counts, axis=0)
    else:
        frequency = np.bincount(counts.indices[counts.data != 0], minlength=width)
    return np.asarray(np.log((1.0 + rows) / (1.0 + frequency)) + 1.0)


def _count_weights(counts: Matrix, preparation: Preparation, idf: Floats | None) -> Matrix:
    if preparation.counts == "as-is":
        return counts
    if preparation.counts == "tf-idf":
        assert idf is not None
        return scale_columns(counts, idf)
    if isinstance(counts, np.ndarray):
        return np.log1p(counts)
    return sp.csr_matrix((np.log1p(counts.data), counts.indices, counts.indptr), shape=counts.shape)


# -- rows ----------------------------------------------------------------------------------------------------------


def scale_party_rows(blocks: Mapping[str, Matrix], rows: Rows) -> dict[str, Matrix]:
    """Row scaling as the module's table says; `party-unit` looks at one party's block at a time."""
    if rows == "as-is" or not blocks:
        return dict(blocks)
    if rows == "party-unit":
        length = 1.0 / np.sqrt(len(blocks))
        return {name: scale_rows(block, length * _inverse(row_norms(block))) for name, block in blocks.items()}
    if rows == "pooled-unit":
        pooled = np.sqrt(np.sum([squared_row_norms(block) for block in blocks.values()], axis=0))
        return {name: scale_rows(block, _inverse(pooled)) for name, block in blocks.items()}
    raise BadJob(f"Unknown row scaling {rows!r}. {did_you_mean(rows, ('as-is', 'party-unit', 'pooled-unit'))}")


def _inverse(norms: Floats) -> Floats:
    return np.where(norms > 0, 1.0 / np.where(norms > 0, norms, 1.0), 0.0)
