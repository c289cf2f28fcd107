"""What comes into an estimator: columns by party or in one matrix, labels, and what lies beside them."""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import column_or_1d

from offbeat.data.labels import Task, encode_labels
from offbeat.data.matrix import as_matrix, is_sparse, take_rows
from offbeat.data.table import is_labelled, table_from_arrays
from offbeat.errors import BadData

Floats = NDArray[np.float64]
Blocks = Mapping[str, Any]
LABELS = "the labels y"  # no party is called that
WHAT_X = "X is a dictionary from party to its columns, or one matrix or frame."


def coded(labels: NDArray[Any], classes: NDArray[Any]) -> Floats:
    """-1 and 1 for two classes, the positions of more."""
    if len(classes) == 2:
        return np.where(labels == classes[1], 1.0, -1.0)
    return np.searchsorted(classes, labels).astype(np.float64)


def plain(value: Any) -> Any:
    """numpy's numbers and arrays, as grids are made of, become Python's."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def column_name(column: str | int, names: Sequence[str]) -> str:
    """A column's name; a position that is none of the names counts from 0."""
    if isinstance(column, int | np.integer) and str(column) not in names and 0 <= column < len(names):
        return names[int(column)]
    return str(column)


def _as_array(values: Any, name: str, what: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError):  # numpy's words are about shapes that it tried
        raise BadData(
            f"The rows of {name} are not all of one length, or hold more than single values. {what} Give every row as "
            "many values as the others."
        ) from None


def _check_column_names(frame: Any) -> None:
    if hasattr(frame, "columns") and not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise BadData(f"X has more than one column {twice!r}. Give every column a name of its own.")


