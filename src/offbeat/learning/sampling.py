"""Which rows a step looks at: contiguous blocks of rows that all parties have shuffled once, in the same way.

Contiguous blocks keep a step's memory traffic sequential (1.6 to 3.7 times faster on sparse rows than scattered ones).
Every pass covers each row exactly once, its cuts at a fresh random offset and its blocks in a fresh random order: a
fixed cyclic order makes SAGA fail, and rows that are never visited leave it biased.

The order of all blocks follows from the run's seed, so every party knows which rows the k-th question of a run is
about, and no question has to say so.
"""

import json
import math

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob
from offbeat.randomness import stream

PASSES_REMEMBERED = 4
OFFSET_FROM = 4
"""Blocks of fewer rows than this are cut without an offset."""


class Schedule:
    """The blocks of a run, numbered from 0: passes over all rows, each in blocks of at most `batch` rows.

    The two blocks at the ends share the cut: together they are one and a half blocks, divided at random, so that
    the inner cuts move from pass to pass while no block is so small that one row would dominate a step. SGD multiplies
    a step by the block's rows over `whole`: else the rows of a short block would count more than others, and SGD would
    settle beside the optimum. SVRG and SAGA correct that by their tables.
    """

    def __init__(self, rows: int, batch: int, seed: int) -> None:
        if rows < 1 or batch < 1:
            raise BadJob(f"Expected at least one row and a batch of at least one row; got rows={rows}, batch={batch}.")
        self.rows, self.batch, self.seed = rows, batch, seed
        self._moves = rows > batch >= OFFSET_FROM
        self.blocks_a_pass = math.ceil(rows / batch + 0.5) if self._moves else math.ceil(rows / batch)
        self.whole = rows / (self.blocks_a_pass - 0.5) if self._moves else float(min(batch, rows))
        """The rows of a block that no end of a pass cuts short."""
        self._passes: dict[int, list[tuple[int, int]]] = {}

    def block(self, number: int) -> tuple[int, int]:
        """The rows of the block with this number, as (start, stop)."""
        which, at = divmod(number, self.blocks_a_pass)
        blocks = self._passes.get(which)
        return (blocks if blocks is not None else self._draw(which))[at]

    def _draw(self, which: int) -> list[tuple[int, int]]:
        rng = stream(self.seed, "blocks", which)
        cuts = self._cuts(rng)
        order = rng.permutation(self.blocks_a_pass)
        while len(self._passes) >= PASSES_REMEMBERED:
            del self._passes[min(self._passes)]
        drawn = self._passes[which] = list(zip(cuts[:-1][order].tolist(), cuts[1:][order].tolist(), strict=True))
        return drawn

    def _cuts(self, rng: np.random.Generator) -> NDArray[np.int64]:
        if not self._moves:
            return np.minimum(np.arange(self.blocks_a_pass + 1) * self.batch, self.rows)
        first = self.whole * rng.uniform(0.5, 1.0)
        inner = np.floor(first + self.whole * np.arange(self.blocks_a_pass - 1)).astype(np.int64)
        return np.concatenate(([0], inner, [self.rows]))


def generator_state(rng: np.random.Generator) -> str:
    """A generator's state as text: its integers are wider than most formats carry."""
    return json.dumps(rng.bit_generator.state, default=np.ndarray.tolist)


def restore_generator(rng: np.random.Generator, state: str) -> None:
    """Put a generator of the same kind back into the state written by `generator_state`."""
    rng.bit_generator.state = json.loads(state)
