"""Sources, samples of rows, and the draws that protect nothing."""

import numpy as np
import pytest

from offbeat.privacy.noise import (
    SeededNoise,
    SystemNoise,
    exponential_norm_noise,
    fixed_size_sample,
    gaussian_noise,
    poisson_sample,
)

SOURCES = [SystemNoise(), SeededNoise(3, "edge-0")]


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
    assert poisson_sample(stream, 5, 1e-300).size == 0  # below one word in 2^64


def test_a_row_takes_part_if_its_word_is_below_the_rate():
    class Fixed:
        def words(self, count):
            return np.array([0, 2**62 - 1, 2**62, 2**64 - 1], dtype=np.uint64)[:count]

    assert poisson_sample(Fixed(), 4, 0.25).tolist() == [0, 1]


@pytest.mark.parametrize("rows,size", [(10, 4), (1000, 12), (5, 9)])
def test_fixed_size_sample_has_no_repeats(rows, size):
    chosen = fixed_size_sample(SeededNoise(0, "fixed").stream(1), rows, size)
    assert len(set(chosen.tolist())) == chosen.size == min(size, rows)
    assert chosen.min() >= 0 and chosen.max() < rows


def test_seeded_streams_repeat_and_differ_by_number_and_name():
    one = SeededNoise(5, "a").stream(1).words(4)
    assert np.array_equal(one, SeededNoise(5, "a").stream(1).words(4))
    assert not np.array_equal(one, SeededNoise(5, "a").stream(2).words(4))
    assert not np.array_equal(one, SeededNoise(5, "b").stream(1).words(4))


def test_a_word_is_handed_out_once_however_the_stream_is_cut():
    whole, cut = SeededNoise(5, "a").stream(1), SeededNoise(5, "a").stream(1)
    assert np.array_equal(whole.words(16), np.concatenate([cut.words(7), cut.words(9)]))


def test_nobody_can_draw_the_systems_words_again():
    source = SystemNoise()
    drawn = [source.stream(1).words(4).tobytes() for _ in range(100)]
    assert len(set(drawn)) == 100
