"""From a horizontal job to the model that is trained, the public constants of its problem, and the cloud's rule."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from offbeat.algorithms.fedbuff import BufferedMean, Mixing
from offbeat.algorithms.mapa import GradientStep, Rule
from offbeat.algorithms.mapa.rates import (
    AsyncRate,
    CentralRate,
    Constants,
    NoisyRate,
    QuietRate,
    Rate,
    ScoreBound,
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
FLATTER = 100.0  # the mean of many rows, in units of a step's usefulness, against the worst row: decision 0081
NETWORK_CLIP, NETWORK_STEP = 1.0, 0.1  # where nothing is known of the gradients; the step without noise
PLAIN_STEP = 2.0  # without a clip: over L


def model_of(job: "EdgeJob") -> HorizontalModel:
    entry = job.model
    if entry.kind != NETWORK:
        return LinearModel(entry.kind, entry.features, 2 if entry.kind == "logistic" else entry.classes)
    from offbeat.learning.deep_horizontal import digits_model

    return digits_model(entry.side, entry.seed, entry.channels)


def adaptive_clip(job: "EdgeJob") -> AdaptiveClip | None:
    return AdaptiveClip(start=clip_of(job), quantile=job.rate.quantile) if job.rate.adaptive else None


def clip_of(job: "EdgeJob") -> float:
    """The job's clip, or half of what a row's gradient measures at the start: nothing is clipped without noise."""
    if job.rate.clip is not None:
        return job.rate.clip
    if job.privacy.mode == "none":
        return math.inf
    model = model_of(job)
    return model.first_gradient_norm(_norm_max(job)) / 2 if isinstance(model, LinearModel) else NETWORK_CLIP


def plain_step(job: "EdgeJob") -> float:
    """The job's step, or one for gradients without noise, which may be longer the flatter the loss is."""
    if job.rate.step is not None:
        return job.rate.step
    model = model_of(job)
    if not isinstance(model, LinearModel):
        return NETWORK_STEP
    return PLAIN_STEP / model.smoothness(_norm_max(job), job.strength)


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
    return Constants(**{**derived, **given}, lag_max=job.lag_max, batch=job.batch, lag=lag_of(job))


def lag_of(job: "EdgeJob") -> int | None:
    """How late an upload the steps of the papers' formulas allow for: as printed, the latest that is accepted."""
    if job.constants.lag is not None or job.privacy.mode == PAPER:
        return job.constants.lag
    return job.edge_count


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
    return GradientStep(rate, job.strength, lag_of(job))


def staged(job: "EdgeJob") -> Rule:
    constants, rate = constants_of(job), job.rate
    start = first_clip(constants.deviation, rate.failure) if rate.clip is None else rate.clip
    if job.privacy.mode == PAPER:
        printed = StagedRate(constants, start, rate.shrink, rate.floor or 0.0, deviation_within_clip=False)
        return _stepping(job, printed)
    model, floor = model_of(job), rate.floor
    if isinstance(model, LinearModel):
        if rate.clip is None:  # no gradient is longer: a larger clip would add noise alone
            start = min(start, model.gradient_norm_max(_norm_max(job)))
        if job.constants.smoothness is None:
            constants = replace(constants, smoothness=constants.smoothness / FLATTER)
        floor = model.first_gradient_norm(_norm_max(job)) / 2 if floor is None else floor
    return _stepping(job, StagedRate(constants, start, rate.shrink, floor or 0.0, quantile=rate.quantile))


def noisy(job: "EdgeJob") -> Rule:
    return _stepping(job, NoisyRate(constants_of(job), clip_of(job)))


def asynchronous(job: "EdgeJob") -> Rule:
    return _stepping(job, AsyncRate(constants_of(job)))


def central(job: "EdgeJob") -> Rule:
    return _stepping(job, CentralRate(constants_of(job)))


def steady(job: "EdgeJob") -> Rule:
    """The step that is given, or the longest that the noise allows; a late upload gets a shorter one if asked for."""
    rate: Rate
    clip, adaptive = clip_of(job), adaptive_clip(job)
    if job.rate.step is not None or math.isinf(clip):
        rate = SteadyRate(plain_step(job), clip, adaptive)
    else:
        norm = math.sqrt(job.model.row_norm**2 + 1) if job.model.kind == NETWORK else _norm_max(job)
        rate = QuietRate(ScoreBound(norm, model_of(job).dimension, job.updates), clip, adaptive)
    return GradientStep(rate, job.strength, job.constants.lag)


def mixing(job: "EdgeJob") -> Rule:
    return Mixing(job.rate.mixing, job.rate.decay, job.lag_max)


def buffered(job: "EdgeJob") -> Rule:
    return BufferedMean(job.rate.buffer, 1.0)
