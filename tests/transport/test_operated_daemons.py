"""Daemons as an operator meets them: damaged folders, tables that change, many predictions, settings that change."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import NAMES, Town, job, serve, wait_until

from offbeat.errors import BadData, BadInput, PeerFailed, Refused
from offbeat.jobs.organisations import OrgJob, OrgRows
from offbeat.metrics.record import RunRecord
from offbeat.orgs import client, control, daemon, rows, runs, tables
from offbeat.orgs.client import connect
from offbeat.orgs.daemon import Daemon
from offbeat.orgs.lines import PeerCalls
from offbeat.orgs.party_config import read_home
from offbeat.orgs.replay import replay_own
from offbeat.report.live import Follower
from offbeat.report.live_page import title_of
from offbeat.runtime.grpc.identity import Member, PinnedRoster, new_identity, write_private, write_roster


def short(**method: Any) -> OrgJob:
    return job(target=1e-3, **method)


def done(town: Town, run: str) -> None:
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}


# -- damaged run folders ----------------------------------------------------------------------------------------------


def test_damaged_runs_are_set_aside_and_named_and_the_daemon_serves(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    town.open()
    whole, *broken = [town.submit(short()) for _ in range(5)]
    for run in (whole, *broken):
        done(town, run)
    folder = town.folder / "shop" / "runs"
    (folder / broken[0] / "state.json").write_bytes(b"")
    state = (folder / broken[1] / "state.json").read_bytes()
    (folder / broken[1] / "state.json").write_bytes(state[: len(state) // 2])
    (folder / broken[2] / "job.toml").write_bytes(b"")
    (folder / broken[3] / "state.json").unlink()
    town.restart("shop")
    listed = town.ask("shop", control.ListRuns())
    assert isinstance(listed, control.Runs)
    assert {status.run: status.verdict for status in listed.runs} == {
        whole: "target",
        **dict.fromkeys(broken, "damaged"),
    }
    for run in broken:
        assert any(run in record.getMessage() and "set aside" in record.getMessage() for record in caplog.records)
        assert not (folder / run).exists() and list((folder / "damaged").glob(f"{run}-*"))
        with pytest.raises(BadInput, match="its folder is damaged"):
            town.ask("shop", control.Status(run))
    assert np.isfinite(connect(town.folder / "bank", whole).decision_function(["c1"])).all()
    done(town, town.submit(short()))


def gone(folder: Path) -> bool:
    """Remove a folder in which another thread writes: what it writes meanwhile makes one removal fail."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_run_whose_folder_is_removed_ends_and_is_not_made_again(town: Town) -> None:
    for name in NAMES:
        town.settings(name, passes_most="1e9")
    town.open()
    run = town.submit(job(target=1e-300, passes=1e6))
    wait_until(lambda: "passes" in town.daemons["shop"].runs[run].status.progress)
    wait_until(lambda: gone(town.folder / "shop" / "runs" / run))
    for name in NAMES:
        status = town.ended(name, run)
        assert status.phase in ("failed", "stopped"), (name, status)
    assert "was removed at 'shop'" in town.daemons["shop"].runs[run].status.reason
    assert not (town.folder / "shop" / "runs" / run).exists()


# -- what is seen of a run, and what is kept of it ---------------------------------------------------------------------


