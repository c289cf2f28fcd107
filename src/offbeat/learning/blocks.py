"""A party's block: its columns of every row, its weights, and the arithmetic of one step on them.

`make_block` chooses between `DenseBlock` (feature-major floats) and `SparseBlock` (CSR rows, lazily kept weights);
both do exactly what `Block` says, and the tests hold one against the other.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from offbeat.errors import BadData, BadJob
from offbeat.learning import kernels
from offbeat.learning.dense import DenseBlock
from offbeat.learning.losses import Loss
from offbeat.learning.penalties import Penalty

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Columns = NDArray[np.uint32]
Gathered = tuple[Columns | None, Floats]
"""The weights a job will need: one for each of these columns (or, for None, one for each of the block's)."""


class Block(Protocol):
    """One party's coordinates. Rows are asked for as contiguous ranges; `point` None means the current weights."""

    rows: int
    width: int
    nonzeros_total: int

    @property
    def version(self) -> int:
        """How many steps this block has taken."""
        ...

    def nonzeros(self, start: int, stop: int) -> int:
        """How many stored values these rows have."""
        ...

    def share(self, start: int, stop: int, point: Floats | None = None) -> Floats:
        """This block's part of the products of these rows with the model: rows @ w."""
        ...

    def masked_share(
        self, start: int, stop: int, point: Floats | None, mask: Words, at: int, scale: float, limit: float
    ) -> Words:
        """round(share * scale) + mask[at:] modulo 2^64, or OutOfRange unless every |share| < limit."""
        ...

    def encoded_share(self, start: int, stop: int, point: Floats | None, scale: float, limit: float) -> Words:
        """The same without a mask."""
        ...

    def step(self, start: int, stop: int, residual: Floats, eta: float, accumulate: float = 0.0) -> None:
        """With g = rows^T residual: w -= eta M (g / b + mu + strength penalty'(w)); then mu += accumulate g. M is 1
        unless steps are divided by the curvature."""
        ...

    def corrected_step(
        self, start: int, stop: int, theta: Floats, table: Floats, exchange: bool, eta: float, accumulate: float = 0.0
    ) -> None:
        """The step for residual = theta - table[start:stop], in one call; with `exchange` the table takes theta."""
        ...

    def weights(self) -> Floats:
        """A fresh copy."""
        ...

    def set_weights(self, weights: Floats) -> None: ...

    def mean_gradient(self) -> Floats:
        """A fresh copy of mu, the mean gradient that SVRG and SAGA step along."""
        ...

    def set_mean_gradient(self, mean: Floats) -> None: ...

    def add_gradient(self, start: int, stop: int, theta: Floats, into: Floats) -> None:
        """into += rows^T theta / (number of all rows): pass by pass this gives the full gradient."""
        ...

    def step_by_curvature(self, second: Floats) -> None:
        """Divide each coordinate's steps by its curvature from now on, with this second derivative of the loss in each
        row: see `metric`. The weights and the mean gradient stay."""
        ...

    def in_step_metric(self, gradient: Floats) -> Floats:
        """The gradient as a step would follow it, where coordinates have a metric of their own."""
        ...

    def smoothness(
        self, loss_curvature: float, rows_at_most: int = 1024, iterations: int = 15, *, rng: np.random.Generator
    ) -> tuple[float, float]:
        """(largest eigenvalue of curvature X^T X / n, estimated on some rows; curvature * largest row norm^2)."""
        ...

    def row_norms_squared(self, start: int, stop: int) -> Floats:
        """The squared norm of each of these rows within the block, in the metric of the steps."""
        ...

    def gather(self, start: int, stop: int) -> Gathered:
        """What a share job must know of the weights as they are now."""
        ...

    def share_job(self, start: int, stop: int, gathered: Gathered) -> Callable[[], Floats]:
        """A job for another thread that returns the share at the gathered weights."""
        ...

    def gradient_job(self, start: int, stop: int, residual: Floats) -> Callable[[], tuple[Columns | None, Floats]]:
        """A job for another thread that returns rows^T residual, on the columns it touches."""
        ...

    def apply_gradient(
        self, columns: Columns | None, values: Floats, batch_rows: int, eta: float, accumulate: float = 0.0
    ) -> None:
        """The step that such a gradient means, from `batch_rows` rows. The block takes `values` over: a later job may
        write to them."""
        ...

    def snapshot(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


def make_block(X: Any, *, penalty: Penalty, strength: float, intercept: bool = False) -> Block:
    """The block over X (rows x columns: a numpy array or a scipy sparse matrix), with all weights zero; with an
    intercept, one more coordinate at its end.

    X must not be written to afterwards: what already has the right form is used as it is.
    """
    if not (np.isfinite(strength) and strength >= 0.0):
        raise BadJob(f"Expected a penalty strength of 0 or more; got {strength}.")
    if intercept:
        from offbeat.learning.intercept import BlockWithIntercept

        return BlockWithIntercept(make_block(X, penalty=penalty, strength=strength), penalty, float(strength))
    if scipy.sparse.issparse(X):
        from offbeat.learning.sparse import SparseBlock

        return SparseBlock(X, penalty, float(strength))
    X = np.asarray(X)
    if X.ndim != 2:
        raise BadData(f"Expected a table of rows and columns; got an array of shape {X.shape}.")
    return DenseBlock(X, penalty, float(strength))


def finish_product(words: Words, own: Floats, labels: Floats, loss: Loss, scale: float) -> tuple[Floats, Floats]:
    """At the label holder: (z, theta), where z is the decoded sum of shares plus its own share."""
    if not len(words) == len(own) == len(labels):
        raise ValueError(f"Lengths differ: {len(words)} words, {len(own)} own shares, {len(labels)} labels.")
    z = np.empty(len(words))
    theta = np.empty(len(words))
    kernels.finish(words, own, labels, loss.code, scale, z, theta)
    return z, theta
