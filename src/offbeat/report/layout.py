"""Where things go on a chart: scales, round ticks, labels that do not cover each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

_Point = TypeVar("_Point")


@dataclass(frozen=True, slots=True)
class Scale:
    """A map from values to positions, straight or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The position of a value; values outside are put on the nearer end."""
        low, high, value = (self._flat(part) for part in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        return log_ticks(self.low, self.high, wanted) if self.log else linear_ticks(self.low, self.high, wanted)

    def _flat(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.log else value


def linear_scale(values: Sequence[float], start: float, end: float, from_zero: bool = False) -> Scale:
    """A scale that holds all values with a little room, or begins at zero."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if from_zero:
        return Scale(0.0, high if high > 0 else 1.0, start, end)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(low - room, high + room, start, end)


def log_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A logarithmic scale over whole decades that holds all positive values."""
    positive = [value for value in values if value > 0]
    if not positive:
        return Scale(0.1, 1.0, start, end, log=True)
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return Scale(10.0**low, 10.0 ** max(high, low + 1), start, end, log=True)


def linear_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round values (1, 2, 2.5 or 5 times a power of ten apart) inside [low, high], about as many as wanted."""
    if not high > low:
        return [low]
    step = _round_step((high - low) / max(wanted, 1))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= rough * 0.999)


def log_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Whole powers of ten inside [low, high], thinned evenly."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / max(wanted, 1)))
    return [10.0**power for power in range(first, last + 1) if (last - power) % every == 0]


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels as little as needed so that neighbours are `gap` apart and all lie between low and high.

    Labels keep their order. Where they cannot all fit they are set evenly.
    """
    number = len(positions)
    if number * gap > high - low + gap:
        gap = (high - low) / max(number - 1, 1)
    order = sorted(range(number), key=lambda index: positions[index])
    placed = list(positions)
    edge = low
    for index in order:
        placed[index] = max(positions[index], edge)
        edge = placed[index] + gap
    edge = high
    for index in reversed(order):
        placed[index] = min(placed[index], edge)
        edge = placed[index] - gap
    return placed


def thin(points: Sequence[_Point], most: int) -> list[_Point]:
    """At most so many points, evenly chosen, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    chosen = {round(index * (len(points) - 1) / (most - 1)) for index in range(most)}
    return [points[index] for index in sorted(chosen)]
