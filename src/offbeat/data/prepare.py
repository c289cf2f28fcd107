"""What one party learned about its columns from its own training rows, and how it prepares any rows by it.

Order: missing values, cuts → 0/1 columns of categories and bins → counts (log1p or tf-idf) → standardisation → row
scaling (`matrix.py`). All but the last work on one column at a time, so a party needs nobody else, and the result
does not depend on how the other columns are shared out. A `Fitted` value is learned in fitting.py, kept with the
party's part of the model, and serves rows that come later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
import numpy as np

from offbeat.data.columns import NumberedColumns
from offbeat.data.encode import Levels, count_weights, write_indicators
from offbeat.data.frames import DATE, folded
from offbeat.data.matrix import Floats, Integers, Matrix, scale_columns
from offbeat.data.preparation import Preparation
from offbeat.data.table import Table
from offbeat.errors import BadData
from offbeat.names import counted, did_you_mean

NO_COLUMNS = np.empty(0, dtype=np.int64)
EVERYTHING = (-np.inf, np.inf)
ROWS_AT_ONCE = 8192
"""Rows are prepared in pieces that stay in the processor's cache."""


@dataclass(frozen=True)
class Numbers:
    """The columns that stay numbers: where they come from, where they go, what fills them, and where they are cut.
    `marked` are those (positions among them) whose missing cells are marked in the columns `marks_at`."""

    column: Integers
    at: Integers
    fill: Floats
    low: Floats
    high: Floats
    marked: Integers = field(default_factory=lambda: NO_COLUMNS)
    marks_at: Integers = field(default_factory=lambda: NO_COLUMNS)

    def prepared(self, features: Floats, marks: Floats | None = None) -> Floats:
        """Their values, filled and cut. `marks`: the block in which missing cells are marked."""
        everything = self.column.size == features.shape[1]  # in the order they came: no copy is needed
        values = features if everything else np.take(features, self.column, axis=1)
        missing = np.isnan(values)
        if missing.any():
            if marks is not None and self.marked.size:
                marks[:, self.marks_at] = missing[:, self.marked]
            values = np.where(missing, self.fill, values)
        return np.clip(values, self.low, self.high) if self.cut else values

    @property
    def cut(self) -> bool:
        return bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())


@dataclass(frozen=True)
class Fitted:
    """What one party learned from its training rows. `apply` gives its prepared columns for any rows, before row
    scaling; `spelling` holds the texts behind the codes of text columns; `notes` say what a user should know."""

    preparation: Preparation
    raw_columns: Sequence[str] = field(repr=False)
    columns: Sequence[str] = field(repr=False)
    numbers: Numbers = field(repr=False)
    levels: tuple[Levels, ...] = field(default=(), repr=False)
    spelling: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    idf: Floats | None = field(default=None, repr=False)
    centre: Floats | None = field(default=None, repr=False)
    scale: Floats | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    forms: Mapping[str, str] | None = None  # how the table was written (`Table`); None: not kept, by an earlier version

    def apply(self, features: Matrix) -> Matrix:
        """Prepared columns of these rows, whose raw columns are in the order they were learned in."""
        if features.shape[1] != len(self.raw_columns):
            raise BadData(
                f"This preparation was learned on {counted(len(self.raw_columns), 'column')}; {features.shape[1]} came."
            )
        if not isinstance(features, np.ndarray):
            stored = count_weights(features, self.preparation.counts, self.idf)
            return stored if self.scale is None else scale_columns(stored, self.scale)
        if self.preparation.strict:
            refuse_missing(features, self.raw_columns, self.preparation)
        block = count_weights(self.encoded(features, self._whole_rows), self.preparation.counts, self.idf)
        if self.centre is None or self.scale is None or not self._whole_rows:
            return block
        return (np.asarray(block) - self.centre) * self.scale

    @property
    def _whole_rows(self) -> bool:
        """Whether more than the numbers is standardised, or something comes before."""
        return self.preparation.scale_indicators or self.preparation.counts != "as-is"

    def apply_table(self, table: Table) -> Matrix:
        """Prepared columns of a later table: its columns found by name, its text codes translated."""
        return self.apply(self.recoded(table) if isinstance(table.features, np.ndarray) else table.features)

    def encoded(self, features: Floats, raw: bool = True) -> Floats:
        """Numbers filled and cut, and standardised unless they are wanted `raw`; the others as 0/1 columns."""
        as_they_are = raw or self.centre is None
        if not self.levels and not self.numbers.marked.size and self.numbers.column.size == len(self.raw_columns):
            values = self.numbers.prepared(features)
            return values if as_they_are else self._standardised(values)
        block = np.zeros((features.shape[0], len(self.columns)))
        for start in range(0, features.shape[0], ROWS_AT_ONCE):
            some, cells = block[start : start + ROWS_AT_ONCE], features[start : start + ROWS_AT_ONCE]
            values = self.numbers.prepared(cells, some)
            some[:, self.numbers.at] = values if as_they_are else self._standardised(values)
            for item in self.levels:
                write_indicators(some, cells[:, item.column], item)
        return block

    def _standardised(self, values: Floats) -> Floats:
        assert self.centre is not None and self.scale is not None
        return (values - self.centre[self.numbers.at]) * self.scale[self.numbers.at]

    def recoded(self, table: Table) -> Floats:
        """A later table's cells as the training rows had them: columns in their order, texts by the same codes."""
        place = {column: j for j, column in enumerate(table.columns)}
        features = np.empty((len(table), len(self.raw_columns)))
        lacking = [column for column in self.raw_columns if column not in place]
        if lacking:
            raise BadData(
                f"{table.name} lacks {_listed(lacking)}, on which the model was trained. "
                f"{did_you_mean(lacking[0], place)}"
            )
        for j, column in enumerate(self.raw_columns):
            values = np.asarray(table.features)[:, place[column]]
            features[:, j] = self._translated(values, column, table)
        return features

    def _translated(self, values: Floats, column: str, table: Table) -> Floats:
        """Codes of a later table as ours; a text that training never met becomes -1, which matches none."""
        ours, theirs = self.spelling.get(column), table.levels.get(column)
        self._check_form(values, column, table)
        if ours is None and theirs is None:
            return values
        if ours is None:
            assert theirs is not None
            raise BadData(
                f"{table.name}, column {column!r}: numbers were expected, as in the training rows; came text such as "
                f"{theirs[0]!r}. Correct the column."
            )
        known = _by_spelling(ours)
        if theirs is None:  # categories that are digits alone look like numbers in a later table
            return np.array([np.nan if v != v else known.get(f"{v:.15g}", -1.0) for v in values.tolist()])
        codes = np.array([*(known.get(level, known.get(folded(level), -1.0)) for level in theirs), np.nan])
        return codes[np.where(np.isnan(values), len(theirs), values).astype(np.int64)]

    def _check_form(self, values: Floats, column: str, table: Table) -> None:
        """Days and other numbers are not to be mixed up, nor numbers in different units. Plain numbers are taken for
        the unit of the training rows, unless that is percent; a column without any value may be anything."""
        if self.forms is None or column in self.spelling or column in table.levels or np.isnan(values).all():
            return
        expected, came = (_kind(forms.get(column, "")) for forms in (self.forms, table.forms))
        same_unit = came == "numbers" and expected not in ("dates", "numbers with %")
        if expected != came and not same_unit:
            raise BadData(
                f"{table.name}, column {column!r}: {expected} were expected, as in the training rows; came {came}. "
                "Correct the column."
            )

    @property
    def orders(self) -> tuple[tuple[int, int, int], ...]:
        """Which of the prepared columns are bins whose weights must rise (1) or fall (-1): from, up to, and which."""
        found = [(item.start, item.start + item.values.size + 1, item.order) for item in self.levels if item.order]
        return tuple(found)

    def unseen(self, features: Floats) -> dict[str, int]:
        """How many cells of each category column hold what the training rows never had. `features`: recoded rows."""
        found = {}
        for item in self.levels:
            name = self.raw_columns[item.column]
            if not item.is_bins and name in self.spelling:
                found[name] = int(np.count_nonzero(features[:, item.column] == -1.0))
        return {name: count for name, count in found.items() if count}


