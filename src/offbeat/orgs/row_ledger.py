"""How often each row of a party has entered a sum, over all runs and predictions, and the cap its owner set.

Every sum that a row enters tells the asker a little about it; enough of them give the row's features away up to a
rotation. The ledger counts, and refuses the sum that would pass the cap. It is the owner's and lies with the keys.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offbeat.data.holdout import id_text
from offbeat.errors import BadData, Refused
from offbeat.orgs.durable import append_line, locked, read_lines, write_durably
from offbeat.orgs.run_names import now_text
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint

Counts = NDArray[np.int64]
FOLD_BYTES = 2**24


class RowLedger:
    """Counts by row id, with one line of history for every run and prediction. One per daemon; thread-safe.

    history.jsonl   who used how many rows, and when
    uses.jsonl      the rows of each use: added to, never rewritten, so that a use costs what it uses
    rows.json       the counts of all uses that were folded into it when the ledger was opened
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._uses, self._history = folder / "uses.jsonl", folder / "history.jsonl"
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._noted: set[str] = set()
        self._read_to = 0
        self._opened = False

    def counts(self, ids: Sequence[object]) -> Counts:
        """How often each of these rows has entered a sum before."""
        with self._lock:
            self._catch_up()
            return np.array([self._counts.get(id_text(value), 0) for value in ids], dtype=np.int64)

    def add(self, ids: Sequence[object], counts: Counts, *, what: str, asker: str) -> None:
        """Write down what a run or a prediction has used; a second entry under the same name replaces nothing."""
        with self._lock, locked(self.folder / "rows.lock"):
            self._catch_up()
            if what in self._noted:
                return
            texts = [id_text(value) for value in ids]
            append_line(self._uses, {"what": what, "ids": texts, "counts": counts.tolist()})
            most, total = int(counts.max(initial=0)), int(counts.sum())
            line = {"at": now_text(), "what": what, "asker": asker, "rows": len(counts), "most": most, "sum": total}
            append_line(self._history, line)
            self._catch_up()

    def history(self) -> list[dict[str, object]]:
        return read_lines(self._history)[0]

    # -- reading --------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Read what was written since the last look, by this daemon or by another process."""
        if not self._opened or (self._uses.stat().st_size if self._uses.is_file() else 0) < self._read_to:
            self._open()
        lines, self._read_to = read_lines(self._uses, self._read_to)
        for line in lines:
            self._noted.add(line["what"])
            for text, count in zip(line["ids"], line["counts"], strict=True):
                self._counts[text] = self._counts.get(text, 0) + count

    def _open(self) -> None:
        folded = read_checkpoint(self.folder, "rows") or {"ids": [], "counts": np.empty(0, np.int64)}
        self._counts = dict(zip(folded["ids"], folded["counts"].tolist(), strict=True))
        history = self.history()
        self._noted = {str(line["what"]) for line in history}
        self._read_to, self._opened = 0, True
        lines, _ = read_lines(self._uses)
        known = sum(self._counts.values()) + sum(sum(line["counts"]) for line in lines)
        missing = sum(int(str(line["sum"])) for line in history) - known
        if missing > 0:
            raise BadData(
                f"the ledger in {self.folder} has lost {missing} uses of rows that history.jsonl lists: rows.json or "
                "uses.jsonl was deleted, or an older copy was put back. Restore the newest copy of all three."
            )

    def fold(self) -> None:
        """Fold a long list of uses into the counts; only while nothing else uses the ledger."""
        with self._lock, locked(self.folder / "rows.lock"):
            self._catch_up()
            if self._read_to < FOLD_BYTES:
                return
            values = np.fromiter(self._counts.values(), np.int64, len(self._counts))
            write_checkpoint(self.folder, "rows", {"ids": list(self._counts), "counts": values})
            write_durably(self._uses, b"")  # a crash before this counts the uses twice, which is the safe side
            self._read_to = 0


def refuse_rows_over_cap(cap: int, before: Counts, more: int, who: str) -> None:
    if cap and before.size and int(before.max()) + more > cap:
        over = int((before + more > cap).sum())
        raise Refused(
            f"'{who}' lets a row enter at most {cap} sums (row_cap); {over} of the {before.size} rows would pass that."
        )
