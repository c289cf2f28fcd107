"""Daemons over the years: full disks, ends that wait, and what is not done twice."""

import errno
import shutil
import signal
import threading
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import AUCS_AGREE, NAMES, Town, job, serve, wait_until

from offbeat.errors import Refused
from offbeat.orgs import control, durable
from offbeat.orgs.console.overview import _peer
from offbeat.orgs.lines import PeerCalls
from offbeat.orgs.party_config import read_home
from offbeat.orgs.preflight import check_home
from offbeat.orgs.replay import replay_own
from offbeat.runtime.eventlog import EventLog


def test_a_home_put_back_from_a_backup_is_told_by_what_the_others_remember(town: Town) -> None:
    home = read_home(town.folder / "shop")
    town.open()
    town.ended("shop", town.submit(job(passes=1)))
    copy = town.folder / "copy"
    shutil.copytree(home.ledger, copy)
    run = town.submit(job(passes=1))
    for name in NAMES:
        town.ended(name, run)
    assert not [found for found in check_home(home) if found.state == "wrong"]
    shutil.rmtree(home.ledger)
    copy.rename(home.ledger)
    wrong = [found for found in check_home(home) if found.state == "wrong"]
    assert [found.what for found in wrong] == ["peer bank", "peer telecom"]
    assert all(run in found.detail and "an older copy of this home was put back" in found.detail for found in wrong)
    caller, roster = PeerCalls(home.identity(), home.roster()), home.roster()
    assert not _peer(caller, home, roster, "bank").good
    town.restart("bank")  # what a peer remembers outlives its daemon
    assert [found.what for found in check_home(home) if found.state == "wrong"] == ["peer bank", "peer telecom"]


