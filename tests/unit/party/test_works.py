"""Work under way: begun, ended once, dropped, and the same after a snapshot."""

import msgspec
import numpy as np

from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Compute
from offbeat.party.masked_sum import PRODUCTS, Sum
from offbeat.party.works import CHARGED, Charged, Works


class Batch(msgspec.Struct):
    rows: int
    theta: np.ndarray


class Step(msgspec.Struct, frozen=True):
    batches: list[Batch]


class Derive(msgspec.Struct, frozen=True):
    number: int
    done: Sum


def test_a_ticket_brings_its_work_back_once():
    works = Works(Derive)
    first, second = works.begin(CHARGED, 3, 30), works.begin(CHARGED, 0, 0, job := (lambda: 7))
    assert first == Compute(0, 3, 30) and second == Compute(1, 0, 0, job)
    assert works.count[Charged] == 2
    assert works.end(0) is CHARGED and works.end(0) is None
    assert works.count[Charged] == 1 and works.of(Charged) == [CHARGED]


def test_a_ticket_that_nobody_gave_out_is_of_no_use():
    assert Works().end(5) is None


def test_dropped_work_comes_back_as_nothing_and_other_work_stays():
    works = Works(Step)
    kept, dropped = works.begin(Step([]), 1, 1), works.begin(CHARGED, 1, 1)
    works.drop(Charged)
    assert works.end(dropped.ticket) is None
    assert works.count[Charged] == 0 and works.count[Step] == 1
    assert works.end(kept.ticket) == Step([])
    assert works.begin(CHARGED, 0, 0).ticket == 2, "a ticket is never given out twice"


def test_a_snapshot_holds_what_is_under_way_and_shares_nothing_that_changes():
    works = Works(Step)
    works.know(Derive)
    done = Sum(PRODUCTS, 0, 4, 2, np.arange(3, dtype=np.uint64), set(), {"bo": 5})
    tickets = [works.begin(work, 1, 1).ticket for work in (Step([Batch(4, np.ones(2))]), Derive(4, done), CHARGED)]
    frame = encode_state(works.snapshot())
    again = Works(Step, Derive)
    again.restore(decode_state(frame))
    assert encode_state(again.snapshot()) == frame
    assert again.count == works.count
    step, derive, charged = (again.end(ticket) for ticket in tickets)
    assert step.batches[0].rows == 4 and np.array_equal(step.batches[0].theta, np.ones(2))
    assert (derive.number, derive.done.versions, derive.done.missing) == (4, {"bo": 5}, set())
    assert np.array_equal(derive.done.words, done.words) and derive.done.words.dtype == np.uint64
    assert charged == CHARGED
    assert again.begin(CHARGED, 0, 0).ticket == 3
