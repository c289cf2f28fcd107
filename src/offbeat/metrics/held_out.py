"""What held-out rows say of a model: curves and tables of counts, no single row.

Whoever holds the labels of these rows and learned their scores may have it: one process that holds all, or the label
holder between organisations.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.learning.losses import DEBIASED_LOGISTIC, LOGISTIC, Loss
from offbeat.learning.scores import largest_distance, log_link, probabilities

Floats = NDArray[np.float64]
ROC_POINTS = 101
CALIBRATION_BINS, FIT_BINS = 10, 12
MIDDLE_MOST = (0.1, 0.5, 0.9)
"""The quantiles of the true numbers that are told of each bin of predicted ones."""


class HeldOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of two classes: `roc` as (false positive rate, true positive rate), `ks`, and `calibration` as (mean predicted
    chance, share of the positive class, rows). Of any number of classes: `confusion`, a row for each true class and a
    column for each predicted one. Of numbers: `fit` as (mean predicted; 10 %, 50 % and 90 % quantiles of the true ones;
    rows), by bins of what was predicted."""

    rows: int
    roc: tuple[tuple[float, float], ...] = ()
    ks: float | None = None
    calibration: tuple[tuple[float, float, int], ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    fit: tuple[tuple[float, float, float, float, int], ...] = ()


class Worth(msgspec.Struct, frozen=True):
    """What each party is worth: exact Shapley values of `score` on held-out rows, the model trained anew for each
    coalition. `values` add up to `joint` - `empty`; `errors` are their standard errors over the held-out rows."""

    score: str
    rows: int
    joint: float
    empty: float
    values: dict[str, float]
    errors: dict[str, float]
    coalitions: dict[str, float]


def of_scores(
    scores: Floats, y: Floats, loss: Loss, classifies: bool, unit: float = 1.0, start: float = 0.0
) -> HeldOut | None:
    """By what a linear model learns. Numbers are told in units of `unit`, from `start` on."""
    if loss.outputs > 1:
        return several_classes(scores.argmax(axis=1), y, loss.outputs)
    if not classifies:
        return numbers(unit * (log_link(scores) if loss.grows else scores) + start, unit * y + start)
    chances = probabilities(scores, "logistic") if loss in (LOGISTIC, DEBIASED_LOGISTIC) else None
    return two_classes(scores, y > 0, chances)


def two_classes(scores: Floats, positive: NDArray[np.bool_], chances: Floats | None) -> HeldOut | None:
    """`chances`: predicted ones of the positive class, where the model gives any. Nothing where a class lacks."""
    if positive.all() or not positive.any():
        return None
    return HeldOut(
        rows=len(scores),
        roc=_roc(scores, positive),
        ks=largest_distance(scores, positive),
        calibration=() if chances is None else _calibration(chances, positive),
        confusion=_confusion(positive.astype(np.intp), (scores >= 0).astype(np.intp), 2),
    )


def several_classes(predicted: NDArray[Any], truth: NDArray[Any], classes: int) -> HeldOut:
    """Positions of classes."""
    return HeldOut(len(truth), confusion=_confusion(truth.astype(np.intp), predicted.astype(np.intp), classes))


def numbers(predicted: Floats, truth: Floats) -> HeldOut:
    order = np.argsort(predicted, kind="stable")
    bins = [some for some in np.array_split(order, min(FIT_BINS, max(1, len(order) // 5))) if len(some)]
    found = []
    for some in bins:
        low, middle, high = np.quantile(truth[some], MIDDLE_MOST).tolist()
        found.append((float(predicted[some].mean()), low, middle, high, len(some)))
    return HeldOut(len(truth), fit=tuple(found))


def _roc(scores: Floats, positive: NDArray[np.bool_]) -> tuple[tuple[float, float], ...]:
    """From the highest score down; of many thresholds those evenly spaced along the curve."""
    _, group = np.unique(-scores, return_inverse=True)
    true = np.concatenate(([0.0], np.cumsum(np.bincount(group, positive)) / positive.sum()))
    false = np.concatenate(([0.0], np.cumsum(np.bincount(group, ~positive)) / (~positive).sum()))
    chosen = np.arange(len(true))
    if len(true) > ROC_POINTS:
        chosen = np.unique(np.searchsorted(true + false, np.linspace(0.0, 2.0, ROC_POINTS) - 1e-12))
    return tuple((round(float(false[i]), 6), round(float(true[i]), 6)) for i in chosen)


def _calibration(chances: Floats, positive: NDArray[np.bool_]) -> tuple[tuple[float, float, int], ...]:
    order = np.argsort(chances, kind="stable")
    bins = [some for some in np.array_split(order, min(CALIBRATION_BINS, max(1, len(order) // 5))) if len(some)]
    return tuple((float(chances[some].mean()), float(positive[some].mean()), len(some)) for some in bins)


def _confusion(truth: NDArray[np.intp], predicted: NDArray[np.intp], classes: int) -> tuple[tuple[int, ...], ...]:
    counts = np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)
    return tuple(tuple(row) for row in counts.tolist())
