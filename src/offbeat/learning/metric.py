"""Steps divided by the curvature, coordinate by coordinate: a diagonal metric that each party finds in its own columns.

Coordinate j of a step is multiplied by 1 / (h_j + strength p_j), where h_j is the mean over the rows of the loss's
second derivative times the squared value in column j, and p_j bounds the penalty's second derivative around the weight.
A column that many rows have then no longer dictates the step of those that few have, and a weight that the nonconvex
penalty has let go is not held back by those it still holds. The metric is positive, so the problem, its stationary
points and its certificate are those of plain steps; only the way there differs.
"""

import numpy as np
from numpy.typing import NDArray

from offbeat.learning.penalties import Penalty

Floats = NDArray[np.float64]

NEAR = 0.5  # a weight may fall to this part of itself before the metric is taken anew
PENALTY_LEAST = 1e-3  # of the strength: no weight counts as quite free of the penalty
CURVATURE_LEAST = 1e-6  # of the largest, where there is no penalty


def curvature_metric(squares: Floats, weights: Floats, penalty: Penalty, strength: float) -> Floats:
    """What to multiply each coordinate's step by; `squares` are the h_j."""
    held = np.maximum(penalty.curvature_beyond(NEAR * weights), PENALTY_LEAST if strength > 0.0 else 0.0)
    curvature = squares + strength * held
    least = CURVATURE_LEAST * float(curvature.max(initial=0.0))
    return 1.0 / np.maximum(curvature, least) if least > 0.0 else np.ones_like(squares)


def steepest_penalty(metric: Floats, weights: Floats, penalty: Penalty) -> float:
    """The largest second derivative of the penalty in this metric, around these weights."""
    return float((metric * penalty.curvature_beyond(NEAR * weights)).max(initial=0.0))
