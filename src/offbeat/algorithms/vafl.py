"""VAFL: a server with labels and a head, clients with columns and embeddings, and nobody waits for the slow.

"VAFL: a Method of Vertical Asynchronous Federated Learning", Chen, Jin, Sun and Yin, 2020 (arXiv:2007.06081).

    minimise  F = (1/N) sum_n loss(head, h_n1, .., h_nM; y_n) + sum_m r(weights_m),  h_nm = embedding_m(weights_m, x_nm)

| paper      | here                      | paper       | here                                             |
|------------|---------------------------|-------------|--------------------------------------------------|
| theta_0    | Server.weights            | k           | Server.iteration                                 |
| theta_m    | Client.weights            | tau_nm      | lag: k minus the k at which H[n, m] was written  |
| h_nm, H    | embedding, Server.table   | D           | Vafl.delay_bound, in units of N*M/b              |
| r          | Vafl.penalty              | t           | Vafl.t                                           |
| eta_0, eta | head_optimiser, optimiser | c           | Vafl.noise: a standard deviation everywhere      |

Order of play, asynchronous, with one client Ana:
1. Once, every client uploads the embeddings of all its rows (else rows are *cold*: zero, and marked). In private mode
   this costs, and is left out where all are known to be zero at first.
2. Ana takes some rows, embeds them and uploads them (`Upload`).
3. The server writes them into its table, asks others for rows that are too old (`Refresh`; only this update waits),
   does one forward and backward pass over the rows with what the table holds, answers with the derivative of the
   loss in Ana's embeddings (`Gradient`) and steps the head. Both gradients are taken at the same head (Eq. 4).
4. Ana pulls the derivative back through the very pass that made the upload, noise included, steps, and goes on.

`vafl-tsync`: the server waits until t different clients have uploaded and does one pass over all their rows.
`vafl-sync`: the server chooses the rows (`Ask`), waits for all, and answers all: the baseline, and with one pass the
same trajectory as the pooled model.

Loss, duplication and crashes: what a client releases has a number that is never used twice. It is kept until it is
answered. When the answer is late, the client asks for it, and sends the release again, byte for byte, where the server
does not have it; the server answers each number once and re-sends its answer. A client that returns from an old
snapshot asks which numbers the server has seen, charges its ledger for those it forgot, and goes on with higher numbers
than any it can have used.
Parties are honest but curious. The server learns every embedding; a client learns derivatives, and from those of an
additive head every label (`what_clients_learn`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms.vafl_answers import Answers
from offbeat.algorithms.vafl_asking import Asking
from offbeat.algorithms.vafl_checks import check_test_rows, checked_targets
from offbeat.algorithms.vafl_disturbance import Disturber, noisy_gradient
from offbeat.algorithms.vafl_farewell import Farewell
from offbeat.algorithms.vafl_measures import joint_embeddings, joint_scores, last_words, objective, one_hot, score
from offbeat.algorithms.vafl_memory import client_state, restore_client, restore_server, server_state
from offbeat.algorithms.vafl_messages import (
    MESSAGES,
    AnswerWanted,
    Ask,
    Goodbye,
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
from offbeat.algorithms.vafl_options import (
    VARIANTS,
    Vafl,
    known_start,
    noise_warning,
    privacy_label,
    what_clients_learn,
)
from offbeat.algorithms.vafl_outbox import Outbox, Pending
from offbeat.algorithms.vafl_patience import BACKOFF_MAX, Patience
from offbeat.algorithms.vafl_prediction import JointPrediction
from offbeat.algorithms.vafl_received import (
    expect_derivative,
    expect_life,
    expect_number,
    expect_refreshed,
    expect_rows,
    expect_slice,
    expect_upload,
    expect_vectors,
)
from offbeat.algorithms.vafl_refresh import Contribution, Refreshes, united
from offbeat.errors import UnexpectedEvent
from offbeat.learning.embedding_table import EmbeddingTable
from offbeat.learning.embeddings import (
    Embedding,
    Forward,
    Head,
    Tensors,
    Weights,
)
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
from offbeat.privacy.embedding import RecordLedger
from offbeat.privacy.label_response import private_targets
from offbeat.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from offbeat.randomness import stream

__all__ = [
    "MESSAGES",
    "VARIANTS",
    "Client",
    "Server",
    "Vafl",
    "build",
    "joint_embeddings",
    "joint_scores",
    "noise_warning",
    "objective",
    "one_hot",
    "privacy_label",
    "score",
    "what_clients_learn",
]

Array = NDArray[Any]

_RESUME, _ACTIVATE, _STOP = -2, -3, -4  # tokens of a client's timers; others are release numbers
_HALT, _WATCH, _TIME_UP = -2, -3, -4  # tokens of the server's timers; others are request numbers
_DIVERGED = 1e6  # a batch loss so many times the first one ends the run
_ROUNDS_MAX = 3  # refreshes of one update, before it goes on with what it has


# -- the client -----------------------------------------------------------------------------------------------------


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
        self.disturber = Disturber(name, options, seed, embedding.width, noise_source)
        self.gradient_noise_source = gradient_noise_source
        self.rows = features.shape[0]
        self.order = RowOrder(self.rows, options.batch, options.sampling, stream(seed, name, "rows"))
        self.clock = stream(seed, name, "activation")
        self.phase = "new"
        self.version = self.tickets = self.last_ask = 0
        self.filled = self.filling_to = 0
        self.asked: tuple[int, Array] | None = None
        self.resuming, self.resume_tries = False, 0
        self.stopping, self.stop_tries = False, 0
        self.halt: Halt | None = None
        self.under_way: set[int] = set()  # requests that are being answered
        self.outbox = Outbox(server, options.retry_s)
        self.passes: dict[int, Forward] = {}
        self.jobs: dict[int, Callable[[], list[Effect]]] = {}
        self.forward_jobs = 0
        self.ledger = self._new_ledger(self.rows)
        self.test_ledger = self._new_ledger(0 if test_features is None else test_features.shape[0])
        self.handlers: dict[type, Callable[[Any], list[Effect]]] = {
            Gradient: self._on_gradient,
            Noted: self._on_noted,
            UnderWay: self._on_under_way,
            ReleaseWanted: lambda body: self.outbox.send_again(body.release),
            Refresh: self._on_refresh,
            Ask: self._on_ask,
            PredictAsked: self._on_predict,
            Resumed: self._on_resumed,
            Halt: self._on_halt,
        }
        self.other_events: dict[type, Callable[[Any], list[Effect]]] = {
            Started: self._on_started,
            Computed: self._on_computed,
            Woken: self._on_woken,
            PeerLost: lambda event: [],
            PeerBack: lambda event: [e for e in self.outbox.ask_after_all() if type(e) is Send],
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
        if self.options.variant == "vafl-sync":
            self.phase = "training"
            return []
        self.phase = "filling" if self.options.initial_upload else "training"
        return self._fill() if self.phase == "filling" else self._begin()

    def _ask_to_resume(self) -> list[Effect]:
        """Until the answer is there nothing new is released: its number may have been used."""
        if not self.resuming:
            return []
        self.resume_tries += 1
        if self.resume_tries > self.options.retries_max:
            self.phase = "done"
            return [Finish("peer-lost", f"{self.server} did not answer after a restart")]
        pause = self.outbox.patience.pause_s(self.resume_tries)
        return [Send(self.server, Resume(self.outbox.releases)), Wake(pause, _RESUME)]

    def _ask_to_stop(self) -> list[Effect]:
        """The owner wants the run to end. The server answers with `Halt`; until then the client goes on."""
        if not self.stopping or self.halt is not None or self.phase == "done":
            return []
        self.stop_tries += 1
        if self.stop_tries > self.options.retries_max:
            self.phase = "done"
            return [Finish("peer-lost", f"{self.server} did not answer the owner's wish to stop")]
        return [Send(self.server, StopWanted()), Wake(self.outbox.patience.pause_s(self.stop_tries), _STOP)]

    def _on_resumed(self, body: Resumed) -> list[Effect]:
        expect_life(self.server, body)
        if not self.resuming or body.first <= self.outbox.releases:  # the answer to an earlier restart, which is over
            return []
        self.resuming = False
        if body.forgotten:
            self._forget(body.forgotten)
        self.outbox.releases = max(self.outbox.releases, body.first)
        if self.phase == "filling":
            return self.outbox.ask_after_all() or self._fill()
        effects = self.outbox.ask_after_all() + self._steps_again()
        if self.phase == "resting":
            return effects
        return effects + (self._begin() if self.options.variant != "vafl-sync" else self._answer_ask())

    def _steps_again(self) -> list[Effect]:
        """The answers that had come and whose steps were lost with the restart."""
        effects: list[Effect] = []
        for release, pending in self.outbox.pending.items():
            if pending.derivative is not None:
                effects += self._compute(partial(self._step, release), len(pending.rows), 2)
        return effects

    def _forget(self, uploads: int) -> None:
        """The snapshot was older than what was sent: those numbers are used, and so are their rows' budgets."""
        self.outbox.forget()
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
        pending = self.outbox.pending.get(body.release)
        if pending is None or self.phase == "done":
            return []
        if type(pending.body) is Resting:
            del self.outbox.pending[body.release]
            return []
        if type(pending.body) is Upload and pending.body.wanted:
            return self._give_up(body.release)
        self.filled = self.filling_to
        if self.filled == self.rows and not body.begin:
            pending.tries = 0
            return []  # kept: asking after it is how a lost `begin` is found
        del self.outbox.pending[body.release]
        if self.filled < self.rows:
            return self._fill()
        return self._begin() if self.phase == "filling" else []

    def _on_under_way(self, body: UnderWay) -> list[Effect]:
        self.outbox.under_way(body.number)
        return []

    def _give_up(self, release: int) -> list[Effect]:
        """The server needs this upload no more: it was made again after a restart, or overtaken."""
        if self.outbox.unanswered(release) is None:
            return []
        del self.outbox.pending[release]
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
        free = self.options.in_flight - len(self.outbox.pending) - self.forward_jobs
        for _ in range(free if at_most is None else min(free, at_most)):
            rows = self._choose_rows()
            if not len(rows):
                return effects + self._rest()
            self.forward_jobs += 1
            upload = partial(self._upload, rows, wanted=True, asked=-1, job=True)
            effects += self._compute(upload, len(rows), 1)
        return effects

    def _choose_rows(self) -> Array:
        """The next batch whose caps leave room; nothing once a whole pass has found none."""
        for _ in range(2 * math.ceil(self.rows / self.order.batch) + 1):
            rows = self.order.next()
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
        return self.outbox.keep(Resting(self.outbox.next_number(), "every record's cap on uploads is reached"))

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
        release = self.outbox.next_number()
        disturbance = self.disturber.of(release, len(rows))
        forward = self.embedding.forward(self.weights, self.features, rows, disturbance)
        self.weights = Weights(self.weights.trained, forward.kept)
        disturbance = disturbance._replace(noise=forward.noise, draw=None)
        if wanted:
            self.passes[release] = forward
        oldest = min([release, *self.outbox.pending])
        body = Upload(release, self.version, asked, wanted, rows, forward.embedding, oldest)
        return self.outbox.keep(body, rows, disturbance)

    # line 7: update the local model

    def _on_gradient(self, body: Gradient) -> list[Effect]:
        pending = self.outbox.unanswered(body.release)
        if pending is None or self.phase == "done":
            self.outbox.patience.too_short()  # it has come before: the question after it came too early
            return []
        wanted = type(pending.body) is Upload and pending.body.wanted
        expect(wanted, self.server, f"a derivative for release {body.release}, which asks for none")
        expect_derivative(self.server, body.derivative, len(pending.rows), self.embedding.width)
        pending.derivative = np.array(body.derivative)
        if not pending.tries:
            self.outbox.patience.long_enough()
        if self.options.variant == "vafl-tsync":
            for release in self.outbox.open_uploads(before=body.release):
                del self.outbox.pending[release]  # replaced by the newer upload before the server's update
                self.passes.pop(release, None)
        return self._compute(lambda: self._step(body.release), len(pending.rows), 2)

    def _step(self, release: int) -> list[Effect]:
        pending = self.outbox.pending.pop(release, None)
        if pending is None or self.phase == "done":
            return []
        assert pending.derivative is not None
        forward = self.passes.pop(release, None) or self._same_pass(pending)
        gradient = self._gradient(forward, pending.derivative, release)
        trained, self.memory = self.embedding.step(self.rule, self.weights.trained, gradient, self.memory)
        self.weights = Weights(self.penalty.proximal(trained, self.rule.step), self.weights.kept)
        self.version += 1
        if self.halt is not None:
            return self._close() if not self.outbox.pending else []
        return self._next()

    def _same_pass(self, pending: Pending) -> Forward:
        """After a restart: the pass that made the upload, run again with the same noise (its result is not kept)."""
        return self.embedding.forward(self.weights, self.features, pending.rows, pending.disturbance)

    def _gradient(self, forward: Forward, derivative: Array, release: int) -> Tensors:
        private = self.options.private
        if private is None:
            return self.embedding.gradient(forward, derivative)
        return noisy_gradient(private, self.embedding, forward, derivative, self.gradient_noise_source, release)

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
            self.outbox.pending, self.passes = {}, {}
        return self._answer_ask()

    def _answer_ask(self) -> list[Effect]:
        """Synchronous: embed only after the last gradient has been applied."""
        if self.asked is None or self.asked[0] in self.under_way or self.outbox.pending or self.phase != "training":
            return []
        if self.resuming:
            return []
        request, rows = self.asked
        if self.ledger is not None and len(self.ledger.open_rows(rows)) < len(rows):
            return self._rest()
        self.under_way.add(request)
        return self._compute(lambda: self._upload(rows, wanted=True, asked=request), len(rows), 1)

    def _on_refresh(self, body: Refresh) -> list[Effect]:
        before = self.outbox.answered_before(body.request)
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
        release = self.outbox.next_number()
        forward = self.embedding.forward(self.weights, self.features, rows, self.disturber.of(release, len(rows)))
        self.under_way.discard(request)
        return self.outbox.answer(request, Refreshed(request, release, self.version, rows, forward.embedding))

    def _on_predict(self, body: PredictAsked) -> list[Effect]:
        before = self.outbox.answered_before(body.request)
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
        release = self.outbox.next_number()
        if self.test_ledger is None:
            embedding = self.embedding.infer(self.weights, self.test_features, rows)
        else:
            self.test_ledger.spend(rows, step=False)
            disturbance = self.disturber.of(release, len(rows))
            embedding = self.embedding.forward(self.weights, self.test_features, rows, disturbance).embedding
        return self.outbox.answer(body.request, PredictGiven(body.request, release, embedding))

    def _on_halt(self, body: Halt) -> list[Effect]:
        """The last answers are still applied; what is unanswered is dropped."""
        self.halt = body
        answered = {n: p for n, p in self.outbox.pending.items() if p.derivative is not None}
        self.outbox.pending = answered
        if not answered:
            return self._close()
        resumed, self.resuming = self.resuming, False
        return self._steps_again() if resumed else []

    def _close(self) -> list[Effect]:
        assert self.halt is not None
        self.phase = "done"
        effects: list[Effect] = [Observe("updates", self.version), Observe("retried", self.outbox.retried)]
        if self.ledger is not None:
            effects.append(Observe("privacy", self.privacy()))
        return effects + [Send(self.server, Goodbye()), Finish(self.halt.verdict, self.halt.reason)]

    def privacy(self) -> dict[str, Any]:
        """What its ledger says, for the record."""
        assert self.ledger is not None
        return {**self.ledger.statement(), "seeded": self.disturber.source.seeded}

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
        pending = self.outbox.unanswered(release)
        if pending is None:
            return []
        if pending.tries >= self.options.retries_max:
            self.phase = "done"
            return [Finish("peer-lost", f"{self.server} did not answer release {release} after {pending.tries} tries")]
        return self.outbox.ask_after(pending, release)

    def _new_ledger(self, records: int) -> RecordLedger | None:
        return None if self.options.private is None else RecordLedger(self.options.private, records)

    # memory

    def snapshot(self) -> State:
        return client_state(self)

    def restore(self, state: State) -> None:
        restore_client(self, state)
        self.jobs, self.passes, self.forward_jobs, self.under_way = {}, {}, 0, set()


