"""X25519 of many points under one key: eight at a time by Intel's multi-buffer library, or one by one.

The library is in the extra 'align', for Linux on x86-64; it needs a processor with AVX-512 IFMA. Without one of these
the package cryptography multiplies. Both give the same bytes: one party may have it and another not.

**Every product of the library is made twice.** Its arithmetic drops a carry at coordinates just below the prime. A peer
that sends points which lead there could tell a key's bits by which products are wrong. The coordinate 1/u belongs to
the point at u plus the point of order two. A key is a multiple of eight, so both have the same product, by way of
numbers that differ by powers of u. Where the two products differ nothing is answered; coordinates whose fourth power
is 1, where the numbers would not differ, are refused.
"""

import ctypes
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, files
from itertools import accumulate

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

POINT_BYTES = 32
PRIME = 2**255 - 19
LIBRARY, RUNTIME = "ipp-crypto", "intel-cmplr-lib-rt"
_RUNTIME_PARTS = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so")
_LANES = 8
_ROOT = pow(2, (PRIME - 1) // 4, PRIME)  # of -1
_UNFIT = frozenset((0, 1, PRIME - 1, _ROOT, PRIME - _ROOT))
_BASE = (9).to_bytes(POINT_BYTES, "little")

Multiply = Callable[[bytes, bytes], bytes]


def multiply(key: bytes, points: bytes) -> bytes:
    """Every point times the key. A ValueError for a point of small order, which would give the same for every key."""
    if len(key) != POINT_BYTES or len(points) % POINT_BYTES:  # the library is given addresses, not lengths
        raise ValueError("bytes that are no points")
    return fastest()(key, points)


def one_by_one(key: bytes, points: bytes) -> bytes:
    exchange, load = X25519PrivateKey.from_private_bytes(key).exchange, X25519PublicKey.from_public_bytes
    return b"".join([exchange(load(points[at : at + POINT_BYTES])) for at in range(0, len(points), POINT_BYTES)])


def eight_at_a_time(library: ctypes.CDLL, key: bytes, points: bytes) -> bytes:
    products = _products(library, key, points)
    if products != _products(library, key, inverses(points)):
        raise ValueError("two ways to one product differ")
    return products


@cache
def fastest() -> Multiply:
    """What this machine has."""
    try:
        library = multi_buffer()
    except (PackageNotFoundError, StopIteration, OSError):  # not installed, or not for this system
        return one_by_one
    return partial(eight_at_a_time, library) if library.mbx_is_crypto_mb_applicable(0) else one_by_one


def multi_buffer() -> ctypes.CDLL:
    for part in _RUNTIME_PARTS:  # the library asks for these by name; they lie where no loader looks
        ctypes.CDLL(_path(RUNTIME, part), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(_path(LIBRARY, "libcrypto_mb.so"))
    library.mbx_is_crypto_mb_applicable.argtypes = [ctypes.c_uint64]
    library.mbx_x25519_mb8.argtypes = [ctypes.c_void_p] * 3
    library.mbx_x25519_mb8.restype = ctypes.c_uint32
    return library


def inverses(points: bytes) -> bytes:
    """1/u of each coordinate, by one inversion in all. A ValueError for one that is 0 or whose fourth power is 1."""
    values = [
        (int.from_bytes(points[at : at + POINT_BYTES], "little") & (2**255 - 1)) % PRIME
        for at in range(0, len(points), POINT_BYTES)
    ]
    if not _UNFIT.isdisjoint(values):
        raise ValueError("a coordinate that equals its inverse, or nearly so")
    before = list(accumulate(values, lambda product, value: product * value % PRIME, initial=1))
    inverse = pow(before[-1], -1, PRIME)
    found = [b""] * len(values)
    for i in range(len(values) - 1, -1, -1):
        found[i] = (inverse * before[i] % PRIME).to_bytes(POINT_BYTES, "little")
        inverse = inverse * values[i] % PRIME
    return b"".join(found)


def _path(package: str, name: str) -> str:
    return str(next(file.locate() for file in files(package) or () if file.name == name))


def _products(library: ctypes.CDLL, key: bytes, points: bytes) -> bytes:
    given = np.frombuffer(points + _BASE * (-(len(points) // POINT_BYTES) % _LANES), np.uint8)
    made, secret = np.empty_like(given), np.frombuffer(key, np.uint8)
    keys = np.full(_LANES, secret.ctypes.data, np.uint64)
    given_at, made_at = _addresses(given), _addresses(made)
    wrong = 0
    for at in range(0, given_at.nbytes, _LANES * given_at.itemsize):
        wrong |= library.mbx_x25519_mb8(made_at.ctypes.data + at, keys.ctypes.data, given_at.ctypes.data + at)
    if wrong:
        raise ValueError("a point of small order")
    return made.tobytes()[: len(points)]


def _addresses(points: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.uint64(points.ctypes.data) + np.arange(0, len(points), POINT_BYTES, dtype=np.uint64)
