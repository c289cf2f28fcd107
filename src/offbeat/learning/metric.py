"""Steps divided by the curvature: a metric that each party finds in its own columns.

What a step would follow is multiplied by the inverse of H + strength P. H is the mean over the rows of the loss's
second derivative times x x^T, within the party's columns; P bounds the penalty's second derivative around each weight.
A narrow dense block takes all of H, any other its diagonal alone. Columns that many rows have, or with large values,
then no longer dictate the step of the others. The metric is positive definite, so the problem, its stationary points
and its certificate are those of plain steps; only the way there differs.
"""

import numpy as np
from numpy.typing import NDArray

from offbeat.learning.penalties import Penalty

Floats = NDArray[np.float64]

NONE, DIAGONAL, WHOLE = "none", "diagonal", "whole"
NO_METRIC = np.empty((1, 0, 0))
NEAR = 0.5  # a weight may fall to this part of itself before the metric is taken anew
PENALTY_LEAST = 1e-3  # of the strength: no weight counts as quite free of the penalty
CURVATURE_LEAST = 1e-6  # of the largest, for columns without values or penalty
WHOLE_WIDTH_MOST = 128
HESSIAN_WORK_MOST = 2**28
HESSIAN_ROWS_LEAST = 4096
"""All of H is taken over as many rows as this work allows, rows times squared columns; then columns that these rows
show as one may differ elsewhere, and a part of the diagonal is added."""
NEWS = 0.25
"""A metric is taken anew when the curvature of a column has changed by this part of itself."""


def penalty_curvature(weights: Floats, penalty: Penalty, strength: float) -> Floats:
    """strength P, one number for each weight."""
    if strength == 0.0:
        return np.zeros_like(weights)
    return strength * np.maximum(penalty.curvature_beyond(NEAR * weights), PENALTY_LEAST)


def diagonal_metric(squares: Floats, weights: Floats, penalty: Penalty, strength: float) -> Floats:
    """What to multiply each coordinate by; `squares` are the diagonal of H."""
    curvature = squares + penalty_curvature(weights, penalty, strength)
    least = CURVATURE_LEAST * float(curvature.max(initial=0.0))
    return 1.0 / np.maximum(curvature, least) if least > 0.0 else np.ones_like(squares)


def steepest_penalty(metric: Floats, weights: Floats, penalty: Penalty) -> float:
    """The largest second derivative of the penalty in this diagonal metric, around these weights."""
    return float((metric * penalty.curvature_beyond(NEAR * weights)).max(initial=0.0))


def is_news(squares: Floats, before: Floats) -> bool:
    """Whether the curvatures of the columns differ enough from those that the metric was taken with."""
    if squares.shape != before.shape:
        return True
    return bool((np.abs(squares - before) > NEWS * before).any())
