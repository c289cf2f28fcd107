"""SGD, SVRG and SAGA as gradient estimators over one block, with scalars in the place of gradients.

For a linear model the gradient of row i in a block is theta_i x_i, so what a method must remember of a row is the
scalar theta_i alone: n numbers instead of n vectors, and every party can keep them for its own block. A direction turns
the derivatives theta of some rows into the *residual* that `Block.step` is to use, with b rows in the batch,

    w -= eta (X_b^T residual / b + mu + strength penalty'(w));     mu += accumulate X_b^T residual.

The penalty stays outside of the tables, at the current weights: the two snapshot terms of SVRG cancel exactly.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offbeat.learning import kernels
from offbeat.learning.blocks import Block
from offbeat.learning.ranges import refuse_length, refuse_rows

Floats = NDArray[np.float64]


class Direction(Protocol):
    @property
    def accumulate(self) -> float:
        """How much of X_b^T residual the mean gradient takes up."""
        ...

    def residual(self, start: int, stop: int, theta: Floats) -> Floats:
        """What `Block.step` is to use for these derivatives."""
        ...

    def step(self, block: Block, start: int, stop: int, theta: Floats, eta: float) -> None:
        """The residual and the block's step in one call."""
        ...

    def snapshot(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Sgd:
    """v = (1/b) sum_I theta_i x_i + R(w). Robbins and Monro (1951); AFSGD-VP, Algorithm 3; VFB2-SGD."""

    accumulate = 0.0

    def residual(self, start: int, stop: int, theta: Floats) -> Floats:
        return theta

    def step(self, block: Block, start: int, stop: int, theta: Floats, eta: float) -> None:
        block.step(start, stop, theta, eta)

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class Svrg:
    """v = (1/b) sum_I (theta_i - theta_i^s) x_i + G^s + R(w), G^s = X^T theta^s / n in the block's mean gradient.

    Johnson and Zhang (2013); AFSVRG-VP; VFB2-SVRG. The table theta^s and G^s must come from one frozen point, which may
    be any point: whoever adopts a table sets the block's mean gradient with it.
    """

    accumulate = 0.0

    def __init__(self, table: Floats) -> None:
        self.adopt(table)

    def adopt(self, table: Floats) -> None:
        """Correct against this snapshot from now on."""
        self.table = np.array(table, dtype=np.float64)

    def residual(self, start: int, stop: int, theta: Floats) -> Floats:
        _check(start, stop, theta, self.table)
        difference = np.empty(len(theta))
        kernels.correct(self.table, start, theta, False, difference)
        return difference

    def step(self, block: Block, start: int, stop: int, theta: Floats, eta: float) -> None:
        block.corrected_step(start, stop, theta, self.table, False, eta)

    def snapshot(self) -> dict[str, Any]:
        return {"table": self.table.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.adopt(state["table"])


class Saga:
    """v = (1/b) sum_I (theta_i - a_i) x_i + A + R(w); then A += (1/n) sum_I (theta_i - a_i) x_i and a_i = theta_i.

    Defazio, Bach and Lacoste-Julien (2014); AFSAGA-VP; VFB2-SAGA. `residual` exchanges the table entries, so each of
    its results must reach the block exactly once for A = X^T a / n to hold. Zeros are a valid start: a = 0, A = 0.
    """

    def __init__(self, table: Floats) -> None:
        self.table = np.array(table, dtype=np.float64)

    @property
    def accumulate(self) -> float:
        return 1.0 / len(self.table)

    def residual(self, start: int, stop: int, theta: Floats) -> Floats:
        _check(start, stop, theta, self.table)
        difference = np.empty(len(theta))
        kernels.correct(self.table, start, theta, True, difference)
        return difference

    def step(self, block: Block, start: int, stop: int, theta: Floats, eta: float) -> None:
        block.corrected_step(start, stop, theta, self.table, True, eta, 1.0 / len(self.table))

    def snapshot(self) -> dict[str, Any]:
        return {"table": self.table.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.table = np.array(state["table"], dtype=np.float64)


def step(block: Block, direction: Direction, start: int, stop: int, theta: Floats, eta: float) -> None:
    """One step of the block from the derivatives of rows start..stop."""
    direction.step(block, start, stop, theta, eta)


def _check(start: int, stop: int, theta: Floats, table: Floats) -> None:
    if not 0 <= start < stop <= len(table):
        refuse_rows(start, stop, len(table))
    if len(theta) != stop - start:
        refuse_length("derivatives", len(theta), stop - start)
