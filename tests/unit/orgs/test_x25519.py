"""X25519 of many points: the fast library against the package cryptography, and where the library is wrong."""

import os
from importlib.metadata import PackageNotFoundError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.orgs import x25519
from offbeat.orgs.x25519 import POINT_BYTES, PRIME, eight_at_a_time, inverses, multi_buffer, one_by_one

KEY = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
POINT = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
PRODUCT = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
ORDER_EIGHT = 325606250916557431795983626356110631294008115727848805560023387167927233504
ROOT = pow(2, (PRIME - 1) // 4, PRIME)
JUST_BELOW = PRIME - 10  # a coordinate at which the library drops a carry, whatever the key


def encoded(*coordinates: int) -> bytes:
    return b"".join(u.to_bytes(POINT_BYTES, "little") for u in coordinates)


@pytest.fixture(scope="module")
def library():  # type: ignore[no-untyped-def]
    try:
        found = multi_buffer()
    except (PackageNotFoundError, StopIteration, OSError):
        pytest.skip("needs the extra 'align'")
    if not found.mbx_is_crypto_mb_applicable(0):
        pytest.skip("needs a processor with AVX-512 IFMA")
    return found


def test_the_vector_of_rfc_7748_one_by_one() -> None:
    assert one_by_one(KEY, POINT + POINT) == PRODUCT + PRODUCT


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100])
def test_eight_at_a_time_is_as_one_by_one(library, count: int) -> None:  # type: ignore[no-untyped-def]
    points, key = os.urandom(count * POINT_BYTES), os.urandom(32)
    assert eight_at_a_time(library, KEY, POINT * count) == PRODUCT * count
    assert eight_at_a_time(library, key, points) == one_by_one(key, points)


def test_nothing_times_a_key_is_nothing() -> None:
    assert x25519.multiply(KEY, b"") == b""


@given(st.lists(st.integers(2, PRIME - 2).filter(lambda u: pow(u, 4, PRIME) != 1), max_size=9))
@settings(deadline=None, max_examples=30)
def test_an_inverse_has_the_same_product(coordinates: list[int]) -> None:
    points = encoded(*coordinates)
    turned = inverses(points)
    assert inverses(turned) == points
    assert one_by_one(KEY, turned) == one_by_one(KEY, points)


@pytest.mark.parametrize("u", [0, 1, PRIME - 1, ROOT, PRIME - ROOT])
def test_coordinates_that_equal_their_inverse_or_nearly_so_are_refused(u: int) -> None:
    with pytest.raises(ValueError, match="its inverse"):
        inverses(encoded(7, u))


@pytest.mark.parametrize("u", [0, 1, PRIME - 1, PRIME, PRIME + 1, 2**255, 2**255 + 1, ORDER_EIGHT])
def test_points_of_small_order_are_refused_either_way(library, u: int) -> None:  # type: ignore[no-untyped-def]
    for way in (one_by_one, lambda key, points: eight_at_a_time(library, key, points)):
        with pytest.raises(ValueError):
            way(KEY, POINT + encoded(u))


def test_a_wrong_product_of_the_library_never_leaves(library) -> None:  # type: ignore[no-untyped-def]
    """Whoever sends such a point would read the key by which products are wrong."""
    chosen = encoded(JUST_BELOW)
    assert x25519._products(library, KEY, chosen) != one_by_one(KEY, chosen)  # if not: the library was mended
    with pytest.raises(ValueError, match="differ"):
        eight_at_a_time(library, KEY, POINT + chosen)


@pytest.mark.parametrize(("key", "points"), [(KEY, b"short"), (KEY[:31], POINT), (KEY, POINT + b"x")])
def test_bytes_of_another_length_never_reach_the_library(key: bytes, points: bytes) -> None:
    with pytest.raises(ValueError, match="no points"):
        x25519.multiply(key, points)


def test_a_machine_without_the_library_multiplies_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(x25519, "LIBRARY", "offbeat-has-no-such-package")
    monkeypatch.setattr(x25519, "RUNTIME", "offbeat-has-no-such-package")
    assert x25519.fastest.__wrapped__() is one_by_one
