"""The files for deployment: what they call exists, and what can be checked here is in order."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from offbeat.cli import app
from offbeat.runtime.grpc.identity import new_identity

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
COMPOSE = sorted(DEPLOY.glob("compose.*.yaml"))


def options_of(words):
    """The options that a command of ours knows."""
    here, context = typer.main.get_command(app), typer.Context(typer.main.get_command(app))
    while words and hasattr(here, "get_command") and (found := here.get_command(context, words[0])) is not None:
        here, words = found, words[1:]
    assert not hasattr(here, "get_command"), words
    return {name for parameter in here.params for name in parameter.opts}


def calls_of_the_entry_script():
    return re.findall(r"^\s*exec offbeat (.+)$", (DEPLOY / "entry.sh").read_text(), re.MULTILINE)


def test_the_entry_script_calls_commands_and_options_that_exist():
    calls = calls_of_the_entry_script()
    assert len(calls) == 3
    for call in calls:
        words = call.split()
        assert {word for word in words if word.startswith("--")} <= options_of(words)
    subprocess.run(["sh", "-n", DEPLOY / "entry.sh"], check=True)


@pytest.fixture
def entry(tmp_path):
    """The script with an `offbeat` that only says how it was called."""
    fake = tmp_path / "bin" / "offbeat"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)

    def call(*words, **settings):
        environment = {"PATH": f"{fake.parent}:/usr/bin:/bin", "OFFBEAT_HOME": str(tmp_path), **settings}
        script = ["sh", str(DEPLOY / "entry.sh"), *words]
        return subprocess.run(script, capture_output=True, text=True, env=environment, check=False)

    return call


def test_the_entry_script_says_what_is_wrong_and_otherwise_becomes_the_command(entry, tmp_path):
    missing = entry("daemon")
    assert missing.returncode == 2 and "no" in missing.stderr and "party.toml" in missing.stderr
    (tmp_path / "party.toml").write_text("")
    assert entry().stdout == f"party serve --home {tmp_path} --log-json --drain 60\n"
    assert entry("daemon", OFFBEAT_DRAIN_S="5").stdout.endswith("--drain 5\n")
    scored = entry("score", "credit-1", OFFBEAT_HOST="0.0.0.0", OFFBEAT_PORT="80")
    assert scored.stdout == f"serve credit-1 --home {tmp_path} --host 0.0.0.0 --port 80 --log-json\n"
    assert entry("check").stdout == f"party check --home {tmp_path}\n"
    assert entry("score").returncode == 2 and entry("rum").returncode == 2
    assert entry("score", "").returncode == 2  # what compose makes of a name that nobody gave


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_what_systemd_takes(path, tmp_path):
    text = path.read_text()
    assert "User=offbeat" in text and "entry.sh" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copies = {unit.name.replace("@.", "@credit-1."): unit.read_text() for unit in UNITS}
    for name, content in copies.items():
        (tmp_path / name).write_text(content)
    name = path.name.replace("@.", "@credit-1.")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in checked.stderr.splitlines() if str(tmp_path) in line or name in line]
    known = ("is not executable", "Failed to create", "not-found")  # this machine runs no systemd
    assert [line for line in complaints if not any(word in line for word in known)] == []


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_files_start_roles_that_exist_without_more_rights_than_they_need(path):
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load(path.read_text())["services"]
    ours = {name: service for name, service in services.items() if service.get("image") == "offbeat"}
    assert len(ours) >= 3
    for service in ours.values():
        assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
        command = service["command"]
        if service.get("entrypoint") == ["offbeat"]:
            assert {word.partition("=")[0] for word in command if word.startswith("--")} <= options_of(command)
        else:
            assert command[0] in ("daemon", "score")


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_what_starts_needs_no_setting_of_what_does_not(path):
    """Compose fills in every service, also one whose profile is not asked for."""
    assert not re.findall(r"\$\{\w+:?\?", path.read_text())


def test_the_image_is_small_and_runs_as_nobody_special():
    text = (DEPLOY / "Dockerfile").read_text()
    assert text.count("FROM python:3.12-slim") == 2
    assert "USER 10001:10001" in text and "torch" not in text
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    for name in (word for line in copied for word in line.split()):
        assert (REPOSITORY / name).exists(), name
    if os.path.exists("/var/run/docker.sock"):
        subprocess.run(["docker", "build", "--check", "-f", DEPLOY / "Dockerfile", REPOSITORY], check=True)


def test_the_proxy_passes_peers_through_and_keeps_metrics_inside():
    text = (DEPLOY / "nginx.conf").read_text()
    assert text.count("{") == text.count("}")
    assert "ssl_preread on;" in text and "location = /metrics { return 404; }" in text
    assert "X-Forwarded-For" in text
    statements = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert [line for line in statements if line[-1] not in "{};"] == []


def test_the_proxys_configuration_is_what_nginx_takes(tmp_path):
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    modules = Path("/etc/nginx/modules-enabled")
    if nginx is None or not list(modules.glob("*stream*")):
        pytest.skip("nginx with its module stream is not installed")
    identity = new_identity("scores")
    (tmp_path / "scores.crt").write_bytes(identity.certificate_pem)
    (tmp_path / "scores.key").write_bytes(identity.key_pem)
    text = (DEPLOY / "nginx.conf").read_text().replace("/etc/nginx/scores", f"{tmp_path}/scores")
    (tmp_path / "nginx.conf").write_text(f"include {modules}/*.conf;\npid {tmp_path}/nginx.pid;\n{text}")
    checked = subprocess.run(
        [nginx, "-t", "-c", str(tmp_path / "nginx.conf"), "-g", f"error_log {tmp_path}/error.log;"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
