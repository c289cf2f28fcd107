"""Run folders that earlier versions wrote still open: `tests/old_runs` has one of each kind."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.metrics.machine import made_elsewhere, this_machine
from offbeat.metrics.record import RunRecord

OLD = Path(__file__).parents[2] / "old_runs"
ALL = sorted(path.name for path in OLD.iterdir())
SIMULATED = ("embedding", "horizontal", "linear")


def told(tmp_path, command, kind, *, ends=(0,)):
    folder = shutil.copytree(OLD / kind, tmp_path / kind)
    result = CliRunner().invoke(app, [command, str(folder), "--json"])
    assert result.exit_code in ends, result.stderr
    return json.loads(result.stdout)


def test_there_is_one_of_each_kind():
    assert ALL == ["embedding", "embedding-threads", "horizontal", "linear", "organisation"]


@pytest.mark.parametrize("kind", ALL)
def test_an_old_run_is_reported(tmp_path, kind):
    record = RunRecord.read(OLD / kind)
    found = told(tmp_path, "report", kind)
    assert (found["digest"], found["verdict"]) == (record.digest, record.verdict)
    assert "<html" in (tmp_path / kind / "report.html").read_text()


@pytest.mark.parametrize("kind", ALL)
def test_an_old_record_names_no_promises(kind):
    """It has what was promised among its warnings, where it stays."""
    assert "promises" not in json.loads((OLD / kind / "record.json").read_text())
    assert RunRecord.read(OLD / kind).promises == ()


@pytest.mark.parametrize("kind", SIMULATED)
def test_an_old_simulated_run_is_audited(tmp_path, kind):
    record, found = RunRecord.read(OLD / kind), told(tmp_path, "audit", kind)
    sent = sum(count for party in record.parties.values() for count in party.messages_by_kind.values())
    received = sum(count for counts in found["received"].values() for count in counts.values())
    assert received > 0.5 * sent
    assert any("does the run otherwise" in warning for warning in found["warnings"])
    assert not (found["masks"] if "masks" in found else found["releases"])["violations"]


def test_an_old_log_is_replayed(tmp_path):
    """Bit for bit where it was made; elsewhere with the reason why bits may differ."""
    kind = "embedding-threads"
    record, came = RunRecord.read(OLD / kind), told(tmp_path, "replay", kind, ends=(0, 3))
    reason = made_elsewhere(record.machine, record.versions)
    assert came["same"] or (reason and reason in came["sentence"])
    assert (record.machine["cpu"] in reason) == (record.machine["cpu"] != this_machine()["cpu"])
