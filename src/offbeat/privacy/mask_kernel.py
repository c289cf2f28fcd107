"""The compiled loops behind masks that are bound to what a party was told.

All of it is arithmetic modulo the prime p = 2^64 - 59. Let s be a word of a pair's key stream, k four secret numbers of
the same pair, and d the digest (four words of 63 bits) of what the answering party was told. Then

    h = k_1 d_1 + ... + k_4 d_4 modulo p,        mask = s h modulo p.

Two parties of a pair that were told the same have the same h, so their masks cancel. If they were told different
things, h and h' differ but for a chance of 1/p, whatever the teller chose, since it does not know k. What is left is
s h - s h', and s (h - h') modulo p is uniform: each value of the difference, modulo 2^64, comes with a chance of 2/p at
most. Nothing is learned of k either way, so k serves for a whole stream; a word s serves once.

Large answers do without the product: h, which is never 0, names a branch of the pair's key stream (`masks.py`), and the
words of two branches have nothing to do with each other. Branch 0 is what small answers multiply.
"""

import numba
import numpy as np
from numba import types

from offbeat.learning.kernels import INT, WORDS, WORDS_OUT, compiled, given

SHORT = np.uint64(59)  # p = 2^64 - SHORT
PRIME = np.uint64(2**64 - 59)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
NOTHING, ONE = np.uint64(0), np.uint64(1)
TABLE = given(types.uint64, 2)


@numba.njit(inline="always")
def _times(x, y):  # type: ignore[no-untyped-def]
    """x y modulo p."""
    x0, x1, y0, y1 = x & LOW, x >> HALF, y & LOW, y >> HALF
    low, left, right = x0 * y0, x0 * y1, x1 * y0
    middle = (low >> HALF) + (left & LOW) + (right & LOW)
    high = x1 * y1 + (left >> HALF) + (right >> HALF) + (middle >> HALF)
    low = (middle << HALF) | (low & LOW)
    # high 2^64 + low = high SHORT + low, modulo p; the first product has up to 70 bits
    part, above = (high & LOW) * SHORT, (high >> HALF) * SHORT
    folded = part + (above << HALF)
    carry = (above >> HALF) + (ONE if folded < part else NOTHING)
    total = low + folded
    carry += ONE if total < low else NOTHING
    rest = carry * SHORT
    total += rest
    if total < rest:
        total += SHORT
    return total - PRIME if total >= PRIME else total


@numba.njit(inline="always")
def _plus(x, y):  # type: ignore[no-untyped-def]
    """x + y modulo p, both below p."""
    total = x + y
    if total < x:
        return total + SHORT
    return total - PRIME if total >= PRIME else total


@numba.njit(inline="always")
def _number_told(key, told):  # type: ignore[no-untyped-def]
    """h, or 1 where that is 0 or nothing was told."""
    number = NOTHING
    for place in range(len(told)):
        number = _plus(number, _times(key[place], told[place] >> ONE))
    return ONE if number == NOTHING else number


@compiled(types.void, TABLE, WORDS, WORDS_OUT)
def _numbers_told(keys, told, out):  # type: ignore[no-untyped-def]
    for pair in range(len(out)):
        out[pair] = _number_told(keys[pair], told)


def numbers_told(keys: np.ndarray, told: np.ndarray) -> np.ndarray:
    """By pair: the number of what was told."""
    out = np.empty(len(keys), np.uint64)
    _numbers_told(keys, told, out)
    return out


@compiled(types.void, TABLE, INT, TABLE, WORDS, INT, WORDS_OUT)
def net_mask(words, at, keys, told, plus, out):  # type: ignore[no-untyped-def]
    """The sum over pairs of their masks from word `at` on; the first `plus` pairs are added, the others subtracted.
    `told` may be empty: then masks are the words themselves, modulo p."""
    out[:] = NOTHING
    for pair in range(words.shape[0]):
        factor = _number_told(keys[pair], told)
        stream = words[pair, at : at + len(out)]
        if pair < plus:
            for i in range(len(out)):
                out[i] += _times(stream[i], factor)
        else:
            for i in range(len(out)):
                out[i] -= _times(stream[i], factor)
