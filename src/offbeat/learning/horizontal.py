"""Linear models over rows: what one edge computes, with every row's own gradient clipped on the way.

For a linear model the gradient of one row is the outer product of a *residual* (the loss's derivative at the row's
scores) and the row, so its norm is |residual| times |row|: no per-row gradient is ever built. A constant 1 is
appended to each row for the intercepts. The parameters are one flat vector, outputs x (features + 1).

| model         | labels      | loss of one row                          | residual per output          | f(0)      |
|---------------|-------------|------------------------------------------|------------------------------|-----------|
| logistic      | 0, 1        | log(1 + exp(-sz)), s = -1 or +1          | -s / (1 + exp(sz))           | log 2     |
| hinge         | 0 .. c-1    | sum_k max(0, 1 - s_k z_k), one versus rest | -s_k where s_k z_k < 1     | c         |
| squared-hinge | 0 .. c-1    | sum_k max(0, 1 - s_k z_k)^2              | -2 s_k max(0, 1 - s_k z_k)   | c         |
| softmax       | 0 .. c-1    | log sum_k exp(z_k) - z_y                 | p_k - 1[k = y]               | log c     |
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numba
import numpy as np
import numpy.typing as npt

from offbeat.errors import BadData, BadJob
from offbeat.learning.grid import Grid, Integers, add_outer, outer_within
from offbeat.names import counted

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Features = npt.NDArray[np.float32] | npt.NDArray[np.float64]

LOSS_CODES = {"logistic": 0, "hinge": 1, "squared-hinge": 2, "softmax": 3}
FAST = {"reassoc", "contract", "nsz", "arcp"}
"""What a compiled function may do to its arithmetic. One that is called by such a function states its own: without, it
takes that of whichever caller is compiled first, and its last bits with it."""


@dataclass(frozen=True)
class EdgeData:
    """One edge's rows: features (n x d), integer labels, and |(row, 1)| of every row."""

    features: Features
    labels: npt.NDArray[np.int64]
    norms: Vector

    @property
    def rows(self) -> int:
        return int(self.labels.size)

    @cached_property
    def columns(self) -> int:
        return math.prod(self.features.shape[1:])

    @cached_property
    def classes(self) -> int:
        """As many as the largest label asks for."""
        return int(self.labels.max()) + 1


def edge_data(features: Any, labels: Any) -> EdgeData:
    """Check and lay out one edge's rows. A value that is not finite would void the clip, so it is refused here."""
    features, labels = np.ascontiguousarray(features), np.ascontiguousarray(labels)
    check_table(features, labels)
    if features.dtype not in (np.float32, np.float64):
        features = features.astype(np.float64)
    if not np.isfinite(features).all():
        raise BadData("An edge's features hold a value that is not a finite number; fill or drop such rows first.")
    if np.any(labels != np.floor(labels)) or labels.min() < 0:
        raise BadData("Labels must be whole numbers 0, 1, 2, ...; code the classes before giving them to an edge.")
    flat = features.reshape(labels.size, -1).astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", flat, flat) + 1.0)
    return EdgeData(features, labels.astype(np.int64), norms)


