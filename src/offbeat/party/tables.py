"""What a party does with the tables of surveys: chunk by chunk they refresh its own table and its mean gradient.

A party's block remembers one derivative for each row, and the mean gradient that belongs to these. A survey sends new
derivatives of all rows. Refreshing takes as long as a pass of steps.

Who is late takes its table in small pieces. While it is at that, its block still moves: at each mark it steps along
what it knows by then of the whole gradient. The rows that it has refreshed tell how the gradient has changed since the
table before, for all rows on average: they are in random order.

The leap, which goes to everybody, carries a digest of each chunk of the table to come: nobody is given another one.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.learning.blocks import Block
from offbeat.party.contract import Effect, PartyName
from offbeat.party.expected import expect
from offbeat.party.memory import Memory
from offbeat.party.works import Works

Floats = NDArray[np.float64]


DIGEST_BYTES = 16
PIECES, PIECE_LEAST = 32, 64
"""In how many pieces a late party takes a table, and how many rows a piece has at least."""


def digest_of(derivatives: Floats, second: Floats | None) -> bytes:
    """Of one chunk: the derivatives, and the curvatures where they are told."""
    digest = sha256(np.ascontiguousarray(derivatives).data)
    if second is not None:
        digest.update(np.ascontiguousarray(second).data)
    return digest.digest()[:DIGEST_BYTES]


class RowsRefreshed(msgspec.Struct, frozen=True, gc=False):
    """Work: the rows of one piece are refreshed from a survey's table."""

    survey: int
    start: int


class DerivativeTable:
    """The derivatives of one survey, as they arrive, and the point they belong to."""

    def __init__(self, survey: int, point: Floats, outputs: int, rows: int, digests: bytes = b"") -> None:
        self.survey, self.point, self.digests = survey, point, digests
        self.derivatives = np.zeros((outputs, rows))
        self.arrived: set[int] = set()
        self.second: Floats | None = None  # the curvature of each row there, where the chair tells it

    def snapshot(self) -> list[Any]:
        told = [] if self.second is None else [self.second.copy()]
        return [self.survey, self.point, self.derivatives.copy(), sorted(self.arrived), self.digests, *told]

    @classmethod
    def from_plain(cls, plain: list[Any] | None) -> "DerivativeTable | None":
        if plain is None:
            return None
        survey, point, derivatives, arrived, digests, *told = plain
        table = cls(survey, point, derivatives.shape[0], derivatives.shape[1], digests)
        table.derivatives, table.arrived = derivatives, set(arrived)
        table.second = told[0] if told else None
        return table


