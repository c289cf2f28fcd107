"""Factories for actors: parties that do as their specification says, and one that dies on the way."""

import os
import signal
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from toys import MESSAGES

from offbeat.errors import BadData
from offbeat.party.contract import Compute, Effect, Event, Finish, Message, Party, Started, Wake
from offbeat.run.parties import party_of_job
from offbeat.testing.runtime_checks import MESSAGES as RACE
from offbeat.testing.runtime_checks import runners

Built = tuple[Party, tuple[type[Message], ...]]


class Alone:
    """Starts with one effect; ends once it has seen so many events, or never."""

    def __init__(self, name: str, does: str, until: int) -> None:
        self.name, self.does, self.until = name, does, until
        self.seen: list[str] = []
        self.meeting = threading.Barrier(2)

    def handle(self, event: Event) -> list[Effect]:
        self.seen.append(repr(event))
        if self.does == "raises" and not isinstance(event, Started):
            raise BadData("this was wrong")
        if self.does == "breaks" and not isinstance(event, Started):
            raise ZeroDivisionError("a mistake of ours")
        ended = len(self.seen) == self.until
        return [*(self._begin() if isinstance(event, Started) else []), *([Finish("passes")] if ended else [])]

    def _begin(self) -> list[Effect]:
        if self.does == "works":
            return [Compute(1), Compute(2, job=partial(str, "done")), Wake(0.0, 3)]
        if self.does == "meets":  # two jobs that wait for each other: only two lanes can do them
            return [Compute(ticket, job=partial(self.meeting.wait, 60)) for ticket in (1, 2)]
        if self.does == "fails at work":
            return [Compute(1, job=partial(int, "this was wrong"))]
        return [Wake(0.0)] if self.does in ("raises", "breaks") else [Wake(600.0)] if self.does == "waits" else []

    def snapshot(self) -> Mapping[str, Any]:
        return {"seen": list(self.seen)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.seen = list(state["seen"])


def alone(spec: Mapping[str, Any], name: str) -> Built:
    does, until = spec[name]
    return Alone(name, does, until), MESSAGES


def runner(spec: Mapping[str, Any], name: str) -> Built:
    """One of the race that every runtime must carry."""
    return next(party for party in runners(spec["count"]) if party.name == name), RACE


class Doomed:
    """Another party, until its process is killed in the middle of an event."""

    def __init__(self, party: Party, events: int) -> None:
        self.party, self.left, self.name = party, events, party.name

    def handle(self, event: Event) -> list[Effect]:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.party.handle(event)

    def snapshot(self) -> Mapping[str, Any]:
        return self.party.snapshot()

    def restore(self, state: Mapping[str, Any]) -> None:
        self.party.restore(state)


def one_dies(victim: str, spec: Mapping[str, Any], name: str) -> Built:
    """The parties of a job, one of which does not live to the end."""
    party, messages = party_of_job(spec, name)
    return (Doomed(party, 400) if name == victim else party), messages


shop_dies = partial(one_dies, "shop")
bank_dies = partial(one_dies, "bank")
server_dies = partial(one_dies, "server")
