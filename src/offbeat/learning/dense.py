"""A block with a value in every cell, kept feature-major."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.learning import kernels
from offbeat.learning import metric as metrics
from offbeat.learning.orders import put_in_order
from offbeat.learning.penalties import Penalty
from offbeat.learning.ranges import check_finite, refuse_length, refuse_rows, refuse_share

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Gradient = tuple[NDArray[np.uint32] | None, Floats]


class DenseBlock:
    """See `Block`. All columns take part in every step, so columns of a gradient are never listed (None)."""

    def __init__(
        self, X: NDArray[Any], penalty: Penalty, strength: float, *, outputs: int, direction: int, centre: bool
    ) -> None:
        self.penalty = penalty
        self._X = np.ascontiguousarray(X.T, dtype=np.float64)
        check_finite(self._X)
        self.rows, self.width, self.outputs = int(X.shape[0]), int(X.shape[1]), outputs
        self.means = self._X.mean(axis=1) if centre else np.zeros(self.width)
        if centre:
            self._X = self._X - self.means[:, None]
        self.nonzeros_total = self.width * self.rows
        self.version = 0
        self.direction, self._strength = direction, strength
        self._penalised = (strength * penalty.smooth, penalty.code, strength * penalty.l1)
        self.metric_kind = metrics.NONE
        self._metric, self._curvature = metrics.NO_METRIC, np.empty((0, 0))
        self._intercept = np.zeros(outputs)
        self._w = np.zeros((outputs, self.width + 1))
        self._mu = np.zeros_like(self._w)
        self.table = np.zeros((outputs, self.rows))
        self._seen = np.zeros_like(self._w) if direction == kernels.SGD else self._mu  # SGD does not step along it

    def nonzeros(self, start: int, stop: int) -> int:
        return (stop - start) * self.width

    # -- shares ------------------------------------------------------------------------------------------------------

    def share(self, start: int, stop: int, point: Floats | None = None) -> Floats:
        w = self._at(start, stop, point)
        z = np.empty(self.outputs * (stop - start))
        kernels.dense_share(self._X, start, w, z)
        return z

    def answer(
        self, start: int, stop: int, point: Floats | None, mask: Words | None, at: int, scale: float, limit: float
    ) -> Words:
        w = self._at(start, stop, point)
        count = self.outputs * (stop - start)
        out = np.empty(count, np.uint64)
        if mask is None:
            inside = kernels.encode(self.share(start, stop, w), scale, limit, out)
        elif 0 <= at <= len(mask) - count:
            inside = kernels.dense_masked(self._X, start, w, mask, at, scale, limit, out)
        else:
            refuse_length(f"a mask from word {at} on", len(mask) - at, count)
        if inside != count:
            refuse_share(scale, limit)
        return out

    def _at(self, start: int, stop: int, point: Floats | None) -> Floats:
        if not 0 <= start < stop <= self.rows:
            refuse_rows(start, stop, self.rows)
        if point is None:
            return self._w
        if point.shape != self._w.shape:
            refuse_length("weights", point.size, self._w.size)
        return point

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, start: int, stop: int, theta: Floats, eta: float) -> None:
        self._check(start, stop, theta)
        state = (self._metric, self._intercept, self._w, self._mu)
        kernels.dense_step(self._X, start, theta, self.table, self.direction, eta, *self._penalised, *state)
        self._finish_step()

    def _finish_step(self) -> None:
        if self.penalty.orders:
            metric = self._metric[0]
            put_in_order(self._w[0], self.penalty.orders, 1.0 / metric[0] if len(metric) else None)
        self.version += 1

    def _check(self, start: int, stop: int, theta: Floats) -> None:
        if not 0 <= start < stop <= self.rows:
            refuse_rows(start, stop, self.rows)
        if len(theta) != self.outputs * (stop - start):
            refuse_length("derivatives", len(theta), self.outputs * (stop - start))

    def step_along_mean(self, eta: float) -> None:
        self.apply_gradient((None, np.zeros_like(self._w)), 1, eta)

    def residual(self, start: int, stop: int, theta: Floats) -> Floats:
        self._check(start, stop, theta)
        return taken_residuals(self, start, theta)

    def gradient_job(self, start: int, stop: int, residual: Floats) -> Callable[[], Gradient]:
        self._check(start, stop, residual)

        def job() -> Gradient:
            gradient = np.zeros_like(self._w)
            kernels.dense_gradient(self._X, start, residual, 1.0, gradient)
            return None, gradient

        return job

    def apply_gradient(self, gradient: Gradient, batch_rows: int, eta: float) -> None:
        values = shaped(gradient[1], self._w)
        accumulate = 1.0 / self.rows if self.direction == kernels.SAGA else 0.0
        state = (self._metric, self._intercept, self._w, self._mu)
        kernels.dense_apply(values, batch_rows, eta, accumulate, *self._penalised, *state)
        self._finish_step()

    def share_job(self, start: int, stop: int) -> Callable[[], Floats]:
        weights = self._at(start, stop, None).copy()
        return lambda: self.share(start, stop, weights)

    # -- weights and gradients ---------------------------------------------------------------------------------------

    def weights(self) -> Floats:
        return self._w.copy()

    def set_weights(self, weights: Floats) -> None:
        self._w[:] = shaped(weights, self._w)

    def add_to_weights(self, displacement: Floats) -> None:
        self._w += shaped(displacement, self._w)

    def mean_gradient(self) -> Floats:
        return self._seen.copy()

    def adopt(self, table: Floats, gradient: Floats) -> None:
        self.table[:] = shaped(table, self.table)
        self._seen[:] = shaped(gradient, self._seen)

    def refresh(self, start: int, stop: int, theta: Floats) -> None:
        self._check(start, stop, theta)
        residual = np.empty_like(theta)
        kernels.take_residuals(theta, start, kernels.SAGA, self.table, residual)
        kernels.dense_gradient(self._X, start, residual, 1.0 / self.rows, self._seen)

    def add_gradient(self, start: int, stop: int, theta: Floats, into: Floats) -> None:
        self._check(start, stop, theta)
        kernels.dense_gradient(self._X, start, theta, 1.0 / self.rows, shaped(into, self._w))

    # -- the metric of the steps -------------------------------------------------------------------------------------

    def move_constant(self, metric: Floats) -> None:
        self._intercept[:] = metric

    def step_by_curvature(self, second: Floats, kind: str) -> None:
        squares = self._squares(second)
        if kind == self.metric_kind and not metrics.is_news(squares, self._curvature):
            return
        self.metric_kind, self._curvature = kind, squares
        whole = kind == metrics.WHOLE and self.width <= metrics.WHOLE_WIDTH_MOST and self.penalty.is_smooth
        take = self._whole if whole else self._diagonal
        parts = [take(row, column, w[:-1]) for row, column, w in zip(second, squares, self._w, strict=True)]
        self._metric = np.ascontiguousarray(parts) if kind != metrics.NONE else metrics.NO_METRIC

    def _squares(self, second: Floats) -> Floats:
        """The curvature of each column, over all rows; output by output."""
        squares = np.empty((self.outputs, self.width))
        if self.outputs == 1:
            kernels.dense_squares(self._X, second[0] / self.rows, squares[0])
        else:
            kernels.all_dense_squares(self._X, second, squares)
            squares /= self.rows
        return squares

    def _diagonal(self, second: Floats, squares: Floats, w: Floats) -> Floats:
        return metrics.diagonal_metric(squares, w, self.penalty, self._strength)[None, :]

    def _whole(self, second: Floats, squares: Floats, w: Floats) -> Floats:
        """Where not all rows are looked at (they are in random order), the diagonal is that of all."""
        work = metrics.HESSIAN_WORK_MOST // self.outputs
        rows = min(self.rows, max(metrics.HESSIAN_ROWS_LEAST, work // max(self.width, 1) ** 2))
        curvature, diagonal = np.empty((self.width, self.width)), slice(None, None, self.width + 1)
        kernels.dense_hessian(self._X, second[:rows] / rows, curvature)
        if rows < self.rows:
            curvature.flat[diagonal] = np.maximum(squares, curvature.flat[diagonal]) * (1.0 + self.width / rows)
        curvature.flat[diagonal] += metrics.penalty_curvature(w, self.penalty, self._strength)
        largest = float(np.diagonal(curvature).max(initial=0.0))
        curvature.flat[diagonal] += metrics.CURVATURE_LEAST * largest if largest > 0.0 else 1.0
        inverse = np.empty_like(curvature)
        kernels.invert(curvature, inverse)
        return inverse

    def in_metric(self, columns: Floats) -> Floats:
        metric = self._metric[0]
        moved = columns[:-1]
        if len(metric) > 0:
            moved = metric @ moved if len(metric) == self.width else (metric[0] * moved.T).T
        return np.concatenate((moved, self._intercept[0] * columns[-1:]))

    def row_norms_squared(self, start: int, stop: int) -> Floats:
        rows = np.vstack((self._X[:, start:stop], np.ones(stop - start)))
        return np.asarray(np.einsum("ji,ji->i", self.in_metric(rows), rows))

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        held = {
            "weights": self._w,
            "mean_gradient": self._seen,
            "metric": self._metric,
            "curvature": self._curvature,
            "intercept": self._intercept,
            "table": self.table,
        }
        return {
            "version": self.version,
            "metric_kind": self.metric_kind,
            **{name: values.copy() for name, values in held.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.set_weights(state["weights"])
        self.adopt(state["table"], state["mean_gradient"])
        self._metric, self._curvature = np.array(state["metric"]), np.array(state["curvature"])
        self._intercept = np.array(state["intercept"])
        self.version, self.metric_kind = int(state["version"]), state["metric_kind"]


def shaped(values: Floats, like: Floats) -> Floats:
    if values.shape != like.shape:
        refuse_length("an array of the block's shape", values.size, like.size)
    return values


def taken_residuals(block: Any, start: int, theta: Floats) -> Floats:
    if block.direction == kernels.SGD:
        return theta.copy()
    out = np.empty_like(theta)
    kernels.take_residuals(theta, start, block.direction, block.table, out)
    return out
