"""What was decided, in lines that the party's key has signed: no line can be changed or taken out unnoticed."""

import json
from pathlib import Path

import pytest

from offbeat.orgs.durable import append_line, read_lines
from offbeat.orgs.history import add_signed, misfits
from offbeat.runtime.grpc.identity import Identity, Member, new_identity


@pytest.fixture(scope="module")
def shop() -> Identity:
    return new_identity("shop")


def written(path: Path, shop: Identity) -> list[dict[str, object]]:
    append_line(path, {"by": "of a version that did not sign"})
    for number in range(4):
        add_signed(path, shop, by="Ada", accepted=True, run=f"credit-{number}")
    return read_lines(path)[0]


def rewrite(path: Path, lines: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_was_written_fits_and_is_dated(tmp_path: Path, shop: Identity) -> None:
    lines = written(tmp_path / "decisions.jsonl", shop)
    assert [line.get("run") for line in lines] == [None, "credit-0", "credit-1", "credit-2", "credit-3"]
    assert all("at" in line for line in lines[1:])
    assert misfits(tmp_path / "decisions.jsonl", Member("shop", shop.certificate_pem)) == []
    assert misfits(tmp_path / "none.jsonl", Member("shop", shop.certificate_pem)) == []


def test_a_line_that_was_changed_added_or_taken_out_is_named(tmp_path: Path, shop: Identity) -> None:
    path, member = tmp_path / "decisions.jsonl", Member("shop", shop.certificate_pem)
    lines = written(path, shop)
    rewrite(path, [*lines[:2], {**lines[2], "accepted": False}, *lines[3:]])
    assert misfits(path, member) == [3]
    rewrite(path, [*lines[:2], *lines[3:]])
    assert misfits(path, member) == [3]
    rewrite(path, [*lines[:3], {"by": "Eve", "run": "credit-9"}, *lines[3:]])
    assert misfits(path, member) == [4, 5]
    rewrite(path, [*lines[:4], {**lines[4], "signature": "no signature"}])
    assert misfits(path, member) == [5]
    rewrite(path, lines)
    assert misfits(path, Member("shop", new_identity("shop").certificate_pem)) == [2, 3, 4, 5]
