"""Vertical problems from the parties' own tables, from arrays, or from a named set that is cut into columns.

Whatever is learned from data on the way (levels, medians, means) is learned by each party from its own training rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.data.align import align
from offbeat.data.assemble import LabelsAt, Preparations, Raw, VerticalData, build, build_split_late
from offbeat.data.columns import take_names
from offbeat.data.dataset import DataSet
from offbeat.data.holdout import held_out, id_text
from offbeat.data.labels import AnyTask, Task
from offbeat.data.load import load_dataset
from offbeat.data.matrix import Flags, Floats, Integers, Rows, cut_columns, take_rows
from offbeat.data.preparation import AS_IS, Preparation, preparation_from
from offbeat.data.split import HowColumns, Parties, split_columns
from offbeat.data.table import Table, table_from_arrays
from offbeat.data.weights import checked_exposure, checked_weights
from offbeat.errors import BadData, BadJob
from offbeat.names import check_party_names, did_you_mean

__all__ = ["VerticalData", "vertical_from_arrays", "vertical_from_dataset", "vertical_from_tables"]


def vertical_from_tables(
    tables: Mapping[str, Table],
    labels_at: LabelsAt = None,
    preparation: Preparations = AS_IS,
    test_fraction: float = 0.2,
    seed: int = 0,
    *,
    task: AnyTask = "classification",
    test_ids: Sequence[Any] | None = None,
    source: str | None = None,
) -> VerticalData:
    """Join the parties' tables on their ids.

    tables         each party's table by its name (`offbeat.data.table.read_table`)
    labels_at      the parties that hold the labels, or "all"; None: those whose table has them
    preparation    how columns are prepared: a word, a `Preparation`, or one of these by party
    test_fraction  the part of the rows that is kept for testing
    seed           decides which rows these are
    task           "classification", "multiclass", "regression", or "auto": what the labels look like
    test_ids       the ids of the test rows, where they are chosen by hand
    source         one sentence on where the data comes from, for the record
    """
    if not tables:
        raise BadData("No party brought a table.")
    check_party_names(tables, "The tables")
    joined = align(tables)
    labels, holders = _joined_labels(tables, joined.rows)
    test = _test_rows(joined.ids, test_fraction, seed, test_ids)
    given = [party for party in labels_at or () if labels_at != "all" and party not in holders]
    read = [f"{party}: {note}" for party, table in tables.items() for note in table.notes]
    notes = (
        *read,
        *joined.notes,
        *(f"{party} brought no labels and is given those of {holders[0]}." for party in given),
    )
    raw = Raw(
        tables={
            party: replace(table, features=take_rows(table.features, joined.rows[party]))
            for party, table in tables.items()
        },
        labels=labels,
        ids=joined.ids,
        test=test,
        where=_label_column(tables[holders[0]], joined.ids.size),
        source=source or f"{len(tables)} tables ({', '.join(t.name for t in tables.values())}) joined on their ids",
        notes=notes,
        digest=joined.digest,
        weights=_joined_numbers("weights", tables, joined.rows),
        exposure=_joined_numbers("exposure", tables, joined.rows),
        warnings=joined.warnings,
    )
    return build(raw, labels_at if labels_at is not None else holders, preparation, task)


def vertical_from_arrays(
    blocks: Mapping[str, Any],
    y: Any,
    labels_at: LabelsAt = "all",
    preparation: Preparations = AS_IS,
    test_fraction: float = 0.0,
    seed: int = 0,
    *,
    task: Task = "classification",
    ids: Any = None,
    test_mask: Any = None,
    source: str = "arrays in memory",
    weights: Any = None,
    exposure: Any = None,
) -> VerticalData:
    """Rows that are in one order already.

    blocks         each party's columns by its name: arrays, sparse matrices or data frames
    y              the labels, one for each row
    labels_at      the parties that hold the labels, or "all"
    preparation    how columns are prepared: a word, a `Preparation`, or one of these by party
    test_fraction  the part of the rows that is kept for testing
    seed           decides which rows these are
    task           "classification", "multiclass" or "regression"
    ids            a name for each row; None: they are numbered
    test_mask      true for each test row, where they are chosen by hand
    source         one sentence on where the data comes from, for the record
    weights        how much each row counts; None: all alike
    exposure       what a count or an amount is of, years say; None: one unit each
    """
    if not blocks:
        raise BadData("No party brought columns.")
    check_party_names(blocks, "The columns by party")
    tables = _tables_of_blocks(blocks, preparation)
    labels = _flat_labels(y)
    row_ids = np.arange(labels.size, dtype=np.int64) if ids is None else np.asarray(ids)
    brought = [(party, len(table)) for party, table in tables.items()]
    _check_sizes([*brought, ("y", labels.size), *([] if ids is None else [("ids", row_ids.size)])])
    raw = Raw(
        tables=tables,
        labels=labels,
        ids=row_ids,
        test=held_out(row_ids, seed=seed, fraction=test_fraction)
        if test_mask is None
        else _mask(test_mask, labels.size),
        where="y",
        source=source,
        notes=tuple(f"{party}: {note}" for party, table in tables.items() for note in table.notes),
        weights=None if weights is None else checked_weights(weights, labels.size, "The weights"),
        exposure=None if exposure is None else checked_exposure(exposure, labels.size, "The exposures"),
    )
    return build(raw, labels_at, preparation, task)


def vertical_from_dataset(
    name: str | DataSet,
    parties: Parties = 4,
    split: HowColumns = "equal",
    labels_at: LabelsAt = "all",
    preparation: str | Preparation | None = None,
    data_dir: str | Path | None = None,
    seed: int = 0,
    *,
    rows: Rows | None = None,
    test_fraction: float | None = None,
    limit_rows: int | None = None,
    split_after_one_hot: bool = False,
) -> VerticalData:
    """Cut a named set into columns.

    name                 as `offbeat data` lists it, or a set that was loaded
    parties              how many parties share the columns, or their names
    split                how columns are shared out: "equal", "random", "mod", or column names by party
    labels_at            the parties that hold the labels, or "all"
    preparation          one of the set's named ones (its usual one when None), or one of your own
    data_dir             where named sets lie; None: OFFBEAT_DATA, or shared/data beside the checkout
    seed                 decides test rows, drawn rows and a random split
    rows                 replaces the preparation's row scaling
    test_fraction        the part of the rows that is kept for testing; None: the set's own split, or a fifth
    limit_rows           use only so many of the rows, drawn by id and seed
    split_after_one_hot  share out the encoded columns evenly, as the papers do, rather than the raw ones: columns are
                         prepared one by one, so their values are the same either way
    """
    data = load_dataset(name, data_dir, seed) if isinstance(name, str) else name
    called, chosen = choose_preparation(data, preparation, rows)
    kept = _limited(data, limit_rows, seed)
    test = _dataset_test_rows(data, kept, test_fraction, seed)
    raw = _raw_from_dataset(data, kept, test, called)
    rng = np.random.default_rng(seed)
    if split_after_one_hot:
        return build_split_late(raw, data, chosen, parties, split, rng, labels_at)
    parts = split_columns(data.table.columns, parties, split, rng)
    whole = raw.tables["all"]
    tables = {
        party: replace(whole, columns=take_names(whole.columns, parts[party]), features=block)
        for party, block in cut_columns(whole.features, parts).items()
    }
    raw = replace(raw, tables=tables)
    return build(raw, labels_at, chosen, data.task, data.centre_labels)


def choose_preparation(
    data: DataSet, wanted: str | Preparation | None, rows: Rows | None = None
) -> tuple[str, Preparation]:
    """A set's named preparation, or the caller's own; `rows` replaces its row scaling."""
    if isinstance(wanted, Preparation):
        key, chosen = "given", wanted
    else:
        key = data.usual if wanted is None else wanted
        if key not in data.preparations:
            raise BadJob(f"{data.name} has no preparation {key!r}. {did_you_mean(key, data.preparations)}")
        chosen = data.preparations[key]
    return key, chosen if rows is None else msgspec.structs.replace(chosen, rows=rows)


def _joined_labels(tables: Mapping[str, Table], rows: Mapping[str, Integers]) -> tuple[NDArray[Any], tuple[str, ...]]:
    found = {party: table.labels[rows[party]] for party, table in tables.items() if table.labels is not None}
    if not found:
        raise BadData(f"No party brought labels ({', '.join(tables)}). Name the label column of at least one of them.")
    (first, labels), *others = found.items()
    for party, theirs in others:
        differ = labels.astype(str) != theirs.astype(str)
        if differ.any():
            row = int(np.argmax(differ))
            raise BadData(
                f"{first} and {party} disagree on {int(differ.sum())} of {differ.size} labels: {id_text(labels[row])} "
                f"against {id_text(theirs[row])} at row {int(rows[first][row]) + 1} of {tables[first].name}. Name the "
                "label column of one of the two only."
            )
    return labels, tuple(found)


def _joined_numbers(
    what: Literal["weights", "exposure"], tables: Mapping[str, Table], rows: Mapping[str, Integers]
) -> Floats | None:
    """The weights, or the exposure, of the joined rows; label holders that bring some must agree."""
    found = {
        party: getattr(table, what)[rows[party]] for party, table in tables.items() if getattr(table, what) is not None
    }
    for party in found:
        if tables[party].labels is None:
            raise BadData(f"{party} brings {what} and no labels; they belong to the party that holds the labels.")
    first = next(iter(found), "")
    for party, theirs in found.items():
        if not np.array_equal(theirs, found[first]):
            raise BadData(
                f"{first} and {party} disagree on the {what} of some rows. Name the column of one of the two."
            )
    return found.get(first)


def _label_column(table: Table, shared: int) -> str:
    left = "" if shared == len(table) else f" (the {shared} of its {len(table)} rows whose ids all parties have)"
    return f"the label column of {table.name}{left}"


def _tables_of_blocks(blocks: Mapping[str, Any], preparation: Preparations) -> dict[str, Table]:
    tables = {}
    for party, block in blocks.items():
        given = preparation.get(party, AS_IS) if isinstance(preparation, Mapping) else preparation
        tables[party] = party_table(party, block, preparation_from(given))
    return tables


def party_table(party: str, block: Any, preparation: Preparation) -> Table:
    """One party's array, sparse matrix or data frame, read as its preparation wants it."""
    missing: Literal["keep", "refuse"] = "refuse" if preparation.strict and not preparation.columns else "keep"
    text = preparation.as_text
    return table_from_arrays(block, name=f"party {party!r}", text=text, missing=missing)


