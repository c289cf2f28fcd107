"""AFSGD-VP, AFSVRG-VP and AFSAGA-VP, with their synchronous counterparts.

"Privacy-Preserving Asynchronous Federated Learning Algorithms for Multi-Party Vertically Collaborative Learning"
(Gu, Xu, Huo, Deng, Huang, 2020). All parties hold the labels; each steps its own block only.

    minimise  f(w) = (1/n) sum_i L(z_i, y_i) + lambda sum_l g(w_l),      z_i = sum_l <w_l, x_il>

| Paper                         | Here                                                              |
|-------------------------------|-------------------------------------------------------------------|
| worker l, its block w_{G_l}   | `Worker`, `Block`                                                 |
| w_{G_l}^T (x_i)_{G_l}         | a share                                                           |
| w^T x_i through trees T1, T2  | a masked sum (`party/masked_sum.py`); `secure_sum = "two-tree"`   |
| partial derivative of L       | derivative                                                        |
| v_l of Algorithms 3, 4, 5     | `learning/blocks.py`                                              |
| snapshot w^s, full gradient   | a survey (`party/survey.py`), without a barrier                   |
| delay tau                     | lag, in versions of a block                                       |

The order of play, for Ana, Bo and Cy:
1. Ana asks for the product of the schedule's next block of rows with the whole model; Bo and Cy answer, masked; Ana
   alone learns the others' total. Where Ana is a step ahead, Bo answers after his step, so his share is new. Cy, who
   is slow, answers at once, but for questions that wait for his first step.
2. Ana adds her own share, takes the loss's derivatives (she has the labels) and steps her own block.
3. Bo and Cy do the same, each on their own clock. Nobody waits for Cy. Ana and Bo, who are not slow, go through the
   same blocks of rows, so each says with a share that the next one comes unasked, after the own step: a step then
   takes one trip instead of two.
4. Now and then a survey freezes a copy of each block, leaps, and gives everybody the derivatives and its gradient
   there.

Synchronous counterparts (FSG-VP, FSVRG-VP, FSAGA-VP): one round at a time. All shares of the round's batch, taken at
the same iterate, go to the chair; the products go to everybody; everybody steps; that is the barrier. With the same
sample order this is exactly the centralised method, up to fixed-point rounding of 2^-41 per share.

Threat model: semi-honest parties over authenticated channels. The papers' claim that products hide features does not
hold: whoever sees the products of enough rows and steps can solve for the other parties' features up to a rotation.
"""

import msgspec
import numpy as np

from offbeat.party import linear_parties
from offbeat.party.contract import Broadcast, Computed, Effect, Message, PartyName, State
from offbeat.party.expected import expect, expect_array
from offbeat.party.linear import LinearParty
from offbeat.party.linear_protocol import CHAIR, PARTY, linear_protocol
from offbeat.party.masked_sum import AFTER_SURVEY, ASK, PRODUCTS, UNASKED, ShareGiven, Sum
from offbeat.party.memory import Memory
from offbeat.party.protocol import Line, messages_of
from offbeat.party.role import InRounds


class Product(Message, frozen=True):
    """Synchronous rounds: the products of the round's rows with the whole model.

    Reveals: each sampled row's product to every party (asynchronous workers learn them only for their own batches).
    """

    epoch: int
    round: int
    products: np.ndarray
    surveys: bool  # a survey follows: the next round's share is to be taken after it


PROTOCOL = linear_protocol(Line(Product, CHAIR, PARTY, "in rounds: when it has all shares of the round, to all"))
MESSAGES = messages_of(PROTOCOL)
WAITING_MOST = 4096


class Update(msgspec.Struct, frozen=True, gc=False):
    """Work of an asynchronous worker: add the own share, take the derivatives, step."""

    start: int
    stop: int
    done: Sum


class RoundStep(msgspec.Struct, frozen=True, gc=False):
    """Work of a synchronous worker: the products of the round are known; step."""

    products: np.ndarray
    surveys: bool


