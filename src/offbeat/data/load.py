"""Data sets by name: the real ones where they are found, the generated ones anywhere.

    load_dataset        tables and sparse matrices, and pictures as tables: what vertical problems are cut from
    load_images         pictures as arrays
    load_solids         solids on a grid of cubes
    load_series         time series of four clients
    describe_datasets   what there is, and where

A generated set may be shrunk in its name: `url-shaped@0.05` has a twentieth of the rows. Nothing is ever
replaced silently: a real set that is not found is refused, with the name of the generated one to ask for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from offbeat.data.columns import NumberedColumns
from offbeat.data.dataset import DataSet, Images
from offbeat.data.image_sets import Solids, cifar10_subset, fashion_mnist, mnist, modelnet10_voxel, usps
from offbeat.data.places import STAND_INS, find_set
from offbeat.data.series import Series, physionet2012_set_a
from offbeat.data.shaped import SHAPES, shaped
from offbeat.data.synthetic import credit_like, digits_like, known_logistic, known_ridge
from offbeat.data.synthetic_embeddings import icu_like, solids_like
from offbeat.data.table import Table
from offbeat.data.tabular_sets import (
    RCV1_COLUMNS,
    give_me_some_credit,
    news20_ngrams,
    parkinsons_telemonitoring,
    sgemm_gpu,
    uci_credit_card,
)
from offbeat.errors import BadData
from offbeat.names import did_you_mean

DataDir = str | Path | None

IMAGES: dict[str, Callable[[DataDir], Images]] = {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "usps": usps,
    "cifar10_subset": cifar10_subset,
}

TABLES: dict[str, Callable[[DataDir, int], DataSet]] = {
    "uci_credit_card": lambda where, seed: uci_credit_card(where),
    "give_me_some_credit": lambda where, seed: give_me_some_credit(where),
    "news20_ngrams": lambda where, seed: news20_ngrams(where),
    "news20_ngrams_47k": lambda where, seed: news20_ngrams(where, columns=RCV1_COLUMNS),
    "news20_ngrams_by_date": lambda where, seed: news20_ngrams(where, by_date=True),
    "sgemm_gpu": lambda where, seed: sgemm_gpu(where),
    "parkinsons_telemonitoring": lambda where, seed: parkinsons_telemonitoring(where, seed),
    "parkinsons_telemonitoring_high": lambda where, seed: parkinsons_telemonitoring(where, seed, threshold=True),
}

GENERATED: dict[str, Callable[[float, int], DataSet]] = {
    "credit-like": lambda scale, seed: credit_like(max(200, round(30_000 * scale)), seed),
    "known-logistic": lambda scale, seed: known_logistic(seed),
    "known-ridge": lambda scale, seed: known_ridge(seed),
    **{name: partial(shaped, name) for name in SHAPES},
}


def dataset_names() -> tuple[str, ...]:
    """Every name `load_dataset` knows."""
    return (*TABLES, *IMAGES, *GENERATED, "digits-like")


def load_dataset(name: str, data_dir: DataDir = None, seed: int = 0) -> DataSet:
    """A set by name; the seed serves generated sets and those whose split goes by person."""
    base, _, factor = name.partition("@")
    if base in GENERATED:
        return GENERATED[base](_scale(name, factor), seed)
    if base == "digits-like":
        return images_as_dataset(digits_like(max(100, round(3_000 * _scale(name, factor))), seed))
    if factor:
        raise BadData(f"Only generated sets can be shrunk by their name; {base!r} is not one. Use limit_rows.")
    if name in TABLES:
        return TABLES[name](data_dir, seed)
    if name in IMAGES:
        return images_as_dataset(load_images(name, data_dir))
    if name in ("modelnet10_voxel", "solids-like", "physionet2012_set_a", "icu-like"):
        raise BadData(f"{name!r} is no table: load it with load_solids or load_series, for methods with embeddings.")
    raise BadData(f"There is no data set {name!r}. {did_you_mean(name, dataset_names())}")


def load_images(name: str, data_dir: DataDir = None, seed: int = 0) -> Images:
    """Pictures by name: mnist, fashion_mnist, usps, cifar10_subset, or the generated digits-like."""
    if name == "digits-like":
        return digits_like(seed=seed)
    if name not in IMAGES:
        raise BadData(f"There is no set of pictures {name!r}. {did_you_mean(name, (*IMAGES, 'digits-like'))}")
    return IMAGES[name](data_dir)


def load_solids(name: str, data_dir: DataDir = None, seed: int = 0) -> Solids:
    """modelnet10_voxel, or the generated solids-like."""
    if name == "solids-like":
        return solids_like(seed=seed)
    if name != "modelnet10_voxel":
        raise BadData(f"There is no set of solids {name!r}. {did_you_mean(name, ('modelnet10_voxel', 'solids-like'))}")
    return modelnet10_voxel(data_dir)


def load_series(name: str, data_dir: DataDir = None, seed: int = 0) -> Series:
    """physionet2012_set_a, or the generated icu-like; the seed chooses the test stays."""
    if name == "icu-like":
        return icu_like(seed=seed)
    if name != "physionet2012_set_a":
        raise BadData(f"There are no time series {name!r}. {did_you_mean(name, ('physionet2012_set_a', 'icu-like'))}")
    return physionet2012_set_a(data_dir, seed)


def images_as_dataset(images: Images) -> DataSet:
    """One column per pixel (and colour), the official test rows at the end."""
    features = np.concatenate([images.x_train, images.x_test]).astype(np.float64)
    rows = features.shape[0]
    table = Table(
        ids=np.arange(rows, dtype=np.int64),
        columns=NumberedColumns(range(features.shape[1]), "pixel"),
        features=features,
        labels=np.concatenate([images.y_train, images.y_test]).astype(np.float64),
        name=images.name,
    )
    test = np.arange(rows) >= images.x_train.shape[0]
    return DataSet(name=images.name, about=images.source, table=table, task="multiclass", test=test)


def _scale(name: str, factor: str) -> float:
    try:
        scale = float(factor) if factor else 1.0
    except ValueError:
        scale = -1.0
    if not 0 < scale <= 1:
        raise BadData(f"After '@' a set's name carries a factor in (0, 1], as in 'url-shaped@0.05'; came {name!r}.")
    return scale


# -- what there is -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Described:
    """One line of `offbeat data`. `where`: the folder it was found in, `generated`, or `not found`."""

    name: str
    rows: int
    columns: int
    task: str
    where: str
    stands_in_for: str = ""


SIZES: dict[str, tuple[int, int, str, str]] = {
    "uci_credit_card": (30_000, 23, "classification", ""),
    "give_me_some_credit": (120_269, 10, "classification", ""),
    "news20_ngrams": (18_846, 1_403_214, "classification", "news20.binary; its first 47,236 columns rcv1"),
    "sgemm_gpu": (241_600, 14, "regression", "YearPredictionMSD"),
    "parkinsons_telemonitoring": (5_875, 19, "regression", "pd_speech_features"),
    "mnist": (70_000, 784, "10 classes", ""),
    "fashion_mnist": (70_000, 784, "10 classes", ""),
    "usps": (9_298, 256, "10 classes", ""),
    "cifar10_subset": (16_000, 3_072, "10 classes", "CIFAR-10"),
    "modelnet10_voxel": (4_899, 27_000, "10 classes", "ModelNet40"),
    "physionet2012_set_a": (4_000, 41, "time series", "MIMIC-III in-hospital mortality"),
}


def describe_datasets(data_dir: DataDir = None) -> list[Described]:
    """All sets, real ones first, with where each was found. Looks for files and reads none."""
    rows = []
    for name, (count, columns, task, stands_in_for) in SIZES.items():
        folder = find_set(name, data_dir)
        rows.append(Described(name, count, columns, task, str(folder) if folder else "not found", stands_in_for))
    rows.append(Described("credit-like", 30_000, 23, "classification", "generated", _replaces("credit-like")))
    for name, shape in SHAPES.items():
        task = "regression" if shape.positive is None else "classification"
        rows.append(Described(name, shape.rows, shape.columns, task, "generated", name.removesuffix("-shaped")))
    rows.append(Described("digits-like", 3_500, 784, "10 classes", "generated", _replaces("digits-like")))
    rows.append(Described("solids-like", 500, 27_000, "5 classes", "generated", _replaces("solids-like")))
    rows.append(Described("icu-like", 800, 9, "time series", "generated", _replaces("icu-like")))
    rows.append(Described("known-logistic", 400, 24, "classification", "generated"))
    rows.append(Described("known-ridge", 400, 24, "regression", "generated", _replaces("known-ridge")))
    return rows


def _replaces(stand_in: str) -> str:
    return ", ".join(name for name, instead in STAND_INS.items() if instead == stand_in)
