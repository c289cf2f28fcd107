"""A training party behind two checks of its owner: the rows are the agreed ones, and none is asked for too often.

The guard is a party around a party. At the beginning it names its rows to the others by a digest of their tokens, so
that a table that was joined wrongly fails at once. And it counts where numbers about rows leave, whatever brought them
about: shares of every kind of sum, and at a label holder, whose own share is in the total, the products and derivatives
that it tells others. What would use a row more often than the owner allows does not leave, and the run ends.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offbeat.algorithms.afsgd_vp import Product
from offbeat.algorithms.vfb2 import Backward
from offbeat.orgs.watched_rows import WatchedRows
from offbeat.party import smoothness
from offbeat.party.contract import Broadcast, Effect, Event, Message, Party, PartyName, Received, Send, Started, State
from offbeat.party.masked_sum import PROBES, PRODUCTS, SURVEY, PartialGiven, ShareGiven
from offbeat.party.survey_messages import Products, TablePart

SHARES = (ShareGiven, PartialGiven)
TOTALS = (Backward, Product, Products, TablePart)
"""What a label holder tells of rows in whose total its own share is."""
LEAVING = frozenset((*SHARES, *TOTALS))


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
            if not isinstance(effect, (Send, Broadcast)) or type(effect.body) not in LEAVING:
                continue
            rows, times = self._rows_of(effect)
            if times and not self.rows.use(rows, times):
                asker = self._asker(effect)
                return self.rows.over(f"enter at most {self.rows.cap} sums (row_cap), and '{asker}' asked for one more")
        return []

    def _asker(self, effect: Send | Broadcast) -> PartyName:
        """For whom a number leaves: the parties behind a tree's next node, or the label holder itself, do not show."""
        if isinstance(effect.body, PartialGiven):
            return effect.body.asker
        return effect.to if isinstance(effect, Send) and isinstance(effect.body, ShareGiven) else self.name

    def _rows_of(self, effect: Send | Broadcast) -> tuple[slice, int]:
        """Which rows a message is about, and how many numbers of each it tells."""
        body: Any = effect.body
        if isinstance(body, PartialGiven) and body.tree > 0:
            return slice(0, 0), 0  # the masks of an answer that is counted with its first tree
        if isinstance(body, SHARES):
            return self._of_share(self._asker(effect), body)
        if isinstance(body, Backward | Product):
            number = body.number if isinstance(body, Backward) else body.round
            told = self._outputs
            return (slice(0, 0), 0) if number < 0 else (slice(*self.inner.rows_asked(self.name, number)), told)
        values = body.values if isinstance(body, Products) else body.derivatives
        return self._rows_from(body.start, values), self._outputs

    def _of_share(self, asker: PartyName, body: Any) -> tuple[slice, int]:
        if body.kind == PRODUCTS:
            return slice(*self.inner.rows_asked(asker, body.first)), self._outputs
        if body.kind == SURVEY:
            return self._rows_from(body.first, body.words), self._outputs
        if body.kind == PROBES:
            return slice(0, smoothness.rows_of(self.inner.block)), smoothness.PROBES
        return slice(0, 0), 0  # numbers about weights, not about rows

    def _rows_from(self, start: int, values: np.ndarray) -> slice:
        return slice(start, start + len(values) // self._outputs)

    @property
    def _outputs(self) -> int:
        """How many numbers a sum tells of a row: one for each of several classes."""
        return int(self.inner.party.problem.outputs)

    def snapshot(self) -> State:
        return {"inner": self.inner.snapshot(), "asked": self.rows.asked.copy()}

    def restore(self, state: State) -> None:
        self.inner.restore(state["inner"])
        self.rows.asked = np.array(state["asked"])
