"""What waits for one party: what came for it, and what it asked for itself, each now or at its time."""

import heapq
import threading
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """Any thread puts, one thread takes. `open` counts what may still cause an event: items that were put or announced
    by `expect`, until the taker has dealt with them and says so by `settle`. `idle` is called when none is left."""

    def __init__(self, clock: Callable[[], float], idle: Callable[[], None] | None = None) -> None:
        self.open = 0
        self.lock = threading.Lock()
        self._news = threading.Condition(self.lock)
        self._ready: deque[Item] = deque()
        self._later: list[tuple[float, int, Item]] = []
        self._order = 0
        self.closed = self._woken = False
        self._clock, self._idle = clock, idle

    def __len__(self) -> int:
        """Items that wait, for their time or to be taken."""
        return len(self._ready) + len(self._later)

    @property
    def ready(self) -> int:
        """Items that could be taken now."""
        return len(self._ready)

    def put(self, item: Item, due_s: float = 0.0) -> None:
        """A closed inbox drops it: its party hears nothing more."""
        with self._news:
            if self.closed:
                return
            self.open += 1
            if due_s > 0:
                self._order += 1
                heapq.heappush(self._later, (due_s, self._order, item))
            else:
                self._ready.append(item)
            self._news.notify()

    def expect(self) -> None:
        """Something will be put that is not here yet, such as the result of a job; `settle` takes it back."""
        with self.lock:
            self.open += 1

    def take(self, most: int, until_s: float = inf) -> list[Item]:
        """The next items, waiting for the first; none at `until_s`, when woken, and once the inbox is closed."""
        with self._news:
            if not self._due() and not self.closed and not self._woken:
                wait_until_s = min(until_s, self._later[0][0]) if self._later else until_s
                self._news.wait(None if wait_until_s == inf else max(0.0, wait_until_s - self._clock()))
                self._due()
            self._woken = False
            if self.closed:
                return []
            return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def _due(self) -> bool:
        """Move what is due to what is ready; whether anything is."""
        while self._later and self._later[0][0] <= self._clock():
            self._ready.append(heapq.heappop(self._later)[2])
        return bool(self._ready)

    def settle(self, count: int = 1) -> None:
        with self.lock:
            self.open -= count
            nothing_left = self.open == 0
        if nothing_left and self._idle is not None:
            self._idle()

    def wake(self) -> None:
        """Let the taker look around: something has changed that is not an item."""
        with self._news:
            self._woken = True
            self._news.notify()

    def close(self) -> None:
        """Take nothing more, and forget what is here."""
        with self._news:
            self.closed = True
            dropped = len(self._ready) + len(self._later)
            self._ready.clear()
            self._later.clear()
            self._news.notify()
        self.settle(dropped)
