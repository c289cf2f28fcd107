"""Preparing one party's columns, from that party's training rows alone.

Order: missing values → one-hot and quantile bins → counts (log1p or tf-idf) → standardisation → row scaling
(`row_scale.py`). All but the last work on one column at a time, so a party needs nobody else, and the result does not
depend on how the other columns are shared out. What is learned (levels, medians, means, ...) is kept in a `Fitted`
value and serves rows that come later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, get_args

import numpy as np

from offbeat.data.encode import (
    Counts,
    Levels,
    bin_edges,
    bin_names,
    count_weights,
    filled,
    indicator_columns,
    indicators,
    inverse_document_frequency,
    spell,
)
from offbeat.data.matrix import Csr, Floats, Integers, Matrix
from offbeat.data.row_scale import Rows
from offbeat.data.table import Table
from offbeat.errors import BadData, BadJob
from offbeat.names import did_you_mean

Missing = Literal["refuse", "median"]
Standardise = Literal["none", "numeric", "all"]

SWAMPED_ROWS_LEAST = 20
SWAMPED_SHARE = 0.99
"""A cell with more of its column's variance than this leaves nothing of the other rows."""


@dataclass(frozen=True)
class Preparation:
    """What is done to the columns before learning.

    one_hot       names of categorical columns: one 0/1 column per level seen in training; an unseen level is all zero
    bins          cut every other column at so many training quantiles and one-hot encode the bins; 0 for none
    missing       `refuse` them, or fill with the column's training `median` (a missing category is all zero)
    counts        `as-is`, or `log1p`, or `tf-idf` (idf = ln((1+n)/(1+df)) + 1 over the training rows)
    standardise   `none`; `numeric` (z-scores, 0/1 columns of one-hot left alone); `all` (the 0/1 columns as well)
    rows          `as-is`, `party-unit`, `pooled-unit`
    """

    one_hot: tuple[str, ...] = ()
    bins: int = 0
    missing: Missing = "refuse"
    counts: Counts = "as-is"
    standardise: Standardise = "none"
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


def check_preparation(preparation: Preparation) -> Preparation:
    """The same preparation, if every option has a meaning; otherwise the nearest right word."""
    words = {"missing": Missing, "counts": Counts, "standardise": Standardise, "rows": Rows}
    for option in fields(preparation):
        value = getattr(preparation, option.name)
        if option.name in words and value not in get_args(words[option.name]):
            known = did_you_mean(str(value), get_args(words[option.name]))
            raise BadJob(f"Preparation: {option.name} = {value!r} has no meaning. {known}")
    if preparation.bins < 0 or preparation.bins == 1:
        raise BadJob(f"Preparation: bins must be 0 (none) or at least 2; came {preparation.bins}.")
    if len(set(preparation.one_hot)) < len(preparation.one_hot):
        raise BadJob(f"Preparation: a column is listed twice under one_hot: {list(preparation.one_hot)}.")
    return preparation


@dataclass(frozen=True)
class Fitted:
    """What one party learned from its training rows. `apply` gives its prepared columns for any rows, before row
    scaling; `spelling` holds the texts behind the codes of text columns."""

    preparation: Preparation
    raw_columns: Sequence[str] = field(repr=False)
    columns: Sequence[str] = field(repr=False)
    plain: Integers = field(repr=False)
    plain_at: Integers = field(repr=False)
    fill: Floats = field(repr=False)
    levels: tuple[Levels, ...] = field(repr=False)
    spelling: Mapping[str, Sequence[str]] = field(repr=False)
    idf: Floats | None = field(default=None, repr=False)
    centre: Floats | None = field(default=None, repr=False)
    scale: Floats | None = field(default=None, repr=False)
    constant: tuple[str, ...] = ()
    swamped: tuple[str, ...] = ()

    def apply(self, features: Matrix) -> Matrix:
        """Prepared columns of these rows, whose raw columns are in the order they were learned in."""
        if features.shape[1] != len(self.raw_columns):
            raise BadData(f"This preparation was learned on {len(self.raw_columns)} columns; {features.shape[1]} came.")
        if not isinstance(features, np.ndarray):
            return count_weights(features, self.preparation.counts, self.idf)
        _refuse_missing(features, self.raw_columns, self.preparation)
        block = count_weights(self.encoded(features), self.preparation.counts, self.idf)
        if self.centre is None or self.scale is None:
            return block
        return (np.asarray(block) - self.centre) * self.scale

    def apply_table(self, table: Table) -> Matrix:
        """Prepared columns of a later table: its columns found by name, its text codes translated."""
        return self.apply(self._recoded(table) if isinstance(table.features, np.ndarray) else table.features)

    def encoded(self, features: Floats) -> Floats:
        if not self.levels:
            return filled(features, self.fill)
        block = np.zeros((features.shape[0], len(self.columns)))
        block[:, self.plain_at] = filled(features[:, self.plain], self.fill)
        for item in self.levels:
            block[:, item.span] = indicators(features[:, item.column], item)
        return block

    def _recoded(self, table: Table) -> Floats:
        place = {column: j for j, column in enumerate(table.columns)}
        features = np.empty((len(table), len(self.raw_columns)))
        for j, column in enumerate(self.raw_columns):
            if column not in place:
                raise BadData(f"{table.name} lacks the column {column!r}. {did_you_mean(column, place)}")
            values = np.asarray(table.features)[:, place[column]]
            features[:, j] = _translated(values, table.levels.get(column), self.spelling.get(column))
        return features


