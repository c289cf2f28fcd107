"""A sub-machine: one pass over a frozen point, a leap from there, and what it tells everybody.

A survey gives every party the loss's derivative at each row (a table) and its own block of the full gradient, both at
one point, and gives the run its certificate. It is SVRG's snapshot, SAGA's refreshment, a step over all rows at once,
and the only way to know how good a model is without pooling anything.

    chair    -> all     Mark(s)            freeze a copy of your block
    chair    -> all     a masked sum of the products of all rows with the frozen point, chunk by chunk
    chair    -> all     a masked sum of inner products, then Leap(s, ...)     see `leap.py`
    chair    -> all     TablePart(s, ...)  the derivatives where the leap ended, chunk by chunk
    chair    -> all     a masked sum of what the certificate needs; a party answers when its gradient is complete
    chair    -> all     Certified(s)
and where somebody is late:
    others   -> chair   Taken(s)           my gradient is complete
    chair    -> all     GoOn(s)            all but the late have theirs

Where nobody is slow a survey is like one of synchronous rounds: steps pause, everybody freezes after its last step,
takes the table, and the certificate ends the pause. A slow party is *late*: the survey does not wait for it. It freezes
its block as it is and takes the table behind the others, which go on with steps when they have theirs; its own steps
rest until then. While it is at that, the others have a few surveys of their own, without a certificate: the late get
no table of these, but at each mark they step along what they know by then of their gradient, and leap with all. Leaps
need products alone, so they are as good there. When the late are done, the certificate follows, and with it the next
survey that gives everybody a table.

Where no steps lie between two surveys, and nobody is late, surveys *overlap*: the next mark follows right behind the
table, and shares come together with what the certificate needs. The leap waits for that certificate. A survey then
costs one round trip in place of two. Synchronous rounds wait for the certificate.

The blocks need not be frozen at the same instant: variance reduction is unbiased for any fixed point, as long as the
table and the gradient use the same one.

The certificate: with A_l = X_l^T theta / n, the duality gap is the sum of the parties' slacks
(`learning/penalties.py`), since the derivatives add up to nothing where the model has a constant.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from offbeat.learning.blocks import Block
from offbeat.party import masked_sum
from offbeat.party.contract import Broadcast, Effect, Observe, PartyName, Send
from offbeat.party.expected import expect, expect_array
from offbeat.party.leap import Moves, Pilot, moves_kept
from offbeat.party.masked_sum import EPOCH_STRIDE, MaskedSum, ShareAsked, Sum
from offbeat.party.memory import Memory
from offbeat.party.problem import Problem
from offbeat.party.roster import Roster
from offbeat.party.scalars import WORDS_EACH, decode, narrow, widen
from offbeat.party.survey_messages import Certified, Curved, GoOn, Leap, Mark, TablePart, Taken
from offbeat.party.tables import RowsRefreshed, Tables
from offbeat.party.works import Works

CHUNK_WORDS, CHUNK_OUTPUTS = 8192, 4
"""What a message of a survey carries: few messages, and yet the first can be worked on while the others come. Where the
model has several outputs, as much for each of the first few: events cost more than the words that they bring."""
CHUNKS_IN_FLIGHT = 32
WITHOUT_MOST = 10
"""Surveys in a row that have no certificate, while the late take the table of the one before."""
SCALARS = 3
"""What a certificate needs of each party: its slack, its squared gradient, its penalty."""


class FindLeap(msgspec.Struct, frozen=True, gc=False):
    """Work of the chair: all products are here."""

    survey: int


_BY_SURVEY = ("points", "scalars", "losses")


class Survey(Memory):
    """Both sides, for one party."""

    KEPT = (
        *("current", "best", "pace", "marked", "late", "certifies", "open", "certifying", "finding"),
        *("missing", "taken", "frozen", "shares", "products", "inner", "others", "to_ask", "held"),
        *(*_BY_SURVEY, "history", "moves", "pilot", "tables"),
    )

    def __init__(
        self, *, roster: Roster, problem: Problem, block: Block, sums: MaskedSum, works: Works, leaps: bool
    ) -> None:
        self.roster, self.problem, self.block, self.sums, self.works = roster, problem, block, sums, works
        spans = (leaps or problem.loss.grows) and problem.spanned
        most = moves_kept(problem.rows, problem.outputs) if spans else 1
        self.moves = Moves(most)
        noise = len(roster.everybody) ** 0.5 / sums.scale
        self.pilot = Pilot(problem, most, leaps=leaps, noise=noise)
        self.tables = Tables(block, problem.outputs, works)
        self.tells_curvature = problem.tells_curvature  # the chair
        self.spread = 1.0  # the chair: how much more curved the most curved row is than rows are on average, at first
        self.starts_at_zero = False  # whether no block moves before the first survey is complete
        self.steps_at_marks = False  # whether a block steps along its gradient when it freezes
        self.overlaps = False  # whether a mark may come before the certificate of the survey before it
        self.is_stepping: Callable[[], bool] = lambda: False
        self.step_along_mean: Callable[[], None] = lambda: None
        self.current = 0  # the newest survey; they count from 1
        self.best = 0
        self.pace = 1.0
        self.points: dict[int, np.ndarray] = {}  # where leaps ended, as far as they may still be needed
        self.history: list[Certified] = []
        size = max(1, CHUNK_WORDS * min(problem.outputs, CHUNK_OUTPUTS) // problem.outputs)
        starts = range(0, problem.rows, size)
        self.chunks = {start: min(start + size, problem.rows) for start in starts}  # of all rows, start to stop
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.marked = 0  # a mark that waits for work to be finished
        self.late = 0  # who is late in the newest survey, as bits by place
        self.certifies = True  # whether everybody takes its table
        self.open = False  # whether the newest survey is under way
        self.certifying = 0  # the survey whose certificate is on its way
        self.scalars: dict[int, np.ndarray] = {}  # own numbers for certificates to come
        self.losses: dict[int, float] = {}  # the chair: the mean loss where leaps ended
        self.others: np.ndarray | None = None  # the chair: the others' total of what the certificate needs
        self.taken: set[PartyName] = set()  # the chair: who has taken the newest table
        self.held: ShareAsked | None = None  # a question about a certificate that cannot be answered yet
        self.tables.blank(self.chunks)
        self._blank()

    def _blank(self) -> None:
        self.frozen: np.ndarray | None = None  # between Mark and Leap
        self.shares = np.zeros(0)  # of all rows, at that point
        self.to_ask: list[int] = []  # the chair: chunks whose products it has not asked for,
        self.products = np.zeros((self.problem.outputs, self.problem.rows if self.roster.is_chair else 0))
        self.missing: set[int] = set()  # and those, with them, that have not come
        self.inner: np.ndarray | None = None  # the chair: the sum of inner products
        self.finding = False

    # -- when the next one may begin ------------------------------------------------------------------------------

    @property
    def pauses(self) -> bool:
        """Whether steps rest: a survey is under way that waits for this party, or this party is late with its table."""
        return self.tables.working or (self.under_way and not self.is_late(self.roster.me))

    @property
    def under_way(self) -> bool:
        """Whether those who are waited for are not done with the newest survey."""
        return self.open or self.marked > self.current

    def is_late(self, name: PartyName) -> bool:
        return bool(self.late >> self.roster.names.index(name) & 1)

    def may_be_late(self, number: int, late: int) -> bool:
        """Whether a survey may leave these behind. Before the first table of an epoch a block may be at zero, where it
        hides nobody's share."""
        return late == 0 or (number % EPOCH_STRIDE > 1 and not self.sums.options.in_step)

    @property
    def has_leapt(self) -> bool:
        """Whether surveys overlap, and the newest one, where nobody is late, has leapt: the next may be marked."""
        return self.overlaps and self.late == 0 and self.frozen is None and self.marked <= self.current

    @property
    def has_enough(self) -> bool:
        """Whether no more surveys are allowed before the certificate of an earlier one has come."""
        return self.certifying > 0 and self.current - self.certifying >= WITHOUT_MOST

    # -- freezing -------------------------------------------------------------------------------------------------

    def begin(self, slow: int) -> list[Effect]:
        """The chair: start the next survey; `slow`: who is late from now on, if the last certificate has come."""
        number, overlaps = self.current + 1, self.has_leapt and self.certifying > 0
        self.certifies = self.certifying == 0 or overlaps
        if self.certifies:
            self.late = slow if self.may_be_late(number, slow) and not overlaps else 0
        self._freeze(number)
        self.taken = set()
        self.missing = set(self.chunks)
        mark = Mark(self.roster.epoch, number, self.best, self.late, self.certifies)
        effects: list[Effect] = [Broadcast(self.roster.peers, mark)]
        if number == 1 and self.starts_at_zero:  # every product is zero: nothing needs summing
            self.missing, self.inner = set(), self.own_inner_products()
            return [*effects, *self.find()]
        self.to_ask = list(self.chunks)[::-1]
        words = WORDS_EACH * len(self.own_inner_products())
        effects += self.sums.ask(masked_sum.POINTS, number, 0, words, words, self.block.version)
        return [*effects, *self._ask_products()]

    def on_mark(self, sender: PartyName, body: Mark) -> None:
        expect(sender == self.roster.chair, sender, "a mark, which is the chair's")
        overlaps = self.has_leapt and self.certifying > 0 and body.late == 0
        right = body.survey == self.current + 1 and (overlaps or not self.under_way)
        expect(right, sender, f"the mark of survey {body.survey} after {self.current}")
        right = body.certifies or (body.late == self.late and not self.has_enough)
        right = right and body.certifies == (overlaps or self.certifying == 0)
        right = right and self.may_be_late(body.survey, body.late)
        expect(right, sender, "a mark that leaves others without a table")
        self.best, self.late, self.certifies = body.keep, body.late, body.certifies
        if self.is_working() and not self.is_late(self.roster.me):
            self.marked = body.survey
        else:
            self._freeze(body.survey)

    def is_working(self) -> bool:
        """Whether steps or a table are under way."""
        return self.is_stepping() or self.tables.working

    def freeze_as_marked(self) -> None:
        """The work that a mark waited for has been done."""
        self._freeze(self.marked)

    def _freeze(self, number: int) -> None:
        if self.tables.refreshed:
            self.step_along_mean()
            self.tables.refreshed = False
        self.current, self.marked, self.open = number, 0, True
        self._blank()
        self._take_point()
        self.sums.forget_surveys_below(self.certifying or number)

    def _take_point(self) -> None:
        """Freeze the block, and take its shares of all rows."""
        self._centre_outputs()
        self.frozen = self.block.weights()
        if self.current > 1 or not self.starts_at_zero:
            self.shares = self.block.share(0, self.problem.rows, self.frozen)

    def _centre_outputs(self) -> None:
        """Weights that are the same for all classes change no probability, and their penalty alone would have to take
        them away again, slowly: the block drops them."""
        if self.problem.outputs > 1 and self.problem.spanned:
            weights = self.block.weights()
            self.block.set_weights(weights - weights.mean(axis=0))

    def shares_of(self, start: int, stop: int) -> np.ndarray:
        """This party's shares of these rows at the frozen point, output by output."""
        assert self.frozen is not None
        if not len(self.shares):
            self.shares = self.block.share(0, self.problem.rows, self.frozen)
        return self.shares.reshape(self.problem.outputs, -1)[:, start:stop].ravel()

    # -- products at the frozen point -----------------------------------------------------------------------------

    def _ask_products(self) -> list[Effect]:
        effects: list[Effect] = []
        while self.to_ask and len(self.missing) - len(self.to_ask) < CHUNKS_IN_FLIGHT:
            start = self.to_ask.pop()
            rows = self.chunks[start] - start
            words = self.problem.outputs * rows
            effects += self.sums.ask(masked_sum.SURVEY, self.current, start, rows, words, self.block.version)
        return effects

    def on_products_summed(self, done: Sum) -> list[Effect]:
        """The chair: the others' total of one chunk is known."""
        start, stop = done.first, self.chunks[done.first]
        z = decode(done.words, self.sums.scale) + self.shares_of(start, stop)
        self.products[:, start:stop] = z.reshape(self.problem.outputs, -1)
        self.missing.discard(start)
        return [*self._ask_products(), *self.find()]

    # -- the leap -------------------------------------------------------------------------------------------------

    def own_inner_products(self) -> np.ndarray:
        assert self.frozen is not None
        return self.moves.inner_products(self.frozen)

    def on_inner_products(self, done: Sum) -> list[Effect]:
        own = widen(self.own_inner_products(), self.sums.scale)
        self.inner = narrow(decode(done.words, self.sums.scale) + own, self.sums.scale)
        return self.find()

    def find(self) -> list[Effect]:
        """The chair: when everything is here, the certificate before included, spend time on the search."""
        waits = self.missing or self.inner is None or (self.certifies and self.certifying)
        if waits or self.finding or self.frozen is None:
            return []
        self.finding = True
        return [self.works.begin(FindLeap(self.current), 0, self.problem.rows * (1 + len(self.moves.moves)))]

    def on_find(self, work: FindLeap) -> list[Effect]:
        if work.survey != self.current or not self.finding or self.inner is None:
            return []
        self.finding = False
        best = self.pilot.find(self.products.ravel(), self.inner)
        derivatives = best.derivatives.reshape(self.problem.outputs, -1)
        second = self._curvature(best.products) if self.tells_curvature else None
        digests = self.tables.digests(derivatives, second)
        leap = Leap(self.roster.epoch, self.current, best.coefficients, self.pilot.pace, digests)
        self.losses = {survey: loss for survey, loss in self.losses.items() if survey == self.certifying}
        self.losses[self.current] = best.loss
        effects: list[Effect] = [Broadcast(self.roster.peers, leap), Observe("leap", [self.current, best.objective])]
        self._land(best.coefficients, best.constants, self.pilot.pace, digests)
        takers = tuple(name for name in self.roster.peers if self.takes_table(name))
        effects += self._tell_curvature(second, takers) if second is not None else []
        for start, stop in self.chunks.items():
            part = derivatives[:, start:stop].ravel()
            effects.append(Broadcast(takers, TablePart(self.roster.epoch, self.current, start, part)))
            effects += self.tables.take(self.current, start, part)
        if self.certifies:
            words = WORDS_EACH * SCALARS
            effects += self.sums.ask(masked_sum.CERTIFICATE, self.current, 0, words, words, self.block.version)
        return effects

    def _curvature(self, products: np.ndarray) -> np.ndarray:
        """The chair: the curvature of each row where the leap ended."""
        second = self.problem.second(products.reshape(self.problem.outputs, -1))
        if not self.history:
            self.spread = float(second.max() / max(second.mean(), 1e-300))
        return second

    def _tell_curvature(self, second: np.ndarray, takers: tuple[PartyName, ...]) -> list[Effect]:
        effects: list[Effect] = []
        for start, stop in self.chunks.items():
            part = second[:, start:stop].ravel()
            effects.append(Broadcast(takers, Curved(self.roster.epoch, self.current, start, part)))
            self.tables.take_second(start, part)
        return effects

    def on_curved(self, sender: PartyName, body: Curved) -> list[Effect]:
        expect(self._awaits_table(sender, body), sender, f"curvatures from row {body.start}")
        count = self.problem.outputs * (self.chunks[body.start] - body.start)
        expect_array(sender, "the curvatures from row", body.second, count, number=body.start)
        self.tables.take_second(body.start, body.second)
        return []

    def on_leap(self, sender: PartyName, body: Leap) -> list[Effect]:
        expect(sender == self.roster.chair and body.survey == self.current, sender, f"a leap of survey {body.survey}")
        expect(self.frozen is not None and body.pace > 0, sender, "a second leap")
        expect(not (self.certifies and self.certifying), sender, "a leap before the certificate of the one before it")
        count = len(self.moves.moves) + 1 if self.moves.point is not None else 0
        expect_array(sender, "the coefficients of a leap", body.coefficients, count)
        expect(bool(np.isfinite(body.coefficients).all()), sender, "coefficients that are not finite")
        self._land(body.coefficients, np.zeros(self.problem.outputs), body.pace, body.table)
        return []

    def _land(self, coefficients: np.ndarray, constants: np.ndarray, pace: float, table: bytes) -> None:
        assert self.frozen is not None
        leap = self.moves.land(self.frozen, coefficients, constants)
        self.block.add_to_weights(leap)
        point = self.frozen + leap
        self.frozen, self.pace = None, pace
        if self.certifies:
            self.certifying = self.current
        kept = (self.best, self.certifying)
        self.points = {survey: w for survey, w in self.points.items() if survey in kept} | {self.current: point}
        if self.takes_table(self.roster.me):
            in_pieces = self.steps_at_marks and self.is_late(self.roster.me)
            self.tables.expect(self.current, point, table, in_pieces)

    def takes_table(self, name: PartyName) -> bool:
        """Whether a party gets the newest survey's table: whoever is late is still busy with an earlier one."""
        return self.certifies or not self.is_late(name)

    # -- the table and the gradient -------------------------------------------------------------------------------

    def _awaits_table(self, sender: PartyName, body: TablePart | Curved) -> bool:
        """Whether the leap of the newest survey has announced this chunk to this party."""
        newest = self.tables.newest.survey if self.tables.newest is not None else -1
        return sender == self.roster.chair and body.survey == self.current == newest and body.start in self.chunks

    def on_table(self, sender: PartyName, body: TablePart) -> list[Effect]:
        expect(self._awaits_table(sender, body), sender, f"a table from row {body.start}")
        count = self.problem.outputs * (self.chunks[body.start] - body.start)
        expect_array(sender, "the table from row", body.derivatives, count, number=body.start)
        self.tables.check(sender, body.start, body.derivatives)
        return self.tables.take(body.survey, body.start, body.derivatives)

    def on_refreshed(self) -> list[Effect]:
        """Some rows were refreshed: what this party owes the chair now."""
        table = self.tables.newest
        if self.tables.working or table is None:
            return []
        effects: list[Effect] = []
        if self.late and not self.is_late(self.roster.me):
            taken = Taken(self.roster.epoch, table.survey)
            effects = (
                self.note_taken(self.roster.me, taken) if self.roster.is_chair else [Send(self.roster.chair, taken)]
            )
        if self.certifying == table.survey:
            gradient, held, self.held = self.tables.gradient_at(table), self.held, None
            self.scalars[table.survey] = self.problem.certificate_terms(table.point, gradient, self.block.penalty)
            effects += self.answer_scalars(self.roster.chair, held) if held is not None else []
        return effects

    def note_taken(self, name: PartyName, body: Taken) -> list[Effect]:
        """The chair: somebody has taken the table. When all have who are waited for, steps go on."""
        expected = self.roster.is_chair and self.late != 0 and self.open
        expected = expected and name in self.roster.names and not self.is_late(name)
        expect(expected and body.survey == self.current, name, f"the word on survey {body.survey}")
        self.taken.add(name)
        if any(not self.is_late(peer) and peer not in self.taken for peer in self.roster.names):
            return []
        self.open = False
        return [Broadcast(self.roster.peers, GoOn(self.roster.epoch, body.survey))]

    def on_go_on(self, sender: PartyName, body: GoOn) -> None:
        right = sender == self.roster.chair and body.survey == self.current and self.late != 0
        taken = self.is_late(self.roster.me) or not self.tables.working
        expect(right and self.frozen is None and taken, sender, f"the word to go on after survey {body.survey}")
        self.open = False

    # -- sums of scalars ------------------------------------------------------------------------------------------

    def answer_scalars(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        """Inner products, or what the certificate needs; the latter waits until the gradient is complete."""
        if ask.kind == masked_sum.CERTIFICATE:
            expect(ask.survey == self.certifying, asker, f"a question about the certificate of survey {ask.survey}")
            values = self.scalars.pop(ask.survey, None)
            if values is None:
                expect(self.held is None, asker, "a second question about the certificate")
                self.held = ask
                return []
        else:
            expect(self.frozen is not None, asker, "a question about a point that has leapt")
            values = self.own_inner_products()
        expect(ask.first == 0 and ask.count == WORDS_EACH * len(values), asker, f"a question for {ask.count} words")
        return self.sums.answer_scalars(asker, ask, widen(values, self.sums.scale), self.block.version)

    def certify(self) -> tuple[list[Effect], Certified] | None:
        """The chair: the certificate, once the others' numbers and its own gradient are here."""
        survey = self.certifying
        if self.others is None or survey not in self.scalars:
            return None
        own = widen(self.scalars.pop(survey), self.sums.scale)
        slack, squared, penalty = narrow(self.others + own, self.sums.scale).tolist()
        self.others = None
        objective = self.losses[survey] + self.problem.strength * penalty
        nothing = np.empty(0)  # NaN where this penalty has no duality gap: the parties then sent 0 in its place
        gap = slack + self.problem.penalty.slack(nothing, nothing, self.problem.strength)
        best = survey if self._is_best(objective) else self.best
        news = Certified(self.roster.epoch, survey, objective, max(squared, 0.0) ** 0.5, gap, best)
        self._take_certified(news)
        return [Broadcast(self.roster.peers, news)], news

    def _is_best(self, objective: float) -> bool:
        """Objectives compare within one roster only: a model without a lost party's block starts its own record."""
        before = [c.objective for c in self.history if c.survey == self.best and c.epoch == self.roster.epoch]
        return not before or objective <= before[-1]

    def on_certified(self, sender: PartyName, body: Certified) -> None:
        mine = self.tables.newest is None or self.tables.newest.survey != body.survey or not self.tables.working
        right = sender == self.roster.chair and 0 < body.survey == self.certifying and mine
        expect(right and body.best in (self.best, body.survey), sender, f"a certificate of survey {body.survey}")
        self._take_certified(body)

    def _take_certified(self, news: Certified) -> None:
        self.history.append(news)
        self.best, self.certifying = news.best, 0
        self.open = self.open and (self.late != 0 or news.survey < self.current)
        kept = (self.best, max(self.points, default=0))
        self.points = {survey: w for survey, w in self.points.items() if survey in kept}

    def enter_epoch(self) -> None:
        """There is a new roster: give up the survey under way, and count from the new epoch's first number on."""
        self.points = {survey: w for survey, w in self.points.items() if survey == self.best}
        self.current = self.roster.epoch * EPOCH_STRIDE
        self.moves.blank()
        self.pilot.blank()
        for kind in (RowsRefreshed, FindLeap):
            self.works.drop(kind)
        self._begin_epoch()

    # -- going on later -------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        by_survey = {name: [[survey, kept] for survey, kept in getattr(self, name).items()] for name in _BY_SURVEY}
        return super().snapshot() | by_survey

    def restore(self, state: Mapping[str, Any]) -> None:
        self._begin_epoch()
        super().restore(state)
        self.held = ShareAsked(*state["held"]) if state["held"] is not None else None
        self.history = [Certified(*fields) for fields in state["history"]]
