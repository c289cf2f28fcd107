"""The notebooks of the site: every code cell runs, in order, in one namespace; none keeps an output."""

import json
import re
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "docs" / "building"))
import notebooks  # noqa: E402 (it lies beside the pages)

NOTEBOOKS = {path.stem: path for path in sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb"))}


def outputs(name):
    return "\n".join(cell.output for cell in notebooks.run(NOTEBOOKS[name]) if cell.kind == "code")


def test_there_are_three_and_each_begins_with_a_title():
    assert sorted(NOTEBOOKS) == ["first-fit", "privacy-budget", "three-organisations"]
    for path in NOTEBOOKS.values():
        first = notebooks.read(path)[0]
        assert first.kind == "markdown" and first.source.startswith("# ")


@pytest.mark.parametrize("path", NOTEBOOKS.values(), ids=lambda path: path.stem)
def test_nothing_of_a_run_is_kept(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_a_first_fit():
    printed = outputs("first-fit")
    assert "426 rows to train on" in printed
    assert "TablePart, sent" in printed
    assert "the same scores: True" in printed


def test_three_organisations():
    printed = outputs("three-organisations")
    assert "target: the certificate" in printed
    assert "Labels are disclosed" in printed


def test_a_privacy_budget():
    printed = outputs("privacy-budget")
    assert "largest epsilon spent none" in printed
    assert "budget: every edge's budget is spent" in printed
    spent = [float(value) for value in re.findall(r"50 uploads, epsilon (\S+) of 4, seeded: True", printed)]
    assert len(spent) == 3 and all(3.9 < value <= 4.0 for value in spent)


def test_a_page_shows_what_cells_print(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {
            "cell_type": "code",
            "source": ["a = 3\n", "print('said')\n", "a + 1"],
            "outputs": [],
            "execution_count": None,
        },
    ]
    (tmp_path / "x.ipynb").write_text(json.dumps({"cells": cells}))
    page = notebooks.page(tmp_path / "x.ipynb")
    assert page.startswith("# Title")
    assert "```text\nsaid\n4\n```" in page
