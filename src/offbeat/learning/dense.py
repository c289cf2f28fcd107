"""A block with a value in every cell, kept feature-major."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.learning import kernels
from offbeat.learning.metric import CURVATURE_LEAST, WHOLE_WIDTH_MOST, diagonal_metric, penalty_curvature
from offbeat.learning.penalties import Penalty
from offbeat.learning.ranges import check_finite, refuse_length, refuse_rows, refuse_share

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Columns = NDArray[np.uint32]
Gathered = tuple[Columns | None, Floats]


class DenseBlock:
    """See `Block`. All columns take part in every step, so columns of a gradient are never listed (None)."""

    def __init__(self, X: NDArray[Any], penalty: Penalty, strength: float) -> None:
        self._X = np.ascontiguousarray(X.T, dtype=np.float64)
        check_finite(self._X)
        self.rows: int = X.shape[0]
        self.width: int = X.shape[1]
        self.nonzeros_total = self.width * self.rows
        self.version = 0
        self._penalty = penalty
        self._strength = strength
        self._metric = np.empty((0, 0))  # empty: 1
        self._w = np.zeros(self.width)
        self._mu = np.zeros(self.width)

    def nonzeros(self, start: int, stop: int) -> int:
        return (stop - start) * self.width

    def share(self, start: int, stop: int, point: Floats | None = None) -> Floats:
        w = self._at(start, stop, point)
        z = np.empty(stop - start)
        kernels.dense_share(self._X, start, w, z)
        return z

    def masked_share(
        self, start: int, stop: int, point: Floats | None, mask: Words, at: int, scale: float, limit: float
    ) -> Words:
        w = self._at(start, stop, point)
        count = stop - start
        if not 0 <= at <= len(mask) - count:
            refuse_length(f"a mask from word {at} on", len(mask) - at, count)
        out = np.empty(count, np.uint64)
        if kernels.dense_masked(self._X, start, w, mask, at, scale, limit, out) != count:
            refuse_share(self.share(start, stop, w), start, scale, limit)
        return out

    def encoded_share(self, start: int, stop: int, point: Floats | None, scale: float, limit: float) -> Words:
        w = self._at(start, stop, point)
        out = np.empty(stop - start, np.uint64)
        if kernels.dense_encoded(self._X, start, w, scale, limit, out) != stop - start:
            refuse_share(self.share(start, stop, w), start, scale, limit)
        return out

    def _at(self, start: int, stop: int, point: Floats | None) -> Floats:
        if not 0 <= start < stop <= self.rows:
            refuse_rows(start, stop, self.rows)
        if point is None:
            return self._w
        if len(point) != self.width:
            refuse_length("weights", len(point), self.width)
        return point

    def step(self, start: int, stop: int, residual: Floats, eta: float, accumulate: float = 0.0) -> None:
        self._check(start, stop, residual)
        kernels.dense_step(self._X, start, residual, eta, accumulate, *self._penalised(), self._w, self._mu)
        self.version += 1

    def corrected_step(
        self, start: int, stop: int, theta: Floats, table: Floats, exchange: bool, eta: float, accumulate: float = 0.0
    ) -> None:
        self._check(start, stop, theta)
        if len(table) != self.rows:
            refuse_length("a table over the rows", len(table), self.rows)
        kernels.dense_corrected_step(
            self._X, start, theta, table, exchange, eta, accumulate, *self._penalised(), self._w, self._mu
        )
        self.version += 1

    def _penalised(self) -> tuple[float, int, Floats]:
        return self._strength, self._penalty.code, self._metric

    def _check(self, start: int, stop: int, residual: Floats) -> None:
        if not 0 <= start < stop <= self.rows:
            refuse_rows(start, stop, self.rows)
        if len(residual) != stop - start:
            refuse_length("derivatives", len(residual), stop - start)

    def weights(self) -> Floats:
        return self._w.copy()

    def set_weights(self, weights: Floats) -> None:
        self._w[:] = sized(weights, self.width)

    def mean_gradient(self) -> Floats:
        return self._mu.copy()

    def set_mean_gradient(self, mean: Floats) -> None:
        self._mu[:] = sized(mean, self.width)

    def add_gradient(self, start: int, stop: int, theta: Floats, into: Floats) -> None:
        self._check(start, stop, theta)
        kernels.dense_gradient(self._X, start, theta, 1.0 / self.rows, sized(into, self.width))

    def smoothness(
        self, loss_curvature: float, rows_at_most: int = 1024, iterations: int = 15, *, rng: np.random.Generator
    ) -> tuple[float, float]:
        some = np.sort(rng.choice(self.rows, min(self.rows, rows_at_most), replace=False))
        X = np.ascontiguousarray(self._X[:, some])
        largest = largest_eigenvalue(
            lambda u: self.in_step_metric(X @ (u @ X)) / len(some), self.width, rng, iterations
        )
        row_norm = float(self.row_norms_squared(0, self.rows).max(initial=0.0))
        return loss_curvature * largest, loss_curvature * row_norm

    def step_by_curvature(self, second: Floats) -> None:
        factor = sized_rows(second, self.rows) / self.rows
        if self.width > WHOLE_WIDTH_MOST:
            squares = np.empty(self.width)
            kernels.dense_squares(self._X, factor, squares)
            self._metric = diagonal_metric(squares, self._w, self._penalty, self._strength)[None, :]
            return
        curvature = np.empty((self.width, self.width))
        kernels.dense_hessian(self._X, factor, curvature)
        curvature.flat[:: self.width + 1] += penalty_curvature(self._w, self._penalty, self._strength)
        largest = float(np.diagonal(curvature).max(initial=0.0))
        curvature.flat[:: self.width + 1] += CURVATURE_LEAST * largest if largest > 0.0 else 1.0
        self._metric = np.empty_like(curvature)
        kernels.invert(curvature, self._metric)

    def in_step_metric(self, gradient: Floats) -> Floats:
        if len(self._metric) == 0:
            return gradient
        whole = len(self._metric) == self.width
        return self._metric @ gradient if whole else (self._metric[0] * gradient.T).T

    def row_norms_squared(self, start: int, stop: int) -> Floats:
        rows = self._X[:, start:stop]
        return np.asarray(np.einsum("ji,ji->i", self.in_step_metric(rows), rows))

    def gather(self, start: int, stop: int) -> Gathered:
        return None, self._at(start, stop, None).copy()

    def share_job(self, start: int, stop: int, gathered: Gathered) -> Callable[[], Floats]:
        _, weights = gathered
        return lambda: self.share(start, stop, weights)

    def gradient_job(self, start: int, stop: int, residual: Floats) -> Callable[[], tuple[Columns | None, Floats]]:
        self._check(start, stop, residual)

        def job() -> tuple[Columns | None, Floats]:
            gradient = np.zeros(self.width)
            kernels.dense_gradient(self._X, start, residual, 1.0, gradient)
            return None, gradient

        return job

    def apply_gradient(
        self, columns: Columns | None, values: Floats, batch_rows: int, eta: float, accumulate: float = 0.0
    ) -> None:
        kernels.dense_apply(
            sized(values, self.width), batch_rows, eta, accumulate, *self._penalised(), self._w, self._mu
        )
        self.version += 1

    def snapshot(self) -> dict[str, Any]:
        held = {"weights": self._w, "mean_gradient": self._mu, "metric": self._metric}
        return {"version": self.version, **{name: values.copy() for name, values in held.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.set_weights(state["weights"])
        self.set_mean_gradient(state["mean_gradient"])
        self._metric = np.array(state["metric"], dtype=np.float64)
        self.version = int(state["version"])


def sized(values: Floats, width: int) -> Floats:
    if len(values) != width:
        refuse_length("a vector over the block's columns", len(values), width)
    return values


def sized_rows(values: Floats, rows: int) -> Floats:
    if len(values) != rows:
        refuse_length("a vector over the rows", len(values), rows)
    return values


def largest_eigenvalue(
    times: Callable[[Floats], Floats], width: int, rng: np.random.Generator, iterations: int
) -> float:
    """By power iteration from a random start: an estimate from below that a few iterations bring within percents."""
    u = rng.standard_normal(width)
    largest = 0.0
    for _ in range(iterations):
        norm = float(np.linalg.norm(u))
        if norm == 0.0:
            return 0.0
        u = times(u / norm)
        largest = float(np.linalg.norm(u))
    return largest