def _kind(form: str) -> str:
    """What a column of this form holds, in words."""
    unit = form.lstrip(".,")
    return "dates" if form.startswith(DATE) else f"numbers with {unit}" if unit else "numbers"


def _by_spelling(texts: Sequence[str]) -> dict[str, float]:
    """The codes of the texts, and of the same in small letters where that is clear."""
    small = [folded(text) for text in texts]
    clear = {text: float(i) for i, text in enumerate(small) if small.count(text) == 1}
    return {**clear, **{text: float(i) for i, text in enumerate(texts)}}


def _listed(names: Sequence[str], most: int = 8) -> str:
    """`the column 'a'`, or `the columns 'a', 'b' and 3 more`."""
    shown = ", ".join(map(repr, names[:most]))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"the column{'s' if len(names) > 1 else ''} {shown}{more}"


def refuse_missing(features: Floats, columns: Sequence[str], preparation: Preparation) -> None:
    """Columns that are left out may lack what they like."""
    missing = np.isnan(features)
    if missing.any():
        missing[:, [preparation.columns.get(column) == "leave-out" for column in columns]] = False
    if missing.any():
        row, column = (int(i) for i in np.argwhere(missing)[0])
        raise BadData(
            f"Column {columns[column]!r} has a missing value (row {row + 1} of those looked at; {int(missing.sum())} "
            'in all), and this preparation takes none. Fill them in, or use prepare = "auto" (filled with the median '
            'of the training rows, and marked) or prepare = "bins" (a bin of their own).'
        )


# -- kept with the model ---------------------------------------------------------------------------------------------


def state_of(fitted: Fitted) -> dict[str, Any]:
    """All of it as plain values and arrays, for the file in which its owner keeps it."""
    plain = {one.name: getattr(fitted, one.name) for one in fields(fitted)}
    return {
        **plain,
        "preparation": msgspec.to_builtins(fitted.preparation),
        "raw_columns": _names_state(fitted.raw_columns),
        "columns": _names_state(fitted.columns),
        "numbers": {one.name: getattr(fitted.numbers, one.name) for one in fields(Numbers)},
        "levels": [{one.name: getattr(item, one.name) for one in fields(Levels)} for item in fitted.levels],
        "spelling": {column: list(texts) for column, texts in fitted.spelling.items()},
    }


def fitted_from(kept: Mapping[str, Any]) -> Fitted:
    state = dict(kept)
    dates = state.pop("dates", None)  # an earlier version kept the columns of dates alone
    if dates is not None:
        state["forms"] = dict.fromkeys(dates, DATE)
    return Fitted(
        **{
            **state,
            "preparation": msgspec.convert(state["preparation"], Preparation),
            "raw_columns": _names_from(state["raw_columns"]),
            "columns": _names_from(state["columns"]),
            "numbers": Numbers(**state["numbers"]),
            "levels": tuple(Levels(**item) for item in state["levels"]),
            "notes": tuple(state["notes"]),
        }
    )


def _names_state(names: Sequence[str]) -> Any:
    return (names.prefix, np.asarray(names.numbers)) if isinstance(names, NumberedColumns) else list(names)


def _names_from(state: Any) -> Sequence[str]:
    return NumberedColumns(state[1], state[0]) if isinstance(state, tuple) else tuple(state)
