"""From a job's [embedding] table to VAFL's parts: an embedding for every client, a head, and how to train them.

    embeddings, head = networks_of(job, data)
    options = vafl_options(job, data, head)

Networks need the extra `deep`; linear embeddings under an additive head do not.
"""

from dataclasses import replace
from math import isfinite, prod
from typing import Any

import numpy as np

from offbeat.algorithms.vafl import Vafl
from offbeat.data.assemble import VerticalData
from offbeat.data.names import did_you_mean
from offbeat.errors import BadJob
from offbeat.jobs.embedding import KINDS
from offbeat.jobs.vertical import SERVER, Job
from offbeat.learning.embeddings import Adam, AdditiveHead, Embedding, Head, LinearEmbedding, Optimiser, Penalty, Sgd
from offbeat.learning.layouts import LAYOUTS, fits
from offbeat.privacy.embedding import PrivateEmbedding, calibrate

ADAM_STEP = 2e-3
CURVATURE = {"softmax": 0.5, "logistic": 0.25, "squared": 1.0}


def networks_of(job: Job, data: VerticalData) -> tuple[dict[str, Embedding], Head]:
    """Every client's embedding and the server's head. First weights follow from the job's seed."""
    _check_names(job, data)
    kinds = {name: _of_party(job.embedding.kind, name, "linear") for name in data.names}
    additive = job.embedding.head == "additive" or (job.embedding.head == "auto" and set(kinds.values()) == {"linear"})
    simple = additive_head(data, job)
    width = simple.outputs if additive else job.embedding.width
    embeddings = {name: _embedding(job, data, name, kinds[name], width, at) for at, name in enumerate(data.names)}
    return embeddings, simple if additive else _deep_head(job, simple, width, len(data.names))


def additive_head(data: VerticalData, job: Job) -> AdditiveHead:
    if data.task == "regression":
        return AdditiveHead(1, "squared", bias=job.intercept)
    if data.task == "classification":
        return AdditiveHead(1, "logistic", bias=job.intercept)
    return AdditiveHead(len(data.classes or ()), "softmax", bias=job.intercept)


def _check_names(job: Job, data: VerticalData) -> None:
    entry = job.embedding
    known = {"embedding.device": (*data.names, SERVER)}
    for key, value in (
        ("embedding.kind", entry.kind),
        ("embedding.shape", entry.shape),
        ("embedding.device", entry.device),
        ("embedding.rates", entry.rates),
    ):
        for name in value if isinstance(value, dict) else ():
            if name not in known.get(key, data.names):
                raise BadJob(f"{key} names {name!r}, which is no client. {did_you_mean(name, data.names)}")


def _of_party(value: Any, name: str, otherwise: Any) -> Any:
    return value.get(name, otherwise) if isinstance(value, dict) else value


def _embedding(job: Job, data: VerticalData, name: str, kind: str, width: int, at: int) -> Embedding:
    columns = data.widths[name]
    if kind == "linear":
        return LinearEmbedding(columns, width)
    if kind not in KINDS:
        raise BadJob(f"embedding.kind of {name} is {kind!r}. {did_you_mean(kind, KINDS)}")
    from offbeat.learning.networks import TorchEmbedding

    shape = _shape(job, name, kind, columns)
    module = _module(job, kind, shape, width, job.seed + at)
    return TorchEmbedding(module, shape, device=_of_party(job.embedding.device, name, "cpu"))


def _module(job: Job, kind: str, shape: tuple[int, ...], width: int, seed: int) -> Any:
    from offbeat.learning.networks import cnn, lstm, mlp

    entry = job.embedding
    if kind == "mlp":
        return mlp(shape[0], width, entry.hidden, c=entry.noise, seed=seed)
    if kind == "cnn":
        return cnn(shape[0], shape[1], width, entry.channels, c=entry.noise, seed=seed)
    return lstm(shape[1], width, entry.hidden[0] if entry.hidden else 32, c=entry.noise, seed=seed)


def _shape(job: Job, name: str, kind: str, columns: int) -> tuple[int, ...]:
    """How one client's columns are laid out for its network; `mlp` takes them as they are."""
    if kind == "mlp":
        return (columns,)
    shape = tuple(_of_party(job.embedding.shape, name, None) or ())
    if not fits(kind, shape):
        words, _ = LAYOUTS[kind]
        raise BadJob(f"A {kind} needs embedding.shape of {name} as {words}; got {list(shape) or 'nothing'}.")
    product = prod(shape)
    if product != columns:
        raise BadJob(f"embedding.shape of {name} is {list(shape)}, {product} values in all; it has {columns} columns.")
    return shape


