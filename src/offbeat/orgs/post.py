"""Letters for a party that cannot be called: it has no open port, so it asks its peers for letters instead.

A daemon that wants something from such a party puts the request into its box (`Post`) and waits. The party's own daemon
asks everybody who can be called for letters (`LetterFetching`), again and again, over connections that it opens
itself, and answers; the answer is handed to whoever waits.
"""

import itertools
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable

from offbeat.errors import OffbeatError, PeerFailed
from offbeat.orgs import control
from offbeat.orgs.lines import PeerCalls
from offbeat.runtime.grpc.identity import Member

log = logging.getLogger("offbeat.party")

LETTERS_KEPT = 64
POLL_WITHIN_S, POLL_PAUSE_S = 10.0, 1.0


class Post:
    """One box per party. Thread-safe; everything in it has a bound and an end."""

    def __init__(self) -> None:
        self._boxes: dict[str, deque[tuple[int, bytes]]] = defaultdict(deque)
        self._answers: dict[tuple[str, int], bytes | None] = {}  # None: still waited for
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()

    def send(self, peer: str, request: bytes, timeout_s: float) -> bytes:
        """Put a letter into the peer's box and wait for its answer."""
        with self._changed:
            if len(self._boxes[peer]) >= LETTERS_KEPT:
                raise PeerFailed(f"'{peer}' does not fetch its letters; is its daemon running?")
            number = next(self._numbers)
            self._answers[peer, number] = None
            self._boxes[peer].append((number, request))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answers[peer, number] is not None, timeout_s)
            answer = self._answers.pop((peer, number))
            if answer is None:
                self._boxes[peer] = deque(letter for letter in self._boxes[peer] if letter[0] != number)
                raise PeerFailed(
                    f"'{peer}' has no address and did not call within {timeout_s:.0f} s; is `offbeat party serve` "
                    "running there, and may it reach us?"
                )
            return answer

    def collect(self, peer: str, timeout_s: float) -> list[tuple[int, bytes]]:
        """The peer's letters; waits for the first for a while."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._boxes[peer]), timeout_s)
            letters = list(self._boxes[peer])
            self._boxes[peer].clear()
            return letters

    def waiting(self) -> dict[str, int]:
        """How many letters lie in each box."""
        with self._changed:
            return {peer: len(box) for peer, box in self._boxes.items()}

    def answer(self, peer: str, number: int, content: bytes) -> None:
        """A peer answers the letters in its own box, and no others."""
        with self._changed:
            if (peer, number) in self._answers:
                self._answers[peer, number] = content
                self._changed.notify_all()


class LetterFetching:
    """A thread for each member that can be called. `calls`: by the roster as it is now; `answer`: what the daemon says
    to a member's request; `ended` ends all threads."""

    def __init__(
        self, calls: Callable[[], PeerCalls], answer: Callable[[Member, bytes], bytes], ended: threading.Event
    ) -> None:
        self._calls, self._answer, self._ended = calls, answer, ended
        self._asked: set[str] = set()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Ask everybody who is not asked yet; a party with an address is called, and asks nobody."""
        calls = self._calls()
        if calls.roster.member(calls.identity.name).address:
            return
        with self._lock:
            new = [member.name for member in calls.roster.members if member.address and member.name not in self._asked]
            self._asked.update(new)
        for name in new:
            threading.Thread(target=self._poll, args=(name,), name=f"letters of {name}", daemon=True).start()

    def _poll(self, name: str) -> None:
        while not self._ended.is_set():
            try:
                calls = self._calls()
                letters = calls.call(name, control.Poll(), POLL_WITHIN_S + control.CALL_WITHIN_S)
                assert isinstance(letters, control.Letters)
                for number, request in letters.letters:
                    calls.call(name, control.Reply(number, self._answer(calls.roster.member(name), request)))
            except OffbeatError:
                self._ended.wait(POLL_PAUSE_S)
            except Exception:  # without this thread nobody could reach us any more
                log.exception("fetching letters of %s failed", name)
                self._ended.wait(POLL_PAUSE_S)
