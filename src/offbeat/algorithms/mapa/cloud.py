"""The cloud: it holds the model, takes uploads first in, first out, and lets its rule move the model."""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from offbeat.algorithms.mapa.messages import CLOUD, Halt, Hello, Leaving, Model, Upload, expect_number
from offbeat.algorithms.mapa.rates import Rate
from offbeat.party.contract import (
    END,
    Broadcast,
    Effect,
    Event,
    Finish,
    Observe,
    PartyName,
    PeerBack,
    PeerLost,
    Received,
    Send,
    Started,
    State,
    Wake,
    Woken,
)
from offbeat.party.expected import Handlers, expect, received
from offbeat.party.memory import Memory
from offbeat.party.protocol import Goodbye

AVERAGE_DECAY = 8.0  # how much later versions weigh in the average
LINGER_ROUNDS = 5
NOISE_MOST = 1e30  # what an edge may say of its noise: beyond it steps would leave the range of floats


class Rule(Protocol):
    """What the cloud does with an upload. `clip` and `stage` go out with every model."""

    @property
    def clip(self) -> float: ...

    @property
    def stage(self) -> int: ...

    def apply(self, parameters: np.ndarray, upload: Upload, lag: int, version: int) -> np.ndarray | None:
        """The next model, in a new array; or None while the rule is still collecting."""
        ...

    def noise(self, per_clip: float) -> None:
        """The noisiest edge's E|noise|^2 for a clip of one has changed."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


class GradientStep:
    """The rule of MAPA and its relatives: x <- x - gamma (g + strength x), one step for each upload. The penalty needs
    no data, so the cloud adds it. Where the rate allows for a `lag` only, the step of a later upload is shorter in
    proportion."""

    def __init__(self, rate: Rate, strength: float, lag: int | None = None) -> None:
        self.rate, self.strength, self.lag = rate, strength, lag
        self.noise, self.snapshot, self.restore = rate.noise, rate.snapshot, rate.restore

    @property
    def clip(self) -> float:
        return self.rate.clip

    @property
    def stage(self) -> int:
        return self.rate.stage

    def apply(self, parameters: np.ndarray, upload: Upload, lag: int, version: int) -> np.ndarray:
        step = self.rate.step(version + 1)
        if self.lag is not None and lag > self.lag:
            step *= (self.lag + 1) / (lag + 1)
        self.rate.applied(upload.fraction_within)
        moved = parameters * (1 - step * self.strength)
        moved -= step * upload.gradient
        return moved


class Cloud(Memory):
    """Holds the model (`parameters`, and `averaged` over the versions); serves whoever comes, in order of arrival.

    It ends after `updates` versions. `edges` are those it waits for; others may join. The end is said every `linger_s`
    seconds, LINGER_ROUNDS times, until all edges have heard it; lost edges have as long to come back, and hear it then.
    """

    KEPT = (
        *("parameters", "averaged", "version", "rule", "seen", "applied", "noises", "waiting_for", "lags", "lost"),
        *("counts", "ending"),
    )

    def __init__(
        self,
        start: np.ndarray,
        rule: Rule,
        *,
        updates: int,
        lag_max: int,
        edges: Sequence[PartyName] = (),
        linger_s: float = 1.0,
    ) -> None:
        self.name, self.rule, self.updates, self.lag_max, self.linger_s = CLOUD, rule, updates, lag_max, linger_s
        self.parameters = np.array(start, dtype=np.float64)
        self.averaged = self.parameters
        self.version = 0
        self.seen: dict[PartyName, int] = {}  # last upload number of each edge
        self.applied: dict[PartyName, int] = {}  # uploads of each edge that were used
        self.noises: dict[PartyName, float] = {}  # what each edge said of its noise
        self.waiting_for: set[PartyName] = set(edges)  # edges that may still upload
        self.lost: set[PartyName] = set()
        self.lags: list[int] = [0] * (min(lag_max, 10_000) + 1)  # how many uploads were so late; the last: or later
        self.refused = 0  # uploads that came too late,
        self.repeated = 0  # came before,
        self.dropped = 0  # or were malformed
        self.ending: Halt | None = None  # what everybody is told, once the run is over
        self.rounds_left = LINGER_ROUNDS
        self._handlers: Handlers = {
            Hello: self._hello,
            Upload: self._upload,
            Leaving: self._leaving,
            Goodbye: self._goodbye,
        }

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Received):
            return received(self.name, self._handlers, event)
        if isinstance(event, Woken):
            return self._woken(event.token)
        if isinstance(event, PeerLost):
            self.lost.add(event.peer)
            return self._wait_for_lost()
        if isinstance(event, PeerBack):
            return self._back(event.peer)
        if isinstance(event, Started) and event.resumed:
            return self._resumed()
        return []

    def _resumed(self) -> list[Effect]:
        """Who was lost, and who has heard the end, is not known any more."""
        self.lost, self.rounds_left = set(), LINGER_ROUNDS
        return [] if self.ending is None else self._say_halt()

    def _hello(self, edge: PartyName, body: Hello) -> list[Effect]:
        expect(0 <= body.noise_per_clip <= NOISE_MOST, edge, f"{body.noise_per_clip} as its noise for a clip of one")
        expect_number(edge, "upload", body.uploads)
        if self.ending is not None:
            return [Send(edge, self.ending)]
        self.waiting_for.add(edge)
        self.lost.discard(edge)
        if self.noises.get(edge) != body.noise_per_clip:
            self.noises[edge] = body.noise_per_clip
            self.rule.noise(max(self.noises.values()))
        self.seen[edge] = max(self.seen.get(edge, 0), body.uploads)
        return [self._model(edge, 0)]

    def _model(self, edge: PartyName, lag: int) -> Send:
        return Send(
            edge, Model(self.parameters, self.version, self.rule.clip, self.rule.stage, self.seen.get(edge, 0), lag)
        )

    def _upload(self, edge: PartyName, body: Upload) -> list[Effect]:
        expect_number(edge, "upload", body.number)
        if self.ending is not None:
            return [Send(edge, self.ending)]
        if body.number <= self.seen.get(edge, 0):
            self.repeated += 1
            return [self._model(edge, 0)]
        self.waiting_for.add(edge)
        self.seen[edge] = body.number
        lag = self.version - body.version
        if not self._well_formed(body):
            self.dropped += 1
            return [Observe("dropped", 1), self._model(edge, 0)]
        if lag > self.lag_max:
            self.refused += 1
            return [Observe("refused", lag), self._model(edge, lag)]
        return self._apply(edge, body, lag)

    def _well_formed(self, body: Upload) -> bool:
        return (
            body.gradient.shape == self.parameters.shape
            and body.gradient.dtype.kind == "f"
            and bool(np.isfinite(body.gradient).all())
            and 0 <= body.version <= self.version
            and math.isfinite(body.fraction_within)
        )

    def _apply(self, edge: PartyName, body: Upload, lag: int) -> list[Effect]:
        stage = self.rule.stage
        with np.errstate(over="ignore", invalid="ignore"):
            moved = self.rule.apply(self.parameters, body, lag, self.version)
        if moved is not None and not np.isfinite(moved).all():
            return self._end(
                "diverged",
                f"the model was no longer finite after {self.version} updates; the last that "
                "was is kept. Use a smaller step, or constants that are bounds indeed.",
            )
        self.applied[edge] = self.applied.get(edge, 0) + 1
        self.lags[min(lag, len(self.lags) - 1)] += 1
        if moved is not None:
            self.parameters = moved
            self.version += 1
            self.averaged = _averaged(self.averaged, moved, self.version)
        effects: list[Effect] = [Observe("stage", self.rule.stage)] if self.rule.stage != stage else []
        if self.version >= self.updates:
            return effects + self._end("passes", f"{self.version} updates were applied.")
        return [*effects, self._model(edge, lag)]

    def _leaving(self, edge: PartyName, body: Leaving) -> list[Effect]:
        expect_number(edge, "upload", body.uploads)
        self.seen[edge] = max(self.seen.get(edge, 0), body.uploads)
        if body.stopped:
            answer = Halt("stopped", f"stopped by the owner of '{edge}'")
            last = Halt("stopped", f"the owner of '{edge}', the last edge, stopped it after {self.version} updates.")
        else:
            answer = Halt("budget", "the edge's privacy budget is spent")
            last = Halt("budget", f"every edge's budget is spent after {self.version} updates.")
        return [Send(edge, self.ending or answer), *self._without(edge, last)]

    def _without(self, edge: PartyName, last: Halt) -> list[Effect]:
        """An edge has left. If it was the last one, the run ends."""
        if edge not in self.waiting_for:
            return []
        self.waiting_for.discard(edge)
        if self.ending is not None:
            return []
        return self._wait_for_lost() if self.waiting_for else self._end(last.verdict, last.reason)

    def _wait_for_lost(self) -> list[Effect]:
        """When all edges that have not left are lost, one of them may still come back for a while."""
        if self.ending is not None or not self.waiting_for or not self.waiting_for <= self.lost:
            return []
        return [Wake(self.linger_s * LINGER_ROUNDS)]

    def _end(self, verdict: str, reason: str) -> list[Effect]:
        self.ending = Halt(verdict, reason)
        return [*self._totals(), *self._say_halt()]

    def _totals(self) -> list[Effect]:
        totals = {"updates": self.version, "refused": self.refused, "repeated": self.repeated, "dropped": self.dropped}
        observed: list[Effect] = [Observe(name, value) for name, value in totals.items()]
        return [*observed, Observe("lags", tuple(self.lags)), Observe("updates_by_edge", dict(self.applied))]

    def _say_halt(self) -> list[Effect]:
        assert self.ending is not None
        if not self.waiting_for or self.rounds_left <= 0:
            return [Finish(self.ending.verdict, self.ending.reason)]
        self.rounds_left -= 1
        edges = tuple(sorted(self.waiting_for - self.lost))
        told: list[Effect] = [Broadcast(edges, self.ending)] if edges else []
        return [*told, Wake(self.linger_s)]

    def _back(self, edge: PartyName) -> list[Effect]:
        self.lost.discard(edge)
        return [Send(edge, self.ending)] if self.ending is not None and edge in self.waiting_for else []

    def _goodbye(self, edge: PartyName, body: Goodbye) -> list[Effect]:
        if self.ending is None:
            return self._without(
                edge, Halt("peer-lost", f"every edge has ended its part after {self.version} updates.")
            )
        self.waiting_for.discard(edge)
        return [] if self.waiting_for else [Finish(self.ending.verdict, self.ending.reason)]

    def _woken(self, token: int) -> list[Effect]:
        if token == END:
            return [] if self.ending is not None else self._end("stopped", f"stopped by the owner of '{self.name}'")
        if self.ending is not None:
            return self._say_halt()
        if self.waiting_for and self.waiting_for <= self.lost:
            self.rounds_left = 0  # they have been waited for
            return self._end("peer-lost", f"every edge was lost after {self.version} updates.")
        return []

    @property
    def counts(self) -> list[int]:
        return [self.refused, self.repeated, self.dropped, self.rounds_left]

    @counts.setter
    def counts(self, counts: list[int]) -> None:
        self.refused, self.repeated, self.dropped, self.rounds_left = counts

    def restore(self, state: State) -> None:
        super().restore(state)
        self.ending = None if state["ending"] is None else Halt(*state["ending"])


def _averaged(average: np.ndarray, newest: np.ndarray, version: int) -> np.ndarray:
    """Average over the versions so far, later ones weighing more (Shamir and Zhang 2013, polynomial decay).

    Theorem 2 bounds the average, not the last model; and what is made of released values costs no privacy.
    """
    weight = (1 + AVERAGE_DECAY) / (version + AVERAGE_DECAY)
    mixed: np.ndarray = average + weight * (newest - average)
    return mixed
