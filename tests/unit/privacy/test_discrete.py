"""Exact samplers: against their laws, against the paper's, and word by word against a plain transcription."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest, norm

from offbeat.privacy import discrete
from offbeat.privacy.accountant import GaussianRelease, delta
from offbeat.privacy.discrete import GridNoise, discrete_gaussian, discrete_laplace, falls, happens
from offbeat.privacy.noise import SeededNoise, SystemNoise

SOURCE = SeededNoise(0, "discrete")


class Recorded:
    """A stream that hands out the same words however they are asked for, and counts them."""

    def __init__(self, words):
        self.all, self.at = words, 0

    def words(self, count):
        self.at += count
        assert self.at <= len(self.all), "the recording is too short"
        return self.all[self.at - count : self.at]


def drawer(number):
    """Random words one by one, as Python's numbers."""
    stream = SOURCE.stream(number)
    return lambda: int(stream.words(1)[0])


def chi_square(drawn, law):
    """How likely counts as far from the law as these are. Everything that is rare goes into one bin."""
    expected = {k: p * len(drawn) for k, p in law.items() if p * len(drawn) >= 10}
    values, counts = np.unique(drawn, return_counts=True)
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    pairs = [(found.get(k, 0), e) for k, e in expected.items()]
    rest = len(drawn) - sum(e for _, e in pairs)
    pairs.append((len(drawn) - sum(o for o, _ in pairs), max(rest, 1e-9)))
    statistic = sum((o - e) ** 2 / e for o, e in pairs)
    return chi2.sf(statistic, len(pairs) - 1)


def gaussian_law(variance):
    reach = 12 * math.isqrt(variance) + 12
    weights = {k: math.exp(-k * k / (2 * variance)) for k in range(-reach, reach + 1)}
    total = sum(weights.values())
    return {k: w / total for k, w in weights.items()}


def laplace_law(scale):
    q = math.exp(-1 / scale)
    return {k: (1 - q) / (1 + q) * q ** abs(k) for k in range(-60 * scale, 60 * scale + 1)}


# -- the paper's samplers, as printed, in fractions ------------------------------------------------------------------


def slow_laplace(scale, draw):
    """Algorithm 2 for a whole scale."""
    while True:
        place = uniform_below(scale, draw)
        if not falls(Fraction(place, scale), draw):
            continue
        blocks = 0
        while falls(Fraction(1), draw):
            blocks += 1
        minus = draw() >> 63
        value = place + scale * blocks
        if not (minus and value == 0):
            return -value if minus else value


def slow_gaussian(variance, draw):
    """Algorithm 3."""
    scale = math.isqrt(variance) + 1
    while True:
        value = slow_laplace(scale, draw)
        if falls((abs(value) - Fraction(variance, scale)) ** 2 / (2 * variance), draw):
            return value


def uniform_below(bound, draw):
    bits = max(1, (bound - 1).bit_length())
    while True:
        drawn = draw() >> (64 - bits)
        if drawn < bound:
            return drawn


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 7), Fraction(1), Fraction(5, 2)])
def test_slow_coins(exponent):
    draw, count = drawer(1), 20_000
    assert abs(sum(falls(exponent, draw) for _ in range(count)) / count - math.exp(-exponent)) < 4 * 0.5 / math.sqrt(
        count
    )
    assert abs(sum(happens(Fraction(2, 7), draw) for _ in range(count)) / count - 2 / 7) < 4 * 0.5 / math.sqrt(count)


def test_the_papers_sampler_and_the_fast_one_have_the_same_law():
    law, draw = gaussian_law(300), drawer(2)
    slow = np.array([slow_gaussian(300, draw) for _ in range(6_000)])
    assert chi_square(slow, law) > 1e-3
    assert chi_square(discrete_gaussian(SOURCE.stream(3), 400_000, 300), law) > 1e-3
    law, draw = laplace_law(5), drawer(4)
    slow = np.array([slow_laplace(5, draw) for _ in range(6_000)])
    assert chi_square(slow, law) > 1e-3
    assert chi_square(discrete_laplace(SOURCE.stream(5), 400_000, 5), law) > 1e-3


# -- the fast sampler ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [256, 257, 1000, 1023, 4**6, 9999])
def test_gaussian_draws_have_their_law(variance):
    assert chi_square(discrete_gaussian(SOURCE.stream(variance), 400_000, variance), gaussian_law(variance)) > 1e-3


