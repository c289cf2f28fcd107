"""VFB2: backward updating with two levels of asynchrony, for the case where only some parties hold labels.

"Secure Bilevel Asynchronous Vertical Federated Learning with Backward Updating" (Zhang, Gu, Deng, Huang, AAAI 2021).

    minimise  f(w) = (1/n) sum_i L(z_i, y_i) + lambda sum_l g(w_l),      z_i = sum_l <w_l, x_il>

| Paper                               | Here                                                                  |
|-------------------------------------|-----------------------------------------------------------------------|
| party l, block w_{G_l}              | `Vfb2Party`, `Block`                                                  |
| active party, dominator             | a party with labels: `dominates` is true                              |
| passive party, collaborator         | every party is a collaborator of the others' updates                  |
| theta = dL/d(w^T x)                 | derivative; the message `Backward`                                    |
| w^T x_i by Algorithm 1              | a masked sum (`party/masked_sum.py`)                                  |
| v~ of SGD, SVRG, SAGA (Algs. 2-7)   | `learning/blocks.py`                                                  |
| problem 13 / problem 14             | penalty "l2" / "nonconvex"                                            |
| tau_1 (read), tau_2 (communication) | the versions of a party's own block between its share and its step    |
| k threads in a party                | `lanes`: jobs that read an older block                                |

The order of play, for Ana (labels), Bo and Cy:
1. Ana asks for the product of the schedule's next block of rows with the whole model; Bo and Cy answer, masked; Ana
   alone learns the others' total.
2. Ana adds her share, takes the derivatives, steps her own block, and sends the derivatives *backward* to everybody:
   one aggregation moves all blocks. The same message is her next question.
3. Bo and Cy step their own blocks from the derivatives and their own rows. Bo answers the next question after his step,
   so his share is new. Cy is slow: Ana does not wait for his step, and he answers at once.
4. Another label holder does the same on its own clock, with the schedule's other blocks.
5. Now and then a survey freezes a copy of each block, leaps, and gives everybody a table of derivatives and its
   gradient. A derivative carries its value, not a difference, so each party corrects it against its own newest table.

Whom to wait for: Ana knows how long the others take for a row, since their shares say so. She does not wait for the
steps of a party that is slow (`party/judge.py`).

In step, as organisations train: nobody answers at once or drops derivatives, and a share is of a block that has done
all that its asker had told before the question, and nothing later. Else totals tell apart who has done what
(docs/decisions/0161-shares-in-step.md).

Synchronous counterpart (VFB): the same block rules, one dominator at a time in turn, and the next question only when
every party has stepped. With the same sample order this is exactly the centralised method.

Labels: **the derivative discloses them** for the logistic and hinge losses (its sign is the label), whatever the paper
says. `label_dp_epsilon` answers the labels at random once, before training, and de-biases the derivative.
"""

from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from offbeat.learning.blocks import Block
from offbeat.party import linear_parties
from offbeat.party.contract import Broadcast, Computed, Effect, Message, Observe, PartyName, Send, State
from offbeat.party.expected import expect, expect_array, refuse
from offbeat.party.linear import Handler, LinearParty
from offbeat.party.linear_protocol import HOLDER, PARTY, linear_protocol
from offbeat.party.masked_sum import PRODUCTS, Sum
from offbeat.party.memory import Memory
from offbeat.party.protocol import Line, messages_of
from offbeat.party.role import InRounds
from offbeat.party.works import CHARGED

NOTHING = np.zeros(0)
QUEUE_MOST = 2
"""Whoever cannot keep up misses updates, however long its queue; a long one only makes those it does take older."""
OPEN_MOST = 64
"""Questions of one dominator whose derivatives have not come."""
JUDGED_EVERY = 16
STARVED_AFTER = 256


