"""One inbox: items now and later, in order, counted while they are open."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from offbeat.runtime.inbox import Inbox


def test_what_is_due_is_taken_in_the_order_of_time_and_then_of_coming():
    now = [0.0]
    inbox = Inbox(lambda: now[0])
    for due_s in (3.0, 1.0, 2.0, 1.0):
        inbox.put(f"at {due_s}", due_s)
    inbox.put("now")
    assert inbox.take(9) == ["now"]
    now[0] = 2.5
    assert inbox.take(2) == ["at 1.0", "at 1.0"] and inbox.take(9) == ["at 2.0"]
    assert (len(inbox), inbox.ready, inbox.open) == (1, 0, 5)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 4)), max_size=30))
def test_every_item_is_taken_once(puts):
    now = [0.0]
    inbox = Inbox(lambda: now[0])
    taken = []
    for number, (due_s, most) in enumerate(puts):
        inbox.put((due_s, number), due_s)
        now[0] += 0.5
        taken += inbox.take(most, until_s=now[0])
    now[0] = 11.0
    while inbox.ready or len(inbox):
        taken += inbox.take(7)
    assert sorted(taken, key=lambda item: item[1]) == [(due_s, number) for number, (due_s, _) in enumerate(puts)]


def test_a_waiting_taker_is_woken_by_an_item_a_call_and_the_end():
    inbox = Inbox(lambda: 0.0)
    inbox.wake()
    assert inbox.take(1) == [], "a wake before the wait is not lost"
    threading.Timer(0.0, inbox.put, ("late",)).start()
    assert inbox.take(1) == ["late"]
    threading.Timer(0.0, inbox.close).start()
    assert inbox.take(1) == [] and inbox.closed


def test_open_counts_what_may_still_cause_an_event_and_the_last_one_is_told():
    told = []
    inbox = Inbox(lambda: 0.0, lambda: told.append(True))
    inbox.put("a")
    inbox.put("b", 5.0)
    inbox.expect()
    inbox.take(1)
    inbox.settle()
    assert inbox.open == 2 and told == []
    inbox.settle()
    inbox.close()
    assert inbox.open == 0 and told == [True]
    inbox.put("c")
    assert inbox.open == 0, "who has closed takes nothing more"
