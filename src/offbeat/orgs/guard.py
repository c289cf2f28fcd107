"""A training party behind two checks of its owner: the rows are the agreed ones, and none is asked for too often.

The guard is a party around a party. It adds one message: before a range of rows is asked for the first time, the
asker names it by a digest of the rows' tokens, so that a table that was joined wrongly fails at once and says where.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from offbeat.orgs.row_ledger import Counts
from offbeat.party.contract import (
    Broadcast,
    Effect,
    Event,
    Finish,
    Message,
    Observe,
    Party,
    PartyName,
    Received,
    Send,
    State,
)
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
    """`inner` with its rows watched. `before` counts how often each row was asked for in earlier runs."""

    def __init__(self, inner: Party, tokens: Sequence[bytes], *, cap: int, before: Counts) -> None:
        self.name: PartyName = inner.name
        self.inner = inner
        self.cap = cap
        self.before = before
        self.asked = np.zeros(len(tokens), np.int64)
        self._tokens = tokens
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
        name = RowsNamed(start, stop, self._digest(start, stop))
        receivers = effect.to if isinstance(effect, Broadcast) else (effect.to,)
        return [Broadcast(receivers, name), effect]

    def _digest(self, start: int, stop: int) -> bytes:
        return hashlib.blake2b(b"".join(self._tokens[start:stop]), digest_size=16).digest()

    def _compare(self, sender: PartyName, named: RowsNamed) -> list[Effect]:
        if 0 <= named.start < named.stop <= len(self._tokens) and self._digest(named.start, named.stop) == named.digest:
            return []
        reason = (
            f"rows {named.start} to {named.stop} of '{sender}' are not the rows of '{self.name}': tables were joined "
            "differently. Align them again; nothing was learned from these rows."
        )
        return [Observe("misaligned", reason), Finish("misaligned", reason)]

    def _count(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        """A request that is repeated is answered from memory and tells nothing new: it is counted once."""
        if ask.first <= self._answered.get(asker, -1):
            return []
        self._answered[asker] = ask.first
        rows = slice(ask.start, ask.stop)
        self.asked[rows] += 1
        if not self.cap or int((self.before[rows] + self.asked[rows]).max(initial=0)) <= self.cap:
            return []
        reason = f"'{self.name}' lets a row enter at most {self.cap} sums (row_cap), and '{asker}' asked for one more"
        return [Observe("row_cap", reason), Finish("budget", reason)]

    def snapshot(self) -> State:
        return {
            "inner": self.inner.snapshot(),
            "asked": self.asked.copy(),
            "named": [list(pair) for pair in sorted(self._named)],
            "answered": dict(self._answered),
        }

    def restore(self, state: State) -> None:
        self.inner.restore(state["inner"])
        self.asked = np.array(state["asked"])
        self._named = {(start, stop) for start, stop in state["named"]}
        self._answered = dict(state["answered"])
