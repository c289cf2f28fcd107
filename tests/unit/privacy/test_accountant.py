"""Known values, exact curves, and two accountants that must agree from different sides."""

import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from offbeat.errors import BadInput
from offbeat.privacy.accountant import (
    GaussianRelease,
    PureRelease,
    _renyi,
    calibrate_multiplier,
    delta,
    epsilon,
    gaussian_mu,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    replace_one_delta,
    replace_one_loss,
)

SAMPLED = {GaussianRelease(1.0, 0.01): 1000}


def test_accountant_values():
    assert epsilon(SAMPLED, 1e-5, "add-remove") == pytest.approx(1.83, abs=0.02)
    assert gdp_epsilon(1.0, 1e-5) == pytest.approx(4.377, abs=5e-4)
    clt = 0.01 * math.sqrt(1000 * math.expm1(1.0))
    assert gdp_epsilon(clt, 1e-5) == pytest.approx(1.62, abs=0.01)


@pytest.mark.parametrize("rate,multiplier,times,expected", [(0.01, 0.7, 1000, 4.62), (0.05, 1.0, 200, 4.77)])
def test_more_published_values(rate, multiplier, times, expected):
    assert epsilon({GaussianRelease(multiplier, rate): times}, 1e-5, "add-remove") == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("mu,expected", [(20, 284.4), (63, 2251), (200, 20_852)])
def test_gdp_is_exact_far_out(mu, expected):
    assert gdp_epsilon(mu, 1e-5) == pytest.approx(expected, rel=2e-3)
    assert gdp_mu(gdp_epsilon(mu, 1e-5), 1e-5) == pytest.approx(mu, rel=1e-9)


def test_gdp_curve_against_numerical_integration():
    mu, at = 1.3, 0.8
    x = np.linspace(-12, 12, 400_001)
    p = np.exp(-0.5 * (x - mu) ** 2) / math.sqrt(2 * math.pi)
    q = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    area = np.maximum(p - math.exp(at) * q, 0).sum() * (x[1] - x[0])
    assert gdp_delta(mu, at) == pytest.approx(area, rel=1e-6)


def test_full_batch_gaussians_add_squares_and_replace_one_doubles():
    releases = {GaussianRelease(2.0): 3, GaussianRelease(1.0): 1}
    assert gaussian_mu(releases, "add-remove") == pytest.approx(math.sqrt(3 / 4 + 1))
    assert gaussian_mu(releases, "replace-one") == pytest.approx(2 * math.sqrt(3 / 4 + 1))


@pytest.mark.parametrize("multiplier,rate", [(1.0, 0.05), (0.6, 0.3), (4.0, 0.01)])
def test_replace_one_curve_against_numerical_integration(multiplier, rate):
    x = np.linspace(-40, 40, 800_001)

    def normal(mean):
        return np.exp(-0.5 * ((x - mean) / multiplier) ** 2) / (multiplier * math.sqrt(2 * math.pi))

    p = (1 - rate) * normal(0) + rate * normal(1)
    q = (1 - rate) * normal(0) + rate * normal(-1)
    for at in (-0.5, 0.0, 0.1, 1.0):
        area = np.maximum(p - math.exp(at) * q, 0).sum() * (x[1] - x[0])
        assert replace_one_delta(np.array([at]), multiplier, rate)[0] == pytest.approx(area, abs=1e-9)


def test_replace_one_pair_is_the_worst_in_the_plane():
    """The claim proved in the docs, on a grid: no other pair of vectors of norm at most 1 has a larger curve."""
    multiplier, rate, at = 0.8, 0.2, 0.4
    grid = np.linspace(-7, 7, 561)
    x, y = np.meshgrid(grid, grid)
    cell = (grid[1] - grid[0]) ** 2

    def mixture(u):
        centre = np.exp(-0.5 * (x**2 + y**2) / multiplier**2)
        moved = np.exp(-0.5 * ((x - u[0]) ** 2 + (y - u[1]) ** 2) / multiplier**2)
        return ((1 - rate) * centre + rate * moved) / (2 * math.pi * multiplier**2)

    worst = replace_one_delta(np.array([at]), multiplier, rate)[0]
    rng = np.random.default_rng(0)
    for _ in range(40):
        u, v = rng.standard_normal((2, 2))
        u *= rng.uniform(0, 1) ** 0.3 / np.linalg.norm(u)
        v *= rng.uniform(0, 1) ** 0.3 / np.linalg.norm(v)
        area = np.maximum(mixture(u) - math.exp(at) * mixture(v), 0).sum() * cell
        assert area <= worst + 1e-6


