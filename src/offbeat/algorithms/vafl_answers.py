"""Which releases the server has seen, and what it answered: every number is taken once, and answered once.

Every upload says which is the oldest its client still waits for: below that nothing is asked for again, and the server
may forget. A client that comes back begins a new *life*: its next numbers are higher than any it can have used, also
those that were still on their way when it asked.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from offbeat.algorithms.vafl_messages import Gradient, Resumed

LIFE = 2**32
"""Numbers of one life: release k of life j is j * LIFE + k, from k = 1."""


class Answers:
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
