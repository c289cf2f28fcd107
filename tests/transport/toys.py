"""Small parties with a known end, for testing runtimes: no learning, every kind of effect."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.party.contract import (
    Broadcast,
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Message,
    Observe,
    PeerBack,
    PeerLost,
    Received,
    Send,
    Started,
    Wake,
    Woken,
)

MODULUS = 2**61 - 1


class Count(Message, frozen=True, gc=False, tag=True, array_like=True):
    """Reveals: a counter."""

    index: int
    words: np.ndarray


class Thanks(Message, frozen=True, gc=False, tag=True, array_like=True):
    """Reveals: that a counter arrived."""

    index: int


class Done(Message, frozen=True, gc=False, tag=True, array_like=True):
    """Reveals: that the sender has heard everything."""


MESSAGES = (Count, Thanks, Done)


class Counter:
    """Sends 1..total to all, several at a time, and folds what it hears into one number per sender.

    The fold depends on the order, and on every message exactly once; so does the random stream it draws from.
    """

    def __init__(
        self, name: str, peers: tuple[str, ...], total: int, *, in_flight: int = 4, seed: int = 0, jobs: bool = True
    ):
        self.name, self.peers, self.total, self.in_flight, self.jobs = name, peers, total, in_flight, jobs
        self.random = np.random.default_rng([seed, *name.encode()])
        self.sent = 0
        self.thanked = dict.fromkeys(peers, 0)
        self.folds = dict.fromkeys(peers, 0)
        self.heard = dict.fromkeys(peers, 0)
        self.done: list[str] = []
        self.said_done = False
        self.ticks = 0
        self.ticket = 0
        self.lost: list[str] = []

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Started):
            return [*self._more(), Wake(0.01, 7)]
        if isinstance(event, Woken):
            self.ticks += 1
            return [Wake(0.01, 7)] if self.ticks < 5 else []
        if isinstance(event, Computed):
            return self._computed(event.result)
        if isinstance(event, PeerLost):
            self.lost.append(event.peer)
            return [Observe("lost", event.peer)]
        if isinstance(event, PeerBack):
            return [Observe("back", event.peer)]
        assert isinstance(event, Received)
        return self._received(event.sender, event.body)

    def _received(self, sender: str, body: Message) -> list[Effect]:
        if isinstance(body, Thanks):
            self.thanked[sender] += 1
            return [*self._more(), *self._finish()]
        if isinstance(body, Done):
            self.done.append(sender)
            return self._finish()
        assert isinstance(body, Count)
        assert body.index == self.heard[sender] + 1, (self.name, sender, body.index, self.heard[sender])
        self.heard[sender] = body.index
        self.ticket += 1
        value = int(body.words.sum()) + body.index
        if not self.jobs:
            return self._computed((sender, body.index, value))
        return [Compute(self.ticket, job=lambda: (sender, body.index, value))]

    def _computed(self, result: Any) -> list[Effect]:
        sender, index, value = result
        self.folds[sender] = (self.folds[sender] * 31 + value) % MODULUS
        return [Send(sender, Thanks(index)), *self._finish()]

    def _more(self) -> list[Effect]:
        effects: list[Effect] = []
        while self.sent < self.total and self.sent - min(self.thanked.values()) < self.in_flight:
            self.sent += 1
            effects.append(Broadcast(self.peers, Count(self.sent, self.random.integers(0, 1000, 8))))
        return effects

    def _finish(self) -> list[Effect]:
        effects: list[Effect] = []
        if not self.said_done and all(n == self.total for n in (*self.thanked.values(), *self.heard.values())):
            self.said_done = True
            effects.append(Broadcast(self.peers, Done()))
        if self.said_done and len(self.done) == len(self.peers):
            effects += [Observe("folds", tuple(sorted(self.folds.items()))), Finish("target", "heard everything")]
        return effects

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "random": self.random.bit_generator.state,
            "sent": self.sent,
            "thanked": dict(self.thanked),
            "folds": dict(self.folds),
            "heard": dict(self.heard),
            "done": list(self.done),
            "said_done": self.said_done,
            "ticks": self.ticks,
            "ticket": self.ticket,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.random.bit_generator.state = state["random"]
        for name in ("sent", "thanked", "folds", "heard", "done", "said_done", "ticks", "ticket"):
            setattr(self, name, state[name])


def counters(names: tuple[str, ...], total: int, **options: Any) -> list[Counter]:
    return [Counter(name, tuple(n for n in names if n != name), total, **options) for name in names]


def expected_folds(names: tuple[str, ...], total: int, seed: int = 0) -> dict[str, int]:
    """What everybody must have folded from each sender, computed without messages."""
    folds = {}
    for name in names:
        random = np.random.default_rng([seed, *name.encode()])
        fold = 0
        for index in range(1, total + 1):
            fold = (fold * 31 + int(random.integers(0, 1000, 8).sum()) + index) % MODULUS
        folds[name] = fold
    return folds


def build(spec: Mapping[str, Any], name: str) -> tuple[Counter, tuple[type[Message], ...]]:
    """The factory for separate processes."""
    peers = tuple(n for n in spec["names"] if n != name)
    return Counter(name, peers, spec["total"], in_flight=spec.get("in_flight", 4), seed=spec.get("seed", 0)), MESSAGES
