"""What a linear run minimises, as one party knows it."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from offbeat.learning.losses import Loss
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
    def spanned(self) -> bool:
        """Whether the objective on a span of points follows from products and inner products alone."""
        return self.penalty is L2 or self.penalty is NONE or self.strength == 0.0

    @property
    def quadratic_strength(self) -> float:
        return self.strength if self.penalty is L2 else 0.0