class Backward(Message, frozen=True):
    """A dominator's derivatives for one block of rows, and its next question.

    Reveals: one derivative per sampled row (for softmax one for each class) to every party. For the logistic and hinge
    losses its sign is the label, for softmax the one below zero is the label's, and with the label it gives the row's
    product with the whole model away; for the squared loss the first ones are the labels themselves, up to their mean.
    Which parties the sender holds for slow, how often its block has changed, and what it asks next, to every party.

    With label_dp_epsilon: one derivative per sampled row to every party. Its sign is the answer that was drawn at
    random for the label, the same one every time, not the label; with that answer it gives the row's product with the
    whole model away. Which parties the sender holds for slow, how often its block has changed, and what it asks next,
    to every party.

    With product_epsilon: one derivative per row to every party, of a noisy product. The first ones are the labels
    themselves, up to their mean; of a row's features they tell no more than the noisy product does. How often the
    sender's block has changed, to every party.
    """

    epoch: int
    number: int  # which question these are the derivatives of
    derivatives: np.ndarray
    version: int  # of the sender's block
    asks: int  # the number of its next question; -1: none
    at_once: int  # a bit for each place in the roster: whose answer is not to wait for the step


class Stepped(Message, frozen=True):
    """Synchronous rounds: this party has taken the round's step.

    Reveals: progress, to the next dominator.
    """

    epoch: int
    round: int


PROTOCOL = linear_protocol(
    Line(Backward, HOLDER, PARTY, "when it has the products of a block of rows, to all; it asks for the next ones too"),
    Line(Stepped, PARTY, HOLDER, "in rounds: when it has stepped, to whoever asks next"),
)
MESSAGES = messages_of(PROTOCOL)


class Derive(msgspec.Struct, frozen=True, gc=False):
    """Work of a dominator: the others' total is known; add the own share and take the derivatives."""

    number: int
    start: int
    stop: int
    done: Sum


class AnswerOnLane(msgspec.Struct, frozen=True, gc=False):
    """Work on a lane: this party's share of a block of rows."""

    asker: PartyName
    number: int
    version: int


class Batch(msgspec.Struct, gc=False):
    """Derivatives that wait for this party's step, and the question that waits with them."""

    start: int
    stop: int
    theta: np.ndarray
    version: int  # of the own block when its share was taken
    asker: PartyName
    asks: int  # -1: none


class Steps(msgspec.Struct, frozen=True, gc=False):
    """Work: one step for each of these derivatives."""

    batches: list[Batch]


class GradientOnLane(msgspec.Struct, frozen=True, gc=False):
    """Work on a lane: the gradient of one batch, whose residual was taken before."""

    batch: Batch
    residual: np.ndarray


WORKS = (Derive, Steps, GradientOnLane, AnswerOnLane)


