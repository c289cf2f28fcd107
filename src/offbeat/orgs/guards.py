"""A training party behind the checks of its owner: the rows are the agreed ones, and none is used too often.

`WatchedRows` knows which rows these are and how often each has been used. A guard is a party around a party. It counts
where numbers about rows leave, whatever brought them about; what would use a row more often than the owner allows does
not leave, and the run ends. The guards differ in which messages name rows and when a row counts as used:

`Guarded`, of the linear methods, names its rows to the others at the beginning, by a digest of their tokens, so that a
table that was joined wrongly fails at once. It counts shares of every kind of sum, and at a label holder, whose own
share is in the total, the products and derivatives that it tells others.

`GuardedEmbedding`, of VAFL: every message that names rows is preceded by a digest of those rows' tokens. Streams keep
their order, so the digest belongs to the next such message of the same sender.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms.afsgd_vp import Product
from offbeat.algorithms.vafl.messages import Ask, Gradient, Refresh, Refreshed, Upload
from offbeat.algorithms.vfb2 import Backward
from offbeat.party import smoothness
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
    Started,
    State,
)
from offbeat.party.masked_sum import PROBES, PRODUCTS, SURVEY, PartialGiven, ShareGiven
from offbeat.party.survey_messages import TablePart

Rows = slice | NDArray[np.int64]
Reserve = Callable[[int], int]
"""How many sums a row of the training may enter, at least so many, written down when it returns; 0: not so many. The
same answer to the same question for ever, so that a replay ends as the run did."""


class WatchedRows:
    """The rows of `owner`; nothing made of a row leaves before `reserve` has it. `cap`: the owner's, to name it."""

    def __init__(self, owner: PartyName, tokens: Sequence[bytes], *, reserve: Reserve, cap: int = 0) -> None:
        self.owner, self.cap, self._reserve = owner, cap, reserve
        self.asked = np.zeros(len(tokens), np.int64)
        self._level = 0  # how many sums of each row are reserved, as far as this process knows
        self._tokens = np.frombuffer(b"".join(tokens), np.uint8).reshape(len(tokens), -1)

    def __len__(self) -> int:
        return len(self._tokens)

    def digest(self, rows: Rows) -> bytes:
        return hashlib.blake2b(self._tokens[rows].tobytes(), digest_size=16).digest()

    def misaligned(self, whose: str) -> list[Effect]:
        reason = (
            f"{whose} are not the rows of '{self.owner}': tables were joined differently. Align them again; nothing "
            "was learned from these rows."
        )
        return [Observe("misaligned", reason), Finish("misaligned", reason)]

    def use(self, rows: Rows, times: int = 1) -> bool:
        """Count the rows as used so often, before that happens; where one would pass what its owner allows, nothing is
        counted, and the answer is no."""
        self._add(rows, times)
        needed = int(self.asked[rows].max(initial=0))
        if needed > self._level:
            self._level = max(self._level, self._reserve(needed))
        if needed <= self._level:
            return True
        self._add(rows, -times)
        return False

    def over(self, broken: str) -> list[Effect]:
        """The run ends: a row would have been used too often, and `broken` says by what."""
        reason = f"'{self.owner}' lets a row {broken}"
        return [Observe("row_cap", reason), Finish("row-cap", reason)]

    def _add(self, rows: Rows, times: int) -> None:
        if isinstance(rows, slice):
            self.asked[rows] += times
        else:
            np.add.at(self.asked, rows, times)  # a row may be named twice


SHARES = (ShareGiven, PartialGiven)
TOTALS = (Backward, Product, TablePart)
"""What a label holder tells of rows in whose total its own share is."""
LEAVING = frozenset((*SHARES, *TOTALS))


class RowsNamed(Message, frozen=True):
    """Which rows the sender trains on, in their order.

    Reveals: a digest of the salted ids of rows that all parties have.
    """

    digest: bytes


class Guarded:
    """`inner`, a party of a linear method, with its rows watched: a row is used when a share of it leaves."""

    def __init__(self, inner: Party, rows: WatchedRows) -> None:
        self.name: PartyName = inner.name
        self.inner: Any = inner
        self.rows = rows

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Received) and isinstance(event.body, RowsNamed):
            own = self.rows.digest(slice(0, len(self.rows))) == event.body.digest
            return [] if own else self.rows.misaligned(f"the rows of '{event.sender}'")
        effects = self.inner.handle(event)
        if isinstance(event, Started):
            name = RowsNamed(self.rows.digest(slice(0, len(self.rows))))
            effects = [Broadcast(self.inner.party.roster.peers, name), *effects]
        return self._count(effects) or effects

    def _count(self, effects: Sequence[Effect]) -> list[Effect]:
        """Why the run ends instead of these effects, if a row would be used too often."""
        for effect in effects:
            if not isinstance(effect, (Send, Broadcast)) or type(effect.body) not in LEAVING:
                continue
            rows, times = self._rows_of(effect)
            if times and not self.rows.use(rows, times):
                asker = self._asker(effect)
                return self.rows.over(f"enter at most {self.rows.cap} sums (row_cap), and '{asker}' asked for one more")
        return []

    def _asker(self, effect: Send | Broadcast) -> PartyName:
        """For whom a number leaves: the parties behind a tree's next node, or the label holder itself, do not show."""
        if isinstance(effect.body, PartialGiven):
            return effect.body.asker
        return effect.to if isinstance(effect, Send) and isinstance(effect.body, ShareGiven) else self.name

    def _rows_of(self, effect: Send | Broadcast) -> tuple[slice, int]:
        """Which rows a message is about, and how many numbers of each it tells."""
        body: Any = effect.body
        if isinstance(body, PartialGiven) and body.tree > 0:
            return slice(0, 0), 0  # the masks of an answer that is counted with its first tree
        if isinstance(body, SHARES):
            return self._of_share(self._asker(effect), body)
        if isinstance(body, Backward | Product):
            number = body.number if isinstance(body, Backward) else body.round
            told = self._outputs
            return (slice(0, 0), 0) if number < 0 else (slice(*self.inner.rows_asked(self.name, number)), told)
        return self._rows_from(body.start, body.derivatives), self._outputs

    def _of_share(self, asker: PartyName, body: Any) -> tuple[slice, int]:
        if body.kind == PRODUCTS:
            return slice(*self.inner.rows_asked(asker, body.first)), self._outputs
        if body.kind == SURVEY:
            return self._rows_from(body.first, body.words), self._outputs
        if body.kind == PROBES:
            return slice(0, smoothness.rows_of(self.inner.block)), smoothness.PROBES
        return slice(0, 0), 0  # numbers about weights, not about rows

    def _rows_from(self, start: int, values: np.ndarray) -> slice:
        return slice(start, start + len(values) // self._outputs)

    @property
    def _outputs(self) -> int:
        """How many numbers a sum tells of a row: one for each of several classes."""
        return int(self.inner.party.problem.outputs)

    def snapshot(self) -> State:
        return {"inner": self.inner.snapshot(), "asked": self.rows.asked.copy()}

    def restore(self, state: State) -> None:
        self.inner.restore(state["inner"])
        self.rows.asked = np.array(state["asked"])


WITH_ROWS = (Upload, Refresh, Refreshed, Ask)
MADE_OF_ROWS = (Upload, Refreshed, Gradient)


class BatchNamed(Message, frozen=True):
    """Which rows the next message of this sender is about.

    Reveals: a digest of the salted ids of rows that all parties have.
    """

    digest: bytes


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
            refusal = self._count(effect) if isinstance(effect.body, MADE_OF_ROWS) else []
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
