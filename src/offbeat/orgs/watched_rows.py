"""A party's training rows as its owner watches them: which rows they are, and how often each has been used.

The guards around training parties differ in which messages name rows and when a row counts as used. What a digest of
rows is, what the owner's cap means and how a run is refused is the same for all, and stands here.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from offbeat.party.contract import Effect, Finish, Observe, PartyName

Rows = slice | NDArray[np.int64]
Reserve = Callable[[int], int]
"""How many sums a row of the training may enter, at least so many, written down when it returns; 0: not so many. The
same answer to the same question for ever, so that a replay ends as the run did."""


class WatchedRows:
    """The rows of `owner`; nothing made of a row leaves before `reserve` has it. `cap`: the owner's, to name it."""

    def __init__(self, owner: PartyName, tokens: Sequence[bytes], *, reserve: Reserve, cap: int = 0) -> None:
        self.owner, self.cap, self._reserve = owner, cap, reserve
        self.asked = np.zeros(len(tokens), np.int64)
        self._level = 0  # how many sums of each row are reserved, as far as this process knows
        self._tokens = np.frombuffer(b"".join(tokens), np.uint8).reshape(len(tokens), -1)

    def __len__(self) -> int:
        return len(self._tokens)

    def digest(self, rows: Rows) -> bytes:
        return hashlib.blake2b(self._tokens[rows].tobytes(), digest_size=16).digest()

    def misaligned(self, whose: str) -> list[Effect]:
        reason = (
            f"{whose} are not the rows of '{self.owner}': tables were joined differently. Align them again; nothing "
            "was learned from these rows."
        )
        return [Observe("misaligned", reason), Finish("misaligned", reason)]

    def count(self, rows: Rows, broken: str, times: int = 1) -> list[Effect]:
        """Count the rows as used so often, before that happens; where one passes what its owner allows, nothing is
        counted, the run ends, and `broken` says by what."""
        np.add.at(self.asked, rows, times)  # type: ignore[arg-type]  # a slice is fine; the stubs do not say so
        needed = int(self.asked[rows].max(initial=0))
        if needed > self._level:
            self._level = max(self._level, self._reserve(needed))
        if needed <= self._level:
            return []
        np.subtract.at(self.asked, rows, times)  # type: ignore[arg-type]
        reason = f"'{self.owner}' lets a row {broken}"
        return [Observe("row_cap", reason), Finish("row-cap", reason)]