def _check_sizes(sizes: Sequence[tuple[str, int]]) -> None:
    if len({size for _, size in sizes}) > 1:
        came = ", ".join(f"{what}: {size}" for what, size in sizes)
        raise BadData(f"All parties and y need the same number of rows; came {came}.")


def _flat_labels(y: Any) -> NDArray[Any]:
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels.ravel()
    if labels.ndim != 1:
        raise BadData(f"y must be one label per row; came an array of shape {labels.shape}.")
    if labels.dtype.kind in "iufb":
        labels = labels.astype(np.float64)
        if not np.isfinite(labels).all():
            raise BadData(f"y must be finite; row {int(np.argmax(~np.isfinite(labels))) + 1} is not.")
    return labels


def _test_rows(ids: NDArray[Any], fraction: float, seed: int, test_ids: Sequence[Any] | None) -> Flags:
    if test_ids is None:
        return held_out(ids, seed=seed, fraction=fraction)
    wanted = {id_text(value) for value in test_ids}
    found = np.array([id_text(value) in wanted for value in ids.tolist()], dtype=np.bool_)
    if not found.any():
        raise BadData(
            f"None of the {len(wanted)} ids that were listed for testing is among the {ids.size} joined rows: the list "
            f"has {', '.join(map(repr, sorted(wanted)[:3])) or 'none'}, the rows have "
            f"{', '.join(repr(id_text(value)) for value in ids[:3].tolist())}. Write both alike."
        )
    return found


