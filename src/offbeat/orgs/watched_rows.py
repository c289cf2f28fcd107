"""A party's training rows as its owner watches them: which rows they are, and how often each has been used.

The guards around training parties differ in which messages name rows and when a row counts as used. What a digest of
rows is, what the owner's cap means and how a run is refused is the same for all, and stands here.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offbeat.orgs.row_ledger import Counts
from offbeat.party.contract import Effect, Finish, Observe, PartyName

Rows = slice | NDArray[np.int64]


class WatchedRows:
    """The rows of `owner`. `before` counts how often each was used in earlier runs; without a cap, `cap` is 0."""

    def __init__(self, owner: PartyName, tokens: Sequence[bytes], *, cap: int, before: Counts) -> None:
        self.owner, self.cap, self.before = owner, cap, before
        self.asked = np.zeros(len(tokens), np.int64)
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

    def count(self, rows: Rows, broken: str) -> list[Effect]:
        """Count the rows as used once more; where one passes the cap, the run ends and `broken` says by what."""
        np.add.at(self.asked, rows, 1)  # type: ignore[arg-type]  # a slice is fine; the stubs do not say so
        if not self.cap or int((self.before[rows] + self.asked[rows]).max(initial=0)) <= self.cap:
            return []
        reason = f"'{self.owner}' lets a row {broken}"
        return [Observe("row_cap", reason), Finish("row-cap", reason)]
