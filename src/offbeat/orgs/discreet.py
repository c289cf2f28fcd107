"""What a peer may be told when something fails here: a sentence without data, and where the owner finds the rest.

An error text may hold a cell, a column's name, a path or a count of labels. Refusals, mistakes in a peer's own job and
failures of peers are written for peers. Everything else leaves as a code and a number; the owner's log has the text
under that number.
"""

import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from offbeat.errors import BadJob, OffbeatError, PeerFailed, Refused
from offbeat.names import visible
from offbeat.party import contract

log = logging.getLogger("offbeat.party")

FOR_PEERS = (Refused, BadJob, PeerFailed)
TEXT_MOST = 1000
OWNER_TEXT_MOST = 8000  # what an owner is told may quote a peer


def printable(text: str, most: int = TEXT_MOST) -> str:
    """A peer's words as they may stand in a log and on a screen: nothing that is not seen, and not too many."""
    return visible(text[:most]).replace("\n", "?").replace("\t", "?")


def for_peers(problem: Exception, who: str, doing: str) -> tuple[str, str]:
    """(what to tell, the kind of error). What is not told is logged in full, under the number that is."""
    if isinstance(problem, FOR_PEERS):
        return str(problem), type(problem).__name__
    number = secrets.token_hex(4)
    kind = for_kind(problem)
    unforeseen = kind == OffbeatError.__name__
    log.error("%s failed while %s [%s]: %s", who, doing, number, problem, exc_info=problem if unforeseen else None)
    return f"'{who}' failed while {doing} ({kind}); its owner finds the cause in its log, under {number}", kind


def for_kind(problem: Exception) -> str:
    """The type of an error that was foreseen; one name for all that were not."""
    return type(problem).__name__ if isinstance(problem, OffbeatError) else OffbeatError.__name__


class Discreet:
    """A party whose failures tell its peers no data: a session says goodbye with the text of what its party raised."""

    def __init__(self, inner: contract.Party, doing: str) -> None:
        self.name: contract.PartyName = inner.name
        self.inner, self._doing = inner, doing
        self.snapshot, self.restore = inner.snapshot, inner.restore

    def handle(self, event: contract.Event) -> list[contract.Effect]:
        return [self._guarded(effect) for effect in self._tried(partial(self.inner.handle, event))]

    def _guarded(self, effect: contract.Effect) -> contract.Effect:
        if not isinstance(effect, contract.Compute) or effect.job is None:
            return effect
        return msgspec.structs.replace(effect, job=partial(self._tried, effect.job))

    def _tried(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except FOR_PEERS:
            raise
        except Exception as problem:
            told, _ = for_peers(problem, self.name, self._doing)
            raise Withheld(told, problem) from problem


class Withheld(PeerFailed):
    """What failed here, as peers are told it; `cause` is for the owner."""

    def __init__(self, told: str, cause: Exception) -> None:
        super().__init__(told)
        self.cause = cause
