"""A training party behind two checks of its owner: the rows are the agreed ones, and none is asked for too often.

The guard is a party around a party. At the beginning it names its rows to the others by a digest of their tokens, so
that a table that was joined wrongly fails at once. And it counts where shares leave, whatever brought them about: an
answer that would use a row more often than the owner allows does not leave, and the run ends.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offbeat.orgs.watched_rows import WatchedRows
from offbeat.party import smoothness
from offbeat.party.contract import Broadcast, Effect, Event, Message, Party, PartyName, Received, Send, Started, State
from offbeat.party.masked_sum import PROBES, PRODUCTS, SURVEY, PartialGiven, ShareGiven


class RowsNamed(Message, frozen=True):
    """Which rows the sender trains on, in their order.

    Reveals: a digest of the salted ids of rows that all parties have.
    """

    digest: bytes


MESSAGES = (RowsNamed,)


class Guarded:
    """`inner`, a party of a linear method, with its rows watched: a row is used when a share of it leaves."""

    def __init__(self, inner: Party, rows: WatchedRows) -> None:
        self.name: PartyName = inner.name
        self.inner: Any = inner
        self.rows = rows

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Received) and isinstance(event.body, RowsNamed):
            own = self.rows.digest(slice(0, len(self.rows))) == event.body.digest
            return [] if own else self.rows.misaligned(f"the rows of '{event.sender}'")
        effects = self.inner.handle(event)
        if isinstance(event, Started):
            name = RowsNamed(self.rows.digest(slice(0, len(self.rows))))
            effects = [Broadcast(self.inner.party.roster.peers, name), *effects]
        return self._count(effects) or effects

    def _count(self, effects: Sequence[Effect]) -> list[Effect]:
        """Why the run ends instead of these effects, if a row would be used too often."""
        for effect in effects:
            if not isinstance(effect, Send) or not isinstance(effect.body, ShareGiven | PartialGiven):
                continue
            body = effect.body
            asker = body.asker if isinstance(body, PartialGiven) else effect.to
            if isinstance(body, PartialGiven) and body.tree > 0:
                continue  # the masks of an answer that is counted with its first tree
            rows, times = self._rows_of(asker, body)
            broken = f"enter at most {self.rows.cap} sums (row_cap), and '{asker}' asked for one more"
            for _ in range(times):
                refusal = self.rows.count(rows, broken)
                if refusal:
                    return refusal
        return []

    def _rows_of(self, asker: PartyName, body: ShareGiven | PartialGiven) -> tuple[slice, int]:
        """Which rows a share is of, and how many numbers of each it tells."""
        if body.kind == PRODUCTS:
            return slice(*self.inner.rows_asked(asker, body.first)), 1
        if body.kind == SURVEY:
            return slice(body.first, body.first + len(body.words) // self.inner.party.problem.outputs), 1
        if body.kind == PROBES:
            return slice(0, smoothness.rows_of(self.inner.block)), smoothness.PROBES
        return slice(0, 0), 0  # numbers about weights, not about rows

    def snapshot(self) -> State:
        return {"inner": self.inner.snapshot(), "asked": self.rows.asked.copy()}

    def restore(self, state: State) -> None:
        self.inner.restore(state["inner"])
        self.rows.asked = np.array(state["asked"])
