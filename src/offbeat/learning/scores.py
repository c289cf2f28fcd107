"""How good scores are: accuracy, the area under the curve, probabilities."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob
from offbeat.learning.losses import EXP_MOST, Loss

Floats = NDArray[np.float64]


def accuracy(scores: Floats, y: Floats) -> float:
    """Of scores around zero, with labels of -1 and 1."""
    return float(np.mean((scores >= 0) == (y > 0)))


def area_under_curve(scores: NDArray[Any], positive: NDArray[Any]) -> float:
    """The chance that a positive scores above a negative, ties counted half; NaN when one class is absent."""
    count = int(np.count_nonzero(positive))
    if count in (0, len(positive)):
        return float("nan")
    _, group, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(ties) - (ties - 1) / 2  # those of equal scores are the same
    below = float(ranks[group][positive].sum()) - count * (count + 1) / 2
    return below / (count * (len(positive) - count))


def two_class_metrics(scores: Floats, y: Floats) -> dict[str, float]:
    """What a test of two classes is told by; y is -1 and 1."""
    return {"test_auc": area_under_curve(scores, y > 0), "test_accuracy": accuracy(scores, y)}


def answered_metrics(scores: Floats, targets: Floats) -> dict[str, float]:
    """The same from labels that were answered at random: `targets` are de-biased answers, whose means are the true
    labels (0 and 1). Each sum below has the true sum as its mean, since answers are independent of each other."""
    right = np.where(scores >= 0, targets, 1.0 - targets)
    return {"test_auc": _answered_area(scores, targets), "test_accuracy": float(np.clip(np.mean(right), 0.0, 1.0))}


def _answered_area(scores: Floats, targets: Floats) -> float:
    """Over all pairs of two rows, ties counted half; NaN where the answers do not show both classes."""
    positive, negative = targets, 1.0 - targets
    _, group = np.unique(scores, return_inverse=True)
    weight = np.bincount(group, negative)
    below = (np.cumsum(weight) - weight)[group] + 0.5 * (weight[group] - negative)
    pairs = float(positive.sum() * negative.sum() - positive @ negative)
    return float(np.clip((positive @ below) / pairs, 0.0, 1.0)) if pairs > 0 else float("nan")


def metrics_of(scores: Floats, y: Floats, loss: Loss, classifies: bool, unit: float = 1.0) -> dict[str, float]:
    """Accuracy and AUC for two classes, accuracy and log loss for more, RMSE for numbers, with the mean deviance for
    counts and amounts. `unit`: what a number of 1 stands for."""
    if loss.outputs > 1:
        return several_class_metrics(scores, y)
    if loss.grows:
        return growing_metrics(scores, y, loss)
    return two_class_metrics(scores, y) if classifies else {"test_rmse": unit * root_mean_square(scores - y)}


def several_class_metrics(scores: Floats, y: Floats) -> dict[str, float]:
    """What a test of several classes is told by; scores are rows x classes, y the positions of the classes."""
    chances = class_probabilities(scores)[np.arange(len(y)), y.astype(np.intp)]
    return {
        "test_accuracy": float(np.mean(scores.argmax(axis=1) == y)),
        "test_log_loss": float(-np.mean(np.log(np.maximum(chances, np.finfo(np.float64).tiny)))),
    }


def class_probabilities(scores: Floats) -> Floats:
    """The chances of the classes under the softmax model; rows x classes."""
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def log_link(scores: Floats) -> Floats:
    """What is expected of a count or an amount whose logarithm this is."""
    return np.asarray(np.exp(np.minimum(scores, EXP_MOST)))


def growing_metrics(scores: Floats, y: Floats, loss: Loss) -> dict[str, float]:
    """What a test of counts or amounts is told by."""
    deviance = 2.0 * float(np.mean(loss.value(scores, y)))
    return {"test_deviance": deviance, "test_rmse": root_mean_square(log_link(scores) - y)}


def root_mean_square(errors: Floats) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def probabilities(scores: Floats, loss: str) -> Floats:
    """The chance of the positive class under the logistic model; other losses give no probability."""
    if loss not in ("auto", "logistic"):
        raise BadJob(f"Probabilities need the logistic loss; this model was fitted with {loss}. Use predict.")
    return np.asarray(np.exp(-np.logaddexp(0.0, -scores)))


def largest_distance(scores: Floats, positive: NDArray[Any]) -> float:
    """Kolmogorov and Smirnov's: the most by which the scores of two classes are apart in their distributions."""
    _, group = np.unique(scores, return_inverse=True)
    of_positive = np.cumsum(np.bincount(group, positive))
    of_negative = np.cumsum(np.bincount(group, ~positive))
    if not of_positive[-1] or not of_negative[-1]:
        return float("nan")
    return float(np.abs(of_positive / of_positive[-1] - of_negative / of_negative[-1]).max())
