"""Learning a party's preparation from its own training rows.

    fitted = fit_preparation(features, columns, Preparation(how="auto"), texts, forms)
    fitted.apply(features)

Rules with a number in them stand here by name; docs/decisions/0071-preparation-rules.md says why.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from offbeat.data.columns import NumberedColumns
from offbeat.data.encode import (
    Levels,
    bin_edges,
    bin_names,
    count_weights,
    inverse_document_frequency,
    spell,
    told_apart,
)
from offbeat.data.frames import DATE
from offbeat.data.matrix import Csr, Floats, Matrix
from offbeat.data.preparation import Preparation, Treatment, preparation_from
from offbeat.data.prepare import EVERYTHING, Fitted, Numbers, refuse_missing
from offbeat.errors import BadData, BadJob
from offbeat.names import counted, did_you_mean

TAIL = 0.01
"""Values are cut one span beyond this quantile and its opposite; the span is what lies between the two."""
RARE_ROWS, RARE_SHARE = 20, 0.005
"""A category with fewer training rows than both is rare."""
CATEGORIES_MOST = 100
"""Those beyond the most frequent ones are rare too."""
ID_ROWS_LEAST = 50
ID_TEXT_SHARE = 0.5
"""Text with more different values than this share of the rows is an id, or free text."""
ID_RANGE = 2
"""Whole numbers that are all different and lie within so many times the number of rows count something."""
ORDERS = {"rising": 1, "falling": -1}
CODES = tuple(sign * (10.0**digits - 1) for digits in range(1, 7) for sign in (1, -1))
CODE_ROWS_LEAST = 5
"""9, 99, 999, ... far from all other values, in so many rows: perhaps a code for a missing one."""
HUGE = 1e150
"""The squares of larger numbers are beyond what a computer holds, and those of its inverse are nothing."""
ROUNDING = 1e-14
"""Values that differ by less than this part of their size differ by the rounding of some program."""
SPARSE_LEAST, SPARSE_MOST = 1e-3, 10.0
"""Usual sizes of what a sparse column stores: 0/1 columns, counts and tf-idf are taken as they are."""
SWAMPED_ROWS_LEAST = 20
SWAMPED_SHARE = 0.99
"""A cell with more of its column's variance than this leaves nothing of the other rows."""


@dataclass(frozen=True)
class Source:
    """One raw column of the training rows."""

    at: int
    name: str
    values: Floats
    texts: Sequence[str] | None
    is_date: bool
    is_numbered: bool

    @cached_property
    def known(self) -> Floats:
        missing = np.isnan(self.values)
        return self.values[~missing] if missing.any() else self.values


def fit_preparation(
    features: Matrix,
    columns: Sequence[str],
    preparation: Preparation,
    texts: Mapping[str, Sequence[str]] | None = None,
    forms: Mapping[str, str] | None = None,
) -> Fitted:
    """Learn one party's preparation from its training rows. `texts` are those behind codes; `forms`: how the table was
    written."""
    forms = forms or {}
    preparation = preparation_from(preparation, "Preparation")
    if not isinstance(features, np.ndarray):
        return _fit_sparse(features, columns, preparation)
    spelling = {name: names for name, names in (texts or {}).items() if name in columns}
    _check_names(columns, preparation)
    if preparation.strict:
        _refuse_text(spelling, preparation)
        refuse_missing(features, columns, preparation)
    layout, ids = _Layout(preparation), []
    for source in _sources(features, columns, spelling, forms):
        if not preparation.strict and source.name not in preparation.columns and _looks_like_id(source):
            ids.append(source)
        else:
            layout.add(source)
    _refuse_ids(ids)
    layout.keep_still()
    return _with_scales(replace(layout.fitted(columns, spelling), forms=dict(forms)), features, layout)


def _sources(
    features: Floats, columns: Sequence[str], spelling: Mapping[str, Sequence[str]], forms: Mapping[str, str]
) -> Iterator[Source]:
    numbered = isinstance(columns, NumberedColumns)
    for j, name in enumerate(columns):
        values = np.ascontiguousarray(features[:, j])
        yield Source(j, name, values, spelling.get(name), forms.get(name, "").startswith(DATE), numbered)


# -- refusals --------------------------------------------------------------------------------------------------------


def _check_names(columns: Sequence[str], preparation: Preparation) -> None:
    for name in preparation.columns:
        if name not in columns:
            raise BadJob(f"prepare names column {name!r}, which is not there. {did_you_mean(name, columns)}")


