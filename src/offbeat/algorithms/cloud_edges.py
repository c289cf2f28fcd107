"""A cloud and its edges: the play that MAPA, its relatives and today's baselines share.

The order of play, with Ede at an edge:
1. Ede says Hello: how noisy its uploads are. The cloud answers with its Model, its version and the clip in force.
2. Ede draws rows in secret, clips every row's gradient, adds noise, notes the cost in its ledger, and Uploads.
3. The cloud takes uploads first in, first out, lets its rule move the model, and sends the new Model to Ede alone.
4. An edge whose budget is spent, or whose owner stops it, says Leaving and stops; the others go on. After the last
   update, or when the cloud's owner stops it, the cloud says Halt.

Uploads are numbered by their edge. A repeated one is not applied again, a lost one was paid for all the same, and an
edge that has forgotten some (the cloud tells it the last number it saw) adds them to its ledger first. An upload more
than `lag_max` versions late is refused, and its edge pulls anew. Both sides are semi-honest. A malformed or non-finite
upload is dropped and counted; other messages that no honest peer sends are refused before anything of them is used.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from offbeat.algorithms.edge_privacy import EdgePrivacy
from offbeat.errors import BadJob, UnexpectedEvent
from offbeat.learning.horizontal import EdgeData, HorizontalModel
from offbeat.party.contract import (
    END,
    Broadcast,
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Message,
    Observe,
    Party,
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
from offbeat.party.expected import expect
from offbeat.privacy.noise import NoiseSource, SeededNoise, SystemNoise

CLOUD = "cloud"
AVERAGE_DECAY = 8.0
CLIP_LEAST, CLIP_MOST = 1e-100, 1e100  # beyond them noise and gradient would leave the range of floats
NOISE_MOST = 1e30  # the same of an edge's noise for a clip of one
NUMBERS_END = 2**62  # numbers of uploads and versions are below: they and their successors fit the wire
FORGOTTEN_MOST = 100_000  # uploads to be accounted for at once; more would take an edge minutes and gigabytes

# -- messages -------------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """An edge joins, or is back, and asks for the model.

    Reveals: to the cloud, that the edge takes part and how much noise it adds for a clip of one: its privacy level and,
    as the noise is fitted to it, its number of rows.
    """

    noise_per_clip: float
    uploads: int


class Model(Message, frozen=True):
    """The cloud's model.

    Reveals: to one edge, a model trained on all edges' uploads; as private as those uploads are.
    """

    parameters: np.ndarray
    version: int
    clip: float
    stage: int
    answers: int  # the last upload the cloud has seen of this edge
    lag: int  # how late that upload was


class Upload(Message, frozen=True):
    """One released gradient.

    Reveals: to the cloud, the gradient of secret rows at `version`, clipped and noisy as the edge's mechanism says: in
    sound mode whole numbers times a public scale, and what its ledger accounts for; in paper mode or without noise
    possibly the rows themselves.
    """

    gradient: np.ndarray
    version: int
    number: int
    fraction_within: float  # of rows within the clip, from a noisy whole number; or -1


class Leaving(Message, frozen=True):
    """The edge's budget is spent, or its owner has stopped it.

    Reveals: to the cloud, that the edge will send no more, and why; the number of its uploads is not secret.
    """

    uploads: int
    stopped: bool = False  # by its owner


class Halt(Message, frozen=True):
    """The cloud has all it wanted.

    Reveals: to an edge, that the run is over and why.
    """

    verdict: str
    reason: str


class Goodbye(Message, frozen=True):
    """An edge has heard that it may stop.

    Reveals: nothing more.
    """


MESSAGES = (Hello, Model, Upload, Leaving, Halt, Goodbye)

PROTOCOL = {  # (role, event) -> what may follow
    ("cloud", Hello): (Model, Halt),
    ("cloud", Upload): (Model, Halt),
    ("cloud", Leaving): (Halt,),
    ("cloud", Goodbye): (),
    ("edge", Model): (Upload, Leaving),
    ("edge", Halt): (Goodbye,),
}

# -- the cloud ------------------------------------------------------------------------------------------------------


class Rule(Protocol):
    """What the cloud does with an upload. `clip` and `stage` go out with every model."""

    @property
    def clip(self) -> float: ...

    @property
    def stage(self) -> int: ...

    def apply(self, parameters: np.ndarray, upload: Upload, lag: int, version: int) -> np.ndarray | None:
        """The next model, in a new array; or None while the rule is still collecting."""
        ...

    def noise(self, per_clip: float) -> None: ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Cloud:
    """Holds the model (`parameters`, and `averaged` over the versions); serves whoever comes, in order of arrival."""

    def __init__(
        self,
        start: np.ndarray,
        rule: Rule,
        *,
        updates: int,
        lag_max: int,
        edges: Sequence[PartyName] = (),
        name: PartyName = CLOUD,
        linger_s: float = 1.0,
        linger_rounds: int = 5,
    ) -> None:
        self.name = name
        self.rule = rule
        self.updates = updates
        self.lag_max = lag_max
        self.linger_s = linger_s
        self.linger_rounds = linger_rounds
        self.parameters = np.array(start, dtype=np.float64)
        self.averaged = self.parameters
        self.version = 0
        self.seen: dict[PartyName, int] = {}  # last upload number of each edge
        self.applied: dict[PartyName, int] = {}
        self.noises: dict[PartyName, float] = {}
        self.waiting_for: set[PartyName] = set(edges)  # edges that may still upload
        self.lost: set[PartyName] = set()
        self.lags: list[int] = [0] * (min(lag_max, 10_000) + 1)
        self.refused = 0
        self.repeated = 0
        self.dropped = 0
        self.ending: Halt | None = None
        self.rounds_left = linger_rounds
        self._handlers: dict[type, Callable[[PartyName, Any], list[Effect]]] = {
            Hello: self._hello,
            Upload: self._upload,
            Leaving: self._leaving,
            Goodbye: self._goodbye,
        }

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Received):
            handler = self._handlers.get(type(event.body))
            if handler is None:
                raise UnexpectedEvent(
                    f"{self.name}: {type(event.body).__name__} from {event.sender} has no place here."
                )
            return handler(event.sender, event.body)
        if isinstance(event, Woken):
            return self._woken(event.token)
        if isinstance(event, PeerLost):
            return self._peer_lost(event.peer)
        if isinstance(event, PeerBack):
            self.lost.discard(event.peer)
        if isinstance(event, Started) and event.resumed:
            return self._resumed()
        return []

    def _resumed(self) -> list[Effect]:
        """Who was lost, and who has heard the end, is not known any more."""
        self.lost, self.rounds_left = set(), self.linger_rounds
        return [] if self.ending is None else self._say_halt()

    def _hello(self, edge: PartyName, body: Hello) -> list[Effect]:
        expect(0 <= body.noise_per_clip <= NOISE_MOST, edge, f"{body.noise_per_clip} as its noise for a clip of one")
        _expect_number(edge, "upload", body.uploads)
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
            edge,
            Model(self.parameters, self.version, self.rule.clip, self.rule.stage, self.seen.get(edge, 0), lag),
        )

    def _upload(self, edge: PartyName, body: Upload) -> list[Effect]:
        _expect_number(edge, "upload", body.number)
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
        _expect_number(edge, "upload", body.uploads)
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

    def _peer_lost(self, edge: PartyName) -> list[Effect]:
        self.lost.add(edge)
        return self._wait_for_lost()

    def _wait_for_lost(self) -> list[Effect]:
        """When all edges that have not left are lost, one of them may still come back for a while."""
        if self.ending is not None or not self.waiting_for or not self.waiting_for <= self.lost:
            return []
        return [Wake(self.linger_s * self.linger_rounds)]

    def _end(self, verdict: str, reason: str) -> list[Effect]:
        self.ending = Halt(verdict, reason)
        return [*self._totals(), *self._say_halt()]

    def _totals(self) -> list[Effect]:
        totals = {"updates": self.version, "refused": self.refused, "repeated": self.repeated, "dropped": self.dropped}
        observed: list[Effect] = [Observe(name, value) for name, value in totals.items()]
        return [*observed, Observe("lags", tuple(self.lags)), Observe("updates_by_edge", dict(self.applied))]

    def _say_halt(self) -> list[Effect]:
        assert self.ending is not None
        edges = tuple(sorted(self.waiting_for - self.lost))
        if not edges or self.rounds_left <= 0:
            return [Finish(self.ending.verdict, self.ending.reason)]
        self.rounds_left -= 1
        return [Broadcast(edges, self.ending), Wake(self.linger_s)]

    def _goodbye(self, edge: PartyName, body: Goodbye) -> list[Effect]:
        if self.ending is None:
            return self._without(
                edge, Halt("peer-lost", f"every edge has ended its part after {self.version} updates.")
            )
        self.waiting_for.discard(edge)
        return [] if self.waiting_for - self.lost else [Finish(self.ending.verdict, self.ending.reason)]

    def _woken(self, token: int) -> list[Effect]:
        if token == END:
            return [] if self.ending is not None else self._end("stopped", f"stopped by the owner of '{self.name}'")
        if self.ending is not None:
            return self._say_halt()
        if self.waiting_for and self.waiting_for <= self.lost:
            return self._end("peer-lost", f"every edge was lost after {self.version} updates.")
        return []

    def snapshot(self) -> State:
        ending = None if self.ending is None else [self.ending.verdict, self.ending.reason]
        return {
            "parameters": self.parameters.copy(),
            "averaged": self.averaged.copy(),
            "version": self.version,
            "rule": dict(self.rule.snapshot()),
            "seen": dict(self.seen),
            "applied": dict(self.applied),
            "noises": dict(self.noises),
            "waiting_for": sorted(self.waiting_for),
            "lags": list(self.lags),
            "lost": sorted(self.lost),
            "counts": [self.refused, self.repeated, self.dropped, self.rounds_left],
            "ending": ending,
        }

    def restore(self, state: State) -> None:
        self.parameters, self.averaged = np.array(state["parameters"]), np.array(state["averaged"])
        self.version = int(state["version"])
        self.rule.restore(state["rule"])
        self.seen, self.applied = dict(state["seen"]), dict(state["applied"])
        self.noises, self.waiting_for = dict(state["noises"]), set(state["waiting_for"])
        self.lags = list(state["lags"])
        self.lost = set(state["lost"])
        self.refused, self.repeated, self.dropped, self.rounds_left = state["counts"]
        self.ending = None if state["ending"] is None else Halt(*state["ending"])


def _averaged(average: np.ndarray, newest: np.ndarray, version: int) -> np.ndarray:
    """Average over the versions so far, later ones weighing more (Shamir and Zhang 2013, polynomial decay).

    Theorem 2 bounds the average, not the last model; and what is made of released values costs no privacy.
    """
    weight = (1 + AVERAGE_DECAY) / (version + AVERAGE_DECAY)
    mixed: np.ndarray = average + weight * (newest - average)
    return mixed


# -- an edge --------------------------------------------------------------------------------------------------------


class Edge:
    """Holds rows; pulls the model, releases one gradient, and so on until its budget or the run ends."""

    def __init__(
        self,
        name: PartyName,
        model: HorizontalModel,
        data: EdgeData,
        privacy: EdgePrivacy,
        noise: NoiseSource,
        *,
        cloud: PartyName = CLOUD,
        retry_s: float = 1.0,
        patience: int = 60,
        joins_after_s: float = 0.0,
    ) -> None:
        model.check(data)
        self.name = name
        self.model = model
        self.data = data
        self.mechanism = privacy.mechanism
        self.ledger = privacy.ledger()
        self.noise = noise
        self.cloud = cloud
        self.retry_s = retry_s
        self.patience = patience
        self.joins_after_s = joins_after_s
        self.uploads = 0
        self.pulled = -1
        self.computing = False
        self.leaving = False
        self.pending: Message | None = None  # sent again, byte for byte, until it is answered
        self.retried = 0
        self.unanswered = 0
        self.timer = 0
        self._handlers: dict[type, Callable[[Any], list[Effect]]] = {Model: self._model, Halt: self._halt}

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(text for text in (self.mechanism.warning,) if text)

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Received):
            handler = self._handlers.get(type(event.body))
            if handler is None or event.sender != self.cloud:
                raise UnexpectedEvent(
                    f"{self.name}: {type(event.body).__name__} from {event.sender} has no place here."
                )
            return handler(event.body)
        if isinstance(event, Computed):
            return self._computed(event)
        if isinstance(event, Woken):
            return self._woken(event.token)
        if isinstance(event, Started):
            return self._started(event.resumed)
        if isinstance(event, PeerBack) and event.peer == self.cloud and self.pending is not None:
            return [Send(self.cloud, self.pending)]
        return []

    def _started(self, resumed: bool) -> list[Effect]:
        """After a crash the job under way is gone, and what was sent last is sent again: it has been paid for."""
        if self.joins_after_s > 0 and not resumed:
            return [Wake(self.joins_after_s)]
        self.computing = False
        return self._ask(self.pending if resumed and self.pending is not None else self._hello())

    def _hello(self) -> Message:
        return Leaving(self.uploads) if self.leaving else Hello(self._noise_per_clip(), self.uploads)

    def _noise_per_clip(self) -> float:
        return self.mechanism.noise_per_clip(self.model.dimension)

    def _ask(self, body: Message) -> list[Effect]:
        """Send something that will be answered, and again if it is not."""
        self.pending, self.unanswered = body, 0
        self.timer += 1
        return [Send(self.cloud, body), Wake(self.retry_s, self.timer)]

    def _woken(self, token: int) -> list[Effect]:
        if token == END:
            return self._leave(stopped=True)
        if token == 0:
            return self._ask(self._hello()) if self.pending is None else []
        if token != self.timer or self.pending is None:
            return []
        self.unanswered += 1
        if self.unanswered > self.patience:
            return [*self._totals(), Finish("peer-lost", f"the cloud did not answer {self.unanswered} times.")]
        self.retried += 1
        return [Send(self.cloud, self.pending), Wake(self.retry_s, self.timer)]

    def _model(self, body: Model) -> list[Effect]:
        if self.computing or self.leaving or body.answers < self.uploads:
            return []
        self._check(body)
        effects: list[Effect] = [Observe("lag", body.lag)] if isinstance(self.pending, Upload) else []
        self._remember(body.answers)
        self.pending = None
        if not self._affordable():
            return effects + self._leave()
        self.computing, self.pulled = True, body.version
        return [*effects, self._compute(body)]

    def _leave(self, stopped: bool = False) -> list[Effect]:
        if self.leaving:
            return []
        self.leaving = True
        return self._ask(Leaving(self.uploads, stopped))

    def _check(self, body: Model) -> None:
        """Before any of it is used. A clip scales the noise, so that a noisy edge needs one within bounds."""
        if body.parameters.shape != (self.model.dimension,) or body.parameters.dtype.kind != "f":
            raise UnexpectedEvent(
                f"{self.cloud} sent a model of shape {body.parameters.shape} and {body.parameters.dtype}; this edge's "
                f"has {self.model.dimension} parameters. Cloud and edges must be given the same model."
            )
        expect(bool(np.isfinite(body.parameters).all()), self.cloud, "a model that is not finite")
        least, most = (CLIP_LEAST, CLIP_MOST) if self._noise_per_clip() > 0 else (0.0, math.inf)
        expect(least < body.clip <= most, self.cloud, f"a clip of {body.clip}")
        for what, number in (("version", body.version), ("upload", body.answers), ("lag", body.lag)):
            _expect_number(self.cloud, what, number)
        known = self.mechanism.cost() is None or body.answers - self.uploads <= FORGOTTEN_MOST
        expect(known, self.cloud, f"{body.answers} as the number of uploads, of which this edge knows {self.uploads}")

    def _remember(self, answers: int) -> None:
        """The cloud has seen uploads that this edge does not know of: it was restored from too old a state."""
        cost, forgotten = self.mechanism.cost(), answers - self.uploads
        if forgotten > 0 and cost is not None:
            self.ledger.catch_up(cost, forgotten)
        self.uploads = answers

    def _affordable(self) -> bool:
        cost = self.mechanism.cost()
        return cost is None or self.ledger.affords(cost)

    def _compute(self, body: Model) -> Compute:
        stream = self.noise.stream(self.uploads + 1)
        job = partial(self.mechanism.release, self.model, body.parameters, self.data, body.clip, stream)
        rows = int(self.mechanism.batch)
        return Compute(self.uploads + 1, samples=rows, nonzeros=rows * self.model.dimension, job=job)

    def _computed(self, event: Computed) -> list[Effect]:
        """A ticket that is not known is one of before a restart; what an edge that leaves has computed, it keeps."""
        if not self.computing or event.ticket != self.uploads + 1:
            return []
        self.computing = False
        if self.leaving:
            return []
        gradient, fraction_within = event.result
        cost = self.mechanism.cost()
        if cost is not None:
            self.ledger.spend(cost)  # before it leaves
        self.uploads += 1
        return self._ask(Upload(gradient, self.pulled, self.uploads, fraction_within))

    def _halt(self, body: Halt) -> list[Effect]:
        return [*self._totals(), Send(self.cloud, Goodbye()), Finish(body.verdict, body.reason)]

    def _totals(self) -> list[Effect]:
        totals: list[Effect] = [Observe("updates", self.uploads), Observe("retried", self.retried)]
        return [*totals, Observe("privacy", self.statement(exact=False))]

    def statement(self, *, exact: bool = True) -> dict[str, Any]:
        """What this edge promised and what it spent, for the run record."""
        if self.mechanism.cost() is None:
            return {"releases": self.uploads, "epsilon": None, "warning": self.mechanism.warning}
        return {**self.ledger.statement(exact=exact), "seeded": self.noise.seeded}

    def snapshot(self) -> State:
        pending = None if self.pending is None else [type(self.pending).__name__, *_copied(self.pending)]
        return {
            "uploads": self.uploads,
            "ledger": self.ledger.snapshot(),
            "leaving": self.leaving,
            "computing": self.computing,
            "pulled": self.pulled,
            "pending": pending,
            "counts": [self.retried, self.unanswered, self.timer],
        }

    def restore(self, state: State) -> None:
        self.uploads, self.leaving = int(state["uploads"]), bool(state["leaving"])
        self.ledger.restore(state["ledger"])
        self.computing, self.pulled = bool(state["computing"]), int(state["pulled"])
        self.pending = None if state["pending"] is None else ASKED[state["pending"][0]](*state["pending"][1:])
        self.retried, self.unanswered, self.timer = state["counts"]


def _expect_number(sender: PartyName, what: str, number: int) -> None:
    expect(0 <= number < NUMBERS_END, sender, f"the {what} number {number}")


ASKED: dict[str, type[Message]] = {kind.__name__: kind for kind in (Hello, Upload, Leaving)}


def _copied(body: Message) -> list[Any]:
    """A message's fields, sharing no array with it."""
    values = [getattr(body, name) for name in body.__struct_fields__]
    return [value.copy() if isinstance(value, np.ndarray) else value for value in values]


# -- all of them together -------------------------------------------------------------------------------------------


def parties(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    rule: Rule,
    privacy: Mapping[PartyName, EdgePrivacy],
    *,
    updates: int,
    lag_max: int,
    seed: int | None,
    retry_s: float = 1.0,
) -> list[Party]:
    """A cloud and one edge for each entry of `data`. Without a seed the noise is cryptographic and never repeats."""
    if not data:
        raise BadJob("Horizontal learning needs at least one edge with rows; none was given.")
    cloud = Cloud(model.start(), rule, updates=updates, lag_max=lag_max, edges=tuple(data), linger_s=retry_s)
    edges = [
        Edge(name, model, rows, privacy[name], noise_source(seed, name), retry_s=retry_s) for name, rows in data.items()
    ]
    return [cloud, *edges]


def noise_source(seed: int | None, name: PartyName) -> NoiseSource:
    return SystemNoise() if seed is None else SeededNoise(seed, name)