def one_matrix(X: Any) -> Any:
    """One matrix of two dimensions with a row and a column at least."""
    if is_sparse(X):
        X = X if X.dtype.kind == "c" else as_matrix(X)
    elif hasattr(X, "iloc"):
        _check_column_names(X)
    else:
        X = _as_array(X, "X", WHAT_X)
    if getattr(getattr(X, "dtype", None), "kind", "") == "c":
        raise BadData(f"Complex data not supported: X holds {X.dtype}. Bring real numbers.")
    if X.ndim != 2:
        raise BadData(
            f"Expected 2D array, got {X.ndim}D array instead: {WHAT_X} Reshape your data, a single column by "
            "X.reshape(-1, 1)."
        )
    if not X.shape[0]:
        raise BadData(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
    if not X.shape[1]:
        raise BadData(f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    return X


def check_blocks(X: Any) -> None:
    if not isinstance(X, Mapping):
        raise BadData(
            f"X must be a dictionary from party to its columns, as in {{'bank': Xb, 'shop': Xs}}; got "
            f"{type(X).__name__}."
        )
    if not X:
        raise BadData("X must have the columns of at least one party; got an empty dictionary.")
    for name in X:
        if not isinstance(name, str) or not name:
            raise BadData(f"Parties must be named by text, as in {{'bank': Xb, 'shop': Xs}}; got {name!r}.")


def check_labels(y: Any, me: str) -> Any:
    """One label a row; an empty label is no class of its own."""
    import pandas as pd

    if y is None:
        raise BadData(
            f"This {me} requires y to be passed, but the target y is None. Give the labels, one for each row."
        )
    labels = _as_array(y, "y", "y is one label for each row.")
    if labels.ndim == 0:
        raise BadData(
            f"y must be one label per row, as a list, an array or a column of a frame; got {type(y).__name__}."
        )
    if labels.ndim != 1 and not (labels.ndim == 2 and labels.shape[1] == 1):
        raise BadData(f"y must be one label per row; came an array of shape {labels.shape}.")
    if not labels.size:
        raise BadData("y is empty: there is no row to learn from. Give the labels, one for each row.")
    _check_kind(y, labels)
    labels = labels if labels.ndim == 1 else column_or_1d(labels, warn=True)
    empty = np.asarray(pd.isna(labels) | np.isinf(labels) if labels.dtype.kind == "f" else pd.isna(labels))
    if empty.any():
        row = int(np.argwhere(empty)[0][0])
        what = "infinity" if labels.dtype.kind == "f" and np.isinf(labels[row]) else "NaN"
        raise BadData(
            f"Input y contains {what}, and y must have a label in every row; row {row + 1} has {labels[row]} "
            f"({int(empty.sum())} such rows). Fill the labels in or leave these rows out."
        )
    if labels.size == 1:
        raise BadData("n_samples=1: there is one row, and learning needs at least two.")
    return y if hasattr(y, "index") and np.ndim(y) == 1 else labels


def _check_kind(y: Any, labels: NDArray[Any]) -> None:
    if labels.dtype.kind == "c":
        raise BadData(f"Complex data not supported: y holds {labels.dtype}. Bring real numbers.")
    if labels.dtype.kind == "S" or (labels.dtype == object and any(isinstance(value, bytes) for value in labels.flat)):
        raise BadData("y holds bytes, and labels are text or numbers. Make text of them: y.astype(str), say.")
    if labels.dtype.kind in "mM":
        raise BadData(
            f"y holds {'dates' if labels.dtype.kind == 'M' else 'lengths of time'}, and labels are classes or numbers. "
            "Make numbers of them first: days since some date, say."
        )
    if isinstance(y, list | tuple) and labels.dtype.kind == "U":
        other = next((value for value in y if not isinstance(value, str)), None)
        if other is not None:
            raise BadData(
                f"y holds text and {type(other).__name__} ({other!r}), and labels are all of one kind. Spell all of "
                "them as text, or all as numbers."
            )


def classes_of(y: Any, regressor: str) -> tuple[NDArray[Any], Task]:
    """The classes in their order, and what there is to learn; `regressor`: the estimator for numbers."""
    labels = np.asarray(y)
    kind = type_of_target(labels, input_name="y") if labels.dtype != object else "unknown"
    if kind.startswith("continuous"):
        raise BadData(f"Unknown label type: {kind}. A number to be predicted is for {regressor}.")
    try:
        classes = np.unique(labels)
    except TypeError:
        kinds = sorted({type(value).__name__ for value in labels.tolist()})
        raise BadData(
            f"y holds {' and '.join(kinds[:4])}, which cannot be put in order, and classes are in the order of their "
            "names. Spell all labels as text, or all as numbers."
        ) from None
    if len(classes) < 2:
        encode_labels(labels, "classification", "y")  # which says what is wrong
    return classes, "classification" if len(classes) == 2 else "multiclass"


def aligned(blocks: dict[str, Any], y: Any, beside: Mapping[str, Any]) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Frames whose indexes hold the same labels are brought into the order of the first; otherwise rows are matched by
    position, and a warning tells where indexes differ. What lies beside y without an index is in the order of y.
    Whatever else has no index is taken to be in the order of the first frame; a warning says so where it matters."""
    import pandas as pd

    found = dict(blocks) if y is None else {**blocks, LABELS: y}
    names = {f"the {name}": name for name in beside}
    for key, name in names.items():
        values, follows = beside[name], is_labelled(y)
        plain = follows and not hasattr(values, "index") and np.shape(values) == np.shape(y)
        found[key] = pd.Series(np.asarray(values), index=y.index) if plain else values
    indexed = [name for name, part in found.items() if is_labelled(part)]
    for name in indexed[1:]:
        first, index = found[indexed[0]].index, found[name].index
        if len(index) != len(first) or index.equals(first):
            continue
        if first.is_unique and index.is_unique and index.isin(first).all():
            found[name] = found[name].loc[first]
            _warn_of_order(indexed[0], name, [other for other in found if other not in indexed])
            continue
        _warn_of_indexes(indexed[0], first, name, index)
        break
    labels = None if y is None else np.asarray(found.pop(LABELS))
    return {name: found[name] for name in blocks}, labels, {name: np.asarray(found[key]) for key, name in names.items()}


def _warn_of_indexes(one: str, first: Any, other: str, index: Any) -> None:
    row = int(np.argmax(np.asarray(index.to_numpy() != first.to_numpy())))
    warnings.warn(
        f"The rows of {one} and {other} are matched by position, but their indexes differ: row {row + 1} is "
        f"{first[row]} in one and {index[row]} in the other. Bring them into one order first (by reindex, say), or "
        "drop the indexes (reset_index) if the order is right.",
        UserWarning,
        stacklevel=callers_level(),
    )


def _warn_of_order(first: str, moved: str, plain: list[str]) -> None:
    if plain:
        warnings.warn(
            f"The rows of {moved} were brought into the order of {first}, by their indexes. What has no index "
            f"({', '.join(plain)}) is taken to be in the order of {first}. If it is not, make a pandas Series of it.",
            UserWarning,
            stacklevel=callers_level(),
        )


def callers_level() -> int:
    """The `stacklevel` by which a warning of the function that asks names the line outside of this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("offbeat."):
        level, frame = level + 1, frame.f_back
    return level


class PartyColumns(Mapping[str, Any]):
    """Columns by party that can be cut by rows: `X["bank"]` are a party's columns, `X[rows]` some rows of all parties.

    To scikit-learn's splitters a dictionary of three parties looks like three rows. This has a shape (rows, columns)
    and goes wherever they cut rows: cross_val_score, GridSearchCV, train_test_split. Data frames stay data frames.

    blocks  each party's columns by its name: arrays, sparse matrices or data frames with equally many rows
    """

    def __init__(self, blocks: Blocks) -> None:
        check_blocks(blocks)
        self._blocks = {name: cuttable(name, block) for name, block in blocks.items()}
        sizes = {name: block.shape[0] for name, block in self._blocks.items()}
        if len(set(sizes.values())) != 1:
            raise BadData(f"All parties need the same number of rows; came {sizes}.")
        self.shape = (next(iter(sizes.values())), sum(block.shape[1] for block in self._blocks.values()))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._blocks[key]
        rows = np.arange(self.shape[0])[key]
        return PartyColumns(
            {
                name: block.iloc[rows] if hasattr(block, "iloc") else take_rows(block, rows)
                for name, block in self._blocks.items()
            }
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __repr__(self) -> str:
        widths = ", ".join(f"{name}: {block.shape[1]}" for name, block in self._blocks.items())
        return f"PartyColumns({self.shape[0]} rows; columns of {widths})"


def cuttable(name: str, block: Any) -> Any:
    """Something that can be cut by rows."""
    if hasattr(block, "iloc"):
        return block
    table = table_from_arrays(block, name=f"party {name!r}")
    return np.asarray(block, dtype=object) if table.levels else table.features
