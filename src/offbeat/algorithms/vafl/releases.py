"""What a client has released, and what the server has seen of it.

A release is numbered, kept byte for byte until it is answered, repeated as it is, and never made twice. When its answer
is late, the client asks for the answer, and only where the server says that it has not got the release does it leave a
second time. The server takes every number once and answers it once.

Every upload says which is the oldest its client still waits for: below that nothing is asked for again, and the server
may forget. A client that comes back begins a new *life*: its next numbers are higher than any it can have used, also
those that were still on their way when it asked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from offbeat.algorithms.vafl.messages import AnswerWanted, Gradient, PredictGiven, Refreshed, Resting, Resumed, Upload
from offbeat.algorithms.vafl.patience import Patience
from offbeat.learning.embeddings import Array, Disturbance
from offbeat.learning.grid import Grid
from offbeat.party.contract import Effect, Message, PartyName, Send, Wake

ANSWERS_KEPT = 32  # answers that can be given again
QUIET = Disturbance()
NO_ROWS: Array = np.zeros(0, dtype=np.int64)

_TYPES: dict[str, Callable[..., Any]] = {
    "Upload": Upload,
    "Resting": Resting,
    "Refreshed": Refreshed,
    "PredictGiven": PredictGiven,
}


@dataclass
class Pending:
    """Something released and not yet answered, with what its gradient needs after a restart."""

    body: Message
    rows: Array
    disturbance: Disturbance
    tries: int = 0
    derivative: Array | None = None

    def plain(self) -> list[Any]:
        grid, noise, seed, _ = self.disturbance
        on_grid = None if grid is None else [grid.step, grid.bound]
        return [*_plain(self.body), self.rows.copy(), on_grid, noise, seed, self.tries, self.derivative]


class Releases:
    """Release numbers, open releases, and the latest answers to the server's requests."""

    def __init__(self, server: PartyName, retry_s: float) -> None:
        self.server, self.patience = server, Patience(retry_s)
        self.newest = self.retried = 0  # release number; how many releases were sent again
        self.pending: dict[int, Pending] = {}
        self.answers: dict[int, Message] = {}

    def next_number(self) -> int:
        self.newest += 1
        return self.newest

    def keep(self, body: Message, rows: Array = NO_ROWS, disturbance: Disturbance = QUIET) -> list[Effect]:
        """Send, and hold until it is answered."""
        self.pending[self.newest] = Pending(body, rows, disturbance)
        return [Send(self.server, body), Wake(self.patience.pause_s(), self.newest)]

    def unanswered(self, release: int) -> Pending | None:
        pending = self.pending.get(release)
        return None if pending is None or pending.derivative is not None else pending

    def open_uploads(self, before: int) -> list[int]:
        """Uploads with a lower number that wait for a derivative."""
        older = (n for n, p in self.pending.items() if n < before and isinstance(p.body, Upload) and p.body.wanted)
        return [n for n in older if self.unanswered(n) is not None]

    def ask_after(self, pending: Pending, release: int) -> list[Effect]:
        pending.tries += 1
        return [Send(self.server, AnswerWanted(release)), Wake(self.patience.pause_s(pending.tries), release)]

    def ask_after_all(self) -> list[Effect]:
        """Everything unanswered, with fresh timers: after a restart."""
        effects: list[Effect] = []
        for release in self.pending:
            if self.unanswered(release) is not None:
                effects += [Send(self.server, AnswerWanted(release)), Wake(self.patience.pause_s(), release)]
        return effects

    def under_way(self, release: int) -> None:
        """The server is at it."""
        pending = self.unanswered(release)
        if pending is not None:
            pending.tries = 0
            self.patience.too_short()

    def send_again(self, release: int) -> list[Effect]:
        """The server does not have it."""
        pending = self.unanswered(release)
        if pending is None:
            return []
        self.retried += 1
        return [Send(self.server, pending.body)]

    def answer(self, request: int, body: Message) -> list[Effect]:
        self.answers[request] = body
        while len(self.answers) > ANSWERS_KEPT:
            del self.answers[next(iter(self.answers))]
        return [Send(self.server, body)]

    def answered_before(self, request: int) -> list[Effect]:
        """The same answer once more, if this request has had one."""
        return [Send(self.server, self.answers[request])] if request in self.answers else []

    def forget(self) -> None:
        """More was sent since the snapshot: drop what that has overtaken."""
        self.pending = {n: p for n, p in self.pending.items() if isinstance(p.body, Upload) and not p.body.wanted}

    def snapshot(self) -> dict[str, Any]:
        return {
            "counts": [self.newest, self.retried, self.patience.factor],
            "pending": [[release, *pending.plain()] for release, pending in self.pending.items()],
            "answers": [_plain(body) for body in self.answers.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.newest, self.retried, self.patience.factor = state["counts"]
        self.pending = {release: _pending(rest) for release, *rest in state["pending"]}
        self.answers = {body.request: body for body in (_TYPES[kind](*fields) for kind, fields in state["answers"])}


def _plain(body: Message) -> list[Any]:
    return [type(body).__name__, list(msgspec.structs.astuple(body))]


def _pending(plain: Sequence[Any]) -> Pending:
    kind, fields, rows, on_grid, noise, seed, tries, derivative = plain
    grid = None if on_grid is None else Grid(*on_grid)
    return Pending(_TYPES[kind](*fields), np.array(rows), Disturbance(grid, noise, seed), tries, derivative)


LIFE = 2**32
"""Numbers of one life: release k of life j is j * LIFE + k, from k = 1."""


class GivenAnswers:
    def __init__(self, clients: int) -> None:
        self.highest: list[dict[int, int]] = [{0: 0} for _ in range(clients)]  # by life
        self.given: list[dict[int, Gradient]] = [{} for _ in range(clients)]
        self.replaced: set[tuple[int, int]] = set()
        self.settled = [0] * clients  # releases below this number are over

    def saw(self, client: int, release: int) -> None:
        seen, life = self.highest[client], release // LIFE
        seen[life] = max(seen.get(life, 0), release)

    def settle(self, client: int, oldest: int) -> None:
        """The client waits for no release below this one."""
        if oldest > self.settled[client]:
            self.settled[client] = oldest
            self.given[client] = {n: body for n, body in self.given[client].items() if n >= oldest}
            self.replaced = {(c, n) for c, n in self.replaced if n >= self.settled[c]}

    def gave(self, client: int, body: Gradient) -> None:
        self.given[client][body.release] = body

    def newest_given(self, client: int) -> int:
        return max(self.given[client], default=0)

    def replace(self, client: int, release: int) -> None:
        """This release was overtaken by a newer one of the same client before the head's update."""
        self.replaced.add((client, release))

    def too_late(self, client: int, release: int) -> bool:
        return release < self.settled[client] or (client, release) in self.replaced

    def new_life(self, client: int, remembered: int, begun: bool) -> Resumed:
        """What a client is told that remembers releases up to this number."""
        seen = self.highest[client]
        forgotten = sum(number - max(life * LIFE, remembered) for life, number in seen.items() if number > remembered)
        life = max(max(seen), remembered // LIFE) + 1
        seen[life] = life * LIFE
        return Resumed(seen[life], forgotten, begun)

    def snapshot(self) -> dict[str, Any]:
        return {
            "highest": [list(seen.items()) for seen in self.highest],
            "given": [[list(msgspec.structs.astuple(body)) for body in given.values()] for given in self.given],
            "replaced": sorted(self.replaced),
            "settled": list(self.settled),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.highest = [dict(map(tuple, seen)) for seen in state["highest"]]
        self.given = [{fields[0]: Gradient(*fields) for fields in given} for given in state["given"]]
        self.replaced = {(client, release) for client, release in state["replaced"]}
        self.settled = list(state["settled"])
