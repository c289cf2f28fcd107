"""VAFL's party behind the checks of its owner: the rows are the agreed ones, and none leaves too often.

Every message that names rows is preceded by a digest of those rows' tokens. Streams keep their order, so the digest
belongs to the next such message of the same sender: a table that was joined wrongly fails at the first batch.
"""

import numpy as np

from offbeat.algorithms.vafl.messages import Ask, Gradient, Refresh, Refreshed, Upload
from offbeat.orgs.watched_rows import WatchedRows
from offbeat.party.contract import Broadcast, Effect, Event, Message, Party, PartyName, Received, Send, State

WITH_ROWS = (Upload, Refresh, Refreshed, Ask)
LEAVING = (Upload, Refreshed, Gradient)


class BatchNamed(Message, frozen=True):
    """Which rows the next message of this sender is about.

    Reveals: a digest of the salted ids of rows that all parties have.
    """

    digest: bytes


MESSAGES = (BatchNamed,)


class GuardedEmbedding:
    """`inner` with its rows watched: a row is used when something made of it leaves. At the label holder that is a
    derivative, too: its own columns are in the product that it is taken at."""

    def __init__(self, inner: Party, rows: WatchedRows) -> None:
        self.name: PartyName = inner.name
        self.inner, self.rows = inner, rows
        self._named: dict[PartyName, bytes] = {}
        self._counted = 0  # the newest release that was counted
        self._uploaded: dict[tuple[PartyName, int], np.ndarray] = {}  # rows of uploads that wait for a derivative

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Received):
            if isinstance(event.body, BatchNamed):
                self._named[event.sender] = event.body.digest
                return []
            if isinstance(event.body, WITH_ROWS):
                refusal = self._compare(event.sender, event.body.rows)
                if refusal:
                    return refusal
            if isinstance(event.body, Upload) and event.body.wanted:
                self._uploaded[event.sender, event.body.release] = np.array(event.body.rows)
        return self._watched(self.inner.handle(event))

    def _watched(self, effects: list[Effect]) -> list[Effect]:
        watched: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, (Send, Broadcast)):
                watched.append(effect)
                continue
            refusal = self._count(effect) if isinstance(effect.body, LEAVING) else []
            if refusal:
                return [*watched, *refusal]
            if isinstance(effect.body, WITH_ROWS):
                to = (effect.to,) if isinstance(effect, Send) else effect.to
                watched.append(Broadcast(to, BatchNamed(self.rows.digest(effect.body.rows))))
            watched.append(effect)
        return watched

    def _compare(self, sender: PartyName, rows: np.ndarray) -> list[Effect]:
        inside = rows.size == 0 or (int(rows.min()) >= 0 and int(rows.max()) < len(self.rows))
        if inside and self._named.pop(sender, b"") == self.rows.digest(rows):
            return []
        return self.rows.misaligned(f"{rows.size} rows of '{sender}'")

    def _count(self, effect: Send | Broadcast) -> list[Effect]:
        """What is sent again byte for byte tells nothing new: it is counted once."""
        body = effect.body
        if isinstance(body, Gradient):
            assert isinstance(effect, Send)
            rows = self._uploaded.pop((effect.to, body.release), None)
        else:
            assert isinstance(body, Upload | Refreshed)
            rows = body.rows if body.release > self._counted else None
            self._counted = max(body.release, self._counted)
        if rows is None or self.rows.use(rows):
            return []
        return self.rows.over(f"leave at most {self.rows.cap} times (row_cap), and that is reached")

    def snapshot(self) -> State:
        return {
            "inner": self.inner.snapshot(),
            "asked": self.rows.asked.copy(),
            "named": dict(self._named),
            "counted": self._counted,
            "uploaded": [[sender, release, rows.copy()] for (sender, release), rows in self._uploaded.items()],
        }

    def restore(self, state: State) -> None:
        self.inner.restore(state["inner"])
        self.rows.asked = np.array(state["asked"])
        self._named, self._counted = dict(state["named"]), state["counted"]
        self._uploaded = {(sender, release): np.array(rows) for sender, release, rows in state["uploaded"]}
