"""What a client turns its columns into, what the server makes of it, and how both are improved. No torch in here.

An *embedding* maps a client's row to a short vector; a *head* maps all clients' vectors of one row to a loss. Both
are descriptions without state: the weights are handed in and come back, so a forward pass stays valid after the
weights have moved on, and several may be under way at once.

    forward   h = final(f(weights, x) + noise)                one row each; the noise is part of the pass
    on a grid h = final((rounded f(weights, x) + noise) step) both in whole steps: see `grid`
    gradient  mean over rows of (dh/dweights)^T derivative    through that same pass

`LinearEmbedding` has both in closed form, with the norm of every single row's gradient; `AdditiveHead` sums the
clients' vectors (federated logistic, softmax and least-squares regression). Networks are in `networks.py`.
Weights are dictionaries of arrays: numpy here, torch tensors there. What is written for them below uses only
operators that both have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob
from offbeat.learning.embedding_table import HostShelf, Shelf
from offbeat.learning.grid import Grid, Integers, round_rows, sum_outer
from offbeat.names import did_you_mean

Array = NDArray[Any]
Tensors = dict[str, Any]
"""Name to array; numpy arrays or torch tensors, never mixed."""


class Weights(NamedTuple):
    """What is trained, and what is only kept (a network's running statistics)."""

    trained: Tensors
    kept: Tensors


class Disturbance(NamedTuple):
    """What a pass does to its embedding before it may leave. `c` of the paper is a standard deviation here.

    With a grid each row's embedding is clipped and rounded to whole steps, and the noise is whole steps too.
    """

    grid: Grid | None = None
    noise: Array | None = None  # added to the last layer, one fresh draw for each row
    inner_seed: int | None = None  # seeds the uniform noise of a network's inner layers; None: they are quiet
    draw: Callable[[Integers], Integers] | None = None  # gives the noise for whole numbers, where `noise` is not given


class Forward(NamedTuple):
    """One pass: the embedding that may be sent, what its gradient needs, and the noise that was added."""

    embedding: Array
    trace: Any
    kept: Tensors
    noise: Array | None = None


def on_grid(raw: Array, disturbance: Disturbance) -> tuple[Array, Array]:
    """(what may leave, the noise in it): a whole number times the step, for every coordinate."""
    assert disturbance.grid is not None
    whole, noise = round_rows(raw, disturbance.grid), disturbance.noise
    if noise is None:
        noise = np.zeros_like(whole) if disturbance.draw is None else disturbance.draw(whole)
    return (whole + noise) * disturbance.grid.step, noise


class Trainable(Protocol):
    """What clients' and server's models have in common."""

    @property
    def work(self) -> int:
        """Multiplications of one row's forward pass: what a cost model charges by."""
        ...

    def initial(self, rng: np.random.Generator) -> Weights: ...

    def step(self, rule: "Optimiser", trained: Tensors, gradient: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        """(new weights, new memory): `rule.apply`, in whatever way suits the tensors."""
        ...

    def to_arrays(self, tensors: Tensors) -> dict[str, Array]: ...

    def from_arrays(self, arrays: Mapping[str, Array]) -> Tensors: ...


class Embedding(Trainable, Protocol):
    """A client's model."""

    @property
    def inputs(self) -> int:
        """Numbers in a row."""
        ...

    @property
    def width(self) -> int: ...

    @property
    def dtype(self) -> Any:
        """Of the embeddings, as numpy has it."""
        ...

    @property
    def begins_at_zero(self) -> bool:
        """Whether the first weights make every row's embedding zero, whatever is in the row."""
        ...

    def place(self, features: Any) -> Any:
        """The client's rows, held where and how the passes want them."""
        ...

    def forward(self, weights: Weights, features: Any, rows: Array, disturbance: Disturbance) -> Forward: ...

    def gradient(self, forward: Forward, derivative: Array) -> Tensors:
        """Mean over the rows."""
        ...

    def grid_sum(self, forward: Forward, derivative: Array, grid: Grid) -> dict[str, Integers]:
        """Sum of every row's gradient in steps of the grid, each clipped, rounded and held to its bound."""
        ...

    def check_row_gradients(self) -> None:
        """Raise BadJob where `grid_sum` would have no meaning."""
        ...

    def infer(self, weights: Weights, features: Any, rows: Array) -> Array:
        """The undisturbed embedding, as it is for prediction."""
        ...


class HeadPass(NamedTuple):
    loss: float  # mean over the rows
    derivatives: dict[int, Array]  # client index -> d loss_n / d h_n, one row each, not averaged
    gradient: Tensors  # of the mean loss
    kept: Tensors


class Head(Trainable, Protocol):
    """The server's model."""

    @property
    def outputs(self) -> int: ...

    @property
    def loss_name(self) -> str: ...

    def evaluate(
        self, weights: Weights, embeddings: Sequence[Array], targets: Array, wanted: Sequence[int]
    ) -> HeadPass: ...

    def shelf(self, values: Array) -> Shelf:
        """A place for the newest embeddings of one client, near to where this head computes."""
        ...

    def scores(self, weights: Weights, embeddings: Sequence[Array]) -> Array:
        """Probabilities of the classes, one row each; the predicted value for regression."""
        ...

    def loss(self, weights: Weights, embeddings: Sequence[Array], targets: Array) -> float:
        """The mean loss, as `evaluate` has it, without gradients and in prediction mode."""
        ...


# -- the linear embedding -------------------------------------------------------------------------------------------


class _InArrays:
    """What linear models do with their weights."""

    def step(self, rule: "Optimiser", trained: Tensors, gradient: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        return rule.apply(trained, gradient, memory)

    def to_arrays(self, tensors: Tensors) -> dict[str, Array]:
        return {name: np.array(value) for name, value in tensors.items()}

    def from_arrays(self, arrays: Mapping[str, Array]) -> Tensors:
        return {name: np.array(value) for name, value in arrays.items()}


MOMENT_ROWS = 4096  # at a time: sparse ones are made dense


class _LinearTrace(NamedTuple):
    x: Any
    raw: Array  # before clipping
    clip: float | None


@dataclass(frozen=True)
class LinearEmbedding(_InArrays):
    """h = W x (+ b): with an additive head this is logistic, softmax or linear regression over all columns."""

    inputs: int
    width: int
    bias: bool = False

    @property
    def dtype(self) -> Any:
        return np.float64

    @property
    def work(self) -> int:
        return self.inputs * self.width

    @property
    def begins_at_zero(self) -> bool:
        return True

    def place(self, features: Any) -> Any:
        if not hasattr(features, "tocsr"):
            return np.asarray(features, dtype=np.float64)
        rows = features.tocsr().astype(np.float64)
        rows.sum_duplicates()  # an entry that came in two parts would be rounded in two parts
        return rows

    def initial(self, rng: np.random.Generator) -> Weights:
        trained = {"weight": np.zeros((self.width, self.inputs))}
        return Weights(trained | ({"bias": np.zeros(self.width)} if self.bias else {}), {})

    def forward(self, weights: Weights, features: Any, rows: Array, disturbance: Disturbance) -> Forward:
        x = features[rows]
        raw = self._raw(weights, x)
        if disturbance.grid is not None:
            embedding, noise = on_grid(raw, disturbance)
            return Forward(embedding, _LinearTrace(x, raw, disturbance.grid.reach(self.width)), weights.kept, noise)
        embedding = raw if disturbance.noise is None else raw + disturbance.noise
        return Forward(embedding, _LinearTrace(x, raw, None), weights.kept, disturbance.noise)

    def gradient(self, forward: Forward, derivative: Array) -> Tensors:
        trace: _LinearTrace = forward.trace
        return self._weighted(trace, through_clip(trace.raw, trace.clip, derivative), 1.0 / len(derivative))

    def grid_sum(self, forward: Forward, derivative: Array, grid: Grid) -> dict[str, Integers]:
        trace: _LinearTrace = forward.trace
        pulled = through_clip(trace.raw, trace.clip, derivative)
        total = sum_outer(np.ascontiguousarray(pulled, dtype=np.float64), trace.x, self.bias, grid)
        return {"weight": total[:, : self.inputs]} | ({"bias": total[:, -1]} if self.bias else {})

    def check_row_gradients(self) -> None:
        pass

    def grid_moments(self, features: Any, grid: Grid) -> Integers:
        """Sum of every row's outer product with itself in steps of the grid, each clipped, rounded and held to its
        bound; a bias is a column of ones."""
        total = np.zeros((self.inputs + self.bias,) * 2, dtype=np.int64)
        for first in range(0, features.shape[0], MOMENT_ROWS):
            x = features[first : first + MOMENT_ROWS]
            dense = x.toarray() if hasattr(x, "toarray") else x
            left = np.hstack([dense, np.ones((len(dense), 1))]) if self.bias else dense
            total += sum_outer(np.ascontiguousarray(left), x, self.bias, grid)
        return total

    def turned(self, gradient: Tensors, metric: Array) -> Tensors:
        """The gradient times a matrix over the columns."""
        if not self.bias:
            return {"weight": gradient["weight"] @ metric}
        both = np.column_stack([gradient["weight"], gradient["bias"]]) @ metric
        return {"weight": both[:, :-1], "bias": both[:, -1]}

    def infer(self, weights: Weights, features: Any, rows: Array) -> Array:
        return self._raw(weights, features[rows])

    def _raw(self, weights: Weights, x: Any) -> Array:
        product = np.asarray(x @ weights.trained["weight"].T)
        return product + weights.trained["bias"] if self.bias else product

    def _weighted(self, trace: _LinearTrace, derivative: Array, scale: float) -> Tensors:
        gradient = {"weight": scale * np.asarray((trace.x.T @ derivative).T)}
        return gradient | ({"bias": scale * derivative.sum(axis=0)} if self.bias else {})


def through_clip(h: Array, bound: float | None, derivative: Array) -> Array:
    """The derivative before clipping, from the one behind it: a clipped row may only turn, not grow."""
    if bound is None:
        return derivative
    norms = np.linalg.norm(h, axis=1)
    clipped = norms > bound
    unit = h / np.where(clipped, norms, 1.0)[:, None]
    along = np.sum(derivative * unit, axis=1, keepdims=True)
    turned = (derivative - along * unit) * (bound / np.where(clipped, norms, 1.0))[:, None]
    return np.where(clipped[:, None], turned, derivative)


# -- the additive head ----------------------------------------------------------------------------------------------


LOSSES = ("softmax", "logistic", "squared")


@dataclass(frozen=True)
class AdditiveHead(_InArrays):
    """z = sum of the clients' embeddings (+ bias); the loss of z against a target row.

    | loss     | target                     | loss of one row            | derivative   |
    |----------|----------------------------|----------------------------|--------------|
    | softmax  | one number for each class  | -sum_c t_c log softmax(z)_c | softmax - t |
    | logistic | one number, 0 or 1         | log(1+e^z) - t z           | sigmoid - t  |
    | squared  | one number                 | (z-t)^2 / 2                | z - t        |

    The derivative of a row is the same for every client, and gives its label away: with softmax and a target of
    zeros and a one, its only negative entry is the label.
    """

    outputs: int
    loss_name: str = "softmax"
    bias: bool = True

    def __post_init__(self) -> None:
        if self.loss_name not in LOSSES:
            raise BadJob(f"Unknown loss of an additive head {self.loss_name!r}. {did_you_mean(self.loss_name, LOSSES)}")
        if self.loss_name == "logistic" and self.outputs != 1:
            raise BadJob(f"The logistic loss has one output; got {self.outputs}. For more classes use 'softmax'.")

    @property
    def work(self) -> int:
        return self.outputs

    def initial(self, rng: np.random.Generator) -> Weights:
        return Weights({"bias": np.zeros(self.outputs)} if self.bias else {}, {})

    def evaluate(
        self, weights: Weights, embeddings: Sequence[Array], targets: Array, wanted: Sequence[int]
    ) -> HeadPass:
        z = self._sum(weights, embeddings)
        derivative = expected(self.loss_name, z) - targets
        gradient = {"bias": derivative.mean(axis=0)} if self.bias else {}
        loss = mean_loss(self.loss_name, z, targets)
        return HeadPass(loss, dict.fromkeys(wanted, derivative), gradient, weights.kept)

    def shelf(self, values: Array) -> Shelf:
        return HostShelf(values)

    def scores(self, weights: Weights, embeddings: Sequence[Array]) -> Array:
        return expected(self.loss_name, self._sum(weights, embeddings))

    def loss(self, weights: Weights, embeddings: Sequence[Array], targets: Array) -> float:
        return mean_loss(self.loss_name, self._sum(weights, embeddings), targets)

    def _sum(self, weights: Weights, embeddings: Sequence[Array]) -> Array:
        z = np.zeros(embeddings[0].shape)
        for embedding in embeddings:  # in the clients' order, whatever order they came in
            z = z + embedding
        return z + weights.trained["bias"] if self.bias else z


def expected(loss_name: str, z: Array) -> Array:
    """What the model expects the target to be at the score z."""
    if loss_name == "squared":
        return z
    if loss_name == "logistic":
        small = np.exp(-np.abs(z))
        return np.asarray(np.where(z >= 0, 1.0, small) / (1.0 + small))
    shifted = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def mean_loss(loss_name: str, z: Array, targets: Array) -> float:
    if loss_name == "squared":
        return float(0.5 * np.mean(np.sum((z - targets) ** 2, axis=1)))
    if loss_name == "logistic":
        return float(np.mean(np.logaddexp(0.0, z) - targets * z))
    top = z.max(axis=1, keepdims=True)
    log_sum = top + np.log(np.exp(z - top).sum(axis=1, keepdims=True))
    return float(np.mean(np.sum(targets * (log_sum - z), axis=1)))


# -- steps and penalties --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sgd:
    """The paper's step: weights - step * gradient."""

    step: float

    def initial(self, trained: Tensors) -> Tensors:
        return {}

    def apply(self, trained: Tensors, gradient: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        return {name: value - self.step * gradient[name] for name, value in trained.items()}, memory


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015); each party that uses it says so. Its memory is the party's own."""

    step: float
    beta1: float = 0.9
    beta2: float = 0.999
    floor: float = 1e-8

    def initial(self, trained: Tensors) -> Tensors:
        moments = {f"{kind}.{name}": 0.0 * value for kind in ("first", "second") for name, value in trained.items()}
        return moments | {"count": np.zeros(1)}

    def apply(self, trained: Tensors, gradient: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        count = float(memory["count"][0]) + 1.0
        moved, kept = {}, {"count": np.full(1, count)}
        for name, value in trained.items():
            slope = gradient[name]
            first = self.beta1 * memory[f"first.{name}"] + (1.0 - self.beta1) * slope
            second = self.beta2 * memory[f"second.{name}"] + (1.0 - self.beta2) * slope * slope
            kept[f"first.{name}"], kept[f"second.{name}"] = first, second
            size = (second / (1.0 - self.beta2**count)) ** 0.5 + self.floor
            moved[name] = value - (self.step / (1.0 - self.beta1**count)) * first / size
        return moved, kept


Optimiser = Sgd | Adam

PENALTIES = ("none", "l1", "l2", "box", "ball")


@dataclass(frozen=True)
class ClientPenalty:
    """r of one client's weights, applied as a proximal step after the gradient's.

    | name | r(w)                   | proximal step of size s          |
    |------|------------------------|----------------------------------|
    | none | 0                      | w                                |
    | l1   | size * sum of abs(w_j) | move each w_j by s*size towards 0 |
    | l2   | size * norm(w)^2 / 2   | w / (1 + s*size)                 |
    | box  | 0 if abs(w_j) <= size  | the nearest point in the box     |
    | ball | 0 if norm(w) <= size   | the nearest point in the ball    |
    """

    name: str = "none"
    size: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in PENALTIES:
            raise BadJob(f"Unknown penalty of a client {self.name!r}. {did_you_mean(self.name, PENALTIES)}")
        if self.name != "none" and not self.size > 0:
            raise BadJob(f"The penalty {self.name!r} needs a size above 0; got {self.size}.")

    def proximal(self, trained: Tensors, step: float) -> Tensors:
        if self.name == "none":
            return trained
        if self.name == "l1":
            bound = step * self.size
            return {name: value - value.clip(-bound, bound) for name, value in trained.items()}
        if self.name == "box":
            return {name: value.clip(-self.size, self.size) for name, value in trained.items()}
        factor = (
            1.0 / (1.0 + step * self.size) if self.name == "l2" else min(1.0, self.size / max(_norm(trained), 1e-300))
        )
        return {name: value * factor for name, value in trained.items()}

    def value(self, trained: Tensors) -> float:
        """0 for the box and the ball: the proximal step keeps the weights inside."""
        if self.name == "l1":
            return self.size * sum(float(abs(value).sum()) for value in trained.values())
        return 0.5 * self.size * _norm(trained) ** 2 if self.name == "l2" else 0.0


def _norm(tensors: Tensors) -> float:
    return float(sum(float((value * value).sum()) for value in tensors.values()) ** 0.5)
