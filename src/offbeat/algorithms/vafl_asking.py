"""The synchronous variant's rounds: the server chooses rows, asks all clients, and waits for all."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from offbeat.algorithms.vafl_messages import Ask
from offbeat.algorithms.vafl_patience import Patience
from offbeat.learning.embeddings import Array
from offbeat.party.contract import Broadcast, Effect, PartyName, Wake


class Asking:
    """One open request at a time. `anew`: clients are to drop what earlier requests left open."""

    def __init__(self, clients: Sequence[PartyName], patience: Patience) -> None:
        self.clients, self.patience = tuple(clients), patience
        self.request: int | None = None
        self.rows: Array = np.zeros(0, dtype=np.int64)
        self.anew, self.waiting, self.tries = False, False, 0

    def ask(self, request: int, rows: Array, anew: bool) -> list[Effect]:
        self.request, self.rows, self.anew, self.waiting, self.tries = request, rows, anew, True, 0
        return [Broadcast(self.clients, Ask(request, anew, rows)), Wake(self.patience.pause_s(), request)]

    def missing(self, given: Collection[int]) -> tuple[PartyName, ...]:
        return tuple(name for i, name in enumerate(self.clients) if i not in given)

    def again(self, given: Collection[int]) -> list[Effect]:
        """Once more to those who have not answered."""
        assert self.request is not None
        self.tries += 1
        body = Ask(self.request, self.anew, self.rows)
        return [Broadcast(self.missing(given), body), Wake(self.patience.pause_s(self.tries), self.request)]

    def under_way(self, client: int, request: int) -> bool:
        """Whether this is the open request; then nobody has been asked in vain."""
        if request != self.request:
            return False
        self.tries = 0
        return True

    def complete(self) -> None:
        """Everybody has answered: nobody is to be asked again while the server is at work on it."""
        if self.waiting and not self.tries:
            self.patience.long_enough()
        self.waiting = False

    def close(self) -> None:
        self.request, self.waiting = None, False

    def snapshot(self) -> list[Any]:
        return [self.request, self.rows.copy(), self.anew, self.waiting, self.tries]

    def restore(self, state: Sequence[Any]) -> None:
        self.request, rows, self.anew, self.waiting, self.tries = state
        self.rows = np.array(rows)
