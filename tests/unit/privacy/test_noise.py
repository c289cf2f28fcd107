"""Samplers: their moments, and that the log-ratio of densities is what the mechanism promises."""

import numpy as np
import pytest

from offbeat.privacy.noise import (
    SeededNoise,
    SystemNoise,
    exponential_norm_noise,
    fixed_size_sample,
    gaussian_noise,
    knorm_noise,
    poisson_sample,
)

SOURCES = [SystemNoise(), SeededNoise(3, "edge-0")]


@pytest.mark.parametrize("source", SOURCES, ids=["system", "seeded"])
@pytest.mark.parametrize("dimension", [1, 2, 10, 257])
def test_knorm_sampler(source, dimension):
    scale, draws = 0.7, 2_000
    norms = np.array([np.linalg.norm(knorm_noise(source.stream(i), dimension, scale)) for i in range(draws)])
    expected, variance = dimension * scale, dimension * scale**2
    assert abs(norms.mean() - expected) < 4 * np.sqrt(variance / draws)
    second = dimension * (dimension + 1) * scale**2
    assert abs((norms**2).mean() - second) < 4 * (norms**2).std() / np.sqrt(draws)


def test_knorm_log_ratio_never_passes_epsilon():
    epsilon, sensitivity, dimension = 0.5, 2.0, 20
    shift = np.zeros(dimension)
    shift[0] = sensitivity
    source = SeededNoise(0, "ratio")
    for i in range(500):
        eta = knorm_noise(source.stream(i), dimension, sensitivity / epsilon)
        ratio = epsilon / sensitivity * (np.linalg.norm(eta - shift) - np.linalg.norm(eta))
        assert abs(ratio) <= epsilon + 1e-12


def test_paper_noise_has_the_norm_of_one_dimension_whatever_the_dimension():
    source = SeededNoise(1, "paper")
    norms = np.array([np.linalg.norm(exponential_norm_noise(source.stream(i), 785, 3.0)) for i in range(4_000)])
    assert abs(norms.mean() - 3.0) < 4 * 3.0 / np.sqrt(4_000)


@pytest.mark.parametrize("source", SOURCES, ids=["system", "seeded"])
def test_gaussian_moments_and_symmetry(source):
    drawn = gaussian_noise(source.stream(0), 200_000, 2.0)
    assert abs(drawn.mean()) < 5 * 2.0 / np.sqrt(drawn.size)
    assert abs(drawn.std() - 2.0) < 0.03
    assert np.isfinite(drawn).all()


@pytest.mark.parametrize("source", SOURCES, ids=["system", "seeded"])
def test_poisson_sample_takes_each_row_with_its_own_coin(source):
    rows, rate, draws = 40, 0.2, 4_000
    counts = np.zeros(rows)
    sizes = []
    for i in range(draws):
        chosen = poisson_sample(source.stream(i), rows, rate)
        assert np.array_equal(chosen, np.unique(chosen))
        counts[chosen] += 1
        sizes.append(chosen.size)
    deviation = np.sqrt(rate * (1 - rate) / draws)
    assert np.all(np.abs(counts / draws - rate) < 5 * deviation)
    assert abs(np.var(sizes) - rows * rate * (1 - rate)) < 0.7


def test_poisson_sample_at_the_ends():
    stream = SeededNoise(0, "ends").stream(0)
    assert poisson_sample(stream, 7, 1.0).tolist() == list(range(7))
    assert poisson_sample(stream, 5, 1e-12).size == 0


@pytest.mark.parametrize("rows,size", [(10, 4), (1000, 12), (5, 9)])
def test_fixed_size_sample_has_no_repeats(rows, size):
    chosen = fixed_size_sample(SeededNoise(0, "fixed").stream(1), rows, size)
    assert len(set(chosen.tolist())) == chosen.size == min(size, rows)
    assert chosen.min() >= 0 and chosen.max() < rows


def test_seeded_streams_repeat_and_differ_by_number_and_name():
    one = SeededNoise(5, "a").stream(1).normal(4)
    assert np.array_equal(one, SeededNoise(5, "a").stream(1).normal(4))
    assert not np.array_equal(one, SeededNoise(5, "a").stream(2).normal(4))
    assert not np.array_equal(one, SeededNoise(5, "b").stream(1).normal(4))