def _refuse_text(spelling: Mapping[str, Sequence[str]], preparation: Preparation) -> None:
    """All of them at once, with what to write."""
    text = [name for name in spelling if preparation.columns.get(name) not in ("category", "leave-out")]
    if text:
        shown = ", ".join(map(repr, text))
        line = ", ".join(f'"{name}" = "category"' for name in text)
        raise BadJob(
            f'{_columns(text)} {shown} hold{"s" if len(text) == 1 else ""} text, which prepare = "{preparation.how}" '
            f'does not take. Use prepare = "auto", or say how each is treated: prepare = {{ how = '
            f'"{preparation.how}", columns = {{ {line} }} }}, with "leave-out" for those that are not to be used.'
        )


def _columns(names: Sequence[str]) -> str:
    return "Column" if len(names) == 1 else "Columns"


def _refuse_ids(found: Sequence[Source]) -> None:
    """All of them at once, with what to write."""
    if found:
        names = [source.name for source in found]
        shown = ", ".join(f"{s.name!r} ({_different(s)})" for s in found)
        line = ", ".join(f'"{name}" = "leave-out"' for name in names)
        text = any(source.texts is not None for source in found)
        otherwise = "" if text else 'If it is a measurement, write "scaled"; if it is a category, write "category".'
        otherwise = otherwise or 'If it is a category, write "category"; if it holds numbers, write the digits alone.'
        raise BadData(
            f"{_columns(names)} {shown} look{'s' if len(names) == 1 else ''} like an id or free text: of "
            f"{found[0].values.size:,} training rows most have a value of their own, and a model would learn the rows "
            f"by heart. Name it as `id` if rows are matched by it, or leave it out: prepare = {{ columns = {{ {line} "
            f"}} }}. {otherwise}"
        )


def _different(source: Source) -> str:
    values = np.unique(source.known)
    return f"{values.size:,} different values, such as {spell(values[:1], source.texts)[0][:40]!r}"


def _looks_like_id(source: Source) -> bool:
    known = source.known
    if known.size < ID_ROWS_LEAST:
        return False
    if source.texts is not None:
        return bool(np.count_nonzero(np.bincount(known.astype(np.int64))) > ID_TEXT_SHARE * known.size)
    if source.is_date or source.is_numbered:
        return False
    low = known.min()
    if known.max() - low >= ID_RANGE * known.size or np.any(known != np.floor(known)):
        return False
    return bool(np.bincount((known - low).astype(np.int64)).max() == 1)


# -- one column after the other --------------------------------------------------------------------------------------


