"""A sub-machine: how steep the problem is, measured before the first step.

The step size needs two constants of the pooled data in the metric of the steps: L, the largest eigenvalue of
K = curvature sum_l X_l M_l X_l^T / rows, and L_max, curvature times the largest squared row norm. The sum of the
parties' own largest eigenvalues bounds L from above, up to q times too large. So the chair also measures it on the
first rows, which are a random sample since rows are shuffled once:

    R    a few random vectors of signs over those rows, drawn from a coin that all parties' keys decide together
    K R  one masked sum
    L    the largest ratio |K u|^2 / (u' K u) over the span of R (Rayleigh and Ritz)

and takes the smaller of the two. L_max is the sum of the parties' own largest row norms, over all of their rows: no
outlier is missed. Everything travels in one sum; nobody chooses what is asked.
"""

import numpy as np
from numpy.typing import NDArray

from offbeat.learning.blocks import Block
from offbeat.learning.metric import WHOLE, WHOLE_WIDTH_MOST
from offbeat.learning.steps import Steepness
from offbeat.party.scalars import WORDS_EACH, narrow, widen

Floats = NDArray[np.float64]
ROWS_MOST = 1024
PROBES = 16
MARGIN = 1.25  # the ratio comes from below
POWER_ROWS, POWER_ROUNDS = 8192, 20
SCALARS = 3


def rows_of(block: Block) -> int:
    return min(ROWS_MOST, block.rows)


def length_of(block: Block) -> int:
    return PROBES * rows_of(block) + WORDS_EACH * SCALARS


def signs(coin: bytes, rows: int) -> Floats:
    """The probes: rows x PROBES signs that nobody chose."""
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(coin, "little")))
    return np.where(rng.integers(0, 2, size=(rows, PROBES), dtype=np.int8) == 1, 1.0, -1.0)


def own_part(block: Block, coin: bytes, curvature: float, scale: float) -> Floats:
    """What one party adds to the sum: its part of K R, its largest and its mean row norm."""
    rows = rows_of(block)
    probes = signs(coin, rows)
    images = np.array([_image(block, probes[:, k], curvature) for k in range(PROBES)])
    norms = block.row_norms_squared(0, block.rows)
    steep, whole = _own_smoothness(block), block.metric_kind == WHOLE and block.width <= WHOLE_WIDTH_MOST
    scalars = np.array([curvature * norms.max(initial=0.0), curvature * steep, float(not whole)])
    return np.concatenate((images.ravel(), widen(scalars, scale)))


def _image(block: Block, vector: Floats, curvature: float) -> Floats:
    """curvature X M X^T / rows over the first rows, times a vector over these; of the first output."""
    rows, into = len(vector), np.zeros((block.outputs, block.width + 1))
    block.add_gradient(0, rows, np.tile(vector, block.outputs), into)
    moved = np.zeros_like(into)
    moved[0] = block.in_metric(into[0] * (curvature * block.rows / rows))
    return block.share(0, rows, moved)[:rows]


def _own_smoothness(block: Block) -> float:
    """The largest eigenvalue of X M X^T / rows within a block, by power iteration over some of its rows."""
    rows = min(block.rows, POWER_ROWS)
    vector = np.ones(rows) + 0.01 * np.arange(rows) / rows
    largest = 0.0
    for _ in range(POWER_ROUNDS):
        norm = float(np.linalg.norm(vector))
        if norm == 0.0:
            return 0.0
        vector = _image(block, vector / norm, 1.0)
        largest = max(largest, float(np.linalg.norm(vector)))
    return largest


def constants(total: Floats, block: Block, coin: bytes, scale: float) -> Steepness:
    """From the sum over all parties."""
    rows = rows_of(block)
    images = total[: PROBES * rows].reshape(PROBES, rows).T
    largest_row, bound, plain = narrow(total[PROBES * rows :], scale).tolist()
    probes = signs(coin, rows)
    energy, squared = probes.T @ images, images.T @ images
    energy = (energy + energy.T) / 2.0
    values, vectors = np.linalg.eigh(energy)
    kept = values > 1e-10 * max(float(values[-1]), 1e-300)
    if not kept.any():
        return Steepness(0.0, largest_row, plain > 0.5)
    basis = vectors[:, kept] / np.sqrt(values[kept])
    ratio = float(np.linalg.eigvalsh(basis.T @ squared @ basis)[-1])
    return Steepness(min(MARGIN * ratio, MARGIN * bound), largest_row, plain > 0.5)