def test_loss_rises_with_the_output():
    losses = replace_one_loss(np.linspace(-30, 30, 1001), 1.0, 0.01)
    assert np.all(np.diff(losses) > 0)


RENYI_ORDERS = (1.25, 1.5, 1.75, *np.arange(2.0, 20.0, 0.5).tolist(), *range(20, 64, 4), *range(64, 513, 32))


def epsilon_renyi(releases, at_delta, adjacency):
    """An upper bound by Renyi divergences, computed apart from the privacy-loss distributions; a little larger."""
    total = np.zeros(len(RENYI_ORDERS))
    for release, count in releases.items():
        total += count * np.array([_renyi(release, order, adjacency) for order in RENYI_ORDERS])
    return float(rdp.compute_epsilon(RENYI_ORDERS, total, at_delta)[0])


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("release,times", [(GaussianRelease(1.0, 0.01), 1000), (PureRelease(0.1, 0.05), 500)])
def test_renyi_is_a_looser_second_opinion(adjacency, release, times):
    exact, loose = epsilon({release: times}, 1e-5, adjacency), epsilon_renyi({release: times}, 1e-5, adjacency)
    assert exact <= loose <= 1.3 * exact + 0.05


def test_replace_one_lies_between_add_remove_and_group_privacy():
    one, two = epsilon(SAMPLED, 1e-5, "add-remove"), epsilon(SAMPLED, 1e-5, "replace-one")
    group = 2 * epsilon(SAMPLED, 1e-5 / (1 + math.exp(2.5)), "add-remove")
    assert one < two < group
    assert two == pytest.approx(2.843, abs=0.01)


def test_pure_releases_compose_optimally():
    assert epsilon({PureRelease(0.1): 3000}, 1e-5) == pytest.approx(37.5, abs=0.1)
    assert epsilon({PureRelease(0.1, 12 / 1458): 3000}, 1e-5) == pytest.approx(0.15, abs=0.01)
    assert epsilon({PureRelease(0.5, 12 / 1458): 3000}, 1e-5) == pytest.approx(1.10, abs=0.01)


def test_mixtures_and_deltas():
    mixed = {GaussianRelease(5.0): 10, PureRelease(0.05): 10}
    assert epsilon(mixed, 1e-5) > epsilon({GaussianRelease(5.0): 10}, 1e-5)
    at = epsilon(SAMPLED, 1e-5, "add-remove")
    assert delta(SAMPLED, at, "add-remove") == pytest.approx(1e-5, rel=1e-3)
    assert epsilon({}, 1e-5) == 0.0 and delta({}, 0.0) == 0.0


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_calibration_meets_its_budget_and_is_not_wasteful(adjacency):
    multiplier = calibrate_multiplier(3.0, 1e-5, 50, 0.1, adjacency)
    assert epsilon({GaussianRelease(multiplier, 0.1): 50}, 1e-5, adjacency) <= 3.0
    assert epsilon({GaussianRelease(multiplier * 0.995, 0.1): 50}, 1e-5, adjacency) > 3.0


def test_calibration_without_sampling_is_closed_form():
    multiplier = calibrate_multiplier(1.0, 1e-5, 50)
    assert epsilon({GaussianRelease(multiplier): 50}, 1e-5) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("bad", [{"at_epsilon": 0.0}, {"at_delta": 0.0}, {"releases": 0}, {"sampling_rate": 1.5}])
def test_bad_requests_are_explained(bad):
    good = {"at_epsilon": 1.0, "at_delta": 1e-5, "releases": 10, "sampling_rate": 0.5}
    with pytest.raises(BadInput):
        calibrate_multiplier(**{**good, **bad})
    with pytest.raises(BadInput, match="adjacency"):
        epsilon(SAMPLED, 1e-5, "replace")
