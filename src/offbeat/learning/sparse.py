"""A block of mostly zeros: CSR rows, and weights kept lazily so that a step costs its non-zeros and no more.

How w = s v + c mu makes that possible is told at the head of `sparse_kernels`. The nonconvex penalty has no such closed
form: what it is owed is paid on all columns at once every r steps, r * eta * strength <= 1/4 (at every step, exactly,
where two would pass that). Until then each weight that is read is read as if it had been paid, to second order. The
same goes for the l2 penalty once columns have steps of their own: no common s can then shrink them. An elastic net is
paid on all columns at every step: exact zeros cannot wait.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from offbeat.errors import BadData
from offbeat.learning import kernels as words
from offbeat.learning import metric as metrics
from offbeat.learning import sparse_kernels as kernels
from offbeat.learning.dense import Gradient, shaped, taken_residuals
from offbeat.learning.penalties import L2, Penalty
from offbeat.learning.ranges import check_finite, refuse_length, refuse_rows, refuse_share

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

SCALE_LEAST = 1e-8
SHIFT_MOST = 1e6
PENALTY_OWED_MOST = 0.25
WHOLE_FROM = 1 / 3
"""Jobs work on all columns where a batch has at least so many non-zeros a column: streaming over columns that are not
touched is then cheaper than finding out which are."""
KEPT = (
    *("version", "_s", "_c", "_owed", "_steepest", "metric_kind", "_pairs", "_constant", "_mean", "_intercept"),
    *("_metric", "_curvature", "table", "_seen"),
)


class SparseBlock:
    """See `Block`."""

    def __init__(self, X: Any, penalty: Penalty, strength: float, *, outputs: int, direction: int) -> None:
        csr = scipy.sparse.csr_matrix(X, dtype=np.float64, copy=False)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        self.rows, self.width, self.outputs = csr.shape[0], csr.shape[1], outputs
        if self.width >= 2**32:
            raise BadData(f"Expected fewer than 2^32 columns in one block; got {self.width}.")
        self._offsets = csr.indptr.astype(np.int64)
        self._columns = csr.indices.astype(np.uint32)
        self._values = np.ascontiguousarray(csr.data, dtype=np.float64)
        check_finite(self._values)
        self.nonzeros_total = len(self._values)
        self.means = np.zeros(self.width)  # centred columns would not be sparse
        self.version = 0
        self.direction, self.penalty, self._strength = direction, penalty, strength
        self.metric_kind, self._curvature = metrics.NONE, np.empty(0)
        self._take_metric(np.empty(0))
        self._pairs = np.zeros((outputs, self.width, 2))
        self._constant, self._mean, self._intercept = np.zeros(outputs), np.zeros(outputs), np.zeros(outputs)
        self.table = np.zeros((outputs, self.rows))
        self._seen = np.zeros((outputs, self.width + 1 if direction == words.SGD else 0))  # SGD does not step along it
        self._s = 1.0
        self._c = 0.0
        self._owed = 0.0
        self._slots: list[NDArray[np.int32]] = []

    def nonzeros(self, start: int, stop: int) -> int:
        return int(self._offsets[stop] - self._offsets[start])

    # -- shares ------------------------------------------------------------------------------------------------------

    def share(self, start: int, stop: int, point: Floats | None = None) -> Floats:
        self._check_point(start, stop, point)
        rows = stop - start
        z = np.empty(self.outputs * rows)
        csr = (self._offsets, self._columns, self._values, start)
        for k in range(self.outputs):
            part = z[k * rows : (k + 1) * rows]
            if point is None:
                kernels.lazy_share(*csr, self._pairs[k], *self._lazy(), part)
                part += self._constant[k]
            else:
                kernels.plain_share(*csr, point[k, :-1], part)
                part += point[k, -1]
        return z

    def answer(
        self, start: int, stop: int, point: Floats | None, mask: Words | None, at: int, scale: float, limit: float
    ) -> Words:
        share = self.share(start, stop, point)
        count = len(share)
        out = np.empty(count, np.uint64)
        if mask is None:
            inside = words.encode(share, scale, limit, out)
        elif 0 <= at <= len(mask) - count:
            inside = words.encode_under(share, mask[at : at + count], scale, limit, out)
        else:
            refuse_length(f"a mask from word {at} on", len(mask) - at, count)
        if inside != count:
            refuse_share(scale, limit)
        return out

    def _check_point(self, start: int, stop: int, point: Floats | None) -> None:
        if not 0 <= start < stop <= self.rows:
            refuse_rows(start, stop, self.rows)
        if point is not None and point.shape != (self.outputs, self.width + 1):
            refuse_length("weights", point.size, self.outputs * (self.width + 1))

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, start: int, stop: int, theta: Floats, eta: float) -> None:
        self._check(start, stop, theta)
        rows = stop - start
        by_mu = 1.0 / self.rows if self.direction == words.SAGA else 0.0
        by_v = self._advance(rows, eta, by_mu)
        csr = (self._offsets, self._columns, self._stepped, start)
        residual = np.empty(rows)
        for k in range(self.outputs):
            derivatives = theta[k * rows : (k + 1) * rows]
            kernels.lazy_step(*csr, derivatives, self.table[k], self.direction, by_v, by_mu, self._pairs[k], residual)
            self._move_constant(k, float(residual.sum()), rows, eta, by_mu)
        self._pay_l1(eta)

    def step_along_mean(self, eta: float) -> None:
        self._advance(1, eta, 0.0)
        for k in range(self.outputs):
            self._move_constant(k, 0.0, 1, eta, 0.0)
        self._pay_l1(eta)

    def _move_constant(self, k: int, total: float, rows: int, eta: float, by_mu: float) -> None:
        if self._intercept[k] > 0.0:
            self._constant[k] -= eta * self._intercept[k] * (total / rows + self._mean[k])
        self._mean[k] += by_mu * total  # also where the constant rests: this block may be told to move it later

    def _check(self, start: int, stop: int, theta: Floats) -> None:
        if not 0 <= start < stop <= self.rows:
            refuse_rows(start, stop, self.rows)
        if len(theta) != self.outputs * (stop - start):
            refuse_length("derivatives", len(theta), self.outputs * (stop - start))

    def _advance(self, batch_rows: int, eta: float, accumulate: float) -> float:
        """Move the two scalars by one step; how much of g the touched v must give up."""
        debt = eta * self._owing
        if self.penalty.l1 > 0.0 or self._steepest * (self._owed + 2.0 * debt) > PENALTY_OWED_MOST:
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
        for pairs in self._pairs:
            kernels.fold(pairs, *self._lazy(), now)
        self._s, self._c, self._owed = 1.0, 0.0, 0.0

    def _pay_l1(self, eta: float) -> None:
        if self.penalty.l1 == 0.0:
            return
        self._fold()
        threshold = eta * self._strength * self.penalty.l1 * (self._metric if len(self._metric) else 1.0)
        w = self._pairs[:, :, 0]
        w[:] = np.sign(w) * np.maximum(np.abs(w) - threshold, 0.0)

    def _lazy(self) -> tuple[float, float, int, float, Floats]:
        return self._s, self._c, self.penalty.code, self._owed, self._metric

    # -- lanes -------------------------------------------------------------------------------------------------------

    def residual(self, start: int, stop: int, theta: Floats) -> Floats:
        self._check(start, stop, theta)
        return taken_residuals(self, start, theta)

    def share_job(self, start: int, stop: int) -> Callable[[], Floats]:
        """A weight for each non-zero of these rows, or all weights where those are not many more."""
        self._check_point(start, stop, None)
        rows, constants = stop - start, self._constant.copy()
        if self._whole(start, stop):
            weights = self.weights()
            return lambda: self.share(start, stop, weights)
        columns = self._columns[int(self._offsets[start]) : int(self._offsets[stop])]
        gathered = np.empty((self.outputs, len(columns)))
        for k in range(self.outputs):
            kernels.gather_each(columns, self._pairs[k], *self._lazy(), gathered[k])

        def job() -> Floats:
            z = np.empty(self.outputs * rows)
            for k in range(self.outputs):
                part = z[k * rows : (k + 1) * rows]
                kernels.gathered_share(self._offsets, self._values, start, gathered[k], part)
                part += constants[k]
            return z

        return job

    def _whole(self, start: int, stop: int) -> bool:
        return self.nonzeros(start, stop) >= WHOLE_FROM * self.width

    def gradient_job(self, start: int, stop: int, residual: Floats) -> Callable[[], Gradient]:
        self._check(start, stop, residual)
        if self.outputs > 1 or self._whole(start, stop):
            return lambda: (None, self._whole_gradient(start, stop, residual))
        csr, most = (self._offsets, self._columns, self._values, start), self.nonzeros(start, stop)

        def touched() -> Gradient:
            try:
                slots = self._slots.pop()
            except IndexError:  # another lane took the last one
                slots = np.zeros(self.width, np.int32)
            columns, values = np.empty(most, np.uint32), np.empty(most)
            count = kernels.compact_gradient(*csr, residual, slots, columns, values)
            self._slots.append(slots)
            return columns[:count], np.append(values[:count], residual.sum())

        return touched

    def _whole_gradient(self, start: int, stop: int, residual: Floats) -> Floats:
        into = np.zeros((self.outputs, self.width + 1))
        self._add(start, stop, residual, 1.0, into)
        return into

    def apply_gradient(self, gradient: Gradient, batch_rows: int, eta: float) -> None:
        columns, values = gradient
        if columns is None:
            self._check_shape(values)
        by_mu = 1.0 / self.rows if self.direction == words.SAGA else 0.0
        by_v = self._advance(batch_rows, eta, by_mu)
        every = np.arange(self.width, dtype=np.uint32) if columns is None else columns
        scaling = self._metric[every] if len(self._metric) else 1.0
        for k, row in enumerate(np.atleast_2d(values)):
            kernels.lazy_apply(every, row[:-1] * scaling, by_v, by_mu, self._pairs[k])
            self._move_constant(k, float(row[-1]), batch_rows, eta, by_mu)
        self._pay_l1(eta)

    # -- weights and gradients ---------------------------------------------------------------------------------------

    def weights(self) -> Floats:
        w = np.empty((self.outputs, self.width + 1))
        row = np.empty(self.width)
        for k in range(self.outputs):
            kernels.unfold(self._pairs[k], *self._lazy(), row)
            w[k, :-1] = row
        w[:, -1] = self._constant
        return w

    def set_weights(self, weights: Floats) -> None:
        self._check_shape(weights)
        self._pairs[:, :, 0], self._constant[:] = weights[:, :-1], weights[:, -1]
        self._s, self._c, self._owed = 1.0, 0.0, 0.0

    def add_to_weights(self, displacement: Floats) -> None:
        self._check_shape(displacement)
        self._fold()
        self._pairs[:, :, 0] += displacement[:, :-1]
        self._constant += displacement[:, -1]

    def _check_shape(self, values: Floats) -> None:
        if values.shape != (self.outputs, self.width + 1):
            refuse_length("weights of the block's shape", values.size, self.outputs * (self.width + 1))

    def mean_gradient(self) -> Floats:
        if self.direction == words.SGD:
            return self._seen.copy()
        columns = self._pairs[:, :, 1]
        return np.concatenate((columns / self._metric if len(self._metric) else columns, self._mean[:, None]), axis=1)

    def adopt(self, table: Floats, gradient: Floats) -> None:
        self._check_shape(gradient)
        self.table[:] = shaped(table, self.table)
        if self.direction == words.SGD:
            self._seen[:] = gradient
            return
        self._fold()
        self._pairs[:, :, 1] = gradient[:, :-1] * self._metric if len(self._metric) else gradient[:, :-1]
        self._mean[:] = gradient[:, -1]

    def refresh(self, start: int, stop: int, theta: Floats) -> None:
        self._check(start, stop, theta)
        if self.direction == words.SGD:
            residual = theta.copy()
            words.take_residuals(theta, start, words.SAGA, self.table, residual)
            self._add(start, stop, residual, 1.0 / self.rows, self._seen)
            return
        rows, by_mu = stop - start, 1.0 / self.rows
        csr, residual = (self._offsets, self._columns, self._stepped, start), np.empty(rows)
        for k in range(self.outputs):
            part = theta[k * rows : (k + 1) * rows]
            by_v = by_mu * self._c / self._s  # the weights stay
            kernels.lazy_step(*csr, part, self.table[k], words.SAGA, by_v, by_mu, self._pairs[k], residual)
            self._mean[k] += by_mu * float(residual.sum())

    def add_gradient(self, start: int, stop: int, theta: Floats, into: Floats) -> None:
        self._check(start, stop, theta)
        self._check_shape(into)
        self._add(start, stop, theta, 1.0 / self.rows, into)

    def _add(self, start: int, stop: int, theta: Floats, factor: float, into: Floats) -> None:
        rows = stop - start
        for k in range(self.outputs):
            part = theta[k * rows : (k + 1) * rows]
            csr = (self._offsets, self._columns, self._values, start)
            kernels.sparse_gradient(*csr, part, factor, into[k, :-1])
            into[k, -1] += factor * part.sum()

    # -- the metric of the steps -------------------------------------------------------------------------------------

    def move_constant(self, metric: Floats) -> None:
        self._intercept[:] = metric

    def step_by_curvature(self, second: Floats, kind: str) -> None:
        """The diagonal, whatever kind is asked for, and one for all outputs: their mean curvature."""
        squares = np.empty(self.width)
        kernels.sparse_squares(self._offsets, self._columns, self._values, second.mean(axis=0) / self.rows, squares)
        if kind == self.metric_kind and not metrics.is_news(squares, self._curvature):
            return
        self.metric_kind, self._curvature = kind, squares
        mean, weights = self.mean_gradient(), self.weights()
        self.set_weights(weights)
        metric = np.empty(0)
        if kind != metrics.NONE:
            smallest = np.abs(weights[:, :-1]).min(axis=0)
            metric = metrics.diagonal_metric(squares, smallest, self.penalty, self._strength)
            self._steepest = metrics.steepest_penalty(metric, smallest, self.penalty)
        self._take_metric(metric)
        self.adopt(self.table, mean)

    def _take_metric(self, metric: Floats) -> None:
        """Empty: 1 everywhere. Only there can the common scalar s shrink all weights for the l2 penalty."""
        self._metric, self._stepped = metric, self._values
        pull = self._strength * self.penalty.smooth if self.penalty.curvature > 0.0 else 0.0
        self._shrinkage, self._owing = (pull, 0.0) if self.penalty is L2 and not len(metric) else (0.0, pull)
        if len(metric) == 0:
            self._steepest = 1.0  # second derivative of the penalty, in the metric of the steps
            return
        self._stepped = np.empty(len(self._values))
        kernels.scaled_values(self._columns, self._values, metric, self._stepped)

    def in_metric(self, columns: Floats) -> Floats:
        moved = (columns[:-1].T * self._metric).T if len(self._metric) else columns[:-1]
        return np.concatenate((moved, self._intercept[0] * columns[-1:]))

    def row_norms_squared(self, start: int, stop: int) -> Floats:
        bounds = self._offsets[start : stop + 1]
        these = slice(bounds[0], bounds[-1])
        squares = np.concatenate(([0.0], np.cumsum(self._values[these] * self._stepped[these])))
        norms: Floats = np.diff(squares[bounds - bounds[0]]) + self._intercept[0]
        return norms

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        found = {name.lstrip("_"): getattr(self, name) for name in KEPT}
        return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in found.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._take_metric(np.array(state["metric"]))
        shaped(state["pairs"], self._pairs)
        shaped(state["table"], self.table)
        for name in KEPT:
            value = state[name.lstrip("_")]
            setattr(self, name, value.copy() if isinstance(value, np.ndarray) else value)
