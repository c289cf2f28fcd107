"""Compiled passes of the centralised solver: one row a step, dense or lazily sparse, or batches through a block."""

import time
from typing import Any, Protocol

import numpy as np
import scipy.sparse
from numba import types
from numpy.typing import NDArray

from offbeat.learning import metric as metrics
from offbeat.learning.blocks import make_block
from offbeat.learning.kernels import BLOCK, INT, READ, REAL, WRITE, compiled, given
from offbeat.learning.losses import Loss, derivative_of
from offbeat.learning.penalties import L2, NONCONVEX, Penalty, after_penalty, penalty_slope
from offbeat.learning.sampling import Schedule
from offbeat.learning.sparse import PENALTY_OWED_MOST, SCALE_LEAST, SHIFT_MOST
from offbeat.learning.sparse_kernels import COLUMNS, OFFSETS, PAIRS_OUT, fold, unfold
from offbeat.learning.steps import decayed

Floats = NDArray[np.float64]
SVRG, SAGA, SGD = 0, 1, 2
CODES = {"svrg": SVRG, "saga": SAGA, "sgd": SGD}
ORDER = given(types.int64)
NONCONVEX_CODE = NONCONVEX.code
NO_METRIC = np.empty(0)


class Solver(Protocol):
    def one_pass(self, eta: float) -> float:
        """Go once over the rows; the CPU seconds it took."""
        ...

    def weights(self) -> Floats: ...


def solver(
    X: Any, y: Floats, loss: Loss, penalty: Penalty, strength: float, method: str, batch: int, rng: np.random.Generator
) -> Solver:
    if batch > 1:
        return BatchSolver(X, y, loss, penalty, strength, method, batch, rng)
    if scipy.sparse.issparse(X):
        return SparseRowSolver(X, y, loss, penalty, strength, method, rng)
    return DenseRowSolver(X, y, loss, penalty, strength, method, rng)


@compiled(types.void, BLOCK, READ, ORDER, INT, INT, INT, REAL, REAL, REAL, REAL, INT, WRITE, WRITE, WRITE)
def dense_rows(X, y, order, steps, method, loss, delta, eta, decay, strength, penalty, table, w, mu):  # type: ignore[no-untyped-def]
    """One step for each row in this order."""
    rows, width = X.shape
    accumulate = 1.0 / rows if method == SAGA else 0.0
    for k in range(len(order)):
        i = order[k]
        x = X[i]
        z = 0.0
        for j in range(width):
            z += x[j] * w[j]
        theta = derivative_of(loss, delta, z, y[i])
        r = theta - table[i]
        size = eta / (1.0 + eta * decay * (steps + k)) if method == SGD else eta
        for j in range(width):
            g = r * x[j]
            w[j] -= size * (g + mu[j] + strength * penalty_slope(penalty, w[j]))
            mu[j] += accumulate * g
        if method == SAGA:
            table[i] = theta


@compiled(types.void, BLOCK, READ, INT, REAL, WRITE, WRITE, WRITE)
def dense_snapshot(X, y, loss, delta, w, table, mu):  # type: ignore[no-untyped-def]
    """table = derivatives at w, mu = X^T table / n."""
    rows, width = X.shape
    mu[:] = 0.0
    for i in range(rows):
        x = X[i]
        z = 0.0
        for j in range(width):
            z += x[j] * w[j]
        theta = derivative_of(loss, delta, z, y[i])
        table[i] = theta
        for j in range(width):
            mu[j] += theta / rows * x[j]


