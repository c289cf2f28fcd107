"""Faults as values that compose. Each is active until `until_s`; after that the world is healthy again.

A fault may touch messages (`arrivals`: the times at which one message arrives; none means lost, two means
duplicated) and may plan outages (`plan`: when parties go down and whether they come back, or are only thought lost).
Randomness comes from the simulator's own stream, so a seed replays a failure exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offbeat.party.contract import PartyName


@dataclass(frozen=True)
class Outage:
    """A party is down from `start_s` until `stop_s` (inf: for good). Its state survives, its timers, its running
    jobs and the messages that reach it meanwhile do not."""

    party: PartyName
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class Suspicion:
    """`observer` takes `suspect` for lost from `start_s` until `stop_s`. It is not: nothing happens to it."""

    observer: PartyName
    suspect: PartyName
    start_s: float
    stop_s: float


class Fault:
    """Does nothing by itself: a kind of fault touches messages, or plans outages."""

    def arrivals(
        self, times: list[float], now_s: float, sender: PartyName, receiver: PartyName, rng: np.random.Generator
    ) -> list[float]:
        return times

    def plan(self, names: Sequence[PartyName], rng: np.random.Generator) -> Sequence[Outage | Suspicion]:
        return ()


@dataclass(frozen=True)
class Delay(Fault):
    """Every message takes longer by an exponential time."""

    until_s: float
    mean_s: float = 0.01

    def arrivals(self, times, now_s, sender, receiver, rng):  # type: ignore[no-untyped-def]
        return [t + self.mean_s * rng.standard_exponential() for t in times] if now_s < self.until_s else times


@dataclass(frozen=True)
class MessageLoss(Fault):
    """Each message is lost with this probability, whatever it says."""

    until_s: float
    probability: float = 0.1

    def arrivals(self, times, now_s, sender, receiver, rng):  # type: ignore[no-untyped-def]
        return [t for t in times if now_s >= self.until_s or rng.random() >= self.probability]


@dataclass(frozen=True)
class Duplicate(Fault):
    """Each message arrives a second time, later, with this probability."""

    until_s: float
    probability: float = 0.1
    spread_s: float = 0.02

    def arrivals(self, times, now_s, sender, receiver, rng):  # type: ignore[no-untyped-def]
        if now_s >= self.until_s or rng.random() >= self.probability:
            return times
        return times + [t + self.spread_s * rng.random() for t in times]


@dataclass(frozen=True)
class Reorder(Fault):
    """Some messages are held back, so that later ones overtake them."""

    until_s: float
    probability: float = 0.2
    spread_s: float = 0.02

    def arrivals(self, times, now_s, sender, receiver, rng):  # type: ignore[no-untyped-def]
        if now_s >= self.until_s or rng.random() >= self.probability:
            return times
        return [t + self.spread_s * rng.random() for t in times]


@dataclass(frozen=True)
class Partition(Fault):
    """Between `start_s` and `until_s` nothing passes between `inside` and the others."""

    until_s: float
    inside: tuple[PartyName, ...] = ()
    start_s: float = 0.0

    def arrivals(self, times, now_s, sender, receiver, rng):  # type: ignore[no-untyped-def]
        cut = self.start_s <= now_s < self.until_s and (sender in self.inside) != (receiver in self.inside)
        return [] if cut else times


@dataclass(frozen=True)
class ClogInTurn(Fault):
    """Parties are clogged one after another and released in another order: what reaches a clogged party waits
    until its release. `turns` holds (party, start_s, release_s)."""

    until_s: float
    turns: tuple[tuple[PartyName, float, float], ...] = ()

    def arrivals(self, times, now_s, sender, receiver, rng):  # type: ignore[no-untyped-def]
        for party, start_s, release_s in self.turns:
            if receiver == party:
                times = [release_s if start_s <= t < release_s else t for t in times]
        return times


def clog_in_turn(names: Sequence[PartyName], each_s: float, rng: np.random.Generator) -> ClogInTurn:
    """Clog in one order, release in another."""
    order, release = rng.permutation(len(names)), rng.permutation(len(names))
    ends = {int(p): (len(names) + k + 1) * each_s for k, p in enumerate(release)}
    turns = tuple((names[int(p)], k * each_s, ends[int(p)]) for k, p in enumerate(order))
    return ClogInTurn(until_s=2 * len(names) * each_s, turns=turns)


@dataclass(frozen=True)
class CrashAndRestore(Fault):
    """One party goes down and comes back from its snapshot."""

    party: PartyName
    at_s: float
    down_s: float

    def plan(self, names: Sequence[PartyName], rng: np.random.Generator) -> list[Outage]:
        return [Outage(self.party, self.at_s, self.at_s + self.down_s)]


@dataclass(frozen=True)
class Gone(CrashAndRestore):
    """One party goes down and never comes back."""

    down_s: float = float("inf")


@dataclass(frozen=True)
class FalseSuspicion(Fault):
    """Some parties take others for lost that are alive. What a suspecting and a suspected party send each other
    meanwhile arrives as ever, or (`held`) when the suspicion ends, as over a link that was cut and healed."""

    suspicions: tuple[Suspicion, ...]
    held: tuple[bool, ...]

    def arrivals(self, times, now_s, sender, receiver, rng):  # type: ignore[no-untyped-def]
        for one, held in zip(self.suspicions, self.held, strict=True):
            if held and {sender, receiver} == {one.observer, one.suspect} and one.start_s <= now_s < one.stop_s:
                times = [max(t, one.stop_s) for t in times]
        return times

    def plan(self, names: Sequence[PartyName], rng: np.random.Generator) -> Sequence[Suspicion]:
        return self.suspicions


def false_suspicion(names: Sequence[PartyName], until_s: float, rng: np.random.Generator) -> FalseSuspicion:
    """Few enough are suspected that the others can still hide their shares; by whom and when is drawn."""
    suspects = [names[int(i)] for i in rng.permutation(len(names))[: max(1, len(names) - 3)]]
    suspicions: list[Suspicion] = []
    held: list[bool] = []
    for _ in range(int(rng.integers(1, 5))):
        suspect = suspects[int(rng.integers(len(suspects)))]
        observer = [name for name in names if name != suspect][int(rng.integers(len(names) - 1))]
        start_s = float(rng.uniform(0, until_s))
        stop_s = min(until_s, start_s + float(rng.exponential(until_s / 2)))
        if all((one.observer, one.suspect) != (observer, suspect) for one in suspicions):
            suspicions.append(Suspicion(observer, suspect, start_s, stop_s))
            held.append(bool(rng.random() < 0.5))
    return FalseSuspicion(tuple(suspicions), tuple(held))


PROFILES = ("calm", "delay", "loss", "duplicate", "reorder", "partition", "crash", "clog", "swarm", "suspicion")


def profile(name: str, names: Sequence[PartyName], rng: np.random.Generator, until_s: float) -> tuple[Fault, ...]:
    """The named mixture for one seed. Everything heals at `until_s`, so a run may be asked to converge."""
    victim = names[int(rng.integers(len(names)))]
    start, length = float(rng.uniform(0, until_s / 2)), float(rng.uniform(until_s / 20, until_s / 4))
    single: dict[str, Fault] = {
        "delay": Delay(until_s, mean_s=float(rng.uniform(0.001, 0.02))),
        "loss": MessageLoss(until_s, probability=float(rng.uniform(0.01, 0.3))),
        "duplicate": Duplicate(until_s, probability=float(rng.uniform(0.05, 0.5))),
        "reorder": Reorder(until_s, probability=float(rng.uniform(0.05, 0.5))),
        "partition": Partition(start + length, inside=(victim,), start_s=start),
        "crash": CrashAndRestore(victim, start, length),
        "clog": clog_in_turn(names, until_s / (2 * len(names)), rng),
    }
    if name == "calm":
        return ()
    if name == "suspicion":
        return (false_suspicion(names, until_s, rng),)
    if name != "swarm":
        return (single[name],)
    return tuple(fault for fault in single.values() if rng.random() < 0.5)
