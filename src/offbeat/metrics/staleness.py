"""How stale the values were that a party acted on.

Lag is a difference of versions: how often a block changed between being read and being used. A histogram with a
bucket for 0, for 1, and one for each further power of two keeps a run of any length in a handful of integers:

    bucket   0   1   2     3     4      5
    lag      0   1   2-3   4-7   8-15   16-31   ...
"""

from collections.abc import Iterable, Sequence

from offbeat.errors import BadInput


def bucket_label(bucket: int) -> str:
    """The lags that a bucket counts, as people write them: '0', '1', '2-3', '4-7'."""
    if bucket < 2:
        return str(bucket)
    return f"{2 ** (bucket - 1)}-{2**bucket - 1}"


class LagHistogram:
    """Counts lags one at a time; adding one costs an integer's bit length and three additions."""

    __slots__ = ("_counts", "_largest", "_number", "_total")

    def __init__(self) -> None:
        self._counts: list[int] = [0]
        self._number = 0
        self._total = 0
        self._largest = 0

    def add(self, lag: int, times: int = 1) -> None:
        """Count one use of a value that was `lag` versions old, or `times` of them."""
        if lag < 0:
            raise BadInput(f"a lag is a difference of versions and cannot be negative; {lag} came.")
        bucket = int(lag).bit_length()
        counts = self._counts
        while bucket >= len(counts):
            counts.append(0)
        counts[bucket] += times
        self._number += times
        self._total += int(lag) * times
        if lag > self._largest:
            self._largest = int(lag)

    def extend(self, lags: Iterable[int]) -> None:
        for lag in lags:
            self.add(lag)

    @property
    def counts(self) -> tuple[int, ...]:
        """Counts for lag 0, 1, 2-3, 4-7, ...; empty when nothing was counted."""
        return tuple(self._counts) if self._number else ()

    @property
    def number(self) -> int:
        return self._number

    @property
    def mean(self) -> float:
        return self._total / self._number if self._number else 0.0

    @property
    def largest(self) -> int:
        return self._largest


def lag_at_most(counts: Sequence[int], share: float) -> int:
    """The smallest bucket edge such that at least `share` of all counted lags are not above it: 0, 1, 3, 7, 15, ..."""
    wanted = share * sum(counts)
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= wanted:
            return (1 << bucket) - 1
    return (1 << len(counts)) - 1
