"""What an edge promises, as one value: from a total budget to the mechanism and the ledger of each edge.

    Sound(epsilon=3.0, delta=1e-5, uploads=600)      the default: calibrated noise, a budget that is kept
    Paper(epsilon=0.1)                               MAPA's clip and noise as printed: not differentially private
    Unprotected()                                    no noise at all

Each edge's rows are its own, so each edge's budget counts its own uploads only. An epsilon may be given for each.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from offbeat.errors import BadJob
from offbeat.privacy.accountant import Adjacency, Release, calibrate_multiplier, calibrate_pure
from offbeat.privacy.clipping import AdaptiveClip
from offbeat.privacy.ledger import Budget, Ledger
from offbeat.privacy.mechanism import Gaussian, Laplace, Mechanism, NoNoise, PaperNoise

PerEdge = float | Mapping[str, float]


@dataclass(frozen=True)
class Sound:
    """Per-row clipping, secret Poisson sampling, noise on every coordinate, calibrated so that `uploads` releases of an
    edge stay within (epsilon, delta). `adaptive` adds the noisy count that an adaptive clip needs."""

    epsilon: PerEdge
    uploads: int
    delta: float = 1e-5
    adjacency: Adjacency = "replace-one"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    adaptive: AdaptiveClip | None = None


@dataclass(frozen=True)
class Paper:
    """clipping="batch-mean (paper)", epsilon for each iteration, noise on the first `noisy` coordinates or on all."""

    epsilon: PerEdge
    noisy: int | None = None


@dataclass(frozen=True)
class Unprotected:
    """Plain gradients."""


Privacy = Sound | Paper | Unprotected


@dataclass(frozen=True)
class EdgePrivacy:
    """One edge's recipe, its budget, the plan that calibration has shown to fit, what earlier runs released under the
    same budget, and what its site's account holds for this run (None: there is no such account)."""

    mechanism: Mechanism
    budget: Budget | None = None
    proven: tuple[tuple[Release, int], ...] = ()
    before: tuple[tuple[Release, int], ...] = ()
    reserved: tuple[tuple[Release, int], ...] | None = None

    def ledger(self) -> Ledger:
        reserved = None if self.reserved is None else dict(self.reserved)
        return Ledger(self.budget, dict(self.proven), dict(self.before), reserved)


def privacy_of_edges(privacy: Privacy, rows: Mapping[str, int], batch: float) -> dict[str, EdgePrivacy]:
    """The recipe of every edge. Edges with the same budget and sampling rate share one calibration."""
    if isinstance(privacy, Unprotected):
        return {edge: EdgePrivacy(NoNoise(min(batch, count))) for edge, count in rows.items()}
    if isinstance(privacy, Paper):
        return {
            edge: EdgePrivacy(PaperNoise(epsilon_of(privacy.epsilon, edge), min(batch, count), privacy.noisy))
            for edge, count in rows.items()
        }
    calibrated: dict[tuple[float, float], float] = {}
    return {edge: _sound(privacy, edge, count, batch, calibrated) for edge, count in rows.items()}


def _sound(
    privacy: Sound, edge: str, rows: int, batch: float, calibrated: dict[tuple[float, float], float]
) -> EdgePrivacy:
    epsilon, rate = epsilon_of(privacy.epsilon, edge), sampling_rate(batch, rows)
    calibrate = calibrate_multiplier if privacy.noise == "gaussian" else calibrate_pure
    if (epsilon, rate) not in calibrated:
        calibrated[epsilon, rate] = calibrate(epsilon, privacy.delta, privacy.uploads, rate, privacy.adjacency)
    amount = calibrated[epsilon, rate]
    mechanism: Mechanism
    if privacy.noise == "gaussian":
        mechanism = Gaussian(amount, rate, rows, privacy.adaptive)
    elif privacy.adaptive is not None:
        raise BadJob("An adaptive clip counts rows with Gaussian noise; use gaussian noise with it, or a fixed clip.")
    else:
        mechanism = Laplace(amount, rate, rows)
    budget = Budget(epsilon, privacy.delta, privacy.adjacency)
    return EdgePrivacy(mechanism, budget, ((mechanism.cost(), privacy.uploads),))


def sampling_rate(batch: float, rows: int) -> float:
    """batch/rows, rounded up to three digits so that edges of nearly one size share a calibration."""
    if batch >= rows:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(batch / rows)) - 2)
    return min(1.0, math.ceil(batch / rows / unit - 1e-9) * unit)


def epsilon_of(epsilon: PerEdge, edge: str) -> float:
    if isinstance(epsilon, Mapping):
        if edge not in epsilon:
            raise BadJob(f"No epsilon is given for edge {edge!r}; those given are {', '.join(sorted(epsilon))}.")
        return float(epsilon[edge])
    return float(epsilon)
