"""How old the values were that a party acted on, counted as it goes: see `metrics/lag.py`."""

from collections.abc import Mapping
from typing import Any

BUCKETS = 40
MEMORY = 32


class LagCounts:
    """A histogram by powers of two, the sum, the largest, and a running mean of late."""

    def __init__(self) -> None:
        self.histogram, self.total, self.most = [0] * BUCKETS, 0, 0
        self.count = 0
        self.mean = 0.0

    def add(self, lag: int) -> None:
        bucket, count = lag.bit_length(), self.count + 1
        self.histogram[bucket if bucket < BUCKETS else -1] += 1
        self.total += lag
        if lag > self.most:
            self.most = lag
        self.count = count
        self.mean += (lag - self.mean) / (count if count < MEMORY else MEMORY)

    def snapshot(self) -> dict[str, Any]:
        names = ("total", "most", "count", "mean")
        return {**{name: getattr(self, name) for name in names}, "histogram": list(self.histogram)}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, list(value) if name == "histogram" else value)
