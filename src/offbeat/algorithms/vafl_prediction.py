"""Joint prediction: the server asks all clients, batch by batch; a missing client is replaced, and flagged."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms.vafl_messages import PredictAsked
from offbeat.algorithms.vafl_patience import Patience
from offbeat.party.contract import Broadcast, Effect, PartyName, Wake

Array = NDArray[Any]
TRIES_MAX = 5


class JointPrediction:
    """One batch at a time. `without` holds, by client, the rows that were predicted without it."""

    def __init__(self, clients: Sequence[PartyName], rows: int, chunk: int, patience: Patience) -> None:
        self.clients, self.rows, self.chunk, self.patience = tuple(clients), rows, chunk, patience
        self.asked: tuple[int, int, int] | None = None  # request, start, stop
        self.tries = 0
        self.given: dict[int, Array] = {}
        self.scores: list[Array] = []
        self.without: dict[int, set[int]] = {}

    def ask(self, request: int, start: int) -> list[Effect]:
        stop = min(start + self.chunk, self.rows)
        self.asked, self.tries, self.given = (request, start, stop), 0, {}
        return [Broadcast(self.clients, PredictAsked(request, start, stop)), Wake(self.patience.pause_s(), request)]

    def ask_again(self) -> list[Effect]:
        """Once more to those who have not answered; nothing when all tries are used."""
        assert self.asked is not None
        self.tries += 1
        if self.tries > TRIES_MAX:
            return []
        missing = tuple(name for i, name in enumerate(self.clients) if i not in self.given)
        return [Broadcast(missing, PredictAsked(*self.asked)), Wake(self.patience.pause_s(self.tries), self.asked[0])]

    def under_way(self, client: int, request: int) -> bool:
        """Whether this is the open batch; then nobody has been asked in vain."""
        if self.asked is None or request != self.asked[0]:
            return False
        self.tries = 0
        return True

    def complete(self, away: Collection[int]) -> bool:
        """Whether everyone has answered who is there to answer."""
        return self.asked is not None and all(i in self.given or i in away for i in range(len(self.clients)))

    def embeddings(self, stand_ins: Sequence[Array]) -> list[Array]:
        """Everyone's embeddings of this batch, the missing ones' replaced by their stand-in."""
        assert self.asked is not None
        _, start, stop = self.asked
        for i in range(len(self.clients)):
            if i not in self.given:
                self.given[i] = np.tile(stand_ins[i], (stop - start, 1))
                self.without.setdefault(i, set()).update(range(start, stop))
        return [self.given[i] for i in range(len(self.clients))]

    def close(self, scores: Array) -> int:
        """Keep the batch's scores; returns where the next one starts."""
        assert self.asked is not None
        self.scores.append(scores)
        _, _, stop = self.asked
        self.asked = None
        return stop

    def snapshot(self) -> dict[str, Any]:
        return {
            "asked": None if self.asked is None else list(self.asked),
            "tries": self.tries,
            "given": [[client, value.copy()] for client, value in self.given.items()],
            "scores": [value.copy() for value in self.scores],
            "without": [[client, sorted(rows)] for client, rows in self.without.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        asked = state["asked"]
        self.asked = None if asked is None else (asked[0], asked[1], asked[2])
        self.tries = state["tries"]
        self.given = {client: np.array(value) for client, value in state["given"]}
        self.scores = [np.array(value) for value in state["scores"]]
        self.without = {client: set(rows) for client, rows in state["without"]}