def test_a_run_between_organisations_can_be_watched_in_its_folder(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: `offbeat watch` said "Preparing" until the end."""
    monkeypatch.setattr(runs, "PROGRESS_EVERY_S", 0.02)
    for name in NAMES:
        town.settings(name, passes_most="1e9")
    town.open()
    run = town.submit(job(target=1e-300, passes=1e6))
    for name in NAMES:
        follower = Follower(town.folder / name / "runs" / run)
        wait_until(
            lambda follower=follower: (
                (seen := follower.look())
                and (seen.standing, seen.looks > 1) == ("running", True)
                and seen.now is not None
                and any(party.updates for party in seen.now.parties.values())
            )
        )
        seen = Follower(follower.folder).look()
        assert seen is not None and seen.now is not None and seen.now.goal == 1e6
        assert title_of(seen) == f"vfb2-svrg, as '{name}' runs it" and list(seen.now.parties) == [name]
        assert seen.now.parties[name].updates > 0 and seen.curve[-1].passes > 0
    town.ask("bank", control.Stop(run))
    for name in NAMES:
        town.ended(name, run)
        assert not (town.folder / name / "runs" / run / "live.json").exists()
    told = RunRecord.read(town.folder / "shop" / "runs" / run)
    assert told.coefficients == {}, "the record may be shown to others"


def test_a_daemon_keeps_few_ended_runs_in_memory_and_answers_for_all(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "ENDED_KEPT", 1)
    town.open()
    first, last = town.submit(short()), ""
    done(town, first)
    for _ in range(2):
        last = town.submit(short())
        done(town, last)
    for name in NAMES:
        wait_until(lambda name=name: list(town.daemons[name].runs) == [last])
        status = town.ask(name, control.Status(first))
        assert isinstance(status, control.RunStatus) and status.phase == "done"
    assert np.isfinite(connect(town.folder / "bank", first).decision_function(["c1"])).all()
    phases = {metric.name: metric for metric in town.daemons["bank"].gauges.families()}["runs"]
    assert sum(phases.values.values()) == 3
    with pytest.raises(BadInput, match="knows no run"):
        town.ask("bank", control.Status("credit-of-nobody"))
    town.restart("shop")
    assert list(town.daemons["shop"].runs) == [last]


# -- a table that changes ---------------------------------------------------------------------------------------------


def resorted(table: Path) -> None:
    head, *lines = table.read_text().splitlines()
    table.write_text("\n".join([head, *sorted(lines)]) + "\n")


def test_a_table_that_changed_while_its_party_was_away_is_refused(tmp_path: Path) -> None:
    """The alignment keeps row numbers: with a table in another order every row would meet a wrong one, unnoticed."""
    town = Town(tmp_path)
    wanted = msgspec.structs.replace(job(target=1e-300, passes=900.0), rows=OrgRows(test_fraction=0.0))
    child = serve(town, "shop")
    try:
        town.open("bank", "telecom")
        run = town.submit(wanted)
        kept = town.folder / "shop" / "private" / run / "alignment.json"
        wait_until(kept.is_file)
        child.send_signal(signal.SIGKILL)
        child.wait()
        resorted(town.folder / "shop" / "table.csv")
        child = serve(town, "shop")

        def ended() -> bool:
            return all(town.ask(name, control.Status(run)).ended for name in NAMES)  # type: ignore[attr-defined]

        wait_until(ended)
        statuses = {name: town.ask(name, control.Status(run)) for name in NAMES}
        assert all(s.phase != "done" for s in statuses.values()), statuses  # type: ignore[attr-defined]
        assert "'shop' has another table" in statuses["shop"].reason  # type: ignore[attr-defined]
        assert "'shop' has another table" in statuses["bank"].reason  # type: ignore[attr-defined]
    finally:
        town.close()
        child.terminate()
        child.wait()


def test_a_table_that_changed_between_acceptance_and_start_is_refused(town: Town) -> None:
    town.open()
    bank, wanted, name = town.daemons["bank"], short(), "credit-20260101-000000-aaaaaa"
    bank.leading.agree(["shop", "telecom"], control.Propose(name, wanted.text, b"s" * 32))
    run = bank._accept(name, wanted, "bank", b"s" * 32)
    run.begin_with({party: bank.leading.counted(run, party).ids for party in NAMES})
    resorted(town.folder / "telecom" / "table.csv")
    bank.leading.lead(run)
    for party in NAMES:
        status = town.ended(party, name)
        assert status.phase in ("refused", "failed") and "'telecom' has another table" in status.reason, (party, status)


# -- predictions ------------------------------------------------------------------------------------------------------


def test_a_prediction_costs_its_rows_and_not_the_table(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.open()
    run = town.submit(short())
    done(town, run)
    model = connect(town.folder / "bank", run)
    model.decision_function(["c1"])
    read: list[str] = []
    load, hashed, stored = tables.load_table, tables.id_column, rows.read_checkpoint
    monkeypatch.setattr(tables, "load_table", lambda home: read.append("table") or load(home))
    monkeypatch.setattr(tables, "id_column", lambda *column: read.append("ids") or hashed(*column))
    monkeypatch.setattr(rows, "read_checkpoint", lambda *place: read.append("model") or stored(*place))
    ledger = town.folder / "shop" / "private" / "ledger"
    sizes = [(ledger / "uses.jsonl").stat().st_size]
    for _ in range(3):
        model.decision_function(["c1"])
        sizes.append((ledger / "uses.jsonl").stat().st_size)
    assert read == [] and max(np.diff(sizes)) < 200 and not (ledger / "rows.json").exists()
    # A table that has changed is read again, once.
    path = town.folder / "shop" / "table.csv"
    path.write_text(path.read_text().replace("\nc1,", "\nc0001,", 1))
    with pytest.raises(BadData, match="1 of 1 ids are not known"):
        model.decision_function(["c1"])
    assert read == ["table", "ids"]


def test_many_ids_go_in_several_questions(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.open()
    run = town.submit(short())
    done(town, run)
    model, ids = connect(town.folder / "bank", run), [f"c{i}" for i in range(50)]
    whole = model.predict_proba(ids)
    monkeypatch.setattr(client, "ROWS_IN_ONE_QUESTION", 20)
    assert np.abs(model.predict_proba(ids) - whole).max() < 1e-12
    history = town.daemons["shop"].ledger.history()
    assert [line["rows"] for line in history[-3:]] == [20, 20, 10] and all("at" in line for line in history)


# -- evidence ---------------------------------------------------------------------------------------------------------


def test_a_run_is_replayed_with_the_table_and_the_key_it_was_made_with(town: Town) -> None:
    town.open()
    run = town.submit(short())
    done(town, run)
    place = town.folder / "shop"
    shutil.copy(place / "table.csv", place / "then.csv")
    with (place / "table.csv").open("a") as table:
        table.write("c9999,0.1,0.2,0.3,0.4\n")
    home = read_home(place)
    with pytest.raises(BadData, match=r"table\.csv or its settings have changed since run .* by --data FILE"):
        replay_own(home, run, verify=True)
    assert replay_own(home, run, verify=True, data=place / "then.csv")["same"]
    shutil.move(place / "keys" / "shop.key", place / "old.key")
    new = new_identity("shop")
    write_private(place / "keys" / "shop.key", new.key_pem)
    (place / "keys" / "shop.crt").write_bytes(new.certificate_pem)
    assert replay_own(home, run, verify=True, data=place / "then.csv", key=place / "old.key")["same"]
    with pytest.raises(BadInput, match="expected the private key"):
        replay_own(home, run, data=place / "then.csv", key=place / "nothing.key")


# -- settings, locks, certificates, logs ------------------------------------------------------------------------------


def test_a_policy_that_was_changed_holds_without_a_restart(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    town.open()
    town.settings("shop", methods='["vfb2-saga"]')
    with pytest.raises(Refused, match="'shop' refuses the job"):
        town.submit(short())
    (town.folder / "shop" / "party.toml").write_text("nonsense")
    with pytest.raises(Refused, match="'shop' refuses the job"):
        town.submit(short())
    assert any("cannot be used, so the settings of before stay" in record.getMessage() for record in caplog.records)
    town.settings("shop")
    done(town, town.submit(short()))


def test_a_new_partner_is_known_without_a_restart_and_stops_nobody(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    town.open()
    caplog.set_level("INFO")
    insurer, roster_file = new_identity("insurer"), town.folder / "bank" / "roster.toml"
    caller = PeerCalls(insurer, PinnedRoster((*town.roster.members, Member("insurer", insurer.certificate_pem))))
    with pytest.raises(PeerFailed):
        caller.call("bank", control.Ping())
    write_roster(roster_file, caller.roster)  # the bank alone has heard of it
    assert isinstance(caller.call("bank", control.Ping()), control.Pong)
    done(town, town.submit(short()))
    bank = town.daemons["bank"]
    before = bank.roster
    roster_file.write_text("nonsense")
    bank._read_roster()
    write_roster(roster_file, town.roster.with_member(Member("bank", new_identity("bank").certificate_pem)))
    bank._read_roster()
    assert bank.roster is before
    told = " ".join(record.getMessage() for record in caplog.records)
    assert "it lists bank, insurer, shop, telecom" in told and told.count("the one of before stays") == 2


def test_a_home_has_one_daemon(town: Town) -> None:
    town.open()
    second = Daemon(read_home(town.folder / "shop"))
    with pytest.raises(BadInput, match="another daemon serves 'shop'"):
        second.start()
    town.restart("shop")


def test_a_daemon_that_cannot_tell_how_it_stands_begins_nothing(town: Town) -> None:
    """Before: it listened, took up its runs and said where it was, and ended then."""
    path = town.folder / "shop" / "party.toml"
    path.write_text(f'metrics = "127.0.0.1:{town.ports["bank"]}"\n' + path.read_text())
    town.open("bank")
    shop = Daemon(read_home(town.folder / "shop"))
    with pytest.raises(BadInput, match=r"metrics = .* cannot be listened on"):
        shop.start()
    assert not (shop.home.private / "control").exists()


def test_a_daemon_with_an_expired_certificate_does_not_start(town: Town) -> None:
    from datetime import UTC, datetime, timedelta

    town.open()
    old = new_identity("shop", days=1, now=datetime.now(UTC) - timedelta(days=9))
    daemon = Daemon(read_home(town.folder / "shop"))
    daemon.identity = old
    town.daemons["shop"].stop()
    with pytest.raises(BadInput, match=r"certificate of 'shop'\. Set the clock.* it ended on "):
        daemon.start()
    daemon.stop()


def test_a_misspelt_column_that_must_not_be_used_is_named(town: Town) -> None:
    town.settings("shop", columns_never='["shopp0"]')
    with pytest.raises(BadInput, match=r"columns_never lists 'shopp0'.*Did you mean 'shop0'"):
        rows.load_table(read_home(town.folder / "shop"))
    path = town.folder / "shop" / "party.toml"
    path.write_text(path.read_text().replace("columns = []", 'columns = ["shop1"]'))
    with pytest.raises(BadInput, match=r"columns_never lists 'shopp0'"):
        rows.load_table(read_home(town.folder / "shop"))
    path.write_text(path.read_text().replace("shopp0", "shop0"))
    assert list(rows.load_table(read_home(town.folder / "shop")).columns) == ["shop1"]


def test_the_log_tells_what_happens_and_submit_tells_who_learns_what(tmp_path: Path) -> None:
    town = Town(tmp_path)
    (tmp_path / "job.toml").write_text(short().text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    def offbeat(*words: object) -> "subprocess.CompletedProcess[str]":
        call = [sys.executable, "-m", "offbeat", *map(str, words)]
        return subprocess.run(call, capture_output=True, text=True, env=environment, check=False)

    dry = offbeat("job", "submit", tmp_path / "job.toml", "--home", tmp_path / "bank", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "The labels of 'bank' for all training rows are told to 'shop' and 'telecom'" in " ".join(dry.stderr.split())
    with (tmp_path / "shop.log").open("wb") as log:
        call = [sys.executable, "-m", "offbeat", "party", "serve", "--home", str(tmp_path / "shop"), "--log-json"]
        shop = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=log, env=environment)
    try:
        wait_until(lambda: (tmp_path / "shop" / "private" / "control").is_file() or shop.poll() is not None)
        town.open("bank", "telecom")
        run = town.submit(short())
        for name in ("bank", "telecom"):
            assert town.ended(name, run).phase == "done"
        none = offbeat("predict", run, "--home", tmp_path / "bank", "--id", "nobody")
        assert none.returncode == 2 and "no row was scored" in none.stderr
    finally:
        town.close()
        shop.terminate()
        shop.wait()
    told = [json.loads(line) for line in (tmp_path / "shop.log").read_text().splitlines() if line.startswith("{")]
    text = "\n".join(line["text"] for line in told)
    for phase in (f"accepted run {run} of bank", f"run {run}: aligning", f"run {run}: training", f"run {run}: target"):
        assert phase in text
    assert all((line["party"], line["run"]) == ("shop", run) for line in told if run in line["text"])
    assert {line["peer"] for line in told if line["text"].startswith("accepted run")} == {"bank"}
    assert {"info"} <= {line["level"] for line in told} and all(line["from"].startswith("offbeat") for line in told)
