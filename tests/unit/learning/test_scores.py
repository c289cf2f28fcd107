"""Scores against labels, and against labels that were answered at random."""

import numpy as np
import pytest

from offbeat.learning.scores import answered_metrics, area_under_curve, two_class_metrics
from offbeat.privacy.label_response import private_targets
from offbeat.privacy.noise import SeededNoise


def world(rows=4000):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(rows) < 0.3, 1.0, -1.0)
    return np.round(rng.normal(size=rows) + 0.8 * y, 1), y  # rounded: there are ties


def test_true_labels_in_place_of_answers_give_the_plain_metrics():
    scores, y = world(500)
    assert answered_metrics(scores, (y > 0).astype(float)) == pytest.approx(two_class_metrics(scores, y))
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[y > 0] for b in scores[y < 0]]
    assert area_under_curve(scores, y > 0) == pytest.approx(np.mean(pairs))


def test_answers_give_the_metrics_of_the_labels_on_average():
    scores, y = world()
    truth, found = two_class_metrics(scores, y), []
    for number in range(60):
        answers = private_targets((y > 0).astype(float)[:, None], 1.0, SeededNoise(number, "answers").stream(0))[:, 0]
        found.append(list(answered_metrics(scores, answers).values()))
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(60)
    assert np.all(np.abs(mean - list(truth.values())) < 4 * error) and np.all(error < 0.01)


def test_answers_that_show_one_class_have_no_area():
    assert np.isnan(answered_metrics(np.array([1.0, 2.0]), np.array([1.0, 1.0]))["test_auc"])