class DenseRowSolver:
    def __init__(
        self, X: Any, y: Floats, loss: Loss, penalty: Penalty, strength: float, method: str, rng: np.random.Generator
    ) -> None:
        self._X = np.ascontiguousarray(X, dtype=np.float64)
        self._y = np.ascontiguousarray(y, dtype=np.float64)
        self._loss, self._penalty, self._strength = (loss.code, loss.delta), penalty.code, strength
        self._decay = strength if penalty is L2 else 0.0
        self._method = CODES[method]
        self._rng = rng
        self._steps = 0
        self._w, self._mu = np.zeros(X.shape[1]), np.zeros(X.shape[1])
        self.table = np.zeros(len(y))

    def one_pass(self, eta: float) -> float:
        order = self._rng.permutation(len(self._y))
        began = time.process_time()
        if self._method == SVRG:
            dense_snapshot(self._X, self._y, *self._loss, self._w, self.table, self._mu)
        dense_rows(
            self._X, self._y, order, self._steps, self._method, *self._loss, eta, self._decay, self._strength,
            self._penalty, self.table, self._w, self._mu,
        )  # fmt: skip
        self._steps += len(order)
        return time.process_time() - began

    def weights(self) -> Floats:
        return self._w.copy()


@compiled(
    types.void, OFFSETS, COLUMNS, READ, READ, ORDER, INT, INT, INT, REAL, REAL, REAL, REAL, WRITE, PAIRS_OUT, WRITE,
    fastmath=False,
)  # fmt: skip
def sparse_rows(  # type: ignore[no-untyped-def]
    offsets, columns, values, y, order, steps, method, loss, delta, eta, shrinkage, owing, table, pairs, scalars
):
    """One step for each row in this order, with w = s v + c mu and the nonconvex penalty's debt in `scalars`."""
    accumulate = 1.0 / (len(offsets) - 1) if method == SAGA else 0.0
    s, c, owed = scalars[0], scalars[1], scalars[2]
    for k in range(len(order)):
        i = order[k]
        column, x = columns[offsets[i] : offsets[i + 1]], values[offsets[i] : offsets[i + 1]]
        z = 0.0
        if owed == 0.0:
            by_mu = 0.0
            for t in range(len(column)):
                j = column[t]
                z += x[t] * pairs[j, 0]
                by_mu += x[t] * pairs[j, 1]
            z = s * z + c * by_mu
        else:
            for t in range(len(column)):
                j = column[t]
                z += x[t] * after_penalty(NONCONVEX_CODE, s * pairs[j, 0] + c * pairs[j, 1], owed)
        theta = derivative_of(loss, delta, z, y[i])
        r = theta - table[i]
        if method == SAGA:
            table[i] = theta
        size = eta / (1.0 + eta * shrinkage * (steps + k)) if method == SGD else eta
        debt = size * owing
        if owed + 2.0 * debt > PENALTY_OWED_MOST:
            fold(pairs, s, c, NONCONVEX_CODE, owed, NO_METRIC, debt)
            s, c, owed = 1.0, 0.0, 0.0
        else:
            owed += debt
        s *= 1.0 - size * shrinkage
        c = (1.0 - size * shrinkage) * c - size
        if s < SCALE_LEAST or c < -SHIFT_MOST:
            fold(pairs, s, c, NONCONVEX_CODE, owed, NO_METRIC, 0.0)
            s, c, owed = 1.0, 0.0, 0.0
        to_v = r * (size + accumulate * c) / s
        to_mu = r * accumulate
        for t in range(len(column)):
            j = column[t]
            pairs[j, 0] -= to_v * x[t]
            pairs[j, 1] += to_mu * x[t]
    scalars[0], scalars[1], scalars[2] = s, c, owed


@compiled(types.void, OFFSETS, COLUMNS, READ, READ, INT, REAL, READ, WRITE, PAIRS_OUT, fastmath=False)
def sparse_snapshot(offsets, columns, values, y, loss, delta, w, table, pairs):  # type: ignore[no-untyped-def]
    """table = derivatives at w, pairs = (w, X^T table / n)."""
    rows = len(offsets) - 1
    for j in range(len(w)):
        pairs[j, 0] = w[j]
        pairs[j, 1] = 0.0
    for i in range(rows):
        column, x = columns[offsets[i] : offsets[i + 1]], values[offsets[i] : offsets[i + 1]]
        z = 0.0
        for t in range(len(column)):
            z += x[t] * w[column[t]]
        theta = derivative_of(loss, delta, z, y[i])
        table[i] = theta
        for t in range(len(column)):
            pairs[column[t], 1] += theta / rows * x[t]


