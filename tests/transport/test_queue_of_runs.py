"""More jobs than the parties work on at a time: they wait in order, survive restarts, and can be cancelled."""

import json

import pytest
from typer.testing import CliRunner

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import NAMES, Town, job, wait_until

from offbeat.cli import root
from offbeat.errors import Refused
from offbeat.metrics.prometheus import metrics_text
from offbeat.orgs import control, leading
from offbeat.orgs.runs import Run


@pytest.fixture
def narrow(town: Town, monkeypatch: pytest.MonkeyPatch) -> Town:
    """The shop works on one run at a time."""
    monkeypatch.setattr(leading, "QUEUE_PAUSE_S", 0.05)
    monkeypatch.setattr(leading, "WORD_PAUSE_S", 0.05)
    for name in NAMES:
        town.settings(name, **({"runs_at_once": "1"} if name == "shop" else {}))
    return town.open()


def submitted(town: Town) -> control.Submitted:
    answer = town.ask("bank", control.Submit(job(target=1e-2).text))
    assert isinstance(answer, control.Submitted)
    return answer


def busy(town: Town) -> Run:
    """A run of the shop's own takes its place; it does not survive a restart."""
    run = town.daemons["shop"]._accept("credit-20260101-000000-aaaaaa", job(), "shop", b"s" * 32)
    run.update(phase="aligning")
    return run


def phases(town: Town, name: str) -> list[str]:
    listed = town.ask(name, control.ListRuns())
    assert isinstance(listed, control.Runs)
    return [status.phase for status in listed.runs]


def test_jobs_wait_in_order_survive_restarts_and_can_be_cancelled(narrow: Town) -> None:
    town, held = narrow, busy(narrow)
    second, third, fourth = (submitted(town) for _ in range(3))
    assert second.queued == "'shop' works on at most 1 run at a time; 0 of those that wait come first"
    assert third.queued == "'shop' works on at most 1 run at a time; 1 of those that wait come first"
    assert phases(town, "shop") == ["aligning", "queued", "queued", "queued"]
    assert town.daemons["bank"].runs[fourth.run].status.progress["queued"].startswith("'shop' works on")
    town.ask("bank", control.Stop(third.run))  # before its turn: nothing has been read for it
    wait_until(lambda: town.daemons["shop"].runs[third.run].status.ended)
    assert town.daemons["shop"].runs[third.run].own.kept("table") is None
    town.restart("bank")
    assert phases(town, "bank") == ["queued", "stopped", "queued"]
    town.restart("shop")
    assert list(town.daemons["shop"].runs) == [held.run, second.run, third.run, fourth.run]
    for run in (second.run, fourth.run):
        for name in NAMES:
            wait_until(lambda name=name, run=run: town.daemons[name].runs[run].status.ended)
        assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    states = [town.folder / "shop" / "runs" / run / "state.json" for run in (second.run, fourth.run)]
    assert states[0].stat().st_mtime_ns < states[1].stat().st_mtime_ns, "in the order of acceptance"


def test_a_run_that_a_member_ends_before_its_turn_ends_for_all(narrow: Town) -> None:
    town = narrow
    busy(town)
    second = submitted(town)
    town.ask("shop", control.Stop(second.run))
    wait_until(lambda: town.daemons["bank"].runs[second.run].status.ended)
    wait_until(lambda: town.daemons["telecom"].runs[second.run].status.ended)
    assert "stopped by the owner of 'shop'" in town.daemons["bank"].runs[second.run].status.reason


def test_the_owner_sees_what_waits_and_what_was_refused(narrow: Town) -> None:
    town = narrow
    busy(town)
    run = submitted(town).run
    with pytest.raises(Refused, match="allows 1 passes"):
        town.settings("shop", runs_at_once="1", passes_most="1.0")
        submitted(town)
    told = CliRunner().invoke(root.app, ["party", "status", "--home", str(town.folder / "shop"), "--json"])
    assert told.exit_code == 0, told.output
    status = json.loads(told.stdout)
    assert [(one["run"], one["phase"]) for one in status["runs"]][1:] == [(run, "queued")]
    (refused,) = status["refusals"]
    assert (refused["peer"], refused["request"], refused["times"]) == ("bank", "Propose", 1)
    assert "allows 1 passes" in refused["reason"]
    assert f"{run}: queued, waits for a place: 'shop' works on" in " ".join(told.stderr.split())
    assert 'offbeat_runs{phase="queued"} 1' in metrics_text(town.daemons["shop"].gauges.families())


def test_a_queue_is_not_for_ever(narrow: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town = narrow
    busy(town)
    monkeypatch.setattr(leading, "QUEUED_KEPT_S", 0.0)
    second = submitted(town)
    for name in NAMES:
        wait_until(lambda name=name: town.daemons[name].runs[second.run].status.ended)
    assert "it did not begin: 'shop' works on at most 1 run" in town.daemons["telecom"].runs[second.run].status.reason


def test_six_jobs_at_once_all_come_to_an_end(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "QUEUE_PAUSE_S", 0.05)
    for name in NAMES:
        town.settings(name, runs_at_once="2")
    town.open()
    runs = [submitted(town).run for _ in range(6)]
    for run in runs:
        for name in NAMES:
            wait_until(lambda name=name, run=run: town.daemons[name].runs[run].status.ended)
            assert town.daemons[name].runs[run].status.phase == "done", town.daemons[name].runs[run].status
