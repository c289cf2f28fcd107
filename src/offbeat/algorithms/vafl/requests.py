"""What the server asks of its clients and says to them, again and again until they answer.

`Refreshes` keep the bounded delay: an update waits for fresh rows, the others go on. `Rounds` is a round of the
synchronous variant, which waits for all. `JointPrediction` replaces a client that is missing, and flags it. `Shutdown`
ends the run: the server tells everyone why, until all have said goodbye or nobody answers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.algorithms.vafl.messages import Ask, Halt, PredictAsked, Refresh
from offbeat.algorithms.vafl.patience import Patience
from offbeat.learning.embeddings import Array
from offbeat.party.contract import Broadcast, Effect, Finish, PartyName, Send, Wake

TRIES_MAX = 5


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
class WantedRefresh:
    """A refresh that was asked for and has not come."""

    client: int
    rows: Array
    tries: int = 0


class Refreshes:
    """Open requests, and the contributions blocked by them."""

    def __init__(self, clients: Sequence[PartyName], patience: Patience) -> None:
        self.clients, self.patience = clients, patience
        self.wanted: dict[int, WantedRefresh] = {}
        self.blocked: list[Contribution] = []
        self.asked_rows = self.refused_rows = self.abandoned = 0

    def want(self, request: int, client: int, rows: Array, contribution: Contribution) -> list[Effect]:
        self.wanted[request] = WantedRefresh(client, rows)
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
            request: WantedRefresh(client, np.array(rows), tries) for request, client, rows, tries in state["wanted"]
        }


class Rounds:
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


class Shutdown:
    """Says `Halt` until every client has said `Goodbye`, or for as long as anybody may answer."""

    def __init__(self, clients: Sequence[PartyName], retry_s: float, token: int) -> None:
        self.clients, self.retry_s, self.token = tuple(clients), retry_s, token
        self.verdict = self.reason = ""
        self.iteration = self.tries = 0
        self.gone: set[int] = set()

    @property
    def body(self) -> Halt:
        return Halt(self.verdict, self.reason, self.iteration)

    def announce(self, iteration: int) -> list[Effect]:
        self.iteration = iteration
        return [Broadcast(self.clients, self.body), Wake(self.retry_s, self.token)]

    def announce_again(self) -> list[Effect]:
        self.tries += 1
        left = tuple(name for i, name in enumerate(self.clients) if i not in self.gone)
        if not left or self.tries > TRIES_MAX:
            return [Finish(self.verdict, self.reason)]
        return [Broadcast(left, self.body), Wake(self.retry_s, self.token)]

    def left(self, client: int) -> list[Effect]:
        self.gone.add(client)
        return [Finish(self.verdict, self.reason)] if len(self.gone) == len(self.clients) else []

    def snapshot(self) -> list[Any]:
        return [self.verdict, self.reason, self.iteration, self.tries, sorted(self.gone)]

    def restore(self, state: Sequence[Any]) -> None:
        self.verdict, self.reason, self.iteration, self.tries, gone = state
        self.gone = set(gone)
