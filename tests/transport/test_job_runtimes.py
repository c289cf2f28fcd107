"""One job, three runtimes: the same certified answer, and what was not carried over is said."""

import json

import pytest
from typer.testing import CliRunner

from offbeat.cli import app

JOB = """
algorithm = "vfb2-svrg"
passes = 300
target = 1e-5
penalty = 1e-2

[data]
set = "known-logistic"
parties = ["bank", "shop", "telecom"]

[runtime]
slow = { shop = 2.0 }
overhead_s = 1e-5
per_sample_s = 1e-7
per_nonzero_s = 0
"""


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("kind", ["simulator", "threads", "processes"])
def test_the_same_job_reaches_its_target_and_replays(kind, tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    result = call("run", tmp_path / "job.toml", "--runtime", kind, "--json", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["runtime"], told["verdict"]) == (kind, "target")
    assert told["certificate"]["duality_gap"] <= 1e-5
    assert 0 <= told["suboptimality"] <= told["certificate"]["duality_gap"] + 1e-9
    assert told["metrics"]["test_auc"] > 0.7
    assert any("runtime.slow" in warning for warning in told["warnings"]) == (kind == "processes")
    assert json.loads(call("replay", tmp_path / "run", "--json").stdout)["same"] is True
    verified = call("replay", tmp_path / "run", "--verify")
    assert verified.exit_code == 0 and "bit for bit" in verified.stderr
    assert kind == "simulator" or all(f"{name}: " in verified.stderr for name in ("bank", "shop", "telecom"))
    if kind != "simulator":
        log = tmp_path / "run" / "events" / "shop.log"
        log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
        cut_short = call("replay", tmp_path / "run", "--verify")
        assert cut_short.exit_code == 3 and "shop" in cut_short.stderr
