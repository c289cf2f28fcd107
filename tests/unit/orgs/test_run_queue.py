"""Who may begin and who waits, at one daemon and between several."""

import threading
from math import inf
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.errors import PeerFailed, Refused
from offbeat.orgs import control, leading, run_queue
from offbeat.orgs.call_limits import CALLS_OF_A_KIND
from offbeat.orgs.policy import Policy
from offbeat.orgs.run_queue import InQueue, RunQueue


class Place:
    """A daemon as the queue sees it."""

    def __init__(self, name: str = "shop", **policy: Any) -> None:
        self.home: Any = SimpleNamespace(name=name, config=SimpleNamespace(policy=Policy(**policy)))
        self.runs: dict[str, Any] = {}
        self.queue = RunQueue(self.home, self.runs)

    def accept(self, run: str, initiator: str = "shop", phase: str = "accepted") -> Any:
        status = SimpleNamespace(phase=phase, ended=False)
        one = SimpleNamespace(run=run, initiator=initiator, status=status, accepted_s=clock(), asked_s=-1e9)
        one.place_s = -1e9
        one.stop = lambda verdict, reason: status.__dict__.update(phase="failed", ended=True, reason=reason)
        self.runs[run] = one
        return one

    def asks(self, *runs: str) -> list[bool]:
        return [self._takes(self.runs[run]) for run in runs]

    def _takes(self, run: Any) -> bool:
        try:
            self.queue.take(run)
        except InQueue:
            return False
        return True

    def end(self, run: str) -> None:
        self.runs[run].status.ended = True


TIME = SimpleNamespace(now=1000.0)


def clock() -> float:
    return float(TIME.now)


@pytest.fixture(autouse=True)
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    TIME.now = 1000.0
    monkeypatch.setattr(run_queue, "time", SimpleNamespace(monotonic=clock))


def test_runs_wait_in_the_order_in_which_they_were_accepted() -> None:
    place = Place(runs_at_once=2)
    for run in "abcd":
        place.accept(run)
    assert place.asks("a", "b", "c", "d") == [True, True, False, False]
    with pytest.raises(InQueue, match="'shop' works on at most 2 runs at a time; 1 of those that wait come first"):
        place.queue.take(place.runs["d"])
    place.end("a")
    assert place.asks("d", "c", "d") == [False, True, False]
    place.home.config.policy = Policy(runs_at_once=3)
    assert place.asks("d") == [True]


def test_one_that_nobody_asks_for_holds_nobody_up() -> None:
    place = Place(runs_at_once=1)
    for run in "abc":
        place.accept(run)
    assert place.asks("a", "b", "c") == [True, False, False]
    TIME.now += run_queue.PLACE_KEPT_S + 1.0
    assert place.asks("c", "b") == [True, False], "a's place and b's turn have lapsed"


def test_one_initiator_leaves_room_for_others() -> None:
    place = Place(runs_at_once=4)
    for number in range(5):
        place.accept(f"b{number}", "bank")
    place.accept("t", "telecom")
    assert place.asks("b0", "b1", "b2", "b3", "t") == [True, True, True, False, True]
    with pytest.raises(InQueue, match="'shop' works on at most 4 runs at a time; 0 of those"):
        place.queue.take(place.runs["b3"])
    place.end("t")
    with pytest.raises(InQueue, match="at a time of 'bank'; 0 of those"):
        place.queue.take(place.runs["b3"])


def test_a_full_queue_refuses_and_expired_proposals_make_room() -> None:
    place = Place(runs_at_once=1, runs_waiting=2)
    for run in "abc":
        place.queue.refuse_crowd("shop")
        place.accept(run, "shop" if run == "a" else "bank")
    with pytest.raises(Refused, match=r"the queue of 'shop' is full: 3 runs .* runs_at_once = 1, runs_waiting = 2\)"):
        place.queue.refuse_crowd("shop")
    TIME.now += run_queue.PROPOSAL_KEPT_S + 1.0
    place.queue.refuse_crowd("shop")
    assert [place.runs[run].status.ended for run in "abc"] == [False, True, True], "its owner leads the first one"
    assert place.runs["b"].status.reason == "'bank' did not begin it within 600 s"


def test_proposals_that_wait_for_a_person_take_no_place() -> None:
    place = Place(runs_at_once=1, runs_waiting=0)
    for number in range(3):
        place.accept(f"w{number}", "bank", "waiting")
    place.accept("a")
    assert place.asks("a") == [True]
    with pytest.raises(Refused, match="'bank' has 3 proposals at 'shop' whose owner has not decided yet"):
        place.queue.refuse_crowd("bank")


