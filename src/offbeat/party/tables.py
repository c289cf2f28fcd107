"""What a party does with the tables of surveys: chunk by chunk they refresh its own table and its mean gradient.

A party's block remembers one derivative for each row, and the mean gradient that belongs to these. A survey sends new
derivatives of all rows. Refreshing takes time: whoever is slow does not get to all of them before the next survey
comes. It goes on, row after row, always with the newest derivatives there are, so its mean gradient is a mixture of
young ones (as in SAGA, and in incremental aggregated gradient methods). Now and then the chair wants to *certify* a
survey: then the party refreshes all rows from that one, and its mean gradient is exact there.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.learning.blocks import Block
from offbeat.party.contract import Effect
from offbeat.party.works import Works

Floats = NDArray[np.float64]


class Refresh(msgspec.Struct, frozen=True, gc=False):
    """Work: the rows of one chunk are refreshed from a survey's table."""

    survey: int
    start: int


class Table:
    """The derivatives of one survey, as they arrive, and the point they belong to."""

    def __init__(self, survey: int, point: Floats, outputs: int, rows: int) -> None:
        self.survey, self.point = survey, point
        self.derivatives = np.zeros((outputs, rows))
        self.arrived: set[int] = set()

    def plain(self) -> list[Any]:
        return [self.survey, self.point, self.derivatives.copy(), sorted(self.arrived)]

    @classmethod
    def from_plain(cls, plain: list[Any] | None) -> "Table | None":
        if plain is None:
            return None
        survey, point, derivatives, arrived = plain
        table = cls(survey, point, *derivatives.shape)
        table.derivatives, table.arrived = derivatives, set(arrived)
        return table


class Tables:
    """The newest table, and the one to be certified."""

    def __init__(self, block: Block, outputs: int, works: Works) -> None:
        self.block, self.outputs, self.works = block, outputs, works
        self.blank({})

    def blank(self, chunks: Mapping[int, int]) -> None:
        """Forget everything. `chunks`: start to stop, of all rows."""
        self.chunks = dict(chunks)
        self.newest: Table | None = None
        self.wanted: Table | None = None  # to be certified
        self.holds = dict.fromkeys(chunks, 0)  # which survey's derivatives the block has, by chunk
        self.cursor = 0  # where to look for the next chunk, in the order of rows
        self.under_way: Refresh | None = None
        self.refreshed = False  # since the last step along the mean gradient

    def expect(self, survey: int, point: Floats, certify: bool) -> None:
        """A leap has ended at this point: its table is on its way."""
        self.newest = Table(survey, point, self.outputs, self.block.rows)
        if certify:
            self.wanted = self.newest

    def take(self, survey: int, start: int, derivatives: Floats) -> list[Effect]:
        """One chunk has arrived."""
        table = self.newest
        assert table is not None and table.survey == survey
        table.derivatives[:, start : self.chunks[start]] = derivatives.reshape(self.outputs, -1)
        table.arrived.add(start)
        return self.work()

    @property
    def working(self) -> bool:
        """Whether the block does not have all of the newest derivatives yet."""
        return self.newest is not None and any(held != self.newest.survey for held in self.holds.values())

    def work(self) -> list[Effect]:
        """Spend the lane on the next chunk, unless it is busy."""
        if self.under_way is not None:
            return []
        table = self.wanted or self.newest
        start = self._next(table) if table is not None else None
        if table is None or start is None:
            return []
        self.under_way = Refresh(table.survey, start)
        stop = self.chunks[start]
        halves = (stop - start + 1) // 2, self.block.nonzeros(start, stop) // 2  # a gradient is half of a pass's work
        return [self.works.begin(self.under_way, *halves)]

    def _next(self, table: Table) -> int | None:
        starts = list(self.chunks)
        for step in range(len(starts)):
            start = starts[(self.cursor + step) % len(starts)]
            if self.holds[start] != table.survey and start in table.arrived:
                self.cursor = (self.cursor + step + 1) % len(starts)
                return start
        return None

    def done(self, work: Refresh) -> bool:
        """The time for one chunk has been spent. Whether that was work under way."""
        if work != self.under_way:
            return False
        self.under_way = None
        table = self.wanted if self.wanted is not None and self.wanted.survey == work.survey else self.newest
        if table is None or table.survey != work.survey:
            return True  # a newer table took its place meanwhile
        start, stop = work.start, self.chunks[work.start]
        self.block.refresh(start, stop, np.ascontiguousarray(table.derivatives[:, start:stop]).ravel())
        self.holds[start], self.refreshed = work.survey, True
        return True

    def certifiable(self) -> Table | None:
        """The wanted table, once the block has all of it."""
        table = self.wanted
        if table is None or any(held != table.survey for held in self.holds.values()):
            return None
        self.wanted = None
        return table

    def snapshot(self) -> dict[str, Any]:
        work = self.under_way
        return {
            "newest": self.newest.plain() if self.newest is not None else None,
            "wanted": self.wanted.plain() if self.wanted is not None else None,
            "holds": [[start, held] for start, held in self.holds.items()],
            "cursor": self.cursor,
            "under_way": [work.survey, work.start] if work is not None else None,
            "refreshed": self.refreshed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.newest, self.wanted = Table.from_plain(state["newest"]), Table.from_plain(state["wanted"])
        if self.newest is not None and self.wanted is not None and self.newest.survey == self.wanted.survey:
            self.wanted = self.newest
        self.holds, self.cursor, self.refreshed = dict(state["holds"]), state["cursor"], state["refreshed"]
        self.under_way = Refresh(*state["under_way"]) if state["under_way"] is not None else None
