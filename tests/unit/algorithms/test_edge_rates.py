"""The rules of section 5.2 in numbers, and the stages of the published defaults."""

import math
from dataclasses import replace

import numpy as np
import pytest

from offbeat.algorithms.mapa.rates import (
    AsyncRate,
    CentralRate,
    Constants,
    NoisyRate,
    QuietRate,
    ScoreBound,
    StagedRate,
    SteadyRate,
    first_clip,
)
from offbeat.learning.horizontal import LinearModel
from offbeat.privacy.clipping import AdaptiveClip

PRINTED = Constants(smoothness=10, deviation=30, radius=2, gap=2.3, lag_max=5, batch=12)


def staged(epsilon=0.1, **kwargs):
    rate = StagedRate(PRINTED, first_clip(30, 1e-3), deviation_within_clip=False, **kwargs)
    rate.noise(2 * (2 / (12 * epsilon)) ** 2)
    return rate


def test_first_clip_solves_equation_12():
    sensitivity = 2 * first_clip(30, 1e-3) / 12
    assert sensitivity == pytest.approx(223.58, abs=0.01)
    assert (1 - 4 * 30**2 / (12 * sensitivity) ** 2) ** 2 == pytest.approx(1 - 1e-3)
    assert 2 * first_clip(30, 1e-5) / 12 == pytest.approx(2236, abs=0.5)


@pytest.mark.parametrize(
    "stage,sensitivity,gamma,length",
    [
        (3, 27.9, 1.12e-3, 2),
        (5, 6.99, 1.12e-3, 19),
        (7, 1.75, 1.00e-3, 335),
        (8, 0.87, 7.5e-4, 1777),
        (9, 0.44, 3.8e-4, 14136),
        (10, 0.22, 1.3e-4, 168995),
    ],
)
def test_stages_with_the_printed_defaults(stage, sensitivity, gamma, length):
    rate = staged()
    rate.clip *= 0.5**stage
    assert 2 * rate.clip / 12 == pytest.approx(sensitivity, rel=0.01)
    assert rate.step(1) == pytest.approx(gamma, rel=0.03)
    assert rate.length == length


def test_stages_follow_one_another_and_last_at_least_one_update():
    rate, lengths, at = staged(), [], 0
    for update in range(1, 120):
        stage = rate.stage
        rate.applied(-1)
        if rate.stage != stage:
            lengths.append(update - at)
            at = update
    assert lengths == [1, 1, 1, 2, 5, 19, 77]


@pytest.mark.parametrize("epsilon,raw", [(1.0, 0.074), (0.5, 0.296)])
def test_caution_is_at_least_one(epsilon, raw):
    rate = staged(epsilon)
    assert 2 * rate.variance / (6 * rate.clip**2 * 0.25) == pytest.approx(raw, abs=2e-3)
    assert rate.caution == 1.0


def test_floor_stops_the_shrinking():
    rate = staged(floor=500.0)
    for _ in range(50):
        rate.applied(-1)
    assert rate.clip == 500.0 and rate.stage == 2


def test_a_noisy_fraction_below_one_half_stops_the_shrinking():
    counted, blind = staged(), staged()
    for _ in range(60):
        counted.applied(1.0 if counted.clip > 400 else 0.3)
        blind.applied(-1)
    assert 200 < counted.clip <= 400 and blind.clip < 100
    for _ in range(60):
        counted.applied(0.9)  # the rows' gradients have become shorter
    assert counted.clip < 200


def test_the_shrinking_stops_at_the_wanted_quantile():
    rates = {quantile: staged(quantile=quantile) for quantile in (0.2, 0.8)}
    for rate in rates.values():
        for _ in range(60):
            rate.applied(0.6)
    assert rates[0.8].clip == first_clip(30, 1e-3) and rates[0.2].clip < 100


