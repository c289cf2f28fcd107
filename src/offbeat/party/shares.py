"""Where a linear party's shares come from: its block as it is, its frozen copies, and a few scalars.

A *point* is an integer: CURRENT is the block as it is now, s >= 0 the copy frozen for snapshot s, `probe_point(k)` the
k-th probe of a sounding, NORMS the squared norms of the rows, `scalars_of(s)` a short vector of numbers; all are summed
over parties like any share. Scalars may be tiny (a squared gradient norm near the optimum), so each travels as two
words: its value rounded to the fixed-point grid, and what the rounding left, enlarged. They may also be huge (the same
norm while a label of 200,000 is being fitted), so each is on offer a second time, as three words: its whole part,
counted in ones, and the rest as before. The asker chooses by the part of the vector that it asks for.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.errors import OutOfRange
from offbeat.learning.blocks import Block
from offbeat.party.masked_sum import CURRENT

NORMS = -2
TWO_WORDS, THREE_WORDS = (0, 4), (4, 10)
"""Where the two scalars of a certificate stand in the vector on offer, in either form."""


def probe_point(number: int) -> int:
    """Probes and scalars share the numbers below NORMS: even and odd."""
    return -4 - 2 * number


def scalars_of(snapshot: int) -> int:
    return -3 - 2 * snapshot


class BlockShares:
    """The share source of a party with a linear block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.points: dict[int, np.ndarray] = {}
        self.scalars: dict[int, np.ndarray] = {}
        self._held: tuple[np.ndarray, int] | None = None

    def hold(self, share: np.ndarray, version: int) -> None:
        """Answer the next request at CURRENT with this share, which a lane computed at that version."""
        self._held = share, version

    def release(self) -> None:
        self._held = None

    def freeze(self, snapshot: int) -> None:
        self.points[snapshot] = self.block.weights()

    def keep_only(self, snapshots: set[int]) -> None:
        self.points = {s: w for s, w in self.points.items() if s in snapshots}
        kept = {scalars_of(s) for s in snapshots}
        self.scalars = {point: values for point, values in self.scalars.items() if point in kept}

    def offer(self, point: int, values: np.ndarray, scale: float) -> None:
        """Make scalars available to be summed."""
        self.scalars[point] = widen(values, scale)

    def offered(self, start: int, stop: int, point: int, scale: float) -> np.ndarray:
        """A part of the scalars on offer: see TWO_WORDS and THREE_WORDS."""
        values = self.scalars[point]
        if point != NORMS and (start, stop) == THREE_WORDS:
            return widen_large(narrow(values, scale), scale)
        return values[start:stop]

    def version(self) -> int:
        return self.block.version if self._held is None else self._held[1]

    def knows(self, point: int) -> bool:
        return point == CURRENT or point in self.points or point in self.scalars

    def words(
        self, start: int, stop: int, point: int, mask: np.ndarray | None, at: int, scale: float, limit: float
    ) -> np.ndarray:
        if point == CURRENT:
            weights = None
        elif point in self.scalars:
            what = "The squared length of a row" if point == NORMS else "A number of the certificate"
            return _scalar_words(self.offered(start, stop, point, scale), mask, at, scale, limit, what)
        else:
            weights = self.points[point]
        if self._held is not None:
            return _scalar_words(self._held[0], mask, at, scale, limit)
        if mask is None:
            return self.block.encoded_share(start, stop, weights, scale, limit)
        return self.block.masked_share(start, stop, weights, mask, at, scale, limit)

    def nonzeros(self, start: int, stop: int, point: int) -> int:
        return 0 if point in self.scalars else self.block.nonzeros(start, stop)

    def snapshot(self) -> dict[str, Any]:
        return {
            "points": [[s, weights] for s, weights in self.points.items()],
            "scalars": [[point, values] for point, values in self.scalars.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.points = dict(state["points"])
        self.scalars = dict(state["scalars"])


def widen(values: np.ndarray, scale: float) -> np.ndarray:
    """Each value as (what the fixed-point grid holds, the remainder times the scale)."""
    coarse = np.rint(values * scale) / scale
    return np.concatenate((coarse, (values - coarse) * scale))


def narrow(sums: np.ndarray, scale: float) -> np.ndarray:
    """Sums of widened values back to sums of values."""
    half = len(sums) // 2
    return np.asarray(sums[:half] + sums[half:] / scale)


def widen_large(values: np.ndarray, scale: float) -> np.ndarray:
    """Each value as (its whole part, a unit of the grid for every one, the rest as two words): up to 2^63 fits."""
    whole = np.rint(values)
    return np.concatenate((whole / scale, widen(values - whole, scale)))


def narrow_large(sums: np.ndarray, scale: float) -> np.ndarray:
    third = len(sums) // 3
    return np.asarray(sums[:third] * scale + narrow(sums[third:], scale))


def decode(words: np.ndarray, scale: float) -> np.ndarray:
    return words.view(np.int64) / scale


def _scalar_words(
    values: np.ndarray, mask: np.ndarray | None, at: int, scale: float, limit: float, what: str = "A share"
) -> np.ndarray:
    if not np.all(np.abs(values) < limit):
        raise OutOfRange(
            f"{what} is {np.abs(values).max():.3g}, and sums over the parties hold numbers below {limit:.3g} only. "
            "Bring the columns to a common scale (standardise them), or set fraction_bits lower, to 20 say: each bit "
            "less doubles the range and halves the precision."
        )
    words = np.rint(values * scale).astype(np.int64).view(np.uint64)
    return words if mask is None else words + mask[at : at + len(words)]
