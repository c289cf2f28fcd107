"""A block and its step size: what turns derivatives into a step."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from offbeat.learning.steps import decayed, lag_factor

if TYPE_CHECKING:
    from offbeat.party.linear import LinearParty

JUDGED_EVERY = 32


class Stepper:
    """The step is the chair's choice at the beginning, times the pace of the last leap, times what the lag allows."""

    def __init__(self, party: "LinearParty") -> None:
        self.party, self.block = party, party.block
        self.decays = party.options.method == "sgd"
        self.for_lag = 1.0

    def step(self, start: int, stop: int, theta: np.ndarray, lag: int) -> None:
        self.block.step(start, stop, theta, self.eta(lag))

    def apply(self, start: int, stop: int, gradient: Any, lag: int) -> None:
        """The step from a gradient that a lane computed of residuals taken before."""
        self.block.apply_gradient(gradient, stop - start, self.eta(lag))

    def step_along_mean(self) -> None:
        """A step over all rows at once, as long as the steepest direction allows; a leap follows that corrects it."""
        smoothness = self.party.lifecycle.smoothness
        if smoothness > 0.0 and self.party.options.leap and not self.decays:
            self.block.step_along_mean(1.0 / smoothness)

    def eta(self, lag: int) -> float:
        """Products that are old need a shorter step, or the iterates oscillate; a step of the user's is kept."""
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
            eta = chosen.eta * pace * party.brake * self.for_lag
        return decayed(eta, party.problem.strength, self.block.version) if self.decays else eta

    def snapshot(self) -> dict[str, Any]:
        return {"for_lag": self.for_lag}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.for_lag = state["for_lag"]
