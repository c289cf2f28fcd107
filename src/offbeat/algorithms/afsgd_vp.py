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
   is slow, answers at once.
2. Ana adds her own share, takes the loss's derivatives (she has the labels) and steps her own block.
3. Bo and Cy do the same, each on their own clock. Nobody waits for Cy.
4. Now and then a survey freezes a copy of each block, leaps, and gives everybody the derivatives and its gradient
   there.

Synchronous counterparts (FSG-VP, FSVRG-VP, FSAGA-VP): one round at a time. All shares of the round's batch, taken at
the same iterate, go to the chair; the products go to everybody; everybody steps; that is the barrier. With the same
sample order this is exactly the centralised method, up to fixed-point rounding of 2^-41 per share.

Threat model: semi-honest parties over authenticated channels. The papers' claim that products hide features does not
hold: whoever sees the products of enough rows and steps can solve for the other parties' features up to a rotation.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from offbeat.learning.blocks import Block
from offbeat.party import linear
from offbeat.party.contract import Broadcast, Computed, Effect, Message, Party, PartyName, State
from offbeat.party.expected import expect, expect_array
from offbeat.party.linear import LinearParty
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import PRODUCTS, Sum
from offbeat.party.problem import Problem


class Product(Message, frozen=True):
    """Synchronous rounds: the products of the round's rows with the whole model.

    Reveals: each sampled row's product to every party (asynchronous workers learn them only for their own batches).
    """

    epoch: int
    round: int
    products: np.ndarray
    surveys: bool  # a survey follows: the next round's share is to be taken after it


MESSAGES = (*linear.MESSAGES, Product)
WAITING_MOST = 4096
NOT_FINITE = "a product is no longer finite; use a smaller step"


class Update(msgspec.Struct, frozen=True, gc=False):
    """Work of an asynchronous worker: add the own share, take the derivatives, step."""

    start: int
    stop: int
    done: Sum


class RoundStep(msgspec.Struct, frozen=True, gc=False):
    """Work of a synchronous worker: the products of the round are known; step."""

    products: np.ndarray
    surveys: bool


