"""What a linear run minimises, as one party knows it."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from offbeat.learning.losses import LEAP_MOST, Loss, weighted
from offbeat.learning.penalties import L2, NONE, Penalty

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """f(w) = (1/n) sum_i weight_i loss(z_i, y_i) + strength * penalty(w), z_i = <w, x_i> + constant."""

    rows: int
    loss: Loss
    penalty: Penalty
    strength: float
    labels: Floats | None  # None where this party has none
    intercept: bool = False
    weights: Floats = field(default_factory=lambda: np.empty(0))  # of the rows, with a mean of 1; empty: all 1

    def for_party(self, holds_labels: bool) -> "Problem":
        """The problem as a party with or without labels knows it."""
        return self if holds_labels else replace(self, labels=None, weights=np.empty(0))

    @property
    def outputs(self) -> int:
        """How many products a row has."""
        return self.loss.outputs

    @property
    def tells_curvature(self) -> bool:
        """Whether the chair must tell the others the curvature: derivatives without labels and weights do not."""
        return len(self.weights) > 0 or (self.loss.grows and self.loss.second_from_derivative is None)

    def second(self, z: Floats) -> Floats:
        """The curvature of every row at these products, outputs x rows, for steps: a bound where it jumps, and raised
        where a loss that grows is so far from the labels that a step would move products by more than LEAP_MOST."""
        assert self.labels is not None
        loss, products = weighted(self.loss, self.weights), z if self.outputs > 1 else z[0]
        if loss.grows:
            second = loss.second(products, self.labels)
            pull = np.abs(loss.derivative(products, self.labels)).mean() / max(float(second.mean()), 1e-300)
            return np.atleast_2d(second * max(1.0, pull / LEAP_MOST))
        if loss.second_from_derivative is not None:
            return np.atleast_2d(loss.second(products, self.labels))
        bound = np.full(self.rows, loss.curvature)
        return np.atleast_2d(bound * self.weights if len(self.weights) else bound)

    @property
    def spanned(self) -> bool:
        """Whether the objective on a span of points follows from products and inner products alone."""
        return self.penalty is L2 or self.penalty is NONE or self.strength == 0.0

    @property
    def quadratic_strength(self) -> float:
        return self.strength if self.penalty is L2 else 0.0

    def certificate_terms(self, point: Floats, gradient: Floats, penalty: Penalty) -> Floats:
        """Slack, squared gradient and penalty of a block at this point, where the mean loss has this gradient.
        `penalty`: the block's, with its own orders."""
        weights, mean = point[:, :-1].ravel(), gradient[:, :-1].ravel()
        slope = penalty.slope(weights, mean, self.strength)
        slack = penalty.slack(weights, mean, self.strength)
        return np.array([0.0 if np.isnan(slack) else slack, float(slope @ slope), penalty.value(weights)])
