"""How often each row of a party has entered a sum, over all runs and predictions, and the cap its owner set.

Every sum that a row enters tells the asker a little about it; enough of them give the row's features away up to a
rotation. The ledger counts, and refuses the sum that would pass the cap. It is the owner's and lies with the keys.
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offbeat.data.holdout import id_text
from offbeat.errors import Refused
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint

Counts = NDArray[np.int64]


class RowLedger:
    """Counts by row id, with one line of history for every run and prediction. One per daemon; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()

    def counts(self, ids: Sequence[object]) -> Counts:
        """How often each of these rows has entered a sum before."""
        with self._lock:
            known = self._known()
        return np.array([known.get(id_text(value), 0) for value in ids], dtype=np.int64)

    def add(self, ids: Sequence[object], counts: Counts, *, what: str, asker: str) -> None:
        """Write down what a run or a prediction has used; a second entry under the same name replaces nothing."""
        with self._lock:
            self._add(ids, counts, what, asker)

    def _add(self, ids: Sequence[object], counts: Counts, what: str, asker: str) -> None:
        if self._noted(what):
            return
        known = self._known()
        for value, count in zip(ids, counts.tolist(), strict=True):
            text = id_text(value)
            known[text] = known.get(text, 0) + count
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        values = np.fromiter(known.values(), np.int64, len(known))
        write_checkpoint(self.folder, "rows", {"ids": list(known), "counts": values})
        line = {
            "what": what,
            "asker": asker,
            "rows": len(counts),
            "most": int(counts.max(initial=0)),
            "sum": int(counts.sum()),
        }
        with (self.folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def history(self) -> list[dict[str, object]]:
        path = self.folder / "history.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []

    def _noted(self, what: str) -> bool:
        return any(line["what"] == what for line in self.history())

    def _known(self) -> dict[str, int]:
        state = read_checkpoint(self.folder, "rows")
        return dict(zip(state["ids"], state["counts"].tolist(), strict=True)) if state is not None else {}


def refuse_rows_over_cap(cap: int, before: Counts, more: int, who: str) -> None:
    if cap and before.size and int(before.max()) + more > cap:
        over = int((before + more > cap).sum())
        raise Refused(
            f"'{who}' lets a row enter at most {cap} sums (row_cap); {over} of the {before.size} rows would pass that."
        )
