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


def fetch_letters(calls: PeerCalls, answer: Callable[[Member, bytes], bytes], ended: threading.Event) -> None:
    """A thread for each member that can be called. `answer` is what the daemon says to a member's request; `ended` ends
    all threads."""
    for member in calls.roster.members:
        if member.address:
            name = f"letters of {member.name}"
            threading.Thread(target=_poll, args=(member, calls, answer, ended), name=name, daemon=True).start()


def _poll(member: Member, calls: PeerCalls, answer: Callable[[Member, bytes], bytes], ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            letters = calls.call(member.name, control.Poll(), POLL_WITHIN_S + control.CALL_WITHIN_S)
            assert isinstance(letters, control.Letters)
            for number, request in letters.letters:
                calls.call(member.name, control.Reply(number, answer(member, request)))
        except OffbeatError:
            ended.wait(POLL_PAUSE_S)
        except Exception:  # without this thread nobody could reach us any more
            log.exception("fetching letters of %s failed", member.name)
            ended.wait(POLL_PAUSE_S)
