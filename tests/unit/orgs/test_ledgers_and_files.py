"""Ledgers against a plain count, files after a power cut, and what leaves when something fails."""

import logging
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadData, BadInput, BadJob, OffbeatError, PeerFailed, Refused, UnexpectedEvent
from offbeat.orgs import row_ledger
from offbeat.orgs.discreet import Discreet, Withheld, for_peers, printable
from offbeat.orgs.durable import NewLines, append_line, locked, read_lines, read_secret, write_durably, write_secret
from offbeat.orgs.kept_runs import RunNames, check_run_name
from offbeat.orgs.party_config import example, read_home
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.tables import OwnTables
from offbeat.party.contract import Compute, Started

USES = st.lists(
    st.tuples(
        st.integers(0, 6),  # the use's name: some come twice
        st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), max_size=4),
        st.sampled_from(["same", "reopened", "folded"]),
    ),
    max_size=12,
)


@given(USES)
@settings(max_examples=40, deadline=None)
def test_the_ledger_counts_as_a_plain_counter_does(uses: list[tuple[int, dict[str, int], str]]) -> None:
    """However it is reopened or folded, and whichever of two processes writes."""
    kept = row_ledger.FOLD_BYTES
    row_ledger.FOLD_BYTES = 1
    try:
        with tempfile.TemporaryDirectory() as place:
            first, second = RowLedger(Path(place)), RowLedger(Path(place))
            plain: Counter[str] = Counter()
            seen: set[int] = set()
            for number, (name, rows, then) in enumerate(uses):
                ledger = (first, second)[number % 2]
                counts = np.array(list(rows.values()), np.int64)
                ledger.use(list(rows), counts, what=f"use {name}", asker="bank", who="shop")
                plain.update(rows if name not in seen else {})
                seen.add(name)
                if then == "reopened":
                    first, second = RowLedger(Path(place)), first
                elif then == "folded":
                    first, second = RowLedger(Path(place)), RowLedger(Path(place))
                    first.fold()
                for one in (first, second):
                    assert one.counts(list("abcdef")).tolist() == [plain[row] for row in "abcdef"]
            assert len(first.history()) == len(seen)
    finally:
        row_ledger.FOLD_BYTES = kept


@pytest.mark.parametrize("once", [True, False])
def test_a_kill_between_the_two_files_leaves_no_use_without_its_line(once: bool, tmp_path: Path) -> None:
    ids, counts = ["a", "b"], np.array([1, 2])
    ledger, history = RowLedger(tmp_path), tmp_path / "history.jsonl"
    for what in ("first", "newest" if once else "first"):
        ledger.use(ids, counts, what=what, asker="bank", who="shop", once=once)
    lines = history.read_bytes().splitlines(keepends=True)
    history.write_bytes(b"".join(lines[:-1]))
    again = RowLedger(tmp_path)
    assert len(again.history()) == 1 and again.counts(ids).tolist() == [2, 4]
    again.use(ids, counts, what="later", asker="telecom", who="shop")
    RowLedger(tmp_path).use(ids, counts, what="last", asker="bank", who="shop")
    told = [(line["what"], line["asker"], line["sum"]) for line in again.history()]
    newest = "newest" if once else "first"
    assert told == [("first", "bank", 3), (newest, "bank", 3), ("later", "telecom", 3), ("last", "bank", 3)]
    assert again.counts(ids).tolist() == [4, 8]


