"""A party that nobody can call asks everybody who can be called for letters (`post.py`), again and again."""

import logging
import threading
from collections.abc import Callable

from offbeat.errors import OffbeatError
from offbeat.orgs import control
from offbeat.orgs.control import PeerCalls
from offbeat.runtime.grpc.identity import Member

log = logging.getLogger("offbeat.party")

POLL_WITHIN_S = 10.0
POLL_PAUSE_S = 1.0


class LetterFetching:
    """`answer` is what the daemon says to a member's request; `ended` ends all threads."""

    def __init__(self, caller: PeerCalls, answer: Callable[[Member, bytes], bytes], ended: threading.Event) -> None:
        self._caller, self._answer, self._ended = caller, answer, ended

    def start(self) -> None:
        for member in self._caller.roster.members:
            if member.address:
                threading.Thread(
                    target=self._poll, args=(member,), name=f"letters of {member.name}", daemon=True
                ).start()

    def _poll(self, member: Member) -> None:
        while not self._ended.is_set():
            try:
                letters = self._caller.call(member.name, control.Poll(), POLL_WITHIN_S + control.CALL_WITHIN_S)
                assert isinstance(letters, control.Letters)
                for number, request in letters.letters:
                    self._caller.call(member.name, control.Reply(number, self._answer(member, request)))
            except OffbeatError:
                self._ended.wait(POLL_PAUSE_S)
            except Exception:  # without this thread nobody could reach us any more
                log.exception("fetching letters of %s failed", member.name)
                self._ended.wait(POLL_PAUSE_S)
