"""One job, three runtimes: the same certified answer, and what was not carried over is said."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat.cli import app

WITHIN_S = 240.0

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


# -- interrupted, and killed ------------------------------------------------------------------------------------------

LONG = JOB.replace("target = 1e-5\n", "").replace("passes = 300", "passes = 1e6")


class Started:
    """`offbeat run` with the runtime 'processes', in a process group of its own, until its parties are well at work."""

    def __init__(self, folder, *more):
        (folder / "job.toml").write_text(LONG)
        self.out = folder / "run"
        command = [sys.executable, "-m", "offbeat", "run", folder / "job.toml", "--runtime", "processes", "--json"]
        command += ["--out", self.out, *more]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )
        logs = [self.out / "events" / f"{name}.log" for name in ("bank", "shop", "telecom")]
        deadline = time.monotonic() + WITHIN_S
        while not all(log.is_file() and log.stat().st_size > 60_000 for log in logs):
            if self.process.poll() is not None or time.monotonic() >= deadline:
                self.process.kill()  # or its last words would be waited for without end
                raise AssertionError(self.process.communicate())
            time.sleep(0.05)

    def child_of(self, party):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                ours = f"\nPPid:\t{self.process.pid}\n" in (path.parent / "status").read_text()
                if ours and any(word.endswith(f"/{party}.child.json".encode()) for word in words):
                    return int(path.parent.name)
        raise AssertionError(f"no process of {party}")

    def ended(self):
        out, errors = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, json.loads(out) if out else {}, errors


@pytest.mark.parametrize("whom", ["group", "parent"])
def test_ctrl_c_keeps_the_best_model_of_processes(whom, tmp_path):
    run = Started(tmp_path)
    (os.killpg if whom == "group" else os.kill)(run.process.pid, signal.SIGINT)
    code, told, errors = run.ended()
    assert (code, told.get("verdict")) == (1, "stopped"), errors
    assert told["certificate"]["duality_gap"] < 1e-3 and told["metrics"]["test_auc"] > 0.7
    assert 0 <= told["suboptimality"] <= told["certificate"]["duality_gap"] + 1e-9
    assert (run.out / "record.json").is_file()


@pytest.mark.parametrize("victim", ["shop", "bank"])
def test_a_killed_process_stops_a_run_that_is_to_stop(victim, tmp_path):
    run = Started(tmp_path, "--set", "on_loss=stop")
    os.kill(run.child_of(victim), signal.SIGKILL)
    code, told, errors = run.ended()
    assert (code, told.get("verdict")) == (3, "peer-lost"), errors
    assert victim in told["reason"] and f"The process of '{victim}' was ended by SIGKILL" in errors
    assert told["certificate"]["duality_gap"] < 1e-3 and told["metrics"]["test_auc"] > 0.7
    assert 0 <= told["suboptimality"] <= told["certificate"]["duality_gap"] + 1e-9


@pytest.mark.slow
def test_a_killed_process_is_left_out_of_a_run_that_is_to_continue(tmp_path):
    more = ("--set", "on_loss=continue", "--set", "two_party_insecure=true", "--set", "passes=300")
    run = Started(tmp_path, *more)
    os.kill(run.child_of("shop"), signal.SIGKILL)
    code, told, errors = run.ended()
    assert (code, told.get("verdict")) == (0, "passes"), errors
    assert any("lost shop" in warning for warning in told["warnings"])


def test_a_killed_process_is_started_again_where_the_others_wait(tmp_path):
    run = Started(tmp_path, "--set", "passes=300")
    os.kill(run.child_of("shop"), signal.SIGKILL)
    code, told, errors = run.ended()
    assert code == 0 and "The process of 'shop' was ended by SIGKILL; started again" in errors, (told, errors)
    assert told["verdict"] == "passes" and told["suboptimality"] < 1e-9
