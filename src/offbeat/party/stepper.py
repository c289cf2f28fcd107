"""A block and its step size: what turns derivatives into a step, and how old these were."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offbeat.learning import metric as metrics
from offbeat.learning.blocks import step_along
from offbeat.learning.steps import decayed, lag_factor
from offbeat.party.memory import Memory

if TYPE_CHECKING:
    from offbeat.party.linear import LinearParty

JUDGED_EVERY = 32
BUCKETS = 40
MEMORY = 32


class LagCounts(Memory):
    """How old the values were that a party acted on (see `metrics/lag.py`): a histogram by powers of two, the sum, the
    largest, and a running mean of late."""

    KEPT = ("total", "most", "count", "mean", "histogram")

    def __init__(self) -> None:
        self.histogram, self.total, self.most = [0] * BUCKETS, 0, 0
        self.count = 0
        self.mean = 0.0

    def add(self, lag: int) -> None:
        bucket, count = lag.bit_length(), self.count + 1
        self.histogram[bucket if bucket < BUCKETS else -1] += 1
        self.total += lag
        if lag > self.most:
            self.most = lag
        self.count = count
        self.mean += (lag - self.mean) / (count if count < MEMORY else MEMORY)


class Stepper(Memory):
    """The step is the chair's choice at the beginning, times the pace of the last leap, times what the lag allows."""

    KEPT = ("for_lag",)

    def __init__(self, party: "LinearParty") -> None:
        self.party, self.block = party, party.block
        self.decays = party.options.method == "sgd"
        self.for_lag = 1.0

    def step(self, start: int, stop: int, theta: np.ndarray, lag: int) -> None:
        self.block.step(start, stop, theta, self.eta(lag, stop - start))

    def apply(self, start: int, stop: int, gradient: Any, lag: int) -> None:
        """The step from a gradient that a lane computed of residuals taken before."""
        self.block.apply_gradient(gradient, stop - start, self.eta(lag, stop - start))

    def step_along_mean(self) -> None:
        """A step over all rows at once, as long as the steepest direction allows; a leap follows that corrects it."""
        smoothness, tables = self.party.lifecycle.smoothness, self.party.survey.tables
        if smoothness > 0.0 and self.party.options.leap and not self.decays:
            step_along(self.block, tables.gradient_so_far() if tables.working else None, 1.0 / smoothness)

    # -- the metric of the steps ---------------------------------------------------------------------------------

    def choose_metric(self) -> None:
        """Steps by the curvature where that can be known; the chair's constant has a metric of its own."""
        problem = self.party.problem
        kind = self.party.options.metric_for(self.block, problem.loss)
        self.block.step_by_curvature(np.full((problem.outputs, problem.rows), problem.loss.curvature), kind)
        self.move_constant(np.full(problem.outputs, problem.loss.curvature))

    def move_constant(self, curvature: np.ndarray) -> None:
        """By the mean curvature of each output, where steps have a metric."""
        problem, by_curvature = self.party.problem, self.block.metric_kind != metrics.NONE
        steep = 1.0 / np.maximum(curvature, 1e-12) if by_curvature else self.party.options.constant_metric
        moves = problem.intercept and self.party.roster.is_chair
        self.block.move_constant(np.full(problem.outputs, steep if moves else 0.0))

    def follow_curvature(self) -> None:
        """By the curvature that the chair told of all rows, or that their derivatives tell."""
        if self.block.metric_kind == metrics.NONE:
            return
        second, tells = self.party.survey.tables.second, self.party.problem.loss.second_from_derivative
        if second is None and tells is not None:
            second = tells(self.block.table)
        if second is not None:
            self.block.step_by_curvature(second, self.block.metric_kind)
            if self.party.problem.intercept and self.party.roster.is_chair:
                self.move_constant(second.mean(axis=1))

    # -- the size of the steps -----------------------------------------------------------------------------------

    def eta(self, lag: int, rows: int) -> float:
        """Products that are old need a shorter step, or the iterates oscillate; a step of the user's is kept. SGD's
        step from fewer rows is shorter, so that each row counts as much as every other one."""
        party = self.party
        party.lags.add(lag)
        chosen = party.lifecycle
        if chosen.smoothness == 0.0:
            eta = chosen.eta
        else:
            version = self.block.version
            if version % JUDGED_EVERY == 0 or version < JUDGED_EVERY:
                self.for_lag = lag_factor(party.lags.mean)
            pace = 1.0 if self.decays else party.survey.pace  # longer steps of SGD would only make more noise
            eta = chosen.eta * pace * self.for_lag
        if not self.decays:
            return eta
        assert party.schedule is not None
        return decayed(eta, party.problem.strength, self.block.version) * rows / party.schedule.whole