class Worker(Memory):
    """An asynchronous worker: asks, steps its own block, answers."""

    KEPT = (
        *("started", "number", "under_way", "taken", "passes_before", "late", "survey_after", "survey_before", "rests"),
        *("numbers", "promised", "owed", "early", "held", "waiting", "party"),
    )

    def __init__(self, party: LinearParty, lanes: int = 1) -> None:
        self.name, self.party, self.handle = party.name, party, party.handle
        self.block, self.works, self.stepper = party.block, party.works, party.stepper
        self.in_flight, self.started = party.options.in_flight or 1, False
        self.number = 0  # of the next question
        self.under_way = 0  # own questions whose step has not been taken
        self.taken = 0  # own steps, in this epoch
        self.passes_before = 0.0  # in earlier epochs
        self.numbers: dict[PartyName, int] = {}  # how many questions every other worker has put
        self.waiting: list[tuple[PartyName, int]] = []  # questions that are answered after the own step
        self.promised: dict[PartyName, int] = {}  # whose share of which block comes unasked
        self.owed: dict[PartyName, int] = {}  # who gets which share from here unasked
        self.early: Sum | None = None  # all have given their shares of a block before the step before it was taken here
        self.held: list[Sum] = []  # products that wait until everybody has put its first questions
        self.survey_after = -1  # the block after whose step everybody rests for a survey, as the chair said
        self.survey_before = 0  # the newest survey when it said so
        self.rests = False  # until that survey is over
        self.late = 0
        party.sums.binds_products = False
        party.attach(self, {ShareGiven: self._on_given}, (Update,))

    # -- the method ----------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        self.started = True
        return self._ask()

    def _ask(self) -> list[Effect]:
        """Keep so many questions under way; without labels a worker answers, and surveys alone move its block."""
        party = self.party
        rests = self.rests or party.judge.pauses or party.lifecycle.spacing == 0.0
        if not party.roster.holds_labels or rests:
            return []
        effects: list[Effect] = []
        for _ in range(self.in_flight - self.under_way):
            effects += self._put(self.number)
        return effects

    def _put(self, number: int) -> list[Effect]:
        """The next question, to everybody whose share does not come unasked."""
        sums, version = self.party.sums, self.block.version
        self.number, self.under_way = number + 1, self.under_way + 1
        done, self.early = self.early, None
        if done is not None:
            done.version = version
            return self._begin(done)
        if (PRODUCTS, 0, number) not in sums.open:
            self.party.expect_products(number, *self.party.rows_of(number))
        wanted = sums.open[PRODUCTS, 0, number]
        wanted.version = version
        here = () if sums.trees is not None else wanted.versions  # whose shares came before the step here was taken
        peers = self.party.roster.peers
        asked = tuple(peer for peer in peers if peer not in here and self.promised.get(peer) != number)
        return sums.put(asked, PRODUCTS, 0, number, 0, version)

    def _on_given(self, sender: PartyName, body: ShareGiven) -> list[Effect]:
        """A share, and how the giver's next one comes."""
        number, sums = body.first, self.party.sums
        if body.kind != PRODUCTS or (PRODUCTS, 0, number) not in sums.open:
            return self.party.on_given(sender, body)
        if self.promised.pop(sender, -1) == number:
            self.numbers[sender] = number + 1
        if body.then:
            level = self.in_flight == 1 and number <= self.number
            expect(level, sender, "the word that its next share comes unasked")
            self.promised[sender] = number + 1
            if (PRODUCTS, 0, number + 1) not in sums.open:
                self.party.expect_products(number + 1, *self.party.rows_of(number + 1))
        if body.then == AFTER_SURVEY and sender == self.party.roster.chair:
            self.survey_after, self.survey_before = number, self.party.survey.current
        return self.party.on_given(sender, body)

    def rows_asked(self, asker: PartyName, number: int) -> tuple[int, int]:
        """Every worker goes through the same schedule, at its own pace."""
        return self.party.rows_of(number)

    def asked(self, asker: PartyName, number: int) -> list[Effect]:
        expect(self.party.schedule is not None and number >= 0, asker, "a question before the beginning")
        expect(self.owed.get(asker) != number, asker, f"question {number}, whose answer comes unasked")
        self.numbers[asker] = number + 1
        hurried = self.block.version > 0 and self.party.judge.is_slow(self.name)
        behind = number >= self.taken + self.in_flight and self.under_way and not hurried
        if behind or self._rests_with(asker, number):  # after the own step, or the survey, it is as new as in rounds
            expect((asker, number) not in self.waiting, asker, f"question {number} again")
            expect(len(self.waiting) < WAITING_MOST, asker, "more questions than can wait")
            self.waiting.append((asker, number))
            return []
        return [*self._give(asker, number), *self._begin_first()]

    def _begin_first(self) -> list[Effect]:
        """A block that has not moved adds nothing to a total, so that a total would be another's share. So nobody takes
        its first step before it has answered everybody's first questions, and later ones are answered after it."""
        others = (name for name in self.party.roster.labelled if name != self.name)
        asked = all(self.numbers.get(name, 0) >= self.in_flight for name in others)
        if self.block.version == 0 and not (asked and all(number >= self.in_flight for _, number in self.waiting)):
            return []
        held, self.held = self.held, []
        return [effect for done in held for effect in self._begin(done)]

    def _rests_with(self, asker: PartyName, number: int) -> bool:
        """Whether a survey is under way, or announced, that waits for both. One that is announced also waits for the
        steps before it, and these for their shares."""
        late = self.party.survey.is_late(asker) or (self.rests and self.party.judge.is_slow(asker))
        before = self.rests and number <= self.survey_after and not self.party.survey.under_way
        return self._rests() and not late and not before

    def _block_now(self) -> int:
        """The block of rows before whose step this worker is."""
        return self.number - self.under_way

    def _rests(self) -> bool:
        """Whether a survey is under way, or announced, that waits for this worker, or a certificate is awaited."""
        survey = self.party.survey
        awaited = survey.under_way or self.party.judge.awaits_certificate
        return self.rests or (awaited and not survey.is_late(self.name))

    def _give(self, asker: PartyName, number: int) -> list[Effect]:
        then = self._then(asker, number)
        if then:
            self.owed[asker] = number + 1
        return self.party.answers.for_all(asker, number, *self.party.rows_of(number), then)

    def _then(self, asker: PartyName, number: int) -> int:
        """Whether the next share comes unasked: where both are at about the same block of rows and neither is slow."""
        party = self.party
        steps = party.roster.holds_labels and party.lifecycle.spacing > 0.0 and self.in_flight == 1
        level = number == self._block_now() and self.numbers.get(asker, 0) >= number
        slow = party.judge.is_slow(self.name) or party.judge.is_slow(asker)
        if party.sums.trees is not None or slow or not (steps and level):
            return ASK
        return AFTER_SURVEY if self._surveys_after(number) else UNASKED

    def _surveys_after(self, number: int) -> bool:
        """The chair: whether its step after this block is the last one before a survey. Said once, it holds."""
        party = self.party
        if self.survey_after != number and party.roster.is_chair:
            assert party.schedule is not None
            if party.judge.survey_is_due(1.0 / party.schedule.blocks_a_pass):
                self.survey_after = number
        return party.roster.is_chair and self.survey_after == number

    def _answer_waiting(self) -> list[Effect]:
        """After the own step: those who have asked meanwhile, and those who need not ask."""
        if self._rests():
            return []
        due = {asker: number for asker, number in self.owed.items() if number <= self._block_now()}
        gives = [*self.waiting, *due.items()]
        self.waiting, self.owed = [], {asker: number for asker, number in self.owed.items() if asker not in due}
        return [effect for asker, number in gives for effect in self._give(asker, number)]

    def product(self, done: Sum) -> list[Effect]:
        """The others' total is known: time for the own share, the derivatives and the step."""
        if done.first >= self.number:
            self.early = done
            return []
        self.held.append(done)
        return self._begin_first()

    def _begin(self, done: Sum) -> list[Effect]:
        start, stop = self.party.rows_of(done.first)
        return [self.works.begin(Update(start, stop, done), stop - start, self.block.nonzeros(start, stop))]

    def worked(self, work: Update, event: Computed) -> list[Effect]:
        party, start, stop, done = self.party, work.start, work.stop, work.done
        party.note_seconds(event.seconds, stop - start)
        self.under_way -= 1
        lag = party.sums.lag(self.block.version - done.version, done.versions)
        if 0 < party.options.lag_max < lag:
            self.late += 1
            return self._go_on(done.first)
        theta = party.finish_product(done, start, stop)
        if not np.isfinite(theta).all():
            return party.diverged()
        self.stepper.step(start, stop, theta, lag)
        self.taken += 1
        return self._go_on(done.first)

    def _go_on(self, number: int) -> list[Effect]:
        """This block of rows is done with."""
        party, last = self.party, self.survey_after == number
        survey = party.judge.survey_if_due()
        if party.roster.is_chair:
            survey = survey or (party.judge.begin_survey() if last and not party.survey.under_way else [])
        else:
            self.rests = last and party.survey.current == self.survey_before and not party.survey.under_way
        return [*survey, *self._answer_waiting(), *party.after_work(), *self._ask()]

    # -- the rest of the role ------------------------------------------------------------------------------------

    def resume(self) -> list[Effect]:
        self.rests = False
        return [*self._answer_waiting(), *self._begin_first(), *self._ask()] if self.started else []

    def is_stepping(self) -> bool:
        return self.works.count[Update] > 0

    def rostered(self) -> list[Effect]:
        """Every open question is void; all workers go through the schedule from its beginning."""
        self.passes_before = self.passes()
        self.number, self.under_way, self.taken, self.numbers, self.waiting = 0, 0, 0, {}, []
        self.promised, self.owed, self.early, self.held, self.survey_after, self.rests = {}, {}, None, [], -1, False
        self.works.drop(Update)
        return self._ask() if self.started else []

    def passes(self) -> float:
        """How far the slowest worker is that is waited for: own steps, and the others' questions, whose steps a survey
        waits for."""
        party = self.party
        if party.schedule is None:
            return 0.0
        numbers = {**self.numbers, self.name: self.taken}
        waited = [numbers.get(name, 0) for name in party.roster.labelled if not party.judge.is_slow(name)]
        return self.passes_before + min(waited) / party.schedule.blocks_a_pass

    def losses(self) -> dict[str, int]:
        """Derivatives that were never applied, and products that were too old."""
        return {"dropped": 0, "late": self.late}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.early = Sum.from_plain(state["early"]) if state["early"] is not None else None
        self.held = [Sum.from_plain(done) for done in state["held"]]
        self.waiting = [(asker, number) for asker, number in state["waiting"]]


