"""A horizontal job: everything that the cloud and the edges must agree on, as one TOML file that all of them hold.

    run = "digits"
    algorithm = "steady"            # mapa, audp, asgd, csgd, steady, fedasync, fedbuff
    updates = 1500
    batch = 512
    lag_max = 60

    [model]
    kind = "softmax"                # logistic, hinge, squared-hinge, softmax, digits-network
    features = 784
    classes = 10
    rows = "unit"                   # every row is scaled to one norm by itself: unit, or taken as it is: plain
    row_norm = 4.0                  # that norm; a large one leaves the intercepts a small part of the clip

    [rate]
    step = 0.9
    clip = 2.0

    [privacy]
    mode = "sound"                  # sound, "batch-mean (paper)", none
    epsilon = 3.0
    delta = 1e-5
    uploads = 300

`offbeat run` trains the whole of it on one machine over a named data set, and reads two tables more: [data] and
[runtime]. `offbeat cloud serve` and `offbeat edge serve` have rows and a network of their own and pass these over.

Keys that a file leaves out have the defaults of the structs below; an unknown key is refused with the nearest name.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offbeat.algorithms.fedbuff import BufferedMean, LocalSteps, Mixing
from offbeat.algorithms.mapa import CLOUD, MESSAGES, Cloud, Edge, GradientStep, Rule, noise_source
from offbeat.algorithms.mapa.privacy import EdgePrivacy, Paper, Privacy, Sound, Unprotected, privacy_of_edges
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
from offbeat.data.names import check_party_names, did_you_mean
from offbeat.errors import BadJob
from offbeat.jobs.limits import JobPart, check_numbers, check_slow, value_of
from offbeat.jobs.methods import HORIZONTAL
from offbeat.jobs.vertical import PLAIN_CHOICES, RuntimeEntry, check_keys, read_tree, readable
from offbeat.learning.horizontal import EdgeData, HorizontalModel, LinearModel, check_table, edge_data
from offbeat.privacy.accountant import Adjacency
from offbeat.privacy.clipping import AdaptiveClip

__all__ = ["MESSAGES", "EdgeJob", "build_cloud", "build_edge", "read_edge_job", "rows_for"]

ESTIMATED = ("smoothness", "deviation", "radius", "gap")
LINEAR = ("logistic", "hinge", "squared-hinge", "softmax")
MODELS = (*LINEAR, "digits-network")
EDGE_RUNTIMES = ("simulator", "threads")
SAME_CHOICES = ("runtime.serving", "runtime.jitter", "runtime.link_jitter", "runtime.faults")
MODES = ("sound", "batch-mean (paper)", "none")


class ModelEntry(JobPart, frozen=True, kw_only=True):
    """`side`, `channels` and `seed` describe the digits network, the others a linear model."""

    kind: str = "softmax"
    features: int = 784
    classes: int = 10
    rows: str = "unit"
    row_norm: float = 1.0
    side: int = 28
    channels: tuple[int, int] = (8, 16)
    seed: int = 0


class RateEntry(JobPart, frozen=True, kw_only=True):
    """`clip` for all; `step` for steady, and for the local steps of fedasync and fedbuff; the rest by algorithm."""

    clip: float | None = None
    step: float = 1.0
    adaptive: bool = False
    shrink: float = 0.5
    floor: float = 0.0
    failure: float = 1e-3
    local_steps: int = 5
    mixing: float = 0.6
    decay: float = 0.5
    buffer: int = 10


class ConstantsEntry(JobPart, frozen=True, kw_only=True):
    """Public bounds. `norm_max` bounds |(row, 1)| and follows from `model.row_norm` for unit rows; each other one is
    derived from it unless given. `lag`: what the steps allow for; later uploads get shorter ones."""

    norm_max: float | None = None
    smoothness: float | None = None
    deviation: float | None = None
    radius: float | None = None
    gap: float | None = None
    lag: int | None = None


class PrivacyEntry(JobPart, frozen=True, kw_only=True):
    """`epsilon` may be a table by edge. `uploads` is what the budget must last for, at each edge."""

    mode: str = "sound"
    epsilon: float | dict[str, float] = 3.0
    delta: float = 1e-5
    adjacency: Adjacency = "replace-one"
    uploads: int = 300
    noise: str = "gaussian"


class EdgeDataEntry(JobPart, frozen=True, kw_only=True):
    """`offbeat run`: a named set with test rows of its own, its training rows shared out over the edges."""

    set: str | None = None
    dir: str | None = None
    edges: int | list[str] = 5
    split: str = "iid"
    shards_per_edge: int = 2
    concentration: float = 0.5
    limit_rows: int | None = None


class EdgeJob(JobPart, frozen=True, kw_only=True):
    """One horizontal run. Without a seed the noise is cryptographic and cannot be replayed."""

    run: str = "edges"
    algorithm: str = "mapa"
    updates: int = 1500
    batch: int = 512
    lag_max: int = 60
    strength: float = 1e-4
    seed: int | None = None
    retry_s: float = 2.0
    model: ModelEntry = ModelEntry()
    rate: RateEntry = RateEntry()
    constants: ConstantsEntry = ConstantsEntry()
    privacy: PrivacyEntry = PrivacyEntry()
    data: EdgeDataEntry = EdgeDataEntry()
    runtime: RuntimeEntry = RuntimeEntry(jitter="lognormal")


def read_edge_job(path: Path) -> EdgeJob:
    """A job file, every key and value checked."""
    return edge_job_from(read_tree(path), str(path), path.resolve().parent)


def edge_job_from(tree: Mapping[str, Any], where: str = "the job", folder: Path | None = None) -> EdgeJob:
    """A job from plain values, checked; `folder`: what data.dir is relative to."""
    check_keys(tree, EdgeJob, where)
    try:
        job = msgspec.convert(dict(tree), EdgeJob)
    except msgspec.ValidationError as problem:
        raise BadJob(f"{where}: {readable(str(problem))}.") from problem
    _check_values(job, where)
    if folder is None or job.data.dir is None:
        return job
    data = msgspec.structs.replace(job.data, dir=str(folder / job.data.dir))
    return msgspec.structs.replace(job, data=data)


def _check_values(job: EdgeJob, where: str) -> None:
    chosen = {
        "algorithm": (job.algorithm, HORIZONTAL),
        "model.kind": (job.model.kind, MODELS),
        "model.rows": (job.model.rows, ("unit", "plain")),
        "privacy.mode": (job.privacy.mode, MODES),
        "privacy.noise": (job.privacy.noise, ("gaussian", "laplace")),
        "data.split": (job.data.split, ("iid", "shards", "dirichlet")),
        "runtime.kind": (job.runtime.kind, EDGE_RUNTIMES),
        **{key: (value_of(job, key), PLAIN_CHOICES[key]) for key in SAME_CHOICES},
    }
    for key, (value, known) in chosen.items():
        if value not in known:
            raise BadJob(f"{where}: {key} is {value!r}. {did_you_mean(value, known)}")
    check_numbers(job, where)
    check_slow(job.runtime.slow, where)
    _check_epsilon(job.privacy, where)
    _check_edges(job, where)
    if job.algorithm in ("audp", "steady") and job.privacy.mode != "none" and job.rate.clip is None:
        raise BadJob(f"{where}: {job.algorithm} with noise needs rate.clip, the bound on one row's gradient.")


def _check_epsilon(privacy: PrivacyEntry, where: str) -> None:
    by_edge = privacy.epsilon if isinstance(privacy.epsilon, dict) else {"": privacy.epsilon}
    for edge, epsilon in by_edge.items():
        if not epsilon > 0:
            raise BadJob(f"{where}: {f'privacy.epsilon.{edge}'.rstrip('.')} must be above 0; got {epsilon}.")


def _check_edges(job: EdgeJob, where: str) -> None:
    names, entry = job.data.edges, job.runtime
    if isinstance(names, list):
        check_party_names(names, f"{where}, data.edges")
        if not names or len({CLOUD, *names}) <= len(names):
            raise BadJob(
                f"{where}: data.edges must be a number, or names that differ, none of them {CLOUD!r}; got {names!r}."
            )
    trip_s = 2 * (entry.latency_s or 0.0)
    if trip_s > job.retry_s:
        raise BadJob(
            f"{where}: with runtime.latency_s = {entry.latency_s:g} an answer takes {trip_s:g} s or more, and after "
            f"retry_s = {job.retry_s:g} everything is sent again. Set retry_s to {math.ceil(trip_s) + 1} or more, or "
            "check the units: latency_s is in seconds."
        )


# -- the parts of a job ---------------------------------------------------------------------------------------------


def model_of(job: EdgeJob) -> HorizontalModel:
    entry = job.model
    if entry.kind in LINEAR:
        return LinearModel(entry.kind, entry.features, 2 if entry.kind == "logistic" else entry.classes)
    from offbeat.learning.deep_horizontal import digits_model

    return digits_model(entry.side, entry.seed, entry.channels)


def rows_for(job: EdgeJob, features: Any, labels: Any) -> EdgeData:
    """An edge's rows as the model wants them. Scaling a row by its own norm looks at no other row."""
    values, labels = np.asarray(features), np.asarray(labels)
    check_table(values, labels)
    values = values.astype(np.float32).reshape(len(labels), -1)
    if job.model.rows == "unit":
        values = job.model.row_norm * values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return edge_data(values, labels)


