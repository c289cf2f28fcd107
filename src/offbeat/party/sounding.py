"""A sub-machine: how steep the problem is, measured before the first step.

The step size needs two constants of the pooled data: L, the largest eigenvalue of curvature X^T X / n, and L_max,
curvature times the largest squared row norm. Bounding them by sums of the parties' own constants is cheap but loose
(2 times too large for L, up to q times for L_max, and the run is slower by as much). So the chair measures them on the
first rows, which are a random sample since rows are shuffled once:

    one masked sum of the squared row norms                                -> L_max
    a few rounds of power iteration: Probe(r) to all; each party keeps u_l = X_l^T r;
    one masked sum of X_l u_l                                              -> X X^T r, whose growth is the eigenvalue

It costs `rounds + 1` masked sums over at most 1,024 rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.party.contract import Broadcast, Effect, Message, PartyName
from offbeat.party.expected import expect, expect_array
from offbeat.party.masked_sum import MaskedSum, Sum
from offbeat.party.shares import NORMS, BlockShares, decode, probe_point

ROWS = 1024
ROUNDS = 6
NORM_MARGIN = 1.25  # the largest of all row norms is a little above the largest of a sample
EIGENVALUE_MARGIN = 1.1  # power iteration comes from below


class Probe(Message, frozen=True):
    """One vector of the power iteration, a number for each of the first rows.

    Reveals: to every party, a direction computed from all parties' features of those rows.
    """

    number: int
    vector: np.ndarray


MESSAGES = (Probe,)


class Sounding:
    """Both sides, for one party."""

    def __init__(self, *, shares: BlockShares, sums: MaskedSum, curvature: float, rng: np.random.Generator) -> None:
        self.shares, self.sums, self.curvature, self.rng = shares, sums, curvature, rng
        self.rows = min(ROWS, shares.block.rows)
        self.number = -1  # of the probe under way; -1: none yet
        self.vector = np.empty(0)
        self.trace = self.row_smoothness = self.smoothness = 0.0

    def offer(self) -> None:
        self.shares.scalars[NORMS] = self.shares.block.row_norms_squared(0, self.rows)

    def begin(self) -> list[Effect]:
        return self.sums.ask(0, self.rows, NORMS, self.shares.version())

    def ask_again(self) -> list[Effect]:
        """The sum under way was given up."""
        return self.begin() if self.number < 0 else self._probe()

    def on_sum(self, done: Sum) -> tuple[list[Effect], bool]:
        """One sum is known; the second value says whether both constants are."""
        total = decode(done.words, self.sums.scale)
        if done.point == NORMS:
            return self._on_norms(total + self.shares.scalars[NORMS]), self.trace == 0.0
        own = self.shares.block.share(0, self.rows, self.shares.points[done.point])
        return self._on_probed(total + own)

    def _on_norms(self, norms: np.ndarray) -> list[Effect]:
        self.trace = float(norms.sum())
        margin = NORM_MARGIN if self.rows < self.shares.block.rows else 1.0
        self.row_smoothness = self.curvature * margin * float(norms.max())
        if self.trace == 0.0:
            return []
        self.number = 0
        self._aim(self.rng.standard_normal(self.rows))
        return self._probe()

    def _aim(self, direction: np.ndarray) -> None:
        """Scaled so that no product can leave the fixed-point range."""
        self.vector = direction / (np.linalg.norm(direction) * self.trace)

    def _probe(self) -> list[Effect]:
        probe = Probe(self.number, self.vector)
        self.on_probe("", probe)
        ask = self.sums.ask(0, self.rows, probe_point(self.number), self.shares.version())
        return [Broadcast(self.sums.peers, probe), *ask]

    def say_again(self) -> list[Effect]:
        """A probe may have been lost on the way."""
        return [Broadcast(self.sums.peers, Probe(self.number, self.vector))] if self.number >= 0 else []

    def _on_probed(self, image: np.ndarray) -> tuple[list[Effect], bool]:
        growth = float(np.linalg.norm(image) / np.linalg.norm(self.vector))
        self.smoothness = max(self.smoothness, EIGENVALUE_MARGIN * self.curvature * growth / self.rows)
        self.number += 1
        if self.number >= ROUNDS or growth == 0.0:
            return [], True
        self._aim(image)
        return self._probe(), False

    def on_probe(self, sender: PartyName, body: Probe) -> list[Effect]:
        expect(0 <= body.number < ROUNDS, sender, f"probe {body.number}")
        expect_array(sender, "probe", body.vector, self.rows, number=body.number)
        block = self.shares.block
        into = np.zeros(block.width)
        block.add_gradient(0, self.rows, body.vector, into)
        self.shares.points[probe_point(body.number)] = block.in_step_metric(into * block.rows)
        return []

    _PLAIN = ("number", "trace", "row_smoothness", "smoothness")

    def snapshot(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self._PLAIN}, "vector": self.vector.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.vector = state["vector"]