@dataclass
class _Layout:
    """The prepared columns, as they are laid out one raw column after the other."""

    preparation: Preparation
    names: list[str] = field(default_factory=list)
    number: list[tuple[int, int, float, float, float]] = field(default_factory=list)  # from, at, fill, low, high
    marked: list[tuple[int, int]] = field(default_factory=list)  # which number, where its mark goes
    scaled: list[int] = field(default_factory=list)
    levels: list[Levels] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    still: Source | None = None  # the first column of one value

    def add(self, source: Source) -> None:
        treatment = self._treatment(source)
        if treatment == "leave-out":
            return
        if not self.preparation.strict and self._is_useless(source):
            return
        if treatment in ("category", "bins", *ORDERS):
            self._add_levels(source, as_bins=treatment != "category", order=ORDERS.get(treatment, 0))
        else:
            self._add_number(source, treatment)

    def _treatment(self, source: Source) -> Treatment:
        chosen = self.preparation.columns.get(source.name)
        if source.texts is not None:
            if chosen not in (None, "category", "leave-out"):
                raise BadJob(
                    f'prepare says "{chosen}" for column {source.name!r}, which holds text such as '
                    f'{source.texts[0]!r}. Text can be a "category" or "leave-out".'
                )
            return chosen or "category"
        by_word: dict[str, Treatment] = {"auto": "scaled", "bins": "bins", "scaled": "scaled", "none": "none"}
        return chosen or by_word[self.preparation.how]

    def _is_useless(self, source: Source) -> bool:
        known = source.known
        if not known.size:
            self.notes.append(f"Column {source.name!r} has no value in the training rows and was left out.")
        elif known.size == source.values.size and np.all(known == known[0]):
            self.notes.append(f"Column {source.name!r} has one value in all training rows and was left out.")
            self.still = self.still or source
        else:
            if source.is_date:
                self.notes.append(f"Column {source.name!r} holds dates: they count as days since 1970-01-01.")
            return False
        return True

    def _add_number(self, source: Source, treatment: Treatment) -> None:
        if self.preparation.strict or treatment == "none":
            if not self.preparation.strict:
                refuse_missing(source.values[:, None], [source.name], self.preparation)
            fill, (low, high) = 0.0, EVERYTHING
        else:
            fill, low, high = self._centre_and_cuts(source)
        if treatment == "scaled":
            self.scaled.append(len(self.names))
        self.number.append((source.at, len(self.names), fill, low, high))
        self.names.append(source.name)
        if not self.preparation.strict and np.isnan(source.values).any():
            self.marked.append((len(self.number) - 1, len(self.names)))
            self.names.append(f"{source.name} is missing")

    def _centre_and_cuts(self, source: Source) -> tuple[float, float, float]:
        known = source.known
        self.notes += about_codes(source.name, known)
        middle, low, high = cuts(known)
        beyond = int(np.count_nonzero((known < low) | (known > high)))
        if not beyond:
            return middle, *EVERYTHING
        lowest, highest = told_apart(np.array([low, high]), 4)
        self.cut.append(f"{source.name} outside of {lowest} to {highest} ({counted(beyond, 'row')})")
        return middle, low, high

    def _add_levels(self, source: Source, *, as_bins: bool, order: int) -> None:
        known, start = source.known, len(self.names)
        missing = not self.preparation.strict and known.size < source.values.size
        if as_bins:
            edges = bin_edges(known, self.preparation.bins)
            if order:
                way = "rise" if order > 0 else "fall"
                self.notes.append(f"Column {source.name!r} must {way}: from each bin to the next its weights do.")
            middle = int(np.searchsorted(edges, np.median(known), side="right"))
            item = Levels(source.at, start, edges, True, False, missing, middle, order)
            names = bin_names(source.name, edges)
        else:
            values, other = self._categories(source)
            item = Levels(source.at, start, values, False, other, missing)
            names = [f"{source.name}={level}" for level in spell(values, source.texts)]
            names += [f"{source.name}=other"] if other else []
        self.levels.append(item)
        self.names += [*names, f"{source.name} is missing"] if missing else names

    def _categories(self, source: Source) -> tuple[Floats, bool]:
        """The categories that get a column each, and whether there are others."""
        values, counts = np.unique(source.known, return_counts=True)
        if self.preparation.strict:
            return values, False
        kept = counts >= min(RARE_ROWS, RARE_SHARE * source.values.size)
        if np.count_nonzero(kept) > CATEGORIES_MOST:
            kept[np.argsort(-counts, kind="stable")[CATEGORIES_MOST:]] = False
        rare = values.size - int(np.count_nonzero(kept))
        if rare:
            rows = int(counts[~kept].sum())
            self.notes.append(
                f"Column {source.name!r}: {rare:,} rare categor{'y' if rare == 1 else 'ies'} ({rows:,} training rows) "
                "count as one, 'other'."
            )
        return values[kept], rare > 0

    def _about_cuts(self) -> list[str]:
        if not self.cut:
            return []
        shown = ", ".join(self.cut[:5]) + (f" and {len(self.cut) - 5} columns more" if len(self.cut) > 5 else "")
        return [f"Values far out count as the nearest bound, so that a few do not hide all others: {shown}."]

    def keep_still(self) -> None:
        """A party whose columns are all constant takes part all the same: with one of them, less its mean."""
        if self.names or self.still is None:
            return
        self.notes[:] = [
            note for note in self.notes if not note.startswith(f"Column {self.still.name!r} has one value")
        ]
        self.notes.append(f"No column varies. {self.still.name!r} is kept: the party takes part, and adds nothing.")
        self.number.append((self.still.at, 0, 0.0, *EVERYTHING))
        self.scaled.append(0)
        self.names.append(self.still.name)

    def fitted(self, columns: Sequence[str], spelling: Mapping[str, Sequence[str]]) -> Fitted:
        if not self.names:
            raise BadData(
                "No column is left to learn from: "
                + (" ".join(self.notes) or "all are left out by `prepare`.")
                + " Bring a column with values, or leave the party out."
            )
        plain = not self.levels and not self.marked and len(self.number) == len(columns)
        names = columns if plain else tuple(self.names)
        notes = (*self.notes, *self._about_cuts())
        return Fitted(self.preparation, columns, names, self._numbers(), tuple(self.levels), spelling, notes=notes)

    def _numbers(self) -> Numbers:
        table = np.array(self.number, dtype=np.float64).reshape(-1, 5)
        marks = np.array(self.marked, dtype=np.int64).reshape(-1, 2)
        column, at = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        fill, low, high = (np.ascontiguousarray(table[:, k]) for k in (2, 3, 4))
        return Numbers(column, at, fill, low, high, marks[:, 0].copy(), marks[:, 1].copy())


