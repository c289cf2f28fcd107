"""Time series of the same stays at several clients, each with its own measurements."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Flags, Integers

Cube = NDArray[np.float32]
"""(stays, steps, measurements)"""

LIMIT = 5.0  # z-scores beyond are typing errors or extreme; either way the end of the scale says enough


@dataclass(frozen=True)
class Series:
    """By client: values on a fixed grid (filled and standardised) and masks (1 where something was measured).

    y is 0 or 1. `stacked` puts values and masks side by side, which is what a recurrent network takes.
    """

    name: str
    clients: tuple[str, ...]
    measurements: Mapping[str, tuple[str, ...]]
    values_train: Mapping[str, Cube] = field(repr=False)
    masks_train: Mapping[str, Cube] = field(repr=False)
    values_test: Mapping[str, Cube] = field(repr=False)
    masks_test: Mapping[str, Cube] = field(repr=False)
    y_train: Integers = field(repr=False)
    y_test: Integers = field(repr=False)
    ids_train: NDArray[Any] = field(repr=False)
    ids_test: NDArray[Any] = field(repr=False)
    source: str

    def stacked(self, client: str, test: bool = False) -> Cube:
        values, masks = (self.values_test, self.masks_test) if test else (self.values_train, self.masks_train)
        return np.concatenate([values[client], masks[client]], axis=2)


def build_series(
    name: str,
    raw: Mapping[str, Cube],
    measurements: Mapping[str, tuple[str, ...]],
    y: Integers,
    ids: NDArray[Any],
    test: Flags,
    source: str,
) -> Series:
    """From raw grids with nan where nothing was measured. Each client fills and scales alone, from its training stays:
    the last value is carried forward, what comes before the first is the training mean (0 after scaling)."""
    masks = {client: np.isfinite(cube).astype(np.float32) for client, cube in raw.items()}
    values = {client: _scaled(_carried(cube), ~test) for client, cube in raw.items()}
    return Series(
        name=name,
        clients=tuple(raw),
        measurements=measurements,
        values_train={client: cube[~test] for client, cube in values.items()},
        masks_train={client: cube[~test] for client, cube in masks.items()},
        values_test={client: cube[test] for client, cube in values.items()},
        masks_test={client: cube[test] for client, cube in masks.items()},
        y_train=y[~test],
        y_test=y[test],
        ids_train=ids[~test],
        ids_test=ids[test],
        source=source,
    )


def _carried(cube: Cube) -> Cube:
    filled = cube.copy()
    for step in range(1, filled.shape[1]):
        missing = np.isnan(filled[:, step])
        filled[:, step][missing] = filled[:, step - 1][missing]
    return filled


def _scaled(cube: Cube, training: Flags) -> Cube:
    seen = cube[training].reshape(-1, cube.shape[2]).astype(np.float64)
    known = np.isfinite(seen)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, seen, 0.0).sum(axis=0) / count
    spread = np.sqrt(np.where(known, (seen - mean) ** 2, 0.0).sum(axis=0) / count)
    scaled = (cube - mean) / np.where(spread > 1e-12, spread, 1.0)
    return np.asarray(np.nan_to_num(np.clip(scaled, -LIMIT, LIMIT), nan=0.0), dtype=np.float32)
