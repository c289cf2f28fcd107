"""The server's memory in VAFL: the newest embedding of every (row, client), how old each is, and how old they were
when they were used.

Age is counted in head updates, separately for each pair: it returns to zero only when that client uploads that row,
so with N rows, M clients and b rows an upload its mean is about N*M/b, whatever the network does.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BUCKETS = 40
"""Lag histogram: bucket 0 counts lag 0, bucket k counts 2^(k-1) <= lag < 2^k."""


class Shelf(Protocol):
    """Where the newest embeddings of one client are kept: rows by number. `read` gives what the head computes with."""

    def write(self, rows: Array, embedding: Array) -> None: ...

    def read(self, rows: Array) -> Any: ...

    def to_array(self) -> Array: ...


class HostShelf:
    """An array in the machine's own memory."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def write(self, rows: Array, embedding: Array) -> None:
        self.values[rows] = embedding

    def read(self, rows: Array) -> Array:
        return np.asarray(self.values[rows])

    def to_array(self) -> Array:
        return self.values


class Shelves(Protocol):
    """Whoever says where embeddings are kept: the head, which computes with them."""

    def shelf(self, values: Array) -> Shelf: ...


class EmbeddingTable:
    """One shelf for each client, and the iteration at which each row was written (-1: never, the row is *cold*)."""

    def __init__(self, rows: int, widths: Sequence[int], head: Shelves, dtype: Any = np.float64) -> None:
        self.head = head
        self.widths = tuple(widths)
        self.shelves = [head.shelf(np.zeros((rows, width), dtype=dtype)) for width in widths]
        self.written = np.full((rows, len(widths)), -1, dtype=np.int64)
        self.lags = np.zeros((len(widths), BUCKETS), dtype=np.int64)
        self.lag_sum = np.zeros(len(widths), dtype=np.int64)
        self.lag_max = np.zeros(len(widths), dtype=np.int64)
        self.cold_used = np.zeros(len(widths), dtype=np.int64)
        self.late_used = np.zeros(len(widths), dtype=np.int64)

    def write(self, client: int, rows: Array, embedding: Array, iteration: int) -> None:
        self.shelves[client].write(rows, embedding)
        self.written[rows, client] = iteration

    def know_zeros(self) -> None:
        """Every embedding is known to be zero at the start: nothing is cold."""
        self.written[:] = 0

    def read(self, rows: Array) -> list[Any]:
        return [shelf.read(rows) for shelf in self.shelves]

    def overdue(self, rows: Array, iteration: int, lag_max: float) -> dict[int, Array]:
        """By client, those of the rows whose entry is cold or older than the bound."""
        written = self.written[rows]
        late = (written < 0) | (iteration - written > lag_max)
        return {int(client): rows[late[:, client]] for client in np.flatnonzero(late.any(axis=0))}

    def note_use(self, rows: Array, borrowed: Array, iteration: int, bound: float = np.inf) -> tuple[float, int]:
        """Count the ages of the entries about to be used: those of `rows` where `borrowed` (rows x clients) is true.

        Returns their (mean, maximum); cold entries are counted apart, and those older than `bound` also as late: a
        fresh one was asked for and did not come in time.
        """
        written = self.written[rows]
        warm = borrowed & (written >= 0)
        lags = np.where(warm, iteration - written, 0)
        self.cold_used += (borrowed & ~warm).sum(axis=0)
        self.late_used += (lags > bound).sum(axis=0)
        clients = np.nonzero(warm)[1]
        places = clients * BUCKETS + lag_buckets(lags[warm])
        self.lags += np.bincount(places, minlength=self.lags.size).reshape(self.lags.shape)
        self.lag_sum += lags.sum(axis=0)
        np.maximum(self.lag_max, lags.max(axis=0, initial=0), out=self.lag_max)
        return float(lags.sum()) / max(len(clients), 1), int(lags.max(initial=0))

    def cold(self, client: int) -> int:
        return int(np.sum(self.written[:, client] < 0))

    def mean(self, client: int) -> Array:
        """The mean of the client's newest embeddings: what stands in for it when it is missing."""
        warm = self.written[:, client] >= 0
        values = self.shelves[client].to_array()
        return np.asarray(values[warm].mean(axis=0) if warm.any() else np.zeros_like(values[0]))

    def lag_summary(self, client: int) -> dict[str, Any]:
        counts = self.lags[client]
        uses = int(counts.sum())
        last = int(np.flatnonzero(counts)[-1]) + 1 if uses else 0
        return {
            "lag_mean": float(self.lag_sum[client]) / max(uses, 1),
            "lag_max": int(self.lag_max[client]),
            "lag_histogram": counts[:last].tolist(),
            "cold_used": int(self.cold_used[client]),
            "late_used": int(self.late_used[client]),
        }

    def snapshot(self) -> dict[str, Any]:
        return {
            "values": [shelf.to_array().copy() for shelf in self.shelves],
            "written": self.written.copy(),
            "lags": self.lags.copy(),
            "lag_sum": self.lag_sum.copy(),
            "lag_max": self.lag_max.copy(),
            "cold_used": self.cold_used.copy(),
            "late_used": self.late_used.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.shelves = [self.head.shelf(np.array(values)) for values in state["values"]]
        for name in ("written", "lags", "lag_sum", "lag_max", "cold_used", "late_used"):
            setattr(self, name, np.array(state[name]))


def lag_buckets(lags: Array) -> Array:
    """The bucket of each lag: its number of binary digits."""
    return np.asarray(np.frexp(lags.astype(np.float64))[1], dtype=np.int64)