def about_codes(column: str, known: Floats) -> list[str]:
    """A word on a value that is probably no measurement."""
    found = []
    for code in {float(known.min()), float(known.max())} & set(CODES):
        others = known[known != code]
        rows = known.size - others.size
        if others.size and rows >= CODE_ROWS_LEAST:
            low, high = float(others.min()), float(others.max())
            if max(low - code, code - high) > high - low:
                found.append(
                    f"Column {column!r} holds {code:g} in {rows:,} rows, far from all other values ({low:.4g} to "
                    f"{high:.4g}). If it stands for a missing value, leave those cells empty."
                )
    return found


def cuts(known: Floats) -> tuple[float, float, float]:
    """The median, and the lowest and highest value that is told from others further out: one span beyond the outer
    quantiles. Where nearly all values are the same (a rare event, say), the others' quantiles are meant."""
    low, middle, high = (float(q) for q in np.quantile(known, (TAIL, 0.5, 1 - TAIL)))
    if low == high:
        rest = known[known != low]
        if rest.size:
            lower, higher = (float(q) for q in np.quantile(rest, (TAIL, 1 - TAIL)))
            low, high = min(low, lower), max(high, higher)
    return middle, low - (high - low), high + (high - low)


# -- standardisation -------------------------------------------------------------------------------------------------


def _with_scales(fitted: Fitted, features: Floats, layout: _Layout) -> Fitted:
    preparation, width = fitted.preparation, len(fitted.columns)
    if preparation.counts == "tf-idf":
        fitted = replace(fitted, idf=inverse_document_frequency(fitted.encoded(features)))
    if preparation.scale_indicators:
        scaled = np.arange(width)
        values = np.asarray(count_weights(fitted.encoded(features), preparation.counts, fitted.idf))
    else:
        scaled = np.array(layout.scaled, dtype=np.int64)
        which = np.flatnonzero(np.isin(fitted.numbers.at, scaled))
        idf = None if fitted.idf is None else fitted.idf[fitted.numbers.at]
        numbers = count_weights(fitted.numbers.prepared(features), preparation.counts, idf)
        values = np.take(np.asarray(numbers), which, axis=1)
    if not scaled.size:
        return fitted
    centre, scale = np.zeros(width), np.ones(width)
    names = [fitted.columns[int(j)] for j in scaled]
    centre[scaled], scale[scaled], notes = _scales(values, names)
    return replace(fitted, centre=centre, scale=scale, notes=(*fitted.notes, *notes))


def _scales(values: Floats, names: Sequence[str]) -> tuple[Floats, Floats, list[str]]:
    """Centres and scales of columns. A single column stands twice, as numpy adds up one alone in another order than
    beside others, and what is learned from a column must not depend on its neighbours."""
    if len(names) == 1:
        values = np.repeat(values, 2, axis=1)
    size = np.abs(values).max(axis=0, initial=0.0)
    odd = (size > HUGE) | ((size < 1.0 / HUGE) & (size > 0.0))
    unit = np.where(odd, size, 1.0)
    measured = values / unit if odd.any() else values
    with np.errstate(over="ignore"):  # what overflows is told of by its column and row
        centre, deviation = measured.mean(axis=0) * unit, measured.std(axis=0) * unit
        _refuse_overflow(values, size, size + np.abs(centre), [*names, *names])
    alike = values.max(axis=0, initial=-np.inf) == values.min(axis=0, initial=np.inf)
    still = alike | (deviation <= np.maximum(ROUNDING * size, 1e-305))  # the inverse of less is no number
    scale = 1.0 / np.where(still, 1.0, deviation)
    notes = _about_constant([name for name, is_still in zip(names, still, strict=False) if is_still])
    for column in [names[j] for j in _swamped(values, centre, scale) if j < len(names)][:5]:
        notes.append(
            f"One value of column {column} is so far from the others that, standardised, these are all alike: next to "
            'nothing is learned from it. Correct the value if it is a mistake, or use prepare = "auto".'
        )
    return centre[: len(names)], scale[: len(names)], notes


