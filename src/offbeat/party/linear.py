"""What every party of a linear vertical method does, whatever the method: agree on keys, answer sums, take part in
surveys, begin, be lost, come back, halt. A method adds its own *role*: what to ask, and what to do with a product.

Messages arrive once and in order (`runtime/delivery.py` sees to that), so nothing here is asked for twice. Every
message of the training names its roster epoch: an older one is of no use any more, a newer one waits until this party
has heard of that roster.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offbeat.errors import BadJob, OutOfRange, UnexpectedEvent
from offbeat.learning.blocks import Block, finish_product
from offbeat.learning.sampling import Schedule
from offbeat.learning.steps import Steepness
from offbeat.party import lifecycle, masked_sum, smoothness, survey_messages
from offbeat.party.answers import Answers
from offbeat.party.contract import (
    END,
    Broadcast,
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
from offbeat.party.expected import expect, refuse
from offbeat.party.judge import Judge
from offbeat.party.lifecycle import LABELS_LOST_S, Lifecycle
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import CERTIFICATE, KINDS, POINTS, PROBES, PRODUCTS, SURVEY, MaskedSum, ShareAsked, Sum
from offbeat.party.memory import Memory, plain
from offbeat.party.problem import Problem
from offbeat.party.role import Role
from offbeat.party.roster import Roster
from offbeat.party.scalars import decode
from offbeat.party.stepper import LagCounts, Stepper
from offbeat.party.survey import FindLeap, Survey
from offbeat.party.survey_messages import Certified, Curved, GoOn, Leap, Mark, TablePart, Taken
from offbeat.party.tables import RowsRefreshed
from offbeat.party.works import Charged, Works

MESSAGES = (*masked_sum.MESSAGES, *survey_messages.MESSAGES, *lifecycle.MESSAGES)
TELLING = (lifecycle.Begin, Mark, Leap, GoOn, Certified)
"""What moves blocks, or decides how, and goes to everybody alike (tables: see `tables.py`)."""
Handler = Callable[[PartyName, Any], list[Effect]]
HELD_MOST = 4096
TIMES = 50
"""Over how many pieces of work a party takes the mean of its time for a row: one says little where times vary."""
TIME_UP, LABELS_LOST = 1, 2
"""Tokens of the timers."""


class LinearParty(Memory):
    """The machinery around one role."""

    KEPT = (
        *("measuring", "round_trip_s", "roster", "block", "sums", "lifecycle", "works", "survey", "stepper"),
        *("lags", "judge", "held", "waiting", "measured"),
    )

    def __init__(
        self,
        *,
        name: PartyName,
        names: tuple[PartyName, ...],
        active: tuple[PartyName, ...],
        block: Block,
        problem: Problem,
        options: LinearOptions,
        run: str,
        secret: bytes,
        seed: int,
    ) -> None:
        self.name, self.block, self.problem, self.options, self.seed = name, block, problem, options, seed
        self.roster = Roster(name, names, active)
        self.sums = MaskedSum(roster=self.roster, run=run, secret=secret, options=options.sums, outputs=problem.outputs)
        self.lifecycle = Lifecycle(self.roster, options.on_loss)
        self.works = Works(RowsRefreshed, FindLeap)
        self.survey = Survey(
            roster=self.roster, problem=problem, block=block, sums=self.sums, works=self.works, leaps=options.leap
        )
        self.survey.starts_at_zero = options.zero_start and options.method != "sgd"
        self.survey.tells_curvature &= options.method != "sgd"  # whose steps keep their metric
        self.survey.steps_at_marks = options.leap and options.method != "sgd"
        self.schedule: Schedule | None = None
        self.lags = LagCounts()
        self.round_trip_s = 0.0
        self.measuring = False
        self.measured: Steepness | None = None  # the chair
        self.stepper = Stepper(self)
        self.answers = Answers(self)
        self.judge = Judge(self)
        self.held: list[Received] = []  # of a roster that this party has not heard of yet
        self.waiting: list[tuple[PartyName, ShareAsked]] = []  # questions ahead of their time
        self.role: Role
        self.handle = self._handle_and_note if self.roster.holds_labels else self._handle
        self.telling: set[type] = set()  # the messages that digests are kept of
        self.in_turn: tuple[type, ...] = ()  # those of them that several label holders send, one after the other
        self._know_events()

    def _know_events(self) -> None:
        """What is done with each kind of message and event."""
        self.handlers: dict[type, Handler] = {  # of messages that name their epoch
            masked_sum.ShareAsked: self._on_asked,
            masked_sum.ShareGiven: self.on_given,
            masked_sum.PartialGiven: self._on_partial,
            lifecycle.Begin: self._on_begin,
            Mark: self._on_mark,
            Leap: self.survey.on_leap,
            Curved: self.survey.on_curved,
            TablePart: self.survey.on_table,
            Taken: self._on_taken,
            GoOn: self._on_go_on,
            Certified: self._on_certified,
        }
        self.without_epoch: dict[type, Handler] = {
            masked_sum.KeyOffered: self._on_key,
            lifecycle.Ready: self._on_ready,
            lifecycle.RosterNamed: self._on_roster,
            lifecycle.Alarm: self._on_alarm,
            lifecycle.Halt: self._on_halt,
        }
        self.other_events: dict[type, Callable[[Any], list[Effect]]] = {
            Started: self._on_started,
            Computed: self._on_computed,
            Woken: self._on_woken,
            PeerLost: self._on_lost,
            PeerBack: self._on_back,
        }

    def attach(
        self,
        role: Role,
        handlers: Mapping[type[Message], Handler],
        works: tuple[type, ...],
        tells: tuple[type[Message], ...] = (),
        in_turn: bool = False,
    ) -> None:
        """Give the party its role, and the role's own messages, kinds of work, and what it tells to move blocks.
        `in_turn`: label holders tell it one after the other."""
        self.telling = {*TELLING, *tells}
        self.in_turn = tells if in_turn and len(self.roster.active) > 1 else ()
        self.role = role
        self.works.know(*works)
        self.handlers.update(handlers)
        self.survey.is_stepping = role.is_stepping
        self.survey.step_along_mean = self.stepper.step_along_mean

    # -- events --------------------------------------------------------------------------------------------------

    def _handle_and_note(self, event: Event) -> list[Effect]:
        """A label holder keeps the digest of its own words too."""
        effects = self._handle(event)
        for effect in effects:
            if type(effect) is Broadcast:
                if type(effect.body) in self.telling:
                    self.sums.told.hear(self.name, effect.body, type(effect.body) in self.in_turn)
                    if type(effect.body) is Mark:
                        self._note_mark(self.name, effect.body.survey)
                    elif type(effect.body) is Certified:
                        self.sums.told.name_best(self.name, effect.body.best)
                elif type(effect.body) is lifecycle.Halt:
                    self.sums.told.end(self.name, effect.body.best)
        return effects

    def _note_mark(self, chair: PartyName, survey: int) -> None:
        self.sums.told.mark(chair, survey, self.survey.certifying or survey - 1)

    def note_question(self, asker: PartyName, kind: int, number: int, first: int) -> None:
        """A question has come: its answer is bound to what the asker had told by now."""
        if kind == PRODUCTS and asker == self.roster.chair and not self.survey.tables.arrived:
            refuse(asker, "a question before the table that it had announced")
        if self.sums.binds(kind):
            self.sums.told.note(asker, (kind, number, first))

    def _handle(self, event: Event) -> list[Effect]:
        try:
            if type(event) is Received:
                body = event.body
                handler = self.handlers.get(type(body))
                if handler is None:
                    return self._on_other(event)
                if body.epoch == self.roster.epoch:  # type: ignore[attr-defined]
                    if type(body) in self.telling:
                        self.sums.told.hear(event.sender, body, type(body) in self.in_turn)
                    return handler(event.sender, body)
                return self._of_another_epoch(event)
            return self.other_events[type(event)](event)
        except OutOfRange as problem:
            return [Observe("range", str(problem)), *self.alarm("range", f"{self.name}: {problem}")]

    def _on_other(self, event: Received) -> list[Effect]:
        handler = self.without_epoch.get(type(event.body))
        if handler is None or event.sender not in self.roster.everybody:
            raise UnexpectedEvent(
                f"{self.name} got {type(event.body).__name__} from {event.sender}, which has no place in this "
                "protocol. Are both sides running the same job?"
            )
        self.round_trip_s = max(self.round_trip_s, event.round_trip_s)
        return handler(event.sender, event.body)

    def _of_another_epoch(self, event: Received) -> list[Effect]:
        if event.body.epoch > self.roster.epoch and self.options.on_loss == "continue":  # type: ignore[attr-defined]
            expect(len(self.held) < HELD_MOST, event.sender, "more than can be kept, for a roster nobody has named")
            self.held.append(event)
        return []

    def _on_started(self, event: Started) -> list[Effect]:
        self.options.check_labels(self.problem, self.sums.limit, len(self.roster.names))
        self.stepper.choose_metric()
        return [*self.sums.offer_key(), *self._say_ready()]

    def _on_key(self, sender: PartyName, body: masked_sum.KeyOffered) -> list[Effect]:
        self.sums.take_key(sender, body)
        return [*self._say_ready(), *self._answer_waiting()]

    def _say_ready(self) -> list[Effect]:
        if not self.sums.ready or self.lifecycle.begun:
            return []
        if not self.roster.is_chair:
            return [Send(self.roster.chair, lifecycle.Ready())]
        return self._measure()

    def _on_ready(self, sender: PartyName, body: lifecycle.Ready) -> list[Effect]:
        self.lifecycle.ready.add(sender)
        return self._measure()

    # -- rows ----------------------------------------------------------------------------------------------------

    def rows_of(self, number: int) -> tuple[int, int]:
        """The schedule's block of rows with this number, as (start, stop)."""
        assert self.schedule is not None
        return self.schedule.block(number)

    def ask_products(self, number: int, start: int, stop: int) -> list[Effect]:
        """Ask everybody for the products of these rows with the model."""
        return self.sums.ask(PRODUCTS, 0, number, 0, self.problem.outputs * (stop - start), self.block.version)

    def expect_products(self, number: int, start: int, stop: int) -> None:
        """The same where the others need not be asked."""
        self.sums.expect(PRODUCTS, 0, number, self.problem.outputs * (stop - start), self.block.version)

    # -- beginning -----------------------------------------------------------------------------------------------

    def _measure(self) -> list[Effect]:
        """The chair: everybody is ready, so ask how steep the problem is, once; SVRG and SAGA begin with a survey,
        which at the zero start needs no sums and tells how long the parties take for a row."""
        waits = not (self.roster.is_chair and self.sums.ready and self.lifecycle.all_ready)
        if waits or self.lifecycle.begun or self.measuring:
            return []
        self.measuring = True
        if self.options.products is not None:  # nothing may be measured: the plan says it all
            plan, rows = self.options.products, self.problem.rows
            return [
                *self.lifecycle.begin(lifecycle.Begin(0, plan.step, rows, 0.0, 0.0, 2.0 * plan.steps)),
                *self._begun(),
            ]
        words = smoothness.length_of(self.block)
        ask = self.sums.ask(PROBES, 0, 0, words, words, self.block.version)
        return [*ask, *(self.judge.begin_survey() if self.options.method != "sgd" else [])]

    def _own_probes(self) -> np.ndarray:
        return smoothness.own_part(self.block, self.sums.joint_coin(), self.problem.loss.curvature, self.sums.scale)

    def _on_measured(self, done: Sum) -> list[Effect]:
        total = decode(done.words, self.sums.scale) + self._own_probes()
        found = smoothness.constants(total, self.block, self.sums.joint_coin(), self.sums.scale)
        penalised = found.smoothness + (self.problem.strength if found.plain else 0.0)
        self.measured = found._replace(smoothness=penalised)
        return self._begin()

    def _begin(self) -> list[Effect]:
        """The chair: when all is known, choose step and batch."""
        if self.measured is None or self.survey.under_way or self.lifecycle.begun:
            return []
        own = self.sums.own_seconds
        spread = max(self.survey.spread, float(self.problem.weights.max(initial=1.0)))
        self.measured = self.measured._replace(row_smoothness=spread * self.measured.row_smoothness)
        trip_rows = self.round_trip_s / own if own > 0.0 else 0.0
        eta, batch = self.options.choose(self.measured, self.problem.rows, trip_rows)
        constants = self.measured[:2] if self.options.step is None else (0.0, 0.0)
        if self.measured.smoothness > 0.0:
            self.survey.pilot.pace_most = max(1.0, 1.0 / (self.measured.smoothness * eta))
        spacing = self.options.spacing(self.measured, self.problem.rows, trip_rows)
        chosen = lifecycle.Begin(self.roster.epoch, eta, batch, *constants, spacing)
        return [*self.lifecycle.begin(chosen), *self._begun()]

    def _surveys_overlap(self) -> bool:
        """Nobody waits for a certificate where no steps lie between two surveys; rounds do."""
        return self.options.asynchronous and self.lifecycle.begun and self.lifecycle.spacing == 0.0

    def _on_begin(self, sender: PartyName, body: lifecycle.Begin) -> list[Effect]:
        return self._begun() if self.lifecycle.on_begin(sender, body) else []

    def _begun(self) -> list[Effect]:
        batch = min(self.lifecycle.batch, self.problem.rows)
        self.schedule = Schedule(self.problem.rows, batch, self.seed)
        self.sums.stride = batch * self.problem.outputs
        self.survey.overlaps = self._surveys_overlap()
        clock = Wake(self.options.seconds, TIME_UP)  # whoever takes the chair over needs it too
        if not self.roster.is_chair:
            return [clock, *self.role.begun(), *self._answer_waiting()]
        self.judge.due = self.role.passes() + self.lifecycle.spacing
        survey = self.judge.survey_if_due()
        return [clock, *self.role.begun(), *survey]

    # -- questions and answers -----------------------------------------------------------------------------------

    def _on_asked(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        if not 0 <= ask.kind < len(KINDS) or not self.sums.may_ask(asker, ask.kind):
            refuse(asker, f"a question of kind {ask.kind}, which is not its to ask")
        self.note_question(asker, ask.kind, ask.survey, ask.first)
        return self._answer(asker, ask)

    def _answer(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        early = ask.survey > self.survey.current or (ask.kind == PRODUCTS and self.schedule is None)
        if early or not self.sums.ready:
            return self._answer_later(asker, ask)
        self.sums.seen[asker] = ask.version
        if ask.kind == PRODUCTS:
            return self.role.asked(asker, ask.first)
        if ask.kind == PROBES:
            expect(not self.lifecycle.begun and (ask.survey, ask.first) == (0, 0), asker, "a probe after the beginning")
            return self.sums.answer_scalars(asker, ask, self._own_probes(), self.block.version)
        expect(ask.survey == self.survey.current, asker, f"a question about survey {ask.survey}, which is over")
        return self.answers.survey(asker, ask) if ask.kind == SURVEY else self.survey.answer_scalars(asker, ask)

    def _answer_later(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        """The question has overtaken the chair's word to begin, the work that a mark waits for, or the key of a party
        that was lost and is back."""
        marked = max(self.survey.current, self.survey.marked)
        expect(ask.survey <= marked, asker, f"a question about survey {ask.survey}, before its mark")
        expect(len(self.waiting) < HELD_MOST, asker, "more questions ahead of their time than can be kept")
        self.waiting.append((asker, ask))
        return []

    def _answer_waiting(self) -> list[Effect]:
        waiting, self.waiting = self.waiting, []
        effects: list[Effect] = []
        for asker, ask in waiting:
            effects += self._answer(asker, ask)
        return effects

    def _on_mark(self, sender: PartyName, body: Mark) -> list[Effect]:
        self._note_mark(sender, body.survey)
        self.sums.told.name_best(sender, body.keep)
        self.judge.look_ahead()
        self.survey.on_mark(sender, body)
        return self._answer_waiting()

    def after_work(self) -> list[Effect]:
        """What a mark put off is done now, if no step and no table is under way any more."""
        if self.survey.marked <= self.survey.current or self.survey.is_working():
            return []
        self.survey.freeze_as_marked()
        return self._answer_waiting()

    def on_given(self, sender: PartyName, body: masked_sum.ShareGiven) -> list[Effect]:
        done = self.sums.collect(sender, body)
        if done is None:
            return []
        return self.role.product(done) if done.kind == PRODUCTS else self._summed(done)

    def _on_partial(self, sender: PartyName, body: masked_sum.PartialGiven) -> list[Effect]:
        expect(self.sums.trees is not None, sender, "a sum over a tree, where there is none")
        effects, done = self.sums.collect_partial(sender, body)
        if done is None:
            return effects
        return [*effects, *(self.role.product(done) if done.kind == PRODUCTS else self._summed(done))]

    def _summed(self, done: Sum) -> list[Effect]:
        if done.kind == SURVEY:
            return self.survey.on_products_summed(done)
        if done.kind == POINTS:
            return self.survey.on_inner_products(done)
        if done.kind == PROBES:
            return self._on_measured(done)
        assert done.kind == CERTIFICATE
        self.survey.others = decode(done.words, self.sums.scale)
        return self._certify()

    def _certify(self) -> list[Effect]:
        """The chair: when everything is here, say how good the model is, and judge it."""
        certified = self.survey.certify()
        if certified is None:
            return []
        effects, news = certified
        seen = {"snapshot": news.survey, "objective": news.objective, "gradient_norm": news.gradient_norm}
        seen |= {"gap": news.gap, "passes": self.judge.marked_passes}
        following = self.judge.judge(news) if self.lifecycle.begun else self._begin()
        return [*effects, Observe("certificate", seen), *following, *self.survey.find()]

    def finish_product(self, done: Sum, start: int, stop: int, own: np.ndarray | None = None) -> np.ndarray:
        """At a label holder: the derivatives, from the others' total and the own share, taken now where not given."""
        own = self.block.share(start, stop) if own is None else own
        return self.finish(done.words, own, start, self.sums.scale)[1]

    def finish(self, words: np.ndarray, own: np.ndarray, start: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """At a label holder: products and derivatives of these rows, from words and the own share."""
        problem = self.problem
        assert problem.labels is not None
        known = self._curvature_of(slice(start, start + len(own))) if problem.loss.grows else None
        return finish_product(words, own, start, problem.labels, problem.loss, scale, problem.weights, known)

    def _curvature_of(self, rows: slice) -> np.ndarray | None:
        """Of one output, where these rows' derivatives in the table were taken; None before there are any."""
        told, tells = self.survey.tables.second, self.problem.loss.second_from_derivative
        if told is not None:
            return np.ascontiguousarray(told[0, rows])
        return tells(self.block.table[0, rows]) if tells is not None else None

    def _on_computed(self, event: Computed) -> list[Effect]:
        work = self.works.end(event.ticket)
        if work is None or type(work) is Charged or self.lifecycle.halted:  # the model that is kept moves no more
            return []
        if type(work) is RowsRefreshed:
            return self._on_refreshed(work, event.seconds)
        if type(work) is FindLeap:
            return self.survey.on_find(work)
        return self.role.worked(work, event)

    def note_seconds(self, seconds: float, rows: float) -> None:
        """How long this party takes for a row, a product and a step, which are half of it each: the mean of late."""
        if seconds > 0.0:
            self.sums.timed = min(self.sums.timed + 1, TIMES)
            self.sums.own_seconds += (seconds / rows - self.sums.own_seconds) / self.sums.timed

    # -- the table of a survey -----------------------------------------------------------------------------------

    def _on_refreshed(self, work: RowsRefreshed, seconds: float) -> list[Effect]:
        tables = self.survey.tables
        if not tables.done(work):
            return []
        self.note_seconds(seconds, (tables.pieces[work.start][0] - work.start) / 2)
        if not tables.working:
            self._take_all()
        waited, late = self.survey.under_way, self.survey.is_late(self.name)
        effects = [*self.survey.on_refreshed(), *tables.work(), *self.after_work()]
        if late and not tables.working:
            effects += self.role.resume()
        certified = self._certify()
        if waited and not self.survey.under_way and self.roster.is_chair and not certified:
            return self._going_on(effects)
        return [*effects, *(certified or (self.judge.survey_if_due() if self.survey.has_leapt else []))]

    def _take_all(self) -> None:
        """All rows are refreshed from the newest table: steps follow the curvature there."""
        if self.options.method != "sgd":
            self.stepper.follow_curvature()

    def _on_taken(self, sender: PartyName, body: Taken) -> list[Effect]:
        return self._going_on(self.survey.note_taken(sender, body))

    def _going_on(self, effects: list[Effect]) -> list[Effect]:
        """The chair: where all but the late are done with a survey, begin the next one or go on."""
        if not self.survey.under_way and self.lifecycle.begun:
            return [*effects, *(self.judge.survey_if_due() or self.role.resume())]
        return effects

    def _on_go_on(self, sender: PartyName, body: GoOn) -> list[Effect]:
        self.survey.on_go_on(sender, body)
        return self.role.resume()

    def _on_certified(self, sender: PartyName, body: Certified) -> list[Effect]:
        self.survey.on_certified(sender, body)
        self.sums.told.name_best(sender, body.best)
        return self.role.resume() if self.lifecycle.begun else []

    # -- the roster ----------------------------------------------------------------------------------------------

    def _on_lost(self, event: PeerLost) -> list[Effect]:
        renames, ends = self.lifecycle.on_lost(event.peer)
        effects: list[Effect] = [Observe("lost", event.peer)]
        if ends:
            return [*effects, *(self.end("peer-lost", ends) if self.roster.is_chair else self._end_alone(ends))]
        if self.lifecycle.without_labels:
            return [*effects, Wake(LABELS_LOST_S, LABELS_LOST)]
        return [*effects, *self.lifecycle.name_roster(), *self._enter_roster()] if renames else effects

    def _on_back(self, event: PeerBack) -> list[Effect]:
        effects: list[Effect] = [Observe("back", event.peer)]
        if not self.lifecycle.on_back(event.peer):
            return effects
        return [*effects, *self.lifecycle.name_roster(), *self._enter_roster()]

    def _on_roster(self, sender: PartyName, body: lifecycle.RosterNamed) -> list[Effect]:
        before = self.roster.snapshot()
        if not self.lifecycle.on_roster(sender, body):
            return []
        try:
            self.options.sums.check_roster(len(self.roster.names))
        except BadJob as problem:
            self.roster.restore(before)  # no question of such a roster is answered
            return [Send(sender, lifecycle.Alarm("peer-lost", f"too few parties are left to hide a share: {problem}"))]
        return self._enter_roster()

    def _enter_roster(self) -> list[Effect]:
        """Every open question is void: its masks belonged to the old roster."""
        try:
            self.sums.enter_epoch()
        except BadJob as problem:
            return self.alarm("peer-lost", f"too few parties are left to hide a share: {problem}")
        self.survey.enter_epoch()
        self.waiting = []
        self.stepper.move_constant(np.full(self.problem.outputs, self.problem.loss.curvature))
        effects: list[Effect] = []
        self.measuring, self.measured = False, None
        if self.lifecycle.begun:
            effects = self.role.rostered()
            if self.roster.is_chair and (self.judge.closing or self.options.method != "sgd"):
                effects += self.judge.begin_survey()
        else:
            effects = self._say_ready()
        held, self.held = self.held, []
        for event in held:
            effects += self._handle(event)
        return effects

    # -- ending --------------------------------------------------------------------------------------------------

    def _on_woken(self, event: Woken) -> list[Effect]:
        if self.lifecycle.halted:
            return []
        if event.token == END:
            return self.alarm("stopped", f"stopped by the owner of '{self.name}'")
        if event.token == TIME_UP:
            self.judge.time_up = True  # synchronous rounds look after each round
            return self.judge.survey_if_due() if self.lifecycle.begun and self.options.asynchronous else []
        if event.token == LABELS_LOST and self.lifecycle.without_labels:
            return self._end_alone("every party with labels was lost")
        return []

    def _end_alone(self, reason: str) -> list[Effect]:
        """Nobody is left who could end the run for all; everybody knows which model is the best so far."""
        self._keep(self.survey.best)
        self.sums.told.end("", self.survey.best)
        return self.lifecycle.over("peer-lost", reason, self.survey.best)

    def _on_alarm(self, sender: PartyName, body: lifecycle.Alarm) -> list[Effect]:
        return self.end(body.verdict, body.reason) if self.roster.is_chair else []

    def _on_halt(self, sender: PartyName, body: lifecycle.Halt) -> list[Effect]:
        expect(sender in self.roster.active and body.best >= -1, sender, f"the word to keep survey {body.best}")
        if self.lifecycle.halted:
            return []
        self._keep(body.best)
        self.sums.told.end(sender, body.best)
        return self.lifecycle.over(body.verdict, body.reason, body.best)

    def alarm(self, verdict: str, reason: str) -> list[Effect]:
        """This party cannot go on."""
        return self.end(verdict, reason) if self.roster.is_chair else self.lifecycle.alarm(verdict, reason)

    def diverged(self) -> list[Effect]:
        return self.alarm("diverged", "a product is no longer finite; use a smaller step")

    def end(self, verdict: str, reason: str) -> list[Effect]:
        if self.lifecycle.halted:
            return []
        best = self.judge.best_worth_keeping()
        self._keep(best)
        return self.lifecycle.end(verdict, reason, best)

    def _keep(self, best: int) -> None:
        """The model that is kept is the best one that was certified; before any, the zero start."""
        weights = self.survey.points.get(best)
        self.block.set_weights(
            weights if weights is not None else np.zeros((self.problem.outputs, self.block.width + 1))
        )

    # -- going on later ------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        held = [[event.sender, type(event.body).__name__, plain(event.body)] for event in self.held]
        return {**super().snapshot(), "held": held, "shared": self.answers.shared}

    def restore(self, state: State) -> None:
        super().restore(state)
        if self.lifecycle.begun:
            self.schedule = Schedule(self.problem.rows, min(self.lifecycle.batch, self.problem.rows), self.seed)
        self.survey.overlaps = self._surveys_overlap()
        self.answers.shared = state["shared"]
        kinds = {kind.__name__: kind for kind in self.handlers}
        self.held = [Received(sender, kinds[kind](*fields)) for sender, kind, fields in state["held"]]
        self.waiting = [(asker, ShareAsked(*fields)) for asker, fields in state["waiting"]]
        self.measured = Steepness(*state["measured"]) if state["measured"] else None
