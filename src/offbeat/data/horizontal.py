"""Data of a horizontal problem: the same columns at every edge, different samples at each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.data.labels import Task, encode_labels
from offbeat.data.load import DataDir, load_dataset
from offbeat.data.matrix import Floats, Matrix, as_matrix, take_rows
from offbeat.data.prepare import Fitted
from offbeat.data.split import Parties, split_rows
from offbeat.errors import BadData
from offbeat.names import counted


@dataclass(frozen=True)
class HorizontalData:
    """`edges[name]` is (X, y) of that edge. y as in `VerticalData`; the test rows are nobody's, for evaluation."""

    edges: Mapping[str, tuple[Matrix, Floats]] = field(repr=False)
    x_test: Matrix = field(repr=False)
    y_test: Floats = field(repr=False)
    task: Task
    classes: tuple[Any, ...] | None
    source: str
    notes: tuple[str, ...] = ()
    fitted: Fitted | None = field(default=None, repr=False)
    """How rows are prepared, where sites bring files: by what was said in advance."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.edges)

    @property
    def rows(self) -> dict[str, int]:
        return {name: int(y.size) for name, (_, y) in self.edges.items()}


def horizontal_from_arrays(
    x: Any,
    y: Any,
    x_test: Any,
    y_test: Any,
    edges: Parties,
    how: str = "iid",
    seed: int = 0,
    *,
    task: Task = "multiclass",
    shards_per_edge: int = 2,
    concentration: float = 0.5,
    source: str = "arrays in memory",
) -> HorizontalData:
    """Share the rows out over the edges: `iid`, `shards` by label, or `dirichlet` by label."""
    features, features_test = as_matrix(x), as_matrix(x_test)
    labels, classes = encode_labels(np.concatenate([np.asarray(y), np.asarray(y_test)]), task, "y")
    rows = int(features.shape[0])
    if labels.size != rows + features_test.shape[0] or np.asarray(y).size != rows:
        raise BadData(
            f"There are {rows} rows with {np.asarray(y).size} labels and {features_test.shape[0]} test rows with "
            f"{np.asarray(y_test).size}."
        )
    if features.shape[1] != features_test.shape[1]:
        raise BadData(f"The edges have {counted(features.shape[1], 'column')}, the test rows {features_test.shape[1]}.")
    rng = np.random.default_rng(seed)
    parts = split_rows(labels[:rows], edges, rng, how, shards_per_edge, concentration)
    return HorizontalData(
        edges={edge: (take_rows(features, mine), labels[:rows][mine]) for edge, mine in parts.items()},
        x_test=features_test,
        y_test=labels[rows:],
        task=task,
        classes=classes,
        source=f"{source}; {rows:,} rows over {len(parts)} edges "
        f"({_how(how, shards_per_edge, concentration)}, seed {seed}).",
    )


def horizontal_from_dataset(
    name: str,
    edges: Parties,
    how: str = "iid",
    data_dir: DataDir = None,
    seed: int = 0,
    *,
    shards_per_edge: int = 2,
    concentration: float = 0.5,
    limit_rows: int | None = None,
) -> HorizontalData:
    """A named set with an official test part (pictures have one), its training rows shared out over the edges.

    `limit_rows` keeps so many training rows, drawn by the seed. Columns are taken as they are: pixels are in [0, 1].
    """
    data = load_dataset(name, data_dir, seed)
    if data.test is None or data.table.labels is None:
        raise BadData(f"{name!r} has no test rows of its own; use horizontal_from_arrays with rows of your choice.")
    kept = np.flatnonzero(~data.test)
    if limit_rows is not None and limit_rows < kept.size:
        kept = np.sort(np.random.default_rng([seed, 1]).permutation(kept)[:limit_rows])
    return horizontal_from_arrays(
        take_rows(data.table.features, kept),
        data.table.labels[kept],
        take_rows(data.table.features, data.test),
        data.table.labels[data.test],
        edges,
        how,
        seed,
        task=data.task,
        shards_per_edge=shards_per_edge,
        concentration=concentration,
        source=data.about,
    )


def _how(how: str, shards_per_edge: int, concentration: float) -> str:
    return {
        "iid": "rows at random",
        "shards": f"{shards_per_edge} shards of sorted labels each",
        "dirichlet": f"labels by a Dirichlet law of concentration {concentration:g}",
    }[how]
