"""Discrete Gaussian and discrete Laplace noise, drawn exactly: whole numbers from random words by integer arithmetic.

    discrete Gaussian of parameter S     P(k) proportional to exp(-k^2 / (2 S))     k any whole number
    discrete Laplace of scale t          P(k) proportional to exp(-|k| / t)

C. Canonne, G. Kamath and T. Steinke, "The Discrete Gaussian for Differential Privacy" (2020). A double with normal
noise gives its noiseless value away, because not every double can be reached from every value (Mironov 2012). Here
every whole number can be reached from every other one, with just the stated probability.

Why every draw is exact. A draw is a sequence of decisions, and each compares a uniform number with a fixed one:

1. Bernoulli(n/d): a uniform number below d, by rejection from random bits, is compared with n.
2. Bernoulli(exp(-g)), g = n/d <= 1: K counts from 1 while Bernoulli(g) and Bernoulli(1/K) succeed. So K exceeds k with
   probability g^k / k!, and K is odd with probability 1 - g + g^2/2! - ... = exp(-g) (their Algorithm 1).
3. The block: |k| = X W + U, with W a power of two, a 16th to a 32nd of the deviation, and U uniform below W. X is
   drawn with weight exp(-(X W)^2 / 2S), by comparing a uniform real number with the limits of the cumulative weights.
   39 of its bits are drawn first. Where they do not decide (a few times in 10^10) more are drawn, and the limits are
   computed to as many digits, until they do. So real numbers are compared.
4. The rest: the pair is kept with probability exp(-(2 X W U + U^2) / 2S), by 2. The product of both is exp(-k^2 / 2S).
   A sign is drawn, and (0, minus) is rejected. About 97 of 100 pairs are kept.

Whole numbers of 64 bits hold all of this while S is below 2^58. Nothing is rounded; no decision uses floating point.

Why the accountant may take this noise for normal noise. Let y be a discrete Gaussian of parameter S, and q whole.
Draw x from N(0, S - 9), and then k around x, P(k) proportional to exp(-(k - x)^2 / 18). By Poisson summation these
weights add up to the same number for every x, within a factor of 1 +- 1e-76. So k has the law of y within that factor,
at every outcome; and q + k is drawn from q + x alone, since q is whole. So q + y is, within a factor of 1 +- 1e-75 for
each coordinate, what somebody made of the continuous Gaussian mechanism of variance S - 9: in any number of dimensions,
with sampling and composition. `GridNoise` counts on S - 9. docs/explanation/discrete-noise.md has the proof.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numba
import numpy as np
import numpy.typing as npt

from offbeat.errors import BadJob
from offbeat.learning.grid import BOUND_MOST, Grid, Integers
from offbeat.privacy.noise import Stream

Words = npt.NDArray[np.uint64]

VARIANCE_LEAST, VARIANCE_MOST = 2**8, 2**58 - 1
SCALE_MOST = 2**58
HEAD_BITS = 39  # of a word, for the block; one is the sign, and at most 24 the place in the block
DIRECT_BITS = 12  # of the head, that mostly decide alone
UNDECIDED = 2**16 - 1
SMOOTHING = 9  # of the variance, that the comparison with normal noise takes
PIECE = 2**14  # draws at a time: their words stay in the processor's cache

_U = np.uint64


def discrete_gaussian(stream: Stream, count: int, variance: int) -> Integers:
    """Independent draws of the discrete Gaussian with this variance parameter."""
    return _gaussian_draws(_Reader(stream), count, _law(variance, HEAD_BITS))


def discrete_laplace(stream: Stream, count: int, scale: int) -> Integers:
    """Independent draws of the discrete Laplace law with this scale (their Algorithm 2)."""
    assert 1 <= scale <= SCALE_MOST, scale
    reader, drawn, done = _Reader(stream), np.empty(count, dtype=np.int64), 0
    while done < count:
        reader.more(8 * min(PIECE, count - done) + 64)
        reader.at, done = _laplace(reader.words, reader.at, drawn, done, _U(scale), _shift(scale))
    return drawn


# -- random words, in order -----------------------------------------------------------------------------------------


class _Reader:
    """The words of a stream that are not used up. Draws depend on the sequence alone, not on how it is cut."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.words: Words = np.empty(0, dtype=np.uint64)
        self.at = 0

    def more(self, count: int) -> None:
        """Have `count` words more than are left."""
        self.words = np.concatenate((self.words[self.at :], self.stream.words(count)))
        self.at = 0

    def next(self) -> int:
        if self.at == self.words.size:
            self.more(64)
        self.at += 1
        return int(self.words[self.at - 1])


def _shift(bound: int) -> np.uint64:
    """How far to shift a word to the right for the fewest bits that can hold every number below `bound`."""
    return _U(64 - max(1, (bound - 1).bit_length()))


