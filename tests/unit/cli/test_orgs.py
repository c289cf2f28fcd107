"""The commands for organisations, as a person types them: what they write, what they say, how they end."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from offbeat.cli import app, orgs
from offbeat.cli.orgs import status_line
from offbeat.errors import BadInput
from offbeat.orgs.client import id_texts
from offbeat.orgs.control import Decide, RunStatus
from offbeat.runtime.grpc.identity import new_authority, read_roster

runner = CliRunner()
TABLE = "id,age\n" + "".join(f"c{i},{i % 7}\n" for i in range(150))


def run(*arguments: object, code: int = 0) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def stdout(*arguments: object, code: int = 0) -> object:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A party with keys, a roster of three, and a table."""
    place = tmp_path / "bank"
    run("party", "init", "bank", "--dir", place, "--data", "bank.csv", "--listen", "127.0.0.1:0")
    run("keys", "new", "bank", "--dir", place / "keys")
    for name in ("shop", "telecom"):
        run("keys", "new", name, "--dir", tmp_path / name)
        run(
            "keys",
            "trust",
            tmp_path / name / f"{name}.crt",
            "--address",
            "127.0.0.1:1",
            "--roster",
            place / "roster.toml",
        )
    run("keys", "trust", place / "keys" / "bank.crt", "--address", "127.0.0.1:2", "--roster", place / "roster.toml")
    (place / "bank.csv").write_text(TABLE)
    return place


def test_keys_are_made_trusted_and_shown(home: Path) -> None:
    roster = read_roster(home / "roster.toml")
    assert roster.names == ("bank", "shop", "telecom")
    shown = stdout("keys", "show", "--roster", home / "roster.toml", "--json")
    assert isinstance(shown, dict) and shown["hash"] == roster.hash
    assert shown["parties"]["shop"]["address"] == "127.0.0.1:1"
    again = stdout("keys", "trust", home / "keys" / "bank.crt", "--roster", home / "roster.toml", "--json")
    assert isinstance(again, dict) and again["hash"] == roster.hash, "trusting again keeps address and hash"
    assert read_roster(home / "roster.toml").member("bank").address == "127.0.0.1:2"


def test_a_key_is_not_overwritten_and_a_bad_name_is_refused(home: Path) -> None:
    assert "never overwritten" in run("keys", "new", "bank", "--dir", home / "keys", code=2)
    assert "cannot be a party's name" in run("keys", "new", "Bank", "--dir", home / "keys", code=2)
    assert "exists already" in run("party", "init", "bank", "--dir", home, code=2)


def test_requests_and_authorities(tmp_path: Path) -> None:
    run("keys", "new", "lab", "--dir", tmp_path, "--request")
    assert b"CERTIFICATE REQUEST" in (tmp_path / "lab.csr").read_bytes()
    (tmp_path / "house.crt").write_bytes(new_authority("house").certificate_pem)
    run("keys", "trust", tmp_path / "house.crt", "--authority", "--roster", tmp_path / "roster.toml")
    assert len(read_roster(tmp_path / "roster.toml").authorities_pem) == 1
    (tmp_path / "junk.crt").write_text("junk")
    assert "not a certificate" in run("keys", "trust", tmp_path / "junk.crt", "--roster", tmp_path / "r.toml", code=2)
    assert "found nothing" in run("keys", "trust", tmp_path / "no.crt", code=2)


def test_check_is_content_with_a_good_home(home: Path) -> None:
    findings = stdout("party", "check", "--home", home, "--no-reach", "--json")
    assert isinstance(findings, list)
    assert {finding["state"] for finding in findings} <= {"ok", "warning"}
    assert any("150 rows, 1 column, without labels" in finding["detail"] for finding in findings)


def test_check_names_what_is_wrong_and_how_to_mend_it(home: Path) -> None:
    (home / "keys" / "bank.key").chmod(0o644)
    assert "chmod 600" in run("party", "check", "--home", home, "--no-reach", code=2)
    (home / "keys" / "bank.key").chmod(0o600)
    (home / "bank.csv").write_text("id,age\nc1,1\nc2,x\n")
    assert "expected a number" in run("party", "check", "--home", home, "--no-reach", code=2)
    (home / "bank.csv").write_text("id,age\nc1,1\nc1,2\n")
    told = run("party", "check", "--home", home, "--no-reach", code=2)
    assert "1 row with an id seen before" in told and "rows_least = 100" in told


