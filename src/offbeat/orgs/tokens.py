"""Ids as tokens: keyed hashes under a job's salt, so that an id never travels and never lies in a run folder."""

import hashlib
import hmac
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.holdout import id_text
from offbeat.names import counted
from offbeat.party.contract import PartyName

TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True)
class IdColumn:
    """A party's ids as tokens: the first row of each id counts. Tokens are sorted; `rows` are their table rows."""

    tokens: tuple[bytes, ...]
    rows: NDArray[np.int64]
    duplicates: int
    missing: int

    def rows_of(self, tokens: Sequence[bytes]) -> NDArray[np.int64]:
        """The table row of each token, -1 where there is none."""
        places = [bisect_left(self.tokens, token) for token in tokens]
        known = [
            place < len(self.tokens) and self.tokens[place] == token
            for place, token in zip(places, tokens, strict=True)
        ]
        return np.array(
            [self.rows[place] if there else -1 for place, there in zip(places, known, strict=True)], np.int64
        )

    def notes(self, name: PartyName) -> list[str]:
        notes = []
        if self.duplicates:
            notes.append(
                f"{name}: {counted(self.duplicates, 'row')} with an id seen before; the first row of each id was kept."
            )
        if self.missing:
            notes.append(f"{name}: {counted(self.missing, 'row')} without an id, left out.")
        return notes


def tokens_of(ids: Iterable[Any], salt: bytes) -> list[bytes]:
    return [hmac.digest(salt, id_text(value).encode(), "sha256")[:TOKEN_BYTES] for value in ids]


def split_tokens(joined: bytes) -> list[bytes]:
    return [joined[i : i + TOKEN_BYTES] for i in range(0, len(joined), TOKEN_BYTES)]


def id_column(ids: NDArray[Any], salt: bytes) -> IdColumn:
    texts = ["" if value is None or value != value else id_text(value) for value in ids.tolist()]
    first: dict[bytes, int] = {}
    missing = 0
    for row, text in enumerate(texts):
        if text in ("", "nan"):
            missing += 1
        else:
            first.setdefault(hmac.digest(salt, text.encode(), "sha256")[:TOKEN_BYTES], row)
    tokens = tuple(sorted(first))
    rows = np.array([first[token] for token in tokens], dtype=np.int64)
    return IdColumn(tokens, rows, len(texts) - missing - len(first), missing)


def digest_of(tokens: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(tokens)).hexdigest()


def bucket_bounds(tokens: Sequence[bytes], buckets: int) -> list[int]:
    """Where each bucket of sorted tokens begins, and the last one ends: a bucket is a range of first bytes."""
    starts = (-(-(bucket << 32) // buckets) for bucket in range(1, buckets))
    return [0, *(bisect_left(tokens, start.to_bytes(4, "big")) for start in starts), len(tokens)]
