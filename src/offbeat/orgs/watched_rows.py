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

    def use(self, rows: Rows, times: int = 1) -> bool:
        """Count the rows as used so often, before that happens; where one would pass what its owner allows, nothing is
        counted, and the answer is no."""
        self._add(rows, times)
        needed = int(self.asked[rows].max(initial=0))
        if needed > self._level:
            self._level = max(self._level, self._reserve(needed))
        if needed <= self._level:
            return True
        self._add(rows, -times)
        return False

    def over(self, broken: str) -> list[Effect]:
        """The run ends: a row would have been used too often, and `broken` says by what."""
        reason = f"'{self.owner}' lets a row {broken}"
        return [Observe("row_cap", reason), Finish("row-cap", reason)]

    def _add(self, rows: Rows, times: int) -> None:
        if isinstance(rows, slice):
            self.asked[rows] += times
        else:
            np.add.at(self.asked, rows, times)  # a row may be named twice
