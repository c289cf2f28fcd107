"""A training party behind two checks of its owner: the rows are the agreed ones, and none is asked for too often.

The guard is a party around a party. It adds one message: before a range of rows is asked for the first time, the
asker names it by a digest of the rows' tokens, so that a table that was joined wrongly fails at once and says where.
"""

import numpy as np

from offbeat.orgs.watched_rows import WatchedRows
from offbeat.party.contract import Broadcast, Effect, Event, Message, Party, PartyName, Received, Send, State
from offbeat.party.masked_sum import CURRENT, ShareAsked


class RowsNamed(Message, frozen=True):
    """Which rows a range stands for at the asker.

    Reveals: a digest of the salted ids of rows that all parties have.
    """

    start: int
    stop: int
    digest: bytes


MESSAGES = (RowsNamed,)
RANGES_KEPT = 100_000


class Guarded:
    """`inner` with its rows watched: a row is used when it is asked for."""

    def __init__(self, inner: Party, rows: WatchedRows) -> None:
        self.name: PartyName = inner.name
        self.inner, self.rows = inner, rows
        self._named: set[tuple[int, int]] = set()
        self._answered: dict[PartyName, int] = {}  # the newest request of each asker that was counted

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Received):
            if isinstance(event.body, RowsNamed):
                return self._compare(event.sender, event.body)
            if isinstance(event.body, ShareAsked) and event.body.point >= CURRENT:
                refusal = self._count(event.sender, event.body)
                if refusal:
                    return refusal
        return [named for effect in self.inner.handle(event) for named in self._with_name(effect)]

    def _with_name(self, effect: Effect) -> list[Effect]:
        """Name a range of rows before it is asked for the first time."""
        if not isinstance(effect, (Broadcast, Send)) or not isinstance(effect.body, ShareAsked):
            return [effect]
        start, stop = effect.body.start, effect.body.stop
        if effect.body.point < CURRENT or (start, stop) in self._named:
            return [effect]
        if len(self._named) >= RANGES_KEPT:
            self._named.clear()  # naming a range again does no harm; keeping all for ever would
        self._named.add((start, stop))
        name = RowsNamed(start, stop, self.rows.digest(slice(start, stop)))
        receivers = effect.to if isinstance(effect, Broadcast) else (effect.to,)
        return [Broadcast(receivers, name), effect]

    def _compare(self, sender: PartyName, named: RowsNamed) -> list[Effect]:
        start, stop = named.start, named.stop
        if 0 <= start < stop <= len(self.rows) and self.rows.digest(slice(start, stop)) == named.digest:
            return []
        return self.rows.misaligned(f"rows {start} to {stop} of '{sender}'")

    def _count(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        """A request that is repeated is answered from memory and tells nothing new: it is counted once."""
        if ask.first <= self._answered.get(asker, -1):
            return []
        self._answered[asker] = ask.first
        broken = f"enter at most {self.rows.cap} sums (row_cap), and '{asker}' asked for one more"
        return self.rows.count(slice(ask.start, ask.stop), broken)

    def snapshot(self) -> State:
        return {
            "inner": self.inner.snapshot(),
            "asked": self.rows.asked.copy(),
            "named": [list(pair) for pair in sorted(self._named)],
            "answered": dict(self._answered),
        }

    def restore(self, state: State) -> None:
        self.inner.restore(state["inner"])
        self.rows.asked = np.array(state["asked"])
        self._named = {(start, stop) for start, stop in state["named"]}
        self._answered = dict(state["answered"])
