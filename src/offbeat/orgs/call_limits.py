"""How many calls a member may have open at a daemon, and how often its refusals are logged."""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from offbeat.errors import OffbeatError, Refused

log = logging.getLogger("offbeat.party")

CALLS_OF_A_KIND = 4
REFUSALS_LOGGED = 50


class CallLimits:
    """`most`: other numbers than the usual one, by kind of request. Thread-safe."""

    def __init__(self, owner: str, most: Mapping[type, int]) -> None:
        self._owner, self._most = owner, most
        self._open: Counter[tuple[str, type]] = Counter()
        self._lock = threading.Lock()
        self.refused: Counter[str] = Counter()

    @contextmanager
    def one_more(self, peer: str, kind: type) -> Iterator[None]:
        """A member holds few of this daemon's threads at once, so that no member keeps another out."""
        most = self._most.get(kind, CALLS_OF_A_KIND)
        with self._lock:
            if self._open[peer, kind] >= most:
                raise Refused(f"'{peer}' has {most} calls ({kind.__name__}) open at '{self._owner}', the most at once.")
            self._open[peer, kind] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[peer, kind] -= 1

    def note_refusal(self, peer: str, problem: OffbeatError) -> None:
        """The first ones in full, then one each time their number doubles: a log must not be a way to fill a disk."""
        self.refused[peer] += 1
        count = self.refused[peer]
        if count <= REFUSALS_LOGGED or count & (count - 1) == 0:
            log.warning("%s was refused: %s (%d so far)", peer, problem, count)
