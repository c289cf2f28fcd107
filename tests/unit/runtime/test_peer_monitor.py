"""Who is lost, who is back, and when a run must end: decided from what the channels say, by the clock they give."""

import dataclasses

import pytest

from offbeat.errors import BadInput
from offbeat.message.codec import Codec
from offbeat.party.contract import Effect, Event, Finish, PeerBack, PeerLost
from offbeat.runtime.drive import Drive
from offbeat.runtime.grpc.options import SessionOptions
from offbeat.runtime.grpc.peer_monitor import PeerMonitor
from offbeat.testing.runtime_checks import MESSAGES

OPTIONS = SessionOptions(beat_s=1, silence_s=5, loss_s=15, wait_s=600, greet_s=60, grace_s=0.0)


class FakeChannel:
    """What a monitor looks at."""

    def __init__(self) -> None:
        self.peer_verdict: str | None = None
        self.up = self.met = True
        self.silent_s = 0.0
        self.abandoned = self.unacknowledged = 0
        self.ended = False

    def over(self) -> bool:
        return self.ended

    def silence_s(self) -> float:
        return self.silent_s

    def abandon(self) -> None:
        self.abandoned += 1
        self.up = False


def monitor(on_loss: str = "stop") -> tuple[PeerMonitor, FakeChannel, FakeChannel, set[str]]:
    bo, cy = FakeChannel(), FakeChannel()
    lost: set[str] = set()
    options = dataclasses.replace(OPTIONS, on_loss=on_loss)  # type: ignore[arg-type]
    return PeerMonitor(options, {"bo": bo, "cy": cy}, lambda: lost, lambda peer: "no route"), bo, cy, lost  # type: ignore[dict-item]


def test_a_silent_stream_is_replaced_before_its_peer_is_lost() -> None:
    watch, bo, _, _ = monitor()
    bo.silent_s = 6
    assert watch.look(quiet=True) == [] and bo.abandoned == 1
    assert watch.verdict(idle=False) is None


@pytest.mark.parametrize(("on_loss", "limit_s"), [("stop", 15), ("continue", 15), ("wait", 600)])
def test_a_peer_is_lost_after_the_time_that_its_policy_says(on_loss: str, limit_s: float) -> None:
    watch, bo, _, lost = monitor(on_loss)
    bo.silent_s = limit_s
    assert watch.look(quiet=True) == []
    bo.silent_s = limit_s + 1
    assert watch.look(quiet=True) == [PeerLost("bo")]
    lost.add("bo")
    assert watch.look(quiet=True) == [], "said once"
    ends = watch.verdict(idle=False)
    if on_loss == "continue":
        assert ends is None
    else:
        assert ends == Finish("peer-lost", f"'bo' was not heard for {limit_s + 1:.0f} s (no route)")


def test_a_peer_that_was_never_heard_has_longer() -> None:
    watch, bo, _, _ = monitor()
    bo.met, bo.up, bo.silent_s = False, False, 59
    assert watch.look(quiet=True) == []
    bo.silent_s = 61
    assert watch.look(quiet=True) == [PeerLost("bo")]


@pytest.mark.parametrize("wait_s", [30, 600])
def test_who_waits_waits_as_long_as_the_job_says_also_for_a_peer_that_was_never_heard(wait_s: float) -> None:
    options = dataclasses.replace(OPTIONS, on_loss="wait", wait_s=wait_s)
    bo = FakeChannel()
    watch = PeerMonitor(options, {"bo": bo}, set, lambda peer: "")  # type: ignore[dict-item]
    bo.met, bo.up, bo.silent_s = False, False, wait_s - 1
    assert watch.look(quiet=True) == []
    bo.silent_s = wait_s + 1
    assert watch.look(quiet=True) == [PeerLost("bo")]


def test_a_finished_party_stays_for_a_peer_that_lacks_messages_until_that_peer_is_lost() -> None:
    watch, bo, cy, lost = monitor("wait")
    cy.ended = True
    bo.unacknowledged, bo.up, bo.silent_s = 3, False, 500
    assert not watch.may_leave(499), "bo may come back and ask for the three"
    lost.add("bo")
    assert watch.may_leave(601)