@pytest.mark.parametrize("scale", [1, 2, 3, 10, 64])
def test_laplace_draws_have_their_law(scale):
    assert chi_square(discrete_laplace(SOURCE.stream(scale), 200_000, scale), laplace_law(scale)) > 1e-3


@pytest.mark.parametrize("variance", [4**20, 3 * 4**20, 4**28, discrete.VARIANCE_MOST])
def test_wide_draws_are_normal_as_far_as_a_test_can_see(variance):
    drawn = discrete_gaussian(SOURCE.stream(variance % 1000), 200_000, variance)
    deviation = math.sqrt(variance)
    assert kstest(drawn / deviation, norm.cdf).pvalue > 1e-3
    bits = [int(((drawn >> bit) & 1).sum()) for bit in range(12)]
    assert all(abs(count - 100_000) < 5 * 224 for count in bits), "the lowest bits are even coins"
    assert len(np.unique(drawn)) > 199_000 * (1 if deviation > 1e7 else 0.9)


@pytest.mark.parametrize("variance", [256, 5000, 4**10])
@pytest.mark.parametrize("head_bits", [1, 3, 8])
def test_where_the_first_bits_do_not_decide_more_are_drawn(variance, head_bits):
    """The way that is taken a few times in 10^10 draws, made the usual one by giving the head fewer bits."""
    law, count = discrete._law(variance, head_bits), 6_000
    drawn = discrete._gaussian_draws(discrete._Reader(SOURCE.stream(head_bits)), count, law)
    if variance < 10_000:
        assert chi_square(drawn, gaussian_law(variance)) > 1e-3
    assert kstest((drawn + SOURCE_JITTER[:count]) / math.sqrt(variance), norm.cdf).pvalue > 1e-3


SOURCE_JITTER = np.random.default_rng(0).random(6_000) - 0.5


def test_no_head_of_a_limit_is_taken_as_decided():
    """At a limit itself, and beyond the last one, the kernel must stop and ask for more bits."""
    law = discrete._law(4**20, discrete.HEAD_BITS)
    shift = np.uint64(64 - discrete.HEAD_BITS)
    for head in [*law.limits.tolist()[::17], 2**discrete.HEAD_BITS - 1]:
        words = np.full(8, np.uint64(head) << shift, dtype=np.uint64)
        doubled = 2 * law.variance
        constants = (law.width_bits, law.head_bits, law.direct_bits, np.uint64(doubled), discrete._shift(doubled))
        at, done, stuck = discrete._gaussian(words, 0, np.empty(1, np.int64), 0, law.limits, law.direct, *constants)
        assert (at, done, stuck) == (0, 0, True)


def test_a_tail_beyond_the_table_is_drawn_too():
    """All bits set: a block that 39 bits cannot tell, and after 64 more one far out."""
    law = discrete._law(4**20, discrete.HEAD_BITS)
    ones = 2**64 - 1
    words = iter([ones, ones - 5, 0])
    block = discrete._block(law, 2**discrete.HEAD_BITS - 1, lambda: next(words))
    assert block * 2**law.width_bits > 11 * 2**20 > len(law.limits) * 2**law.width_bits


