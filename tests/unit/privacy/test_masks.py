"""Masks: uniform, the same on both sides, gone from the total, and never handed out twice."""

from hashlib import blake2b, sha256

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from offbeat.errors import MaskReuse
from offbeat.message.codec import decode_state, encode_state
from offbeat.privacy.mask_kernel import net_mask
from offbeat.privacy.masks import (
    CHUNK_WORDS,
    GAPS_MAX,
    KeyStream,
    NetMask,
    Once,
    PairKeys,
    range_limit,
    scale_of,
)

PRIME = 2**64 - 59
KEY, OTHER = bytes(range(16)), bytes(range(16, 32))


def net(stride: int = 1, chunk_words: int = 64) -> NetMask:
    return NetMask([KEY], [OTHER], stride, chunk_words)


def taken(mask: NetMask, first: int, places: int, count: int | None = None) -> np.ndarray:
    count = places * mask.stride if count is None else count
    return mask.take(first, places, count)


def block_by_block(key: bytes, first: int, count: int, branch: int) -> np.ndarray:
    """The words of a branch, each cipher block by itself: the upper half of the block is the branch."""
    cipher = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()
    counters = [branch.to_bytes(8, "big") + at.to_bytes(8, "big") for at in range((first + count) // 2 + 1)]
    return np.frombuffer(cipher.update(b"".join(counters)), np.uint64)[first : first + count]


def expected(first: int, count: int, branches: tuple[int, int] = (1, 1)) -> np.ndarray:
    """Of an answer with so many words; a small one is of branch 0."""
    one, other = branches if count >= CHUNK_WORDS else (0, 0)
    return block_by_block(KEY, first, count, one) - block_by_block(OTHER, first, count, other)


def test_a_stream_reads_the_same_from_any_position():
    whole = KeyStream(KEY).words(0, 1000)
    stream = KeyStream(KEY)
    for first, count in [(0, 1), (1, 2), (3, 1), (900, 100), (4, 7), (11, 1), (12, 500), (0, 3), (999, 1)]:
        assert np.array_equal(stream.words(first, count), whole[first : first + count])


def test_words_are_uniform_in_their_top_and_low_bytes():
    words = KeyStream(KEY).words(0, 65_536)
    for shift in (0, 56):
        counts = np.bincount((words >> np.uint64(shift) & np.uint64(255)).astype(int), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3


def test_a_masked_word_says_nothing_about_what_it_hides():
    hidden = np.array([0, 2**40], np.uint64)
    for value in hidden:
        masked = KeyStream(KEY).words(0, 65_536) + value
        counts = np.bincount((masked >> np.uint64(56)).astype(int), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3


def test_both_sides_of_a_pair_derive_the_same_key_and_other_contexts_another():
    ana, bo = PairKeys(bytes(32)), PairKeys(bytes(31) + b"\x01")
    ana.agree("bo", bo.public)
    bo.agree("ana", ana.public)
    assert ana.stream_key("bo", b"run") == bo.stream_key("ana", b"run")
    assert ana.stream_key("bo", b"run") != ana.stream_key("bo", b"another")


WORDS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**32, 2**63, PRIME - 1, PRIME, 2**64 - 1]))


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(WORDS, min_size=5, max_size=5), max_size=4), st.lists(WORDS, min_size=4, max_size=4), st.data()
)
def test_a_mask_is_the_words_times_the_pairs_number_of_what_was_told(streams, told, data):
    """The compiled loop beside the formula, in whole numbers of any length."""
    keys = [[data.draw(WORDS) >> 1 for _ in range(4)] for _ in streams]
    plus, told = data.draw(st.integers(0, len(streams))), told if data.draw(st.booleans()) else []
    expected = [0] * 3
    for pair, (stream, key) in enumerate(zip(streams, keys, strict=True)):
        factor = sum(k * (d >> 1) for k, d in zip(key, told, strict=False)) % PRIME or 1
        for i in range(3):
            expected[i] += (1 if pair < plus else -1) * (stream[1 + i] * factor % PRIME)
    out, table = np.empty(3, np.uint64), np.array(streams, np.uint64).reshape(len(streams), 5)
    net_mask(table, 1, np.array(keys, np.uint64).reshape(len(keys), 4), np.array(told, np.uint64), plus, out)
    assert out.tolist() == [value % 2**64 for value in expected]


@settings(deadline=None, max_examples=50)
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(0, 50))
def test_masks_cancel_for_those_who_were_told_the_same_and_for_nobody_else(one, other, place):
    plus, minus = (NetMask([KEY], [], 8), NetMask([], [KEY], 8))
    left = plus.take(place, 1, 8, sha256(one).digest()) + minus.take(place, 1, 8, sha256(other).digest())
    assert left.any() == (one != other)


def number_told(key: bytes, told: bytes) -> int:
    secrets = np.frombuffer(blake2b(b"offbeat told", key=key, digest_size=32).digest(), np.uint64) >> np.uint64(1)
    words = np.frombuffer(told, np.uint64) >> np.uint64(1)
    return sum(int(k) * int(d) for k, d in zip(secrets, words, strict=True)) % PRIME or 1


@pytest.mark.parametrize(("place", "count"), [(0, CHUNK_WORDS), (3, CHUNK_WORDS + 1), (2, 3 * CHUNK_WORDS - 1)])
def test_a_large_answer_reads_the_branch_that_what_was_told_names(place, count):
    mask, told, stride = net(3 * CHUNK_WORDS - 1), sha256(b"told").digest(), 3 * CHUNK_WORDS - 1
    small = mask.take(place + 1, 1, 5, told)
    large = mask.take(place, 1, count, told)
    branches = (number_told(KEY, told), number_told(OTHER, told))
    assert np.array_equal(large, expected(place * stride, count, branches))
    again = net(stride)
    again.take(place, 1, count, told)
    assert np.array_equal(again.take(place + 1, 1, 5, told), small)  # what was read between leaves the others alone


