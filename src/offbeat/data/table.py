"""One party's table: sample ids, feature columns, perhaps labels; and how it is read from a file.

    .csv .tsv .parquet        a header names the columns; `id` and `label` choose two of them
    .svm .libsvm .txt         LIBSVM lines; the label is the first number, ids are row numbers from 0 (a .txt of other
                              lines is read as a .csv)
    .npz                      `X` (rows by columns), or a matrix as scipy.sparse.save_npz writes it; beside it, perhaps,
                              the arrays `ids`, `y` and `columns` (or whatever `id` and `label` name)
    ...-idx3-ubyte            images, one row each, values 0-255; `label` names the file of labels beside it
    postgresql://...          a database's table or view (sql.py); `id` is needed

Each file may be compressed (.gz, .bz2, .xz, .zip). A wrong one is refused with one paragraph that names file, column
and row. Rows are counted from 1, without the header.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.data.columns import NumberedColumns, take_names
from offbeat.data.formats import Arrays, read_arrays, read_frame
from offbeat.data.frames import DATE, cells_of
from offbeat.data.holdout import id_text
from offbeat.data.matrix import Floats, Matrix, as_matrix, is_sparse
from offbeat.data.sql import is_address, names_in, read_sql, shown
from offbeat.errors import BadData
from offbeat.names import counted, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

STAND_IN = "nothing but labels"
"""The column of a party that has none."""
UNLABELLED = "offbeat: rows without labels"
PLAIN_INTEGER = re.compile("0|[1-9][0-9]*")
NAMELESS = "Unnamed: 0"
"""What pandas calls a first column without a name."""


@dataclass(frozen=True)
class Table:
    """Rows with ids. `levels` spells the codes of text columns: code 2 of column c means levels[c][2]. `forms` tells
    how dates and numbers were written, where they were not plain numbers (`frames.py`)."""

    ids: NDArray[Any] = field(repr=False)
    columns: Sequence[str] = field(repr=False)
    features: Matrix = field(repr=False)
    labels: NDArray[Any] | None = field(repr=False)
    name: str
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    forms: Mapping[str, str] = field(default_factory=dict, repr=False)
    weights: Floats | None = field(default=None, repr=False)  # see `weights.py`
    exposure: Floats | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()  # what was found out about the file

    def __len__(self) -> int:
        return int(self.ids.size)

    @property
    def dates(self) -> tuple[str, ...]:
        """The columns of days since 1970-01-01."""
        return tuple(column for column, form in self.forms.items() if form.startswith(DATE))


def read_table(
    path: str | Path,
    id: str | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    text: Sequence[str] = (),
    missing: Literal["refuse", "keep"] = "refuse",
    duplicates: Literal["refuse", "keep-first"] = "refuse",
    forms: Mapping[str, str] | None = None,
) -> Table:
    """Read one party's file, or its table in a database, and check it.

    path        the file, or the table's address
    id          column of sample ids; without it rows are numbered from 0 (then all parties' rows must be in one order)
    label       column of labels; without it the party has none
    columns     feature columns to keep; without it all but id and label
    text        columns that are taken as text, whatever they look like; what others hold is found out
    missing     `keep` leaves empty cells as nan, for the preparation to deal with
    duplicates  `keep-first` leaves repeated ids in, and the join keeps the first row of each
    forms       how an earlier table with these columns was written: this one is read alike
    """
    if is_address(path):
        where = shown(str(path))
        _check_wanted(columns, where)
        wanted = None if columns is None else list(dict.fromkeys(c for c in (id, label, *columns) if c is not None))
        frame = read_sql(str(path), id, wanted)
        return _checked(_from_frame(frame, where, id, label, columns, tuple(text), forms=forms), missing, duplicates)
    file = Path(path)
    _check_wanted(columns, str(file))
    raw = read_frame(file)
    if raw is not None:
        table = _from_frame(raw.frame, str(file), id, label, columns, tuple(text), raw.decimal_comma, forms)
        table = replace(table, name=file.name, notes=(*raw.notes, *table.notes))
    else:
        table = _from_arrays(read_arrays(file, id, label), str(file), file.name, columns)
    return _checked(table, missing, duplicates)


def columns_of(source: str | Path) -> list[str] | None:
    """The names of all columns of a file or a database's table; None for files of arrays."""
    if is_address(source):
        return names_in(str(source))
    raw = read_frame(Path(source))
    return None if raw is None else [str(column) for column in raw.frame.columns]


def table_from_arrays(
    features: Any,
    ids: Any = None,
    labels: Any = None,
    columns: Sequence[str] | None = None,
    name: str = "table",
    *,
    text: Sequence[str] = (),
    missing: Literal["refuse", "keep"] = "keep",
    forms: Mapping[str, str] | None = None,
) -> Table:
    """A table of what is in memory already: an array, a sparse matrix, or a data frame (whose index gives no ids, and
    whose columns named in `text` are categories although they look like numbers; `forms`: as in `read_table`)."""
    frame = _as_frame(features, name)
    if frame is None:
        table = _from_arrays(Arrays(features, ids, labels, columns), name, name)
    else:
        typed = _from_frame(frame, name, None, None, None, tuple(c for c in text if c in frame), forms=forms)
        named = typed.columns if columns is None and hasattr(tabular(features), "columns") else columns
        table = _from_arrays(Arrays(typed.features, ids, labels, named), name, name)
        table = replace(table, levels=typed.levels, forms=typed.forms, notes=typed.notes)
    return _checked(table, missing, "refuse", in_memory=True)


def tabular(values: Any) -> Any:
    """Tables of other libraries (pyarrow, polars) as data frames; others as they are."""
    if not hasattr(values, "to_pandas"):
        return values
    frame = values.to_pandas()
    frame.attrs[UNLABELLED] = (
        getattr(frame.index, "start", None) == 0
    )  # the index that pandas gives where there is none
    return frame


def is_labelled(part: Any) -> bool:
    """Whether its rows have labels of their own, by which they can be matched."""
    import pandas as pd

    return isinstance(getattr(part, "index", None), pd.Index) and not getattr(part, "attrs", {}).get(UNLABELLED)


def _as_frame(features: Any, name: str) -> "pd.DataFrame | None":
    """A data frame with plain names; None where numbers come without it."""
    import pandas as pd

    features = tabular(features)
    if isinstance(features, pd.DataFrame):
        frame = features.copy(deep=False)
        names: list[Any] = frame.columns.to_list()
        frame.columns = pd.Index([" ".join(map(str, c)) if isinstance(c, tuple) else str(c) for c in names])
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise BadData(f"{name} has more than one column {twice!r}. Give every column a name of its own.")
        return frame
    if isinstance(features, np.ndarray) and features.ndim == 2 and features.dtype.kind in "OUS":
        return pd.DataFrame(features, columns=[f"x{j}" for j in range(features.shape[1])])
    return None


def _numeric_matrix(features: Any, name: str) -> Matrix:
    if getattr(getattr(features, "dtype", None), "kind", "") == "c":
        raise BadData(f"Complex data not supported: {name} holds {features.dtype}. Bring real numbers.")
    no_table = features is None or isinstance(features, str | bytes | Mapping | Iterator) or np.isscalar(features)
    if no_table and not is_sparse(features):  # some sparse matrices are mappings of cells
        raise BadData(
            f"{name}: expected rows by columns, as an array, a sparse matrix or a data frame; came "
            f"{type(features).__name__}. Read a file first (pandas.read_csv); of a dictionary make a frame."
        )
    if isinstance(features, np.ma.MaskedArray):
        features = np.ma.filled(features.astype(np.float64), np.nan)
    try:
        return as_matrix(features)
    except (TypeError, ValueError) as error:
        met = str(error).partition(". ")[0].rstrip(".")  # of numpy's words, not what it tried
        raise BadData(
            f"{name}: features must be numbers, with as many in every row; {met}. Correct the rows, or "
            "bring a data frame, in which columns may hold text and dates."
        ) from error


def _check_wanted(columns: Sequence[str] | None, file: str) -> None:
    if columns is None:
        return
    if not columns:
        raise BadData(
            f"{file}: columns = [] leaves no column to learn from, and every party needs one. List some, or leave "
            "`columns` out to use all but id and label."
        )
    twice = [column for column in columns if list(columns).count(column) > 1]
    if twice:
        raise BadData(f"{file}: columns lists {twice[0]!r} more than once. List every column once.")


# -- from a data frame ---------------------------------------------------------------------------------------------


def _from_frame(
    frame: "pd.DataFrame",
    file: str,
    id: str | None,
    label: str | None,
    columns: Sequence[str] | None,
    text: tuple[str, ...],
    decimal_comma: bool = False,
    forms: Mapping[str, str] | None = None,
) -> Table:
    frame, notes = _without_row_numbers(frame, {id, label, *(columns or ())})
    frame = _with_stand_in(frame, id, label, columns)
    kept = _chosen_columns(frame, file, id, label, columns)
    features = np.empty((len(frame), len(kept)))
    levels: dict[str, Sequence[str]] = {}
    found: dict[str, str] = {}
    for j, column in enumerate(kept):
        where = f"{file}, column {column!r}"
        form = None if forms is None else forms.get(column, "")
        cells = cells_of(frame[column], where, as_text=column in text, decimal_comma=decimal_comma, form=form)
        features[:, j] = cells.values
        if cells.texts is not None:
            levels[column] = cells.texts
        if cells.form:
            found[column] = cells.form
        notes += cells.notes
    ids = (
        np.arange(len(frame), dtype=np.int64)
        if id is None
        else tidy_ids(frame[id].to_numpy(object), f"{file}, column {id!r}")
    )
    labels = None if label is None else _labels(frame[label], label, file, decimal_comma)
    return Table(ids, tuple(kept), features, labels, file, levels, found, notes=notes)


def _with_stand_in(
    frame: "pd.DataFrame", id: str | None, label: str | None, columns: Sequence[str] | None
) -> "pd.DataFrame":
    """A party that holds labels alone takes part with a column that says nothing; new rows of it have none either."""
    alone = label is not None and {*frame.columns} <= {id, label}
    later = columns is not None and list(columns) == [STAND_IN] and STAND_IN not in frame.columns
    return frame.assign(**{STAND_IN: 0.0}) if (alone and columns is None) or later else frame


def _without_row_numbers(frame: "pd.DataFrame", wanted: set[str | None]) -> tuple["pd.DataFrame", tuple[str, ...]]:
    """Less a first column without a name that numbers the rows, in any order, as data frames are often saved."""
    if not len(frame.columns) or frame.columns[0] != NAMELESS or NAMELESS in wanted:
        return frame, ()
    cells = frame[NAMELESS].astype(str)
    if not cells.is_unique or not cells.str.fullmatch(r"\d+").all():
        return frame, ()
    return frame.drop(columns=NAMELESS), ("The first column has no name and numbers the rows; it was left out.",)


def _chosen_columns(
    frame: "pd.DataFrame", file: str, id: str | None, label: str | None, columns: Sequence[str] | None
) -> list[str]:
    known = [str(column) for column in frame.columns]
    for what, wanted in [("id", id), ("label", label), *(("feature", column) for column in columns or ())]:
        if wanted is not None and wanted not in known:
            raise BadData(f"{file} has no {what} column {wanted!r}. {did_you_mean(wanted, known)}{_no_header(known)}")
    if id is not None and id == label:
        raise BadData(
            f"{file}: column {id!r} is named as `id` and as `label`. Rows are matched by one, the other is learned."
        )
    kept = [column for column in (known if columns is None else columns) if column not in (id, label)]
    if not kept:
        raise BadData(
            f"{file} has no feature column: besides id and label it holds nothing. Columns: {', '.join(known)}."
        )
    return kept


def _no_header(names: list[str]) -> str:
    """A word where the first line looks like values, or was not taken apart."""
    if len(names) == 1 and re.search(r"\w[ :]+\w", names[0]):
        return " Columns are separated by , ; | or tabs, and the first line has none of these."
    numbers = sum(re.fullmatch(r"[+-]?[\d.,]+(e[+-]?\d+)?", name) is not None for name in names)
    return " The first line must name the columns, and it seems to hold values." if 2 * numbers > len(names) else ""


def _labels(series: "pd.Series[Any]", label: str, file: str, decimal_comma: bool) -> NDArray[Any]:
    import pandas as pd

    numbers, empty = pd.to_numeric(series, errors="coerce"), series.isna().to_numpy()
    if not empty.any() and numbers.isna().any():
        cells = cells_of(series, f"{file}, label column {label!r}", decimal_comma=decimal_comma)
        if cells.texts is not None or cells.form.startswith(DATE):
            return np.array([id_text(value) for value in series.tolist()], dtype=object)
        numbers, empty = pd.Series(cells.values), np.isnan(cells.values)
    if empty.any():
        raise BadData(
            f"{file}, label column {label!r}: row {int(np.argmax(empty)) + 1} has no label "
            f"({int(empty.sum())} of {empty.size} rows). Fill in the labels or leave these rows out."
        )
    return numbers.to_numpy(np.float64)


# -- from arrays ---------------------------------------------------------------------------------------------------


def _from_arrays(raw: Arrays, where: str, name: str, columns: Sequence[str] | None = None) -> Table:
    features = _numeric_matrix(raw.features, where)
    if features.ndim != 2:
        advice = " Make a single column of it: x.reshape(-1, 1), or series.to_frame()." if features.ndim == 1 else ""
        raise BadData(f"{where}: features must be rows by columns; came an array of shape {features.shape}.{advice}")
    names: Sequence[str] = raw.columns if raw.columns is not None else NumberedColumns(range(features.shape[1]))
    if len(names) != features.shape[1]:
        raise BadData(f"{where} names {counted(len(names), 'column')} but holds {features.shape[1]}.")
    if columns is not None:
        features, names = _some_columns(features, names, columns, where)
    ids = np.arange(features.shape[0], dtype=np.int64) if raw.ids is None else tidy_ids(np.asarray(raw.ids), where)
    return Table(ids, names, features, None if raw.labels is None else np.asarray(raw.labels).ravel(), name)


def _some_columns(
    features: Matrix, names: Sequence[str], wanted: Sequence[str], file: str
) -> tuple[Matrix, Sequence[str]]:
    place = {name: j for j, name in enumerate(names)}
    for column in wanted:
        if column not in place:
            raise BadData(f"{file} has no feature column {column!r}. {did_you_mean(column, list(place))}")
    positions = np.array([place[column] for column in wanted], dtype=np.int64)
    return as_matrix(features[:, positions]), take_names(names, positions)


# -- checks --------------------------------------------------------------------------------------------------------


def tidy_ids(ids: NDArray[Any], where: str) -> NDArray[Any]:
    """int64 when every id is a plain integer, otherwise text; an empty id is refused."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    texts = ["" if value is None or value != value else id_text(value) for value in ids.tolist()]
    if "" in texts:
        raise BadData(f"{where}: row {texts.index('') + 1} has no id ({texts.count('')} of {len(texts)} rows do not).")
    if all(text.endswith(".0") for text in texts):  # whole numbers that some program kept as fractions
        texts = [text.removesuffix(".0") for text in texts]
    if all(len(text) < 19 and PLAIN_INTEGER.fullmatch(text) for text in texts):
        return np.array([int(text) for text in texts], dtype=np.int64)
    return np.array(texts, dtype=object)


def _checked(table: Table, missing: str, duplicates: str, in_memory: bool = False) -> Table:
    if table.features.shape[0] == 0:
        raise BadData(f"{table.name} has no rows: there is a header or a shape, but nothing under it.")
    for what, values in (("ids", table.ids), ("labels", table.labels)):
        if values is not None and values.size != table.features.shape[0]:
            raise BadData(f"{table.name} has {table.features.shape[0]} rows but {values.size} {what}.")
    _check_finite(table, missing, in_memory)
    _check_labels(table)
    if duplicates == "refuse":
        _check_unique(table)
    return table


def _check_finite(table: Table, missing: str, in_memory: bool) -> None:
    values = table.features if isinstance(table.features, np.ndarray) else table.features.data
    wrong = ~np.isfinite(values) if missing == "refuse" else np.isinf(values)
    if not wrong.any():
        return
    if isinstance(table.features, np.ndarray):
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        value = table.features[row, column]
    else:
        at = int(np.argmax(wrong))
        row = int(np.searchsorted(table.features.indptr, at, side="right")) - 1
        column, value = int(table.features.indices[at]), values[at]
    came = "an empty cell" if np.isnan(value) else f"{value}"
    if in_memory:
        advice = "Correct the values" + (', or use prepare = "auto", which fills them.' if np.isnan(value) else ".")
    else:
        filled = (
            ', or use prepare = "auto" (filled with the training median, and marked) or "bins" (a bin of their own).'
        )
        advice = "Correct the file" + (filled if np.isnan(value) else ".")
    raise BadData(
        f"{table.name}, column {table.columns[column]!r}, row {row + 1}: expected a finite number, came {came} "
        f"({int(wrong.sum())} such cells in the table). {advice}"
    )


def _check_labels(table: Table) -> None:
    if table.labels is None or table.labels.dtype.kind != "f":
        return
    wrong = ~np.isfinite(table.labels)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BadData(
            f"{table.name}: the label of row {row + 1} is {table.labels[row]}; labels must be finite numbers."
        )


def _check_unique(table: Table) -> None:
    unique, first, counts = np.unique(table.ids, return_index=True, return_counts=True)
    repeated = counts > 1
    if repeated.any():
        at = int(np.flatnonzero(repeated)[np.argmin(first[repeated])])
        rows = np.flatnonzero(table.ids == unique[at]) + 1
        raise BadData(
            f"{table.name}: id {str(unique[at])!r} stands in {counts[at]} rows (rows {', '.join(map(str, rows[:5]))}); "
            f"{counted(int(repeated.sum()), 'id')} repeated in all. Keep one row per id, or set duplicates = "
            '"keep-first" under [data] of the job.'
        )
