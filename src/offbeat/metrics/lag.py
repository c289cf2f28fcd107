"""How stale the values were that a party acted on.

Lag is a difference of versions: how often a block changed between being read and being used. A histogram with a
bucket for 0, for 1, and one for each further power of two keeps a run of any length in a handful of integers:

    bucket   0   1   2     3     4      5
    lag      0   1   2-3   4-7   8-15   16-31   ...
"""

from collections.abc import Sequence
from typing import NamedTuple


class Lags(NamedTuple):
    """All lags of one party: how many, their mean, the largest, and the histogram without empty buckets at its end."""

    number: int = 0
    mean: float = 0.0
    most: int = 0
    histogram: tuple[int, ...] = ()

    @classmethod
    def counted(cls, counts: Sequence[int]) -> "Lags":
        """From a count for each lag: 0, 1, 2, 3, ..."""
        buckets = [0] * (len(counts).bit_length() + 1)
        for lag, count in enumerate(counts):
            buckets[lag.bit_length()] += count
        total = sum(lag * count for lag, count in enumerate(counts))
        return cls.bucketed(buckets, total, max((lag for lag, count in enumerate(counts) if count), default=0))

    @classmethod
    def bucketed(cls, buckets: Sequence[int], total: int, most: int) -> "Lags":
        """From the histogram that a party kept itself, with the sum of its lags and the largest."""
        number = sum(buckets)
        filled = [bucket for bucket, count in enumerate(buckets) if count]
        return cls(number, total / max(number, 1), most, tuple(buckets[: filled[-1] + 1]) if filled else ())


def bucket_label(bucket: int) -> str:
    """The lags that a bucket counts, as people write them: '0', '1', '2-3', '4-7'."""
    if bucket < 2:
        return str(bucket)
    return f"{2 ** (bucket - 1)}-{2**bucket - 1}"