def test_questions_without_end_leave_a_ledger_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scoring session asks for years, and its daemon is not started anew: files and memory hold what rows were used,
    not each question; who reads along, here and in another process, misses nothing and counts nothing twice."""
    monkeypatch.setattr(row_ledger, "FOLD_BYTES", 20_000)
    ledger, other, tail = RowLedger(tmp_path), RowLedger(tmp_path), NewLines(tmp_path / "history.jsonl")
    told, plain = 0, Counter[str]()
    for number in range(2000):
        row = f"c{number % 7}"
        ledger.use([row], np.ones(1, np.int64), what="run/score-a", asker="bank", who="shop", once=False)
        plain[row] += 1
        if number % 13 == 0:
            lines, anew = tail.new()
            told = sum(line["sum"] for line in lines) + (0 if anew else told)
            assert told == number + 1
    for one in (ledger, other, RowLedger(tmp_path)):
        assert one.counts(list(plain)).tolist() == list(plain.values())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100_000
    assert len(ledger._known.noted) == 0
    history = ledger.history()
    assert sum(line["sum"] for line in history) == 2000 and sum(line.get("times", 1) for line in history) == 2000
    with pytest.raises(Refused, match="at most 286 sums"):
        ledger.use(["c0"], np.ones(1, np.int64), what="x", asker="bank", who="shop", cap=286)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["one", "two", "three"]),  # a training
        st.one_of(st.integers(1, 14), st.just("over")),
        st.sampled_from(["same", "reopened", "folded"]),
    ),
    max_size=14,
)
ROWS_OF = {"one": ["a", "b"], "two": ["b", "c"], "three": ["a", "b", "c"]}


@given(STEPS, st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_no_training_is_granted_what_another_has(steps: list[tuple[str, int | str, str]], cap: int) -> None:
    """Whatever is killed, reopened or folded: granted levels and true counts of all together stay within the cap, and a
    question once answered is answered the same way again."""
    kept = row_ledger.FOLD_BYTES
    row_ledger.FOLD_BYTES = 1
    try:
        with tempfile.TemporaryDirectory() as place:
            ledger, levels, over, refused = RowLedger(Path(place)), dict.fromkeys(ROWS_OF, 0), {}, {}
            for what, step, then in steps:
                if step == "over" and levels[what] and what not in over:
                    over[what] = levels[what] // 2
                    counts = np.full(len(ROWS_OF[what]), over[what])
                    ledger.settle(counts, what=what, asker="bank")
                elif isinstance(step, int) and what not in over:
                    level = ledger.reserve(ROWS_OF[what], step, what=what, asker="bank", cap=cap)
                    assert level == 0 or (level >= step and what not in refused) or step < refused.get(what, step + 1)
                    levels[what] = max(level, levels[what])
                    if not level:
                        refused[what] = min(step, refused.get(what, step))
                if then != "same":
                    ledger = RowLedger(Path(place))
                if then == "folded":
                    ledger.fold()
                each = Counter(dict.fromkeys("abc", 0))
                for name, level in levels.items():
                    each.update(dict.fromkeys(ROWS_OF[name], over.get(name, level)))
                assert dict(zip("abc", ledger.counts(list("abc")).tolist(), strict=True)) == dict(each)
                assert not cap or max(each.values()) <= cap
                for name, level in refused.items():
                    assert ledger.granted(name)(level) == 0 and (level == 1 or ledger.granted(name)(level - 1))
    finally:
        row_ledger.FOLD_BYTES = kept


@given(st.lists(st.integers(), min_size=1, max_size=5), st.integers(0, 40))
@settings(deadline=None)
def test_a_line_that_a_power_cut_tore_costs_no_other(values: list[int], lost: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "lines.jsonl"
        for value in values:
            append_line(path, {"value": value})
        last = len(path.read_bytes().splitlines()[-1])
        cut = min(lost, last)  # of the last line, without its end
        path.write_bytes(path.read_bytes()[: -cut - 1] if cut else path.read_bytes())
        append_line(path, {"value": "after"})
        told = [line["value"] for line in read_lines(path)[0]]
        assert told == [*(values[:-1] if cut else values), "after"]


def test_a_line_that_was_damaged_later_is_named_and_not_passed_over(tmp_path: Path) -> None:
    """What half a line would have said was never acted on; a whole one was, and may be a charge to a budget."""
    path = tmp_path / "privacy.jsonl"
    for value in range(3):
        append_line(path, {"value": value})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b":", b"\x15") + lines[2])
    with pytest.raises(BadData, match=r"line 2 of .*privacy\.jsonl is damaged"):
        read_lines(path)
    path.write_bytes(lines[0] + bytes(200))  # what some file systems leave of a line that was not forced to the disk
    assert [line["value"] for line in read_lines(path)[0]] == [0]


def test_files_are_the_owners_and_whole(tmp_path: Path) -> None:
    write_durably(tmp_path / "a" / "file", b"one")
    write_durably(tmp_path / "a" / "file", b"two")
    assert (tmp_path / "a" / "file").read_bytes() == b"two" and (tmp_path / "a" / "file").stat().st_mode & 0o77 == 0
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]
    assert read_lines(tmp_path / "none") == ([], 0)
    with locked(tmp_path / "lock", "taken"), pytest.raises(BadInput, match="taken"), locked(tmp_path / "lock", "taken"):
        pass


def test_a_damaged_secret_is_named_and_not_used(tmp_path: Path) -> None:
    path, secret = tmp_path / "salt", b"s" * 32
    write_secret(path, secret)
    assert read_secret(path) == secret
    whole = path.read_bytes()
    for damaged in (b"t" + whole[1:], whole[:-1], whole[:31], b""):
        path.write_bytes(damaged)
        with pytest.raises(BadData, match="Restore the file from a backup"):
            read_secret(path)
    path.write_bytes(secret)  # of an earlier version
    assert read_secret(path) == secret


def test_a_name_is_burnt_for_ever(tmp_path: Path) -> None:
    RunNames(tmp_path).burn("j-1", "bank", "shop")
    again = RunNames(tmp_path)
    with pytest.raises(Refused, match="'shop' has had a run 'j-1' before"):
        again.burn("j-1", "telecom", "shop")
    again.burn("j-2", "bank", "shop")
    for name in ("k-1", "j", "j-A", "j-" + "x" * 130, "j-\n"):
        with pytest.raises(BadJob, match="'bank' named a run"):
            check_run_name(name, "j", "bank")


# -- what leaves when something fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (BadData("cell 'seventeen' of t.csv"), "BadData"),
        (ValueError("could not convert 'seventeen'"), "OffbeatError"),
        (OffbeatError("failed: ValueError('seventeen')"), "OffbeatError"),
    ],
)
def test_an_error_with_data_leaves_as_a_number(problem: Exception, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        told, told_kind = for_peers(problem, "shop", "aligning")
    assert told_kind == kind and "seventeen" not in told and told.startswith("'shop' failed while aligning")
    (record,) = caplog.records
    assert told[-8:] in record.getMessage() and "seventeen" in record.getMessage()
    assert bool(record.exc_info) == (kind == "OffbeatError")


@pytest.mark.parametrize("problem", [Refused("by policy"), BadJob("your job"), PeerFailed("'x' is gone")])
def test_what_is_written_for_peers_leaves_as_it_is(problem: OffbeatError) -> None:
    assert for_peers(problem, "shop", "aligning") == (str(problem), type(problem).__name__)


class Failing:
    name = "shop"

    def __init__(self, problem: Exception, at_once: bool) -> None:
        self.problem, self.at_once = problem, at_once

    def handle(self, event: object) -> list[object]:
        if self.at_once:
            raise self.problem
        return [Compute(1, job=self.fail)]

    def fail(self) -> None:
        raise self.problem

    def snapshot(self) -> dict[str, int]:
        return {"a": 1}

    def restore(self, state: object) -> None:
        self.restored = state


@pytest.mark.parametrize("at_once", [True, False])
def test_a_party_behind_discretion_fails_without_data(at_once: bool) -> None:
    def failed(problem: Exception) -> Exception:
        party = Discreet(Failing(problem, at_once), "training")  # type: ignore[arg-type]
        with pytest.raises(OffbeatError) as raised:
            for effect in party.handle(Started()):
                assert isinstance(effect, Compute) and effect.job is not None
                effect.job()
        return raised.value

    withheld = failed(KeyError("seventeen"))
    assert isinstance(withheld, Withheld) and "seventeen" not in str(withheld) and "seventeen" in str(withheld.cause)
    assert str(failed(UnexpectedEvent("'x' out of turn"))) == "'x' out of turn"
    party = Discreet(Failing(KeyError("x"), at_once), "training")  # type: ignore[arg-type]
    party.restore(party.snapshot())
    assert party.inner.restored == {"a": 1}  # type: ignore[attr-defined]


def test_a_peers_words_do_not_move_the_cursor() -> None:
    assert printable("a\x1b[2J\n\u202eb") == "a?[2J??b" and len(printable("x" * 5000)) == 1000


# -- the table --------------------------------------------------------------------------------------------------------


def test_a_table_is_read_once_for_each_version_and_known_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "party.toml").write_text(example("bank", data="t.csv"))
    (tmp_path / "t.csv").write_text("id,x\na,1\nb,2\n")
    tables = OwnTables(read_home(tmp_path))
    first = tables.current()
    assert tables.current() is first and first.rows_of(list(first.column(b"s").tokens), b"s").tolist() in (
        [0, 1],
        [1, 0],
    )
    assert first.rows_of([b"x" * 16], b"s").tolist() == [-1]
    assert tables.as_accepted(first.digest, "run") is first
    (tmp_path / "t.csv").write_text("id,x\nb,2\na,1\n")
    assert tables.current() is not first
    with pytest.raises(
        Refused, match="'bank' has another table, or other settings for it, than when it accepted run 'r'"
    ):
        tables.as_accepted(first.digest, "r")
    (tmp_path / "t.csv").write_text("id,x\na,1\nb,2\n")
    assert tables.as_accepted(first.digest, "r").digest == first.digest
    (tmp_path / "t.csv").unlink()
    with pytest.raises(BadData, match="There is no file"):
        tables.current()