# -- the server -----------------------------------------------------------------------------------------------------


class Server:
    """Holds the labels, the head and the table of embeddings; Algorithm 1, lines 8 to 13, and Algorithm 2."""

    def __init__(
        self,
        name: PartyName,
        clients: Sequence[PartyName],
        targets: Array,
        head: Head,
        weights: Weights,
        widths: Sequence[int],
        options: Vafl,
        seed: int,
        test_targets: Array | None = None,
        test_rows: int = 0,
        dtype: Any = np.float64,
    ) -> None:
        self.name, self.clients, self.options = name, tuple(clients), options
        self.index = {client: i for i, client in enumerate(self.clients)}
        self.targets, self.test_targets = targets, test_targets
        self.head, self.weights = head, weights
        self.memory: Tensors = options.head_optimiser.initial(weights.trained)
        self.rows = len(targets)
        self.table = EmbeddingTable(self.rows, widths, head, dtype)
        if options.zeros_known:
            self.table.know_zeros()
        self.order = RowOrder(self.rows, options.batch, options.sampling, stream(seed, name, "rows"))
        self.contributors = options.contributors(len(self.clients))
        self.lag_max = options.lag_max(self.rows, len(self.clients))
        self.phase = "filling" if options.initial_upload and options.variant != "vafl-sync" else "training"
        self.iteration = self.rows_done = self.tickets = self.requests = self.passes_told = 0
        self.duplicates = 0
        self.loss_sum, self.loss_count, self.first_loss = 0.0, 0, 0.0
        self.heard = self.heard_before = 0
        self.fills = [0] * len(self.clients)
        self.away: set[int] = set()
        self.resting: set[int] = set()
        self.answers = Answers(len(self.clients))
        self.patience = Patience(options.retry_s)
        self.refreshes = Refreshes(self.clients, self.patience)
        self.buffer: dict[int, Contribution] = {}
        self.batches: dict[int, list[Contribution]] = {}
        self.asking = Asking(self.clients, self.patience)
        self.farewell = Farewell(self.clients, options.retry_s, _HALT)
        self.prediction = JointPrediction(self.clients, test_rows, options.chunk, self.patience)
        self.handlers: dict[type, Callable[[int, Any], list[Effect]]] = {
            Upload: self._on_upload,
            AnswerWanted: self._on_answer_wanted,
            UnderWay: self._on_under_way,
            Refreshed: self._on_refreshed,
            Resting: self._on_resting,
            PredictGiven: self._on_predicted,
            Resume: self._on_resume,
            StopWanted: self._on_stop_wanted,
            Goodbye: self._on_goodbye,
        }
        self.other_events: dict[type, Callable[[Any], list[Effect]]] = {
            Started: self._on_started,
            Computed: self._on_computed,
            Woken: self._on_woken,
            PeerLost: lambda event: self._on_lost(event.peer),
            PeerBack: lambda event: self._on_back(event.peer),
        }

    def handle(self, event: Event) -> list[Effect]:
        if type(event) is Received:
            handler = self.handlers.get(type(event.body))
            if handler is None or event.sender not in self.index:
                raise UnexpectedEvent(f"{self.name} (server) got {type(event.body).__name__} from {event.sender}.")
            effects = handler(self.index[event.sender], event.body)
            self.heard += 1
            return effects
        return self.other_events[type(event)](event)

    # starting, and coming back

    def _on_started(self, event: Started) -> list[Effect]:
        effects: list[Effect] = self._watch()
        if self.options.seconds is not None:
            effects.append(Wake(self.options.seconds, _TIME_UP))
        if event.resumed:
            return effects + self._take_up()
        if self.rows_done >= self._rows_wanted():
            return effects + self._end("passes", "no passes were asked for")
        return effects + (self._ask(anew=False) if self.options.variant == "vafl-sync" else [])

    def _watch(self) -> list[Effect]:
        """Where nobody has been heard for longer than any client keeps trying, there is nobody left."""
        self.heard_before = self.heard
        return [Wake(self.options.retry_s * BACKOFF_MAX * (self.options.retries_max + 1), _WATCH)]

    def _take_up(self) -> list[Effect]:
        """After a restart: requests get higher numbers than any that may have been sent, and what waited waits on."""
        self.requests = ((self.requests >> 32) + 1) << 32
        effects: list[Effect] = []
        batches, self.batches = list(self.batches.values()), {}
        for contributions in batches:
            effects += self._charge(contributions)
        for request in self.refreshes.wanted:
            effects += self.refreshes.want_again(request)
        if self.phase == "training" and self.options.variant == "vafl-sync":
            self.buffer = {}
            effects += self._ask(anew=True, rows=None if self.asking.request is None else self.asking.rows)
        if self.phase == "predicting":
            effects += self._predict_again()
        if self.phase == "halting":
            effects += self.farewell.say_again()
        return effects

    def _on_resume(self, client: int, body: Resume) -> list[Effect]:
        expect_number(self.clients[client], "release", body.release, least=0)
        self.away.discard(client)
        if self.phase == "halting":
            return [self._to(client, self.farewell.body)]
        return [self._to(client, self.answers.new_life(client, body.release, self.phase != "filling"))]

    def _on_stop_wanted(self, client: int, body: StopWanted) -> list[Effect]:
        if self.phase == "halting":
            return [self._to(client, self.farewell.body)]
        return self._end("stopped", f"stopped by the owner of '{self.clients[client]}'")

    # lines 8 to 10 and 11 to 13: one pass gives the head's gradient and the answer

    def _on_upload(self, client: int, body: Upload) -> list[Effect]:
        if self.phase in ("predicting", "halting"):
            return [] if self.phase == "predicting" else [self._to(client, self.farewell.body)]
        expect_upload(self.clients[client], body, self.rows, self.table.widths[client])
        if not np.isfinite(body.embedding).all():
            return self._diverged(client)
        self._expect_asked_rows(client, body)
        self.answers.saw(client, body.release)
        if not body.wanted:
            return self._fill(client, body)
        if body.release in self.answers.given[client]:
            self.duplicates += 1
            return [self._to(client, self.answers.given[client][body.release])]
        if self._under_way(client, body.release):
            self.duplicates += 1
            return [self._to(client, UnderWay(body.release))]
        if self._is_void(client, body):
            self.duplicates += 1
            return [self._to(client, Noted(body.release, True))]
        self.answers.settle(client, body.oldest)
        self.table.write(client, body.rows, body.embedding, self.iteration)
        contribution = Contribution(client, body.release, np.array(body.rows))
        return self._require_fresh(contribution)

    def _expect_asked_rows(self, client: int, body: Upload) -> None:
        """Synchronous: the answer to the open request has the rows that were asked for."""
        if self.asking.request is not None and body.asked == self.asking.request:
            same = np.array_equal(body.rows, self.asking.rows)
            expect(same, self.clients[client], f"other rows than request {body.asked} asked for")

    def _under_way(self, client: int, release: int) -> bool:
        under_way = [
            *self.refreshes.blocked,
            *self.buffer.values(),
            *(c for batch in self.batches.values() for c in batch),
        ]
        return any(c.client == client and c.release == release for c in under_way)

    def _is_void(self, client: int, body: Upload) -> bool:
        """Nobody needs it any more: a newer one has overtaken it, or it answers an ask that is over."""
        if self.asking.request is not None and body.asked != self.asking.request:
            return True
        return self._is_over(client, body.release)

    def _is_over(self, client: int, release: int) -> bool:
        if self.options.variant == "vafl-tsync" and release < self.answers.newest_given(client):
            return True
        return self.answers.too_late(client, release)

    def _on_answer_wanted(self, client: int, body: AnswerWanted) -> list[Effect]:
        expect_number(self.clients[client], "release", body.release)
        return [self._to(client, self._answer_so_far(client, body.release))]

    def _answer_so_far(self, client: int, release: int) -> Message:
        if self.phase == "halting":
            return self.farewell.body
        if self.phase == "predicting" or self._under_way(client, release):
            return UnderWay(release)
        if release in self.answers.given[client]:
            return self.answers.given[client][release]
        if release == self.fills[client]:
            return Noted(release, self.phase != "filling")
        return Noted(release, True) if self._is_over(client, release) else ReleaseWanted(release)

    def _on_under_way(self, client: int, body: UnderWay) -> list[Effect]:
        """The client is at what was asked of it: it is neither lost nor late."""
        parts = (self.asking, self.refreshes, self.prediction)
        if any(part.under_way(client, body.number) for part in parts):
            self.patience.too_short()
        return []

    def _fill(self, client: int, body: Upload) -> list[Effect]:
        """The initial upload. An old copy must not overwrite newer rows."""
        if body.release > self.fills[client]:
            self.fills[client] = body.release
            self.table.write(client, body.rows, body.embedding, self.iteration)
        if self.phase != "filling":
            return [self._to(client, Noted(body.release, True))]
        return self._begin_when_filled() or [self._to(client, Noted(body.release, False))]

    def _begin_when_filled(self) -> list[Effect]:
        if any(self.table.cold(i) for i in range(len(self.clients)) if i not in self.away):
            return []
        self.phase = "training"
        told: list[Effect] = [self._to(i, Noted(release, True)) for i, release in enumerate(self.fills) if release]
        return told + self._flush_if_enough()

    def _require_fresh(self, contribution: Contribution) -> list[Effect]:
        """The bounded delay: ask for what is too old; this update waits, the others go on."""
        effects: list[Effect] = []
        if contribution.rounds < _ROUNDS_MAX and self.lag_max < math.inf:
            contribution.rounds += 1
            for i, rows in self.table.overdue(contribution.rows, self.iteration, self.lag_max).items():
                if i != contribution.client and i not in self.away and i not in self.resting:
                    self.requests += 1
                    effects += self.refreshes.want(self.requests, i, rows, contribution)
        if contribution.waiting:
            self.refreshes.blocked.append(contribution)
            return effects
        return effects + self._contribute(contribution)

    def _on_refreshed(self, client: int, body: Refreshed) -> list[Effect]:
        sender, wanted = self.clients[client], self.refreshes.wanted.get(body.request)
        expect_number(sender, "release", body.release)
        if wanted is not None:
            expect(wanted.client == client, sender, f"an answer to request {body.request} of another client")
            expect_refreshed(sender, body, wanted.rows, self.rows, self.table.widths[client])
        self.answers.saw(client, body.release)
        if wanted is None:
            return []
        if not np.isfinite(body.embedding).all():
            return self._diverged(client)
        self.table.write(client, body.rows, body.embedding, self.iteration)
        self.refreshes.refused_rows += len(wanted.rows) - len(body.rows)
        return self._go_on(self.refreshes.came(body.request))

    def _go_on(self, free: Sequence[Contribution]) -> list[Effect]:
        return [effect for contribution in free for effect in self._require_fresh(contribution)]

    def _contribute(self, contribution: Contribution) -> list[Effect]:
        """A client's newer upload replaces its older one, in whatever order they come."""
        older, newer = self.buffer.get(contribution.client), contribution
        if older is not None:
            older, newer = sorted((older, newer), key=lambda c: c.release)
            self.answers.replace(older.client, older.release)
        self.buffer[newer.client] = newer
        return self._flush_if_enough()

    def _flush_if_enough(self) -> list[Effect]:
        active = len(self.clients) - len(self.away | self.resting)
        needed = self.contributors if self.options.variant == "vafl-sync" else min(self.contributors, max(active, 1))
        if self.phase != "training" or len(self.buffer) < needed:
            return []
        contributions = [self.buffer[client] for client in sorted(self.buffer)]
        self.buffer = {}
        self.asking.complete()
        return self._charge(contributions)

    def _charge(self, contributions: list[Contribution]) -> list[Effect]:
        self.tickets += 1
        self.batches[self.tickets] = contributions
        rows = len(united(contributions)[0])
        return [Compute(self.tickets, samples=rows, nonzeros=3 * rows * self.head.work)]

    def _on_computed(self, event: Computed) -> list[Effect]:
        contributions = self.batches.pop(event.ticket, None)
        return self._update(contributions) if contributions is not None and self.phase == "training" else []

    def _update(self, contributions: list[Contribution]) -> list[Effect]:
        union, places = united(contributions)
        borrowed = np.ones((len(union), len(self.clients)), dtype=bool)
        for c, place in zip(contributions, places, strict=True):
            borrowed[place, c.client] = False
        lag_mean, lag_max = self.table.note_use(union, borrowed, self.iteration, self.lag_max)
        result = self.head.evaluate(
            self.weights, self.table.read(union), self.targets[union], [c.client for c in contributions]
        )
        self.first_loss = result.loss if self.iteration == 0 else self.first_loss
        if not result.loss <= _DIVERGED * (1.0 + self.first_loss):
            return self._end("diverged", f"the loss is {result.loss:g} after {self.iteration} head updates")
        effects: list[Effect] = []
        for c, place in zip(contributions, places, strict=True):
            body = Gradient(c.release, self.iteration, lag_mean, lag_max, result.derivatives[c.client][place])
            self.answers.gave(c.client, body)
            effects.append(self._to(c.client, body))
        rule = self.options.head_optimiser
        trained, self.memory = self.head.step(rule, self.weights.trained, result.gradient, self.memory)
        self.weights = Weights(trained, result.kept)
        self.iteration += 1
        self.rows_done += sum(len(c.rows) for c in contributions)
        return effects + self._tell_pass(result.loss) + self._after_update()

    def _after_update(self) -> list[Effect]:
        if self.rows_done >= self._rows_wanted():
            return self._end("passes", f"{self.options.passes:g} passes were made")
        return self._ask(anew=False) if self.options.variant == "vafl-sync" else []

    def _rows_wanted(self) -> float:
        return self.options.passes * self.rows * len(self.clients)

    def _tell_pass(self, loss: float) -> list[Effect]:
        self.loss_sum, self.loss_count = self.loss_sum + loss, self.loss_count + 1
        passes = self.rows_done / (self.rows * len(self.clients))
        if passes < self.passes_told + 1:
            return []
        mean, self.loss_sum, self.loss_count, self.passes_told = self.loss_sum / self.loss_count, 0.0, 0, int(passes)
        return [Observe("passes", passes), Observe("batch_loss", mean)]

    # synchronous

    def _ask(self, anew: bool, rows: Array | None = None) -> list[Effect]:
        self.requests += 1
        return self.asking.ask(self.requests, self.order.next() if rows is None else rows, anew)

    def _ask_again(self) -> list[Effect]:
        if self.asking.tries >= self.options.retries_max:
            missing = ", ".join(self.asking.missing(self.buffer))
            return self._end("peer-lost", f"{missing} did not answer {self.asking.tries + 1} times")
        return self.asking.again(self.buffer)

    # clients that leave

    def _on_resting(self, client: int, body: Resting) -> list[Effect]:
        expect_number(self.clients[client], "release", body.release)
        self.resting.add(client)
        self.answers.saw(client, body.release)
        return [self._to(client, Noted(body.release, self.phase != "filling"))] + self._without(client)

    def _on_lost(self, peer: PartyName) -> list[Effect]:
        if peer not in self.index:
            return []
        self.away.add(self.index[peer])
        return self._without(self.index[peer])

    def _without(self, client: int) -> list[Effect]:
        """Nothing may wait for this client any longer (the synchronous baseline does)."""
        effects: list[Effect] = []
        for request in self.refreshes.asked_of(client):
            effects += self._go_on(self.refreshes.give_up(request))
        if self.phase == "filling":
            effects += self._begin_when_filled()
        if self.phase == "training":
            effects += self._go_on_without()
        if self.phase == "predicting":
            effects += self._predict_if_complete()
        return effects

    def _go_on_without(self) -> list[Effect]:
        everyone = set(range(len(self.clients)))
        spent = self.resting and (self.options.variant == "vafl-sync" or self.resting >= everyone - self.away)
        if spent:
            return self._end("budget", "the privacy budget of the clients' records is spent")
        return self._flush_if_enough()

    def _on_back(self, peer: PartyName) -> list[Effect]:
        self.away.discard(self.index.get(peer, -1))
        return []

    # prediction

    def _end(self, verdict: str, reason: str) -> list[Effect]:
        """Training is over: predict if there is anything to predict, then say goodbye."""
        if self.phase in ("predicting", "halting"):
            return []
        self.farewell.verdict, self.farewell.reason = verdict, reason
        self.refreshes.clear()
        self.buffer = {}
        self.asking.close()
        if self.prediction.rows and verdict != "diverged":
            self.phase = "predicting"
            return self._predict(0)
        return self._say_halt()

    def _diverged(self, client: int) -> list[Effect]:
        """A client's embeddings are no longer finite: none of them is used, not even to predict."""
        if self.phase == "halting":
            return []
        self.phase = "training"
        self.prediction.asked = None
        return self._end("diverged", f"the embeddings of {self.clients[client]} are no longer finite numbers")

    def _predict(self, start: int) -> list[Effect]:
        if start >= self.prediction.rows:
            return self._tell_predictions() + self._say_halt()
        self.requests += 1
        return self.prediction.ask(self.requests, start)

    def _predict_again(self) -> list[Effect]:
        return self.prediction.ask_again() or self._judge_batch()

    def _on_predicted(self, client: int, body: PredictGiven) -> list[Effect]:
        sender, asked = self.clients[client], self.prediction.asked
        expect_number(sender, "release", body.release)
        if asked is None or body.request != asked[0]:
            self.answers.saw(client, body.release)
            return []
        expect_vectors(sender, body.embedding, asked[2] - asked[1], self.table.widths[client])
        self.answers.saw(client, body.release)
        if not np.isfinite(body.embedding).all():
            return self._diverged(client)
        self.prediction.given[client] = np.array(body.embedding)
        return self._predict_if_complete()

    def _predict_if_complete(self) -> list[Effect]:
        return self._judge_batch() if self.prediction.complete(self.away) else []

    def _judge_batch(self) -> list[Effect]:
        """A missing client's embedding is replaced by the mean of its rows in the table, and the rows are flagged."""
        stand_ins = [self.table.mean(i) for i in range(len(self.clients))]
        scores = self.head.scores(self.weights, self.prediction.embeddings(stand_ins))
        return self._predict(self.prediction.close(scores))

    def _tell_predictions(self) -> list[Effect]:
        scores = np.concatenate(self.prediction.scores)
        flagged = {self.clients[i]: len(rows) for i, rows in self.prediction.without.items()}
        effects: list[Effect] = [Observe("predicted_without", flagged)] if flagged else []
        if self.test_targets is not None:
            effects += [Observe(f"test_{n}", v) for n, v in score(self.head, scores, self.test_targets).items()]
        return effects

    # the end

    @property
    def verdict(self) -> str:
        return self.farewell.verdict

    @property
    def reason(self) -> str:
        return self.farewell.reason

    def _say_halt(self) -> list[Effect]:
        self.phase = "halting"
        return last_words(self) + self.farewell.say(self.iteration)

    def _on_goodbye(self, client: int, body: Goodbye) -> list[Effect]:
        """One that comes before the end is a late one, of before this server came back from an older snapshot."""
        return self.farewell.goodbye(client) if self.phase == "halting" else []

    # time, checks, sending

    def _on_woken(self, event: Woken) -> list[Effect]:
        if event.token == END:
            return self._end("stopped", f"stopped by the owner of '{self.name}'")
        if event.token == _TIME_UP and self.options.seconds is not None:
            return self._end("time", f"the {self.options.seconds:g} seconds are over")
        if event.token == _WATCH:
            if self.heard > self.heard_before or self.phase == "halting":
                return self._watch()
            return self._end("peer-lost", "no client has been heard for as long as any of them keeps trying")
        if event.token == _HALT:
            return self.farewell.say_again() if self.phase == "halting" else []
        if event.token == self.asking.request:
            return self._ask_again() if self.asking.waiting else []
        if self.prediction.asked is not None and event.token == self.prediction.asked[0]:
            return self._predict_again()
        wanted = self.refreshes.wanted.get(event.token)
        if wanted is None:
            return []
        if wanted.tries >= self.options.retries_max:
            return self._go_on(self.refreshes.give_up(event.token))
        return self.refreshes.want_again(event.token)

    def _to(self, client: int, body: Message) -> Send:
        return Send(self.clients[client], body)

    # memory

    def snapshot(self) -> State:
        return server_state(self)

    def restore(self, state: State) -> None:
        restore_server(self, state)


