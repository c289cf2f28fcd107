"""Noise, and the secret choice of rows, from a cryptographic or from a seeded source.

A *source* gives one independent *stream* for each numbered release. `SystemNoise` reads the operating system's
generator and can never be replayed; `SeededNoise` derives each stream from (seed, name, number), so that a
simulated run repeats bit for bit, and a run that uses it must say "seeded: for experiments only".

Every law here has a density on the real numbers, drawn in double precision. The last bits of a float reveal a
little about what it was added to (Mironov 2012); a discrete Gaussian would close that, and is not offered here.
"""

import hashlib
import math
import os
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

SEEDED_WARNING = "seeded: for experiments only (the noise can be recomputed by whoever knows the seed)"


class Stream(Protocol):
    """Independent draws for one release."""

    def uniform(self, size: int) -> Vector:
        """Numbers in the open interval (0, 1)."""
        ...

    def normal(self, size: int) -> Vector: ...


class NoiseSource(Protocol):
    """Where a party's noise comes from; `number` is the release's own and is never used twice."""

    @property
    def seeded(self) -> bool: ...

    def stream(self, number: int) -> Stream: ...


def uniform_from(words: npt.NDArray[np.uint64]) -> Vector:
    """One number for each random word, from its upper 52 bits; neither 0 nor 1 can come."""
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normal_from(uniform: Vector) -> Vector:
    drawn: Vector = ndtri(uniform)
    return drawn


class SystemStream:
    """Draws from the operating system's cryptographic generator."""

    def uniform(self, size: int) -> Vector:
        return uniform_from(np.frombuffer(os.urandom(8 * size), dtype=np.uint64))

    def normal(self, size: int) -> Vector:
        return normal_from(self.uniform(size))


class SystemNoise:
    """The default: noise nobody can recompute."""

    seeded = False

    def stream(self, number: int) -> SystemStream:
        return SystemStream()


class SeededStream:
    """Draws from a numpy generator."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def uniform(self, size: int) -> Vector:
        return 1.0 - self.generator.random(size)

    def normal(self, size: int) -> Vector:
        return self.generator.standard_normal(size)


class SeededNoise:
    """Noise that repeats: for simulations, tests and figures."""

    seeded = True

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self.name = name

    def stream(self, number: int) -> SeededStream:
        key = hashlib.sha256(f"{self.seed}/{self.name}/{number}".encode()).digest()
        return SeededStream(np.random.default_rng(np.frombuffer(key, dtype=np.uint32)))


def gaussian_noise(stream: Stream, dimension: int, deviation: float) -> Vector:
    """Independent normal draws of the given standard deviation."""
    return deviation * stream.normal(dimension)


def knorm_noise(stream: Stream, dimension: int, scale: float) -> Vector:
    """A draw from the density proportional to exp(-|eta|_2 / scale): pure epsilon if scale = sensitivity/epsilon.

    The direction is uniform and the norm is Gamma(d, scale), because the sphere of radius r carries r^(d-1) of the
    volume. A sum of d exponentials is a Gamma(d) draw.
    """
    norm = scale * float(-np.log(stream.uniform(dimension)).sum())
    return norm * _direction(stream, dimension)


def exponential_norm_noise(stream: Stream, dimension: int, scale: float) -> Vector:
    """MAPA's noise as printed: a uniform direction times an exponential norm. NOT differentially private for d > 1.

    Its density behaves as r^-(d-1) at the true value, so the most likely outputs give that value away.
    """
    norm = scale * float(-np.log(stream.uniform(1)[0]))
    return norm * _direction(stream, dimension)


def _direction(stream: Stream, dimension: int) -> Vector:
    direction = stream.normal(dimension)
    direction /= np.linalg.norm(direction)
    return direction


def poisson_sample(stream: Stream, rows: int, rate: float) -> Rows:
    """Each row independently with probability `rate`, by drawing the gaps between chosen rows."""
    if rate >= 1.0:
        return np.arange(rows)
    log_miss = math.log1p(-rate)
    expected = int(rows * rate + 6 * math.sqrt(rows * rate) + 16)
    chosen: list[Rows] = []
    last = -1
    while last < rows:
        gaps = np.floor(np.log(stream.uniform(expected)) / log_miss)
        positions = last + np.cumsum(np.minimum(gaps, float(rows)).astype(np.int64) + 1)
        chosen.append(positions)
        last = int(positions[-1])
    drawn = np.concatenate(chosen)
    return drawn[drawn < rows]


def fixed_size_sample(stream: Stream, rows: int, size: int) -> Rows:
    """`size` different rows, every set equally likely: the batch of the paper, without replacement."""
    size = min(size, rows)
    if size * 8 >= rows:
        return np.argsort(stream.uniform(rows), kind="stable")[:size].astype(np.int64)
    chosen: dict[int, None] = {}
    while len(chosen) < size:
        for row in (stream.uniform(size) * rows).astype(np.int64).tolist():
            chosen.setdefault(row, None)
    return np.fromiter(chosen, dtype=np.int64, count=len(chosen))[:size]
