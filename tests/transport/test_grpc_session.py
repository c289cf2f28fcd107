"""The gRPC runtime with toy parties: everything arrives once and in order, whatever the link does."""

import dataclasses
import threading
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from loopback import QUICK, Loopback, LoopbackRuntime, own_thread, run_all
from toys import MESSAGES, Counter, Thanks, counters, expected_folds

from offbeat.audit.transcripts import verify_runs
from offbeat.errors import OffbeatError, PeerFailed
from offbeat.message.codec import Codec
from offbeat.party.contract import Effect, Event, Finish, Received, Send, State
from offbeat.runtime.contract import Outcome
from offbeat.runtime.grpc.identity import Member, PinnedRoster, new_identity
from offbeat.runtime.recovery import recover
from offbeat.runtime.transcript import transcript_path
from offbeat.testing.runtime_checks import MESSAGES as RACE
from offbeat.testing.runtime_checks import check_runtime

NAMES = ("ana", "bo", "cy")
PATIENT = dataclasses.replace(QUICK, loss_s=60.0, wait_s=60.0, linger_s=60.0)


def assert_everything_once(parties: list[Counter], total: int) -> None:
    expected = expected_folds(tuple(p.name for p in parties), total)
    for party in parties:
        assert party.folds == {name: fold for name, fold in expected.items() if name != party.name}


def outcomes(ends: object) -> dict[str, Outcome]:
    assert isinstance(ends, dict)
    for name, end in ends.items():
        assert isinstance(end, Outcome), f"{name}: {end!r}"
    return ends


def test_the_runtime_does_what_every_runtime_must() -> None:
    check_runtime(lambda: LoopbackRuntime(RACE))


@pytest.mark.parametrize("lanes", [1, 3])
def test_three_parties_reach_their_end(lanes: int) -> None:
    # Several lanes may finish jobs out of order, and the fold depends on order: so jobs only with one lane.
    world = Loopback(NAMES)
    parties = counters(NAMES, 50, jobs=lanes == 1)
    options = dataclasses.replace(QUICK, lanes=lanes)
    ends = outcomes(run_all([world.session(p, MESSAGES, options=options) for p in parties]))
    world.stop()
    assert_everything_once(parties, 50)
    assert {end.finished[name].verdict for name, end in ends.items()} == {"target"}
    assert ends["ana"].tallies["ana"].sent["Count"][0] == 100


def test_a_party_without_an_address_only_dials() -> None:
    world = Loopback(NAMES, silent=("ana",))
    parties = counters(NAMES, 20)
    outcomes(run_all([world.session(p, MESSAGES) for p in parties]))
    world.stop()
    assert_everything_once(parties, 20)


def test_two_parties_without_addresses_are_told_so() -> None:
    world = Loopback(("ana", "bo"), silent=("ana", "bo"))
    parties = counters(("ana", "bo"), 1)
    ends = run_all([world.session(p, MESSAGES) for p in parties])
    world.stop()
    assert all("neither" in str(end) and "address" in str(end) for end in ends.values())


def test_streams_cut_again_and_again_lose_nothing() -> None:
    world = Loopback(NAMES)
    parties = counters(NAMES, 300)
    sessions = [world.session(p, MESSAGES) for p in parties]
    cuts = 0

    # Each party drops all its streams whenever it has handled another hundred events: cuts depend on progress alone.
    for session in sessions:
        original = session.host._timed

        def timed(event, session=session, original=original):  # type: ignore[no-untyped-def]
            nonlocal cuts
            if session.host.drive.events % 100 == 99:
                cuts += 1
                for peer in session.peers:
                    session.channel(peer).abandon()
            return original(event)

        session.host._timed = timed  # type: ignore[method-assign]
    outcomes(run_all(sessions))
    world.stop()
    assert cuts > 20
    assert_everything_once(parties, 300)
    assert sum(session.channel(peer).delivery.resent for session in sessions for peer in session.peers) > 0


def test_the_log_replays_to_the_same_bits(tmp_path: Path) -> None:
    world = Loopback(NAMES)
    options = dataclasses.replace(QUICK, mark_events=50)
    sessions = [world.session(p, MESSAGES, folder=tmp_path, options=options) for p in counters(NAMES, 60)]
    ends = outcomes(run_all(sessions))
    world.stop()
    for party in counters(NAMES, 60):
        replayed = recover(party, Codec(MESSAGES), tmp_path, from_start=True)
        assert replayed.drive.digest.hex() == ends[party.name].digest
        assert replayed.marks >= 3
        assert replayed.drive.finished == ends[party.name].finished[party.name]
    with pytest.raises(PeerFailed, match="other effects than the run"):
        recover(counters(NAMES, 60, seed=1)[0], Codec(MESSAGES), tmp_path, from_start=True)