def constants_of(job: EdgeJob) -> Constants:
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


def _network_constants(job: EdgeJob, strength: float) -> dict[str, float]:
    """A network starts near the loss of guessing; how smooth it is and how far gradients lie apart must be given."""
    for name in ("smoothness", "deviation"):
        if getattr(job.constants, name) is None:
            raise BadJob(
                f"{job.algorithm} needs constants.{name} for a network: no public bound follows from its form. Measure "
                'it on public rows of a like kind, or use algorithm = "steady", which needs none.'
            )
    gap = math.log(job.model.classes)
    return {"radius": math.sqrt(2 * gap / strength), "gap": gap}


def _norm_max(job: EdgeJob) -> float:
    if job.constants.norm_max is not None:
        return job.constants.norm_max
    if job.model.rows == "unit":
        return math.sqrt(job.model.row_norm**2 + 1)
    raise BadJob("Rows taken as they are need constants.norm_max, a public bound on |(row, 1)|.")


def privacy_of(job: EdgeJob) -> Privacy:
    entry = job.privacy
    if entry.mode == "none" or job.algorithm in ("asgd", "csgd", "fedasync", "fedbuff"):
        return Unprotected()
    if entry.mode == "batch-mean (paper)":
        return Paper(entry.epsilon)
    adaptive = _adaptive(job) if job.rate.adaptive else None
    noise: Any = entry.noise
    return Sound(entry.epsilon, entry.uploads, entry.delta, entry.adjacency, noise, adaptive)