class Worker:
    """An asynchronous worker: asks, steps its own block, answers."""

    def __init__(self, party: LinearParty, lanes: int = 1) -> None:
        self.name, self.party = party.name, party
        self.handle = party.handle
        self.block, self.works, self.stepper = party.block, party.works, party.stepper
        self.started = False
        self.number = 0  # of the next question
        self.under_way = 0  # own questions whose step has not been taken
        self.taken = 0  # own steps, in this epoch
        self.passes_before = 0.0  # in earlier epochs
        self.numbers: dict[PartyName, int] = {}  # how many questions every other worker has put
        self.waiting: list[tuple[PartyName, int]] = []  # questions that are answered after the own step
        self.late = 0
        party.attach(self, {}, (Update,))

    # -- the method ----------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        self.started = True
        return self._ask()

    def _ask(self) -> list[Effect]:
        """Keep so many questions under way; without labels a worker answers, and surveys alone move its block."""
        party = self.party
        rests = party.survey.pauses or party.lifecycle.spacing == 0.0
        if not party.roster.holds_labels or rests:
            return []
        effects: list[Effect] = []
        for _ in range(self._in_flight() - self.under_way):
            start, stop = self._rows(self.number)
            effects += party.sums.ask(
                PRODUCTS, 0, self.number, 0, party.problem.outputs * (stop - start), self.block.version
            )
            self.number += 1
            self.under_way += 1
        return effects

    def _in_flight(self) -> int:
        return self.party.options.in_flight or 1

    def _rows(self, number: int) -> tuple[int, int]:
        """Every worker goes through the same schedule, at its own pace."""
        assert self.party.schedule is not None
        return self.party.schedule.block(number)

    def rows_asked(self, asker: PartyName, number: int) -> tuple[int, int]:
        """Which rows a worker's question is about, as (start, stop)."""
        return self._rows(number)

    def asked(self, asker: PartyName, number: int) -> list[Effect]:
        expect(self.party.schedule is not None and number >= 0, asker, "a question before the beginning")
        self.numbers[asker] = number + 1
        behind = number >= self.taken + self._in_flight() and self.under_way and not self.party.judge.is_slow(self.name)
        if behind or self._rests_with(asker):  # after the own step, or the survey, the share is as new as in rounds
            expect((asker, number) not in self.waiting, asker, f"question {number} again")
            expect(len(self.waiting) < WAITING_MOST, asker, "more questions than can wait")
            self.waiting.append((asker, number))
            return []
        return self.party.answers.products(asker, number, *self._rows(number))

    def _rests_with(self, asker: PartyName) -> bool:
        """Whether a survey is under way that waits for both."""
        return self.party.survey.pauses and self.party.survey.takes_table(asker)

    def _answer_waiting(self) -> list[Effect]:
        if self.party.survey.pauses:
            return []
        waiting, self.waiting = self.waiting, []
        return [effect for ask in waiting for effect in self.party.answers.products(*ask, *self._rows(ask[1]))]

    def product(self, done: Sum) -> list[Effect]:
        """The others' total is known: time for the own share, the derivatives and the step."""
        start, stop = self._rows(done.first)
        return [self.works.begin(Update(start, stop, done), stop - start, self.block.nonzeros(start, stop))]

    def worked(self, work: Update, event: Computed) -> list[Effect]:
        party, start, stop, done = self.party, work.start, work.stop, work.done
        party.note_seconds(event.seconds, stop - start)
        self.under_way -= 1
        lag = party.sums.lag(self.block.version - done.version, done.versions)
        if 0 < party.options.lag_max < lag:
            self.late += 1
            return [*self._answer_waiting(), *self._after_work(), *self._ask()]
        theta = party.finish_product(done, start, stop)
        if not np.isfinite(theta).all():
            return party.alarm("diverged", NOT_FINITE)
        self.stepper.step(start, stop, theta, lag)
        self.taken += 1
        return [*party.judge.survey_if_due(), *self._answer_waiting(), *self._after_work(), *self._ask()]

    def _after_work(self) -> list[Effect]:
        return self.party.after_work() if not self.party.survey.is_working() else []

    # -- the rest of the role ------------------------------------------------------------------------------------

    def resume(self) -> list[Effect]:
        return [*self._answer_waiting(), *self._ask()] if self.started else []

    def is_stepping(self) -> bool:
        return self.works.count[Update] > 0

    def rostered(self) -> list[Effect]:
        """Every open question is void; all workers go through the schedule from its beginning."""
        self.passes_before = self.passes()
        self.number, self.under_way, self.taken, self.numbers, self.waiting = 0, 0, 0, {}, []
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

    _PLAIN = ("started", "number", "under_way", "taken", "passes_before", "late")

    def snapshot(self) -> State:
        plain = {name: getattr(self, name) for name in self._PLAIN}
        waiting = [list(ask) for ask in self.waiting]
        return {**plain, "numbers": dict(self.numbers), "waiting": waiting, "party": self.party.snapshot()}

    def restore(self, state: State) -> None:
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.numbers = dict(state["numbers"])
        self.waiting = [(asker, number) for asker, number in state["waiting"]]
        self.party.restore(state["party"])