@numba.njit(cache=True, nogil=True)
def _below(words, at, bound, shift):  # type: ignore[no-untyped-def]
    """A uniform number below `bound`, and the next position; position -1 where the words came to an end."""
    while at < words.size:
        drawn = words[at] >> shift
        at += 1
        if drawn < bound:
            return drawn, at
    return _U(0), -1


@numba.njit(cache=True, nogil=True)
def _one_in(words, at, bound):  # type: ignore[no-untyped-def]
    """Bernoulli(1/bound) and the next position."""
    bits = 1
    while (_U(1) << _U(bits)) < bound:
        bits += 1
    drawn, at = _below(words, at, bound, _U(64 - bits))
    return drawn == _U(0), at


@numba.njit(cache=True, nogil=True)
def _falls(words, at, n, d, shift, k):  # type: ignore[no-untyped-def]
    """Bernoulli(exp(-n/d)) for n <= d, and the next position; K is counted from `k`, which is 1 at the beginning."""
    while True:
        if n < d:
            drawn, at = _below(words, at, d, shift)
            if at < 0:
                return False, -1
            if drawn >= n:
                return k % _U(2) == _U(1), at
        if k > _U(1):
            lucky, at = _one_in(words, at, k)
            if at < 0:
                return False, -1
            if not lucky:
                return k % _U(2) == _U(1), at
        k += _U(1)


