"""Sparse sets with the shape of well-known ones: rows, columns, non-zeros per row, power-law columns.

Only the shape is theirs; every value is generated, and every name ends in `-shaped`.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from offbeat.data.columns import NumberedColumns
from offbeat.data.dataset import DataSet
from offbeat.data.matrix import Csr, Floats, row_norms, scale_rows
from offbeat.data.table import Table
from offbeat.errors import BadData
from offbeat.names import did_you_mean


@dataclass(frozen=True)
class Shape:
    """`knee` is where the power law of column frequencies begins; `positive` the share of +1 labels; `informative` the
    share of column pairs that lean with the label."""

    rows: int
    columns: int
    row_nonzeros: int
    knee: float
    positive: float | None  # None: regression
    binary: bool = False
    informative: float = 0.15


SHAPES = {
    "rcv1-shaped": Shape(697_641, 47_236, 74, knee=60, positive=0.525),
    "news20-shaped": Shape(19_996, 1_355_191, 455, knee=100, positive=0.5),
    "url-shaped": Shape(2_396_130, 3_231_961, 116, knee=60, positive=0.33, binary=True, informative=0.5),
    "webspam-shaped": Shape(350_000, 16_609_143, 3_728, knee=3_000, positive=0.61),
    "e2006-shaped": Shape(19_395, 150_360, 1_241, knee=600, positive=None),
}

NONZEROS_MAX = 300_000_000  # some 10 GiB while it is made
STRENGTH = 0.5  # how far an informative pair of columns leans
FLIPPED = 0.02  # share of labels that are wrong


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
    if rows * shape.row_nonzeros > NONZEROS_MAX:
        fits = NONZEROS_MAX / (shape.rows * shape.row_nonzeros)
        raise BadData(
            f"{name} at scale {scale:g} has about {rows * shape.row_nonzeros:,} non-zeros, more than the "
            f"{NONZEROS_MAX:,} that are made in memory. Shrink it: '{name}@{fits:.2g}' fits."
        )
    labels, leaning = _labels(shape, rows, rng)
    features = _sparse_rows(shape, rows, columns, leaning, rng)
    table = Table(np.arange(rows, dtype=np.int64), NumberedColumns(range(columns)), features, labels, name)
    return DataSet(
        name=name,
        about=f"{name} (generated, seed {seed}, scale {scale:g}: {rows:,} rows, {columns:,} columns, "
        f"{features.nnz / rows:.0f} non-zeros a row, rows of norm 1)",
        table=table,
        task="regression" if shape.positive is None else "classification",
        centre_labels=shape.positive is None,
    )


def _sparse_rows(shape: Shape, rows: int, columns: int, leaning: Floats, rng: np.random.Generator) -> Csr:
    """Draw column ranks from a law falling as 1/(knee + rank), repeats merged; lengths vary as documents do."""
    knee = min(shape.knee, columns / 20)
    draws = _draws_for(shape.row_nonzeros, columns, knee)
    lengths = np.maximum(1, rng.lognormal(-0.125, 0.5, size=rows) * draws).astype(np.int64)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    drawn = rng.random(int(indptr[-1]), dtype=np.float32)
    ranks = np.minimum(knee * np.expm1(drawn * np.log1p(columns / knee)), columns - 1).astype(np.int32)
    known = _informative_pairs(shape.informative, columns // 2, rng)
    indices = _leaned(ranks, known, np.repeat(leaning.astype(np.float32), lengths), rng)
    pattern = sp.csr_matrix((np.ones(indices.size), indices, indptr), shape=(rows, columns))
    pattern.sum_duplicates()
    weights = np.ones(pattern.nnz) if shape.binary else _weights(pattern, rng)
    features = sp.csr_matrix((weights, pattern.indices, pattern.indptr), shape=(rows, columns))
    scaled = scale_rows(features, 1.0 / row_norms(features))
    assert not isinstance(scaled, np.ndarray)
    return scaled


def _informative_pairs(share: float, pairs: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """How far each pair of neighbouring columns leans with the label, and which way; 0 for most."""
    return np.where(rng.random(pairs) < share, STRENGTH * rng.choice([-1, 1], size=pairs), 0).astype(np.float32)


def _leaned(
    ranks: NDArray[np.int32], known: NDArray[np.float32], leaning: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.int32]:
    """A row that leans one way takes an informative pair's first column more often than its second."""
    pair = np.minimum(ranks // 2, known.size - 1)
    first = rng.random(ranks.size, dtype=np.float32) < 0.5 + 0.5 * known[pair] * leaning
    return np.asarray(2 * pair + ~first, dtype=np.int32)


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


def _labels(shape: Shape, rows: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """(label, leaning): which way a row's columns lean decides its label, up to a little noise."""
    if shape.positive is None:
        leaning = rng.uniform(-1, 1, size=rows)
        return -3.5 + 0.9 * leaning + 0.2 * rng.standard_normal(rows), leaning
    leaning = np.where(rng.random(rows) < shape.positive, 1.0, -1.0)
    return np.where(rng.random(rows) < FLIPPED, -leaning, leaning), leaning
