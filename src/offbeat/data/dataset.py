"""A named set before it is shared out: one table, what is usually done to it, and where it comes from; or pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offbeat.data.labels import Task
from offbeat.data.matrix import Flags
from offbeat.data.preparation import AS_IS, Preparation
from offbeat.data.table import Table


@dataclass(frozen=True)
class DataSet:
    """`preparations` are the named ways to prepare it, `usual` the one taken when none is asked for.

    `test` marks the official test rows, where the set has such; `test_rows` is how many to draw otherwise, where a
    publication fixes the number. `centre_labels`: a regression target far from zero, centred by its training mean.
    """

    name: str
    about: str
    table: Table = field(repr=False)
    task: Task
    preparations: Mapping[str, Preparation] = field(default_factory=lambda: {"plain": AS_IS})
    usual: str = "plain"
    test: Flags | None = field(default=None, repr=False)
    test_rows: int | None = None
    centre_labels: bool = False


@dataclass(frozen=True)
class Images:
    """One row per picture, flattened, float32 in [0, 1]; `shape` gives its form back. Labels are 0, 1, ..."""

    name: str
    x_train: NDArray[np.float32] = field(repr=False)
    y_train: NDArray[np.int64] = field(repr=False)
    x_test: NDArray[np.float32] = field(repr=False)
    y_test: NDArray[np.int64] = field(repr=False)
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    source: str
