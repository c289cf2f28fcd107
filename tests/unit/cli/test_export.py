"""`offbeat export`: every look of a run folder, as CSV, as JSON, and for trackers."""

import csv
import json
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.cli.trackers import EVENTS_FILE, TEXT_MOST, _masked_crc, parameters, scalars
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
    both = CliRunner().invoke(app, ["export", str(RUN), "--json", "--to", "mlflow"])
    assert both.exit_code == 2
    (tmp_path / "graphs").write_text("")
    file = CliRunner().invoke(app, ["export", str(RUN), "--onnx", str(tmp_path / "graphs")])
    assert file.exit_code == 2 and "is a file; expected a folder" in file.stderr


# -- TensorBoard -----------------------------------------------------------------------------------------------------


def crc_by_bits(data):
    """CRC-32C as its definition has it, a bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_checksums_are_castagnolis():
    assert crc_by_bits(b"123456789") == 0xE3069283  # the value that everybody prints for it
    for data in (b"", b"123456789", bytes(range(256))):
        crc = crc_by_bits(data)
        assert _masked_crc(data) == ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def fields(message):
    """A protobuf message, read by its wire format alone: (field, value) pairs."""
    at = 0

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            number, shift, at = number | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                return number

    while at < len(message):
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = varint() if size is None else size
        yield key >> 3, message[at : at + size]
        at += size


def events(file):
    """The events of a file, each checked against its checksums."""
    content, at = file.read_bytes(), 0
    while at < len(content):
        length, crc = content[at : at + 8], content[at + 8 : at + 12]
        (size,) = struct.unpack("<Q", length)
        data, end = content[at + 12 : at + 12 + size], at + 12 + size
        assert struct.unpack("<I", crc) == (_masked_crc(length),)
        assert struct.unpack("<I", content[end : end + 4]) == (_masked_crc(data),)
        yield dict(fields(data))
        at = end + 4


def test_an_event_file_holds_every_scalar(tmp_path):
    told = CliRunner().invoke(app, ["export", str(RUN), "--to", "tensorboard", "--out", str(tmp_path)])
    assert told.exit_code == 0 and told.stdout.strip() == str(tmp_path / RUN.name)
    first, *rest = events(tmp_path / RUN.name / EVENTS_FILE)
    assert first[3] == b"brain.Event:2"
    expected = list(scalars(RunRecord.read(RUN)))
    assert len(rest) == len(expected) > 10
    for event, (tag, look, time_s, value) in zip(rest, expected, strict=True):
        told = dict(fields(dict(fields(event[5]))[1]))
        assert told[1].decode() == tag and event[2] == look
        assert struct.unpack("<f", told[2])[0] == pytest.approx(value, rel=1e-6)
        assert struct.unpack("<d", event[1])[0] - struct.unpack("<d", first[1])[0] == pytest.approx(time_s, abs=1e-5)


def test_exporting_again_replaces_the_file(tmp_path):
    for _ in range(2):
        CliRunner().invoke(app, ["export", str(RUN), "--to", "tensorboard", "--out", str(tmp_path)])
    assert [path.name for path in (tmp_path / RUN.name).iterdir()] == [EVENTS_FILE]


@pytest.mark.slow
def test_tensorboard_reads_what_was_written(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    CliRunner().invoke(app, ["export", str(RUN), "--to", "tensorboard", "--out", str(tmp_path)])
    read = accumulator.EventAccumulator(str(tmp_path / RUN.name), {"scalars": 0}).Reload()
    expected = list(scalars(RunRecord.read(RUN)))
    assert set(read.Tags()["scalars"]) == {scalar.tag for scalar in expected}
    found = [event.value for event in read.Scalars("curve/objective")]
    assert found == pytest.approx([scalar.value for scalar in expected if scalar.tag == "curve/objective"], rel=1e-6)


# -- MLflow ----------------------------------------------------------------------------------------------------------


class Client:
    """Keeps what MLflow's client is told."""

    def __init__(self):
        self.said = []
        Client.last = self

    def get_experiment_by_name(self, name):
        self.experiment = name

    def create_experiment(self, name):
        return "7"

    def create_run(self, experiment, start_time, run_name):
        assert experiment == "7" and run_name == RUN.name and start_time > 0
        return SimpleNamespace(info=SimpleNamespace(run_id="a1"))

    def log_batch(self, run, metrics=(), params=(), tags=()):
        assert run == "a1" and len(metrics) <= 1000 and len(params) <= 100 and len(tags) <= 100
        self.said += [*metrics, *params, *tags]

    def set_terminated(self, run, status, end_time):
        self.status = status


@pytest.fixture
def client(monkeypatch):
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    entities, tracking = ModuleType("mlflow.entities"), ModuleType("mlflow.tracking")
    for name in ("Metric", "Param", "RunTag"):
        setattr(entities, name, lambda *given, name=name: (name, *given))
    tracking.MlflowClient = Client
    for module in (ModuleType("mlflow"), entities, tracking):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_mlflow_is_told_the_curve_the_job_and_the_verdict(client):
    told = CliRunner().invoke(app, ["export", str(RUN), "--to", "mlflow"])
    assert told.exit_code == 0 and told.stdout.strip() == "a1"
    record, said = RunRecord.read(RUN), Client.last.said
    assert Client.last.experiment == "offbeat"
    metrics = [(tag, value, look) for kind, tag, value, *more in said if kind == "Metric" for _, look in [more]]
    assert metrics == [(tag, value, look) for tag, look, _, value in scalars(record)]
    assert ("Param", "algorithm", record.algorithm) in said
    assert ("RunTag", "offbeat.verdict", record.verdict) in said
    assert Client.last.status == ("FINISHED" if record.exit_code == 0 else "FAILED")


def test_mlflow_is_not_told_paths_and_columns():
    options = {
        "penalty": 1e-4,
        "target": None,
        "party": [{"file": "secret.csv"}],
        "data": {"dir": "d", "rows": "x" * 999},
    }
    assert parameters(options) == {"penalty": "0.0001", "data.rows": "x" * TEXT_MOST}


def test_without_mlflow_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    told = CliRunner().invoke(app, ["export", str(RUN), "--to", "mlflow"])
    assert told.exit_code == 2
    assert "offbeat[mlflow]" in told.output


@pytest.mark.slow
def test_mlflow_reads_what_was_written(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the newest versions ask to be told
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    run = CliRunner().invoke(app, ["export", str(RUN), "--to", "mlflow"]).stdout.strip()
    client, record = mlflow.tracking.MlflowClient(), RunRecord.read(RUN)
    history = client.get_metric_history(run, "curve/objective")
    assert [(each.step, each.value) for each in history] == [
        (look, value) for tag, look, _, value in scalars(record) if tag == "curve/objective"
    ]
    assert client.get_run(run).data.params["algorithm"] == record.algorithm