@given(st.lists(st.sampled_from(["ab", "bc", "ac", "abc"]), min_size=1, max_size=8), st.randoms())
def test_initiators_that_ask_in_the_order_of_names_all_come_to_an_end(jobs: list[str], random: Any) -> None:
    """Each run asks its parties in order, keeps what it was given, and begins with all of them: nobody waits for ever,
    whoever is asked first and in whatever order the parties accepted."""
    TIME.now = 1000.0
    places = {name: Place(name, runs_at_once=1) for name in "abc"}
    for name, place in places.items():
        of_it = [k for k, job in enumerate(jobs) if name in job]
        random.shuffle(of_it)
        for k in of_it:
            place.accept(f"r{k}", jobs[k][0])
    left = set(range(len(jobs)))
    for _ in range(4 * len(jobs) + 4):
        for k in random.sample(sorted(left), len(left)):
            TIME.now += 0.001  # no place lapses
            if all(places[name].asks(f"r{k}")[0] for name in sorted(jobs[k])):
                for name in jobs[k]:
                    places[name].end(f"r{k}")
                left.remove(k)
    assert not left


def test_the_numbers_are_the_owners() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"runs_at_once": 0}, Policy)
    assert (Policy().runs_at_once, Policy().runs_waiting) == (8, 16)


def test_a_party_that_was_restarted_asks_about_few_of_its_runs_at_a_time():
    """Before: it asked about all at once, its initiator answers four calls of a kind, and the others were refused: runs
    that waited in the queue ended for everybody."""
    entered, gate, begun = threading.Semaphore(0), threading.Event(), []

    def call(peer, request, within_s=0.0):
        entered.release()
        gate.wait(60)
        return control.Begun({})

    status = SimpleNamespace(ended=False, phase="accepted", progress={})
    same = {"initiator": "bank", "status": status, "begin_with": lambda *_: None}
    runs = [SimpleNamespace(run=f"j-{number}", **same) for number in range(8)]
    led = leading.Leading("shop", call, None, None, begun.append, None, threading.Event())
    threads = [threading.Thread(target=led._take_up_accepted, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    assert all(entered.acquire(timeout=60) for _ in range(leading.AT_ONCE))
    assert not entered.acquire(timeout=0.5) and leading.AT_ONCE < CALLS_OF_A_KIND
    gate.set()
    for thread in threads:
        thread.join(60)
    assert len(begun) == 8


@pytest.mark.parametrize("refused", [True, False])
def test_a_run_that_was_told_to_begin_meanwhile_is_not_ended_by_what_is_answered_late(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: a party that was restarted asked for the word, was told it by the initiator's own call, trained to the
    end, heard "it is not under way" to its question, and ended its part as refused."""
    monkeypatch.setattr(leading, "WORD_PAUSE_S", 0.0)
    status = SimpleNamespace(ended=False, phase="accepted", progress={})
    run = SimpleNamespace(run="j-1", initiator="bank", status=status)
    asked, halted = [], []

    def call(peer, request, within_s=0.0):
        asked.append(request)
        status.phase = "training"
        if len(asked) > 1:
            monkeypatch.setattr(leading, "WORD_KEPT_S", -1.0)
        raise Refused("run 'j-1' is not under way at 'bank'.") if refused else PeerFailed("'bank' is away.")

    halt = lambda *words: halted.append(words)  # noqa: E731
    led = leading.Leading("shop", call, None, None, None, halt, threading.Event())
    led._take_up_accepted(run)
    assert len(asked) == 1 and not halted


def test_a_run_that_does_not_begin_names_the_party_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: "'bank' could not bring everybody together", though bank was up and shop was not."""
    monkeypatch.setattr(leading, "WORD_PAUSE_S", 0.0)
    halted: list[tuple[str, str]] = []

    def call(peer, request, within_s=0.0):
        monkeypatch.setattr(leading, "WORD_KEPT_S", -1.0)  # it was tried once
        raise PeerFailed(f"'{peer}' cannot be reached at 127.0.0.1:1: nothing listens there.")

    own = SimpleNamespace(kept=lambda _: None, salt="")
    status = SimpleNamespace(ended=False, phase="accepted", progress={})
    job = SimpleNamespace(parties=("bank", "shop"), text="")
    run = SimpleNamespace(run="j-1", initiator="bank", status=status, own=own, job=job, accepted_s=inf)
    queue: Any = SimpleNamespace(look=lambda _: None)

    def halt(_, verdict, reason):
        halted.append((verdict, reason))

    led = leading.Leading("bank", call, queue, lambda _: control.Counted(0), lambda _: None, halt, threading.Event())
    led._take_up_accepted(run)
    ((verdict, reason),) = halted
    assert verdict == "failed" and reason.startswith("it did not begin: 'shop' cannot be reached")
