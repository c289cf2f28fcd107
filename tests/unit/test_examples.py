"""Every example runs, says something, and ends well."""

import runpy
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
NEEDS = {"a_user_module.py": ("torch", "deep"), "bring_your_own_network.py": ("torch", "deep")}
"""The module that an example cannot do without, and the extra that brings it."""


def test_there_are_examples_and_each_says_how_to_run_it():
    assert EXAMPLES
    silent = [path.name for path in EXAMPLES if f"python examples/{path.name}" not in path.read_text(encoding="utf-8")]
    assert silent == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path, monkeypatch, capsys):
    """In this process: most of an example's time as a process of its own goes into imports."""
    module, extra = NEEDS.get(path.name, ("offbeat", ""))
    if find_spec(module) is None:
        pytest.skip(f"{path.name} needs the extra {extra!r}: {module} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.strip() and "nan" not in printed
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


def test_an_example_runs_as_its_first_lines_say():
    done = subprocess.run([sys.executable, "examples/secure_sum_by_hand.py"], cwd=REPOSITORY, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.strip()
