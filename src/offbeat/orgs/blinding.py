"""Ids as points of Curve25519, blinded by multiplication with a secret: the arithmetic of the private intersection.

A token is hashed to a point; a party multiplies points by its key (x25519.py). Two keys
commute: both parties reach the same point for the same id, and to whoever lacks a key a blinded point looks random
(the decisional Diffie-Hellman assumption). Points are 32 bytes each, joined.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import PeerFailed
from offbeat.orgs.jacobi import jacobi_symbols
from offbeat.orgs.x25519 import POINT_BYTES, multiply

_PRIME = 2**255 - 19
_A = 486662


def points_of(tokens: Sequence[bytes]) -> bytes:
    """The point of each token: the first of its hashes that is the coordinate of a point on the curve.

    Half of all coordinates belong to the curve, the others to its twist. Multiplication keeps a point where it is, so
    a mixture would tell one bit of every id: all points are on the curve.
    """
    found: list[bytes] = [b""] * len(tokens)
    left, number = list(range(len(tokens))), 0
    while left:
        hashed = [hashlib.blake2b(tokens[i], digest_size=32, salt=number.to_bytes(16, "big")).digest() for i in left]
        on_curve = _on_curve(hashed)
        for i, coordinate, there in zip(left, hashed, on_curve, strict=True):
            if there:
                found[i] = coordinate
        left = [i for i, there in zip(left, on_curve, strict=True) if not there]
        number += 1
    return b"".join(found)


def _on_curve(coordinates: Sequence[bytes]) -> list[bool]:
    """Whether u^3 + A u^2 + u is a square other than 0: the curve's equation has a solution."""
    squares = bytearray()
    for coordinate in coordinates:
        u = (int.from_bytes(coordinate, "little") & (2**255 - 1)) % _PRIME
        squares += ((u * (u + _A) + 1) * u % _PRIME).to_bytes(POINT_BYTES, "little")
    values: NDArray[np.uint64] = np.frombuffer(bytes(squares), "<u8").reshape(-1, 4).astype(np.uint64)
    modulus = np.frombuffer(_PRIME.to_bytes(POINT_BYTES, "little"), "<u8").astype(np.uint64)
    return [bool(symbol == 1) for symbol in jacobi_symbols(values, modulus)]


def multiplied(key: bytes, points: bytes, whose: str) -> bytes:
    """Every point times the key. `whose` names the party that is to blame for bytes that are no points."""
    try:
        return multiply(key, points)
    except ValueError as problem:
        raise PeerFailed(f"'{whose}' sent something else than blinded ids to the alignment.") from problem
