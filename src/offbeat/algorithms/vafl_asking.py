"""The synchronous variant's rounds: the server chooses rows, asks all clients, and waits for all."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from offbeat.algorithms.vafl_messages import Ask
from offbeat.algorithms.vafl_outbox import pause_s
from offbeat.learning.embeddings import Array
from offbeat.party.contract import Broadcast, Effect, PartyName, Wake


class Asking:
    """One open request at a time. `anew`: clients are to drop what earlier requests left open."""

    def __init__(self, clients: Sequence[PartyName], retry_s: float) -> None:
        self.clients, self.retry_s = tuple(clients), retry_s
        self.request: int | None = None
        self.rows: Array = np.zeros(0, dtype=np.int64)
        self.anew, self.tries = False, 0

    def ask(self, request: int, rows: Array, anew: bool) -> list[Effect]:
        self.request, self.rows, self.anew, self.tries = request, rows, anew, 0
        return [Broadcast(self.clients, Ask(request, anew, rows)), Wake(self.retry_s, request)]

    def missing(self, given: Collection[int]) -> tuple[PartyName, ...]:
        return tuple(name for i, name in enumerate(self.clients) if i not in given)

    def again(self, given: Collection[int]) -> list[Effect]:
        """Once more to those who have not answered."""
        assert self.request is not None
        self.tries += 1
        body = Ask(self.request, self.anew, self.rows)
        return [Broadcast(self.missing(given), body), Wake(pause_s(self.retry_s, self.tries), self.request)]

    def close(self) -> None:
        self.request = None

    def snapshot(self) -> list[Any]:
        return [self.request, self.rows.copy(), self.anew, self.tries]

    def restore(self, state: Sequence[Any]) -> None:
        self.request, rows, self.anew, self.tries = state
        self.rows = np.array(rows)