def _adaptive(job: EdgeJob) -> AdaptiveClip:
    return AdaptiveClip(start=job.rate.clip or 1.0)


def rule_of(job: EdgeJob) -> Rule:
    if job.algorithm == "fedasync":
        return Mixing(job.rate.mixing, job.rate.decay, job.lag_max)
    if job.algorithm == "fedbuff":
        return BufferedMean(job.rate.buffer, 1.0)
    return GradientStep(_rate_of(job), job.strength, job.constants.lag)


def _rate_of(job: EdgeJob) -> Rate:
    rate = job.rate
    if job.algorithm == "steady":
        return SteadyRate(rate.step, rate.clip or math.inf, _adaptive(job) if rate.adaptive else None)
    constants = constants_of(job)
    if job.algorithm == "asgd":
        return AsyncRate(constants)
    if job.algorithm == "csgd":
        return CentralRate(constants)
    if job.algorithm == "audp":
        return NoisyRate(constants, rate.clip or math.inf)
    paper = job.privacy.mode == "batch-mean (paper)"
    start = first_clip(constants.deviation, rate.failure) if rate.clip is None else rate.clip
    return StagedRate(constants, start, rate.shrink, rate.floor, deviation_within_clip=not paper)


def recipe_of(job: EdgeJob, name: str, rows: int) -> EdgePrivacy:
    if job.algorithm in ("fedasync", "fedbuff"):
        return EdgePrivacy(LocalSteps(job.rate.local_steps, job.rate.step, min(job.batch, rows), job.strength))
    return privacy_of_edges(privacy_of(job), {name: rows}, job.batch)[name]


def build_cloud(job: EdgeJob, edges: tuple[str, ...] = ()) -> Cloud:
    """The cloud of a job; `edges` are those it waits for, others may join."""
    return Cloud(
        model_of(job).start(),
        rule_of(job),
        updates=job.updates,
        lag_max=job.lag_max,
        edges=edges,
        linger_s=job.retry_s,
    )


def build_edge(job: EdgeJob, name: str, data: EdgeData, recipe: EdgePrivacy | None = None) -> Edge:
    """One edge of a job, its noise calibrated to its own rows and budget."""
    return Edge(
        name,
        model_of(job),
        data,
        recipe or recipe_of(job, name, data.rows),
        noise_source(job.seed, name),
        retry_s=job.retry_s,
    )
