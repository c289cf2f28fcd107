"""When to look how good the model is, whom that look waits for, and when a run ends.

All of it is the chair's; the other parties keep the same numbers for the case that they take the chair over.
"""

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from offbeat.party.contract import Effect, PartyName
from offbeat.party.linear_options import remedy
from offbeat.party.memory import Memory
from offbeat.party.survey_messages import Certified

if TYPE_CHECKING:
    from offbeat.party.linear import LinearParty

DIVERGED_FACTOR = 10.0
WAITING_WORTH = 2.0
"""A party is slow where it takes this many times as long as the chair from one survey to the next."""
PRINTED_WORTH = 1.05
"""The same for the methods as printed, without leaps: they wait for nobody who is slower."""


class Judge(Memory):
    """The judgement of one party's runs."""

    KEPT = ("closing", "time_up", "final", "slow", "due", "marked_passes")

    def __init__(self, party: "LinearParty") -> None:
        self.party, self.options = party, party.options
        self.closing = self.time_up = False
        self.final = False  # the current survey was begun to end the run
        self.slow = 0  # who is slow, as bits by place
        self.due = self.marked_passes = 0.0  # in passes of steps; in all passes
        self.start_objective = self._objective_at_zero()

    def survey_if_due(self) -> list[Effect]:
        """The chair, after a step or a table: is it time to look how good the model is, or to end?"""
        return self.begin_survey() if self.survey_is_due() else []

    def survey_is_due(self, ahead: float = 0.0) -> bool:
        """The chair; `ahead`: after so many passes more than were made."""
        survey = self.party.survey
        if not self.party.roster.is_chair or self.party.lifecycle.halted or self.closing:
            return False
        overlaps = survey.has_leapt and not survey.tables.working and self.slow == 0
        if (survey.under_way and not overlaps) or survey.has_enough:
            return False
        self.closing = self._over(self.passes() + ahead) and (overlaps or not survey.certifying)
        return self.closing or self.party.role.passes() + ahead >= self.due

    def passes(self) -> float:
        """How often everybody has gone through the rows: by steps, and by surveys that are certified."""
        return self.party.role.passes() + len(self.party.survey.history)

    def _over(self, passes: float) -> bool:
        """Passes and seconds, whichever is later."""
        return passes >= self.options.passes and self.time_up

    def begin_survey(self) -> list[Effect]:
        """The chair: look how good the model is, at the point the run has come to."""
        self.final = self.closing
        self.marked_passes = self.passes()
        self.look_ahead()
        return self.party.survey.begin(0 if self.final else self.slow)  # the last one waits for everybody

    def look_ahead(self) -> None:
        """A survey begins: who is slow now, and when is the next one due?"""
        self.due = self.party.role.passes() + self.party.lifecycle.spacing
        self.look_who_is_slow()

    @property
    def pauses(self) -> bool:
        """Whether steps rest, for a survey or until the certificate of an earlier one has come."""
        return self.party.survey.pauses or self.awaits_certificate

    @property
    def awaits_certificate(self) -> bool:
        """Whether all has been done that is worth doing while the late take their table."""
        return self.party.survey.has_enough and self.party.role.passes() >= self.due

    def look_who_is_slow(self) -> None:
        """Who takes much longer than the chair from one survey to the next, as bits by place: for its steps, and for
        the table, which is half of a pass. The chair is waited for in any case."""
        if not self.options.asynchronous:
            return
        party, chosen, rows = self.party, self.party.lifecycle, self.party.problem.rows
        steps = chosen.spacing * rows if chosen.begun else 0.0
        rest = party.round_trip_s * (2.0 + steps / max(chosen.batch, 1))
        seconds = {**party.sums.seconds, party.name: party.sums.own_seconds}
        worth = WAITING_WORTH if self.options.leap else PRINTED_WORTH
        most = worth * (seconds.get(party.roster.chair, 0.0) * (rows / 2 + steps) + rest) - rest
        times = [seconds.get(name, 0.0) * (rows / 2 + steps) for name in party.roster.names]
        self.slow = sum(1 << place for place, time in enumerate(times) if time > most)

    def is_slow(self, name: PartyName) -> bool:
        return bool(self.slow >> self.party.roster.names.index(name) & 1)

    def judge(self, news: Certified) -> list[Effect]:
        """The chair: a survey is over. End, or go on."""
        passes = self.passes()
        target = self.options.target
        if not isfinite(news.objective) or news.objective > DIVERGED_FACTOR * self.start_objective:
            return self.party.end(
                "diverged", f"the objective rose beyond ten times its start; {remedy(self.party.problem)}"
            )
        if target is not None and news.certificate <= target:
            return self.party.end(
                "target", f"the certificate {news.certificate:.3g} is at or below the target {target:g}"
            )
        if self.closing and not self._over(passes):
            self.closing = False
        if not self.closing:
            self._leave_time_for_steps(news.survey)
            return self.survey_if_due() or self.party.role.resume()
        if news.survey < self.party.survey.current:  # the last one is under way
            return []
        if not self.final:  # this survey had begun before the last pass was over
            return self.begin_survey()
        return self.party.end("passes", self._passes_reason(news))

    def _leave_time_for_steps(self, certified: int) -> None:
        """Without leaps a block moves by its own steps alone: whoever was late with its table steps as long as it took
        that, before the next table comes."""
        if self.party.survey.late and not self.options.leap:
            surveys = 1 + self.party.survey.current - certified
            self.due = max(self.due, self.party.role.passes() + surveys * self.party.lifecycle.spacing)

    def _passes_reason(self, last: Certified) -> str:
        """The certificate is that of the model that is kept, as it is in the record."""
        best = self.best_worth_keeping()
        certificate = next((news for news in self.party.survey.history if news.survey == best), last).certificate
        made = f"{self.passes():.4g} passes were made ({self.options.passes:g} passes and {self.options.seconds:g} s "
        reason = f"{made}were asked for at least); the certificate is {certificate:.3g}"
        return f"{reason}, above the target {self.options.target:g}" if self.options.target is not None else reason

    def best_worth_keeping(self) -> int:
        """The best certified survey; none (the zero start) where even that one is worse than the start. Where products
        are private nothing is certified, and the newest model that all have is the one."""
        if self.options.products is not None:
            return self.party.survey.best
        best = [news for news in self.party.survey.history if news.survey == self.party.survey.best]
        return self.party.survey.best if best and best[-1].objective <= self.start_objective * (1 + 1e-9) else -1

    def _objective_at_zero(self) -> float:
        problem = self.party.problem
        if problem.labels is None:
            return 0.0
        losses = problem.loss.value(np.zeros((problem.outputs, problem.rows)), problem.labels)
        return float((losses * problem.weights if len(problem.weights) else losses).sum()) / problem.rows
