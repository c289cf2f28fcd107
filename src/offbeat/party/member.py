"""What every party of a linear vertical method does, whatever the method: agree on keys, answer sums, take part in
surveys, begin, be lost, come back, halt. A method adds its own *role*: what to ask, and what to do with a product.

The member turns each event into calls on its four sub-machines (`MaskedSum`, `Survey`, `Conduct`, `Pending`) and on
the role's hooks; it owns no mathematics.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import floor, isfinite, log2, log10
from typing import Any, Protocol

import numpy as np

from offbeat.errors import BadJob, OutOfRange, UnexpectedEvent
from offbeat.learning.blocks import Block
from offbeat.learning.losses import DEBIASED_LOGISTIC, SQUARED
from offbeat.learning.steps import default_batch, default_step
from offbeat.party import conduct, masked_sum, sounding, survey
from offbeat.party.conduct import Conduct
from offbeat.party.contract import (
    END,
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
    Started,
    State,
    Wake,
    Woken,
)
from offbeat.party.expected import expect
from offbeat.party.masked_sum import CURRENT, MaskedSum, Sum, SumOptions
from offbeat.party.pending import Pending
from offbeat.party.shares import NORMS, BlockShares, scalars_of
from offbeat.party.sounding import Probe, Sounding
from offbeat.party.survey import Certified, Problem, Survey

MESSAGES = (*masked_sum.MESSAGES, *sounding.MESSAGES, *survey.MESSAGES, *conduct.MESSAGES)
METHODS = ("sgd", "svrg", "saga")
DIVERGED_FACTOR = 10.0
FRACTION_BITS_LEAST = 16  # fewer would round products too coarsely to be worth advising
ROOM_FOR_LABELS = 16.0  # one party's part of a product may be larger than the product
SILENCE_MAX = 240
"""Whoever does not wait for lost parties ends after so many patrols in which nothing came: they may have ended without
it while it was away."""


@dataclass(frozen=True)
class LinearOptions:
    """Options shared by the linear vertical methods. `None` means: choose from the smoothness constants."""

    method: str = "svrg"
    passes: float = 60.0
    target: float | None = None  # stop when the certificate is at or below
    step: float | None = None
    batch: int | None = None
    batch_least: int = 64
    in_flight: int = 1
    lag: float | None = None  # how many versions old a product is expected to be; None: the method knows
    snapshot_passes: float = 1.0  # SVRG: from the end of one survey to the next
    certify_passes: float = 3.0  # SGD, SAGA: the same
    by_curvature: bool = False  # SVRG, SAGA: divide each coordinate's steps by its curvature
    zero_start: bool = True  # all parties' blocks; SVRG's first table then needs no sums
    lag_max: int = 0  # products that are older are not used; 0: any
    patience_s: float = 1.0  # after twice this, an answer is late
    on_loss: str = "wait"
    sums: SumOptions = field(default_factory=SumOptions)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise BadJob(f"method must be one of {', '.join(METHODS)}; got {self.method!r}.")
        for name in ("passes", "snapshot_passes", "certify_passes", "patience_s"):
            if not getattr(self, name) > 0:
                raise BadJob(f"{name} must be above 0; got {getattr(self, name)}.")
        if self.step is not None and not self.step > 0:
            raise BadJob(f"step must be above 0, or left out to be chosen; got {self.step}.")
        if self.by_curvature and self.method == "sgd":
            raise BadJob(
                "by_curvature needs SVRG or SAGA, whose steps keep their length; got sgd, whose steps decay. Use "
                "another method or leave by_curvature out."
            )
        if self.in_flight < 1 or (self.batch is not None and self.batch < 1):
            raise BadJob(f"in_flight and batch must be at least 1; got {self.in_flight} and {self.batch}.")

    @property
    def survey_passes(self) -> float:
        return self.snapshot_passes if self.method == "svrg" else self.certify_passes

    def expecting(self, lag: float) -> "LinearOptions":
        """The same options, with the lag filled in where the user left it open."""
        return self if self.lag is not None else replace(self, lag=lag)

    def choose(self, smoothness: float, row_smoothness: float, rows: int) -> tuple[float, int]:
        """Step size and batch, where the user left them open."""
        batch = self.batch or default_batch(smoothness, row_smoothness, self.batch_least)
        batch = min(batch, rows)
        eta = self.step or default_step(self.method, smoothness, row_smoothness, batch, rows, self.lag or 0.0)
        return eta, batch


class Role(Protocol):
    """What a method adds to a member."""

    def begun(self) -> list[Effect]:
        """Step size and batch are known; training may start."""

    def surveyed(self) -> list[Effect]:
        """This party's table and gradient block of the current survey are complete."""

    def product(self, done: Sum) -> list[Effect]:
        """A sum at the current blocks is known."""

    def worked(self, kind: str, payload: Any, result: Any) -> list[Effect]:
        """Work that the role had asked for has been done."""

    def abandoned(self, lost: Sum) -> list[Effect]:
        """A sum of the role's was given up."""

    def certified(self, news: Certified) -> list[Effect]:
        """The chair alone: a survey is over."""

    def rostered(self) -> list[Effect]:
        """There is a new roster epoch; every open sum was given up."""

    def resumed(self) -> list[Effect]:
        """The party came back from a snapshot."""

    def patrolled(self) -> list[Effect]:
        """Time has gone by: say again what was lost."""

    def passes(self) -> float:
        """How many passes the run has made, as this party knows it."""


