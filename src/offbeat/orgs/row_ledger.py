"""How often each row of a party has entered a sum, over all runs and predictions, and the cap its owner set.

Every sum that a row enters tells the asker a little about it; enough of them give the row's features away up to a
rotation. The ledger writes a use down before the share leaves, and refuses the one that would pass the cap. It is the
owner's and lies with the keys.

    use        a prediction or a test: so many sums of each row, written down as a whole
    reserve    a training: every row of it may enter `level` sums. The level rises while the training goes on; at its
               end, however it ends, the true counts take its place. A training that is killed stays at its level.

All runs of a daemon share one ledger: what one has reserved is gone for the others.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.holdout import id_text
from offbeat.data.matrix import Flags
from offbeat.errors import BadData, Refused
from offbeat.orgs.durable import NewLines, append_line, locked, now_text, write_lines_anew
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint

Counts = NDArray[np.int64]
FOLD_BYTES = 2**26
LEVEL_STEP = 4  # so many sums are reserved at a time, or a quarter more than before


@dataclass
class _Open:
    """A training under way: its rows, up to which level they are reserved, and the level that was refused."""

    ids: list[str]
    rows: frozenset[str]
    level: int = 0
    refused: int = 0  # 0: none was


@dataclass
class _Known:
    """What the files say."""

    counts: dict[str, int] = field(default_factory=dict)  # of all that is over
    noted: set[str] = field(default_factory=set)  # by name, what is over
    open: dict[str, _Open] = field(default_factory=dict)
    over: dict[str, int] = field(default_factory=dict)  # of what is over: the level that was refused
    most: dict[str, int] = field(default_factory=dict)  # of what is over: how often its most used row was used

    def take(self, line: Mapping[str, Any]) -> None:
        what = line["what"]
        if "counts" in line:
            ids = line["ids"] if "ids" in line else self.open[what].ids
            for text, count in zip(ids, line["counts"], strict=True):
                self.counts[text] = self.counts.get(text, 0) + count
            if line.get("more"):
                return
            self.noted.add(what)
            self.most[what] = max(line["counts"], default=0)
            self.over[what] = self.open.pop(what, _Open([], frozenset())).refused
            return
        if "ids" in line:
            self.open[what] = _Open(line["ids"], frozenset(line["ids"]))
        mine = self.open[what]
        mine.level, mine.refused = line.get("level", mine.level), line.get("refused", mine.refused)

    def of(self, ids: Sequence[str], *, but: str = "") -> Counts:
        """How often each row has been used or may still be; without the training named `but`."""
        found = np.array([self.counts.get(text, 0) for text in ids], dtype=np.int64)
        for what, other in self.open.items():
            if what != but:
                found += np.fromiter((other.level if text in other.rows else 0 for text in ids), np.int64, len(ids))
        return found


class RowLedger:
    """Counts by row id, with history for every run and prediction. One per daemon; thread-safe.

    history.jsonl   who used how many rows, and when
    uses.jsonl      the rows of each use: added to, so that a use costs what it uses
    rows.json       the counts of all uses that were folded into it once uses.jsonl was long

    Then the scores of one session and day become one line of the history.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._uses, self._history = folder / "uses.jsonl", folder / "history.jsonl"
        self._lock = threading.Lock()
        self._known = _Known()
        self._tail = NewLines(self._uses)
        self._opened = False
        self._untold: Mapping[str, Any] | None = None  # the newest use, where the history may lack it
        self._extent = (-1, 0, 0)  # read up to here: so many rows, and the most uses of one

    def counts(self, ids: Sequence[object]) -> Counts:
        """How often each of these rows has entered a sum, or may still in a run that has reserved it."""
        with self._lock:
            self._catch_up()
            return self._known.of(_texts(ids))

    def extent(self) -> tuple[int, int]:
        """How many rows have entered a sum, or may still in a run under way, and how often the most used of them."""
        with self._lock:
            self._catch_up()
            if self._extent[0] != self._tail.read_to:
                known = self._known
                rows = list(known.counts.keys() | {text for one in known.open.values() for text in one.ids})
                self._extent = (self._tail.read_to, len(rows), int(known.of(rows).max(initial=0)))
            return self._extent[1:]

    def use(
        self,
        ids: Sequence[object],
        counts: Counts,
        *,
        what: str,
        asker: str,
        who: str,
        cap: int = 0,
        shared: Callable[[], Flags] | None = None,
        once: bool = True,
    ) -> Flags:
        """Write a use down before it happens, or refuse it by the cap; a second one of the same name adds nothing, or,
        where it is not `once`, is another use.

        `shared`: which of these rows the asker knows to be here. Of the others those at their cap are left out, since a
        refusal would tell that they are here. Which rows were counted is returned."""
        with self._lock, locked(self.folder / "rows.lock"):
            self._ready()
            texts = _texts(ids)
            if once and what in self._known.noted:
                return np.ones(len(texts), np.bool_)
            over = (self._known.of(texts) + counts > cap) if cap else np.zeros(len(texts), np.bool_)
            _refuse_over_cap(cap, over & shared() if shared is not None and over.any() else over, who)
            used = counts[~over]
            kept = [text for text, beyond in zip(texts, over, strict=True) if not beyond]
            more = {} if once else {"more": True}
            self._append({"what": what, "asker": asker, "ids": kept, "counts": used.tolist(), **more})
            self._note(what, asker, used, more)
            if self._tail.read_to > FOLD_BYTES:
                self._fold()
            return ~over

    def reserve(self, ids: Sequence[object], needed: int, *, what: str, asker: str, cap: int = 0) -> int:
        """The level up to which the rows of a training are reserved, at least `needed`, written down before this
        returns; 0: the cap does not allow it. The same answer whenever it is asked again, after a crash too."""
        with self._lock, locked(self.folder / "rows.lock"):
            self._ready()
            if what in self._known.noted:
                refused = self._known.over.get(what, 0)
                if refused and needed >= refused:
                    return 0
                if needed <= self._known.most.get(what, 0):
                    return needed
                what = f"{what}/again"  # it was taken up after its end was written down: what follows is counted beside
            mine = self._known.open.get(what)
            if mine is None:
                mine = self._begin(_texts(ids), what, asker)
            if mine.refused and needed >= mine.refused:
                return 0
            return mine.level if needed <= mine.level else self._raise(mine, needed, what, cap)

    def _begin(self, texts: list[str], what: str, asker: str) -> _Open:
        self._append({"what": what, "ids": texts, "level": 0})
        append_line(self._history, {"at": now_text(), "what": what, "asker": asker, "rows": len(texts), "begun": True})
        return self._known.open[what]

    def _raise(self, mine: _Open, needed: int, what: str, cap: int) -> int:
        level = needed + max(LEVEL_STEP, needed // 4)
        if cap:
            level = min(level, cap - int(self._known.of(mine.ids, but=what).max(initial=0)))
        if level < needed:
            self._append({"what": what, "refused": needed})
            return 0
        self._append({"what": what, "level": level})
        return level

    def granted(self, what: str) -> Callable[[int], int]:
        """What a training was granted, for whoever replays it: nothing is written."""
        with self._lock:
            self._catch_up()
            mine = self._known.open.get(what)
            refused = self._known.over.get(what, 0) if mine is None else mine.refused
        return lambda needed: 0 if refused and needed >= refused else needed

    def settle(self, counts: Counts, *, what: str, asker: str) -> None:
        """A training is over: how often its rows were really used takes the place of what was reserved."""
        with self._lock, locked(self.folder / "rows.lock"):
            self._ready()
            if what not in self._known.open:
                return
            self._append({"what": what, "asker": asker, "counts": counts.tolist()})
            self._note(what, asker, counts, {})

    def history(self) -> list[dict[str, object]]:
        """Who used how many rows; of a training that is under way or was killed, that it began."""
        lines = NewLines(self._history).new()[0]
        over = {line["what"] for line in lines if "sum" in line}
        return [line for line in lines if "sum" in line or line["what"] not in over]

    # -- files ----------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        """Under the lock of the files: all that was written is known, and the history has a line for it."""
        self._catch_up()
        line, self._untold = self._untold, None
        if line is not None and line == _untold(NewLines(self._uses).new()[0], NewLines(self._history).new()[0]):
            more = {"more": True} if line.get("more") else {}
            self._note(line["what"], line.get("asker", ""), np.array(line["counts"], dtype=np.int64), more)

    def _append(self, line: Mapping[str, Any]) -> None:
        append_line(self._uses, line)
        self._catch_up()

    def _note(self, what: str, asker: str, counts: Counts, more: Mapping[str, Any]) -> None:
        most, total = int(counts.max(initial=0)), int(counts.sum())
        line = {"at": now_text(), "what": what, "asker": asker, "rows": len(counts), "most": most, "sum": total, **more}
        append_line(self._history, line)

    def _catch_up(self) -> None:
        """Read what was written since the last look, by this daemon or by another process."""
        lines, anew = self._tail.new()
        if anew or not self._opened:
            folded = read_checkpoint(self.folder, "rows") or {"ids": [], "counts": np.empty(0, np.int64)}
            self._known = _Known(dict(zip(folded["ids"], folded["counts"].tolist(), strict=True)))
            self._known.over = dict(folded.get("refused", {}))
        for line in lines:
            self._known.take(line)
        if anew or not self._opened:
            self._opened, history = True, NewLines(self._history).new()[0]
            self._refuse_lost(history)
            self._untold = _untold(lines, history)

    def _refuse_lost(self, history: list[dict[str, Any]]) -> None:
        known = self._known
        missing = sum(line.get("sum", 0) for line in history) - sum(known.counts.values())
        named = [line for line in history if "sum" in line and not line.get("more")]
        known.most = {line["what"]: line["most"] for line in named} | known.most
        known.noted |= known.most.keys()
        lost = {line["what"] for line in history if "begun" in line} - known.noted - known.open.keys()
        if missing > 0 or lost:
            raise BadData(
                f"the ledger in {self.folder} has lost {missing} uses of rows and {len(lost)} trainings under way that "
                "history.jsonl lists: rows.json or uses.jsonl was deleted, or an older copy was put back. Restore the "
                "newest copy of all three."
            )

    def fold(self) -> None:
        """Fold a long list of uses into the counts."""
        with self._lock, locked(self.folder / "rows.lock"):
            self._ready()
            if self._tail.read_to >= FOLD_BYTES:
                self._fold()

    def _fold(self) -> None:
        known = self._known
        values = np.fromiter(known.counts.values(), np.int64, len(known.counts))
        refused = {what: level for what, level in known.over.items() if level}
        write_checkpoint(self.folder, "rows", {"ids": list(known.counts), "counts": values, "refused": refused})
        # A crash before the next line counts uses twice: the safe side.
        write_lines_anew(self._uses, [_line_of(what, one) for what, one in known.open.items()])
        write_lines_anew(self._history, _by_day(NewLines(self._history).new()[0]))
        self._opened = False


def _untold(uses: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The newest use, if a kill came between it and its line of the history."""
    last = next((line for line in reversed(uses) if "counts" in line), None)
    if last is None:
        return None
    told = [line["sum"] for line in history if line["what"] == last["what"] and "sum" in line]
    used = sum(sum(line["counts"]) for line in uses if line["what"] == last["what"] and "counts" in line)
    return last if not told or sum(told) < used else None


def _line_of(what: str, one: _Open) -> dict[str, Any]:
    return {"what": what, "ids": one.ids, "level": one.level, "refused": one.refused}


def _by_day(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The scores of one session in one line for each day, where the last of them stood; all else as it is."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for number, line in enumerate(history):
        key = (line["at"][:10], line["what"], line["asker"]) if line.get("more") else (number,)
        before = found.pop(key, None)
        if before is not None:
            line = {
                **line,
                "rows": before["rows"] + line["rows"],
                "most": max(before["most"], line["most"]),
                "sum": before["sum"] + line["sum"],
                "times": before.get("times", 1) + line.get("times", 1),
            }
        found[key] = line
    return list(found.values())


class Reservation:
    """One training's rows in the ledger: what a guard asks before a share leaves."""

    def __init__(self, ledger: RowLedger, ids: Sequence[object], *, what: str, asker: str, cap: int) -> None:
        self._ledger, self._ids, self._what, self._asker, self._cap = ledger, ids, what, asker, cap

    def __call__(self, needed: int) -> int:
        """The level that is written down, at least `needed`; 0: refused."""
        return self._ledger.reserve(self._ids, needed, what=self._what, asker=self._asker, cap=self._cap)

    def settle(self, counts: Counts) -> None:
        self._ledger.settle(counts, what=self._what, asker=self._asker)


def _texts(ids: Sequence[object]) -> list[str]:
    return [id_text(value) for value in ids]


def _refuse_over_cap(cap: int, over: Flags, who: str) -> None:
    if over.any():
        raise Refused(
            f"'{who}' lets a row enter at most {cap} sums (row_cap); {int(over.sum())} of the rows would pass that."
        )
