"""From a horizontal job to the model that is trained, the public constants of its problem, and the cloud's rule."""

import math
from typing import TYPE_CHECKING

from offbeat.algorithms.fedbuff import BufferedMean, Mixing
from offbeat.algorithms.mapa import GradientStep, Rule
from offbeat.algorithms.mapa.rates import (
    AsyncRate,
    CentralRate,
    Constants,
    NoisyRate,
    Rate,
    StagedRate,
    SteadyRate,
    first_clip,
)
from offbeat.errors import BadJob
from offbeat.learning.horizontal import HorizontalModel, LinearModel
from offbeat.privacy.clipping import AdaptiveClip

if TYPE_CHECKING:
    from offbeat.jobs.horizontal import EdgeJob

ESTIMATED = ("smoothness", "deviation", "radius", "gap")
NETWORK = "digits-network"
PAPER = "batch-mean (paper)"


def model_of(job: "EdgeJob") -> HorizontalModel:
    entry = job.model
    if entry.kind != NETWORK:
        return LinearModel(entry.kind, entry.features, 2 if entry.kind == "logistic" else entry.classes)
    from offbeat.learning.deep_horizontal import digits_model

    return digits_model(entry.side, entry.seed, entry.channels)


def adaptive_clip(job: "EdgeJob") -> AdaptiveClip | None:
    return AdaptiveClip(start=job.rate.clip or 1.0) if job.rate.adaptive else None


# -- public constants ------------------------------------------------------------------------------------------------


def constants_of(job: "EdgeJob") -> Constants:
    """Public bounds only: derived from the model's form and `norm_max`, or given."""
    entry, model = job.constants, model_of(job)
    strength = job.strength or 1e-4
    if isinstance(model, LinearModel):
        found = Constants.from_public(
            model, norm_max=_norm_max(job), strength=strength, lag_max=job.lag_max, batch=job.batch
        )
        derived = {name: float(getattr(found, name)) for name in ESTIMATED}
    else:
        derived = _network_constants(job, strength)
    given = {name: getattr(entry, name) for name in ESTIMATED if getattr(entry, name) is not None}
    return Constants(**{**derived, **given}, lag_max=job.lag_max, batch=job.batch, lag=entry.lag)


def _network_constants(job: "EdgeJob", strength: float) -> dict[str, float]:
    """A network starts near the loss of guessing; how smooth it is and how far gradients lie apart must be given."""
    for name in ("smoothness", "deviation"):
        if getattr(job.constants, name) is None:
            raise BadJob(
                f"{job.algorithm} needs constants.{name} for a network: no public bound follows from its form. Measure "
                'it on public rows of a like kind, or use algorithm = "steady", which needs none.'
            )
    gap = math.log(job.model.classes)
    return {"radius": math.sqrt(2 * gap / strength), "gap": gap}


def _norm_max(job: "EdgeJob") -> float:
    if job.constants.norm_max is not None:
        return job.constants.norm_max
    if job.model.rows == "unit":
        return math.sqrt(job.model.row_norm**2 + 1)
    raise BadJob("Rows taken as they are need constants.norm_max, a public bound on |(row, 1)|.")


# -- rules, one for each method --------------------------------------------------------------------------------------


def _stepping(job: "EdgeJob", rate: Rate) -> Rule:
    return GradientStep(rate, job.strength, job.constants.lag)


def staged(job: "EdgeJob") -> Rule:
    constants, rate = constants_of(job), job.rate
    start = first_clip(constants.deviation, rate.failure) if rate.clip is None else rate.clip
    within = job.privacy.mode != PAPER
    return _stepping(job, StagedRate(constants, start, rate.shrink, rate.floor, deviation_within_clip=within))


def noisy(job: "EdgeJob") -> Rule:
    return _stepping(job, NoisyRate(constants_of(job), job.rate.clip or math.inf))


def asynchronous(job: "EdgeJob") -> Rule:
    return _stepping(job, AsyncRate(constants_of(job)))


def central(job: "EdgeJob") -> Rule:
    return _stepping(job, CentralRate(constants_of(job)))


def steady(job: "EdgeJob") -> Rule:
    return _stepping(job, SteadyRate(job.rate.step, job.rate.clip or math.inf, adaptive_clip(job)))


def mixing(job: "EdgeJob") -> Rule:
    return Mixing(job.rate.mixing, job.rate.decay, job.lag_max)


def buffered(job: "EdgeJob") -> Rule:
    return BufferedMean(job.rate.buffer, 1.0)