class RoundWorker:
    """A synchronous worker: everybody knows the order of batches and sends the round's share unasked."""

    def __init__(self, party: LinearParty, lanes: int = 1) -> None:
        self.name, self.party = party.name, party
        self.handle = party.handle
        self.block, self.works, self.stepper = party.block, party.works, party.stepper
        self.round = 0
        self.rests = False  # the round's share is to be taken after a survey
        self.done: Sum | None = None  # the chair: the others' total of this round, once known
        party.attach(self, {Product: self._on_product}, (RoundStep,))

    def _rows(self) -> tuple[int, int]:
        assert self.party.schedule is not None
        return self.party.schedule.block(self.round)

    def rows_asked(self, asker: PartyName, number: int) -> tuple[int, int]:
        assert self.party.schedule is not None
        return self.party.schedule.block(number)

    # -- the method ----------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        if self.party.lifecycle.spacing == 0.0:  # surveys alone
            return []
        if not self.party.roster.is_chair:
            return self._volunteer()
        self._expect(0)
        return []

    def _expect(self, number: int) -> None:
        """The chair: the others' shares of this round will come unasked, perhaps before its own step."""
        assert self.party.schedule is not None
        start, stop = self.party.schedule.block(number)
        words = self.party.problem.outputs * (stop - start)
        self.party.sums.expect(PRODUCTS, 0, number, words, self.block.version)

    def _volunteer(self) -> list[Effect]:
        return self.party.answers.products(self.party.roster.chair, self.round, *self._rows())

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
        start, stop = self._rows()
        assert party.schedule is not None
        products, _ = party.finish(done.words, self.block.share(start, stop), start, party.sums.scale)
        if not np.isfinite(products).all():
            return party.alarm("diverged", NOT_FINITE)
        surveys = party.judge.survey_is_due(1.0 / party.schedule.blocks_a_pass)
        self._expect(self.round + 1)
        body = Product(party.roster.epoch, self.round, products, surveys)
        return [Broadcast(party.roster.peers, body), *self._on_product(self.name, body)]

    def _on_product(self, sender: PartyName, body: Product) -> list[Effect]:
        begun, awaited = self.party.schedule is not None, body.round == self.round and not self.works.count[RoundStep]
        right = begun and awaited and sender == self.party.roster.chair
        expect(right, sender, f"the products of round {body.round}, while round {self.round} is on")
        start, stop = self._rows()
        expect_array(sender, "the products of round", body.products, self.party.problem.outputs * (stop - start))
        work = RoundStep(body.products, body.surveys)
        return [self.works.begin(work, stop - start, self.block.nonzeros(start, stop))]

    def worked(self, work: RoundStep, event: Computed) -> list[Effect]:
        party, (start, stop) = self.party, self._rows()
        party.note_seconds(event.seconds, stop - start)
        if party.problem.labels is not None:
            self.stepper.step(start, stop, self._derivatives(work.products, start), 0)
        self.round += 1
        self.rests = work.surveys
        if party.roster.is_chair:
            return party.judge.begin_survey() if work.surveys else self._close_round()
        after = party.after_work() if not party.survey.is_working() else []
        return after if self.rests else [*after, *self._volunteer()]

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

    def rostered(self) -> list[Effect]:
        return self.party.alarm("peer-lost", "synchronous rounds cannot go on without a party")

    def passes(self) -> float:
        return self.round / self.party.schedule.blocks_a_pass if self.party.schedule is not None else 0.0

    def losses(self) -> dict[str, int]:
        return {"dropped": 0, "late": 0}

    def snapshot(self) -> State:
        done = self.done.plain() if self.done is not None else None
        return {"round": self.round, "rests": self.rests, "done": done, "party": self.party.snapshot()}

    def restore(self, state: State) -> None:
        self.party.restore(state["party"])
        self.round, self.rests = state["round"], state["rests"]
        self.done = Sum.from_plain(state["done"]) if state["done"] is not None else None


def build(
    blocks: Mapping[PartyName, Block],
    problem: Problem,
    options: LinearOptions,
    *,
    synchronous: bool = False,
    labels_at: tuple[PartyName, ...] | None = None,
    **rest: Any,
) -> list[Party]:
    """The workers of one run, in roster order; all hold the labels unless `labels_at` says who. `rest`: see
    `linear.build`."""
    make = RoundWorker if synchronous else Worker
    return linear.build(make, blocks, problem, options, labels_at=labels_at or tuple(blocks), **rest)
