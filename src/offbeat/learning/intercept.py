"""A block with an intercept: one more coordinate, whose column is 1 in every row, penalised like the others.

As an ordinary column it would spoil the step size for all: a column of ones has curvature 1 where the whole of a text
data set has 0.006, and the common step would be as much too short. So the intercept takes its own, shorter step: its
direction is multiplied by `metric`, about the curvature of the block's other columns. The problem, its optimum, its
gradient and its certificate are those of the plain column; only the way there differs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offbeat.errors import OutOfRange
from offbeat.learning.blocks import Block, Columns, Floats, Gathered, Words
from offbeat.learning.metric import diagonal_metric
from offbeat.learning.penalties import Penalty

METRIC_ROWS = 1024
METRIC_GENEROSITY = 4.0  # one party's columns are less steep than all parties' together


class BlockWithIntercept:
    """See `Block`. The intercept is the last of its columns."""

    def __init__(self, inner: Block, penalty: Penalty, strength: float) -> None:
        self.inner, self._penalty, self._strength = inner, penalty, strength
        self.rows, self.width = inner.rows, inner.width + 1
        self.nonzeros_total = inner.nonzeros_total + inner.rows
        self.intercept = self._mean = 0.0
        steepness, _ = inner.smoothness(1.0, METRIC_ROWS, rng=np.random.default_rng(0))
        self.metric = min(1.0, METRIC_GENEROSITY * steepness) if steepness > 0.0 else 1.0

    @property
    def version(self) -> int:
        return self.inner.version

    def nonzeros(self, start: int, stop: int) -> int:
        return self.inner.nonzeros(start, stop) + stop - start

    # -- shares --------------------------------------------------------------------------------------------------

    def share(self, start: int, stop: int, point: Floats | None = None) -> Floats:
        inner, constant = self._split(point)
        return self.inner.share(start, stop, inner) + constant

    def masked_share(
        self, start: int, stop: int, point: Floats | None, mask: Words, at: int, scale: float, limit: float
    ) -> Words:
        inner, constant = self._split(point)
        word = self._word(constant, scale, limit)
        return self.inner.masked_share(start, stop, inner, mask, at, scale, limit - abs(constant)) + word

    def encoded_share(self, start: int, stop: int, point: Floats | None, scale: float, limit: float) -> Words:
        inner, constant = self._split(point)
        word = self._word(constant, scale, limit)
        return self.inner.encoded_share(start, stop, inner, scale, limit - abs(constant)) + word

    def _split(self, point: Floats | None) -> tuple[Floats | None, float]:
        return (None, self.intercept) if point is None else (point[:-1], float(point[-1]))

    def _word(self, constant: float, scale: float, limit: float) -> np.uint64:
        if not abs(constant) < limit:
            raise OutOfRange(
                f"Expected an intercept below {limit:g} in absolute value; got {constant:g}. Nothing was sent. "
                "Training diverged (lower the step size), or labels are on a very large scale (centre them)."
            )
        return np.rint(constant * scale).astype(np.int64).view(np.uint64)  # type: ignore[no-any-return]

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self, start: int, stop: int, residual: Floats, eta: float, accumulate: float = 0.0) -> None:
        self.inner.step(start, stop, residual, eta, accumulate)
        self._move(float(residual.sum()), stop - start, eta, accumulate)

    def corrected_step(
        self, start: int, stop: int, theta: Floats, table: Floats, exchange: bool, eta: float, accumulate: float = 0.0
    ) -> None:
        total = float(theta.sum() - table[start:stop].sum())
        self.inner.corrected_step(start, stop, theta, table, exchange, eta, accumulate)
        self._move(total, stop - start, eta, accumulate)

    def _move(self, total: float, batch_rows: int, eta: float, accumulate: float) -> None:
        slope = self._strength * float(self._penalty.gradient(np.array([self.intercept]))[0])
        self.intercept -= eta * self.metric * (total / batch_rows + self._mean + slope)
        self._mean += accumulate * total

    # -- weights and gradients -----------------------------------------------------------------------------------

    def weights(self) -> Floats:
        return np.append(self.inner.weights(), self.intercept)

    def set_weights(self, weights: Floats) -> None:
        self.inner.set_weights(weights[:-1])
        self.intercept = float(weights[-1])

    def mean_gradient(self) -> Floats:
        return np.append(self.inner.mean_gradient(), self._mean)

    def set_mean_gradient(self, mean: Floats) -> None:
        self.inner.set_mean_gradient(mean[:-1])
        self._mean = float(mean[-1])

    def add_gradient(self, start: int, stop: int, theta: Floats, into: Floats) -> None:
        self.inner.add_gradient(start, stop, theta, into[:-1])
        into[-1] += theta.sum() / self.rows

    def step_by_curvature(self, second: Floats) -> None:
        self.inner.step_by_curvature(second)
        ones, weight = np.array([float(second.mean())]), np.array([self.intercept])
        self.metric = float(diagonal_metric(ones, weight, self._penalty, self._strength)[0])

    def in_step_metric(self, gradient: Floats) -> Floats:
        return np.append(self.inner.in_step_metric(gradient[:-1]), self.metric * gradient[-1])

    def smoothness(
        self, loss_curvature: float, rows_at_most: int = 1024, iterations: int = 15, *, rng: np.random.Generator
    ) -> tuple[float, float]:
        """In the metric of the steps, from above: the intercept's curvature on top of the others'."""
        steepest, row = self.inner.smoothness(loss_curvature, rows_at_most, iterations, rng=rng)
        return steepest + loss_curvature * self.metric, row + loss_curvature * self.metric

    def row_norms_squared(self, start: int, stop: int) -> Floats:
        return self.inner.row_norms_squared(start, stop) + self.metric

    # -- lanes ---------------------------------------------------------------------------------------------------

    def gather(self, start: int, stop: int) -> Gathered:
        columns, weights = self.inner.gather(start, stop)
        return columns, np.append(weights, self.intercept)

    def share_job(self, start: int, stop: int, gathered: Gathered) -> Callable[[], Floats]:
        columns, weights = gathered
        job, constant = self.inner.share_job(start, stop, (columns, weights[:-1])), weights[-1]
        return lambda: job() + constant

    def gradient_job(self, start: int, stop: int, residual: Floats) -> Callable[[], tuple[Columns | None, Floats]]:
        job = self.inner.gradient_job(start, stop, residual)

        def both() -> tuple[Columns | None, Floats]:
            columns, values = job()
            return columns, np.append(values, residual.sum())

        return both

    def apply_gradient(
        self, columns: Columns | None, values: Floats, batch_rows: int, eta: float, accumulate: float = 0.0
    ) -> None:
        self.inner.apply_gradient(columns, values[:-1], batch_rows, eta, accumulate)
        self._move(float(values[-1]), batch_rows, eta, accumulate)

    # -- going on later ------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return {"inner": self.inner.snapshot(), "intercept": self.intercept, "mean": self._mean, "metric": self.metric}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.inner.restore(state["inner"])
        self.intercept, self._mean, self.metric = (float(state[key]) for key in ("intercept", "mean", "metric"))