class RoundWorker(InRounds):
    """A synchronous worker: everybody knows the order of batches and sends the round's share unasked."""

    KEPT = ("round", "rests", "done", "party")

    def __init__(self, party: LinearParty, lanes: int = 1) -> None:
        super().__init__(party)
        self.rests = False  # the round's share is to be taken after a survey
        self.done: Sum | None = None  # the chair: the others' total of this round, once known
        party.attach(self, {Product: self._on_product}, (RoundStep,), (Product,))

    # -- the method ----------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        if self.party.lifecycle.spacing == 0.0:  # surveys alone
            return []
        if not self.party.roster.is_chair:
            return self._volunteer()
        self.party.expect_products(0, *self.party.rows_of(0))
        return []

    def _volunteer(self) -> list[Effect]:
        return self.party.answers.products(self.party.roster.chair, self.round, *self.party.rows_of(self.round))

    def asked(self, asker: PartyName, number: int) -> list[Effect]:
        expect(False, asker, f"a question of round {number}: shares of rounds come unasked")
        return []

    def product(self, done: Sum) -> list[Effect]:
        """The chair: every share of the round is here."""
        self.done = done
        return self._close_round()

    def _close_round(self) -> list[Effect]:
        """The chair: the round's products, unless its own step or a survey is still to be waited for."""
        party, done = self.party, self.done
        if done is None or self.rests or party.survey.under_way or self.works.count[RoundStep]:
            return []
        self.done = None
        start, stop = party.rows_of(self.round)
        assert party.schedule is not None
        products, _ = party.finish(done.words, self.block.share(start, stop), start, party.sums.scale)
        if not np.isfinite(products).all():
            return party.diverged()
        surveys = party.judge.survey_is_due(1.0 / party.schedule.blocks_a_pass)
        party.expect_products(self.round + 1, *party.rows_of(self.round + 1))  # they come, perhaps before its own step
        body = Product(party.roster.epoch, self.round, products, surveys)
        return [Broadcast(party.roster.peers, body), *self._on_product(self.name, body)]

    def _on_product(self, sender: PartyName, body: Product) -> list[Effect]:
        begun, awaited = self.party.schedule is not None, body.round == self.round and not self.works.count[RoundStep]
        right = begun and awaited and sender == self.party.roster.chair
        expect(right, sender, f"the products of round {body.round}, while round {self.round} is on")
        start, stop = self.party.rows_of(self.round)
        expect_array(sender, "the products of round", body.products, self.party.problem.outputs * (stop - start))
        work = RoundStep(body.products, body.surveys)
        return [self.works.begin(work, stop - start, self.block.nonzeros(start, stop))]

    def worked(self, work: RoundStep, event: Computed) -> list[Effect]:
        party, (start, stop) = self.party, self.party.rows_of(self.round)
        party.note_seconds(event.seconds, stop - start)
        if party.problem.labels is not None:
            self.stepper.step(start, stop, self._derivatives(work.products, start), 0)
        self.round += 1
        self.rests = work.surveys
        if party.roster.is_chair:
            return party.judge.begin_survey() if work.surveys else self._close_round()
        return [*party.after_work(), *([] if self.rests else self._volunteer())]

    def _derivatives(self, products: np.ndarray, start: int) -> np.ndarray:
        nothing = np.zeros(len(products), np.uint64)  # the products are known: no shares to add
        return self.party.finish(nothing, products, start, 1.0)[1]

    # -- the rest of the role ------------------------------------------------------------------------------------

    def resume(self) -> list[Effect]:
        """A survey is over, and everybody stands where it ended."""
        if not self.rests:
            return self._close_round()
        self.rests = False
        return [] if self.party.roster.is_chair else self._volunteer()

    def is_stepping(self) -> bool:
        return self.works.count[RoundStep] > 0

    def restore(self, state: State) -> None:
        super().restore(state)
        self.done = Sum.from_plain(state["done"]) if state["done"] is not None else None


build = linear_parties.builder(Worker, RoundWorker, everywhere=True)
