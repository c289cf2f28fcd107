"""A run record survives its folder, says what scripts rely on, and names what is wrong with a damaged one."""

import json
import math

import msgspec
import numpy as np
import pytest
from report_samples import sample_record

from offbeat.errors import BadInput
from offbeat.metrics.machine import library_versions, made_elsewhere, offbeat_version, this_machine
from offbeat.metrics.record import Certificate, RunRecord, read_records

PROMISED = {
    "run", "algorithm", "runtime", "seed", "digest", "objective", "certificate", "passes", "seconds", "clock",
    "metrics", "parties", "reveals", "promises", "warnings",
}  # fmt: skip
PROMISED_BY_PARTY = {"updates", "lag_mean", "lag_max", "bytes_sent", "compute_s", "communicate_s", "wait_s"}


def test_a_record_reads_back_as_it_was_written(tmp_path):
    record = sample_record()
    record.write(tmp_path / "run")
    assert RunRecord.read(tmp_path / "run") == record


def test_the_folder_holds_three_plain_files(tmp_path):
    sample_record().write(tmp_path)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["events/timeline.jsonl", "metrics.jsonl", "record.json"]
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert list(first) == [
        "time_s", "passes", "bytes", "objective", "gradient_norm", "gap", "suboptimality", "test_metric",
    ]  # fmt: skip
    sent_s, received_s, sender, receiver, kind = json.loads(
        (tmp_path / "events/timeline.jsonl").read_text().splitlines()[0]
    )
    assert sent_s < received_s
    assert sender != receiver
    assert isinstance(kind, str)


def test_the_json_object_has_the_promised_names(tmp_path):
    printed = sample_record().to_json_object(tmp_path)
    assert set(printed) >= PROMISED
    assert next(iter(printed)) == "run"
    assert printed["run"] == str(tmp_path)
    assert printed["certificate"] == {"gradient_norm": 1.35e-5, "duality_gap": 9.11e-7}
    assert set(printed["parties"]["bank"]) >= PROMISED_BY_PARTY
    assert printed["reveals"][0] == {
        "message": "ShareAsked",
        "count": 18412,
        "bytes": 441888,
        "reveals": "which rows a worker works on, to every party",
    }
    assert "curve" not in printed
    assert "timeline" not in printed


def test_the_file_holds_what_is_printed(tmp_path):
    record = sample_record()
    record.write(tmp_path)
    printed = record.to_json_object()
    del printed["run"]
    assert json.loads((tmp_path / "record.json").read_text()) == printed


def test_numbers_that_are_not_finite_become_null(tmp_path):
    record = sample_record(objective=math.nan, certificate=Certificate(math.inf, None), verdict="diverged")
    printed = record.to_json_object()
    assert printed["objective"] is None
    assert printed["certificate"] == {"gradient_norm": None, "duality_gap": None}
    json.dumps(printed, allow_nan=False)
    record.write(tmp_path)
    assert RunRecord.read(tmp_path).objective is None


def test_numpy_numbers_are_written_as_plain_ones(tmp_path):
    record = sample_record(
        objective=np.float64(0.5), seed=np.int64(3), options={"step": np.float32(0.5), "data": tmp_path}
    )
    printed = record.to_json_object()
    assert (printed["objective"], printed["seed"]) == (0.5, 3)
    assert printed["options"] == {"step": 0.5, "data": str(tmp_path)}


def test_options_that_are_not_plain_are_refused():
    with pytest.raises(NotImplementedError, match="plain values only can be written as JSON, not a object"):
        sample_record(options={"x": object()}).to_json_object()


def test_totals_are_sums_over_parties():
    assert sample_record().bytes_sent == 4 * 7_867_440
    assert sample_record().updates == 3 * 4_800 + 1_200


def test_a_record_cannot_be_changed():
    with pytest.raises(AttributeError):
        sample_record().verdict = "passes"


def test_a_folder_without_a_record_is_named(tmp_path):
    with pytest.raises(BadInput, match="is not a finished run folder"):
        RunRecord.read(tmp_path / "nowhere")


def test_a_damaged_file_is_named_with_its_line(tmp_path):
    sample_record().write(tmp_path)
    curve = tmp_path / "metrics.jsonl"
    lines = curve.read_text().splitlines()
    curve.write_text("\n".join([*lines[:2], '{"time_s": "soon"}', *lines[3:]]))
    with pytest.raises(BadInput, match=r"metrics\.jsonl, line 3 is not what a run record holds"):
        RunRecord.read(tmp_path)


def test_a_newer_record_with_more_keys_still_reads(tmp_path):
    sample_record().write(tmp_path)
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "from_the_future": [1, 2]}))
    assert RunRecord.read(tmp_path) == sample_record()


def test_a_run_without_curve_or_timeline_reads(tmp_path):
    bare = msgspec.structs.replace(sample_record(), curve=(), timeline=())
    bare.write(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    assert RunRecord.read(tmp_path) == bare


def test_folders_of_one_name_are_told_apart(tmp_path):
    for parent in ("slow", "fast"):
        sample_record().write(tmp_path / parent / "run")
    sample_record().write(tmp_path / "other")
    names = list(read_records([tmp_path / "slow/run", tmp_path / "fast/run", tmp_path / "other"]))
    assert names == ["slow/run", "fast/run", "other"]


def test_versions_and_machine_are_plain():
    assert library_versions()["numpy"] == np.__version__
    assert offbeat_version()
    assert this_machine()["cores"] >= 1


def test_a_record_from_another_machine_says_what_differs():
    here, versions = this_machine(), library_versions()
    assert made_elsewhere(here, versions) == ""
    said = made_elsewhere({**here, "cpu": "AMD EPYC (znver3)"}, {**versions, "numpy": "1.26.0", "pandas": "1.0"})
    assert "made on AMD EPYC (znver3), numpy 1.26.0;" in said and f"numpy {versions['numpy']}" in said
    assert "pandas" not in said, "its version moves no bit of a run"
