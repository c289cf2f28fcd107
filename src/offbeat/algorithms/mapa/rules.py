"""What the cloud does with an upload in MAPA and its relatives: one step against the gradient."""

import numpy as np

from offbeat.algorithms.mapa.messages import Upload
from offbeat.algorithms.mapa.rates import Rate
from offbeat.party.contract import State


class GradientStep:
    """x <- x - gamma (g + strength x): one step for each upload. The penalty needs no data, so the cloud adds it.

    Where the rate allows for a `lag` only, the step of a later upload is shorter in proportion.
    """

    def __init__(self, rate: Rate, strength: float, lag: int | None = None) -> None:
        self.rate = rate
        self.strength = strength
        self.lag = lag

    @property
    def clip(self) -> float:
        return self.rate.clip

    @property
    def stage(self) -> int:
        return self.rate.stage

    def apply(self, parameters: np.ndarray, upload: Upload, lag: int, version: int) -> np.ndarray:
        step = self.rate.step(version + 1)
        if self.lag is not None and lag > self.lag:
            step *= (self.lag + 1) / (lag + 1)
        self.rate.applied(upload.fraction_within)
        moved = parameters * (1 - step * self.strength)
        moved -= step * upload.gradient
        return moved

    def noise(self, per_clip: float) -> None:
        self.rate.noise(per_clip)

    def snapshot(self) -> State:
        return self.rate.snapshot()

    def restore(self, state: State) -> None:
        self.rate.restore(state)
