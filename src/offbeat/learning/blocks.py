"""A party's block: its columns of every row, its weights, and the arithmetic of one step on them.

`make_block` chooses between `DenseBlock` (feature-major floats) and `SparseBlock` (CSR rows, lazily kept weights);
both do exactly what `Block` says, and the tests hold one against the other.

**Points.** The weights of a block are an array of (outputs, width + 1): the last column is the block's constant, which
only the chair's block moves and which no penalty touches. Where the model has a constant, dense columns are centred
within the block (its `means` are subtracted): columns that add up to one, as those of a category do, then no longer
compete with the constant, and far fewer passes are needed. The model is the same, whatever the means.

**Directions.** SGD, SVRG and SAGA turn the derivatives theta of a batch of b rows into a step,

    residual = theta                        SGD   Robbins and Monro (1951); AFSGD-VP, Algorithm 3; VFB2-SGD
             = theta - table[rows]          SVRG  Johnson and Zhang (2013); AFSVRG-VP; VFB2-SVRG
             = theta - table[rows]          SAGA  Defazio, Bach and Lacoste-Julien (2014); AFSAGA-VP; VFB2-SAGA
    w -= eta M (X_b^T residual / b + mu + strength penalty'(w));    SAGA: mu += X_b^T residual / n, table[rows] = theta

For a linear model the gradient of row i in a block is theta_i x_i, so what a method must remember of a row is the
scalar theta_i alone: n numbers instead of n vectors, and every party keeps them for its own block. mu = X^T table / n
always. The penalty stays outside of the tables, at the current weights.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from offbeat.errors import BadData, BadJob
from offbeat.learning import kernels
from offbeat.learning.class_kernels import finish_classes
from offbeat.learning.dense import DenseBlock, Gradient
from offbeat.learning.losses import Loss
from offbeat.learning.penalties import Penalty
from offbeat.learning.ranges import refuse_length, refuse_number

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
DIRECTIONS = {"sgd": kernels.SGD, "svrg": kernels.SVRG, "saga": kernels.SAGA}
NO_WEIGHTS = np.empty(0)


class Block(Protocol):
    """One party's coordinates. Rows are asked for as contiguous ranges; `point` None means the current weights."""

    rows: int
    width: int
    outputs: int
    nonzeros_total: int
    means: Floats
    penalty: Penalty
    table: Floats
    metric_kind: str

    @property
    def version(self) -> int:
        """How many steps this block has taken."""
        ...

    def nonzeros(self, start: int, stop: int) -> int:
        """How many stored values these rows have."""
        ...

    def share(self, start: int, stop: int, point: Floats | None = None) -> Floats:
        """This block's part of the products of these rows with the model: rows @ w + constant, output by output."""
        ...

    def answer(
        self, start: int, stop: int, point: Floats | None, mask: Words | None, at: int, scale: float, limit: float
    ) -> Words:
        """round(share * scale) + mask[at:] modulo 2^64, or OutOfRange unless every |share| < limit."""
        ...

    def step(self, start: int, stop: int, theta: Floats, eta: float) -> None:
        """One step from the derivatives of these rows, in the block's direction and metric."""
        ...

    def step_along_mean(self, eta: float) -> None:
        """One step along the mean gradient alone: over all rows at once, where that was just adopted."""
        ...

    def residual(self, start: int, stop: int, theta: Floats) -> Floats:
        """What a step from these derivatives would follow; SAGA's table takes them. For lanes: each result must reach
        the block once, through `gradient_job` and `apply_gradient`."""
        ...

    def share_job(self, start: int, stop: int) -> Callable[[], Floats]:
        """A job for another thread that returns the share at the weights as they are now."""
        ...

    def gradient_job(self, start: int, stop: int, residual: Floats) -> Callable[[], Gradient]:
        """A job for another thread that returns rows^T residual, on the columns it touches (None: on all)."""
        ...

    def apply_gradient(self, gradient: Gradient, batch_rows: int, eta: float) -> None:
        """The step that such a gradient means, from `batch_rows` rows."""
        ...

    def weights(self) -> Floats:
        """A fresh copy."""
        ...

    def set_weights(self, weights: Floats) -> None: ...

    def add_to_weights(self, displacement: Floats) -> None: ...

    def mean_gradient(self) -> Floats:
        """A fresh copy of mu, the mean gradient that SVRG and SAGA step along; SGD knows it too, from `refresh`."""
        ...

    def adopt(self, table: Floats, gradient: Floats) -> None:
        """Correct against this table, and the gradient of the mean loss at the same point, from now on."""
        ...

    def refresh(self, start: int, stop: int, theta: Floats) -> None:
        """The table takes these derivatives, and mu the difference; the weights stay."""
        ...

    def add_gradient(self, start: int, stop: int, theta: Floats, into: Floats) -> None:
        """into += rows^T theta / (number of all rows): pass by pass this gives the full gradient."""
        ...

    def move_constant(self, metric: Floats) -> None:
        """What the constant's steps are multiplied by, for each output; 0: it does not move."""
        ...

    def step_by_curvature(self, second: Floats, kind: str) -> None:
        """Multiply steps by the inverse curvature from now on, with this second derivative of the loss in each row
        (outputs x rows): see `metric`. Nothing happens while those have hardly changed."""
        ...

    def in_metric(self, columns: Floats) -> Floats:
        """Vectors over the block's columns and its constant, multiplied by the metric of the first output."""
        ...

    def row_norms_squared(self, start: int, stop: int) -> Floats:
        """The squared norm of each of these rows within the block, in the metric of the steps."""
        ...

    def snapshot(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


def make_block(
    X: Any, *, penalty: Penalty, strength: float, outputs: int = 1, method: str = "svrg", intercept: bool = False
) -> Block:
    """The block over X (rows x columns: a numpy array or a scipy sparse matrix), with all weights zero.

    X must not be written to afterwards: what already has the right form is used as it is.
    """
    if not (np.isfinite(strength) and strength >= 0.0):
        raise BadJob(f"Expected a penalty strength of 0 or more; got {strength}.")
    direction = DIRECTIONS[method]
    if scipy.sparse.issparse(X):
        from offbeat.learning.sparse import SparseBlock

        return SparseBlock(X, penalty, float(strength), outputs=outputs, direction=direction)
    X = np.asarray(X)
    if X.ndim != 2:
        raise BadData(f"Expected a table of rows and columns; got an array of shape {X.shape}.")
    return DenseBlock(X, penalty, float(strength), outputs=outputs, direction=direction, centre=intercept)


def step_along(block: Block, gradient: Floats | None, eta: float) -> None:
    """One step along this gradient, or where it is None along the mean gradient that the block knows."""
    if gradient is None:
        block.step_along_mean(eta)
        return
    known = block.mean_gradient()
    block.adopt(block.table, gradient)
    block.step_along_mean(eta)
    block.adopt(block.table, known)


def with_means(means: Floats, weights: Floats) -> Floats:
    """A block's weights for columns as they are: what was subtracted from them is made up for in the constant."""
    model = weights.copy()
    model[:, -1] -= weights[:, :-1] @ means
    return model


def fixed_point(values: Floats, mask: Words | None, scale: float, limit: float, what: str) -> Words:
    """round(values * scale), plus the mask, modulo 2^64."""
    out = np.empty(len(values), np.uint64)
    if mask is None:
        inside = kernels.encode(values, scale, limit, out)
    elif len(mask) == len(values):
        inside = kernels.encode_under(values, mask, scale, limit, out)
    else:
        refuse_length("a mask", len(mask), len(values))
    if inside != len(values):
        refuse_number(what, limit)
    return out


def finish_product(
    words: Words,
    own: Floats,
    start: int,
    labels: Floats,
    loss: Loss,
    scale: float,
    weights: Floats = NO_WEIGHTS,
    known: Floats | None = None,
) -> tuple[Floats, Floats]:
    """At a label holder: (z, theta), where z is the decoded sum of shares plus its own share. `known`: the curvature of
    these rows at a known point, which a loss that grows needs."""
    if len(words) != len(own):
        raise ValueError(f"Lengths differ: {len(words)} words, {len(own)} own shares.")
    z, theta = np.empty(len(words)), np.empty(len(words))
    if loss.outputs > 1:
        finish_classes(words, own, start, labels, weights, loss.outputs, scale, z, theta)
    else:
        kernels.finish(words, own, start, labels, weights, loss.code, loss.delta, scale, z, theta)
    if known is not None:
        kernels.finish_growing(z, start, labels, weights, known, loss.code, theta)
    return z, theta
