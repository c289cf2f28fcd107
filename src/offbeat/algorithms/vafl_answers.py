"""Which releases the server has seen, and what it answered: every number is taken once, and answered once.

A client that comes back begins a new *life*: its next numbers are higher than any it can have used, also those that
were still on their way when it asked.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from offbeat.algorithms.vafl_messages import Gradient, Resumed

LIFE = 2**32
"""Numbers of one life: release k of life j is j * LIFE + k, from k = 1."""


class Answers:
    """`kept`: how many answers can be given again, and how far behind the newest a late release may be."""

    def __init__(self, clients: int, kept: int) -> None:
        self.kept = kept
        self.highest: list[dict[int, int]] = [{0: 0} for _ in range(clients)]  # by life
        self.given: list[dict[int, Gradient]] = [{} for _ in range(clients)]
        self.replaced: set[tuple[int, int]] = set()

    def saw(self, client: int, release: int) -> None:
        seen, life = self.highest[client], release // LIFE
        seen[life] = max(seen.get(life, 0), release)

    def gave(self, client: int, body: Gradient) -> None:
        given = self.given[client]
        given[body.release] = body
        while len(given) > self.kept:
            del given[min(given)]

    def newest_given(self, client: int) -> int:
        return max(self.given[client], default=0)

    def replace(self, client: int, release: int) -> None:
        """This release was overtaken by a newer one of the same client before the head's update."""
        self.replaced = {(c, r) for c, r in self.replaced if not self._far_behind(c, r)} | {(client, release)}

    def too_late(self, client: int, release: int) -> bool:
        return self._far_behind(client, release) or (client, release) in self.replaced

    def _far_behind(self, client: int, release: int) -> bool:
        return release <= self.highest[client].get(release // LIFE, 0) - self.kept

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
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.highest = [dict(map(tuple, seen)) for seen in state["highest"]]
        self.given = [{fields[0]: Gradient(*fields) for fields in given} for given in state["given"]]
        self.replaced = {(client, release) for client, release in state["replaced"]}
