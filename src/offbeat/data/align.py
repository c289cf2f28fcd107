"""Joining the parties' tables on their sample ids, whatever the order of their rows.

The joined rows are those whose id every party has, sorted by id: the order does not depend on any file, and each
party can find it alone. This is the plain join, in which ids are compared in the clear.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.holdout import id_text
from offbeat.data.matrix import Integers
from offbeat.data.table import Table
from offbeat.errors import BadData
from offbeat.names import counted

MATCHED_LEAST = 0.5
"""Where a smaller part of a party's ids is found elsewhere, the columns may not be the same thing."""


@dataclass(frozen=True)
class Alignment:
    """`rows[party][i]` is the row of that party's table that belongs to `ids[i]`."""

    ids: NDArray[Any]
    rows: Mapping[str, Integers]
    digest: str
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def align(tables: Mapping[str, Table]) -> Alignment:
    """The rows that all parties share, and in the notes what was left out and where."""
    keys = _comparable({party: table.ids for party, table in tables.items()})
    first = {party: np.unique(ids, return_index=True) for party, ids in keys.items()}
    shared = reduce(lambda a, b: np.intersect1d(a, b, assume_unique=True), (unique for unique, _ in first.values()))
    if not shared.size:
        raise BadData(_nothing_shared(tables))
    rows = {party: index[np.searchsorted(unique, shared)] for party, (unique, index) in first.items()}
    notes = [note for party, (unique, _) in first.items() for note in _notes(party, keys[party].size, unique, shared)]
    few = [
        f"{len(unique) - len(shared):,} of {len(unique):,} of {party}"
        for party, (unique, _) in first.items()
        if MATCHED_LEAST * len(unique) > len(shared)
    ]
    told = (
        f"Most ids have no partner: {', '.join(few)}. {len(shared):,} rows were left to learn from. Check that all id "
        "columns name the same thing and are written the same way."
    )
    return Alignment(shared, rows, digest_of_ids(shared), tuple(notes), (told,) if few else ())


def digest_of_ids(ids: NDArray[Any]) -> str:
    """SHA-256 over the ids in their joined order: two parties compare it to know that they agree."""
    return hashlib.sha256("\n".join(map(id_text, ids.tolist())).encode()).hexdigest()


def _comparable(ids: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """All integers, or all text: an id that is a number in one file may be text in another."""
    if all(values.dtype.kind in "iu" for values in ids.values()):
        return {party: values.astype(np.int64) for party, values in ids.items()}
    return {party: np.array([id_text(value) for value in values.tolist()], dtype=str) for party, values in ids.items()}


def _notes(party: str, rows: int, unique: NDArray[Any], shared: NDArray[Any]) -> list[str]:
    notes = []
    if rows > unique.size:
        notes.append(
            f"{party}: {counted(rows - unique.size, 'row')} with an id seen before; the first row of each id was kept."
        )
    if unique.size > shared.size:
        notes.append(
            f"{party}: {unique.size - shared.size} of {unique.size} ids have no partner elsewhere and were left out."
        )
    return notes


def _nothing_shared(tables: Mapping[str, Table]) -> str:
    examples = "; ".join(
        f"{party} ({table.name}) has {', '.join(repr(id_text(value)) for value in table.ids[:3].tolist())}"
        for party, table in tables.items()
    )
    return (
        f"No id is common to all {len(tables)} parties, so no row is left. First ids: {examples}. Check "
        "that the id columns name the same thing and are written the same way."
    )