# -- the discrete Gaussian ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridNoise:
    """Discrete Gaussian noise for sums of whole-number vectors, one for each row, of squared norm at most `squared`:
    variance - 9 >= multiplier^2 * squared."""

    variance: int
    squared: int

    @classmethod
    def of(cls, multiplier: float) -> "GridNoise":
        """The grid is as fine as is of use, and the variance a power of four, which is drawn fastest."""
        exact = Fraction(multiplier) ** 2
        bits = min(max(20 + math.floor(math.log2(multiplier)), 4), 28)
        squared = min((4**bits - SMOOTHING) // exact, BOUND_MOST**2)
        if squared < 1:
            raise BadJob(
                f"Noise of {multiplier:g} times the clip leaves nothing to learn from. Raise epsilon, or ask for fewer "
                "releases."
            )
        return cls(4**bits, int(squared))

    def grid(self, clip: float) -> Grid:
        """On which vectors of this length have as many steps as the noise is made for."""
        bound = math.isqrt(self.squared)
        return Grid(clip / bound, bound)

    def draw(self, stream: Stream, count: int) -> Integers:
        return discrete_gaussian(stream, count, self.variance)


@dataclass(frozen=True)
class _Law:
    """What the draws of one variance share. `limits`: the first `head_bits` bits of the blocks' cumulative weights;
    `direct`: the block by the first bits of the head, or UNDECIDED."""

    variance: int
    width_bits: int
    head_bits: int
    direct_bits: int
    limits: Words
    direct: npt.NDArray[np.uint16]


@lru_cache(maxsize=16)
def _law(variance: int, head_bits: int) -> _Law:
    assert VARIANCE_LEAST <= variance <= VARIANCE_MOST, f"no discrete Gaussian of variance {variance} is drawn here"
    width_bits = (math.isqrt(variance) // 16).bit_length() - 1
    bounds = [(low, high) for low, high in _limits(variance, width_bits, head_bits) if low < 2**head_bits - 1]
    assert all(low == high for low, high in bounds), "more digits are needed"
    limits = np.array([low for low, _ in bounds], dtype=np.uint64)
    direct_bits = min(DIRECT_BITS, head_bits)
    direct = _decided(limits, head_bits - direct_bits, np.arange(2**direct_bits, dtype=np.uint64))
    return _Law(variance, width_bits, head_bits, direct_bits, limits, direct)


def _decided(limits: Words, rest_bits: int, first: Words) -> npt.NDArray[np.uint16]:
    """The block of all heads that begin with `first`, if they share one."""
    lowest = first << _U(rest_bits)
    highest = lowest + _U(2**rest_bits - 1)
    block = np.searchsorted(limits, lowest, side="left")
    above = np.append(limits, _U(0))[block]
    return np.where(highest < above, block, UNDECIDED).astype(np.uint16)


@lru_cache(maxsize=64)
def _limits(variance: int, width_bits: int, bits: int) -> list[tuple[int, int]]:
    """For block 0, 1, ...: bounds on 2^bits P(X <= block) from below and from above, rounded down to whole numbers.

    `Decimal.exp` is correctly rounded. The digits exceed the bits by so many that all errors together, with the blocks
    that are left out, stay below `slack`.
    """
    digits = bits * 30103 // 100000 + 30
    with localcontext() as context:
        context.prec = digits
        rate, weights = Decimal(4**width_bits) / Decimal(2 * variance), [Decimal(1)]
        while weights[-1] > Decimal(10) ** -digits:
            weights.append((-rate * len(weights) ** 2).exp())
        slack = Decimal(2**bits) * Decimal(10) ** (8 - digits)
        unit, reached, found = Decimal(2**bits) / sum(weights), Decimal(0), []
        for weight in weights:
            reached += weight
            found.append((int(reached * unit - slack), int(reached * unit + slack)))
    return found


def _gaussian_draws(reader: _Reader, count: int, law: _Law) -> Integers:
    drawn, done = np.empty(count, dtype=np.int64), 0
    doubled = 2 * law.variance
    constants = (law.width_bits, law.head_bits, law.direct_bits, _U(doubled), _shift(doubled))
    while done < count:
        reader.more(3 * min(PIECE, count - done) + 64)
        stuck = True
        while stuck and done < count:
            reader.at, done, stuck = _gaussian(reader.words, reader.at, drawn, done, law.limits, law.direct, *constants)
            if stuck:
                done += _draw_slowly(reader, law, drawn[done:])
    return drawn


@numba.njit(cache=True, nogil=True)
def _gaussian(words, at, drawn, done, limits, direct, width_bits, head_bits, direct_bits, doubled, shift):  # type: ignore[no-untyped-def]
    """Draw until all are drawn, the words come to an end, or a head does not decide: then the last of the three
    results is True and the position is that of its word."""
    inside = (_U(1) << _U(width_bits)) - _U(1)
    while done < drawn.size and at < words.size:
        word = words[at]
        head = word >> _U(64 - head_bits)
        block = _U(direct[head >> _U(head_bits - direct_bits)])
        if block == _U(UNDECIDED):
            block = _U(0)
            while block < _U(limits.size) and head > limits[block]:
                block += _U(1)
            if block == _U(limits.size) or head == limits[block]:
                return at, done, True
        place = word & inside
        n = (block << _U(width_bits + 1)) * place + place * place
        drawn_below, after = _below(words, at + 1, doubled, shift)
        kept = drawn_below >= n  # K is 1, as it mostly is
        if after > 0 and not kept:
            kept, after = _falls(words, after, n, doubled, shift, _U(2))
        if after < 0:
            return at, done, False
        at = after
        value = np.int64((block << _U(width_bits)) + place)
        if (word >> _U(width_bits)) & _U(1):
            kept = kept and value != 0
            value = -value
        if kept:
            drawn[done] = value
            done += 1
    return at, done, False


def _draw_slowly(reader: _Reader, law: _Law, left: Integers) -> int:
    """One pair whose head does not decide, in numbers of any length; returns how many draws it gave, 0 or 1."""
    word = reader.next()
    block = _block(law, word >> (64 - law.head_bits), reader.next)
    place = word & (2**law.width_bits - 1)
    n = (block << (law.width_bits + 1)) * place + place * place
    value, minus = (block << law.width_bits) + place, word >> law.width_bits & 1
    if not falls(Fraction(n, 2 * law.variance), reader.next) or (minus and not value):
        return 0
    left[0] = -value if minus else value
    return 1


def _block(law: _Law, head: int, draw: Callable[[], int]) -> int:
    """The block of a uniform real number whose first bits are `head`, with as many more as it takes."""
    bits = law.head_bits
    while True:
        head, bits = head << 64 | draw(), bits + 64
        for block, (low, high) in enumerate(_limits(law.variance, law.width_bits, bits)):
            if head < low:
                return block
            if head <= high:
                break  # not decided yet


def falls(exponent: Fraction, draw: Callable[[], int]) -> bool:
    """Bernoulli(exp(-exponent)) for any exponent from 0, in numbers of any length; `draw` gives random words."""
    while exponent > 1:
        if not falls(Fraction(1), draw):
            return False
        exponent -= 1
    k = 1
    while happens(exponent / k, draw):
        k += 1
    return k % 2 == 1


def happens(probability: Fraction, draw: Callable[[], int]) -> bool:
    """Bernoulli(probability)."""
    bits = max(1, (probability.denominator - 1).bit_length())
    while True:
        drawn = 0
        for _ in range(-(-bits // 64)):
            drawn = drawn << 64 | draw()
        drawn >>= -bits % 64
        if drawn < probability.denominator:
            return drawn < probability.numerator


# -- the discrete Laplace law ---------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _laplace(words, at, drawn, done, scale, shift):  # type: ignore[no-untyped-def]
    """|k| = U + scale V: U below the scale with weight exp(-U/scale), V with weight exp(-V); then a sign."""
    while done < drawn.size and at < words.size:
        place, after = _below(words, at, scale, shift)
        if after < 0:
            return at, done
        kept, after = _falls(words, after, place, scale, shift, _U(1))
        if after < 0:
            return at, done
        if not kept:
            at = after
            continue
        value = place
        while kept:
            kept, after = _falls(words, after, _U(1), _U(1), _U(63), _U(1))
            if after < 0:
                return at, done
            value += scale if kept else _U(0)
        if after == words.size:
            return at, done
        minus = words[after] >> _U(63) == _U(1)
        at = after + 1
        if not (minus and value == _U(0)):
            drawn[done] = -np.int64(value) if minus else np.int64(value)
            done += 1
    return at, done
