"""How good a model is, when all the data is at hand: the pooled objective, the distance to its minimum, test metrics.

None of this is part of a protocol. In the simulator and on threads one process holds every party's rows, so an
observer may look at the parties' blocks as they are, at any time and at no cost to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from offbeat.data.assemble import VerticalData
from offbeat.data.matrix import Matrix, stack_columns
from offbeat.errors import BadJob
from offbeat.learning import central
from offbeat.learning.blocks import Block, make_block
from offbeat.learning.losses import Loss
from offbeat.learning.penalties import L2, NONE, Penalty
from offbeat.learning.scores import root_mean_square, two_class_metrics
from offbeat.randomness import stream

Floats = NDArray[np.float64]
Weights = Mapping[str, Floats]

OPTIMUM_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Setting:
    """A problem ready to be learned: rows shuffled once, the constant column in its place, the test rows apart."""

    names: tuple[str, ...]
    train: Mapping[str, Matrix]
    test: Mapping[str, Matrix]
    y_train: Floats
    y_test: Floats
    loss: Loss
    penalty: Penalty
    strength: float
    constant_at: str | None  # who holds the intercept's column, the last of its columns
    classifies: bool

    @property
    def rows(self) -> int:
        return len(self.y_train)

    def new_blocks(self) -> dict[str, Block]:
        return {name: self._new_block(name) for name in self.names}

    def _new_block(self, name: str) -> Block:
        """The constant column is not stored in a block: the block knows it as its intercept."""
        constant = name == self.constant_at
        matrix = self.train[name][:, :-1] if constant else self.train[name]
        return make_block(matrix, penalty=self.penalty, strength=self.strength, intercept=constant)

    def objective(self, blocks: Mapping[str, Block], weights: Weights) -> float:
        """The pooled objective at these weights; `blocks` hold the rows in the form that multiplies fastest."""
        product = sum(blocks[name].share(0, self.rows, weights[name]) for name in self.names)
        loss = float(np.mean(self.loss.value(np.asarray(product), self.y_train)))
        return loss + self.strength * sum(self.penalty.value(weights[name]) for name in self.names)

    def scores(self, parts: Mapping[str, Matrix], weights: Weights) -> Floats:
        total = np.zeros(parts[self.names[0]].shape[0])
        for name in self.names:
            total += np.asarray(parts[name] @ weights[name])
        return total

    def test_metrics(self, weights: Weights) -> dict[str, float]:
        """Accuracy and AUC for two classes, RMSE for numbers; nothing without test rows."""
        if not len(self.y_test):
            return {}
        scores = self.scores(self.test, weights)
        if not self.classifies:
            return {"test_rmse": root_mean_square(scores - self.y_test)}
        return two_class_metrics(scores, self.y_test)

    def optimum(self, seed: int = 0) -> float | None:
        """The least pooled objective; for a nonconvex penalty the least one known; None where none was found."""
        pooled: Any = stack_columns([self.train[name] for name in self.names])
        try:
            if self.penalty is L2 or self.penalty is NONE:
                strength = self.strength if self.penalty is L2 else 0.0
                return central.optimum(pooled, self.y_train, self.loss, strength, tolerance=OPTIMUM_TOLERANCE)[1]
            rng = stream(seed, "best known")
            return central.best_known(pooled, self.y_train, self.loss, self.penalty, self.strength, rng=rng)[1]
        except BadJob:
            return None  # no minimum within reach, as when separable classes meet no penalty


def prepare(
    data: VerticalData, *, loss: Loss, penalty: Penalty, strength: float, intercept: bool, seed: int
) -> Setting:
    """Shuffle the training rows once by the shared seed: methods may then draw contiguous batches."""
    order = stream(seed, "rows").permutation(data.rows)
    train: dict[str, Matrix] = {name: data.train[name][order] for name in data.names}
    test: dict[str, Matrix] = dict(data.test)
    constant_at = data.labels_at[0] if intercept else None
    if constant_at is not None:
        train[constant_at] = with_constant(train[constant_at])
        test[constant_at] = with_constant(test[constant_at])
    return Setting(
        names=data.names,
        train=train,
        test=test,
        y_train=data.y_train[order],
        y_test=data.y_test,
        loss=loss,
        penalty=penalty,
        strength=strength,
        constant_at=constant_at,
        classifies=data.task == "classification",
    )


def with_constant(matrix: Matrix) -> Matrix:
    """One more column, of ones."""
    ones = np.ones((matrix.shape[0], 1))
    if isinstance(matrix, np.ndarray):
        return np.hstack([matrix, ones])
    return scipy.sparse.csr_matrix(scipy.sparse.hstack([matrix, scipy.sparse.csr_matrix(ones)], format="csr"))


def party_weights(parties: Sequence[Any]) -> dict[str, Floats]:
    """The blocks as they are now."""
    return {party.name: party.member.block.weights() for party in parties}
