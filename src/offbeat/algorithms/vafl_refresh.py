"""The bounded delay: updates that wait for fresh rows, and the requests they wait for. Nobody else waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms.vafl_messages import Refresh
from offbeat.algorithms.vafl_patience import Patience
from offbeat.party.contract import Effect, PartyName, Send, Wake

Array = NDArray[Any]


@dataclass
class Contribution:
    """One client's rows on their way into a head update."""

    client: int
    release: int
    rows: Array
    waiting: set[int] = field(default_factory=set)  # refresh requests that must come first
    rounds: int = 0

    def plain(self) -> list[Any]:
        return [self.client, self.release, self.rows.copy(), sorted(self.waiting), self.rounds]

    @staticmethod
    def from_plain(plain: Sequence[Any]) -> "Contribution":
        client, release, rows, waiting, rounds = plain
        return Contribution(client, release, np.array(rows), set(waiting), rounds)


def united(contributions: Sequence[Contribution]) -> tuple[Array, list[Any]]:
    """All rows of an update, and where each contribution's rows are among them."""
    if len(contributions) == 1:
        return contributions[0].rows, [slice(None)]
    union = np.unique(np.concatenate([c.rows for c in contributions]))
    return union, [np.searchsorted(union, c.rows) for c in contributions]


@dataclass
class Wanted:
    """A refresh that was asked for and has not come."""

    client: int
    rows: Array
    tries: int = 0


class Refreshes:
    """Open requests, and the contributions blocked by them."""

    def __init__(self, clients: Sequence[PartyName], patience: Patience) -> None:
        self.clients, self.patience = clients, patience
        self.wanted: dict[int, Wanted] = {}
        self.blocked: list[Contribution] = []
        self.asked_rows = self.refused_rows = self.abandoned = 0

    def want(self, request: int, client: int, rows: Array, contribution: Contribution) -> list[Effect]:
        self.wanted[request] = Wanted(client, rows)
        contribution.waiting.add(request)
        self.asked_rows += len(rows)
        return [Send(self.clients[client], Refresh(request, rows)), Wake(self.patience.pause_s(), request)]

    def want_again(self, request: int) -> list[Effect]:
        wanted = self.wanted[request]
        wanted.tries += 1
        again = Send(self.clients[wanted.client], Refresh(request, wanted.rows))
        return [again, Wake(self.patience.pause_s(wanted.tries), request)]

    def under_way(self, client: int, request: int) -> bool:
        """Whether this client was asked for this; then it has not been asked in vain."""
        wanted = self.wanted.get(request)
        if wanted is None or wanted.client != client:
            return False
        wanted.tries = 0
        return True

    def came(self, request: int) -> list[Contribution]:
        if not self.wanted[request].tries:
            self.patience.long_enough()
        return self.settle(request)

    def settle(self, request: int) -> list[Contribution]:
        """A refresh has come, or is given up; returns the contributions that waited for nothing else."""
        self.wanted.pop(request, None)
        free = []
        for contribution in [c for c in self.blocked if request in c.waiting]:
            contribution.waiting.discard(request)
            if not contribution.waiting:
                self.blocked.remove(contribution)
                free.append(contribution)
        return free

    def give_up(self, request: int) -> list[Contribution]:
        self.abandoned += 1
        return self.settle(request)

    def asked_of(self, client: int) -> list[int]:
        return [request for request, wanted in self.wanted.items() if wanted.client == client]

    def clear(self) -> None:
        self.wanted, self.blocked = {}, []

    def snapshot(self) -> dict[str, Any]:
        return {
            "counts": [self.asked_rows, self.refused_rows, self.abandoned],
            "blocked": [contribution.plain() for contribution in self.blocked],
            "wanted": [[request, w.client, w.rows.copy(), w.tries] for request, w in self.wanted.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.asked_rows, self.refused_rows, self.abandoned = state["counts"]
        self.blocked = [Contribution.from_plain(plain) for plain in state["blocked"]]
        self.wanted = {
            request: Wanted(client, np.array(rows), tries) for request, client, rows, tries in state["wanted"]
        }
