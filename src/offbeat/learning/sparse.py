"""A block of mostly zeros: CSR rows, and weights kept lazily so that a step costs its non-zeros and no more.

How w = s v + c mu makes that possible is told at the head of `sparse_kernels`. The nonconvex penalty has no such closed
form: what it is owed is paid on all columns at once every r steps, r * eta * strength <= 1/4 (at every step, exactly,
where two would pass that). Until then each weight that is read is read as if it had been paid, to second order. The
same goes for the l2 penalty once columns have steps of their own: no common s can then shrink them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from offbeat.errors import BadData
from offbeat.learning import sparse_kernels as kernels
from offbeat.learning.dense import largest_eigenvalue, sized, sized_rows
from offbeat.learning.metric import diagonal_metric, steepest_penalty
from offbeat.learning.penalties import L2, NONCONVEX, Penalty
from offbeat.learning.ranges import check_finite, refuse_length, refuse_rows, refuse_share

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Columns = NDArray[np.uint32]
Gathered = tuple[Columns | None, Floats]

SCALE_LEAST = 1e-8
SHIFT_MOST = 1e6
PENALTY_OWED_MOST = 0.25
WHOLE_FROM = 1 / 3
"""Jobs work on all columns where a batch has at least so many non-zeros a column: streaming over columns that are not
touched is then cheaper than finding out which are."""


class SparseBlock:
    """See `Block`."""

    def __init__(self, X: Any, penalty: Penalty, strength: float) -> None:
        csr = scipy.sparse.csr_matrix(X, dtype=np.float64, copy=False)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        self.rows, self.width = csr.shape
        if self.width >= 2**32:
            raise BadData(f"Expected fewer than 2^32 columns in one block; got {self.width}.")
        self._offsets = csr.indptr.astype(np.int64)
        self._columns = csr.indices.astype(np.uint32)
        self._values = np.ascontiguousarray(csr.data, dtype=np.float64)
        check_finite(self._values)
        self.nonzeros_total = len(self._values)
        self.version = 0
        self._penalty, self._strength = penalty, strength
        self._shrinkage = strength if penalty is L2 else 0.0
        self._owing = strength if penalty is NONCONVEX else 0.0
        self._steepest = 1.0  # second derivative of the penalty, in the metric of the steps
        self._metric = np.empty(0)  # empty: 1 everywhere
        self._stepped = self._values  # in the metric of the steps
        self._pairs = np.zeros((self.width, 2))
        self._s = 1.0
        self._c = 0.0
        self._owed = 0.0
        self._slots: list[NDArray[np.int32]] = []
        self._idle: list[Floats] = []  # gradients that were applied, to be written over
        self._known: Floats | None = None  # the weights of this version, once a job has asked; never written to

    def nonzeros(self, start: int, stop: int) -> int:
        return int(self._offsets[stop] - self._offsets[start])

    # -- shares ------------------------------------------------------------------------------------------------------

    def share(self, start: int, stop: int, point: Floats | None = None) -> Floats:
        self._check_point(start, stop, point)
        z = np.empty(stop - start)
        if point is None:
            csr = (self._offsets, self._columns, self._values, start)
            kernels.lazy_share(*csr, self._pairs, *self._lazy(), z)
        else:
            kernels.plain_share(self._offsets, self._columns, self._values, start, point, z)
        return z

    def masked_share(
        self, start: int, stop: int, point: Floats | None, mask: Words, at: int, scale: float, limit: float
    ) -> Words:
        self._check_point(start, stop, point)
        count = stop - start
        if not 0 <= at <= len(mask) - count:
            refuse_length(f"a mask from word {at} on", len(mask) - at, count)
        out = np.empty(count, np.uint64)
        csr = (self._offsets, self._columns, self._values, start)
        if point is None:
            inside = kernels.lazy_masked(*csr, self._pairs, *self._lazy(), mask, at, scale, limit, out)
        else:
            inside = kernels.plain_masked(*csr, point, mask, at, scale, limit, out)
        if inside != count:
            refuse_share(self.share(start, stop, point), start, scale, limit)
        return out

    def encoded_share(self, start: int, stop: int, point: Floats | None, scale: float, limit: float) -> Words:
        z = self.share(start, stop, point)
        out = np.empty(len(z), np.uint64)
        if kernels.encode(z, scale, limit, out) != len(z):
            refuse_share(z, start, scale, limit)
        return out

    def _check_point(self, start: int, stop: int, point: Floats | None) -> None:
        if not 0 <= start < stop <= self.rows:
            refuse_rows(start, stop, self.rows)
        if point is not None and len(point) != self.width:
            refuse_length("weights", len(point), self.width)

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, start: int, stop: int, residual: Floats, eta: float, accumulate: float = 0.0) -> None:
        self._check(start, stop, residual)
        by_v = self._advance(stop - start, eta, accumulate)
        kernels.lazy_step(self._offsets, self._columns, self._stepped, start, residual, by_v, accumulate, self._pairs)

    def corrected_step(
        self, start: int, stop: int, theta: Floats, table: Floats, exchange: bool, eta: float, accumulate: float = 0.0
    ) -> None:
        self._check(start, stop, theta)
        if len(table) != self.rows:
            refuse_length("a table over the rows", len(table), self.rows)
        by_v = self._advance(stop - start, eta, accumulate)
        csr = (self._offsets, self._columns, self._stepped, start)
        kernels.lazy_corrected_step(*csr, theta, table, exchange, by_v, accumulate, self._pairs)

    def _check(self, start: int, stop: int, residual: Floats) -> None:
        if not 0 <= start < stop <= self.rows:
            refuse_rows(start, stop, self.rows)
        if len(residual) != stop - start:
            refuse_length("derivatives", len(residual), stop - start)

    def _advance(self, batch_rows: int, eta: float, accumulate: float) -> float:
        """Move the two scalars by one step; how much of g the touched v must give up."""
        self._known = None
        debt = eta * self._owing
        if self._steepest * (self._owed + 2.0 * debt) > PENALTY_OWED_MOST:
            self._fold(now=debt)
        else:
            self._owed += debt
        shrink = 1.0 - eta * self._shrinkage
        self._s *= shrink
        self._c = shrink * self._c - eta
        if self._s < SCALE_LEAST or self._c < -SHIFT_MOST:
            self._fold()
        self.version += 1
        return (eta / batch_rows + accumulate * self._c) / self._s

    def _fold(self, now: float = 0.0) -> None:
        kernels.fold(self._pairs, *self._lazy(), now)
        self._s, self._c, self._owed = 1.0, 0.0, 0.0

    def _lazy(self) -> tuple[float, float, int, float, Floats]:
        return self._s, self._c, self._penalty.code, self._owed, self._metric

    # -- weights -----------------------------------------------------------------------------------------------------

    def weights(self) -> Floats:
        w = np.empty(self.width)
        kernels.unfold(self._pairs, *self._lazy(), w)
        return w

    def set_weights(self, weights: Floats) -> None:
        self._known = None
        self._pairs[:, 0] = sized(weights, self.width)
        self._s, self._c, self._owed = 1.0, 0.0, 0.0

    def mean_gradient(self) -> Floats:
        return self._pairs[:, 1] / self._metric if len(self._metric) else self._pairs[:, 1].copy()

    def set_mean_gradient(self, mean: Floats) -> None:
        self._fold()
        self._pairs[:, 1] = self.in_step_metric(sized(mean, self.width))

    def add_gradient(self, start: int, stop: int, theta: Floats, into: Floats) -> None:
        self._check(start, stop, theta)
        csr = (self._offsets, self._columns, self._values, start)
        kernels.sparse_gradient(*csr, theta, 1.0 / self.rows, sized(into, self.width))

    def smoothness(
        self, loss_curvature: float, rows_at_most: int = 1024, iterations: int = 15, *, rng: np.random.Generator
    ) -> tuple[float, float]:
        some = np.sort(rng.choice(self.rows, min(self.rows, rows_at_most), replace=False))
        X = self._csr()[some]
        largest = largest_eigenvalue(
            lambda u: self.in_step_metric(X.T @ (X @ u)) / len(some), self.width, rng, iterations
        )
        return loss_curvature * largest, loss_curvature * float(self.row_norms_squared(0, self.rows).max(initial=0.0))

    def _csr(self) -> scipy.sparse.csr_matrix:
        columns = self._columns.astype(np.int64)
        return scipy.sparse.csr_matrix((self._values, columns, self._offsets), shape=(self.rows, self.width))

    def step_by_curvature(self, second: Floats) -> None:
        squares, mean, weights = np.empty(self.width), self.mean_gradient(), self.weights()
        csr = (self._offsets, self._columns, self._values)
        kernels.sparse_squares(*csr, sized_rows(second, self.rows) / self.rows, squares)
        self.set_weights(weights)
        self._take_metric(diagonal_metric(squares, weights, self._penalty, self._strength))
        self._steepest = steepest_penalty(self._metric, weights, self._penalty)
        self.set_mean_gradient(mean)

    def _take_metric(self, metric: Floats) -> None:
        self._metric, self._stepped = metric, np.empty(len(self._values))
        kernels.scaled_values(self._columns, self._values, metric, self._stepped)
        self._shrinkage, self._owing = 0.0, self._strength if self._penalty.curvature > 0.0 else 0.0

    def in_step_metric(self, gradient: Floats) -> Floats:
        return gradient * self._metric if len(self._metric) else gradient

    def row_norms_squared(self, start: int, stop: int) -> Floats:
        bounds = self._offsets[start : stop + 1]
        these = slice(bounds[0], bounds[-1])
        squares = np.concatenate(([0.0], np.cumsum(self._values[these] * self._stepped[these])))
        return np.asarray(np.diff(squares[bounds - bounds[0]]))

    # -- lanes -------------------------------------------------------------------------------------------------------

    def gather(self, start: int, stop: int) -> Gathered:
        """A weight for each non-zero of these rows, or all weights where those are not many more."""
        self._check_point(start, stop, None)
        if self._whole(start, stop):
            if self._known is None:
                self._known = self.weights()
            return None, self._known
        columns = self._columns[int(self._offsets[start]) : int(self._offsets[stop])]
        w = np.empty(len(columns))
        kernels.gather_each(columns, self._pairs, *self._lazy(), w)
        return columns, w

    def _whole(self, start: int, stop: int) -> bool:
        return self.nonzeros(start, stop) >= WHOLE_FROM * self.width

    def share_job(self, start: int, stop: int, gathered: Gathered) -> Callable[[], Floats]:
        columns, weights = gathered
        if columns is None:
            return lambda: self.share(start, stop, weights)
        if len(weights) != self.nonzeros(start, stop):
            refuse_length("gathered weights", len(weights), self.nonzeros(start, stop))

        def job() -> Floats:
            z = np.empty(stop - start)
            kernels.gathered_share(self._offsets, self._values, start, weights, z)
            return z

        return job

    def gradient_job(self, start: int, stop: int, residual: Floats) -> Callable[[], tuple[Columns | None, Floats]]:
        self._check(start, stop, residual)
        csr = (self._offsets, self._columns, self._values, start)
        most = self.nonzeros(start, stop)

        def whole() -> tuple[Columns | None, Floats]:
            gradient = _popped(self._idle)
            gradient = np.empty(self.width) if gradient is None else gradient
            kernels.whole_gradient(*csr, residual, gradient)
            return None, gradient

        def touched() -> tuple[Columns | None, Floats]:
            slots = _popped(self._slots)
            slots = np.zeros(self.width, np.int32) if slots is None else slots
            columns, values = np.empty(most, np.uint32), np.empty(most)
            count = kernels.compact_gradient(*csr, residual, slots, columns, values)
            self._slots.append(slots)
            return columns[:count], values[:count]

        return whole if self._whole(start, stop) else touched

    def apply_gradient(
        self, columns: Columns | None, values: Floats, batch_rows: int, eta: float, accumulate: float = 0.0
    ) -> None:
        if columns is None:
            self._apply_whole(sized(values, self.width), batch_rows, eta, accumulate)
            return
        if len(columns) != len(values):
            refuse_length("a gradient", len(values), len(columns))
        if len(columns) and int(columns.max()) >= self.width:
            raise IndexError(f"Expected columns below {self.width}; got {int(columns.max())}.")
        by_v = self._advance(batch_rows, eta, accumulate)
        values = values * self._metric[columns] if len(self._metric) else values
        kernels.lazy_apply(columns, values, by_v, accumulate, self._pairs)

    def _apply_whole(self, gradient: Floats, batch_rows: int, eta: float, accumulate: float) -> None:
        by_v = self._advance(batch_rows, eta, accumulate)
        w = np.empty(self.width)
        stepped = self.in_step_metric(gradient)
        kernels.lazy_apply_all(stepped, by_v, accumulate, *self._lazy(), self._pairs, w)
        self._known = w
        self._idle.append(gradient)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "pairs": self._pairs.copy(),
            "s": self._s,
            "c": self._c,
            "owed": self._owed,
            "steepest": self._steepest,
            "metric": self._metric.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        pairs = np.asarray(state["pairs"], dtype=np.float64)
        if pairs.shape != self._pairs.shape:
            refuse_length("a snapshot of the block", len(pairs), self.width)
        self._known = None
        self._pairs[:] = pairs
        self._s, self._c, self._owed = float(state["s"]), float(state["c"]), float(state["owed"])
        self.version, self._steepest = int(state["version"]), float(state["steepest"])
        if len(state["metric"]):
            self._take_metric(sized(np.array(state["metric"], dtype=np.float64), self.width))


def _popped(idle: list[NDArray[Any]]) -> NDArray[Any] | None:
    """One of them, or None: several jobs may ask at once, so it is not looked at first."""
    try:
        return idle.pop()
    except IndexError:
        return None
