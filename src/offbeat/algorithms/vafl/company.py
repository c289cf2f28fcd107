"""Whose uploads one pass of the head serves, where such a pass takes long: VAFL's option `together`.

A pass for each upload would make a head that is a network busy all the time, with as many passes over the same rows as
there are clients. So clients take the batches of one order, the one that the server's count of passes names, and
uploads that come while the head works are served together by its next pass: over the same rows, a pass for all costs
as much as a pass for one. That pass also waits for clients that are *near*: those whose last upload came before one
pass had ended since they were answered. Who takes longer is not waited for. Now and then a pass does not wait for the
last one and shows whether it is near, more rarely as long as nobody changes; so the server needs no clock.
"""

from collections.abc import Collection, Mapping
from typing import Any

TRIAL_FIRST, TRIAL_SOON, TRIAL_LATE = 1, 4, 64
"""Passes from one that does not wait for the last one to the next."""


class Company:
    def __init__(self, clients: int) -> None:
        self.near = set(range(clients))
        self.answered: dict[int, int] = {}  # after how many passes each client was answered last
        self.trial = TRIAL_FIRST  # the next pass that does not wait for the last one,
        self.gap = TRIAL_SOON  # and how many passes after it another one may come
        self.seen = set(self.near)  # who was near after the last such pass

    def came(self, client: int, passes: int) -> None:
        """An upload has come, after so many passes."""
        if passes <= self.answered.get(client, 0):
            self.near.add(client)
        else:
            self.near.discard(client)

    def passed(self, served: Collection[int], waiting: Collection[int], passes: int) -> None:
        """A pass has ended, and they are so many now. Whoever was neither in it nor came during it is not near."""
        self.near &= {*served, *waiting}
        self.answered |= dict.fromkeys(served, passes)
        if passes > self.trial:
            self.gap = min(2 * self.gap, TRIAL_LATE) if self.near == self.seen else TRIAL_SOON
            self.trial, self.seen = passes + self.gap, set(self.near)

    def is_complete(self, waiting: Collection[int], absent: Collection[int], passes: int) -> bool:
        return len(self.near.difference(waiting, absent)) <= (passes == self.trial)

    def snapshot(self) -> dict[str, Any]:
        answered = [list(pair) for pair in self.answered.items()]
        return {
            "near": sorted(self.near),
            "answered": answered,
            "trial": [self.trial, self.gap],
            "seen": sorted(self.seen),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.near, self.seen = set(state["near"]), set(state["seen"])
        self.answered = dict(state["answered"])
        self.trial, self.gap = state["trial"]