def test_a_finished_party_does_not_stay_for_a_peer_that_has_left_for_the_run_that_follows() -> None:
    bo, left = FakeChannel(), set[str]()
    bo.unacknowledged, bo.met, bo.up = 3, False, False
    watch = PeerMonitor(OPTIONS, {"bo": bo}, set, lambda peer: "", left=left.__contains__)  # type: ignore[dict-item]
    assert not watch.may_leave(1.0)
    left.add("bo")
    assert watch.may_leave(1.0)


def test_a_finished_party_stays_a_while_for_a_peer_that_goes_on() -> None:
    watch, _, cy, _ = monitor("wait")
    cy.ended = True
    assert not watch.may_leave(OPTIONS.linger_s - 1)
    assert watch.may_leave(OPTIONS.linger_s + 1)


def test_a_peer_that_answers_again_is_back_and_the_run_goes_on() -> None:
    watch, bo, _, lost = monitor("stop")
    bo.silent_s = 16
    watch.look(quiet=True)
    lost.add("bo")
    bo.silent_s, bo.up = 0.1, True
    assert watch.look(quiet=True) == [PeerBack("bo")]
    lost.discard("bo")
    assert watch.verdict(idle=False) is None


def test_an_early_end_is_judged_when_everything_before_it_was_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch, bo, _, _ = monitor("wait")
    bo.peer_verdict = "failed: the disk is full"
    assert watch.look(quiet=False) == [] and watch.look(quiet=True) == []
    now[0] += 1
    assert watch.look(quiet=False) == []
    assert watch.look(quiet=True) == [PeerLost("bo")]
    assert watch.verdict(idle=False) == Finish("peer-lost", "'bo' ended early (failed): the disk is full")


def test_a_party_left_alone_by_all_is_stalled_only_when_nothing_moves_it() -> None:
    watch, bo, cy, _ = monitor()
    bo.peer_verdict = "target: reached"
    assert watch.look(quiet=True) == [] and watch.verdict(idle=True) is None
    cy.peer_verdict = "passes: made"
    assert watch.verdict(idle=False) is None
    stalled = watch.verdict(idle=True)
    assert stalled is not None and stalled.verdict == "stalled"


def test_a_party_that_watches_the_clock_is_not_left_behind_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for lost while it was cut off: the others have ended, one of them is lost to it, and nothing will come."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch, bo, _, lost = monitor("continue")
    bo.peer_verdict = "target: reached"
    assert watch.verdict(idle=False) is None, "cy may still speak"
    lost.add("cy")
    assert watch.verdict(idle=False) is None
    now[0] += 1
    ends = watch.verdict(idle=False)
    assert ends is not None and ends.verdict == "stalled" and "'bo': target: reached" in ends.reason
    lost.clear()
    assert watch.verdict(idle=False) is None, "cy is back"


def test_whom_a_party_was_told_lost_survives_its_restart() -> None:
    class Silent:
        name = "ana"

        def handle(self, event: Event) -> list[Effect]:
            return []

    drive = Drive(Silent(), Codec(MESSAGES))  # type: ignore[arg-type]
    for event in (PeerLost("bo"), PeerLost("cy"), PeerBack("bo")):
        drive.handle(event)
    assert drive.lost == {"cy"}


@pytest.mark.parametrize("change", [{"beat_s": 0}, {"silence_s": 0.5}, {"loss_s": 1000}, {"on_loss": "hope"}])
def test_periods_in_the_wrong_order_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="expected"):
        dataclasses.replace(OPTIONS, **change)


@pytest.mark.parametrize("on_loss", ["stop", "continue", "wait"])
def test_a_peer_that_is_known_to_have_died_is_lost_at_once_and_for_good(on_loss: str) -> None:
    bo = FakeChannel()
    lost: set[str] = set()
    options = dataclasses.replace(OPTIONS, on_loss=on_loss)  # type: ignore[arg-type]
    watch = PeerMonitor(options, {"bo": bo}, lambda: lost, lambda peer: "", {"bo": "was ended by SIGKILL"})  # type: ignore[dict-item]
    assert watch.look(quiet=False) == [PeerLost("bo")]
    lost.add("bo")
    assert watch.look(quiet=True) == [], "its stream may still be up for a moment: it is not back"
    ends = watch.verdict(idle=False)
    assert ends == (None if on_loss == "continue" else Finish("peer-lost", "'bo' was ended by SIGKILL"))
