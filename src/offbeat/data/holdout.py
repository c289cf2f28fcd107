"""Which rows are kept for testing: decided by the ids alone, so that all parties agree without a word.

Every id is hashed with the seed (SHA-256), and the rows with the smallest hashes are the test rows. After the join
all parties know the same ids, so each finds the same test rows, whatever the order of its file; nothing about a
feature or a label goes in. The count is exact: 20 % of 30,000 rows are 6,000 rows.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Flags
from offbeat.errors import BadData


def id_text(value: Any) -> str:
    """One spelling per id, whichever file format it came through: 7, 7.0, " 7" and b"7" are all "7"."""
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    return str(value).strip()


def held_out(ids: NDArray[Any], *, seed: int, fraction: float = 0.2, rows: int | None = None) -> Flags:
    """True where a row is kept for testing: `rows` of them, or this fraction rounded to the nearest row."""
    if rows is None and not 0 <= fraction < 1:
        raise BadData(f"The test fraction must be at least 0 and less than 1; came {fraction}.")
    count = round(fraction * ids.size) if rows is None else rows
    if not 0 <= count < max(ids.size, 1):
        raise BadData(
            f"Of {ids.size} rows, {count} cannot be kept for testing: at least one must be left for training."
        )
    flags = np.zeros(ids.size, dtype=np.bool_)
    if count:
        hashes = _hashes(ids, seed)
        flags[np.lexsort(hashes.T[::-1])[:count]] = True
    return flags


def folds_of(ids: NDArray[Any], *, seed: int, folds: int) -> NDArray[np.int64]:
    """The fold of every row, of so many folds of nearly the same size."""
    ranks = np.empty(ids.size, dtype=np.int64)
    ranks[np.lexsort(_hashes(ids, seed).T[::-1])] = np.arange(ids.size)
    return ranks % folds


def _hashes(ids: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    start = hashlib.sha256(f"offbeat held-out rows, seed {seed}: ".encode())
    digests = bytearray()
    for text in _texts(ids):
        one = start.copy()
        one.update(text.encode())
        digests += one.digest()[:16]
    return np.frombuffer(bytes(digests), dtype=">u8").reshape(-1, 2).astype(np.uint64)


def _texts(ids: NDArray[Any]) -> Iterable[str]:
    if ids.dtype.kind in "iu":
        return map(str, ids.tolist())
    return map(id_text, ids.tolist())