class SparseRowSolver:
    def __init__(
        self, X: Any, y: Floats, loss: Loss, penalty: Penalty, strength: float, method: str, rng: np.random.Generator
    ) -> None:
        csr = scipy.sparse.csr_matrix(X, dtype=np.float64)
        self._csr = (csr.indptr.astype(np.int64), csr.indices.astype(np.uint32), np.ascontiguousarray(csr.data))
        self._y = np.ascontiguousarray(y, dtype=np.float64)
        self._loss = loss.code, loss.delta
        self._shrinkage = strength if penalty is L2 else 0.0
        self._owing = strength if penalty is NONCONVEX else 0.0
        self._method = CODES[method]
        self._rng = rng
        self._steps = 0
        self._pairs = np.zeros((csr.shape[1], 2))
        self._scalars = np.array([1.0, 0.0, 0.0])
        self.table = np.zeros(len(y))

    def one_pass(self, eta: float) -> float:
        order = self._rng.permutation(len(self._y))
        began = time.process_time()
        if self._method == SVRG:
            sparse_snapshot(*self._csr, self._y, *self._loss, self.weights(), self.table, self._pairs)
            self._scalars[:] = 1.0, 0.0, 0.0
        sparse_rows(
            *self._csr, self._y, order, self._steps, self._method, *self._loss, eta, self._shrinkage, self._owing,
            self.table, self._pairs, self._scalars,
        )  # fmt: skip
        self._steps += len(order)
        return time.process_time() - began

    def weights(self) -> Floats:
        w = np.empty(len(self._pairs))
        unfold(self._pairs, self._scalars[0], self._scalars[1], NONCONVEX_CODE, self._scalars[2], NO_METRIC, w)
        return w


class BatchSolver:
    """Batches through one block, as a single party that owns everything would."""

    def __init__(
        self, X: Any, y: Floats, loss: Loss, penalty: Penalty, strength: float, method: str, batch: int,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self._block = make_block(X, penalty=penalty, strength=strength, method=method)
        self._y, self._loss = np.ascontiguousarray(y, dtype=np.float64), loss
        self._decay = strength if method == "sgd" and penalty is L2 else 0.0
        self._method = method
        self._schedule = Schedule(len(y), batch, int(rng.integers(2**32)))
        self._steps = 0

    def begin_at(self, weights: Floats) -> None:
        self._block.set_weights(np.append(weights, 0.0)[None, :])

    def one_pass(self, eta: float, snapshot: bool = True, metric: str = metrics.NONE) -> float:
        began = time.process_time()
        if self._method == "svrg" and snapshot:
            self._take_snapshot(metric)
        block, y, derivative = self._block, self._y, self._loss.derivative
        for _ in range(self._schedule.blocks_a_pass):
            start, stop = self._schedule.block(self._steps)
            theta = derivative(block.share(start, stop), y[start:stop])
            weight = (stop - start) / self._schedule.whole if self._method == "sgd" else 1.0
            block.step(start, stop, theta, weight * decayed(eta, self._decay, self._steps))
            self._steps += 1
        return time.process_time() - began

    def _take_snapshot(self, metric: str) -> None:
        rows = len(self._y)
        table = self._loss.derivative(self._block.share(0, rows), self._y)
        self._block.refresh(0, rows, table)
        if metric != metrics.NONE:
            assert self._loss.second_from_derivative is not None, f"{self._loss.name} does not tell its curvature"
            self._block.step_by_curvature(self._loss.second_from_derivative(table)[None, :], metric)

    def weights(self) -> Floats:
        return self._block.weights()[0, :-1]
