"""`offbeat export`: every look of a run folder, as CSV and as JSON."""

import csv
import json
from pathlib import Path

from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.metrics.record import RunRecord

RUN = Path(__file__).parents[2] / "old_runs" / "linear"


def test_every_look_is_a_row_with_its_numbers_in_full(tmp_path):
    record, file = RunRecord.read(RUN), tmp_path / "curve.csv"
    assert CliRunner().invoke(app, ["export", str(RUN), "--csv", str(file)]).exit_code == 0
    rows = list(csv.DictReader(file.open()))
    assert len(rows) == len(record.curve) > 1
    for name in ("time_s", "objective", "gap"):
        values = [getattr(look, name) for look in record.curve]
        assert [float(row[name]) if row[name] else None for row in rows] == values
        assert any(value is not None for value in values)
    printed = CliRunner().invoke(app, ["export", str(RUN), "--csv", "-"])
    assert printed.stdout == file.read_text()


def test_one_document_has_the_curve_and_the_result():
    told = json.loads(CliRunner().invoke(app, ["export", str(RUN), "--json"]).stdout)
    record = RunRecord.read(RUN)
    assert told["metrics"] == record.metrics and len(told["curve"]) == len(record.curve)


def test_a_mistake_is_one_sentence(tmp_path):
    nowhere = CliRunner().invoke(app, ["export", str(RUN)])
    assert nowhere.exit_code == 2
    assert CliRunner().invoke(app, ["export", str(tmp_path), "--json"]).exit_code == 2
