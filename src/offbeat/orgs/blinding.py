"""Ids as points of Curve25519, blinded by multiplication with a secret: the arithmetic of the private intersection.

A token is hashed to a point; a party multiplies points by its key (x25519.py). Two keys commute: both parties reach the
same point for the same id, and to whoever lacks a key a blinded point looks random (the decisional Diffie-Hellman
assumption). Points are 32 bytes each, joined.

Which coordinates belong to the curve is told by Jacobi symbols, compiled: halve, subtract, swap, and follow the sign by
quadratic reciprocity. A number is four words of 64 bits, the lowest first; as a tuple it stays in registers.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from offbeat.errors import PeerFailed
from offbeat.orgs.x25519 import POINT_BYTES, multiply

Words = NDArray[np.uint64]
_ONE, _ALL = np.uint64(1), np.uint64(64)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _halved(a: Any, times: Any) -> Any:
    rest = _ALL - times
    return (
        (a[0] >> times) | (a[1] << rest),
        (a[1] >> times) | (a[2] << rest),
        (a[2] >> times) | (a[3] << rest),
        a[3] >> times,
    )


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _less(a: Any, b: Any) -> Any:
    if a[3] != b[3]:
        return a[3] < b[3]
    if a[2] != b[2]:
        return a[2] < b[2]
    if a[1] != b[1]:
        return a[1] < b[1]
    return a[0] < b[0]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _minus(a: Any, b: Any) -> Any:
    """a - b, where a is not the smaller one."""
    zero = np.uint64(0)
    borrow0 = _ONE if a[0] < b[0] else zero
    borrow1 = _ONE if a[1] < b[1] or (a[1] == b[1] and borrow0) else zero
    borrow2 = _ONE if a[2] < b[2] or (a[2] == b[2] and borrow1) else zero
    return a[0] - b[0], a[1] - b[1] - borrow0, a[2] - b[2] - borrow1, a[3] - b[3] - borrow2


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _symbol(a: Any, n: Any) -> int:
    """Of a over the odd n."""
    sign = 1
    while a[0] | a[1] | a[2] | a[3]:
        while not a[0]:  # 64 halvings do not change the sign
            a = (a[1], a[2], a[3], np.uint64(0))
        low, times = a[0], np.uint64(0)
        while not low & _ONE:
            low >>= _ONE
            times += _ONE
        if times:
            a = _halved(a, times)
            rest = n[0] & np.uint64(7)
            if times & _ONE and (rest == 3 or rest == 5):
                sign = -sign
        if _less(a, n):
            a, n = n, a
            if a[0] & n[0] & np.uint64(3) == 3:
                sign = -sign
        a = _minus(a, n)
    return sign if n[0] == 1 and not (n[1] | n[2] | n[3]) else 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def jacobi_symbols(values: Words, modulus: Words) -> NDArray[np.int8]:
    """-1, 0 or 1 for each row of `values`."""
    found = np.empty(values.shape[0], np.int8)
    n = (modulus[0], modulus[1], modulus[2], modulus[3])
    for k in range(values.shape[0]):
        found[k] = _symbol((values[k, 0], values[k, 1], values[k, 2], values[k, 3]), n)
    return found


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
