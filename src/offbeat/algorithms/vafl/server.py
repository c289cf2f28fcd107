"""VAFL's server: it holds the labels, the head and the newest embedding of every row."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offbeat.algorithms.vafl.company import Company
from offbeat.algorithms.vafl.measures import final_observations, score
from offbeat.algorithms.vafl.memory import restore_server, server_state
from offbeat.algorithms.vafl.messages import (
    AnswerWanted,
    Gradient,
    Noted,
    PredictGiven,
    Refreshed,
    ReleaseWanted,
    Resting,
    Resume,
    StopWanted,
    UnderWay,
    Upload,
)
from offbeat.algorithms.vafl.options import Vafl
from offbeat.algorithms.vafl.patience import BACKOFF_MAX, Patience
from offbeat.algorithms.vafl.received import expect_number, expect_refreshed, expect_upload, expect_vectors
from offbeat.algorithms.vafl.releases import GivenAnswers
from offbeat.algorithms.vafl.requests import Contribution, JointPrediction, Refreshes, Rounds, Shutdown, united
from offbeat.errors import UnexpectedEvent
from offbeat.learning.embedding_table import EmbeddingTable
from offbeat.learning.embeddings import Array, Head, Tensors, Weights
from offbeat.learning.row_order import RowOrder
from offbeat.party.contract import (
    END,
    Compute,
    Computed,
    Effect,
    Event,
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
from offbeat.randomness import stream

_HALT, _WATCH, _TIME_UP = -2, -3, -4  # tokens of the server's timers; others are request numbers
_DIVERGED = 1e6  # a batch loss so many times the first one ends the run
_ROUNDS_MAX = 3  # refreshes of one update, before it goes on with what it has


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
        self.answers = GivenAnswers(len(self.clients))
        self.patience = Patience(options.retry_s)
        self.refreshes = Refreshes(self.clients, self.patience)
        self.buffer: dict[int, Contribution] = {}
        self.batches: dict[int, list[Contribution]] = {}
        self.company = Company(len(self.clients))
        self.rounds = Rounds(self.clients, self.patience)
        self.shutdown = Shutdown(self.clients, options.retry_s, _HALT)
        self.prediction = JointPrediction(self.clients, test_rows, options.chunk, self.patience)
        self.handlers, self.other_events = self._handlers(), self._other_events()

    def _handlers(self) -> dict[type, Callable[[int, Any], list[Effect]]]:
        return {
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

    def _other_events(self) -> dict[type, Callable[[Any], list[Effect]]]:
        return {
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
            effects += self._ask(anew=True, rows=None if self.rounds.request is None else self.rounds.rows)
        if self.phase == "predicting":
            effects += self._predict_again()
        if self.phase == "halting":
            effects += self.shutdown.announce_again()
        return effects

    def _on_resume(self, client: int, body: Resume) -> list[Effect]:
        expect_number(self.clients[client], "release", body.release, least=0)
        self.away.discard(client)
        if self.phase == "halting":
            return [self._to(client, self.shutdown.body)]
        return [self._to(client, self.answers.new_life(client, body.release, self.phase != "filling"))]

    def _on_stop_wanted(self, client: int, body: StopWanted) -> list[Effect]:
        if self.phase == "halting":
            return [self._to(client, self.shutdown.body)]
        return self._end("stopped", f"stopped by the owner of '{self.clients[client]}'")

    # lines 8 to 10 and 11 to 13: one pass gives the head's gradient and the answer

    def _on_upload(self, client: int, body: Upload) -> list[Effect]:
        if self.phase in ("predicting", "halting"):
            return [] if self.phase == "predicting" else [self._to(client, self.shutdown.body)]
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
        if self.rounds.request is not None and body.asked == self.rounds.request:
            same = np.array_equal(body.rows, self.rounds.rows)
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
        if self.rounds.request is not None and body.asked != self.rounds.request:
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
            return self.shutdown.body
        if self.phase == "predicting" or self._under_way(client, release):
            return UnderWay(release)
        if release in self.answers.given[client]:
            return self.answers.given[client][release]
        if release == self.fills[client]:
            return Noted(release, self.phase != "filling")
        return Noted(release, True) if self._is_over(client, release) else ReleaseWanted(release)

    def _on_under_way(self, client: int, body: UnderWay) -> list[Effect]:
        """The client is at what was asked of it: it is neither lost nor late."""
        parts = (self.rounds, self.refreshes, self.prediction)
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
        self.company.came(newer.client, self.iteration)
        return self._flush_if_enough()

    def _flush_if_enough(self) -> list[Effect]:
        active = len(self.clients) - len(self.away | self.resting)
        needed = self.contributors if self.options.variant == "vafl-sync" else min(self.contributors, max(active, 1))
        if self.phase != "training" or len(self.buffer) < needed or self._awaits_company():
            return []
        contributions = [self.buffer[client] for client in sorted(self.buffer)]
        self.buffer = {}
        self.rounds.complete()
        return self._charge(contributions)

    def _awaits_company(self) -> bool:
        if not self.options.together:
            return False
        absent = self.away | self.resting
        return bool(self.batches) or not self.company.is_complete(self.buffer, absent, self.iteration)

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
        self.company.passed([c.client for c in contributions], self.buffer, self.iteration)
        self.rows_done += sum(len(c.rows) for c in contributions)
        return effects + self._tell_pass(result.loss) + self._after_update()

    def _after_update(self) -> list[Effect]:
        if self.rows_done >= self._rows_wanted():
            return self._end("passes", f"{self.options.passes:g} passes were made")
        return self._ask(anew=False) if self.options.variant == "vafl-sync" else self._flush_if_enough()

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
        return self.rounds.ask(self.requests, self.order.next() if rows is None else rows, anew)

    def _ask_again(self) -> list[Effect]:
        if self.rounds.tries >= self.options.retries_max:
            missing = ", ".join(self.rounds.missing(self.buffer))
            return self._end("peer-lost", f"{missing} did not answer {self.rounds.tries + 1} times")
        return self.rounds.again(self.buffer)

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
        self.shutdown.verdict, self.shutdown.reason = verdict, reason
        self.refreshes.clear()
        self.buffer = {}
        self.rounds.close()
        if self.prediction.rows and verdict != "diverged":
            self.phase = "predicting"
            return self._predict(0)
        return self._shut_down()

    def _diverged(self, client: int) -> list[Effect]:
        """A client's embeddings are no longer finite: none of them is used, not even to predict."""
        if self.phase == "halting":
            return []
        self.phase = "training"
        self.prediction.asked = None
        return self._end("diverged", f"the embeddings of {self.clients[client]} are no longer finite numbers")

    def _predict(self, start: int) -> list[Effect]:
        if start >= self.prediction.rows:
            return self._tell_predictions() + self._shut_down()
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
        return self.shutdown.verdict

    @property
    def reason(self) -> str:
        return self.shutdown.reason

    def _shut_down(self) -> list[Effect]:
        self.phase = "halting"
        return final_observations(self) + self.shutdown.announce(self.iteration)

    def _on_goodbye(self, client: int, body: Goodbye) -> list[Effect]:
        """One that comes before the end is a late one, of before this server came back from an older snapshot."""
        return self.shutdown.left(client) if self.phase == "halting" else []

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
            return self.shutdown.announce_again() if self.phase == "halting" else []
        if event.token == self.rounds.request:
            return self._ask_again() if self.rounds.waiting else []
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