def _refuse_overflow(values: Floats, size: Floats, span: Floats, columns: Sequence[str]) -> None:
    """A column of huge numbers is one like any; a huge number among others is a mistake."""
    alone = [size[j] > HUGE and np.median(np.abs(values[:, j])) < size[j] / HUGE for j in range(size.size)]
    wrong = ~np.isfinite(span) | np.array(alone, dtype=np.bool_)
    if wrong.any():
        column = int(np.argmax(wrong))  # the first of the two, where it stands twice
        row = int(np.argmax(np.abs(values[:, column])))
        raise BadData(
            f"Column {columns[column]!r} cannot be standardised: one of its values is {values[row, column]:.3g}, and "
            "beside the others that is beyond what a computer holds. It is probably a mistake in the file, or a "
            "code for a missing value: correct it, or leave the cell empty and have medians filled in."
        )


def _about_constant(columns: Sequence[str]) -> list[str]:
    if not columns:
        return []
    shown = ", ".join(columns[:5]) + (", ..." if len(columns) > 5 else "")
    which = f"{len(columns)} columns are" if len(columns) > 1 else "1 column is"
    return [f"{which} constant over the training rows ({shown})."]


def _swamped(values: Floats, centre: Floats, scale: Floats) -> list[int]:
    """Columns of more than two values in which one cell is all of the spread: to learning, the other rows are alike."""
    if values.shape[0] < SWAMPED_ROWS_LEAST:
        return []
    highest, lowest = values.max(axis=0), values.min(axis=0)
    furthest = np.maximum(highest - centre, centre - lowest) * scale
    suspects = np.flatnonzero(furthest**2 > SWAMPED_SHARE * (values.shape[0] - 1))
    return [int(j) for j in suspects if np.any((values[:, j] != highest[j]) & (values[:, j] != lowest[j]))]


def _fit_sparse(features: Csr, columns: Sequence[str], preparation: Preparation) -> Fitted:
    if preparation.columns or preparation.how in ("bins", "scaled") or preparation.scale_indicators:
        raise BadJob(
            "Sparse columns stay sparse: bins, categories and standardisation are for dense columns (centring would "
            f"fill the matrix). Came: {preparation.sentence()}. Leave `prepare` out, or bring a dense table."
        )
    everything = np.arange(features.shape[1], dtype=np.int64)
    idf = inverse_document_frequency(features) if preparation.counts == "tf-idf" else None
    nothing = np.zeros(0)
    as_they_are = msgspec.structs.replace(preparation, how="none")
    fitted = Fitted(as_they_are, columns, columns, Numbers(everything, everything, nothing, nothing, nothing), idf=idf)
    if preparation.how != "auto":
        return fitted
    sizes = _stored_sizes(count_weights(features, preparation.counts, idf))
    odd = (sizes > 0.0) & ((sizes < SPARSE_LEAST) | (sizes > SPARSE_MOST))
    if not odd.any():
        return fitted
    note = _about_sparse([(columns[int(j)], float(sizes[j])) for j in np.flatnonzero(odd)[:5]], int(odd.sum()))
    return replace(fitted, scale=1.0 / np.where(odd, sizes, 1.0), notes=(note,))


def _stored_sizes(features: Any) -> Floats:
    """The root mean square of what each column stores, zeros aside; 0 where it stores nothing."""
    width = features.shape[1]
    largest, stored = np.zeros(width), np.bincount(features.indices[features.data != 0.0], minlength=width)
    np.maximum.at(largest, features.indices, np.abs(features.data))
    unit = np.where(largest > 0.0, largest, 1.0)  # whose squares are within what a computer holds
    squares = np.bincount(features.indices, (features.data / unit[features.indices]) ** 2, minlength=width)
    return np.asarray(unit * np.sqrt(squares / np.maximum(stored, 1)))


def _about_sparse(first: Sequence[tuple[str, float]], number: int) -> str:
    shown = ", ".join(f"{name} by {size:.3g}" for name, size in first) + (", ..." if number > len(first) else "")
    return (
        f"What {counted(number, 'sparse column')} store{'s' if number == 1 else ''} is far from 1 in size, and was "
        f"divided by its root mean square: {shown}."
    )