class Vfb2Party(Memory):
    """An asynchronous party: a collaborator always, a dominator too where it holds labels."""

    KEPT = (
        *("started", "number", "under_way", "applied", "passes_before", "stepped", "dropped", "late", "numbers"),
        *("answered", "queue", "resting", "early", "peer_steps", "starved", "party"),
    )

    def __init__(self, party: LinearParty, lanes: int = 1) -> None:
        self.name, self.party, self.handle = party.name, party, party.handle
        self.in_step = party.options.sums.in_step
        self.lanes = 1 if self.in_step else lanes
        self.block, self.works, self.stepper = party.block, party.works, party.stepper
        self.outputs, self.in_flight = party.problem.outputs, party.options.in_flight or 1
        self.dominates, self.started = party.roster.holds_labels, False
        self.number = 0  # of the next question
        self.under_way = 0  # own questions whose derivatives have not been sent
        self.numbers: dict[PartyName, int] = {}  # the newest derivatives of every other dominator, plus one
        self.applied = 0  # own derivatives that were sent, in this epoch
        self.passes_before = 0.0  # in earlier epochs
        self.answered: dict[PartyName, dict[int, tuple[int, int, int]]] = {}  # by number: (start, stop, version)
        self.queue: deque[Batch] = deque()
        self.resting: list[Batch] = []  # in step: what the chair told during its survey is done after it
        self.dropped = self.late = 0
        self.stepped = False  # whether the block has moved since the run began
        self.early: list[tuple[PartyName, int]] = []  # questions that wait for the first step
        self.peer_steps: dict[PartyName, tuple[int, int]] = {}  # peer -> (its version, our number when it changed)
        self.starved: set[PartyName] = set()
        party.attach(self, {Backward: self._on_backward}, WORKS, (Backward,))
        does = (self._derive, self._step, self._apply, self._answer)
        self.does: dict[type, Callable[[Any, Computed], list[Effect]]] = dict(zip(WORKS, does, strict=True))

    # -- the dominator -------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        self.started = True
        return [*self._ask_first(), *self._take_queue()]

    def _ask_first(self) -> list[Effect]:
        """Put as many questions as shall be under way; each further one rides on derivatives."""
        if not self.dominates or self.party.judge.pauses or self.party.lifecycle.spacing == 0.0:
            return []
        effects: list[Effect] = []
        for _ in range(self.in_flight - self.under_way):
            self.under_way += 1
            number = self._next_question()
            effects += self.party.ask_products(number, *self.rows_asked(self.name, number))
        return effects

    def _next_question(self) -> int:
        self.number += 1
        return self.number - 1

    def rows_asked(self, asker: PartyName, number: int) -> tuple[int, int]:
        """The schedule's blocks are dealt to the dominators in turn."""
        labelled = self.party.roster.labelled
        return self.party.rows_of(number * len(labelled) + labelled.index(asker))

    def product(self, done: Sum) -> list[Effect]:
        """The others' total is known: the own share and the derivatives are half of a batch's work."""
        start, stop = self.rows_asked(self.name, done.first)
        job = self.block.share_job(start, stop) if self.lanes > 1 else None
        return [self.works.begin(Derive(done.first, start, stop, done), *_half(self.block, start, stop), job)]

    def _derive(self, work: Derive, event: Computed) -> list[Effect]:
        party, start, stop = self.party, work.start, work.stop
        party.note_seconds(event.seconds, (stop - start) / 2)
        lag = party.sums.lag(self.block.version - work.done.version, work.done.versions)
        if 0 < party.options.lag_max < lag:
            self.late += 1
            self.under_way -= 1
            return self._ask_first()
        theta = party.finish_product(work.done, start, stop, event.result)
        if not isfinite(theta.dot(theta)):
            return party.diverged()
        if work.number % JUDGED_EVERY == 0:
            party.judge.look_who_is_slow()
        self.applied += 1
        if self.lanes == 1:  # the own step is taken at once, and its time is charged
            self.stepped = True
            self.stepper.step(start, stop, theta, self.block.version - work.done.version)
        survey = party.judge.survey_if_due()
        asks = -1
        if party.judge.pauses:
            self.under_way -= 1
        else:
            asks = self._next_question()
            party.expect_products(asks, *self.rows_asked(self.name, asks))
        body = Backward(party.roster.epoch, work.number, theta, self.block.version, asks, party.judge.slow)
        effects: list[Effect] = [Broadcast(party.roster.peers, body)]
        if self.lanes > 1:
            effects += self._queue(Batch(start, stop, theta, work.done.version, self.name, -1))
        else:
            effects.append(self.works.begin(CHARGED, *_half(self.block, start, stop)))
        return [*effects, *self._watch_peers(work.done.versions), *survey]

    def _watch_peers(self, versions: Mapping[PartyName, int]) -> list[Effect]:
        """Raise an alarm, once, about a party whose block no longer moves although derivatives are sent."""
        if self.number % JUDGED_EVERY:
            return []
        effects: list[Effect] = []
        for peer, version in versions.items():
            before, since = self.peer_steps.get(peer, (-1, 0))
            if version != before:
                self.peer_steps[peer] = (version, self.number)
                self.starved.discard(peer)
            elif self.number - since > STARVED_AFTER and peer not in self.starved:
                self.starved.add(peer)
                effects.append(Observe("alarm", f"{peer} has applied none of the last {STARVED_AFTER} derivatives"))
        return effects

    # -- the collaborator ----------------------------------------------------------------------------------------

    def asked(self, asker: PartyName, number: int) -> list[Effect]:
        """Answer from the block as it is, and remember which version that was. A block that is still at zero, beside
        others that may have moved, would leave the asker with the others' shares: then the first step comes first. In
        step, whatever was told before the question comes first."""
        if self.in_step and self.is_stepping():
            waiting = sum(batch.asker == asker for batch in self.queue)
            expect(waiting < 2 * OPEN_MOST, asker, "more questions than may be open")
            self.queue.append(Batch(0, 0, NOTHING, 0, asker, number))
            return []
        if not self.stepped and self.is_stepping():
            expect(len(self.early) < OPEN_MOST and (asker, number) not in self.early, asker, f"question {number} again")
            self.early.append((asker, number))
            return []
        answered = self.answered.setdefault(asker, {})
        if self.party.schedule is None or number < 0 or len(answered) >= OPEN_MOST:
            refuse(asker, "more questions than may be open, or one before the beginning")
        start, stop = self.rows_asked(asker, number)
        answered[number] = (start, stop, self.block.version)
        if self.lanes == 1:
            return self.party.answers.products(asker, number, start, stop)
        work = AnswerOnLane(asker, number, self.block.version)
        return [self.works.begin(work, *_half(self.block, start, stop), self.block.share_job(start, stop))]

    def _on_backward(self, sender: PartyName, body: Backward) -> list[Effect]:
        taken = self.answered[sender].pop(body.number, None) if sender in self.answered else None
        if taken is None:
            refuse(sender, f"derivatives of question {body.number}, which it did not ask")
        start, stop, version = taken
        theta = body.derivatives
        expect_array(sender, "derivatives", theta, self.outputs * (stop - start))
        self.party.sums.seen[sender] = body.version
        self.numbers[sender] = body.number + 1
        place = self.party.roster.names.index(self.name)
        if body.asks >= 0:
            self.party.note_question(sender, PRODUCTS, 0, body.asks)
        if self.stepped and self.party.survey.tables.working and self.party.survey.is_late(self.name):
            self.dropped += 1
            return self.asked(sender, body.asks) if body.asks >= 0 else []
        if body.asks >= 0 and body.at_once >> place & 1 and not self.in_step and self.stepped:
            effects = self.asked(sender, body.asks)
            return effects + self._queue(Batch(start, stop, theta, version, sender, -1))
        return self._queue(Batch(start, stop, theta, version, sender, body.asks))

    def _queue(self, batch: Batch) -> list[Effect]:
        """Wait for the lane; beyond the bound the oldest derivatives go, but their question is answered. In step none
        go, and open questions are the bound."""
        if self.in_step and batch.asker == self.party.roster.chair and self.party.survey.under_way:
            self.resting.append(batch)
            return []
        self.queue.append(batch)
        effects: list[Effect] = []
        if len(self.queue) > QUEUE_MOST and self.stepped and not self.in_step:
            oldest = self.queue.popleft()
            self.dropped += 1
            if oldest.asks >= 0:
                effects = self.asked(oldest.asker, oldest.asks)
        return effects + self._take_queue()

    def _take_queue(self) -> list[Effect]:
        """Spend a lane on everything that waits, unless it is busy."""
        if not self.queue or not self.started:
            return []
        if self.lanes > 1:
            return self._take_on_lanes()
        if self.works.count[Steps]:
            return []
        batches = [self.queue.popleft() for _ in range(1 if self.in_step else len(self.queue))]
        samples = nonzeros = 0
        for batch in batches:
            rows, values = _half(self.block, batch.start, batch.stop)
            samples += rows
            nonzeros += values
        return [self.works.begin(Steps(batches), samples, nonzeros)]

    def worked(self, work: Any, event: Computed) -> list[Effect]:
        return self.does[type(work)](work, event)

    def _step(self, work: Steps, event: Computed) -> list[Effect]:
        batches, rows = work.batches, 0
        for batch in batches:
            if batch.stop > batch.start:
                self.stepper.step(batch.start, batch.stop, batch.theta, self.block.version - batch.version)
            rows += batch.stop - batch.start
        if rows:
            self.party.note_seconds(event.seconds, rows / 2)
        effects = self._moved()
        waiting, self.queue = self.queue, deque()  # these questions are older than what waits
        for batch in batches:
            if batch.asks >= 0:
                effects += self.asked(batch.asker, batch.asks)
        self.queue = waiting
        if self.queue:
            return effects + self._take_queue()
        return effects + self.party.after_work() if self.party.survey.marked else effects

    def _moved(self) -> list[Effect]:
        """The block has moved: what waited for its first step is answered."""
        self.stepped, early, self.early = True, self.early, []
        return [effect for question in early for effect in self.asked(*question)] if early else []

    # -- lanes: pure jobs over values read before ----------------------------------------------------------------

    def _answer(self, work: AnswerOnLane, event: Computed) -> list[Effect]:
        start, stop = self.rows_asked(work.asker, work.number)
        if event.result is None:  # the job was lost in a crash: read the block as it is now
            return self.party.answers.products(work.asker, work.number, start, stop)
        return self.party.answers.given(work.asker, work.number, event.result, work.version)

    def _take_on_lanes(self) -> list[Effect]:
        effects: list[Effect] = []
        while self.queue and self.works.count[GradientOnLane] < self.lanes:
            batch = self.queue.popleft()
            residual = self.block.residual(batch.start, batch.stop, batch.theta)
            job = self.block.gradient_job(batch.start, batch.stop, residual)
            half = _half(self.block, batch.start, batch.stop)
            effects.append(self.works.begin(GradientOnLane(batch, residual), *half, job))
        return effects

    def _apply(self, work: GradientOnLane, event: Computed) -> list[Effect]:
        batch = work.batch
        gradient = event.result
        if gradient is None:  # the job was lost in a crash; its table entry is exchanged already, so finish it here
            gradient = self.block.gradient_job(batch.start, batch.stop, work.residual)()
        self.stepper.apply(batch.start, batch.stop, gradient, self.block.version - batch.version)
        effects = [*self._moved(), *(self.asked(batch.asker, batch.asks) if batch.asks >= 0 else ())]
        effects += self._take_queue()
        return [*effects, *self.party.after_work()]

    # -- the rest of the role ------------------------------------------------------------------------------------

    def rostered(self) -> list[Effect]:
        """Every open question is void; the dominators deal the schedule anew."""
        self.passes_before = self.passes()
        self.number, self.under_way, self.applied, self.numbers, self.answered = 0, 0, 0, {}, {}
        self.early = []
        self.works.drop(Derive)
        self.works.drop(AnswerOnLane)
        under_way = [batch for work in self.works.of(Steps) for batch in work.batches]
        for batch in (*self.queue, *self.resting, *under_way, *(work.batch for work in self.works.of(GradientOnLane))):
            batch.asks = -1
        return self._ask_first() if self.started else []

    def resume(self) -> list[Effect]:
        if self.resting and not self.party.survey.under_way:
            self.queue.extend(self.resting)
            self.resting = []
        return [*self._ask_first(), *self._take_queue()] if self.started else []

    def is_stepping(self) -> bool:
        return bool(self.queue or self.works.count[Steps] or self.works.count[GradientOnLane])

    def passes(self) -> float:
        """Dominated samples over rows, all dominators together."""
        if self.party.schedule is None:
            return 0.0
        return self.passes_before + (self.applied + sum(self.numbers.values())) / self.party.schedule.blocks_a_pass

    def losses(self) -> dict[str, int]:
        return {"dropped": self.dropped, "late": self.late}

    # -- going on later ------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        answered = {name: [[n, *row] for n, row in rows.items()] for name, rows in self.answered.items()}
        return {**super().snapshot(), "answered": answered}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.answered = {name: {n: (a, b, v) for n, a, b, v in rows} for name, rows in state["answered"].items()}
        self.queue = deque(Batch(*fields) for fields in state["queue"])
        self.resting = [Batch(*fields) for fields in state["resting"]]
        self.early = [(asker, number) for asker, number in state["early"]]
        self.peer_steps = {name: (pair[0], pair[1]) for name, pair in state["peer_steps"].items()}


