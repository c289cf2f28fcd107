"""Noise that only its owner can draw again: from a secret by AES in counter mode, one stream for each release.

A party that was killed must repeat the very noise it had drawn, or a second draw would average the first away; a party
that replays its log must, too. So the noise is a function of a secret that never leaves the owner's private folder.
It is also a function of what it is added to: should a number ever come twice with other contents, because an old
state was put back or because a peer lied about what it has seen, the second noise is another one, and the difference of
the two releases does not give the contents away.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from offbeat.privacy.noise import KEY_BYTES, CipherStream, Words


class KeyedNoise:
    """A cryptographic source whose owner can repeat it."""

    seeded = False

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._secret, self._purpose = secret, purpose

    def stream(self, number: int, about: bytes = b"") -> CipherStream:
        return CipherStream(_derived(self._secret, f"{self._purpose} {number} {about.hex()}".rstrip()))


class WordsByName:
    """A stream whose words belong to names, not to positions: the same name has the same word in every job."""

    def __init__(self, secret: bytes, names: Iterable[str]) -> None:
        self._secret, self._names, self._draws = secret, tuple(names), 0

    def words(self, count: int) -> Words:
        assert count == len(self._names), (count, len(self._names))
        self._draws += 1
        hashed = b"".join(_derived(self._secret, f"{self._draws} {name}")[:8] for name in self._names)
        return np.frombuffer(hashed, np.uint64)


def _derived(secret: bytes, purpose: str) -> bytes:
    return hashlib.blake2b(purpose.encode(), key=secret[:64], digest_size=KEY_BYTES).digest()
