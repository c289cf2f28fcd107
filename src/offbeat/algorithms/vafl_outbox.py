"""What a client has released: numbered, kept byte for byte until answered, repeated as it is, never made twice.

A release whose answer is late is not sent again at once: the client asks for the answer, and only where the server says
that it has not got the release does it leave a second time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms.vafl_messages import AnswerWanted, PredictGiven, Refreshed, Resting, Upload
from offbeat.algorithms.vafl_patience import Patience
from offbeat.learning.embeddings import Disturbance
from offbeat.learning.grid import Grid
from offbeat.party.contract import Effect, Message, PartyName, Send, Wake

Array = NDArray[Any]
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


class Outbox:
    """Release numbers, open releases, and the latest answers to the server's requests."""

    def __init__(self, server: PartyName, retry_s: float) -> None:
        self.server, self.patience = server, Patience(retry_s)
        self.releases = self.retried = 0
        self.pending: dict[int, Pending] = {}
        self.answers: dict[int, Message] = {}

    def next_number(self) -> int:
        self.releases += 1
        return self.releases

    def keep(self, body: Message, rows: Array = NO_ROWS, disturbance: Disturbance = QUIET) -> list[Effect]:
        """Send, and hold until it is answered."""
        self.pending[self.releases] = Pending(body, rows, disturbance)
        return [Send(self.server, body), Wake(self.patience.pause_s(), self.releases)]

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
            "counts": [self.releases, self.retried, self.patience.factor],
            "pending": [[release, *pending.plain()] for release, pending in self.pending.items()],
            "answers": [_plain(body) for body in self.answers.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.releases, self.retried, self.patience.factor = state["counts"]
        self.pending = {release: _pending(rest) for release, *rest in state["pending"]}
        self.answers = {body.request: body for body in (_TYPES[kind](*fields) for kind, fields in state["answers"])}


def _plain(body: Message) -> list[Any]:
    return [type(body).__name__, list(msgspec.structs.astuple(body))]


def _pending(plain: Sequence[Any]) -> Pending:
    kind, fields, rows, on_grid, noise, seed, tries, derivative = plain
    grid = None if on_grid is None else Grid(*on_grid)
    return Pending(_TYPES[kind](*fields), np.array(rows), Disturbance(grid, noise, seed), tries, derivative)