class Tables(Memory):
    """The newest table that this party is to take, and how far it is."""

    KEPT = ("newest", "left", "under_way", "refreshed", "before", "pieces")

    def __init__(self, block: Block, outputs: int, works: Works) -> None:
        self.block, self.outputs, self.works = block, outputs, works
        self.blank({})

    def blank(self, chunks: Mapping[int, int]) -> None:
        """Forget everything. `chunks`: start to stop, of all rows."""
        self.chunks = dict(chunks)
        self.newest: DerivativeTable | None = None
        self.arrived = True  # whether all of it is here
        self.pieces: dict[int, tuple[int, int]] = {}  # what is refreshed at a time: start to stop, and to its chunk
        self.left: set[int] = set()  # pieces of it that the block has not got
        self.under_way: RowsRefreshed | None = None
        self.refreshed = False  # since the last step along the mean gradient
        self.before: Floats | None = None  # the mean gradient of the table before, at who is late
        self.second: Floats | None = None  # the curvature of each row where its derivative was taken, as it was told

    def take_second(self, start: int, second: Floats) -> None:
        """The curvature of one chunk has arrived, ahead of its derivatives."""
        table = self.newest
        assert table is not None
        if table.second is None:
            table.second = np.ones_like(table.derivatives)
        table.second[:, start : self.chunks[start]] = second.reshape(self.outputs, -1)

    def digests(self, derivatives: Floats, second: Floats | None) -> bytes:
        """Of all chunks, in their order."""
        parts = [slice(start, stop) for start, stop in self.chunks.items()]
        return b"".join(digest_of(derivatives[:, p], None if second is None else second[:, p]) for p in parts)

    def expect(self, survey: int, point: Floats, digests: bytes, late: bool) -> None:
        """A leap has ended at this point: its table is on its way. `late`: nobody waits for this party, and it steps at
        each mark."""
        self.newest = DerivativeTable(survey, point, self.outputs, self.block.rows, digests)
        size = max(PIECE_LEAST, -(-self.block.rows // PIECES)) if late else self.block.rows
        self.pieces = {
            at: (min(at + size, stop), start) for start, stop in self.chunks.items() for at in range(start, stop, size)
        }
        self.before = self.block.mean_gradient() if late else None
        self.left, self.arrived = set(self.pieces), False

    def check(self, sender: PartyName, start: int, derivatives: Floats) -> None:
        """Refuse a chunk that is not the one that the leap announced to everybody."""
        assert self.newest is not None
        second = self.newest.second
        second = None if second is None else second[:, start : self.chunks[start]]
        at = DIGEST_BYTES * list(self.chunks).index(start)
        same = digest_of(derivatives, second) == self.newest.digests[at : at + DIGEST_BYTES]
        expect(same, sender, f"another table from row {start} than its leap has announced")

    def take(self, survey: int, start: int, derivatives: Floats) -> list[Effect]:
        """One chunk has arrived."""
        table = self.newest
        assert table is not None and table.survey == survey
        table.derivatives[:, start : self.chunks[start]] = derivatives.reshape(self.outputs, -1)
        table.arrived.add(start)
        self.arrived = len(table.arrived) == len(self.chunks)
        return self.work()

    @property
    def working(self) -> bool:
        """Whether the block does not have all of the newest derivatives yet."""
        return bool(self.left)

    def gradient_so_far(self) -> Floats:
        """The mean gradient at the newest table's point, as far as the refreshed rows tell."""
        mean = self.block.mean_gradient()
        if not self.left or self.before is None:
            return mean
        rows = self.block.rows - sum(self.pieces[start][0] - start for start in self.left)
        return self.before + (mean - self.before) * (self.block.rows / rows)

    def work(self) -> list[Effect]:
        """Spend the lane on the next piece, unless it is busy."""
        if self.newest is None or self.under_way is not None:
            return []
        ready = [start for start in self.left if self.pieces[start][1] in self.newest.arrived]
        if not ready:
            return []
        start = min(ready)
        self.under_way = RowsRefreshed(self.newest.survey, start)
        stop = self.pieces[start][0]
        halves = (stop - start + 1) // 2, self.block.nonzeros(start, stop) // 2  # a gradient is half of a pass's work
        return [self.works.begin(self.under_way, *halves)]

    def done(self, work: RowsRefreshed) -> bool:
        """The time for one piece has been spent. Whether that was work under way."""
        if work != self.under_way:
            return False
        self.under_way = None
        table, start = self.newest, work.start
        assert table is not None and table.survey == work.survey
        stop = self.pieces[start][0]
        self.block.refresh(start, stop, np.ascontiguousarray(table.derivatives[:, start:stop]).ravel())
        self.left.discard(start)
        self.refreshed = True
        if table.second is not None:
            self.second = table.second.copy() if self.second is None else self.second
            self.second[:, start:stop] = table.second[:, start:stop]
        return True

    def gradient_at(self, table: DerivativeTable) -> Floats:
        """Steps of SAGA may have exchanged derivatives of the block meanwhile: then the gradient is taken anew."""
        if np.array_equal(self.block.table, table.derivatives):
            return self.block.mean_gradient()
        gradient = np.zeros_like(table.point)
        for start, stop in self.chunks.items():
            self.block.add_gradient(start, stop, table.derivatives[:, start:stop].ravel(), gradient)
        return gradient

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | ({} if self.second is None else {"second": self.second.copy()})

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.newest = DerivativeTable.from_plain(state["newest"])
        self.arrived = self.newest is None or len(self.newest.arrived) == len(self.chunks)
        self.pieces = {int(start): (stop, chunk) for start, (stop, chunk) in state["pieces"].items()}
        self.under_way = RowsRefreshed(*state["under_way"]) if state["under_way"] is not None else None
        self.second = state.get("second")