def _translated(codes: Floats, theirs: Sequence[str] | None, ours: Sequence[str] | None) -> Floats:
    """Codes of a later table as ours; a level we never met becomes -1, which matches none."""
    if theirs is None or ours is None:
        return codes
    known = {level: float(i) for i, level in enumerate(ours)}
    table = np.array([known.get(level, -1.0) for level in theirs] + [np.nan])
    return table[np.where(np.isnan(codes), len(theirs), codes).astype(np.int64)]


# -- learning ------------------------------------------------------------------------------------------------------


def fit_preparation(
    features: Matrix,
    columns: Sequence[str],
    preparation: Preparation,
    spelling: Mapping[str, Sequence[str]] | None = None,
) -> Fitted:
    """Learn one party's preparation from its training rows. `spelling` gives the texts behind codes."""
    check_preparation(preparation)
    texts = spelling or {}
    if not isinstance(features, np.ndarray):
        return _fit_sparse(features, columns, preparation)
    _check_columns(columns, preparation, texts)
    _refuse_missing(features, columns, preparation)
    return _fit_scales(_fit_levels(features, columns, preparation, texts), features)


def _check_columns(columns: Sequence[str], preparation: Preparation, texts: Mapping[str, Sequence[str]]) -> None:
    for name in preparation.one_hot:
        if name not in columns:
            raise BadJob(f"one_hot names column {name!r}, which is not there. {did_you_mean(name, columns)}")
    for name in texts:
        if name in columns and name not in preparation.one_hot:
            raise BadJob(f"Column {name!r} holds text; list it under one_hot, or leave it out.")


def _refuse_missing(features: Floats, columns: Sequence[str], preparation: Preparation) -> None:
    if preparation.missing != "refuse":
        return
    missing = np.isnan(features)
    if missing.any():
        row, column = (int(i) for i in np.argwhere(missing)[0])
        raise BadData(
            f"Column {columns[column]!r} has a missing value (row {row + 1} of those looked at; {int(missing.sum())} "
            'in all). Fill it in, or set missing = "median" to fill it with the median of the party\'s training rows.'
        )


def _medians(features: Floats, columns: Sequence[str], preparation: Preparation) -> Floats:
    if preparation.missing == "refuse":
        return np.zeros(features.shape[1])
    missing = np.isnan(features)
    empty = missing.all(axis=0)
    if empty.any():
        raise BadData(f"Column {columns[int(np.argmax(empty))]!r} has no value in the training rows; leave it out.")
    return np.asarray(np.nanmedian(features, axis=0) if missing.any() else np.median(features, axis=0))


