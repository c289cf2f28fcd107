"""Every example runs, says something, and ends well."""

import os
import subprocess
import sys
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
def test_example_runs(path, tmp_path):
    module, extra = NEEDS.get(path.name, ("offbeat", ""))
    if find_spec(module) is None:
        pytest.skip(f"{path.name} needs the extra {extra!r}: {module} is not installed")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"}
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "nan" not in done.stdout
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"
