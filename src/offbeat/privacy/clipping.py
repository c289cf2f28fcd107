"""Bounding what one record can contribute, and rules that move the bound.

Clipping every record's own gradient at C bounds the change of a sum by C when one record comes or goes and by 2C
when one is replaced. Clipping the average of a batch instead, as MAPA prints it, does not: the other records decide
how much of the changed one is let through, and the change can be as large as 2C whatever the batch.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

COUNT_SHARE = 0.1  # of what gradient and count may cost together, at most for the count


def clip_factors(norms: Vector, bound: float) -> Vector:
    """What to multiply each record's gradient with so that no norm passes `bound`."""
    return bound / np.maximum(norms, bound)


def clipped_sum(gradients: Vector, bound: float) -> Vector:
    """Sum of per-record gradients (one a row), each clipped at `bound`. The models have faster ways."""
    norms = np.linalg.norm(gradients, axis=1)
    summed: Vector = clip_factors(norms, bound) @ gradients
    return summed


def clip_average(average: Vector, bound: float) -> Vector:
    """A batch's average clipped as a whole: MAPA as printed. Does NOT bound one record's influence by 2*bound/b."""
    return average / max(1.0, float(np.linalg.norm(average)) / bound)


@dataclass(frozen=True)
class AdaptiveClip:
    """A bound that follows a quantile of the records' norms (Andrew, Thakkar, McMahan and Ramaswamy 2021).

    Each release carries, beside the gradient, a noisy count of the records whose norm is under the bound; the bound
    then moves geometrically towards the wanted quantile. The count is part of the same Gaussian release: shifted by
    one half it changes by at most 1/2 for one record, so the pair costs as much as one release whose multiplier has the
    inverse square z^-2 + (2 s)^-2, s the count's deviation. That is `count_deviation`, or more where the count would
    else take over a tenth of what the pair may cost.
    """

    start: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    count_deviation: float = 10.0

    def next(self, clip: float, fraction_below: float) -> float:
        return clip * math.exp(-self.rate * (min(max(fraction_below, 0.0), 1.0) - self.quantile))

    def deviation(self, joint_multiplier: float) -> float:
        """s: the noise on the count when the pair may cost `joint_multiplier`."""
        return max(self.count_deviation, joint_multiplier / (2 * math.sqrt(COUNT_SHARE)))

    def share(self, joint_multiplier: float) -> float:
        """Of what the pair may cost, for the count."""
        return (joint_multiplier / (2 * self.deviation(joint_multiplier))) ** 2