# -- the builder -----------------------------------------------------------------------------------------------------


def build(
    features: Mapping[PartyName, Any],
    targets: Array,
    embeddings: Mapping[PartyName, Embedding],
    head: Head,
    options: Vafl,
    *,
    seed: int = 0,
    server: PartyName = "server",
    test_features: Mapping[PartyName, Any] | None = None,
    test_targets: Array | None = None,
    secret_noise: bool = False,
) -> tuple[Server, list[Client]]:
    """The parties. Row i of every client's features and of the targets is the same record.

    `secret_noise` draws from the operating system; without it noise comes from the seed, which is for experiments
    only (`noise_warning`).
    """
    targets = checked_targets(features, targets, embeddings, head, options)
    check_test_rows(features, test_features, test_targets)
    options = known_start(options, [embeddings[name] for name in features])
    names = tuple(features)

    def source(name: PartyName, purpose: str) -> NoiseSource:
        return SystemNoise() if secret_noise else SeededNoise(seed, f"vafl/{name}/{purpose}")

    if options.label_dp_epsilon is not None:
        targets = private_targets(targets, options.label_dp_epsilon, source(server, "labels").stream(0))
    clients = [
        Client(
            name,
            server,
            embeddings[name].place(features[name]),
            embeddings[name],
            embeddings[name].initial(stream(seed, name, "weights")),
            options,
            seed,
            source(name, "embedding"),
            source(name, "gradient"),
            None if test_features is None else embeddings[name].place(test_features[name]),
        )
        for name in names
    ]
    test_rows = 0 if test_features is None else int(test_features[names[0]].shape[0])
    weights = head.initial(stream(seed, server, "weights"))
    widths = [embeddings[name].width for name in names]
    dtype = np.result_type(*[embeddings[name].dtype for name in names])
    return (
        Server(server, names, targets, head, weights, widths, options, seed, test_targets, test_rows, dtype),
        clients,
    )
