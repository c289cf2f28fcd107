"""A few numbers through fixed-point words: exact over a range that the words alone do not have."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.learning.blocks import fixed_point
from offbeat.party.scalars import WORDS_EACH, decode, narrow, widen
from offbeat.privacy.masks import range_limit, scale_of

PARTIES = 4
BITS = 40
SCALE, LIMIT = scale_of(BITS), range_limit(PARTIES, BITS)


def summed(rows, scale=SCALE, limit=LIMIT):
    """What the asker reads, where each row is one party's numbers."""
    words = [fixed_point(widen(np.array(row), scale), None, scale, limit, "A number") for row in rows]
    return narrow(decode(np.sum(words, axis=0, dtype=np.uint64), scale), scale)


@pytest.mark.parametrize("size", [2.0**power for power in range(-40, 101, 10)])
def test_one_number_keeps_its_digits_whatever_its_size(size):
    for value in (size, -size, 1.2345678901234567 * size, -size / 3):
        (read,) = summed([[value]])
        assert abs(read - value) <= 2.0**-40 * abs(value)


numbers = st.builds(
    lambda mantissa, power, sign: sign * mantissa * 2.0**power,
    st.floats(1.0, 2.0),
    st.integers(-40, 96),
    st.sampled_from([-1.0, 1.0]),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(numbers, min_size=PARTIES, max_size=PARTIES), min_size=1, max_size=5))
def test_sums_over_the_parties_are_exact_to_the_largest_of_them(columns):
    rows = np.array(columns).T
    read, largest = summed(rows), np.abs(rows).max(axis=0)
    assert np.all(np.abs(read - rows.sum(axis=0)) <= 2.0**-40 * largest + PARTIES * 2.0**-81)


@pytest.mark.parametrize("bits", [16, 20, 40, 48])
def test_fewer_fraction_bits_lose_no_digits_of_scalars_near_one(bits):
    scale, limit = scale_of(bits), range_limit(PARTIES, bits)
    (read,) = summed([[1 / 3], [1 / 7], [-1 / 11], [1e6 / 13]], scale, limit)
    assert read == pytest.approx(1 / 3 + 1 / 7 - 1 / 11 + 1e6 / 13, rel=2.0 ** -min(2 * bits, 48))


def test_a_number_takes_four_words():
    assert len(widen(np.ones(5), SCALE)) == 5 * WORDS_EACH
    assert not widen(np.zeros(5), SCALE).any()