def plain_gaussian(words, count, variance):
    """The fast sampler's steps with numbers of any length and nothing compiled; the limits from an own sum."""
    width_bits = (math.isqrt(variance) // 16).bit_length() - 1
    with localcontext() as context:
        context.prec = 60
        weights = [(-Decimal(4**width_bits * x * x) / (2 * variance)).exp() for x in range(700)]
        total = sum(weights)
        limits = [sum(weights[: x + 1]) / total for x in range(260)]
    words, drawn = iter(words), []
    bits = (2 * variance - 1).bit_length()

    def below():
        while True:
            found = next(words) >> (64 - bits)
            if found < 2 * variance:
                return found

    def one_in(k):
        while True:
            found = next(words) >> (64 - max(1, (k - 1).bit_length()))
            if found < k:
                return found == 0

    while len(drawn) < count:
        word = next(words)
        share = Decimal(word >> 25) / 2**39
        block = next(x for x, limit in enumerate(limits) if share < limit)
        place, minus = word % 2**width_bits, word >> width_bits & 1
        n, k = 2 * block * 2**width_bits * place + place**2, 1
        while below() < n and (k == 1 or one_in(k)):
            k += 1
        value = block * 2**width_bits + place
        if k % 2 == 1 and not (minus and value == 0):
            drawn.append(-value if minus else value)
    return drawn


@pytest.mark.parametrize("variance", [256, 1000, 4**12, 3 * 4**20, discrete.VARIANCE_MOST])
def test_the_fast_sampler_takes_the_same_decisions_as_a_plain_transcription(variance):
    words = SOURCE.stream(77).words(60_000)
    fast = discrete_gaussian(Recorded(words), 5_000, variance)
    assert fast.tolist() == plain_gaussian(words.tolist(), 5_000, variance)


@given(cuts=st.lists(st.integers(1, 200), min_size=1, max_size=20))
@settings(max_examples=25, deadline=None)
def test_draws_do_not_depend_on_how_the_words_are_cut(cuts):
    class Cut:
        def __init__(self):
            self.stream = SOURCE.stream(8)

        def words(self, count):
            return np.concatenate([self.stream.words(1) for _ in range(cuts[count % len(cuts)])])

    expected = discrete_gaussian(SOURCE.stream(8), 300, 10**9)
    assert np.array_equal(discrete_gaussian(Cut(), 300, 10**9), expected)
    expected = discrete_laplace(SOURCE.stream(8), 100, 12345)
    assert np.array_equal(discrete_laplace(Cut(), 100, 12345), expected)


def test_seeded_draws_repeat_and_secret_ones_do_not():
    again = [discrete_gaussian(SeededNoise(1, "a").stream(2), 50, 4**20).tolist() for _ in range(2)]
    assert again[0] == again[1]
    secret = [discrete_gaussian(SystemNoise().stream(2), 50, 4**20).tolist() for _ in range(2)]
    assert secret[0] != secret[1]


# -- noise fitted to a multiplier ------------------------------------------------------------------------------------


@given(multiplier=st.floats(1e-6, 1e6))
@settings(max_examples=300, deadline=None)
def test_noise_covers_its_multiplier_exactly(multiplier):
    noise = GridNoise.of(multiplier)
    assert noise.variance - 9 >= Fraction(multiplier) ** 2 * noise.squared
    assert 0 < noise.squared <= 4**20 and discrete.VARIANCE_LEAST <= noise.variance <= discrete.VARIANCE_MOST


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 2.0, 24.36, 200.0, 1065.2])
def test_noise_is_no_larger_than_it_must_be(multiplier):
    noise = GridNoise.of(multiplier)
    assert math.sqrt(noise.variance / noise.squared) == pytest.approx(multiplier, rel=1e-9)
    assert math.isqrt(noise.squared) > 2**17


def test_the_weights_around_any_point_add_up_to_the_same_number():
    """The step of the proof that costs nine: sums of exp(-(k - x)^2 / 18) over whole k, for x between 0 and 1."""
    with localcontext() as context:
        context.prec = 110
        sums = [sum((-((Decimal(k) - Decimal(x) / 16) ** 2) / 18).exp() for k in range(-75, 77)) for x in range(17)]
        assert max(sums) / min(sums) - 1 < Decimal("1e-76")
        assert max(sums) / min(sums) - 1 > Decimal("1e-80"), "so exact that it is real, not rounding"


def hockey_stick(one, two, epsilon):
    return float(np.maximum(one - math.exp(epsilon) * two, 0).sum())


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_the_continuous_account_covers_the_discrete_mechanism(rate, adjacency):
    """The whole law in two dimensions, summed: no pair of whole vectors within the bound exceeds the accountant's
    delta for the multiplier sqrt(variance - 9) / bound."""
    variance, bound = 256, 20
    line = np.exp(-(np.arange(-140, 141) ** 2) / (2 * variance))
    line /= line.sum()
    table = np.outer(line, line)

    def shifted(vector):
        return np.roll(table, vector, axis=(0, 1))

    rng, release = np.random.default_rng(0), GaussianRelease(math.sqrt(variance - 9) / bound, rate)
    pairs = [((20, 0), (-20, 0)), ((14, 14), (-14, -14)), ((12, 16), (-12, -16)), ((20, 0), (0, 0))]
    for _ in range(12):
        drawn = rng.integers(-bound, bound + 1, size=(2, 2))
        pairs += [(tuple(drawn[0]), tuple(drawn[1]))] if (np.square(drawn).sum(axis=1) <= bound**2).all() else []
    allowed = {epsilon: delta({release: 1}, epsilon, adjacency) for epsilon in (0.2, 1.0, 3.0)}
    for u, v in pairs:
        v = v if adjacency == "replace-one" else (0, 0)
        one, two = ((1 - rate) * table + rate * shifted(w) for w in (u, v))
        for epsilon, most in allowed.items():
            assert hockey_stick(one, two, epsilon) <= most + 1e-12
            assert hockey_stick(two, one, epsilon) <= most + 1e-12
