"""Which single rows a party takes up next, when nobody else needs to know in advance.

`shuffled` goes over all rows in a fresh random order each pass, so that every row is taken equally often: the
default, and what makes a cap on uploads a cap on passes. `uniform` draws each batch anew, as VAFL's analysis assumes;
rows within one batch are different.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob
from offbeat.learning.sampling import generator_state, restore_generator
from offbeat.names import did_you_mean

Rows = NDArray[np.int64]
SAMPLINGS = ("shuffled", "uniform")


class RowOrder:
    def __init__(self, rows: int, batch: int, sampling: str, rng: np.random.Generator) -> None:
        if sampling not in SAMPLINGS:
            raise BadJob(f"Unknown sampling {sampling!r}. {did_you_mean(sampling, SAMPLINGS)}")
        if rows < 1 or batch < 1:
            raise BadJob(f"Expected at least one row and a batch of at least one row; got {rows=}, {batch=}.")
        self.rows, self.batch, self.sampling = rows, min(batch, rows), sampling
        self._rng = rng
        self._order: Rows = np.zeros(0, dtype=np.int64)
        self._at = 0

    def next(self) -> Rows:
        """The next batch; at the end of a pass it is as short as what is left."""
        if self.sampling == "uniform":
            return self._rng.choice(self.rows, size=self.batch, replace=False).astype(np.int64)
        if self._at >= len(self._order):
            self._order = self._rng.permutation(self.rows).astype(np.int64)
            self._at = 0
        taken = self._order[self._at : self._at + self.batch]
        self._at += len(taken)
        return taken.copy()

    def snapshot(self) -> dict[str, Any]:
        return {"order": self._order.copy(), "at": self._at, "rng": generator_state(self._rng)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._order = np.array(state["order"], dtype=np.int64)
        self._at = int(state["at"])
        restore_generator(self._rng, state["rng"])
