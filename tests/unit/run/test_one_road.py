"""All families go one road: what the folder says is what the record says, and a run that was stopped is done again."""

import tomllib

import pytest

from offbeat.families.table import FAMILIES, family_of
from offbeat.jobs.reading import job_from
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import job_of, write_job, write_result
from offbeat.run.replay import replay_run

COLUMNS = {"passes": 3, "optimum": False, "data": {"set": "credit-like@0.01", "parties": 3, "limit_rows": 200}}
ROWS = {"updates": 40, "seed": 1, "privacy": {"mode": "none"}, "data": {"set": "digits-like", "limit_rows": 200}}
JOBS = {
    "linear": {"algorithm": "vfb2-svrg", **COLUMNS},
    "embedding": {"algorithm": "vafl", **COLUMNS},
    "horizontal": {"algorithm": "steady", **ROWS},
}


def train(family, folder, watch=None):
    job = job_from(JOBS[family])
    write_job(job, folder)
    result = run_experiment(family_of(job).load(job), job, watch=watch, folder=folder)
    write_result(result, folder)
    return job, result


def without_none(value):
    if not isinstance(value, dict):
        return list(value) if isinstance(value, tuple) else value
    return {key: without_none(inner) for key, inner in value.items() if inner is not None}


def test_there_is_a_job_for_each_family():
    assert JOBS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", JOBS)
def test_record_and_job_file_say_the_same(family, tmp_path):
    job, result = train(family, tmp_path)
    options = {key: value for key, value in result.record.options.items() if key != "chosen"}
    assert without_none(options) == tomllib.loads((tmp_path / "job.toml").read_text())
    assert job_of(tmp_path) == job


@pytest.mark.parametrize("family", JOBS)
def test_every_part_of_the_model_is_a_file(family, tmp_path):
    _, result = train(family, tmp_path)
    files = {path.stem for path in (tmp_path / "checkpoints").glob("*.safetensors")}
    assert {name for name in files if ".preparation" not in name} == set(result.models)


@pytest.mark.parametrize("family", JOBS)
def test_a_run_that_was_stopped_is_done_again_to_the_same_bits(family, tmp_path):
    seen = []

    def watch(progress):
        seen.append(progress)
        return len(seen) < 4

    _, result = train(family, tmp_path, watch)
    assert result.record.verdict == "stopped" and len(seen) == 4
    assert [row.time_s for row in result.record.curve][:4] == [progress.time_s for progress in seen]
    assert replay_run(tmp_path)["same"] is True
