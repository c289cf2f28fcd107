"""Who holds what: columns over the parties of a vertical problem, rows over the edges of a horizontal one.

Nothing here looks at a feature value. A column split is a dictionary from party to column positions; a row split is
a dictionary from edge to row positions. Both cover everything exactly once.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from offbeat.data.matrix import Floats, Integers
from offbeat.errors import BadData
from offbeat.names import check_party_names, counted, did_you_mean, edge_names, party_names

HOW_COLUMNS = ("equal", "random", "mod")
HOW_ROWS = ("iid", "shards", "dirichlet")

Parties: TypeAlias = int | Sequence[str]
"""How many, or their names."""

HowColumns: TypeAlias = str | Mapping[str, Sequence[str]] | Sequence[int | Sequence[str]]
"""`equal`, `random` or `mod`; or names by party; or how many columns each; or a list of names for each."""


def split_columns(
    columns: Sequence[str], parties: Parties, how: HowColumns = "equal", rng: np.random.Generator | None = None
) -> dict[str, Integers]:
    """Which column positions each party holds.

    `equal`   neighbours stay together, sizes differ by one at most
    `mod`     column j goes to party j mod q: even work when columns are sorted by frequency
    `random`  equal sizes, columns drawn by `rng`
    mapping   {"bank": ["age", "limit"], ...}: every column must be given to exactly one party
    list      of counts ([10, 20, 61]) or of lists of names, in the order of the parties
    """
    if isinstance(how, Mapping):
        check_party_names(how, "The split")
        return _by_name(columns, how)
    names = _party_list(parties)
    if isinstance(how, str):
        return _by_rule(len(columns), names, how, rng)
    return _by_list(columns, names, list(how))


def _party_list(parties: Parties) -> tuple[str, ...]:
    names = party_names(parties) if isinstance(parties, int) else tuple(parties)
    if not names:
        raise BadData("A split needs at least one party; none was named.")
    if len(set(names)) < len(names):
        raise BadData(f"Party names must differ from one another; came {list(names)}.")
    check_party_names(names, "The split")
    return names


def _by_rule(width: int, names: tuple[str, ...], how: str, rng: np.random.Generator | None) -> dict[str, Integers]:
    if width < len(names):
        raise BadData(
            f"{len(names)} parties cannot share {counted(width, 'column')}: each needs at least one. Use fewer "
            "parties, or split after one-hot encoding."
        )
    order = np.arange(width, dtype=np.int64)
    if how == "mod":
        return {name: order[i :: len(names)] for i, name in enumerate(names)}
    if how == "random":
        if rng is None:
            raise BadData("A random split of the columns needs a seed.")
        parts = np.array_split(rng.permutation(order), len(names))
        return {name: np.sort(part) for name, part in zip(names, parts, strict=True)}
    if how == "equal":
        return dict(zip(names, np.array_split(order, len(names)), strict=True))
    raise BadData(f"Unknown way to split columns: {how!r}. {did_you_mean(how, HOW_COLUMNS)}")


def _by_list(columns: Sequence[str], names: tuple[str, ...], how: list[int | Sequence[str]]) -> dict[str, Integers]:
    if len(how) != len(names):
        raise BadData(f"The column split lists {len(how)} parts for {len(names)} parties ({', '.join(names)}).")
    if all(isinstance(part, int) for part in how):
        return _by_count(len(columns), names, [int(part) for part in how if isinstance(part, int)])
    if any(isinstance(part, int) for part in how):
        raise BadData("A column split is a list of counts or a list of lists of column names, not a mixture.")
    return _by_name(columns, {n: part for n, part in zip(names, how, strict=True) if not isinstance(part, int)})


def _by_count(width: int, names: tuple[str, ...], counts: list[int]) -> dict[str, Integers]:
    if sum(counts) != width or min(counts) < 1:
        raise BadData(
            f"Column counts must be positive and add up to {width}; came {counts}, adding up to {sum(counts)}."
        )
    parts = np.split(np.arange(width, dtype=np.int64), np.cumsum(counts)[:-1])
    return dict(zip(names, parts, strict=True))


def _by_name(columns: Sequence[str], groups: Mapping[str, Sequence[str]]) -> dict[str, Integers]:
    position = {column: i for i, column in enumerate(columns)}
    owner: dict[str, str] = {}
    for party, wanted in groups.items():
        if not wanted:
            raise BadData(f"Party {party!r} was given no column.")
        for column in wanted:
            if column not in position:
                raise BadData(
                    f"Party {party!r} was given column {column!r}, which is not there. {did_you_mean(column, columns)}"
                )
            if column in owner:
                raise BadData(
                    f"Column {column!r} was given to both {owner[column]!r} and {party!r}; it can have one owner."
                )
            owner[column] = party
    left = [column for column in columns if column not in owner]
    if left:
        more = ", ..." if len(left) > 8 else ""
        raise BadData(
            f"{counted(len(left), 'column')} of the table {'has' if len(left) == 1 else 'have'} no party: "
            f"{', '.join(left[:8])}{more}. Name a party for each, or leave them out of the table."
        )
    return {party: np.array([position[c] for c in wanted], dtype=np.int64) for party, wanted in groups.items()}


def split_rows(
    labels: Floats,
    edges: Parties,
    rng: np.random.Generator,
    how: str = "iid",
    shards_per_edge: int = 2,
    concentration: float = 0.5,
) -> dict[str, Integers]:
    """Which rows each edge holds: `iid`, `shards` (few labels per edge) or `dirichlet` (uneven labels by edge)."""
    names = edge_names(edges) if isinstance(edges, int) else _party_list(edges)
    if not names or labels.size < len(names):
        raise BadData(f"{len(names)} edges cannot share {labels.size} rows: there must be an edge, and a row for each.")
    if how == "iid":
        parts = np.array_split(rng.permutation(labels.size), len(names))
    elif how == "shards":
        parts = _by_shards(labels, len(names), shards_per_edge, rng)
    elif how == "dirichlet":
        parts = _by_dirichlet(labels, len(names), concentration, rng)
    else:
        raise BadData(f"Unknown way to split rows: {how!r}. {did_you_mean(how, HOW_ROWS)}")
    return {name: np.sort(part).astype(np.int64) for name, part in zip(names, parts, strict=True)}


def _by_shards(labels: Floats, edges: int, shards_per_edge: int, rng: np.random.Generator) -> list[Integers]:
    """Rows sorted by label and cut into equal shards; each edge gets a few of them at random."""
    if edges * shards_per_edge > labels.size:
        raise BadData(f"{edges} edges with {shards_per_edge} shards each need that many rows; there are {labels.size}.")
    shuffled = rng.permutation(labels.size)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    shards = np.array_split(by_label, edges * shards_per_edge)
    dealt = rng.permutation(len(shards)).reshape(edges, shards_per_edge)
    return [np.concatenate([shards[s] for s in mine]) for mine in dealt]


def _by_dirichlet(labels: Floats, edges: int, concentration: float, rng: np.random.Generator) -> list[Integers]:
    """Each label's rows are shared out in proportions drawn from a Dirichlet law; the smaller, the more uneven."""
    if not concentration > 0:
        raise BadData(f"The Dirichlet concentration must be positive; came {concentration}.")
    parts: list[list[Integers]] = [[] for _ in range(edges)]
    for value in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == value))
        cuts = np.floor(np.cumsum(rng.dirichlet(np.full(edges, concentration)))[:-1] * rows.size).astype(np.int64)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.append(piece)
    return _no_edge_empty([np.concatenate(part) for part in parts])


def _no_edge_empty(parts: list[Integers]) -> list[Integers]:
    for i, part in enumerate(parts):
        if part.size == 0:
            richest = max(range(len(parts)), key=lambda j: parts[j].size)
            parts[i], parts[richest] = parts[richest][-1:], parts[richest][:-1]
    return parts
