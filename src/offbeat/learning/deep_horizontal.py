"""Any torch module as a horizontal model: per-row gradients by torch.func, clipped over all parameters together.

The parameters of the module are one flat vector, in the order of `named_parameters`. A module whose rows influence
one another (batch normalisation) cannot have per-row gradients and is refused. Needs the extra `deep`.
"""

import math
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from offbeat.errors import BadJob, NotInstalled
from offbeat.learning.first_weights import first_weights
from offbeat.learning.grid import Grid, Integers, sum_rounded
from offbeat.learning.horizontal import EdgeData, Rows, Vector, refuse_misfits

if TYPE_CHECKING:
    import torch

CHUNK_ROWS = 32
"""Rows whose gradients are held at once: this many times the number of parameters, in single precision."""


def _torch() -> Any:
    try:
        import torch
    except ImportError as problem:
        raise NotInstalled(
            "Networks need PyTorch, which is not installed. Install the extra: pip install 'offbeat[deep]'."
        ) from problem
    return torch


class DeepModel:
    """A classifier given by a module that maps rows to one score for each class.

    `row_shape` is the shape of one row as the module wants it, for instance (1, 28, 28). The loss is the cross-entropy.
    PyTorch puts the parameters of a call into the module while it lasts, so calls go one at a time; parties on threads
    that are to compute side by side need a model each.
    """

    def __init__(
        self,
        module: "torch.nn.Module",
        row_shape: tuple[int, ...],
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        torch = _torch()
        _refuse_mixing(module)
        self.module = module
        self.row_shape = row_shape
        self.chunk_rows = chunk_rows
        self._names = [name for name, _ in module.named_parameters()]
        self._shapes = [tuple(value.shape) for _, value in module.named_parameters()]
        self._sizes = [int(value.numel()) for _, value in module.named_parameters()]
        self._start = np.concatenate([value.detach().numpy().ravel() for value in module.parameters()])
        self._row_loss = torch.nn.functional.cross_entropy
        self._one_at_a_time = Lock()
        self._row_gradients = torch.func.vmap(torch.func.grad(self._loss_of_one), in_dims=(None, 0, 0))

    @property
    def dimension(self) -> int:
        return sum(self._sizes)

    @property
    def first_layer(self) -> int:
        """Coordinates of the first layer (weights and intercepts): where the paper adds its noise."""
        owner = self._names[0].rpartition(".")[0]
        return sum(
            size for name, size in zip(self._names, self._sizes, strict=True) if name.rpartition(".")[0] == owner
        )

    def start(self) -> Vector:
        return self._start.astype(np.float64)

    def check(self, data: EdgeData) -> None:
        torch = _torch()
        with self._one_at_a_time, torch.no_grad():
            classes = int(self.module(torch.zeros(1, *self.row_shape)).shape[1])
        refuse_misfits(data, math.prod(self.row_shape), classes)

    def gradient_sum(self, parameters: Vector, data: EdgeData, rows: Rows) -> Vector:
        """Nothing to clip: one backward pass for all rows."""
        torch = _torch()
        with self._one_at_a_time:
            flat = self._flat(parameters).requires_grad_()
            scores = torch.func.functional_call(self.module, self._parts(flat), (self._inputs(data, rows),))
            loss = self._row_loss(scores, self._labels(data, rows), reduction="sum")
            found: Vector = torch.autograd.grad(loss, flat)[0].numpy().astype(np.float64)
        return found

    def grid_sum(self, parameters: Vector, data: EdgeData, rows: Rows, grid: Grid) -> tuple[Integers, int]:
        """Rows go in chunks of one size, the last one filled up, so that no other row decides how one is computed."""
        total, within = np.zeros(self.dimension, dtype=np.int64), 0
        with self._one_at_a_time:
            for first in range(0, rows.size, self.chunk_rows):
                each = self._row_gradients_of(parameters, data, rows[first : first + self.chunk_rows])
                norms = np.sqrt(np.einsum("ij,ij->i", each, each, dtype=np.float64))
                total += sum_rounded(each, norms, grid)
                within += int((norms <= grid.reach(self.dimension)).sum())
        return total, within

    def _row_gradients_of(self, parameters: Vector, data: EdgeData, rows: Rows) -> npt.NDArray[np.float32]:
        torch = _torch()
        filled = np.concatenate((rows, np.repeat(rows[:1], self.chunk_rows - rows.size)))
        with torch.no_grad():
            named, labels = self._named(parameters), self._labels(data, filled)
            gradients = self._row_gradients(named, self._inputs(data, filled), labels)
            flat = [gradients[name].reshape(filled.size, -1) for name in self._names]
            found: npt.NDArray[np.float32] = torch.cat(flat, dim=1).numpy()[: rows.size]
        return found

    def _loss_of_one(self, parameters: dict[str, Any], row: Any, label: Any) -> Any:
        torch = _torch()
        scores = torch.func.functional_call(self.module, parameters, (row.unsqueeze(0),))
        return self._row_loss(scores, label.unsqueeze(0), reduction="sum")

    def _flat(self, parameters: Vector) -> Any:
        return _torch().from_numpy(np.asarray(parameters, dtype=np.float32).copy())

    def _named(self, parameters: Vector) -> dict[str, Any]:
        return self._parts(self._flat(parameters))

    def _parts(self, flat: Any) -> dict[str, Any]:
        parts = _torch().split(flat, self._sizes)
        named = zip(self._names, parts, self._shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in named}

    def _inputs(self, data: EdgeData, rows: Rows | slice) -> Any:
        chosen = np.asarray(data.features[rows], dtype=np.float32)
        return _torch().from_numpy(np.ascontiguousarray(chosen)).reshape(-1, *self.row_shape)

    def _labels(self, data: EdgeData, rows: Rows | slice) -> Any:
        return _torch().from_numpy(np.ascontiguousarray(data.labels[rows]))

    def scores(self, parameters: Vector, data: EdgeData) -> npt.NDArray[np.float32]:
        torch = _torch()
        named, parts = self._named(parameters), []
        with self._one_at_a_time, torch.no_grad():
            for first in range(0, data.rows, 1000):
                inputs = self._inputs(data, slice(first, first + 1000))
                parts.append(torch.func.functional_call(self.module, named, (inputs,)).numpy())
        return np.concatenate(parts)

    def loss(self, parameters: Vector, data: EdgeData) -> float:
        torch = _torch()
        with torch.no_grad():
            scores = torch.from_numpy(self.scores(parameters, data))
            return float(self._row_loss(scores, self._labels(data, slice(None)), reduction="mean"))

    def accuracy(self, parameters: Vector, data: EdgeData) -> float:
        return float((self.scores(parameters, data).argmax(axis=1) == data.labels).mean())


def digits_network(side: int, seed: int, channels: tuple[int, int] = (16, 32)) -> "torch.nn.Module":
    """The paper's network: two convolutions, two pools, one full layer, for `side` x `side` pictures of ten digits."""
    torch = _torch()
    nn = torch.nn
    first, second = channels
    kernel = 5 if side >= 20 else 3
    left = (side - kernel + 1) // 2
    left = (left - kernel + 1) // 2
    with first_weights(seed):
        return nn.Sequential(
            nn.Conv2d(1, first, kernel),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, kernel),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * left * left, 10),
        )


def digits_model(side: int, seed: int, channels: tuple[int, int] = (16, 32)) -> DeepModel:
    return DeepModel(digits_network(side, seed, channels), (1, side, side))


def _refuse_mixing(module: "torch.nn.Module") -> None:
    torch = _torch()
    mixing = (torch.nn.modules.batchnorm._BatchNorm,)
    for name, part in module.named_modules():
        if isinstance(part, mixing):
            raise BadJob(
                f"The layer {name!r} ({type(part).__name__}) mixes the rows of a batch, so a row has no gradient of "
                "its own to clip. Use GroupNorm or LayerNorm instead."
            )
