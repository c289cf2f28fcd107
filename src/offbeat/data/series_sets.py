"""PhysioNet/CinC 2012, set a: two days in intensive care, as four clients of one hospital would hold them."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offbeat.data.formats import read_all
from offbeat.data.holdout import held_out
from offbeat.data.places import set_folder
from offbeat.data.series import Cube, Series, build_series

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
    raw = {client: grid[:, :, _positions(names)] for client, names in ICU_CLIENTS.items()}
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


def _positions(names: tuple[str, ...]) -> list[int]:
    return [ALL.index(name) for name in names]


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
