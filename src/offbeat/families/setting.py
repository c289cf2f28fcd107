"""How good a model is, when all the data is at hand: the pooled objective, the distance to its minimum, test metrics.

None of this is part of a protocol. In the simulator and on threads one process holds every party's rows, so an
observer may look at the parties' blocks as they are, at any time and at no cost to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.assemble import VerticalData
from offbeat.data.matrix import Matrix, stack_columns
from offbeat.data.weights import NO_WEIGHTS
from offbeat.errors import BadJob
from offbeat.learning import central
from offbeat.learning.blocks import Block, make_block, with_means
from offbeat.learning.losses import Loss, huber, weighted
from offbeat.learning.orders import Order
from offbeat.learning.penalties import L2, NONE, Penalty
from offbeat.learning.scores import metrics_of
from offbeat.metrics import held_out
from offbeat.metrics.held_out import HeldOut
from offbeat.party.problem import Problem
from offbeat.randomness import stream

Floats = NDArray[np.float64]
Weights = Mapping[str, Floats]

OPTIMUM_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Setting:
    """A problem ready to be learned: rows shuffled once, the test rows apart."""

    names: tuple[str, ...]
    train: Mapping[str, Matrix]
    test: Mapping[str, Matrix]
    y_train: Floats
    y_test: Floats
    loss: Loss
    penalty: Penalty
    strength: float
    intercept: bool
    classifies: bool
    weights: Floats = field(default_factory=lambda: NO_WEIGHTS)  # of the training rows, with a mean of 1
    centred: bool = True  # whether blocks centre their columns
    middle: float = 0.0  # what was taken from the labels,
    unit: float = 1.0  # and what they were divided by then; objectives are in its square, models and metrics in labels
    orders: Mapping[str, tuple[Order, ...]] = field(default_factory=dict)  # of the weights of some parties

    def in_units(self, middle: float, unit: float) -> "Setting":
        """The same problem in other units. For the squared loss with an l2 penalty or none, the least point is divided
        by the unit, its constant less the middle, and nothing else changes; for Huber's too, with delta in the unit."""
        loss = huber(self.loss.delta / unit) if self.loss.delta else self.loss
        train, test = (self.y_train - middle) / unit, (self.y_test - middle) / unit
        return replace(self, y_train=train, y_test=test, loss=loss, middle=middle, unit=unit)

    @property
    def rows(self) -> int:
        return len(self.y_train)

    def problem(self) -> Problem:
        """What the parties minimise."""
        terms = (self.loss, self.penalty, self.strength)
        return Problem(self.rows, *terms, self.y_train, intercept=self.intercept, weights=self.weights)

    @property
    def weighted_loss(self) -> Loss:
        """Of all training rows together."""
        return weighted(self.loss, self.weights)

    def new_blocks(self, method: str = "svrg") -> dict[str, Block]:
        terms: dict[str, Any] = {"strength": self.strength, "intercept": self.intercept and self.centred}
        terms |= {"outputs": self.loss.outputs, "method": method}
        own = {name: replace(self.penalty, orders=orders) for name, orders in self.orders.items()}
        return {name: make_block(self.train[name], penalty=own.get(name, self.penalty), **terms) for name in self.names}

    def objective(self, blocks: Mapping[str, Block], weights: Weights) -> float:
        """The pooled objective at these weights of blocks, which hold the rows in the form that multiplies fastest."""
        product = np.asarray(sum(blocks[name].share(0, self.rows, weights[name]) for name in self.names))
        if self.loss.outputs > 1:
            product = product.reshape(self.loss.outputs, -1)
        loss = float(np.mean(self.weighted_loss.value(product, self.y_train)))
        return loss + self.strength * sum(self.penalty.value(weights[name][:, :-1]) for name in self.names)

    def scores(self, parts: Mapping[str, Matrix], model: Weights) -> Floats:
        """What a model, of `model_of`, gives these rows; with several outputs, rows x outputs."""
        total = np.zeros((parts[self.names[0]].shape[0], self.loss.outputs))
        for name in self.names:
            total += np.asarray(parts[name] @ model[name][:, :-1].T) + model[name][:, -1]
        return total if self.loss.outputs > 1 else total[:, 0]

    def spread(self, model: Weights) -> float:
        """How far the training rows' scores lie apart, in deviations of the labels; nan where these are all alike."""
        apart = float(np.std(self.y_train)) or float("nan")
        return float(np.max(np.std(self.scores(self.train, model), axis=0))) / apart

    def test_metrics(self, model: Weights) -> dict[str, float]:
        """Nothing without test rows."""
        if not len(self.y_test):
            return {}
        return metrics_of(self.scores(self.test, model), self.y_test, self.loss, self.classifies, self.unit)

    def held_out(self, model: Weights, offset: float = 0.0) -> HeldOut | None:
        """What the test rows say of a model, in curves and counts; nothing without test rows. `offset`: what was taken
        from numbers before they came here."""
        if not len(self.y_test):
            return None
        scores, start = self.scores(self.test, model), self.middle + offset
        return held_out.of_scores(scores, self.y_test, self.loss, self.classifies, self.unit, start)

    def pooled(self) -> Any:
        """All columns in one place and, where the model has an intercept, a column of ones last."""
        ones = [np.ones((self.rows, 1))] if self.intercept else []
        return stack_columns([*(self.train[name] for name in self.names), *ones])

    def pooled_orders(self) -> tuple[Order, ...]:
        """Of the pooled columns."""
        found: list[Order] = []
        before = 0
        for name in self.names:
            found += [(before + start, before + stop, sign) for start, stop, sign in self.orders.get(name, ())]
            before += self.train[name].shape[1]
        return tuple(found)

    def optimum(self, seed: int = 0) -> float | None:
        """The least pooled objective; for a nonconvex penalty the least one known; None where none was found."""
        pooled, free = central.thin(self.pooled()), int(self.intercept)
        try:
            if self.penalty is L2 or self.penalty is NONE:
                strength = self.strength if self.penalty is L2 else 0.0
                best = central.optimum(
                    pooled, self.y_train, self.weighted_loss, strength, free=free, tolerance=OPTIMUM_TOLERANCE
                )
                return best[1]
            terms = (self.weighted_loss, self.penalty, self.strength)
            if self.orders:
                start, orders = np.zeros(pooled.shape[1]), self.pooled_orders()
                best_point = central.descend(pooled, self.y_train, start, *terms, free=free, orders=orders)
                return central.objective(pooled, self.y_train, best_point, *terms, free)
            return central.best_known(pooled, self.y_train, *terms, rng=stream(seed, "best known"), free=free)[1]
        except BadJob:
            return None  # no minimum within reach, as when separable classes meet no penalty


def prepare(
    data: VerticalData, *, loss: Loss, penalty: Penalty, strength: float, intercept: bool, seed: int
) -> Setting:
    """Shuffle the training rows once by the shared seed: methods may then draw contiguous batches."""
    order = stream(seed, "rows").permutation(data.rows)
    train: dict[str, Matrix] = {name: data.train[name][order] for name in data.names}
    return Setting(
        names=data.names,
        train=train,
        test=dict(data.test),
        y_train=data.y_train[order],
        y_test=data.y_test,
        loss=loss,
        penalty=penalty,
        strength=strength,
        intercept=intercept,
        classifies=data.task != "regression",
        weights=data.weights_train[order] if len(data.weights_train) else NO_WEIGHTS,
    )


def party_weights(parties: Sequence[Any]) -> dict[str, Floats]:
    """The blocks as they are now: for each, outputs x (columns and, last, a constant)."""
    return {party.name: party.block.weights() for party in parties}


def model_of(blocks: Mapping[str, Block], weights: Weights) -> dict[str, Floats]:
    """The same for columns as they are: blocks subtract their columns' means, and constants make up for that."""
    return {name: with_means(blocks[name].means, values) for name, values in weights.items()}
