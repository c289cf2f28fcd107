"""Noise that only its owner can draw again: from a secret by AES in counter mode, one stream for each release.

A party that was killed must repeat the very noise it had drawn, or a second draw would average the first away; a party
that replays its log must, too. So the noise is a function of a secret that never leaves the owner's private folder.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from offbeat.privacy.masks import KeyStream
from offbeat.privacy.noise import Vector, normal_from, uniform_from

KEY_BYTES = 16


class KeyedStream:
    """Draws of one release, in order."""

    def __init__(self, key: bytes) -> None:
        self._words, self._next = KeyStream(key), 0

    def uniform(self, size: int) -> Vector:
        words = self._words.words(self._next, size)
        self._next += size
        return uniform_from(words)

    def normal(self, size: int) -> Vector:
        return normal_from(self.uniform(size))


class KeyedNoise:
    """A cryptographic source whose owner can repeat it."""

    seeded = False

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._secret, self._purpose = secret, purpose

    def stream(self, number: int) -> KeyedStream:
        return KeyedStream(_derived(self._secret, f"{self._purpose} {number}"))


class UniformByName:
    """A stream whose numbers belong to names, not to positions: the same name has the same numbers in every job."""

    def __init__(self, secret: bytes, names: Iterable[str]) -> None:
        self._secret, self._names, self._draws = secret, tuple(names), 0

    def uniform(self, size: int) -> Vector:
        assert size == len(self._names), (size, len(self._names))
        self._draws += 1
        hashed = b"".join(_derived(self._secret, f"{self._draws} {name}")[:8] for name in self._names)
        return uniform_from(np.frombuffer(hashed, np.uint64))

    def normal(self, size: int) -> Vector:
        return normal_from(self.uniform(size))


def _derived(secret: bytes, purpose: str) -> bytes:
    return hashlib.blake2b(purpose.encode(), key=secret[:64], digest_size=KEY_BYTES).digest()
