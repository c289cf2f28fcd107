"""VAFL's client: it holds columns and an embedding."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from offbeat.algorithms.vafl.memory import client_state, restore_client
from offbeat.algorithms.vafl.messages import (
    Ask,
    Gradient,
    Halt,
    Noted,
    PredictAsked,
    PredictGiven,
    Refresh,
    Refreshed,
    ReleaseWanted,
    Resting,
    Resume,
    Resumed,
    StopWanted,
    UnderWay,
    Upload,
)
from offbeat.algorithms.vafl.noise import UploadNoise, noisy_covariance, noisy_gradient
from offbeat.algorithms.vafl.options import Vafl
from offbeat.algorithms.vafl.received import expect_derivative, expect_life, expect_number, expect_rows, expect_slice
from offbeat.algorithms.vafl.releases import QUIET, Pending, Releases
from offbeat.errors import UnexpectedEvent
from offbeat.learning.embeddings import Array, Embedding, Forward, LinearEmbedding, Tensors, Weights
from offbeat.learning.row_order import RowOrder
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
    PeerLost,
    Received,
    Send,
    Started,
    State,
    Wake,
    Woken,
)
from offbeat.party.expected import expect
from offbeat.party.protocol import Goodbye
from offbeat.privacy.embedding import RecordLedger, whitening
from offbeat.privacy.noise import NoiseSource
from offbeat.randomness import stream

_RESUME, _ACTIVATE, _STOP = -2, -3, -4  # tokens of a client's timers; others are release numbers


class Client:
    """Holds columns and an embedding; Algorithm 1, lines 3 to 7."""

    def __init__(
        self,
        name: PartyName,
        server: PartyName,
        features: Any,
        embedding: Embedding,
        weights: Weights,
        options: Vafl,
        seed: int,
        noise_source: NoiseSource,
        gradient_noise_source: NoiseSource,
        test_features: Any = None,
    ) -> None:
        self.name, self.server, self.options, self.seed = name, server, options, seed
        self.features, self.test_features = features, test_features
        self.embedding, self.weights = embedding, weights
        self.rule, self.penalty = options.optimiser_of(name), options.penalty_of(name)
        self.memory: Tensors = self.rule.initial(weights.trained)
        self.metric: Array | None = None  # what a step's gradient is multiplied with, in private mode
        self.upload_noise = UploadNoise(name, options, seed, embedding.width, noise_source)
        self.gradient_noise_source = gradient_noise_source
        self.rows = features.shape[0]
        rows = stream(seed, "rows") if options.together else stream(seed, name, "rows")
        self.order = RowOrder(self.rows, options.batch, options.sampling, rows)
        self.clock = stream(seed, name, "activation")
        self.phase = "new"
        self.version = self.tickets = self.last_ask = self.batches = 0
        self.filled = self.filling_to = 0
        self.asked: tuple[int, Array] | None = None
        self.resuming, self.resume_tries = False, 0
        self.stopping, self.stop_tries = False, 0
        self.halt: Halt | None = None
        self.under_way: set[int] = set()  # requests that are being answered
        self.releases = Releases(server, options.retry_s)
        self.passes: dict[int, Forward] = {}
        self.jobs: dict[int, Callable[[], list[Effect]]] = {}
        self.forward_jobs = 0
        self.ledger = self._new_ledger(self.rows)
        self.test_ledger = self._new_ledger(0 if test_features is None else test_features.shape[0])
        self.handlers, self.other_events = self._handlers(), self._other_events()

    def _handlers(self) -> dict[type, Callable[[Any], list[Effect]]]:
        return {
            Gradient: self._on_gradient,
            Noted: self._on_noted,
            UnderWay: self._on_under_way,
            ReleaseWanted: lambda body: self.releases.send_again(body.release),
            Refresh: self._on_refresh,
            Ask: self._on_ask,
            PredictAsked: self._on_predict,
            Resumed: self._on_resumed,
            Halt: self._on_halt,
        }

    def _other_events(self) -> dict[type, Callable[[Any], list[Effect]]]:
        return {
            Started: self._on_started,
            Computed: self._on_computed,
            Woken: self._on_woken,
            PeerLost: lambda event: [],
            PeerBack: lambda event: [e for e in self.releases.ask_after_all() if type(e) is Send],
        }

    def handle(self, event: Event) -> list[Effect]:
        if type(event) is Received:
            handler = self.handlers.get(type(event.body))
            if handler is None or event.sender != self.server:
                raise UnexpectedEvent(f"{self.name} (client) got {type(event.body).__name__} from {event.sender}.")
            return handler(event.body)
        return self.other_events[type(event)](event)

    # starting, and coming back

    def _on_started(self, event: Started) -> list[Effect]:
        if event.resumed and self.phase != "new":
            self.jobs, self.passes, self.forward_jobs, self.under_way = {}, {}, 0, set()
            self.resuming, self.resume_tries, self.stop_tries = True, 0, 0
            return self._ask_to_resume() + self._ask_to_stop()
        effects = self._take_covariance()
        if self.options.variant == "vafl-sync":
            self.phase = "training"
            return effects
        self.phase = "filling" if self.options.initial_upload else "training"
        return effects + (self._fill() if self.phase == "filling" else self._begin())

    def _take_covariance(self) -> list[Effect]:
        """Where steps are multiplied with its inverse: once, before anything leaves, so that every state to come back
        from has it and none is drawn a second time."""
        private = self.options.private
        if private is None or private.covariance_noise is None:
            return []
        noisy = noisy_covariance(private, self.embedding, self.features, self.gradient_noise_source)
        self.metric = whitening(private, noisy, self.rows)
        return self._compute(list, self.rows, -(-self.embedding.inputs // self.embedding.width))

    def _ask_to_resume(self) -> list[Effect]:
        """Until the answer is there nothing new is released: its number may have been used."""
        if not self.resuming:
            return []
        self.resume_tries += 1
        return self._insist(Resume(self.releases.newest), self.resume_tries, _RESUME, "after a restart")

    def _ask_to_stop(self) -> list[Effect]:
        """The owner wants the run to end. The server answers with `Halt`; until then the client goes on."""
        if not self.stopping or self.halt is not None or self.phase == "done":
            return []
        self.stop_tries += 1
        return self._insist(StopWanted(), self.stop_tries, _STOP, "the owner's wish to stop")

    def _insist(self, body: Message, tries: int, token: int, what: str) -> list[Effect]:
        """Say it now, and again at this timer, unless it was said in vain often enough."""
        if tries > self.options.retries_max:
            self.phase = "done"
            return [Finish("peer-lost", f"{self.server} did not answer {what}")]
        return [Send(self.server, body), Wake(self.releases.patience.pause_s(tries), token)]

    def _on_resumed(self, body: Resumed) -> list[Effect]:
        expect_life(self.server, body)
        if not self.resuming or body.first <= self.releases.newest:  # the answer to an earlier restart, which is over
            return []
        self.resuming = False
        if body.forgotten:
            self._forget(body.forgotten)
        self.releases.newest = max(self.releases.newest, body.first)
        if self.phase == "filling":
            return self.releases.ask_after_all() or self._fill()
        effects = self.releases.ask_after_all() + self._steps_again()
        if self.phase == "resting":
            return effects
        return effects + (self._begin() if self.options.variant != "vafl-sync" else self._answer_ask())

    def _steps_again(self) -> list[Effect]:
        """The answers that had come and whose steps were lost with the restart."""
        effects: list[Effect] = []
        for release, pending in self.releases.pending.items():
            if pending.derivative is not None:
                effects += self._compute(partial(self._step, release), len(pending.rows), 2)
        return effects

    def _forget(self, uploads: int) -> None:
        """The snapshot was older than what was sent: those numbers are used, and so are their rows' budgets."""
        self.releases.forget()
        for ledger in (self.ledger, self.test_ledger):
            if ledger is not None:
                ledger.charge_all(uploads)

    def _fill(self) -> list[Effect]:
        """The initial upload, one chunk after another."""
        if self.resuming:
            return []
        self.filling_to = min(self.filled + self.options.chunk, self.rows)
        rows = np.arange(self.filled, self.filling_to)
        return self._compute(lambda: self._upload(rows, wanted=False, asked=-1), len(rows), 1)

    def _begin(self) -> list[Effect]:
        self.phase = "training"
        return self._activate() if self.name not in self.options.rates else self._set_clock()

    def _set_clock(self) -> list[Effect]:
        """Activation by a Poisson clock: exponential times with this rate."""
        return [Wake(self.clock.exponential(1.0 / self.options.rates[self.name]), _ACTIVATE)]

    def _on_noted(self, body: Noted) -> list[Effect]:
        pending = self.releases.pending.get(body.release)
        if pending is None or self.phase == "done":
            return []
        if type(pending.body) is Resting:
            del self.releases.pending[body.release]
            return []
        if type(pending.body) is Upload and pending.body.wanted:
            return self._give_up(body.release)
        self.filled = self.filling_to
        if self.filled == self.rows and not body.begin:
            pending.tries = 0
            return []  # kept: asking after it is how a lost `begin` is found
        del self.releases.pending[body.release]
        if self.filled < self.rows:
            return self._fill()
        return self._begin() if self.phase == "filling" else []

    def _on_under_way(self, body: UnderWay) -> list[Effect]:
        self.releases.under_way(body.number)
        return []

    def _give_up(self, release: int) -> list[Effect]:
        """The server needs this upload no more: it was made again after a restart, or overtaken."""
        if self.releases.unanswered(release) is None:
            return []
        del self.releases.pending[release]
        self.passes.pop(release, None)
        return self._next()

    def _next(self) -> list[Effect]:
        if self.options.variant == "vafl-sync":
            return self._answer_ask()
        return [] if self.name in self.options.rates else self._activate()

    # lines 4 to 6: choose rows, embed, upload

    def _activate(self, at_most: int | None = None) -> list[Effect]:
        """Fill the free places in flight; only one where a clock activates."""
        effects: list[Effect] = []
        if self.phase != "training" or self.halt is not None or self.resuming:
            return effects
        free = self.options.in_flight - len(self.releases.pending) - self.forward_jobs
        for _ in range(free if at_most is None else min(free, at_most)):
            rows = self._choose_rows()
            if not len(rows):
                return effects + self._rest()
            self.forward_jobs += 1
            upload = partial(self._upload, rows, wanted=True, asked=-1, job=True)
            effects += self._compute(upload, len(rows), 1)
        return effects

    @property
    def _batches_a_pass(self) -> int:
        return -(-int(self.rows) // self.order.batch)

    def _next_batch(self) -> Array:
        self.batches += 1
        return self.order.next()

    def _choose_rows(self) -> Array:
        """The next batch whose caps leave room; nothing once a whole pass has found none."""
        for _ in range(2 * self._batches_a_pass + 1):
            rows = self._next_batch()
            if self.ledger is not None:
                rows = self.ledger.open_rows(rows)
            if len(rows):
                self._spend(rows, step=True)
                return rows
            if self.ledger is not None and not len(self.ledger.open_rows(np.arange(self.rows))):
                break
        return np.zeros(0, dtype=np.int64)

    def _spend(self, rows: Array, *, step: bool) -> None:
        if self.ledger is not None:
            self.ledger.spend(rows, step=step)

    def _rest(self) -> list[Effect]:
        if self.phase == "resting":
            return []
        self.phase = "resting"
        return self.releases.keep(Resting(self.releases.next_number(), "every record's cap on uploads is reached"))

    def _upload(self, rows: Array, *, wanted: bool, asked: int, job: bool = False) -> list[Effect]:
        """The rows of an activation were counted when they were chosen, others are now; the bytes do not change."""
        self.forward_jobs -= job
        if self.phase == "done" or self.halt is not None:
            return []
        if asked >= 0:
            self.under_way.discard(asked)
            if self.asked is None or self.asked[0] != asked:
                return []  # asked anew meanwhile
            self.asked = None
        if asked >= 0 or not wanted:
            rows = rows if self.ledger is None else self.ledger.open_rows(rows)
            self._spend(rows, step=wanted)
        release = self.releases.next_number()
        disturbance = QUIET if self._says_nothing() else self.upload_noise.of(release, len(rows))
        forward = self.embedding.forward(self.weights, self.features, rows, disturbance)
        self.weights = Weights(self.weights.trained, forward.kept)
        disturbance = disturbance._replace(noise=forward.noise, draw=None)
        if wanted:
            self.passes[release] = forward
        oldest = min([release, *self.releases.pending])
        body = Upload(release, self.version, asked, wanted, rows, forward.embedding, oldest)
        return self.releases.keep(body, rows, disturbance)

    def _says_nothing(self) -> bool:
        """First weights of zero embed every row as zero, whatever it holds. That needs no noise, and the answer, which
        the first step is made of, would be about the noise."""
        return self.metric is not None and self.version == 0 and not any(map(np.any, self.weights.trained.values()))

    # line 7: update the local model

    def _on_gradient(self, body: Gradient) -> list[Effect]:
        pending = self.releases.unanswered(body.release)
        if pending is None or self.phase == "done":
            self.releases.patience.too_short()  # it has come before: the question after it came too early
            return []
        wanted = type(pending.body) is Upload and pending.body.wanted
        expect(wanted, self.server, f"a derivative for release {body.release}, which asks for none")
        expect_derivative(self.server, body.derivative, len(pending.rows), self.embedding.width)
        pending.derivative = np.array(body.derivative)
        if self.options.together:
            for _ in range(min(body.iteration + 1 - self.batches, self._batches_a_pass)):
                self._next_batch()
        if not pending.tries:
            self.releases.patience.long_enough()
        if self.options.variant == "vafl-tsync":
            for release in self.releases.open_uploads(before=body.release):
                del self.releases.pending[release]  # replaced by the newer upload before the server's update
                self.passes.pop(release, None)
        return self._compute(lambda: self._step(body.release), len(pending.rows), 2)

    def _step(self, release: int) -> list[Effect]:
        pending = self.releases.pending.pop(release, None)
        if pending is None or self.phase == "done":
            return []
        assert pending.derivative is not None
        forward = self.passes.pop(release, None) or self._same_pass(pending)
        gradient = self._gradient(forward, pending.derivative, release)
        trained, self.memory = self.embedding.step(self.rule, self.weights.trained, gradient, self.memory)
        self.weights = Weights(self.penalty.proximal(trained, self.rule.step), self.weights.kept)
        self.version += 1
        if self.halt is not None:
            return self._close() if not self.releases.pending else []
        return self._next()

    def _same_pass(self, pending: Pending) -> Forward:
        """After a restart: the pass that made the upload, run again with the same noise (its result is not kept)."""
        return self.embedding.forward(self.weights, self.features, pending.rows, pending.disturbance)

    def _gradient(self, forward: Forward, derivative: Array, release: int) -> Tensors:
        private = self.options.private
        if private is None:
            return self.embedding.gradient(forward, derivative)
        noisy = noisy_gradient(private, self.embedding, forward, derivative, self.gradient_noise_source, release)
        if self.metric is None:
            return noisy
        assert isinstance(self.embedding, LinearEmbedding)
        return self.embedding.turned(noisy, self.metric)

    # answering the server

    def _on_ask(self, body: Ask) -> list[Effect]:
        expect(self.options.variant == "vafl-sync", self.server, f"the request {body.request} of a synchronous round")
        if body.request <= self.last_ask or self.phase == "done":
            return self._still_at_it(body.request) if body.request == self.last_ask else []
        expect_number(self.server, "request", body.request)
        expect_rows(self.server, body.rows, self.rows)
        expect(len(body.rows) > 0, self.server, f"the request {body.request} for no rows")
        self.last_ask, self.asked = body.request, (body.request, np.array(body.rows))
        if body.anew:
            self.releases.pending, self.passes = {}, {}
        return self._answer_ask()

    def _answer_ask(self) -> list[Effect]:
        """Synchronous: embed only after the last gradient has been applied."""
        if self.asked is None or self.asked[0] in self.under_way or self.releases.pending or self.phase != "training":
            return []
        if self.resuming:
            return []
        request, rows = self.asked
        if self.ledger is not None and len(self.ledger.open_rows(rows)) < len(rows):
            return self._rest()
        self.under_way.add(request)
        return self._compute(lambda: self._upload(rows, wanted=True, asked=request), len(rows), 1)

    def _on_refresh(self, body: Refresh) -> list[Effect]:
        before = self.releases.answered_before(body.request)
        if before or self.phase == "done" or self.resuming:
            return before
        if body.request in self.under_way:
            return self._still_at_it(body.request)
        expect_rows(self.server, body.rows, self.rows)
        self.under_way.add(body.request)
        rows = np.array(body.rows)
        rows = rows if self.ledger is None else self.ledger.open_rows(rows)
        self._spend(rows, step=False)
        return self._compute(lambda: self._refreshed(body.request, rows), len(rows), 1)

    def _refreshed(self, request: int, rows: Array) -> list[Effect]:
        release = self.releases.next_number()
        forward = self.embedding.forward(self.weights, self.features, rows, self.upload_noise.of(release, len(rows)))
        self.under_way.discard(request)
        return self.releases.answer(request, Refreshed(request, release, self.version, rows, forward.embedding))

    def _on_predict(self, body: PredictAsked) -> list[Effect]:
        before = self.releases.answered_before(body.request)
        if before or self.phase == "done" or self.test_features is None or self.resuming:
            return before
        if body.request in self.under_way:
            return self._still_at_it(body.request)
        expect_slice(self.server, body, self.test_features.shape[0])
        self.under_way.add(body.request)
        return self._compute(lambda: self._predicted(body), body.stop - body.start, 1)

    def _still_at_it(self, request: int) -> list[Effect]:
        return [] if self.phase == "done" or self.resuming else [Send(self.server, UnderWay(request))]

    def _predicted(self, body: PredictAsked) -> list[Effect]:
        rows, ledger = np.arange(body.start, body.stop), self.test_ledger
        self.under_way.discard(body.request)
        if ledger is not None and len(ledger.open_rows(rows)) < len(rows):
            return []  # the server goes on without this client
        release = self.releases.next_number()
        if self.test_ledger is None:
            embedding = self.embedding.infer(self.weights, self.test_features, rows)
        else:
            self.test_ledger.spend(rows, step=False)
            disturbance = self.upload_noise.of(release, len(rows))
            embedding = self.embedding.forward(self.weights, self.test_features, rows, disturbance).embedding
        return self.releases.answer(body.request, PredictGiven(body.request, release, embedding))

    def _on_halt(self, body: Halt) -> list[Effect]:
        """The last answers are still applied; what is unanswered is dropped."""
        self.halt = body
        answered = {n: p for n, p in self.releases.pending.items() if p.derivative is not None}
        self.releases.pending = answered
        if not answered:
            return self._close()
        resumed, self.resuming = self.resuming, False
        return self._steps_again() if resumed else []

    def _close(self) -> list[Effect]:
        assert self.halt is not None
        self.phase = "done"
        effects: list[Effect] = [Observe("updates", self.version), Observe("retried", self.releases.retried)]
        if self.ledger is not None:
            effects.append(Observe("privacy", self.privacy()))
        return effects + [Send(self.server, Goodbye()), Finish(self.halt.verdict, self.halt.reason)]

    def privacy(self) -> dict[str, Any]:
        """What its ledger says, for the record."""
        assert self.ledger is not None
        return {**self.ledger.statement(), "seeded": self.upload_noise.source.seeded}

    # time, work, and sending again

    def _compute(self, work: Callable[[], list[Effect]], rows: int, forwards: int) -> list[Effect]:
        """Spend a lane on `work`; backward passes cost two forward ones."""
        self.tickets += 1
        self.jobs[self.tickets] = work
        return [Compute(self.tickets, samples=rows, nonzeros=forwards * rows * self.embedding.work)]

    def _on_computed(self, event: Computed) -> list[Effect]:
        """A ticket that is not known is one of before a restart."""
        job = self.jobs.pop(event.ticket, None)
        return [] if job is None else job()

    def _on_woken(self, event: Woken) -> list[Effect]:
        if self.phase == "done":
            return []
        if event.token == END:
            asked, self.stopping = self.stopping, True
            return [] if asked else self._ask_to_stop()
        if event.token == _STOP:
            return self._ask_to_stop()
        if event.token == _ACTIVATE and self.name in self.options.rates:
            return self._set_clock() + self._activate(at_most=1)
        if event.token == _RESUME:
            return self._ask_to_resume()
        return self._retry(event.token)

    def _retry(self, release: int) -> list[Effect]:
        pending = self.releases.unanswered(release)
        if pending is None:
            return []
        if pending.tries >= self.options.retries_max:
            self.phase = "done"
            return [Finish("peer-lost", f"{self.server} did not answer release {release} after {pending.tries} tries")]
        return self.releases.ask_after(pending, release)

    def _new_ledger(self, records: int) -> RecordLedger | None:
        return None if self.options.private is None else RecordLedger(self.options.private, records)

    # memory

    def snapshot(self) -> State:
        return client_state(self)

    def restore(self, state: State) -> None:
        restore_client(self, state)
        self.jobs, self.passes, self.forward_jobs, self.under_way = {}, {}, 0, set()