def check_table(features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
    """Raises BadData unless these are rows of numbers with one number for each row."""
    if features.dtype.kind not in "biuf" or labels.dtype.kind not in "biuf":
        raise BadData(
            f"An edge's rows and labels must be numbers; came {features.dtype} and {labels.dtype}. Code texts first."
        )
    if features.ndim < 2 or labels.ndim != 1 or labels.size != features.shape[0] or labels.size == 0:
        raise BadData(
            f"An edge needs a table with one label for each row; came features of shape {features.shape} and labels of "
            f"shape {labels.shape}."
        )


def refuse_misfits(data: EdgeData, columns: int, classes: int) -> None:
    if data.columns != columns:
        raise BadData(
            f"The model has {counted(columns, 'column')}, and these rows have {data.columns}. Both must be the same."
        )
    if data.classes > classes:
        raise BadData(
            f"The model has {classes} classes, 0 to {classes - 1}, and the largest label is {data.classes - 1}. Code "
            "the labels as the model counts them, or ask for more classes."
        )


class HorizontalModel(Protocol):
    """What an edge needs of a model. Parameters and gradients are flat vectors."""

    @property
    def dimension(self) -> int: ...

    def start(self) -> Vector:
        """Where training begins."""
        ...

    def check(self, data: EdgeData) -> None:
        """Raises BadData unless these rows are of this model's size."""
        ...

    def gradient_sum(self, parameters: Vector, data: EdgeData, rows: Rows) -> Vector:
        """Sum over `rows` of their gradients, as they are."""
        ...

    def grid_sum(self, parameters: Vector, data: EdgeData, rows: Rows, grid: Grid) -> tuple[Integers, int]:
        """Sum over `rows` of their gradients in steps of the grid, each clipped, rounded and held to its bound; and how
        many were within the clip. What a row adds must depend on no other row."""
        ...

    def loss(self, parameters: Vector, data: EdgeData) -> float: ...

    def accuracy(self, parameters: Vector, data: EdgeData) -> float: ...


@dataclass(frozen=True)
class LinearModel:
    """A linear classifier; `classes` is 2 for logistic (one output) and the number of classes otherwise."""

    loss_name: str
    features: int
    classes: int = 2

    def __post_init__(self) -> None:
        if self.loss_name not in LOSS_CODES:
            raise BadJob(f"Unknown horizontal loss {self.loss_name!r}; expected one of {', '.join(LOSS_CODES)}.")
        if self.loss_name == "logistic" and self.classes != 2:
            raise BadJob(f"The logistic model has two classes; {self.classes} were asked for. Use softmax for more.")

    @property
    def outputs(self) -> int:
        return 1 if self.loss_name == "logistic" else self.classes

    @property
    def dimension(self) -> int:
        return self.outputs * (self.features + 1)

    def start(self) -> Vector:
        return np.zeros(self.dimension)

    def check(self, data: EdgeData) -> None:
        refuse_misfits(data, self.features, self.classes)

    @property
    def start_loss(self) -> float:
        """f(0): an upper bound on f(0) - f* that needs no data."""
        return {
            "logistic": math.log(2),
            "softmax": math.log(self.classes),
            "hinge": float(self.classes),
            "squared-hinge": float(self.classes),
        }[self.loss_name]

    def smoothness(self, norm_max: float, strength: float) -> float:
        """L from a public bound on |(row, 1)|. The hinge has none: its square's constant stands in."""
        curvature = {"logistic": 0.25, "softmax": 0.5, "hinge": 2.0, "squared-hinge": 2.0}[self.loss_name]
        return curvature * norm_max**2 + strength

    def gradient_norm_max(self, norm_max: float) -> float:
        """A bound on one row's gradient from the same public bound; none for the squared hinge."""
        residual = {
            "logistic": 1.0,
            "softmax": math.sqrt(2),
            "hinge": math.sqrt(self.classes),
            "squared-hinge": math.inf,
        }[self.loss_name]
        return residual * norm_max

    def first_gradient_norm(self, norm: float) -> float:
        """The norm of a row's gradient at weights of zero, for a row with |(row, 1)| = norm."""
        residual = {
            "logistic": 0.5,
            "softmax": math.sqrt(1 - 1 / self.classes),
            "hinge": math.sqrt(self.classes),
            "squared-hinge": 2 * math.sqrt(self.classes),
        }[self.loss_name]
        return residual * norm

    def gradient_sum(self, parameters: Vector, data: EdgeData, rows: Rows) -> Vector:
        weights, total = self._places(parameters, data)
        _gradient_sum(LOSS_CODES[self.loss_name], weights, data.features, data.labels, rows, total)
        return total.ravel()

    def grid_sum(self, parameters: Vector, data: EdgeData, rows: Rows, grid: Grid) -> tuple[Integers, int]:
        weights, total = self._places(parameters, data)
        code, columns = LOSS_CODES[self.loss_name], (data.features, data.labels, data.norms)
        reach, limit = grid.reach(total.size), float(grid.bound**2)
        within = _grid_sum(code, weights, *columns, rows, reach, grid.step, limit, total)
        return total.ravel().astype(np.int64), int(within)

    def _places(self, parameters: Vector, data: EdgeData) -> tuple[Vector, Vector]:
        self.check(data)  # the kernels look at no bounds: wrong rows would let other memory into the sum
        weights = np.asarray(parameters, dtype=np.float64).reshape(self.outputs, self.features + 1)
        return weights, np.zeros(weights.shape)  # in doubles, whatever the cloud sent: they hold whole numbers exactly

    def scores(self, parameters: Vector, data: EdgeData) -> Vector:
        weights = parameters.reshape(self.outputs, self.features + 1)
        found: Vector = data.features @ weights[:, :-1].T + weights[:, -1]
        return found

    def loss(self, parameters: Vector, data: EdgeData) -> float:
        scores = self.scores(parameters, data)
        if self.loss_name == "softmax":
            top = scores.max(axis=1)
            total = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
            return float((total - scores[np.arange(data.rows), data.labels]).mean())
        if self.loss_name == "logistic":
            return float(np.logaddexp(0.0, -(2 * data.labels - 1) * scores[:, 0]).mean())
        sides = np.where(np.arange(self.classes) == data.labels[:, None], 1.0, -1.0)
        missing = np.maximum(0.0, 1.0 - sides * scores)
        return float((missing if self.loss_name == "hinge" else missing**2).sum(axis=1).mean())

    def predict(self, parameters: Vector, data: EdgeData) -> npt.NDArray[np.int64]:
        scores = self.scores(parameters, data)
        return (scores[:, 0] > 0).astype(np.int64) if self.outputs == 1 else scores.argmax(axis=1)

    def accuracy(self, parameters: Vector, data: EdgeData) -> float:
        return float((self.predict(parameters, data) == data.labels).mean())


def smoothness_by_power(model: HorizontalModel, parameters: Vector, public: EdgeData, iterations: int = 20) -> float:
    """The largest curvature |H v| found by power iteration on PUBLIC rows, with H v from differences of gradients.

    Worst-case bounds hold for rows that all point one way and for the most curved scores; this is what the average over
    rows like these has, often ten times less. The hinge has no curvature: give its square in its place.
    """
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(model.dimension)
    everything = np.arange(public.rows)
    found = 0.0
    for _ in range(iterations):
        direction /= np.linalg.norm(direction)
        step = 1e-2 * direction
        ahead = model.gradient_sum(parameters + step, public, everything)
        behind = model.gradient_sum(parameters - step, public, everything)
        direction = (ahead - behind) / (2e-2 * public.rows)
        found = float(np.linalg.norm(direction))
    return found


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _gradient_sum(code, weights, features, labels, rows, total):  # type: ignore[no-untyped-def]
    """Add each row's gradient to `total`."""
    outputs, width = weights.shape[0], weights.shape[1] - 1
    residual = np.empty(outputs)
    for i in rows:
        x = features[i]
        _scores(weights, x, residual)
        _residual(code, residual, labels[i])
        for k in range(outputs):
            a = residual[k]
            if a != 0.0:
                line = total[k]
                for j in range(width):
                    line[j] += a * x[j]
                line[width] += a


@numba.njit(cache=True, nogil=True)
def _grid_sum(code, weights, features, labels, norms, rows, reach, step, limit, total):  # type: ignore[no-untyped-def]
    """Add each row's gradient in whole steps to `total`; the number of rows that were within `reach`."""
    residual = np.empty(weights.shape[0])
    within = 0
    for i in rows:
        _scores(weights, features[i], residual)
        _residual(code, residual, labels[i])
        norm = 0.0
        for k in range(residual.size):
            norm += residual[k] * residual[k]
        norm = math.sqrt(norm) * norms[i]
        if not norm < 1e300:
            continue  # an overflowing or undefined gradient counts for nothing
        factor = 1.0 if norm <= reach else reach / norm
        within += norm <= reach
        for k in range(residual.size):
            residual[k] = residual[k] * factor / step
        if outer_within(residual, features[i], True, limit):
            add_outer(residual, features[i], True, total)
    return within


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _scores(weights, x, scores):  # type: ignore[no-untyped-def]
    for k in range(scores.size):
        w = weights[k]
        z = 0.0
        for j in range(x.size):
            z += w[j] * x[j]
        scores[k] = z + w[x.size]


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _residual(code, z, label):  # type: ignore[no-untyped-def]
    """Replace scores by residuals."""
    if code == 0:
        side = 1.0 if label == 1 else -1.0
        z[0] = -side / (1.0 + math.exp(min(side * z[0], 700.0)))
    elif code == 3:
        top = z.max()
        total = 0.0
        for k in range(z.size):
            z[k] = math.exp(z[k] - top)
            total += z[k]
        for k in range(z.size):
            z[k] /= total
        z[label] -= 1.0
    else:
        for k in range(z.size):
            side = 1.0 if k == label else -1.0
            missing = 1.0 - side * z[k]
            if not missing > 0.0:
                z[k] = 0.0
            elif code == 1:
                z[k] = -side
            else:
                z[k] = -2.0 * side * missing
