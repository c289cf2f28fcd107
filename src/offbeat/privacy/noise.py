"""Random words for noise and for the secret choice of rows, and what is drawn from them.

A *source* gives one independent *stream* of random words for each numbered release. Every stream is AES-128 in counter
mode, which is as fast as memory; the sources differ in the key:

    SystemNoise   from the operating system's cryptographic generator, new for each release: nobody can draw it again
    SeededNoise   from (seed, name, number): a simulated run repeats bit for bit, and its record says that this
                  protects nothing

What protects a row (`discrete`, `poisson_sample`) is drawn from the words exactly, by integer arithmetic. What does not
(noise as printed in the papers, batches of a fixed size) is drawn here as floating-point numbers.
"""

import hashlib
import os
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from offbeat.privacy.masks import KeyStream

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

SEEDED_WARNING = (
    "seeded: for experiments only. Whoever knows the seed can draw the noise again, so it protects nothing."
)
KEY_BYTES = 16


class Stream(Protocol):
    """Random words for one release, each handed out once."""

    def words(self, count: int) -> Words: ...


class NoiseSource(Protocol):
    """Where a party's noise comes from. `number` is the release's own and is never used twice; `about` names what the
    noise is added to, for sources whose owner can draw again (see `orgs.keyed_noise`)."""

    @property
    def seeded(self) -> bool: ...

    def stream(self, number: int, about: bytes = b"") -> Stream: ...


class CipherStream:
    """The words of one key, in order."""

    def __init__(self, key: bytes) -> None:
        self._stream, self._next = KeyStream(key), 0

    def words(self, count: int) -> Words:
        drawn = self._stream.words(self._next, count)
        self._next += count
        return drawn


class SystemNoise:
    """The default: noise nobody can draw again."""

    seeded = False

    def stream(self, number: int, about: bytes = b"") -> CipherStream:
        return CipherStream(os.urandom(KEY_BYTES))


class SeededNoise:
    """Noise that repeats: for simulations, tests and figures."""

    seeded = True

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self.name = name

    def stream(self, number: int, about: bytes = b"") -> CipherStream:
        return CipherStream(hashlib.sha256(f"{self.seed}/{self.name}/{number}".encode()).digest()[:KEY_BYTES])


# -- exact ------------------------------------------------------------------------------------------------------------


def poisson_sample(stream: Stream, rows: int, rate: float) -> Rows:
    """Each row by its own coin: a random word below rate * 2^64, which is a whole number or is rounded down to one."""
    if rate >= 1.0:
        return np.arange(rows)
    return np.flatnonzero(stream.words(rows) < np.uint64(int(rate * 2.0**64)))


# -- floating point: for what protects nothing ------------------------------------------------------------------------


def uniform(stream: Stream, size: int) -> Vector:
    """Numbers in the open interval (0, 1): the upper 52 bits of each word."""
    return ((stream.words(size) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gaussian_noise(stream: Stream, size: int, deviation: float) -> Vector:
    """Normal draws as doubles. Their last bits give away what they are added to: no privacy claim can rest on them."""
    drawn: Vector = deviation * ndtri(uniform(stream, size))
    return drawn


def exponential_norm_noise(stream: Stream, dimension: int, scale: float) -> Vector:
    """MAPA's noise as printed: a uniform direction times an exponential norm. NOT differentially private for d > 1.

    Its density behaves as r^-(d-1) at the true value, so the most likely outputs give that value away.
    """
    norm = scale * float(-np.log(uniform(stream, 1)[0]))
    direction = gaussian_noise(stream, dimension, 1.0)
    return norm / float(np.linalg.norm(direction)) * direction


def fixed_size_sample(stream: Stream, rows: int, size: int) -> Rows:
    """`size` different rows, every set equally likely: the batch of the paper, without replacement."""
    size = min(size, rows)
    if size * 8 >= rows:
        return np.argsort(stream.words(rows), kind="stable")[:size].astype(np.int64)
    chosen: dict[int, None] = {}
    while len(chosen) < size:
        for row in (uniform(stream, size) * rows).astype(np.int64).tolist():
            chosen.setdefault(row, None)
    return np.fromiter(chosen, dtype=np.int64, count=len(chosen))[:size]