def test_a_step_is_as_long_as_the_noise_allows():
    bound = ScoreBound(norm=5.0, dimension=30, updates=900)
    assert bound.step(clip=2.0, per_clip=30 * 0.04) == pytest.approx(1.5 / (0.2 * 30) / (2.0 * 5.0))
    assert bound.step(clip=2.0, per_clip=0.0) == pytest.approx(16 / (2.0 * 5.0)), "no noise: one upload's gradient"
    rate = QuietRate(bound, 2.0, AdaptiveClip(start=2.0, quantile=0.5, rate=1.0))
    rate.noise(30 * 0.04)
    before = rate.step(1)
    rate.applied(1.0)
    assert rate.clip * rate.step(2) == pytest.approx(2.0 * before), "a smaller clip, a longer step"


def test_noise_moves_a_score_by_as_much_as_it_may():
    """The sum of 400 steps' noise, times a row of that norm, has the deviation that the rule is named after."""
    rng, deviation, clip = np.random.default_rng(0), 0.3, 1.7
    row = rng.standard_normal(12)
    row *= 4.0 / np.linalg.norm(row)
    step = ScoreBound(4.0, 12, 400).step(clip, 12 * deviation**2)
    moved = step * clip * deviation * rng.standard_normal((2000, 12)) * math.sqrt(400) @ row
    assert moved.std() == pytest.approx(1.5, rel=0.05)


def test_a_step_may_allow_for_less_than_the_largest_lag():
    nearer = replace(PRINTED, lag=2)
    assert AsyncRate(nearer).step(3) == pytest.approx(1 / (90 + 2 * 30 / (2 * math.sqrt(12))))
    assert StagedRate(nearer, 1e6, per_clip=0.0).step(1) == pytest.approx(1 / (2 * 10 * 3))
    assert replace(PRINTED, lag=9).late == 6, "no lag beyond the largest accepted one counts"


def test_other_rates():
    assert CentralRate(PRINTED).step(3) == pytest.approx(1 / (10 + 2 * 30 / (2 * math.sqrt(12))))
    assert AsyncRate(PRINTED).step(3) == pytest.approx(1 / (360 + 2 * 30 / (2 * math.sqrt(12))))
    noisy = NoisyRate(PRINTED, clip=3.0)
    noisy.noise(0.5)
    variance = 900 / 12 + 4.5
    assert noisy.step(4) == pytest.approx(1 / (60 + 2 * math.sqrt(variance + 1)))
    noisy.log_free = True
    assert noisy.step(4) == pytest.approx(1 / (370 + 2 * math.sqrt(variance + 1)))


def test_steady_rate_with_an_adaptive_clip():
    rate = SteadyRate(0.1, adaptive=AdaptiveClip(start=2.0, quantile=0.5, rate=1.0))
    rate.applied(1.0)
    assert rate.clip == pytest.approx(2.0 * math.exp(-0.5))
    rate.applied(-1.0)
    assert rate.clip == pytest.approx(2.0 * math.exp(-0.5))


@pytest.mark.parametrize(
    "make",
    [
        staged,
        lambda: SteadyRate(0.1, adaptive=AdaptiveClip()),
        lambda: QuietRate(ScoreBound(1.0, 2, 3), 1.0, AdaptiveClip()),
        lambda: NoisyRate(PRINTED, 1.0),
    ],
)
def test_state_survives(make):
    rate, again = make(), make()
    rate.noise(0.25)
    for _ in range(7):
        rate.applied(0.9)
    again.restore(rate.snapshot())
    assert again == rate


def test_constants_from_public_bounds():
    constants = Constants.from_public(
        LinearModel("logistic", 784), norm_max=math.sqrt(2), strength=1e-4, lag_max=5, batch=12
    )
    assert constants.smoothness == pytest.approx(0.5 + 1e-4)
    assert constants.radius == pytest.approx(117.7, abs=0.1)
    assert constants.gap == pytest.approx(math.log(2))
    squared = Constants.from_public(LinearModel("squared-hinge", 4, 9), norm_max=1, strength=1, lag_max=1, batch=1)
    assert squared.deviation == pytest.approx(6.0)