class VfbParty(InRounds):
    """A synchronous party: one dominator at a time, in turn; the next question waits for every party's step, and a
    survey begins where everybody has stepped."""

    KEPT = ("round", "asking", "unstepped", "early", "party")

    def __init__(self, party: LinearParty, lanes: int = 1) -> None:
        super().__init__(party)
        self.unstepped: set[PartyName] = set()  # whose step of the round before is still awaited
        self.early: set[PartyName] = set()  # who has stepped this round before this party did
        self.asking = False
        handlers: Mapping[type[Message], Handler] = {Backward: self._on_backward, Stepped: self._on_stepped}
        party.attach(self, handlers, (Derive, Steps), tells=(Backward,), in_turn=True)

    def _dominator(self, number: int) -> PartyName:
        labelled = self.party.roster.labelled
        return labelled[number % len(labelled)]

    # -- the method ----------------------------------------------------------------------------------------------

    def resume(self) -> list[Effect]:
        """Ask, if it is this party's turn and nothing is to be waited for."""
        mine = self.party.schedule is not None and self._dominator(self.round) == self.name
        waits = self.unstepped or self.asking or self.works.count[Steps] or self.party.survey.under_way
        if not mine or waits:
            return []
        survey = self.party.judge.survey_if_due()
        if survey:  # everybody has stepped and nobody moves: the frozen copies are one point
            return survey
        self.asking = True
        return self.party.ask_products(self.round, *self.party.rows_of(self.round))

    begun = resume

    def asked(self, asker: PartyName, number: int) -> list[Effect]:
        expect(asker == self._dominator(number) and number == self.round, asker, f"a question of round {number}")
        return self.party.answers.products(asker, number, *self.party.rows_of(number))

    def product(self, done: Sum) -> list[Effect]:
        rows = self.party.rows_of(done.first)
        return [self.works.begin(Derive(done.first, *rows, done), *_half(self.block, *rows))]

    def worked(self, work: Any, event: Computed) -> list[Effect]:
        return self._derive(work) if type(work) is Derive else self._step(work.batches[0], event)

    def _derive(self, work: Derive) -> list[Effect]:
        theta = self.party.finish_product(work.done, work.start, work.stop)
        if not isfinite(theta.dot(theta)):
            return self.party.diverged()
        body = Backward(self.party.roster.epoch, work.number, theta, self.block.version, -1, 0)
        return [Broadcast(self.party.roster.peers, body), *self._on_backward(self.name, body)]

    def _on_backward(self, sender: PartyName, body: Backward) -> list[Effect]:
        begun, awaited = self.party.schedule is not None, body.number == self.round and not self.works.count[Steps]
        right = begun and awaited and sender == self._dominator(body.number)
        right = right and self.party.survey.frozen is None and not self.party.survey.tables.working
        expect(right, sender, f"derivatives of round {body.number}, while round {self.round} is on")
        start, stop = self.party.rows_of(body.number)
        expect_array(sender, "derivatives", body.derivatives, self.party.problem.outputs * (stop - start))
        steps = Steps([Batch(start, stop, body.derivatives, self.block.version, sender, -1)])
        return [self.works.begin(steps, *_half(self.block, start, stop))]

    def _step(self, batch: Batch, event: Computed) -> list[Effect]:
        self.party.note_seconds(event.seconds, (batch.stop - batch.start) / 2)
        self.stepper.step(batch.start, batch.stop, batch.theta, 0)
        self.round += 1
        self.asking = False
        early, self.early = self.early, set()
        following, marked = self._dominator(self.round), self.party.after_work()
        if following != self.name:
            return [Send(following, Stepped(self.party.roster.epoch, self.round - 1)), *marked]
        self.unstepped = set(self.party.roster.peers) - early
        return [*marked, *self.resume()]

    def is_stepping(self) -> bool:
        return bool(self.works.count[Steps])

    def _on_stepped(self, sender: PartyName, body: Stepped) -> list[Effect]:
        if body.round == self.round:  # before this party has taken that step itself
            self.early.add(sender)
            return []
        expect(body.round == self.round - 1 and sender in self.unstepped, sender, f"a step of round {body.round}")
        self.unstepped.discard(sender)
        return self.resume()


def _half(block: Block, start: int, stop: int) -> tuple[int, int]:
    """A product, or a step, is half of a batch's work."""
    return (stop - start + 1) // 2, block.nonzeros(start, stop) // 2


build = linear_parties.builder(Vfb2Party, VfbParty, everywhere=False)
