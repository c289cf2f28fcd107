"""Snapshots from a list of names."""

from collections import deque

import msgspec
import numpy as np

from offbeat.message.codec import decode_state, encode_state
from offbeat.party.memory import Memory, plain


class Pair(msgspec.Struct):
    left: int
    right: np.ndarray


class Inner(Memory):
    KEPT = ("count",)

    def __init__(self):
        self.count = 0


class Outer(Memory):
    KEPT = ("number", "names", "by_name", "queue", "array", "nothing", "inner")

    def __init__(self):
        self.number, self.names, self.by_name, self.queue = 0, set(), {}, deque()
        self.array, self.nothing, self.inner, self.forgotten = np.zeros(2), None, Inner(), 0


def filled():
    outer = Outer()
    outer.number, outer.names, outer.by_name = 3, {"cy", "ana"}, {"bo": 1}
    outer.queue.extend([1, 2])
    outer.array, outer.inner.count, outer.forgotten = np.array([1.0, 2.0]), 7, 5
    return outer


def test_a_snapshot_has_the_names_in_their_order_and_nothing_else():
    assert list(filled().snapshot()) == list(Outer.KEPT)
    assert encode_state(filled().snapshot() | {"array": None}) == encode_state(
        {
            "number": 3,
            "names": ["ana", "cy"],
            "by_name": {"bo": 1},
            "queue": [1, 2],
            "array": None,
            "nothing": None,
            "inner": {"count": 7},
        }
    )


def test_what_was_kept_comes_back_as_the_kind_of_thing_it_was():
    fresh = Outer()
    inner = fresh.inner
    fresh.restore(decode_state(encode_state(filled().snapshot())))
    assert (fresh.number, fresh.names, fresh.by_name) == (3, {"cy", "ana"}, {"bo": 1})
    assert fresh.queue == deque([1, 2]) and fresh.nothing is None
    assert fresh.inner is inner and inner.count == 7  # a part restores itself
    assert fresh.forgotten == 0
    np.testing.assert_array_equal(fresh.array, [1.0, 2.0])


def test_neither_snapshot_nor_restored_object_shares_anything_with_the_living_one():
    outer, fresh = filled(), Outer()
    kept = outer.snapshot()
    outer.array[0], outer.by_name["bo"] = 9.0, 9
    outer.queue.append(9)
    assert kept["array"][0] == 1.0 and kept["by_name"] == {"bo": 1} and kept["queue"] == [1, 2]
    fresh.restore(kept)
    fresh.array[0], fresh.by_name["bo"] = 8.0, 8
    assert kept["array"][0] == 1.0 and kept["by_name"] == {"bo": 1}


def test_values_with_fields_become_lists_deep_inside_too():
    pair = Pair(1, np.array([2.0]))
    made = plain({"pairs": [pair, (3, pair)]})
    assert made == {"pairs": [[1, np.array([2.0])], [3, [1, np.array([2.0])]]]}
    assert made["pairs"][0][1] is not pair.right