class Member:
    """The machinery around one role."""

    def __init__(
        self,
        *,
        name: PartyName,
        roster: tuple[PartyName, ...],
        active: tuple[PartyName, ...],
        block: Block,
        problem: Problem,
        options: LinearOptions,
        run: str,
        secret: bytes,
        rng: np.random.Generator,
    ) -> None:
        self.name, self.block, self.problem, self.options = name, block, problem, options
        self.peers = frozenset(roster) - {name}
        self.shares = BlockShares(block)
        self.pending = Pending()
        self.sums = MaskedSum(me=name, roster=roster, run=run, secret=secret, options=options.sums, source=self.shares)
        self.sounding = Sounding(shares=self.shares, sums=self.sums, curvature=problem.loss.curvature, rng=rng)
        self.conduct = Conduct(me=name, roster=roster, active=active, on_loss=options.on_loss)
        self.survey = Survey(
            me=name,
            chair=self.conduct.chair,
            roster=roster,
            active=active,
            problem=problem,
            shares=self.shares,
            sums=self.sums,
            pending=self.pending,
            zero_start=options.method == "svrg" and options.zero_start,
            largest_scalar=self._largest_scalar,
        )
        self.lags, self.lag_sum, self.lag_max = [0] * 40, 0, 0
        self.sounding_begun = self.closing = False
        self.survey_due = 0.0
        self.silence = 0  # patrols since anything was heard
        self.marked_passes = 0.0  # how far the run was when the current survey froze it
        self.final = False  # the current survey was begun to end the run
        self.start_objective = self._objective_at_zero()
        self.role: Role
        self.handlers: dict[type, Callable[[PartyName, Any], list[Effect]]] = {
            masked_sum.KeyOffered: self._on_key,
            masked_sum.ShareAsked: self.sums.answer,
            masked_sum.ShareGiven: self._on_given,
            masked_sum.PartialGiven: self._on_partial,
            Probe: self.sounding.on_probe,
            survey.Mark: self.survey.on_mark,
            survey.Marked: self.survey.on_marked,
            survey.Go: self.survey.on_go,
            survey.Table: self.survey.on_table,
            survey.TableWanted: self.survey.on_table_wanted,
            survey.Ready: self.survey.on_ready,
            survey.Certified: self.survey.on_certified,
            conduct.Begin: self._on_begin,
            conduct.Begun: lambda sender, _: self.conduct.on_acknowledged("begin", sender),
            conduct.Roster: self._on_roster,
            conduct.Rostered: self._on_rostered,
            conduct.Alarm: self._on_alarm,
            conduct.Halt: self._on_halt,
            conduct.Halted: lambda sender, _: self.conduct.on_acknowledged("halt", sender),
        }
        self.other_events: dict[type, Callable[[Any], list[Effect]]] = {
            Started: self._on_started,
            Computed: self._on_computed,
            Woken: self._on_woken,
            PeerLost: self._on_lost,
            PeerBack: self._on_back,
        }

    def attach(self, role: Role, handlers: Mapping[type[Message], Callable[[PartyName, Any], list[Effect]]]) -> None:
        """Give the member its role and the role's own messages."""
        self.role = role
        self.handlers.update(handlers)

    def handle(self, event: Event) -> list[Effect]:
        try:
            if type(event) is Received:
                self.silence = 0
                sender, body = event.sender, event.body
                handler = self.handlers.get(type(body))
                if handler is None or sender not in self.peers:
                    raise UnexpectedEvent(
                        f"{self.name} got {type(body).__name__} from {sender}, which has no place in this protocol. "
                        "Are both sides running the same job?"
                    )
                return handler(sender, body)
            return self.other_events[type(event)](event)
        except OutOfRange as problem:
            again: list[Effect] = [Wake(self.options.patience_s)] if isinstance(event, Started | Woken) else []
            return [*again, Observe("range", str(problem)), *self._out_of_range(problem)]

    def _out_of_range(self, problem: OutOfRange) -> list[Effect]:
        """Shares that fitted at first and no longer do have grown: that is divergence, not scale."""
        if self.block.version > 0:
            grown = (
                f"{self.name}'s shares grew out of the fixed-point range of +-{self.sums.limit:.3g}; {self._remedy()}"
            )
            return self._alarm("diverged", f"{grown}. Where the numbers are meant to be so large, lower fraction_bits")
        return self._alarm("range", f"{self.name}: {problem}")

    def _remedy(self) -> str:
        if self.problem.loss is DEBIASED_LOGISTIC:
            return (
                "label_dp_epsilon is so small that random answers drown the labels, and their correction makes every "
                "step a large one; use a larger epsilon (2 to 3 costs little accuracy), or a smaller step"
            )
        return "use a smaller step"

    def _check_labels_fit(self) -> None:
        """The products are to reach the labels: where those do not fit, no step size helps."""
        labels, limit = self.problem.labels, self.sums.limit
        if labels is None or self.problem.loss is not SQUARED or not np.abs(labels).max() >= limit:
            return
        largest = float(np.abs(labels).max())
        bits = floor(63 - log2(ROOM_FOR_LABELS * largest * (len(self.peers) + 1)))
        fewer = f", or set fraction_bits to {bits} or less: each bit less doubles the range and halves the precision"
        raise OutOfRange(
            f"The label's numbers are too large: sums over the parties hold numbers below {limit:.3g} only. Divide the "
            f"label by {10.0 ** floor(log10(largest)):.0e}, say{fewer if bits >= FRACTION_BITS_LEAST else ''}."
        )

    def _largest_scalar(self, loss: float) -> float:
        """About how large the certificate's scalars can be. A squared gradient is at most 2 L f; a penalty at most
        f / strength, and hardly above f / (L / 10), since moving the weights has used up f."""
        smoothness = self.conduct.smoothness or self.sounding.smoothness or 1.0 / (self.conduct.eta or 1.0)
        if self.options.by_curvature:  # measured where all curvatures are about 1
            smoothness = max(smoothness, 100.0)
        return max(loss, self.start_objective) * max(
            2.0 * smoothness, 1.0 / max(self.problem.strength, 0.1 * smoothness)
        )

    # -- events --------------------------------------------------------------------------------------------------

    def _on_started(self, event: Started) -> list[Effect]:
        if not self.conduct.begun:
            self._check_labels_fit()
            if self.options.by_curvature:
                self.block.step_by_curvature(np.full(self.problem.rows, self.problem.loss.curvature))
            self.sounding.offer()
        effects: list[Effect] = [Wake(self.options.patience_s), *self.sums.offer_key()]
        effects += self._sound()  # also when resumed: the party may have gone down before it ever started
        return [*effects, *self.pending.again(), *self.role.resumed()] if event.resumed else effects

    def _sound(self) -> list[Effect]:
        if not (self.conduct.presides and self.sums.ready) or self.sounding_begun or self.conduct.begun:
            return []
        self.sounding_begun = True
        return self.sounding.begin()

    def _on_key(self, sender: PartyName, body: masked_sum.KeyOffered) -> list[Effect]:
        return [*self.sums.take_key(sender, body), *self._sound()]

    def _on_given(self, sender: PartyName, body: masked_sum.ShareGiven) -> list[Effect]:
        done = self.sums.collect(sender, body)
        return self._summed(done) if done is not None else []

    def _on_partial(self, sender: PartyName, body: masked_sum.PartialGiven) -> list[Effect]:
        effects, done = self.sums.collect_partial(sender, body)
        return [*effects, *self._summed(done)] if done is not None else effects

    def _summed(self, done: Sum) -> list[Effect]:
        if done.point == CURRENT:
            return self.role.product(done)
        if done.point >= 0:
            return self.survey.on_chunk(done)
        if done.point == NORMS or done.point % 2 == 0:
            return self._sounded(done)
        effects, news = self.survey.on_scalars(done)
        return [*effects, Observe("certificate", _plain(news, self.marked_passes)), *self.judge(news)]

    def _sounded(self, done: Sum) -> list[Effect]:
        if self.conduct.begun:
            return []
        effects, known = self.sounding.on_sum(done)
        if not known:
            return effects
        penalised = self.problem.strength
        if self.options.by_curvature and penalised > 0.0:
            penalised = 1.0  # it was divided by itself and more
        smoothness, row_smoothness = self.sounding.smoothness + penalised, self.sounding.row_smoothness
        eta, batch = self.options.choose(smoothness, row_smoothness, self.problem.rows)
        constants = (smoothness, row_smoothness) if self.options.step is None else (0.0, 0.0)
        return [*effects, *self.conduct.begin(eta, batch, *constants), *self._begun()]

    def _on_begin(self, sender: PartyName, body: conduct.Begin) -> list[Effect]:
        effects, first = self.conduct.on_begin(sender, body)
        return [*effects, *self._begun()] if first else effects

    def _begun(self) -> list[Effect]:
        """SVRG cannot step before its first table, which at the zero start needs no sums."""
        effects = self.role.begun()
        if self.conduct.presides and self.options.method == "svrg":
            return [*effects, *self.begin_survey()]
        self.survey_due = self.options.survey_passes
        return effects

    def _on_computed(self, event: Computed) -> list[Effect]:
        taken = self.pending.take(event.ticket)
        if taken is None or self.conduct.halt is not None:  # the model that is kept moves no more
            return []
        kind, payload = taken
        if kind != "table":
            return self.role.worked(kind, payload, event.result)
        before = self.survey.complete
        effects = self.survey.on_added(*payload)
        return [*self.role.surveyed(), *effects] if self.survey.complete and not before else effects

    def _on_woken(self, event: Woken) -> list[Effect]:
        if event.token == END:
            halted = self.conduct.halt is not None
            return [] if halted else self._alarm("stopped", f"stopped by the owner of '{self.name}'")
        if self.conduct.halt is not None:
            return [Wake(self.options.patience_s), *self.conduct.patrol(self.survey.best)]
        self.silence += 1
        if self.silence > SILENCE_MAX and self.options.on_loss != "wait":
            self._keep_best(self.survey.best)
            return [Finish("peer-lost", "nobody was heard of any more: the others have ended, or cannot be reached")]
        effects, given_up = self.sums.patrol()
        for lost in given_up:
            effects += self._given_up(lost)
        if self.sounding_begun and not self.conduct.begun:
            effects += self.sounding.say_again()
        effects += self.survey.patrol()
        effects += self._kept_best(self.conduct.patrol(self.survey.best))
        effects += self.role.patrolled()
        return [Wake(self.options.patience_s), *effects]

    def _given_up(self, lost: Sum) -> list[Effect]:
        if lost.point == CURRENT:
            return self.role.abandoned(lost)
        if lost.point == scalars_of(self.survey.current) or lost.point >= 0:
            return self.survey.on_abandoned(lost)
        return [] if self.conduct.begun else self.sounding.ask_again()

    def _on_alarm(self, sender: PartyName, body: conduct.Alarm) -> list[Effect]:
        return self._end(body.verdict, body.reason) if self.conduct.presides else []  # it will reach the chair yet

    def _on_halt(self, sender: PartyName, body: conduct.Halt) -> list[Effect]:
        expect(body.best >= -1, sender, f"the snapshot {body.best} to be kept")
        self._keep_best(body.best)
        return self.conduct.on_halt(sender, body)

    # -- the roster ----------------------------------------------------------------------------------------------

    def _on_lost(self, event: PeerLost) -> list[Effect]:
        effects, changed = self.conduct.on_lost(event.peer, self.survey.best)
        return [*effects, *self._enter_roster()] if changed else self._kept_best(effects)

    def _on_back(self, event: PeerBack) -> list[Effect]:
        effects, changed = self.conduct.on_back(event.peer)
        return [*effects, *self._enter_roster()] if changed else effects

    def _on_roster(self, sender: PartyName, body: conduct.Roster) -> list[Effect]:
        effects, news = self.conduct.on_roster(sender, body)
        return [*effects, *self._enter_roster()] if news else effects

    def _on_rostered(self, sender: PartyName, body: conduct.Rostered) -> list[Effect]:
        if body.epoch == self.conduct.epoch:
            self.conduct.on_acknowledged("roster", sender)
        return []

    def _enter_roster(self) -> list[Effect]:
        """Every open sum is void: its masks belonged to the old roster."""
        try:
            self.sums.enter_epoch(self.conduct.epoch, self.conduct.roster)
        except BadJob as problem:
            return self._alarm("peer-lost", f"too few parties are left to hide a share: {problem}")
        self.survey.enter_epoch(self.conduct.epoch, self.conduct.roster, self.conduct.chair)
        self.sounding_begun = False
        if not self.conduct.begun:
            return self._sound()
        effects = self.role.rostered()
        if self.conduct.presides and (self.closing or self.options.method == "svrg"):
            return [*effects, *self.begin_survey()]
        return effects

    # -- judging -------------------------------------------------------------------------------------------------

    def survey_if_due(self) -> list[Effect]:
        """The chair, after a step: is it time to look how good the model is, or to end?"""
        if not self.conduct.presides or self.conduct.halt is not None or self.closing:
            return []
        passes = self.role.passes()
        self.closing = passes >= self.options.passes
        due = self.closing or passes >= self.survey_due
        return self.begin_survey() if due and not self.survey.under_way else []

    def begin_survey(self) -> list[Effect]:
        """The chair: look how good the model is, at the point the run has come to."""
        effects = self.survey.begin()
        self.final = self.closing
        self.marked_passes = self.role.passes()
        return effects

    def judge(self, news: Certified) -> list[Effect]:
        """The chair: a survey is over. End, or go on."""
        self.survey_due = self.role.passes() + self.options.survey_passes
        certificate = news.certificate
        target = self.options.target
        if not isfinite(news.objective) or news.objective > DIVERGED_FACTOR * self.start_objective:
            return self._end("diverged", f"the objective rose beyond ten times its start; {self._remedy()}")
        if target is not None and certificate <= target:
            return self._end("target", f"the certificate {certificate:.3g} is at or below the target {target:g}")
        if not self.closing:
            return self.role.certified(news)
        if self.role.passes() < self.options.passes:
            self.closing = False
            return self.role.certified(news)
        if not self.final:  # this survey had begun before the last pass was over
            return self.begin_survey()
        return self._end("passes", self._passes_reason(news))

    def _passes_reason(self, last: Certified) -> str:
        """The certificate is that of the model that is kept, as it is in the record."""
        best = self._best_worth_keeping()
        certificate = next((news for news in self.survey.history if news.snapshot == best), last).certificate
        reason = f"{self.options.passes:g} passes were made; the certificate is {certificate:.3g}"
        return f"{reason}, above the target {self.options.target:g}" if self.options.target is not None else reason

    def _end(self, verdict: str, reason: str) -> list[Effect]:
        if self.conduct.halt is not None:
            return []
        best = self._best_worth_keeping()
        self._keep_best(best)
        return self.conduct.end(verdict, reason, best)

    def _best_worth_keeping(self) -> int:
        """The best certified snapshot; none (the zero start) where even that one is worse than the start."""
        best = [news for news in self.survey.history if news.snapshot == self.survey.best]
        return self.survey.best if best and best[-1].objective <= self.start_objective * (1 + 1e-9) else -1

    def _alarm(self, verdict: str, reason: str) -> list[Effect]:
        if self.conduct.presides:
            return self._end(verdict, reason)
        return self.conduct.alarm(verdict, reason, self.survey.best)

    def alarm(self, verdict: str, reason: str) -> list[Effect]:
        """This party cannot go on."""
        return self._alarm(verdict, reason)

    def _kept_best(self, effects: list[Effect]) -> list[Effect]:
        if any(isinstance(effect, Finish) for effect in effects) or self.conduct.halt is not None:
            self._keep_best(self.survey.best)
        return effects

    def _keep_best(self, best: int) -> None:
        """The model that is kept is the best one that was certified; before any, the zero start."""
        weights = self.shares.points.get(best)
        self.block.set_weights(weights if weights is not None else np.zeros(self.block.width))

    def _objective_at_zero(self) -> float:
        labels = self.problem.labels
        return float(self.problem.loss.value(np.zeros(len(labels)), labels).mean()) if labels is not None else 0.0

    def count_lag(self, lag: int) -> None:
        self.lags[min(lag.bit_length(), 39)] += 1
        self.lag_sum += lag
        if lag > self.lag_max:
            self.lag_max = lag

    # -- going on later ------------------------------------------------------------------------------------------

    _PLAIN = ("lag_sum", "lag_max", "sounding_begun", "closing", "final", "survey_due", "marked_passes", "silence")
    _PARTS = ("block", "shares", "pending", "sums", "sounding", "conduct", "survey")

    def snapshot(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self._PLAIN}
        parts = {name: getattr(self, name).snapshot() for name in self._PARTS}
        return {**plain, **parts, "lags": list(self.lags)}

    def restore(self, state: State) -> None:
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.lags = list(state["lags"])
        for name in self._PARTS:
            getattr(self, name).restore(state[name])


def _plain(news: Certified, passes: float) -> dict[str, float]:
    return {
        "snapshot": news.snapshot,
        "objective": news.objective,
        "gradient_norm": news.gradient_norm,
        "gap": news.gap,
        "passes": passes,
    }