def _deep_head(job: Job, simple: Any, width: int, clients: int) -> Head:
    from offbeat.learning.networks import TorchHead, mlp

    outputs = simple.outputs
    module = mlp(clients * width, outputs, job.embedding.head_hidden, seed=job.seed + clients)
    device = _of_party(job.embedding.device, SERVER, "cpu")
    return TorchHead(module, [width] * clients, outputs, loss_name=simple.loss_name, device=device)


# -- how to train ---------------------------------------------------------------------------------------------------


def vafl_options(job: Job, data: VerticalData, head: Head) -> Vafl:
    """The job as VAFL's options; automatic numbers are chosen from the rows, in private mode from their sizes alone."""
    entry = job.embedding
    optimiser = _optimiser(job, data, head)
    head_optimiser = optimiser if entry.head_step is None else replace(optimiser, step=entry.head_step)
    plain = options_of(_with_plain_penalty(job), data, head)
    return replace(
        plain,
        optimiser=optimiser,
        head_optimiser=head_optimiser,
        penalty=_penalty(job),
        t=entry.t,
        delay_bound=entry.delay_bound if isfinite(entry.delay_bound) else None,
        rates=dict(entry.rates),
        initial_upload=entry.initial_upload,
        noise=entry.noise,
        inner_noise=entry.inner_noise,
        private=_private(job),
    )


def _with_plain_penalty(job: Job) -> Job:
    import msgspec

    return msgspec.structs.replace(job, penalty_kind="none")


def _optimiser(job: Job, data: VerticalData, head: Head) -> Any:
    rule: type[Optimiser] = Adam if job.embedding.optimiser == "adam" else Sgd
    if isinstance(job.step, int | float):
        return rule(float(job.step))
    if job.step == "grid":
        raise BadJob(f'{job.algorithm} knows no step = "grid"; give a number, or "auto".')
    if rule is Adam:
        return Adam(ADAM_STEP)
    if not isinstance(head, AdditiveHead) or _kinds(job) != {"linear"}:
        raise BadJob(
            "An automatic step is known for linear embeddings under an additive head, and for Adam. For these networks "
            'give `step` a number, or set embedding.optimiser = "adam".'
        )
    return options_of(_with_plain_penalty(job), data, head).optimiser


def _kinds(job: Job) -> set[str]:
    kind = job.embedding.kind
    return set(kind.values()) if isinstance(kind, dict) else {kind}


def _penalty(job: Job) -> Penalty:
    """Without a size `l1` and `l2` are none; a box or a ball is refused."""
    none = job.penalty_kind == "none" or (job.penalty_kind in ("l1", "l2") and job.penalty == 0)
    return Penalty() if none else Penalty(job.penalty_kind, job.penalty)


def _private(job: Job) -> PrivateEmbedding | None:
    entry = job.embedding
    if entry.epsilon is None:
        return None
    if entry.uploads_max is None:
        raise BadJob(
            "embedding.epsilon needs embedding.uploads_max: how often one record's embedding may leave at most. Every "
            "upload costs, so a small number (5 to 50) leaves less noise in each."
        )
    return calibrate(entry.epsilon, entry.delta, entry.uploads_max, clip=entry.clip, gradient_clip=entry.gradient_clip)


def options_of(job: Job, data: VerticalData, head: Head) -> Vafl:
    """The job's keys that VAFL knows; automatic ones are chosen from the rows, in private mode from their sizes."""
    if job.penalty_kind not in ("l2", "none"):
        raise BadJob(f"VAFL takes penalty_kind 'l2' or 'none' from a job; got {job.penalty_kind!r}.")
    batch = job.batch if isinstance(job.batch, int) else max(min(job.batch_least, data.rows), data.rows // 100)
    public = job.embedding.epsilon is not None
    step = float(job.step) if isinstance(job.step, int | float) else automatic_step(data, head, public=public)
    penalty = Penalty("l2", job.penalty) if job.penalty_kind == "l2" and job.penalty > 0 else Penalty()
    return Vafl(
        variant=job.algorithm,
        batch=batch,
        passes=job.passes,
        in_flight=job.in_flight,
        optimiser=Sgd(step),
        head_optimiser=Sgd(step),
        penalty=penalty,
        label_dp_epsilon=job.label_dp_epsilon,
    )


def automatic_step(data: VerticalData, head: Head, *, public: bool) -> float:
    """1 / (curvature of the loss * mean squared norm of a row): one number from each client, summed.

    `public`: the number of columns takes the place of the norm, which standardised columns have. No row is looked at,
    as private mode needs it: a step that was computed from the rows would tell about them.
    """
    squares = sum(data.widths[name] if public else _mean_square(data.train[name]) for name in data.names)
    return float(1.0 / (CURVATURE[head.loss_name] * (squares + 1.0)))


def _mean_square(block: Any) -> float:
    total = block.multiply(block).sum() if hasattr(block, "multiply") else np.square(block).sum()
    return float(total) / int(block.shape[0])