@settings(deadline=None, max_examples=25)
@given(st.binary(max_size=8), st.binary(max_size=8), st.integers(0, 50), st.integers(CHUNK_WORDS, CHUNK_WORDS + 9))
def test_large_masks_cancel_for_those_who_were_told_the_same_and_for_nobody_else(one, other, place, count):
    plus, minus = NetMask([KEY], [], count), NetMask([], [KEY], count)
    left = plus.take(place, 1, count, sha256(one).digest()) + minus.take(place, 1, count, sha256(other).digest())
    assert np.count_nonzero(left) == (0 if one == other else count)


def test_words_of_two_branches_have_nothing_to_do_with_each_other():
    """What an asker has that told one party the truth and another one something else: uniform words."""
    plus, minus = NetMask([KEY], [], 65_536), NetMask([], [KEY], 65_536)
    left = plus.take(0, 1, 65_536, bytes(32)) + minus.take(0, 1, 65_536, bytes(31) + b"\x02")
    for shift in (0, 56):
        counts = np.bincount((left >> np.uint64(shift) & np.uint64(255)).astype(int), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3


def test_opposite_signs_cancel():
    plus, minus = NetMask([KEY], []), NetMask([], [KEY])
    assert np.array_equal(taken(plus, 5, 40) + taken(minus, 5, 40), np.zeros(40, np.uint64))


def test_without_a_third_party_there_is_nothing_to_hide_behind():
    assert not taken(NetMask([], []), 0, 10).any()


@pytest.mark.parametrize("stride", [1, 3, 16])
def test_the_words_of_a_place_are_the_signed_sum_of_the_streams_wherever_they_are_read(stride):
    mask = net(stride)
    for first, places in [(0, 10), (10, 60), (70, 3), (500, 20), (73, 400), (520, 1), (480, 20), (521, 700)]:
        words = taken(mask, first, places)
        assert np.array_equal(words, expected(first * stride, places * stride)), (first, places)


def test_a_place_that_needs_fewer_words_leaves_the_others_where_they_are():
    """Blocks of rows differ in length; each begins at its own place."""
    mask = net(stride=16)
    lengths = [16, 7, 1, 16, 12]
    for place, count in enumerate(lengths):
        assert np.array_equal(taken(mask, place, 1, count), expected(16 * place, count))


@pytest.mark.parametrize(
    "second",
    [(0, 10), (9, 1), (5, 10), (0, 1)],
    ids=["the same", "its last place", "overlapping", "a part of it"],
)
@pytest.mark.parametrize("stride", [1, 4])
def test_places_are_handed_out_once(second, stride):
    mask = net(stride)
    mask.take(0, 10, 10)  # whether or not all words were needed
    with pytest.raises(MaskReuse, match="second time"):
        mask.take(*second, 1)


def test_what_was_skipped_may_be_taken_once():
    mask = net()
    mask.take(0, 10, 10)
    mask.take(30, 10, 10)
    assert np.array_equal(taken(mask, 15, 5), expected(15, 5))
    for again in [(15, 5), (14, 2), (10, 20), (30, 1)]:
        with pytest.raises(MaskReuse):
            mask.take(*again, 1)
    assert np.array_equal(taken(mask, 10, 5), expected(10, 5))
    assert np.array_equal(taken(mask, 20, 10), expected(20, 10))
    assert mask.used.gaps == []


def test_a_range_over_a_gap_and_used_places_is_refused():
    mask = net()
    mask.take(10, 10, 10)
    with pytest.raises(MaskReuse):
        mask.take(5, 10, 10)
    assert np.array_equal(taken(mask, 0, 10), expected(0, 10))


@pytest.mark.parametrize("count", [0, -1, 41])
def test_no_stream_is_wound_back_or_read_past_its_places(count):
    mask = net(stride=4)
    mask.take(0, 10, 10)
    with pytest.raises(ValueError, match="expected 1 to 40 words for 10 places"):
        mask.take(10, 10, count)
    assert mask.used.next == 10


def test_gaps_are_bounded_and_the_oldest_are_never_used():
    mask = net()
    for i in range(GAPS_MAX + 5):
        mask.take(1 + 2 * i, 1, 1)
    assert len(mask.used.gaps) == GAPS_MAX
    with pytest.raises(MaskReuse):
        mask.take(0, 1, 1)
    assert np.array_equal(taken(mask, 10, 1), expected(10, 1))


def test_a_restored_mask_remembers_what_was_handed_out():
    mask = net(stride=4)
    mask.take(0, 10, 40)
    mask.take(20, 10, 40)
    again = net(stride=4)
    again.restore(decode_state(encode_state(mask.snapshot())))
    for used in [(0, 1), (20, 10), (29, 1)]:
        with pytest.raises(MaskReuse):
            again.take(*used, 1)
    assert np.array_equal(taken(again, 10, 10), expected(40, 40))
    assert np.array_equal(taken(again, 30, 5), expected(120, 20))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=40))
def test_no_place_is_ever_claimed_twice(claims):
    once, used = Once(), set()
    for first, count in claims:
        places = set(range(first, first + count))
        if places & used:
            with pytest.raises(MaskReuse):
                once.claim(first, first + count)
        else:
            once.claim(first, first + count)
            used |= places
        again = Once()
        again.restore(decode_state(encode_state(once.snapshot())))
        assert (again.next, again.gaps) == (once.next, once.gaps)


def test_the_range_leaves_room_for_the_sum_of_all_parties():
    for parties in (3, 8, 64):
        assert range_limit(parties) * parties * scale_of(40) == 2.0**63
