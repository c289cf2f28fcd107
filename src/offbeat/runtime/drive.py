"""A party with the bookkeeping that a restart must rebuild: what it sent, what it is waiting for, what it has said.

`Drive` is as pure as the party: it sees events and returns effects, with every message already encoded. The live
runtime and the replay of a log use the same class, so a party that is fed its log again asks for the same things in
the same order, message numbers included, and the digest over everything it asked for proves it.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec

from offbeat.message.codec import Codec, payload_bytes
from offbeat.party import contract
from offbeat.runtime.contract import Outcome, Passage, Tally


class Written(msgspec.Struct, frozen=True, gc=False):
    """A message on its way out, encoded once for all its receivers."""

    to: tuple[contract.PartyName, ...]
    frame: bytes
    kind: str
    payload_bytes: int


Step = Written | contract.Compute | contract.Wake | contract.Observe | contract.Finish


class Drive:
    """Feeds a party and remembers what is open."""

    def __init__(self, party: contract.Party, codec: Codec) -> None:
        self.party = party
        self.codec = codec
        self.events = 0
        self.digest = b"\0" * 16
        self.jobs: dict[int, Callable[[], Any] | None] = {}  # asked for and not yet computed
        self.timers: list[tuple[int, float]] = []  # (token, after_s), asked for and not yet woken
        self.lost: set[contract.PartyName] = set()  # peers the party was told are lost, and not told are back
        self.finished: contract.Finish | None = None
        self.sent: dict[str, list[int]] = {}  # kind -> [messages, payload bytes]
        self.observed: list[tuple[float, str, Any]] = []
        self.clock_s = 0.0  # set by a live runtime; in replay it stands still

    def handle(self, event: contract.Event) -> list[Step]:
        """Give the party one event; a finished party hears nothing more."""
        if self.finished is not None:
            return []
        self.events += 1
        if type(event) is contract.Computed:
            self.jobs.pop(event.ticket)
        elif type(event) is contract.Woken:
            self._forget_timer(event.token)
        elif type(event) is contract.PeerLost:
            self.lost.add(event.peer)
        elif type(event) is contract.PeerBack:
            self.lost.discard(event.peer)
        steps = [self._step(effect) for effect in self.party.handle(event)]
        self._note(steps)
        return steps

    def compute(self, ticket: int, seconds: float = 0.0) -> contract.Computed:
        """Do the open job of this ticket now: what replay does, and a live runtime without lanes."""
        job = self.jobs[ticket]
        return contract.Computed(ticket, job() if job is not None else None, seconds)

    def outcome(self, time_s: float, tally: Tally, timeline: list[Passage]) -> Outcome:
        """What this party has come to, with what its runtime saw."""
        name, finish = self.party.name, self.finished
        return Outcome(
            clock="wall",
            time_s=time_s,
            digest=self.digest.hex(),
            finished={} if finish is None else {name: finish},
            observations=[(at_s, name, what, value) for at_s, what, value in self.observed],
            tallies={name: replace(tally, sent=self.sent)},
            timeline=timeline,
            events=self.events,
            lost=tuple(sorted(self.lost)),
        )

    def _step(self, effect: contract.Effect) -> Step:
        if type(effect) is contract.Send:
            return self._written((effect.to,), effect.body)
        if type(effect) is contract.Broadcast:
            return self._written(effect.to, effect.body)
        if type(effect) is contract.Compute:
            self.jobs[effect.ticket] = effect.job
        elif type(effect) is contract.Wake:
            self.timers.append((effect.token, effect.after_s))
        elif type(effect) is contract.Observe:
            self.observed.append((self.clock_s, effect.name, effect.value))
        elif type(effect) is contract.Finish:
            self.finished = effect
        return effect  # type: ignore[return-value]

    def _written(self, to: tuple[contract.PartyName, ...], body: contract.Message) -> Written:
        kind, size = type(body).__name__, payload_bytes(body)
        row = self.sent.setdefault(kind, [0, 0])
        row[0] += len(to)
        row[1] += len(to) * size
        return Written(to, self.codec.encode(body), kind, size)

    def _forget_timer(self, token: int) -> None:
        for i, (pending, _) in enumerate(self.timers):
            if pending == token:
                del self.timers[i]
                return

    def _note(self, steps: list[Step]) -> None:
        """Chain what was asked for into the digest: receivers and bytes of messages, tickets, timers, the verdict."""
        chain = blake2b(self.digest, digest_size=16)
        for step in steps:
            if type(step) is Written:
                chain.update(",".join(step.to).encode())
                chain.update(step.frame)
            elif type(step) is contract.Compute:
                chain.update(b"compute %d" % step.ticket)
            elif type(step) is contract.Wake:
                chain.update(b"wake %d %r" % (step.token, step.after_s))
            elif type(step) is contract.Finish:
                chain.update(b"finish " + step.verdict.encode())
        self.digest = chain.digest()