def test_a_full_disk_pauses_a_run_and_loses_nothing(
    town: Town, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    town.open()
    reference = town.ended("bank", town.submit(job(target=1e-9)))
    monkeypatch.setattr(durable, "LOOK_EVERY_S", 0.01)
    flush, free, fits = EventLog.flush, durable.free_bytes, [30]
    looks: list[int] = []
    seen: set[str] = set()

    def filling(log: EventLog) -> None:
        if "/shop/" in str(log.path) and "/events/" in str(log.path) and fits[0] > -1:
            fits[0] -= 1
            if fits[0] == 0:
                log._pending.clear()
                raise OSError(errno.ENOSPC, "No space left on device")
        flush(log)

    def little(folder: Any) -> int:
        if fits[0] <= 0 and len(looks) < 5:
            seen.update(run.status.progress.get("paused", "") for run in town.daemons["shop"].runs.values())
            looks.append(0)
            return 0
        return free(folder)

    monkeypatch.setattr(EventLog, "flush", filling)
    monkeypatch.setattr(durable, "free_bytes", little)
    run = town.submit(job(target=1e-9))
    statuses = {name: town.ended(name, run) for name in NAMES}
    assert {status.phase for status in statuses.values()} == {"done"}
    assert fits[0] == -1 or len(looks) == 5
    assert "paused: the disk is full" in seen and "paused" not in statuses["shop"].progress
    assert f"run {run} is paused" in caplog.text and f"run {run} goes on" in caplog.text
    assert statuses["bank"].metrics["test_auc"] == pytest.approx(reference.metrics["test_auc"], abs=AUCS_AGREE)
    uses = {
        name: [line["sum"] for line in town.daemons[name].ledger.history() if line["what"] == run] for name in NAMES
    }
    assert uses["shop"] == uses["telecom"]  # asked for the same sums: what was used after the pause is counted too


def test_a_disk_that_stays_full_ends_the_run_with_a_verdict(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.open()
    monkeypatch.setattr(durable, "LOOK_EVERY_S", 0.01)
    flush, full = EventLog.flush, threading.Event()

    def filling(log: EventLog) -> None:
        if "/shop/" in str(log.path) and "/events/" in str(log.path):
            full.set()
            log._pending.clear()
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(log)

    monkeypatch.setattr(EventLog, "flush", filling)
    free = durable.free_bytes
    monkeypatch.setattr(durable, "free_bytes", lambda folder: 0 if full.is_set() else free(folder))
    monkeypatch.setattr("offbeat.orgs.runs.wait_for_room", lambda f, r, w, s: durable.wait_for_room(f, r, 0.05, s))
    run = town.submit(job())
    assert "has been full for" in town.ended("shop", run).reason
    assert "DiskFull" in town.ended("bank", run).reason
    with pytest.raises(Refused, match="'bank' has too little room"):
        town.submit(job())


def test_a_run_is_reported_although_old_logs_cannot_be_deleted(
    town: Town, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    town.open()

    def stuck(home: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "events")

    monkeypatch.setattr("offbeat.orgs.daemon.prune", stuck)
    run = town.submit(job(target=1e-3))
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    wait_until(lambda: town.daemons["bank"].runs[run].status.parties.keys() == set(NAMES))
    assert "old logs could not be deleted" in caplog.text


def test_sigterm_waits_for_runs_and_begins_nothing_new(town: Town) -> None:
    town.open()
    bank = town.daemons["bank"]
    run = town.submit(job(target=1e-6))
    left: list[list[str]] = []
    draining = threading.Thread(target=lambda: left.append(bank.drain(60.0, threading.Event())))
    draining.start()
    wait_until(lambda: bank._draining)
    with pytest.raises(Refused, match="is being stopped"):
        town.submit(job())
    assert bank.health.answer("/readyz")[0] == 503
    draining.join()
    assert left == [[]] and town.ended("bank", run).phase == "done"


def test_a_second_signal_ends_the_wait_and_the_run_goes_on_later(town: Town) -> None:
    for name in NAMES:
        town.settings(name, passes_most="1e9")
    town.open()
    run = town.submit(job(target=1e-300, passes=1e6))
    wait_until(lambda: "passes" in town.daemons["shop"].runs[run].status.progress)
    hurry = threading.Event()
    hurry.set()
    assert town.daemons["shop"].drain(60.0, hurry) == [run]
    town.ask("bank", control.Stop(run))
    assert town.ended("bank", run).phase == "stopped"


def test_a_daemon_in_a_process_of_its_own_ends_on_sigterm(town: Town) -> None:
    child = serve(town, "shop")
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 0


def test_sigterm_ends_a_daemon_in_the_middle_of_a_training_and_it_goes_on_later(town: Town) -> None:
    """Before: threads that carried streams, or waited for a peer's answer, kept the process for as long as its peers
    would have waited for it: minutes."""
    for name in NAMES:
        town.settings(name, passes_most="1e9")
    children = {name: serve(town, name) for name in NAMES}

    def status(name: str) -> control.RunStatus:
        told = town.ask(name, control.Status(run))
        assert isinstance(told, control.RunStatus)
        return told

    try:
        run = town.submit(job(target=1e-300, passes=1e6))
        for name in ("shop", "bank"):
            wait_until(lambda name=name: status(name).phase == "training")
            children[name].send_signal(signal.SIGTERM)
            assert children[name].wait(20) == 0  # its peers would wait for a minute
            children[name] = serve(town, name)
        wait_until(lambda: status("shop").phase == "training" and status("bank").progress.get("passes", 0.0) > 0.0)
        town.ask("bank", control.Stop(run))
        wait_until(lambda: all(status(name).ended for name in NAMES))
        assert {status(name).verdict for name in NAMES} == {"stopped"}
    finally:
        for child in children.values():
            child.kill()
            child.wait()


# -- alignments -------------------------------------------------------------------------------------------------------


def kinds(town: Town, name: str, run: str) -> set[str]:
    return set(town.daemons[name].runs[run]._sent["align"])


def test_an_alignment_is_reused_while_no_table_changes(town: Town) -> None:
    town.open()
    one = town.submit(job(target=1e-9))
    told = [town.ended(name, one) for name in NAMES]
    second = town.submit(job(target=1e-9))
    again = [town.ended(name, second) for name in NAMES]
    assert {status.phase for status in (*told, *again)} == {"done"}
    assert "Blinded" in kinds(town, "bank", one) and "Blinded" not in kinds(town, "bank", second)
    assert "Answered" not in kinds(town, "shop", second)
    assert again[0].metrics["test_auc"] == pytest.approx(told[0].metrics["test_auc"], abs=AUCS_AGREE)
    for name in NAMES:
        salts = {(town.folder / name / "private" / run / "salt").read_bytes() for run in (one, second)}
        assert len(salts) == 2  # tokens of one run say nothing in another
        assert replay_own(read_home(town.folder / name), second, verify=True)["same"]
    assert f"run '{one}'" in (town.folder / "shop" / "runs" / second / "record.json").read_text()

    table = town.folder / "shop" / "table.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    third = town.submit(job(target=1e-9))
    assert {town.ended(name, third).phase for name in NAMES} == {"done"}
    assert "Blinded" in kinds(town, "bank", third)


def test_an_initiator_cannot_name_an_alignment_that_a_party_has_not_kept(town: Town) -> None:
    town.open()
    bank, run = town.daemons["bank"], f"credit-{'0' * 6}"
    bank.caller.call("shop", control.Propose(run, job().text, b"s" * 32))
    counted = bank.caller.call("shop", control.Count(run))
    assert isinstance(counted, control.Counted) and counted.aligned == ""
    with pytest.raises(Refused, match="has kept no alignment of run 'credit-9'"):
        bank.caller.call("shop", control.BeginRun(run, dict.fromkeys(NAMES, counted.ids), "credit-9"))