def _mask(mask: Any, rows: int) -> Flags:
    flags = np.asarray(mask)
    if flags.dtype != np.bool_ or flags.shape != (rows,):
        raise BadData(f"The test mask must be {rows} booleans; came {flags.dtype} of shape {flags.shape}.")
    return flags


def _limited(data: DataSet, limit: int | None, seed: int) -> Integers:
    rows = np.arange(len(data.table), dtype=np.int64)
    if limit is None or limit >= rows.size:
        return rows
    return rows[held_out(data.table.ids, seed=seed + 1, rows=limit)]


def _dataset_test_rows(data: DataSet, kept: Integers, fraction: float | None, seed: int) -> Flags:
    if data.test is not None and fraction is None:
        return data.test[kept]
    exact = data.test_rows if fraction is None and kept.size == len(data.table) else None
    return held_out(data.table.ids[kept], seed=seed, fraction=0.2 if fraction is None else fraction, rows=exact)


def _raw_from_dataset(data: DataSet, kept: Integers, test: Flags, preparation: str) -> Raw:
    everything = kept.size == len(data.table)
    if data.table.labels is None:
        raise BadData(f"The set {data.name!r} has no labels.")
    return Raw(
        tables={
            "all": data.table if everything else replace(data.table, features=take_rows(data.table.features, kept))
        },
        labels=data.table.labels[kept],
        ids=data.table.ids[kept],
        test=test,
        where=f"the label of {data.name}",
        source=data.about + ("" if everything else f", {kept.size:,} of its rows") + f"; preparation {preparation!r}",
    )
