"""Changed files of a party: whoever asks after a change is answered by what holds since."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from offbeat.orgs.party_config import Home, example, read_home
from offbeat.orgs.reloading import Reloading
from offbeat.runtime.grpc.identity import Member, PinnedRoster, new_identity, write_private, write_roster


@pytest.fixture
def home(tmp_path: Path) -> Home:
    identity = new_identity("bank")
    write_private(tmp_path / "keys" / "bank.key", identity.key_pem)
    (tmp_path / "keys" / "bank.crt").write_bytes(identity.certificate_pem)
    write_roster(tmp_path / "roster.toml", PinnedRoster((Member("bank", identity.certificate_pem, ""),)))
    settings(tmp_path, "60.0")
    return read_home(tmp_path)


def settings(folder: Path, passes_most: str) -> None:
    lines = example("bank", data="table.csv", label="bad", jobs=("credit",)).splitlines()
    kept = [f"passes_most = {passes_most}" if line.startswith("passes_most = ") else line for line in lines]
    (folder / "party.toml").write_text("\n".join(kept) + "\n")


def reloading(home: Home) -> Reloading:
    return Reloading(home, home.identity())


def test_whoever_asks_while_another_reads_the_file_waits_for_what_it_says(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, read = reloading(home), Home.read_again
    reads, may_go_on = threading.Event(), threading.Event()

    def slow(self: Home) -> None:
        reads.set()
        assert may_go_on.wait(60)
        read(self)

    monkeypatch.setattr(Home, "read_again", slow)
    settings(home.folder, "1.0")
    seen: list[float] = []

    def second() -> None:
        files.settings()
        seen.append(home.config.policy.passes_most)

    first, other = threading.Thread(target=files.settings), threading.Thread(target=second)
    first.start()
    assert reads.wait(60)
    other.start()
    other.join(0.2)  # it either waits here or has gone on with what held before
    may_go_on.set()
    first.join(60)
    other.join(60)
    assert seen == [1.0]


def test_two_changes_within_one_tick_of_the_clock_are_both_seen(home: Home) -> None:
    files = reloading(home)
    at = home.file.stat().st_mtime_ns
    settings(home.folder, "1.0")
    os.utime(home.file, ns=(at, at))
    files.settings()
    assert home.config.policy.passes_most == 1.0


def test_a_file_that_is_only_half_written_changes_nothing_and_the_whole_one_is_taken(home: Home) -> None:
    files, whole = reloading(home), home.file.read_text()
    home.file.write_text(whole[: len(whole) // 2] + "[")
    files.settings()
    assert home.config.policy.passes_most == 60.0
    settings(home.folder, "2.0")
    files.settings()
    assert home.config.policy.passes_most == 2.0


def test_a_changed_roster_is_handed_on_once(home: Home) -> None:
    files = reloading(home)
    taken: list[PinnedRoster] = []
    take: Callable[[PinnedRoster], None] = taken.append
    files.roster(take)
    assert taken == []
    shop = Member("shop", new_identity("shop").certificate_pem, "")
    write_roster(home.roster_file, PinnedRoster((*home.roster().members, shop)))
    files.roster(take)
    files.roster(take)
    assert [roster.names for roster in taken] == [("bank", "shop")]
