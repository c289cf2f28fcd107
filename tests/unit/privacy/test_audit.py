"""The auditor on known worlds, and the quick audit of every mechanism."""

import numpy as np
import pytest

from offbeat.lab.bench.edge_audit import (
    MODEL,
    ROWS,
    Doubles,
    as_expected,
    clipped,
    gaussian_release,
    gaussian_training,
    laplace_release,
    last_bits,
    paper_release,
    paper_training,
    worlds,
)
from offbeat.privacy.accountant import gdp_epsilon
from offbeat.privacy.audit import epsilon_shown
from offbeat.privacy.mechanism import Gaussian

RNG = np.random.default_rng(0)


def test_equal_worlds_show_nothing():
    shown = epsilon_shown(RNG.standard_normal(4000), RNG.standard_normal(4000), 1e-5)
    assert shown.epsilon < 0.2


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_gaussian_worlds_show_less_than_the_truth_but_not_much_less(mu):
    shown = epsilon_shown(RNG.standard_normal(40_000) + mu, RNG.standard_normal(40_000), 1e-5)
    truth = gdp_epsilon(mu, 1e-5)
    assert 0.35 * truth < shown.epsilon < truth


def test_worlds_apart_show_what_the_number_of_runs_allows():
    shown = epsilon_shown(np.ones(1000), np.zeros(1000), 1e-5)
    assert 4.0 < shown.epsilon < np.log(500)


def test_randomised_response_is_found_out():
    epsilon = 1.0
    yes = np.exp(epsilon) / (1 + np.exp(epsilon))
    one, two = (RNG.random(40_000) < yes).astype(float), (RNG.random(40_000) < 1 - yes).astype(float)
    assert 0.85 < epsilon_shown(one, two, 0.0).epsilon <= 1.0


def test_the_worlds_are_neighbours_and_only_the_canary_pulls():
    one, two, parameters, direction = worlds()
    assert (one.features != two.features).any(axis=1).sum() == 1
    assert np.array_equal(one.labels, two.labels)
    ordinary = MODEL.gradient_sum(parameters, one, np.arange(one.rows - 1))
    assert np.linalg.norm(ordinary) < 1e-12
    assert np.linalg.norm(direction) == pytest.approx(1.0)
    assert direction @ clipped(MODEL, parameters, two) < -0.99


@pytest.mark.parametrize(
    "attack",
    [
        lambda: gaussian_release(2.0, 1.0, 2000),
        lambda: gaussian_release(0.6, 0.5, 2000),
        lambda: laplace_release(3.0, 0.3, 2000),
        lambda: gaussian_training(1.5, 0.5, 20, 200),
        lambda: paper_release(0.1, 1000),
        lambda: paper_training(0.1, 10, 200),
    ],
)
def test_sound_mode_keeps_its_promise_and_paper_mode_does_not(attack):
    findings = attack()
    assert as_expected(findings), findings
    assert max(finding.shown / max(finding.promised, 1e-9) for finding in findings) > 0.2, "the attack is too weak"


def test_last_bits_give_doubles_away_and_not_whole_numbers():
    sound = last_bits(Gaussian(20.0, 1.0, ROWS), "whole numbers", 200)
    doubles = last_bits(Doubles(20.0, 1.0, ROWS), "doubles", 200)
    assert as_expected(sound + doubles), sound + doubles
    assert max(finding.shown for finding in doubles) > 2.9, "a hundred runs can show no more"
    assert all(finding.shown == 0.0 for finding in sound), "chance"
