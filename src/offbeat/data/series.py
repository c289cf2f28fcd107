"""Time series of the same stays at several clients, each with its own measurements; and PhysioNet/CinC 2012, set a: two
days in intensive care, as four clients of one hospital would hold them."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.formats import read_all
from offbeat.data.holdout import held_out
from offbeat.data.matrix import Flags, Integers
from offbeat.data.places import set_folder

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


# -- PhysioNet/CinC 2012 ---------------------------------------------------------------------------------------------

HOURS = 48

ICU_CLIENTS: dict[str, tuple[str, ...]] = {
    "monitor": ("HR", "SysABP", "DiasABP", "MAP", "NISysABP", "NIDiasABP", "NIMAP", "Temp", "RespRate"),
    "chemistry": (
        "BUN", "Creatinine", "Glucose", "HCO3", "K", "Na", "Mg", "Albumin", "ALP", "ALT", "AST", "Bilirubin",
        "Cholesterol", "TroponinI", "TroponinT",
    ),
    "blood": ("HCT", "Platelets", "WBC", "Lactate", "pH", "PaCO2", "PaO2", "FiO2", "SaO2", "MechVent"),
    "ward": ("GCS", "Urine", "Weight", "Age", "Gender", "Height", "ICU1", "ICU2", "ICU3", "ICU4"),
}  # fmt: skip
"""Who measures what: bedside monitor, blood chemistry, blood counts and gases, and the ward's chart."""


def physionet2012_set_a(data_dir: str | Path | None = None, seed: int = 0, test_fraction: float = 0.2) -> Series:
    """4,000 stays, hourly means over 48 hours, 41 parameters (the type of unit as four 0/1 columns); y: died there.

    Negative values mean unknown in these files. Admission facts (age, height, ...) are carried over all hours.
    """
    folder = set_folder("physionet2012_set_a", data_dir)
    ids, died = _outcomes(folder / "Outcomes-a.txt.gz")
    grid = _hourly_means(folder / "set-a.csv.xz", ids)
    raw = {client: grid[:, :, [ALL.index(name) for name in names]] for client, names in ICU_CLIENTS.items()}
    return build_series(
        name="physionet2012_set_a",
        raw=raw,
        measurements=ICU_CLIENTS,
        y=died,
        ids=ids,
        test=held_out(ids, seed=seed, fraction=test_fraction),
        source="PhysioNet/CinC 2012 set a (real, 4,000 stays, hourly means over 48 hours at four clients; last value "
        "carried forward, z-scores from each client's training stays, cut at 5)",
    )


ALL = tuple(name for names in ICU_CLIENTS.values() for name in names)


def _outcomes(file: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    import pandas as pd

    frame = pd.read_csv(io.BytesIO(read_all(file))).sort_values("RecordID")
    return frame["RecordID"].to_numpy(np.int64), frame["In-hospital_death"].to_numpy(np.int64)


def _hourly_means(file: Path, ids: NDArray[np.int64]) -> Cube:
    """(stays, hours, parameters), nan where nothing was measured in the hour."""
    import pandas as pd

    frame = pd.read_csv(io.BytesIO(read_all(file)))
    frame = frame[(frame["Value"] >= 0) & frame["RecordID"].isin(ids)]
    unit = frame["Parameter"] == "ICUType"
    names = frame["Parameter"].where(~unit, "ICU" + frame["Value"].astype(int).astype(str))
    column = names.map({name: j for j, name in enumerate(ALL)})
    known = column.notna().to_numpy()
    hour = np.minimum(frame["Time"].str.slice(0, 2).astype(int).to_numpy(), HOURS - 1)
    stay = np.searchsorted(ids, frame["RecordID"].to_numpy(np.int64))
    value = np.where(unit, 1.0, frame["Value"].to_numpy(np.float64))
    shape = (ids.size, HOURS, len(ALL))
    cell = np.ravel_multi_index((stay[known], hour[known], column.to_numpy(np.float64)[known].astype(np.int64)), shape)
    total = np.bincount(cell, weights=value[known], minlength=int(np.prod(shape)))
    count = np.bincount(cell, minlength=int(np.prod(shape)))
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(shape)
    return _known_unit(means).astype(np.float32)


def _known_unit(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """A stay has one type of unit: the other three are known to be 0 from the start."""
    units = [ALL.index(f"ICU{k}") for k in (1, 2, 3, 4)]
    first = means[:, 0, units]
    means[:, 0, units] = np.where(np.isnan(first), 0.0, first)
    return means
