"""What a daemon keeps of its refusals: bounded, told once, there after a restart."""

import errno
from pathlib import Path

import pytest

from offbeat.errors import BadInput, BadJob, NotYet, Refused
from offbeat.orgs import standing
from offbeat.orgs.call_limits import REFUSALS_KEPT, CallLimits
from offbeat.orgs.standing import patiently


def nobody(*told: str) -> None:
    """Hears of refusals, and keeps none."""


def test_refusals_are_kept_by_member_and_told_once(tmp_path: Path) -> None:
    path = tmp_path / "private" / "refusals.json"
    noted: list[tuple[str, str]] = []
    limits = CallLimits("shop", {}, path, lambda *told: noted.append(told))
    for _ in range(3):
        limits.note_refusal("bank", "Propose", Refused("its policy\nallows nobody"))
    limits.note_refusal("shop", "Submit", BadJob("no such loss"))
    limits.note_refusal("shop", "Status", BadInput("knows no run"))  # the owner's own slip
    told = [
        (one.peer, one.request, one.reason, one.times) for one in CallLimits("shop", {}, path, nobody).last_refusals()
    ]
    assert told == [("bank", "Propose", "its policy?allows nobody", 3), ("shop", "Submit", "no such loss", 1)]
    assert noted == [("bank", "its policy?allows nobody")] * 3  # proposals of others, and nothing of the owner's own


def test_one_member_fills_neither_the_list_nor_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "refusals.json"
    limits = CallLimits("shop", {}, path, nobody)
    limits.note_refusal("telecom", "Propose", Refused("once"))
    for number in range(300):
        limits.note_refusal("bank", "Propose", Refused(f"{number} " + "x" * 5000))
    kept = limits.last_refusals()
    assert [one.peer for one in kept].count("bank") == REFUSALS_KEPT and "telecom" in {one.peer for one in kept}
    assert kept[-1].reason.startswith("299 ") and path.stat().st_size < 30_000
    path.write_bytes(b"{")
    assert CallLimits("shop", {}, path, nobody).last_refusals() == []


def test_a_refusal_that_cannot_be_written_down_is_one_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*told: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    limits = CallLimits("shop", {}, tmp_path / "refusals.json", full)
    limits.note_refusal("bank", "Propose", Refused("too little room on its disk"))
    assert limits.last_refusals()[0].reason == "too little room on its disk"
    assert "could not be written down" in caplog.text


def test_who_asks_a_little_early_asks_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "ASK_AGAIN_S", 0.0)
    asked = iter([NotYet("1"), NotYet("2"), "scores"])

    def ask() -> object:
        answer = next(asked)
        if isinstance(answer, NotYet):
            raise answer
        return answer

    assert patiently(ask) == "scores"
    monkeypatch.setattr(standing, "ENDS_WITHIN_S", -1.0)
    asked = iter([NotYet("never")])
    with pytest.raises(NotYet, match="never"):
        patiently(ask)
