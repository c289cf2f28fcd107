"""Per-record clipping bounds one record's influence; clipping the average does not."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.privacy.clipping import AdaptiveClip, clip_average, clip_factors, clipped_sum
from offbeat.privacy.mechanism import Gaussian

BATCH, CLIP = 12, 0.6


def neighbours(rng, scale):
    batch = rng.standard_normal((BATCH, 5))
    batch *= scale / np.linalg.norm(batch, axis=1, keepdims=True)
    other = batch.copy()
    other[-1] = -batch[-1] * rng.uniform(0, 3)
    return batch, other


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 0.6, 1.0, 5.0, 20.0]))
@settings(max_examples=60, deadline=None)
def test_clip_sensitivity_per_record(seed, scale):
    batch, other = neighbours(np.random.default_rng(seed), scale)
    change = np.linalg.norm(clipped_sum(batch, CLIP) - clipped_sum(other, CLIP)) / BATCH
    assert change <= 2 * CLIP / BATCH + 1e-12


@pytest.mark.parametrize("norm,ratio", [(0.6, 1.0), (1.0, 1.67), (2.0, 3.33), (5.0, 8.33), (20.0, 12.0)])
def test_clip_sensitivity_of_the_average(norm, ratio):
    """The worst pair: eleven records that nearly cancel, and one that turns round."""
    stated = 2 * CLIP / BATCH
    directions = np.zeros((BATCH, 2))
    directions[:-1, 1] = np.where(np.arange(BATCH - 1) % 2, 1.0, -1.0)
    directions[-2, 1] = 0.0
    one, other = directions.copy(), directions.copy()
    one[-1, 0], other[-1, 0] = 1.0, -1.0
    change = np.linalg.norm(clip_average(norm * one.mean(0), CLIP) - clip_average(norm * other.mean(0), CLIP))
    assert change / stated == pytest.approx(min(ratio, norm / CLIP), rel=0.01)


def test_average_clip_reaches_twice_the_bound_where_the_stated_sensitivity_is_a_twelfth_of_it():
    one = np.full((BATCH, 1), 0.0)
    one[-1] = 20.0
    change = np.abs(clip_average(one.mean(0), CLIP) - clip_average(-one.mean(0), CLIP))[0]
    assert change == pytest.approx(2 * CLIP)
    assert change / (2 * CLIP / BATCH) == pytest.approx(12.0)


def test_clip_factors_leave_short_gradients_alone():
    assert clip_factors(np.array([0.0, 0.5, 1.0, 4.0]), 1.0).tolist() == [1.0, 1.0, 1.0, 0.25]


def test_adaptive_clip_moves_towards_the_quantile_and_prices_its_count():
    rule = AdaptiveClip(start=1.0, quantile=0.5, rate=0.2, count_deviation=5.0)
    assert rule.next(1.0, 0.5) == 1.0
    assert rule.next(1.0, 1.0) < 1.0 < rule.next(1.0, 0.0)
    for joint in (1.3, 30.0):
        mechanism = Gaussian(joint, 1.0, 100, rule)
        deviation = math.sqrt(mechanism.noise.variance)
        left, counted = deviation / mechanism.bound, deviation / (2 * mechanism.weight)
        assert counted == pytest.approx(rule.deviation(joint), rel=1e-5)
        assert (left**-2 + (2 * counted) ** -2) ** -0.5 == pytest.approx(joint, rel=1e-5)
        assert mechanism.bound**2 + mechanism.weight**2 <= mechanism.noise.squared
        assert joint < left <= joint / math.sqrt(0.9) * (1 + 1e-5), "the count takes a tenth at most"
    assert rule.deviation(1.3) == 5.0
