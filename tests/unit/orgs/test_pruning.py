"""Logs of old runs go after the days that the owner set; what the runs came to stays."""

import json
import os
import shutil
from pathlib import Path

import pytest

from offbeat.orgs.kept_runs import DAY_S, prune
from offbeat.orgs.party_config import Home, example, read_home

JOB = 'name = "j"\nparties = ["bank", "shop", "telecom"]\nlabels_at = ["bank"]\n'
PRIVATE = JOB + '[method]\nalgorithm = "vafl"\n[embedding]\nepsilon = 1.0\nuploads_max = 5\n'
NOW_S = 1e9


def home_with(folder: Path, runs: dict[str, tuple[str, float, str]], days: float = 30, mb: float = 0) -> Home:
    """Runs by name: their phase, their age in days, their job."""
    text = example("bank").replace("keep_days = 0 ", f"keep_days = {days} ").replace("keep_mb = 0 ", f"keep_mb = {mb} ")
    (folder / "party.toml").write_text(text)
    for name, (phase, age, job) in runs.items():
        for place in ("events", "checkpoints", "align", "test"):
            (folder / "runs" / name / place).mkdir(parents=True)
        (folder / "runs" / name / "record.json").write_text("{}")
        (folder / "runs" / name / "job.toml").write_text(job)
        state = folder / "runs" / name / "state.json"
        state.write_text(json.dumps({"phase": phase}) if phase else "")
        os.utime(state, (NOW_S - age * DAY_S,) * 2)
        (folder / "private" / name).mkdir(parents=True)
        (folder / "private" / name / "nonce").write_bytes(b"n" * 32)
    return read_home(folder)


def test_only_old_and_ended_runs_lose_their_logs_and_their_nonce(tmp_path: Path) -> None:
    runs = {
        "old": ("done", 31, JOB),
        "stopped": ("stopped", 300, JOB),
        "private": ("done", 31, PRIVATE),
        "young": ("done", 29, JOB),
        "running": ("training", 99, JOB),
        "damaged": ("", 99, JOB),
    }
    home = home_with(tmp_path, runs)
    assert prune(home, NOW_S) == ["old", "private", "stopped"]
    for name in runs:
        gone = name in ("old", "stopped", "private")
        assert (tmp_path / "runs" / name / "events").exists() is not gone
        assert (tmp_path / "runs" / name / "record.json").exists() and (tmp_path / "runs" / name / "job.toml").exists()
        assert (tmp_path / "private" / name / "nonce").exists() is (not gone or name == "private")
    assert prune(home, NOW_S) == []


@pytest.mark.parametrize("age", [1.0, 1e4])
def test_without_days_everything_is_kept(tmp_path: Path, age: float) -> None:
    assert prune(home_with(tmp_path, {"old": ("done", age, JOB)}, days=0), NOW_S) == []


def test_logs_take_no_more_room_than_their_owner_gives_them_and_the_oldest_go_first(tmp_path: Path) -> None:
    runs = {"a": ("done", 1, JOB), "b": ("done", 5, JOB), "c": ("failed", 3, JOB), "d": ("training", 9, JOB)}
    home = home_with(tmp_path, runs, days=0, mb=2.5)
    for name in runs:
        (tmp_path / "runs" / name / "align" / "events").mkdir()
        (tmp_path / "runs" / name / "align" / "events" / "bank.log").write_bytes(bytes(400_000))
        (tmp_path / "runs" / name / "checkpoints" / "bank").write_bytes(bytes(600_000))
    assert prune(home, NOW_S) == ["b"]  # what is under way, "d", counts for nothing and stays
    assert (
        not (tmp_path / "runs" / "b" / "checkpoints").exists() and not (tmp_path / "private" / "b" / "nonce").exists()
    )
    assert all((tmp_path / "runs" / name / "checkpoints" / "bank").is_file() for name in "acd")
    assert prune(home, NOW_S) == []


def test_runs_that_end_at_once_may_delete_the_same_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, remove, first = home_with(tmp_path, {"old": ("done", 31, JOB)}), shutil.rmtree, []

    def removed_twice(path: Path, **options: bool) -> None:
        if not first:
            first.append(path)
            remove(path)  # another thread was here a moment ago
        remove(path, **options)

    monkeypatch.setattr("offbeat.orgs.kept_runs.shutil.rmtree", removed_twice)
    assert prune(home, NOW_S) == ["old"]
    assert not (tmp_path / "runs" / "old" / "events").exists()


def test_what_is_left_of_proposals_that_never_began_goes_after_a_week(tmp_path: Path) -> None:
    ages = {"expired": ("failed", 8), "young": ("failed", 6), "waiting": ("waiting", 99), "began": ("failed", 99)}
    home = home_with(tmp_path, {name: (phase, age, JOB) for name, (phase, age) in ages.items()}, days=0)
    for name in ages:
        for trace in ("events", "checkpoints", "align", "test"):
            (tmp_path / "runs" / name / trace).rmdir()
        (tmp_path / "runs" / name / "record.json").unlink()
    (tmp_path / "private" / "began" / "begun.json").write_text("{}")
    assert prune(home, NOW_S) == []
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"young", "waiting", "began"}
    assert {path.name for path in (tmp_path / "private").iterdir()} == {"young", "waiting", "began"}
