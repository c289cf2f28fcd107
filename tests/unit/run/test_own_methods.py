"""docs/how-to/add-an-algorithm.md, walked: its files are written as it says, and `offbeat run` trains with them."""

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import offbeat
from offbeat.cli import app
from offbeat.jobs import elsewhere

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-an-algorithm.md"
LINES_MOST = 90


def files_of(page):
    """What a reader writes: every block after 'to `NAME`:'."""
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r"to `([\w.]+)`:\n\n```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """A folder with the page's files, as the working folder; nothing of it is left behind."""
    folder = tmp_path_factory.mktemp("walked")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(sys, "path", list(sys.path))
        for name, text in files_of(PAGE).items():
            (folder / name).write_text(text, encoding="utf-8")
        yield folder
    for name in ("telling", "trimmed"):
        sys.modules.pop(name, None)


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def trained(job, runtime):
    return json.loads(call("run", job, "--runtime", runtime, "--out", f"{job}-{runtime}", "--json"))


def test_the_page_has_two_methods_of_a_page_each():
    files = files_of(PAGE)
    assert set(files) == {"telling.py", "telling.toml", "trimmed.py", "trimmed.toml"}
    assert max(text.count("\n") for text in files.values()) < LINES_MOST


@pytest.mark.parametrize("runtime", ["simulator", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_the_linear_method_is_certified_near_the_optimum(walked, runtime):
    told = trained("telling.toml", runtime)
    assert (told["algorithm"], told["runtime"], told["verdict"]) == ("telling:METHOD", runtime, "target")
    assert told["certificate"]["duality_gap"] <= 1e-6
    assert 0.0 <= told["suboptimality"] <= 1e-6 + 1e-9
    assert {row["message"] for row in told["reveals"]} >= {"Told", "ShareGiven"}


@pytest.mark.parametrize("runtime", ["simulator", "threads"])
def test_the_horizontal_rule_learns(walked, runtime):
    told = trained("trimmed.toml", runtime)
    assert (told["algorithm"], told["verdict"]) == ("trimmed:METHOD", "passes")
    assert told["metrics"]["test_accuracy"] >= 0.8


def test_a_run_folder_is_read_without_its_code_and_done_again_only_by_who_knows_it(walked, monkeypatch):
    run = walked / "telling.toml-simulator"
    if not run.exists():
        trained("telling.toml", "simulator")
    imported = []
    monkeypatch.setattr(elsewhere, "import_module", imported.append)
    assert "telling:METHOD" in call("report", run)
    assert "telling:METHOD" in call("compare", run, run)
    assert set(offbeat.load(run).names) == {"bank", "shop", "telecom"}
    for command in ("audit", "replay"):
        refused = CliRunner().invoke(app, [command, str(run)])
        assert refused.exit_code == 2
        assert "must be imported and run here. If you know it, say so: --method telling:METHOD" in refused.stderr
    assert imported == []
    monkeypatch.undo()
    monkeypatch.chdir(walked)
    assert json.loads(call("replay", run, "--method", "telling:METHOD", "--json"))["same"] is True
    assert "Every mask word was used once" in call("audit", run, "--method", "telling:METHOD")
