"""Curves and counts of held-out rows, beside scikit-learn's and slow counts."""

import numpy as np
import pytest
from sklearn.metrics import auc, confusion_matrix, roc_curve

from offbeat.metrics import held_out


def scored(rows, seed=0):
    rng = np.random.default_rng(seed)
    chances = rng.beta(2, 3, rows)
    return chances, rng.random(rows) < chances


@pytest.mark.parametrize("rows", [40, 5000])
def test_the_roc_curve_goes_through_scikit_learns_points(rows):
    chances, positive = scored(rows)
    seen = held_out.two_classes(chances - 0.5, positive, chances)
    false, true, _ = roc_curve(positive, chances, drop_intermediate=False)
    exact = set(zip(np.round(false, 6), np.round(true, 6), strict=True))
    assert set(seen.roc) <= exact and seen.roc[0] == (0.0, 0.0) and seen.roc[-1] == (1.0, 1.0)
    assert len(seen.roc) == (len(exact) if rows == 40 else pytest.approx(100, abs=2))
    assert auc(*zip(*seen.roc, strict=True)) == pytest.approx(auc(false, true), abs=2e-3)
    assert seen.ks == pytest.approx(np.max(true - false))


def test_calibration_counts_every_row_once_and_a_true_chance_is_met():
    chances, positive = scored(20_000)
    seen = held_out.two_classes(chances - 0.5, positive, chances)
    assert [rows for _, _, rows in seen.calibration] == [2000] * 10
    for told, was, rows in seen.calibration:
        assert was == pytest.approx(told, abs=5 * np.sqrt(told * (1 - told) / rows))
    assert held_out.two_classes(chances - 0.5, positive, None).calibration == ()
    assert held_out.two_classes(chances[:3], np.ones(3, bool), None) is None


def test_the_confusion_table_is_scikit_learns():
    rng = np.random.default_rng(1)
    truth, predicted = rng.integers(0, 4, 300), rng.integers(0, 4, 300)
    seen = held_out.several_classes(predicted, truth.astype(float), 4)
    assert seen.confusion == tuple(map(tuple, confusion_matrix(truth, predicted).tolist()))
    chances, positive = scored(200)
    two = held_out.two_classes(chances - 0.5, positive, chances)
    assert two.confusion == tuple(map(tuple, confusion_matrix(positive, chances >= 0.5).tolist()))


def test_numbers_are_told_by_bins_of_what_was_predicted():
    predicted = np.arange(24.0)
    seen = held_out.numbers(predicted, 2 * predicted)
    assert [rows for *_, rows in seen.fit] == [6, 6, 6, 6]
    assert seen.fit[0] == (2.5, pytest.approx(1.0), 5.0, pytest.approx(9.0), 6)
    assert len(held_out.numbers(np.arange(2000.0), np.arange(2000.0)).fit) == 12