def test_a_log_goes_on_after_a_stop_at_any_record(tmp_path: Path) -> None:
    """Stop Ana in the middle, tear the last record of her log, and start her again: nothing is lost or doubled."""
    world = Loopback(NAMES)
    ana, bo, cy = counters(NAMES, 200)
    options = dataclasses.replace(QUICK, linger_s=0.0, checkpoint_s=0.1)
    first = world.session(ana, MESSAGES, folder=tmp_path, options=options)
    original = first.host._timed

    def stopping(event):  # type: ignore[no-untyped-def]
        if first.host.drive.events == 400:
            raise OffbeatError("power cut")
        return original(event)

    first.host._timed = stopping  # type: ignore[method-assign]
    # An ending says goodbye; a crash does not.
    first._leave = lambda failure: [channel.close() for channel in first.channels.values()]  # type: ignore[method-assign,assignment]
    others = [
        world.session(p, MESSAGES, folder=tmp_path, options=dataclasses.replace(QUICK, loss_s=20.0)) for p in (bo, cy)
    ]
    ends: dict[str, object] = {}
    threads = [threading.Thread(target=lambda s=s: ends.__setitem__(s.party.name, s.run())) for s in others]
    for thread in threads:
        thread.start()
    with pytest.raises(OffbeatError, match="power cut"):
        first.run()
    with (tmp_path / "events" / "ana.log").open("ab") as log:
        log.write(b"\x40\0\0\0half a record")
    again = counters(NAMES, 200)[0]
    second = world.session(again, MESSAGES, folder=tmp_path)
    second.run()
    for thread in threads:
        thread.join(30)
    world.stop()
    assert second.host.resumed_events >= 300
    assert set(ends) == {"bo", "cy"}
    assert_everything_once([again, bo, cy], 200)
    links = verify_runs([tmp_path])["links"]
    assert [link["state"] for link in links] == ["holds"] * 6, "chains go on, too, and are signed to their ends"
    assert {link["messages"] for link in links} == {401}


@pytest.mark.parametrize("restarted", ["ana", "bo"])
def test_whoever_is_restarted_at_the_end_of_a_run_does_not_wait_for_who_has_left_it(
    restarted: str, tmp_path: Path
) -> None:
    """Ana listens and Bo calls; both have ended well. One of them did not come to write that down, and begins again
    from its log; the other was restarted too, and knows of the end only what it has kept."""
    world, names = Loopback(("ana", "bo")), ("ana", "bo")
    outcomes(run_all([world.session(p, MESSAGES, folder=tmp_path) for p in counters(names, 20)]))
    for server in world.servers.values():  # what they knew of ended runs is gone with their processes
        server._ended.clear()
    transcript_path(tmp_path, restarted).unlink()  # the last that is written
    again = world.session(
        counters(names, 20)[names.index(restarted)], MESSAGES, folder=tmp_path, then="next", options=PATIENT
    )
    left = threading.Event()
    thread = own_thread(again, lambda end: left.set())
    if restarted == "bo":
        world.servers["ana"].forget("run", "target: as it has kept")
    else:
        bo = world.session(counters(names, 20)[1], MESSAGES, options=PATIENT)
        bo.run_name = "next"
        following = own_thread(bo, lambda end: None)
    assert left.wait(20.0), "it waits for a goodbye that does not come"
    thread.join(10)
    if restarted == "ana":
        bo.stop("it was only to call")
        following.join(10)
    world.stop()


def test_whoever_is_restarted_at_the_end_asks_a_caller_that_does_not_come_any_more(tmp_path: Path) -> None:
    """Bo calls, and has left; it is asked, and says so."""
    world, names = Loopback(("ana", "bo")), ("ana", "bo")
    ends = outcomes(run_all([world.session(p, MESSAGES, folder=tmp_path) for p in counters(names, 20)]))
    world.servers["ana"]._ended.clear()
    transcript_path(tmp_path, "ana").unlink()  # the last that is written
    ana = world.session(counters(names, 20)[0], MESSAGES, folder=tmp_path, options=PATIENT)
    again = outcomes(run_all([ana], timeout_s=20.0))
    world.stop()
    assert again["ana"].finished == ends["ana"].finished and transcript_path(tmp_path, "ana").is_file()


@pytest.mark.parametrize("restarted", ["ana", "bo"])
def test_whoever_has_left_a_run_is_done_with_it_after_a_restart(restarted: str, tmp_path: Path) -> None:
    """The others have gone, and know nothing more of it."""
    world, names = Loopback(("ana", "bo")), ("ana", "bo")
    ends = outcomes(run_all([world.session(p, MESSAGES, folder=tmp_path) for p in counters(names, 20)]))
    for server in world.servers.values():
        server._ended.clear()
    party = counters(names, 20)[names.index(restarted)]
    again = outcomes(run_all([world.session(party, MESSAGES, folder=tmp_path, options=PATIENT)], timeout_s=20.0))
    world.stop()
    assert again[restarted].finished == ends[restarted].finished and again[restarted].digest == ends[restarted].digest
    assert world.servers[restarted]._ended["run"].startswith("target"), "who still calls for it is told so"


class Speaker:
    """Says everything at once, and has finished."""

    def __init__(self) -> None:
        self.name = "ana"

    def handle(self, event: Event) -> list[Effect]:
        return [*(Send("bo", Thanks(i)) for i in range(9)), Finish("target")]

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        pass


