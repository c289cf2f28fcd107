"""An edge: it holds rows, pulls the model, releases one gradient, and so on until its budget or the run ends."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from offbeat.algorithms.mapa.messages import CLOUD, Halt, Hello, Leaving, Model, Upload, expect_number
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.errors import UnexpectedEvent
from offbeat.learning.horizontal import EdgeData, HorizontalModel
from offbeat.party.contract import (
    END,
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Message,
    Observe,
    PartyName,
    PeerBack,
    Received,
    Send,
    Started,
    State,
    Wake,
    Woken,
)
from offbeat.party.expected import expect
from offbeat.party.memory import Memory, plain
from offbeat.party.protocol import Goodbye
from offbeat.privacy.noise import NoiseSource

CLIP_LEAST, CLIP_MOST = 1e-100, 1e100  # beyond them noise and gradient would leave the range of floats
FORGOTTEN_MOST = 100_000  # uploads to be accounted for at once; more would take an edge minutes and gigabytes


class Edge(Memory):
    """Holds rows; pulls the model, releases one gradient, and so on until its budget or the run ends.

    `privacy` is how rows become an upload, and the budget for that; `noise` is where an upload's randomness comes from.
    What it sends is sent again after `retry_s` seconds without an answer, `patience` times at most. It says Hello
    `joins_after_s` seconds after the start.
    """

    KEPT = ("uploads", "ledger", "leaving", "computing", "pulled", "pending", "counts")

    def __init__(
        self,
        name: PartyName,
        model: HorizontalModel,
        data: EdgeData,
        privacy: EdgePrivacy,
        noise: NoiseSource,
        *,
        retry_s: float = 1.0,
        patience: int = 60,
        joins_after_s: float = 0.0,
    ) -> None:
        model.check(data)
        self.name, self.model, self.data, self.noise = name, model, data, noise
        self.mechanism, self.ledger = privacy.mechanism, privacy.ledger()
        self.cloud, self.retry_s, self.patience, self.joins_after_s = CLOUD, retry_s, patience, joins_after_s
        self.uploads = 0  # released so far
        self.pulled = -1  # the version of the model under work
        self.computing = False
        self.leaving = False
        self.pending: Message | None = None  # sent again, byte for byte, until it is answered
        self.retried = 0  # in the whole run
        self.unanswered = 0  # times that `pending` was sent in vain
        self.timer = 0  # the token of the newest timer: older ones are passed over
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
        cost = self.mechanism.cost()
        if cost is not None and not self.ledger.affords(cost):
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
            expect_number(self.cloud, what, number)
        known = self.mechanism.cost() is None or body.answers - self.uploads <= FORGOTTEN_MOST
        expect(known, self.cloud, f"{body.answers} as the number of uploads, of which this edge knows {self.uploads}")

    def _remember(self, answers: int) -> None:
        """The cloud has seen uploads that this edge does not know of: it was restored from too old a state."""
        cost, forgotten = self.mechanism.cost(), answers - self.uploads
        if forgotten > 0 and cost is not None:
            self.ledger.catch_up(cost, forgotten)
        self.uploads = answers

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

    @property
    def counts(self) -> list[int]:
        return [self.retried, self.unanswered, self.timer]

    @counts.setter
    def counts(self, counts: list[int]) -> None:
        self.retried, self.unanswered, self.timer = counts

    def snapshot(self) -> dict[str, Any]:
        pending = None if self.pending is None else [type(self.pending).__name__, *plain(self.pending)]
        return {**super().snapshot(), "pending": pending}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.pending = None if state["pending"] is None else ASKED[state["pending"][0]](*state["pending"][1:])


ASKED: dict[str, type[Message]] = {kind.__name__: kind for kind in (Hello, Upload, Leaving)}
