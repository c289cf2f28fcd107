"""What a release contains, what it costs, and what the modes that are not private say about themselves."""

import math

import numpy as np
import pytest

from offbeat.algorithms.mapa.privacy import Paper, Sound, Unprotected, privacy_of_edges, sampling_rate
from offbeat.errors import BadJob
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.privacy.accountant import GaussianRelease, PureRelease, epsilon
from offbeat.privacy.clipping import AdaptiveClip, clipped_sum
from offbeat.privacy.mechanism import Gaussian, Laplace, NoNoise, PaperNoise
from offbeat.privacy.noise import SeededNoise

RNG = np.random.default_rng(0)
DATA = edge_data(RNG.standard_normal((400, 6)), RNG.integers(0, 2, 400))
MODEL = LinearModel("logistic", 6)
SOURCE = SeededNoise(0, "edge")


def releases(mechanism, count, clip=0.5, parameters=None):
    parameters = MODEL.start() if parameters is None else parameters
    return np.array([mechanism.release(MODEL, parameters, DATA, clip, SOURCE.stream(i))[0] for i in range(count)])


@pytest.mark.parametrize("mechanism", [Gaussian(2.0, 0.1, 400), Laplace(3.0, 0.1, 400)], ids=["gaussian", "laplace"])
def test_sound_releases_are_unbiased_for_the_clipped_mean_with_the_stated_noise(mechanism):
    clip, count = 0.5, 3000
    drawn = releases(mechanism, count, clip)
    whole = clipped_sum(np.array([MODEL.gradient_sum(MODEL.start(), DATA, np.array([i])) for i in range(400)]), clip)
    spread = drawn.std(axis=0) / math.sqrt(count)
    assert np.all(np.abs(drawn.mean(axis=0) - whole / 400) < 5 * spread)
    noise = mechanism.noise_per_clip(MODEL.dimension) * clip**2
    sampling = drawn.var(axis=0).sum() - noise
    assert 0 <= sampling <= 1.3 * clip**2 / mechanism.batch + 0.1 * noise
    assert mechanism.warning == ""


@pytest.mark.parametrize("mechanism", [Gaussian(2.0, 0.1, 400), Laplace(3.0, 0.1, 400)], ids=["gaussian", "laplace"])
@pytest.mark.parametrize("clip", [0.5, 1e-3, 7.0])
def test_what_leaves_is_whole_numbers_times_a_public_scale(mechanism, clip):
    released = releases(mechanism, 20, clip)
    scale = clip / mechanism.bound / mechanism.batch
    whole = np.rint(released / scale)
    assert np.array_equal(whole * scale, released)
    assert len({value % 8 for value in whole.ravel().astype(int).tolist()}) == 8, "the last bits are noise"


def test_costs():
    assert Gaussian(2.0, 0.1, 400).cost() == GaussianRelease(2.0, 0.1)
    assert Laplace(3.0, 0.1, 400).cost() == PureRelease(3.0, 0.1)
    assert PaperNoise(0.1, 12).cost() is None and NoNoise(12).cost() is None


def test_unprotected_and_paper_modes_say_so():
    assert "not differentially private" in PaperNoise(0.1, 12).warning
    assert "(paper)" in PaperNoise(0.1, 12).warning
    assert "not differentially private" in NoNoise(12).warning


def test_no_noise_is_the_plain_batch_mean():
    gradient, fraction = NoNoise(400).release(MODEL, MODEL.start(), DATA, 0.01, SOURCE.stream(0))
    whole = MODEL.gradient_sum(MODEL.start(), DATA, np.arange(400))
    assert np.allclose(gradient, whole / 400) and fraction == -1


def test_paper_noise_may_cover_the_first_coordinates_only():
    full = NoNoise(400).release(MODEL, MODEL.start(), DATA, 9.0, SOURCE.stream(0))[0]
    partly = PaperNoise(0.1, 400, noisy=2).release(MODEL, MODEL.start(), DATA, 9.0, SOURCE.stream(0))[0]
    assert np.allclose(full[2:], partly[2:]) and not np.allclose(full[:2], partly[:2])


def test_adaptive_count_is_private_and_centred():
    mechanism = Gaussian(1.0, 0.25, 400, AdaptiveClip(count_deviation=4.0))
    norms = 0.5 * DATA.norms
    clip = float(np.quantile(norms, 0.3))
    fractions = [mechanism.release(MODEL, MODEL.start(), DATA, clip, SOURCE.stream(i))[1] for i in range(400)]
    assert np.mean(fractions) == pytest.approx(0.3, abs=0.02)
    assert mechanism.bound < Gaussian(1.0, 0.25, 400).bound


def test_calibrated_edges_keep_their_own_budgets():
    sound = Sound(epsilon={"a": 1.0, "b": 4.0}, uploads=30)
    edges = privacy_of_edges(sound, {"a": 400, "b": 400}, batch=40)
    for name, budget in (("a", 1.0), ("b", 4.0)):
        assert epsilon({edges[name].mechanism.cost(): 30}, 1e-5) <= budget
        assert edges[name].budget.epsilon == budget
        assert edges[name].ledger().affords(edges[name].mechanism.cost(), 30)
    assert edges["a"].mechanism.multiplier > edges["b"].mechanism.multiplier
    with pytest.raises(BadJob, match="'c'"):
        privacy_of_edges(sound, {"c": 10}, batch=1)


def test_pure_calibration_and_its_limits():
    edges = privacy_of_edges(Sound(1.0, uploads=20, noise="laplace"), {"a": 400}, batch=40)
    assert epsilon({edges["a"].mechanism.cost(): 20}, 1e-5) <= 1.0
    with pytest.raises(BadJob, match="adaptive"):
        privacy_of_edges(Sound(1.0, uploads=5, noise="laplace", adaptive=AdaptiveClip()), {"a": 400}, batch=40)


def test_other_modes_have_no_budget():
    for privacy in (Paper(0.1), Unprotected()):
        edge = privacy_of_edges(privacy, {"a": 5}, batch=12)["a"]
        assert edge.budget is None and edge.mechanism.batch == 5


@pytest.mark.parametrize(
    "batch,rows,rate", [(12, 1458, 0.00824), (512, 12000, 0.0427), (9, 9, 1.0), (10, 3, 1.0), (5, 10, 0.5)]
)
def test_sampling_rates_are_rounded_up(batch, rows, rate):
    assert sampling_rate(batch, rows) == pytest.approx(rate)
    assert sampling_rate(batch, rows) >= min(1.0, batch / rows) - 1e-12


@pytest.mark.parametrize(("mechanism", "dimension"), [(Gaussian(1e6, 1.0, 9), 10**5), (Gaussian(1e8, 1.0, 9), 3)])
def test_noise_beyond_what_the_grid_can_carry_is_refused(mechanism, dimension):
    with pytest.raises(BadJob, match=r"[Nn]othing"):
        mechanism.noise_per_clip(dimension)


def test_pure_noise_that_cannot_be_drawn_is_refused():
    with pytest.raises(BadJob, match="too large to be drawn"):
        Laplace(1e-12, 1.0, 9).noise_per_clip(10**4)