def test_check_says_who_cannot_be_reached(home: Path) -> None:
    told = run("party", "check", "--home", home, code=3)
    assert "'shop' cannot be reached at 127.0.0.1:1" in told and "offbeat party serve" in told


def test_requests_without_a_daemon_say_so(home: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("name = 'credit'\nparties = ['bank', 'shop', 'telecom']\nlabels_at = ['bank']\n")
    assert "has not been started" in run("job", "submit", job, "--home", home, code=3)
    assert "cannot be reached" in run("job", "list", "--home", home, "--party", "127.0.0.1:1", code=3)
    job.write_text("name = 'credit'\nparties = ['bank']\nlabels_at = ['bank']\n")
    assert "at least two" in run("job", "submit", job, "--home", home, code=2)
    assert "There is no job file" in run("job", "submit", tmp_path / "none.toml", "--home", home, code=2)
    assert "expected rows to score" in run("predict", "RUN", "--home", home, code=2)
    folder = home / "runs" / "RUN"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    assert "has no run RUN" in run("replay", folder, "--data", job, code=2)
    assert "are for an organisation's own run" in run("replay", tmp_path, "--key", job, code=2)


@pytest.mark.parametrize("ids", ["c001", b"c001", {"c001": 1}, None, 7, [None], ["c1", 1.5], [["c1"]], [True]])
def test_what_is_no_list_of_ids_is_refused(ids):
    with pytest.raises(BadInput, match="expected a list of ids"):
        id_texts(ids)


def test_ids_have_one_spelling():
    assert id_texts(np.array([7, 8])) == id_texts([7.0, " 8"]) == id_texts((b"7", "8")) == ["7", "8"]


def test_the_certificate_of_a_run_without_a_gap_is_its_gradient_norm():
    progress = {"passes": 2.0, "objective": 0.5, "gap": float("nan"), "gradient_norm": 1e-3}
    line = status_line(RunStatus("r", "j", "bank", "training", progress=progress))
    assert "certificate 0.001" in line and "nan" not in line


@pytest.mark.parametrize("command", ["status", "watch", "list"])
def test_a_number_that_is_not_finite_is_null_in_json(monkeypatch, command):
    progress = {"passes": 2.0, "gap": float("nan"), "objective": float("inf")}
    status = RunStatus("r", "j", "bank", "done", progress=progress)
    monkeypatch.setattr(orgs, "ask", lambda *a, **k: SimpleNamespace(runs=[status]) if command == "list" else status)
    result = runner.invoke(app, ["job", command, *([] if command == "list" else ["r"]), "--json"])
    assert result.exit_code == 0, result.output
    assert "NaN" not in result.stdout and "Infinity" not in result.stdout
    told = json.loads(result.stdout)
    assert (told[0] if command == "list" else told)["progress"] == {"passes": 2.0, "gap": None, "objective": None}


SIGNALLED = """
import os, signal
from offbeat.cli.orgs import when_asked_to_end

done, hurry = when_asked_to_end()
with done._cond:  # as in the middle of done.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert sum(range(1000)) and not done._flag
assert done.wait(60) and not hurry.is_set()
os.kill(os.getpid(), signal.SIGINT)
assert hurry.wait(60)
"""


def test_a_signal_is_heeded_at_any_moment():
    """Before: one that came as the daemon began to wait was lost, and one that came later waited for itself."""
    ended = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(("verb", "accepts"), [("accept", True), ("refuse", False)])
def test_a_decision_reaches_the_daemon_as_it_was_typed(
    monkeypatch: pytest.MonkeyPatch, verb: str, accepts: bool
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(orgs, "ask", lambda home, party, request: asked.append(request))
    told = run("job", verb, "run-1", "--by", "Ada", "--reason", "fine")
    assert asked == [Decide("run-1", accepts, "Ada", "fine")]
    assert f"run-1 is {verb}" in told
