"""Sparse sets with the shape of well-known ones: rows, columns, non-zeros per row, power-law columns.

Only the shape is theirs; every value is generated, and every name ends in `-shaped`.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from offbeat.data.dataset import DataSet
from offbeat.data.matrix import Csr, Floats, row_norms, scale_rows
from offbeat.data.names import NumberedColumns, did_you_mean
from offbeat.data.table import Table
from offbeat.errors import BadData


@dataclass(frozen=True)
class Shape:
    """`knee` is where the power law of column frequencies begins; `positive` the share of +1 labels."""

    rows: int
    columns: int
    row_nonzeros: int
    knee: float
    positive: float | None  # None: regression
    binary: bool = False


SHAPES = {
    "rcv1-shaped": Shape(697_641, 47_236, 74, knee=60, positive=0.525),
    "news20-shaped": Shape(19_996, 1_355_191, 455, knee=100, positive=0.5),
    "url-shaped": Shape(2_396_130, 3_231_961, 116, knee=60, positive=0.33, binary=True),
    "webspam-shaped": Shape(350_000, 16_609_143, 3_728, knee=3_000, positive=0.61),
    "e2006-shaped": Shape(19_395, 150_360, 1_241, knee=600, positive=None),
}


def shaped(name: str, scale: float = 1.0, seed: int = 0) -> DataSet:
    """A generated set of that shape. `scale` shrinks the rows, and the columns by its square root, as a vocabulary
    shrinks with its texts; the non-zeros per row stay."""
    if name not in SHAPES:
        raise BadData(f"Unknown shape {name!r}. {did_you_mean(name, SHAPES)}")
    if not 0 < scale <= 1:
        raise BadData(f"The scale of {name} must be in (0, 1]; came {scale}.")
    shape, rng = SHAPES[name], np.random.default_rng(seed)
    rows = max(50, round(shape.rows * scale))
    columns = max(20 * shape.row_nonzeros, round(shape.columns * np.sqrt(scale)))
    features = _sparse_rows(shape, rows, columns, rng)
    labels = _labels(features, shape, rng)
    table = Table(np.arange(rows, dtype=np.int64), NumberedColumns(range(columns)), features, labels, name)
    return DataSet(
        name=name,
        about=f"{name} (generated, seed {seed}, scale {scale:g}: {rows:,} rows, {columns:,} columns, "
        f"{features.nnz / rows:.0f} non-zeros a row, rows of norm 1)",
        table=table,
        task="regression" if shape.positive is None else "classification",
        centre_labels=shape.positive is None,
    )


def _sparse_rows(shape: Shape, rows: int, columns: int, rng: np.random.Generator) -> Csr:
    """Draw column ranks from a law falling as 1/(knee + rank), repeats merged; lengths vary as documents do."""
    knee = min(shape.knee, columns / 20)
    draws = _draws_for(shape.row_nonzeros, columns, knee)
    lengths = np.maximum(1, rng.lognormal(-0.125, 0.5, size=rows) * draws).astype(np.int64)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    drawn = rng.random(int(indptr[-1]), dtype=np.float32)
    indices = np.minimum(knee * np.expm1(drawn * np.log1p(columns / knee)), columns - 1).astype(np.int32)
    pattern = sp.csr_matrix((np.ones(indices.size), indices, indptr), shape=(rows, columns))
    pattern.sum_duplicates()
    weights = np.ones(pattern.nnz) if shape.binary else _weights(pattern, rng)
    features = sp.csr_matrix((weights, pattern.indices, pattern.indptr), shape=(rows, columns))
    scaled = scale_rows(features, 1.0 / row_norms(features))
    assert not isinstance(scaled, np.ndarray)
    return scaled


def _draws_for(wanted: int, columns: int, knee: float) -> float:
    """How many draws leave `wanted` different columns on average."""
    edges = np.unique(np.geomspace(1, columns + 1, 2_000).astype(np.int64)) - 1
    widths = np.diff(edges)
    chance = np.diff(np.log1p(edges / knee) / np.log1p(columns / knee)) / widths
    low, high = float(wanted), 100.0 * wanted
    for _ in range(40):
        middle = (low + high) / 2
        different = np.sum(widths * -np.expm1(middle * np.log1p(-chance)))
        low, high = (middle, high) if different < wanted else (low, middle)
    return high


def _weights(pattern: Csr, rng: np.random.Generator) -> Floats:
    """Something like tf-idf: rarer columns weigh more, repeats a little more."""
    frequency = np.bincount(pattern.indices, minlength=pattern.shape[1])
    rarity = np.log((1.0 + pattern.shape[0]) / (1.0 + frequency)) + 0.1
    return np.asarray(np.log1p(pattern.data) * rarity[pattern.indices] * rng.uniform(0.7, 1.3, size=pattern.nnz))


def _labels(features: Csr, shape: Shape, rng: np.random.Generator) -> Floats:
    """A planted linear model whose weights fade with rarity, so that it can be learned from these rows."""
    frequency = np.bincount(features.indices, minlength=features.shape[1])
    model = rng.standard_normal(features.shape[1]) * np.sqrt(frequency / max(1, int(frequency.max())))
    score = np.asarray(features @ model)
    score = (score - score.mean()) / score.std()
    if shape.positive is None:
        return np.asarray(-3.5 + 0.55 * score + 0.35 * rng.standard_normal(score.size))
    noisy = score + 0.3 * rng.standard_normal(score.size)
    return np.where(noisy > np.quantile(noisy, 1 - shape.positive), 1.0, -1.0)
