"""How many calls a member may have open at a daemon, how often its refusals are logged, and which were the last.

private/refusals.json   the last refusals of each member, over restarts
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from offbeat.errors import OffbeatError, Refused
from offbeat.orgs.control import RefusedCall
from offbeat.orgs.discreet import printable
from offbeat.orgs.durable import now_text, write_durably

log = logging.getLogger("offbeat.party")

CALLS_OF_A_KIND = 4
REFUSALS_LOGGED = 50
REFUSALS_KEPT = 20  # of each member
PROPOSALS = ("Propose", "Submit")  # of these mistakes are kept, too


class CallLimits:
    """`most`: other numbers than the usual one, by kind of request. `note` hears of refused proposals, as rarely as
    the log does. Thread-safe."""

    def __init__(self, owner: str, most: Mapping[type, int], kept: Path, note: Callable[[str, str], None]) -> None:
        self._owner, self._most, self._path, self._note = owner, most, kept, note
        self._open: Counter[tuple[str, type]] = Counter()
        self._lock = threading.Lock()
        self.refused: Counter[str] = Counter()
        self._last = _read(kept)

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

    def note_refusal(self, peer: str, request: str, problem: OffbeatError) -> None:
        """The first ones in full, then one each time their number doubles: a log must not be a way to fill a disk."""
        with self._lock:
            self.refused[peer] += 1
            count = self.refused[peer]
            rare = count <= REFUSALS_LOGGED or count & (count - 1) == 0
            if isinstance(problem, Refused) or request in PROPOSALS:
                self._keep(RefusedCall(now_text(), peer, request, printable(str(problem))), rare)
        if rare and request == PROPOSALS[0]:
            try:
                self._note(peer, printable(str(problem)))
            except OSError as full:  # the peer is refused all the same
                log.error("a refusal could not be written down: %s", full, extra={"peer": peer})
        if rare:
            log.warning("%s was refused: %s (%d so far)", peer, problem, count, extra={"peer": peer})

    def last_refusals(self) -> list[RefusedCall]:
        """Of each member the last few, the oldest first; the same one many times is told once."""
        with self._lock:
            return sorted((one for kept in self._last.values() for one in kept), key=lambda one: one.at)

    def _keep(self, new: RefusedCall, write: bool) -> None:
        before = self._last.setdefault(new.peer, [])
        same = [one for one in before if (one.request, one.reason) == (new.request, new.reason)]
        times = 1 + sum(one.times for one in same)
        before[:] = [*(one for one in before if one not in same), msgspec.structs.replace(new, times=times)]
        del before[:-REFUSALS_KEPT]
        if write:
            with suppress(OSError):  # a full disk: memory has it
                write_durably(self._path, msgspec.json.encode(self._last))


def _read(path: Path) -> dict[str, list[RefusedCall]]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, list[RefusedCall]])
    except (OSError, msgspec.MsgspecError):  # there were none, or nobody misses them
        return {}
