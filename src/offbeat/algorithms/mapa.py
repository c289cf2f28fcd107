"""MAPA: asynchronous horizontal learning with staged clipping and noise; with AUDP, ASGD and CSGD.

Y. Li, S. Yang, X. Ren and C. Zhao, "Asynchronous Federated Learning with Differential Privacy for Edge Intelligence".

    minimise over x   f(x) = E F(x; row) + strength/2 |x|^2        rows at K edges, the model at a cloud

| paper      | here                | meaning                                               |
|------------|---------------------|-------------------------------------------------------|
| x_t, t     | parameters, version | the cloud's model, and how often it changed           |
| D_k        | data                | the rows of edge k                                    |
| eps_k      | ledger              | what edge k may still reveal                          |
| tau(t)     | lag                 | versions between an edge's pull and its upload's turn |
| tau_max    | lag_max             | a later upload is refused; its edge pulls anew        |
| DeltaS     | 2 clip / batch      | sensitivity of one upload                             |

Cloud and edges, their messages and the order of play are in `cloud_edges`; here is what the cloud does with an upload,
and the four algorithms as builders. In MAPA the clip and the step change by stages (`edge_rates`); an upload clipped by
an older stage's clip is still good, its own noise fits it. Sound mode is the default (`edge_privacy`).
"""

from collections.abc import Mapping

import numpy as np

from offbeat.algorithms.cloud_edges import (
    CLOUD,
    MESSAGES,
    PROTOCOL,
    Cloud,
    Edge,
    Goodbye,
    Halt,
    Hello,
    Leaving,
    Model,
    Rule,
    Upload,
    noise_source,
    parties,
)
from offbeat.algorithms.edge_privacy import Paper, Privacy, Unprotected, privacy_of_edges
from offbeat.algorithms.edge_rates import AsyncRate, CentralRate, Constants, NoisyRate, Rate, StagedRate, first_clip
from offbeat.learning.horizontal import EdgeData, HorizontalModel
from offbeat.party.contract import Party, PartyName, State

__all__ = [
    "CLOUD",
    "MESSAGES",
    "PROTOCOL",
    "Cloud",
    "Edge",
    "Goodbye",
    "GradientStep",
    "Halt",
    "Hello",
    "Leaving",
    "Model",
    "Rule",
    "Upload",
    "asgd",
    "audp",
    "csgd",
    "mapa",
    "noise_source",
    "parties",
    "steady",
]


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


def mapa(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    *,
    privacy: Privacy,
    constants: Constants,
    updates: int,
    clip: float | None = None,
    shrink: float = 0.5,
    floor: float = 0.0,
    failure: float = 1e-3,
    strength: float = 1e-4,
    seed: int | None = None,
    retry_s: float = 1.0,
) -> list[Party]:
    """MAPA: stages. The first clip is Eq. 12's unless one is given."""
    rate = StagedRate(
        constants,
        first_clip(constants.deviation, failure) if clip is None else clip,
        shrink=shrink,
        floor=floor,
        deviation_within_clip=not _as_printed(privacy),
    )
    return _private(model, data, rate, privacy, constants, updates, strength, seed, retry_s)


def audp(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    *,
    privacy: Privacy,
    constants: Constants,
    updates: int,
    clip: float,
    log_free: bool = False,
    strength: float = 1e-4,
    seed: int | None = None,
    retry_s: float = 1.0,
) -> list[Party]:
    """AUDP: one clip for the whole run, a step that falls as 1/sqrt(t)."""
    rate = NoisyRate(constants, clip, log_free)
    return _private(model, data, rate, privacy, constants, updates, strength, seed, retry_s)


def asgd(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    *,
    constants: Constants,
    updates: int,
    strength: float = 1e-4,
    seed: int | None = None,
    retry_s: float = 1.0,
) -> list[Party]:
    """ASGD: asynchronous, no clip and no noise."""
    return _private(model, data, AsyncRate(constants), Unprotected(), constants, updates, strength, seed, retry_s)


def csgd(
    model: HorizontalModel,
    pooled: EdgeData,
    *,
    constants: Constants,
    updates: int,
    strength: float = 1e-4,
    seed: int | None = None,
) -> list[Party]:
    """CSGD: all rows at one place, which pulls and steps in turn, so that no gradient is ever late."""
    rate = CentralRate(constants)
    return _private(model, {"pool": pooled}, rate, Unprotected(), constants, updates, strength, seed, 1.0)


def steady(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    *,
    rate: Rate,
    privacy: Privacy,
    constants: Constants,
    updates: int,
    strength: float = 1e-4,
    seed: int | None = None,
    retry_s: float = 1.0,
) -> list[Party]:
    """Any other rate, for instance `SteadyRate` with a fixed or an adaptive clip."""
    return _private(model, data, rate, privacy, constants, updates, strength, seed, retry_s)


def _private(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    rate: Rate,
    privacy: Privacy,
    constants: Constants,
    updates: int,
    strength: float,
    seed: int | None,
    retry_s: float,
) -> list[Party]:
    recipes = privacy_of_edges(privacy, {name: rows.rows for name, rows in data.items()}, constants.batch)
    rule = GradientStep(rate, strength, constants.lag)
    return parties(model, data, rule, recipes, updates=updates, lag_max=constants.lag_max, seed=seed, retry_s=retry_s)


def _as_printed(privacy: Privacy) -> bool:
    return isinstance(privacy, Paper)