class Hearer(Speaker):
    """Finishes when it has heard everything."""

    def __init__(self) -> None:
        self.name, self.heard = "bo", [-1]

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Received):
            self.heard.append(event.body.index)  # type: ignore[attr-defined]
        return [Finish("target")] if self.heard[-1] == 8 else []


def test_a_party_may_finish_right_after_its_last_word() -> None:
    """Bo comes when Ana has long finished; nothing that she said is lost."""
    world = Loopback(("ana", "bo"))
    hearer = Hearer()
    ana = world.session(Speaker(), MESSAGES, options=dataclasses.replace(QUICK, linger_s=0.0))
    bo = world.session(hearer, MESSAGES, options=QUICK)
    linger = ana.host.linger
    finished = threading.Event()
    ana.host.linger = lambda *bounds: (finished.set(), linger(*bounds))  # type: ignore[assignment]
    ends: dict[str, object] = {}
    thread = own_thread(ana, lambda end: ends.__setitem__("ana", end))
    assert finished.wait(30)
    ends.update(run_all([bo]))
    thread.join(30)
    world.stop()
    outcomes(ends)
    assert hearer.heard == list(range(-1, 9))


def test_a_peer_that_never_comes_ends_the_run_in_bounded_time() -> None:
    world = Loopback(NAMES)
    parties = counters(NAMES, 5)[:2]
    options = dataclasses.replace(QUICK, on_loss="stop")
    ends = outcomes(run_all([world.session(p, MESSAGES, options=options) for p in parties]))
    world.stop()
    for name, end in ends.items():
        assert end.finished[name].verdict == "peer-lost"
        assert "'cy' was not heard" in end.finished[name].reason


def test_continue_tells_the_party_that_a_peer_is_lost() -> None:
    world = Loopback(NAMES)
    parties = counters(NAMES, 5)[:2]
    options = dataclasses.replace(QUICK, on_loss="continue")
    sessions = [world.session(p, MESSAGES, options=options) for p in parties]
    seen: list[object] = []

    def stop_when_both_know(at_s: float, name: str, value: object) -> None:
        seen.extend([value] if name == "lost" else [])
        if len(seen) == 2:
            for session in sessions:
                session.stop("both know")

    for session in sessions:
        session.host._watch = stop_when_both_know
    ends = outcomes(run_all(sessions))
    world.stop()
    assert all(end.finished[name].verdict == "stopped" for name, end in ends.items())
    assert seen == ["cy", "cy"]


def test_rosters_that_differ_about_others_are_one_to_a_run() -> None:
    ends = ends_under(
        lambda roster: PinnedRoster((*roster.members, Member("eve", new_identity("eve").certificate_pem)))
    )
    assert not any(isinstance(end, Exception) for end in ends.values()), ends


def ends_under(changed) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """How a run of two ends where one of them has another roster."""
    world = Loopback(("ana", "bo"))
    ana, bo = counters(("ana", "bo"), 5)
    options = dataclasses.replace(QUICK, on_loss="stop")
    ends = run_all(
        [
            world.session(ana, MESSAGES, options=options),
            world.session(bo, MESSAGES, roster=changed(world.roster), options=options, peers=("ana", "bo")),
        ]
    )
    world.stop()
    return dict(ends)


def test_rosters_that_differ_about_those_who_take_part_are_refused_readably() -> None:
    ends = ends_under(lambda roster: PinnedRoster(roster.members, (new_identity("authority").certificate_pem,)))
    assert isinstance(ends["bo"], PeerFailed)
    assert "rosters differ" in str(ends["bo"]) and "give both sides the same one" in str(ends["bo"])


def test_different_jobs_are_refused_readably() -> None:
    world = Loopback(("ana", "bo"))
    ana, bo = counters(("ana", "bo"), 5)
    options = dataclasses.replace(QUICK, on_loss="stop")
    ends = run_all(
        [
            world.session(ana, MESSAGES, options=options, job_digest="aaaa"),
            world.session(bo, MESSAGES, options=options, job_digest="bbbb"),
        ]
    )
    world.stop()
    assert isinstance(ends["bo"], PeerFailed) and "disagree about run 'run'" in str(ends["bo"])


def test_a_failing_party_tells_its_peers_why() -> None:
    world = Loopback(("ana", "bo"))
    ana, bo = counters(("ana", "bo"), 500)
    options = dataclasses.replace(QUICK, on_loss="stop")
    broken, whole = world.session(ana, MESSAGES, options=options), world.session(bo, MESSAGES, options=options)
    original = broken.host._timed

    def failing(event):  # type: ignore[no-untyped-def]
        if broken.host.drive.events == 100:
            raise ValueError("the disk is full")
        return original(event)

    broken.host._timed = failing  # type: ignore[method-assign]
    ends = run_all([broken, whole])
    world.stop()
    assert isinstance(ends["ana"], OffbeatError)
    end = ends["bo"]
    assert isinstance(end, Outcome) and end.finished["bo"].verdict == "peer-lost"
    assert "the disk is full" in end.finished["bo"].reason
