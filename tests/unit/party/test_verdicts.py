"""One table says of every verdict what it means."""

import re
from pathlib import Path

import pytest

from offbeat.party.verdicts import VERDICTS, ended_well, exit_code_of, verdict_named

SOURCE = Path(__file__).parents[3] / "src" / "offbeat"
GIVEN = re.compile(r"(?:Finish|\b_end|self\.end|alarm)\(\s*\"([a-z-]+)\"")
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "command-line.md"


def test_every_verdict_that_a_party_gives_is_in_the_table():
    given = {
        word
        for folder in ("party", "algorithms", "runtime", "orgs")
        for path in (SOURCE / folder).rglob("*.py")
        for word in re.findall(
            r"\b(?:Finish|_end|end|_alarm|alarm)\(\s*\"([a-z-]+)\"", path.read_text(encoding="utf-8")
        )
    }
    assert {"target", "passes", "budget", "peer-lost", "diverged", "row-cap"} <= given
    assert given <= set(VERDICTS)


@pytest.mark.parametrize("word", VERDICTS)
def test_the_page_of_commands_lists_it(word):
    assert f"`{word}`" in PAGE.read_text(encoding="utf-8")


def test_what_ends_well_and_what_a_shell_is_told():
    assert [word for word in VERDICTS if ended_well(word)] == [
        "target", "passes", "time", "budget", "aligned", "predicted",
    ]  # fmt: skip
    assert [exit_code_of(word) for word in ("target", "stopped", "diverged", "stalled", "budget")] == [0, 1, 2, 3, 4]


def test_an_unknown_word_stands_for_itself():
    assert verdict_named("tired") == (False, 1, "Tired", "caution")