def _fit_levels(
    features: Floats, columns: Sequence[str], preparation: Preparation, texts: Mapping[str, Sequence[str]]
) -> Fitted:
    medians = _medians(features, columns, preparation)
    if not preparation.one_hot and not preparation.bins:
        everything = np.arange(len(columns), dtype=np.int64)
        return Fitted(preparation, columns, columns, everything, everything, medians, (), texts)
    names: list[str] = []
    plain: list[int] = []
    plain_at: list[int] = []
    levels: list[Levels] = []
    for j, column in enumerate(columns):
        item, item_names = _column_levels(features[:, j], j, len(names), column, preparation, texts, float(medians[j]))
        if item is None:
            plain.append(j)
            plain_at.append(len(names))
        else:
            levels.append(item)
        names += item_names
    positions = np.array(plain, dtype=np.int64)
    return Fitted(
        preparation=preparation,
        raw_columns=columns,
        columns=tuple(names),
        plain=positions,
        plain_at=np.array(plain_at, dtype=np.int64),
        fill=medians[positions],
        levels=tuple(levels),
        spelling=texts,
    )


def _column_levels(
    values: Floats,
    column: int,
    start: int,
    name: str,
    preparation: Preparation,
    texts: Mapping[str, Sequence[str]],
    median: float,
) -> tuple[Levels | None, list[str]]:
    if name in preparation.one_hot:
        found = np.unique(values[~np.isnan(values)])
        return Levels(column, start, found), [f"{name}={spell(value, texts.get(name))}" for value in found]
    if preparation.bins:
        edges = bin_edges(filled(values, median), preparation.bins)
        return Levels(column, start, edges, is_bins=True), bin_names(name, edges)
    return None, [name]


def _fit_scales(fitted: Fitted, features: Floats) -> Fitted:
    preparation = fitted.preparation
    if preparation.counts != "tf-idf" and preparation.standardise == "none":
        return fitted
    block = fitted.encoded(features)
    idf = inverse_document_frequency(block) if preparation.counts == "tf-idf" else None
    if preparation.standardise == "none":
        return replace(fitted, idf=idf)
    weighted = np.asarray(count_weights(block, preparation.counts, idf))
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is told of by its column and row
        deviation = weighted.std(axis=0)
    _refuse_overflow(weighted, deviation, fitted.columns)
    still = deviation <= 1e-12 * np.maximum(1.0, np.abs(weighted).max(axis=0, initial=0.0))
    centre, scale = weighted.mean(axis=0), 1.0 / np.where(still, 1.0, deviation)
    if preparation.standardise == "numeric":
        alone = indicator_columns(fitted.levels)
        centre[alone], scale[alone] = 0.0, 1.0
    constant = tuple(fitted.columns[int(j)] for j in np.flatnonzero(still))
    swamped = tuple(fitted.columns[int(j)] for j in _swamped(weighted, centre, scale))
    return replace(fitted, idf=idf, centre=centre, scale=scale, constant=constant, swamped=swamped)


def _refuse_overflow(values: Floats, deviation: Floats, columns: Sequence[str]) -> None:
    wrong = ~np.isfinite(deviation)
    if wrong.any():
        column = int(np.argmax(wrong))
        row = int(np.argmax(np.abs(values[:, column])))
        raise BadData(
            f"Column {columns[column]!r} cannot be standardised: one of its values is {values[row, column]:.3g}, and "
            "the squares of such numbers are beyond what a computer holds. It is probably a mistake in the file, or a "
            "code for a missing value: correct it, or leave the cell empty and have medians filled in."
        )


def _swamped(values: Floats, centre: Floats, scale: Floats) -> list[int]:
    """Columns of more than two values in which one cell is all of the spread: to learning, the other rows are alike."""
    if values.shape[0] < SWAMPED_ROWS_LEAST:
        return []
    highest, lowest = values.max(axis=0), values.min(axis=0)
    furthest = np.maximum(highest - centre, centre - lowest) * scale
    suspects = np.flatnonzero(furthest**2 > SWAMPED_SHARE * (values.shape[0] - 1))
    return [int(j) for j in suspects if np.any((values[:, j] != highest[j]) & (values[:, j] != lowest[j]))]


def _fit_sparse(features: Csr, columns: Sequence[str], preparation: Preparation) -> Fitted:
    if preparation.one_hot or preparation.bins or preparation.standardise != "none":
        raise BadJob(
            "Sparse columns stay sparse: one-hot, bins and standardisation are for dense columns (centring would fill "
            f"the matrix). Came: {preparation.sentence()}. Leave these out, or bring the columns as a dense table."
        )
    everything = np.arange(features.shape[1], dtype=np.int64)
    idf = inverse_document_frequency(features) if preparation.counts == "tf-idf" else None
    return Fitted(preparation, columns, columns, everything, everything, np.zeros(0), (), {}, idf)
