"""From a job's [embedding] table to VAFL's parts: an embedding for every client, a head, and how to train them.

    embeddings, head = networks_of(job, data)
    options = options_of(job, data, head)

Networks need the extra `deep`; linear embeddings under an additive head do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, prod
from typing import Any, Protocol

import numpy as np

from offbeat.algorithms.vafl import Vafl
from offbeat.data.assemble import VerticalData
from offbeat.data.preparation import UNIT_ROWS
from offbeat.errors import BadJob
from offbeat.jobs.embedding import OWN
from offbeat.jobs.vertical import SERVER, Job
from offbeat.learning.embeddings import (
    Adam,
    AdditiveHead,
    ClientPenalty,
    Embedding,
    Head,
    LinearEmbedding,
    Optimiser,
    Sgd,
    Weights,
)
from offbeat.learning.first_weights import first_weights
from offbeat.learning.layouts import LAYOUTS, fits
from offbeat.names import did_you_mean
from offbeat.privacy.embedding import PrivateEmbedding, calibrate

ADAM_STEP = 2e-3
EMBEDDING_SHARE, COVARIANCE_SHARE = 0.1, 0.25  # of mu^2, where a record leaves once; chosen on held-out rows
CURVATURE = {"softmax": 0.5, "logistic": 0.25, "squared": 1.0}


class NetworkInputs(Protocol):
    """What the networks of a problem depend on."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def widths(self) -> Mapping[str, int]: ...
    @property
    def task(self) -> str: ...
    @property
    def classes(self) -> tuple[Any, ...] | None: ...


def networks_of(
    job: Job, data: NetworkInputs, modules: Mapping[str, Any] | None = None, head: Any = None
) -> tuple[dict[str, Embedding], Head]:
    """Every client's embedding and the server's head. First weights follow from the job's seed. `modules`, `head`:
    those that the job calls "own": modules of PyTorch, or functions of the number of inputs that make one."""
    _check_names(job, data)
    kinds = {name: _of_party(job.embedding.kind, name, "linear") for name in data.names}
    additive = job.embedding.head == "additive" or (job.embedding.head == "auto" and set(kinds.values()) == {"linear"})
    simple = additive_head(data, job)
    width = simple.outputs if additive else job.embedding.width
    own = modules or {}
    embeddings = {
        name: _own_embedding(job, data, name, own, at)
        if kinds[name] == OWN
        else _embedding(job, data, name, kinds[name], width, at)
        for at, name in enumerate(data.names)
    }
    if additive:
        return embeddings, simple
    return embeddings, _deep_head(job, simple, [one.width for one in embeddings.values()], head)


def _own_embedding(job: Job, data: NetworkInputs, name: str, modules: Mapping[str, Any], at: int) -> Embedding:
    from offbeat.learning.networks import TorchEmbedding

    columns = data.widths[name]
    shape = tuple(_of_party(job.embedding.shape, name, None) or (columns,))
    if prod(shape) != columns:
        raise BadJob(
            f"The shape of {name} is {list(shape)}, {prod(shape)} values in all; it has {columns} columns once they "
            "are prepared. Give the shape of these, or leave it out."
        )
    module = _module(f"the network of {name}", modules.get(name), columns, job.seed + at)
    return TorchEmbedding(module, shape, device=_of_party(job.embedding.device, name, "cpu"))


def _module(what: str, given: Any, inputs: int, seed: int) -> Any:
    """A module as it is, or made for so many inputs."""
    from torch import nn

    if given is None:
        raise BadJob(
            f'"own" says that {what} is one of your own, and it is not here: job files and run folders keep weights '
            "alone. Bring the modules: DeepVerticalClassifier(modules=..., head=...), or its `load` with the same."
        )
    if isinstance(given, nn.Module):
        return given
    if not callable(given):
        raise BadJob(f"Expected {what} as a torch.nn.Module, or a function that makes one; got {type(given).__name__}.")
    with first_weights(seed):
        made = given(inputs)
    if not isinstance(made, nn.Module):
        raise BadJob(
            f"The function for {what} must return a torch.nn.Module for {inputs} inputs; it returned "
            f"{type(made).__name__}."
        )
    return made


def additive_head(data: NetworkInputs, job: Job) -> AdditiveHead:
    if data.task == "regression":
        return AdditiveHead(1, "squared", bias=job.intercept)
    if data.task == "classification":
        return AdditiveHead(1, "logistic", bias=job.intercept)
    return AdditiveHead(len(data.classes or ()), "softmax", bias=job.intercept)


def _check_names(job: Job, data: NetworkInputs) -> None:
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


def _embedding(job: Job, data: NetworkInputs, name: str, kind: str, width: int, at: int) -> Embedding:
    columns = data.widths[name]
    if kind == "linear":
        return LinearEmbedding(columns, width)
    shape = _shape(job, name, kind, columns)
    device = _of_party(job.embedding.device, name, "cpu")
    return network(kind, shape, width, job.embedding, seed=job.seed + at, noise=job.embedding.noise, device=device)


def network(
    kind: str, shape: tuple[int, ...], width: int, entry: Any, *, seed: int, noise: float = 0.0, device: str = "cpu"
) -> Embedding:
    """A network over columns of this shape; `entry` has `hidden` and `channels`."""
    from offbeat.learning.networks import TorchEmbedding, cnn, lstm, mlp

    if kind == "mlp":
        module = mlp(shape[0], width, entry.hidden, c=noise, seed=seed)
    elif kind == "cnn":
        module = cnn(shape[0], shape[1], width, entry.channels, c=noise, seed=seed)
    else:
        module = lstm(shape[1], width, entry.hidden[0] if entry.hidden else 32, c=noise, seed=seed)
    return TorchEmbedding(module, shape, device=device)


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


def _deep_head(job: Job, simple: AdditiveHead, widths: Sequence[int], own: Any) -> Head:
    from offbeat.learning.networks import TorchHead, mlp, outputs_of

    outputs, loss, inputs, seed = simple.outputs, simple.loss_name, sum(widths), job.seed + len(widths)
    device = _of_party(job.embedding.device, SERVER, "cpu")
    if job.embedding.head == OWN:
        module = _module("the head", own, inputs, seed)
        if loss == "logistic" and outputs_of(module, inputs) == 2:  # one score for each of two classes
            outputs, loss = 2, "softmax"
    else:
        module = mlp(inputs, outputs, job.embedding.head_hidden, seed=seed)
    return TorchHead(module, widths, outputs, loss_name=loss, device=device)


def weights_from(name: str, network: Embedding | Head, arrays: Mapping[str, np.ndarray]) -> Weights:
    """A part's arrays as a network has them: what was trained, and what was only kept."""
    first = network.initial(np.random.default_rng(0))
    wanted = {**network.to_arrays(first.trained), **network.to_arrays(first.kept)}
    needed, came = (sorted((key, np.shape(values)) for key, values in one.items()) for one in (wanted, arrays))
    if needed != came:
        raise BadJob(
            f"The kept weights of {name} are not those of its network here: they are {_listed(came)}, and it needs "
            f"{_listed(needed)}. Bring the same network, over as many prepared columns, or train anew."
        )
    return Weights(
        network.from_arrays({key: np.asarray(values) for key, values in arrays.items() if key not in first.kept}),
        network.from_arrays({key: np.asarray(values) for key, values in arrays.items() if key in first.kept}),
    )


def _listed(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes[:6]) or "none"


# -- how to train ---------------------------------------------------------------------------------------------------


def options_of(job: Job, data: VerticalData, head: Head) -> Vafl:
    """The job as VAFL's options; automatic numbers are chosen from the rows, in private mode from their sizes alone."""
    entry = job.embedding
    optimiser = _optimiser(job, data, head)
    batch = max(min(job.batch_least, data.rows), data.rows // 100) if job.batch == "auto" else job.batch
    once = takes_covariance(entry)
    if job.batch == "auto" and once:
        batch = data.rows  # one step of all rows has the least noise
    return Vafl(
        variant=job.algorithm,
        batch=int(batch),
        passes=min(job.passes, 1.0) if once else job.passes,
        in_flight=job.in_flight,
        optimiser=optimiser,
        head_optimiser=optimiser if entry.head_step is None else replace(optimiser, step=entry.head_step),
        penalty=_penalty(job),
        label_dp_epsilon=job.label_dp_epsilon,
        t=entry.t,
        delay_bound=entry.delay_bound if isfinite(entry.delay_bound) else None,
        rates=dict(entry.rates),
        together=_together(job, head),
        initial_upload=entry.initial_upload,
        noise=entry.noise,
        inner_noise=entry.inner_noise,
        private=private_mode(entry, row_norm=len(data.names) ** -0.5 if UNIT_ROWS in data.source else None),
    )


def _together(job: Job, head: Head) -> bool:
    """Where the head is a network, unless the job says when or how often clients upload."""
    entry = job.embedding
    said = entry.rates or job.in_flight > 1 or entry.epsilon is not None
    return job.algorithm == "vafl" and not isinstance(head, AdditiveHead) and not said


def _optimiser(job: Job, data: VerticalData, head: Head) -> Any:
    chosen, plain = job.embedding.optimiser, isinstance(head, AdditiveHead) and job.embedding.kinds == {"linear"}
    adam = chosen == "adam" or (chosen == "auto" and job.step == "auto" and not plain)
    rule: type[Optimiser] = Adam if adam else Sgd
    if not isinstance(job.step, str):
        return rule(float(job.step))
    if job.step == "grid":
        raise BadJob(f'{job.algorithm} knows no step = "grid"; give a number, or "auto".')
    if rule is Adam:
        return Adam(ADAM_STEP)
    if not plain:
        raise BadJob(
            "An automatic step is known for linear embeddings under an additive head, and for Adam. For these networks "
            'give `step` a number, or leave embedding.optimiser = "sgd" out.'
        )
    if takes_covariance(job.embedding):
        return Sgd(1.0 / (CURVATURE[head.loss_name] * len(data.names)))
    return Sgd(automatic_step(data, head, public=job.embedding.epsilon is not None))


def automatic_step(data: VerticalData, head: Head, *, public: bool) -> float:
    """1 / (curvature of the loss * mean squared norm of a row): one number from each client, summed.

    `public`: the number of columns takes the place of the norm, which standardised columns have. No row is looked at,
    as private mode needs it: a step that was computed from the rows would tell about them.
    """
    squares = sum(data.widths[name] if public else mean_square(data.train[name]) for name in data.names)
    return float(1.0 / (CURVATURE[head.loss_name] * (squares + 1.0)))


def mean_square(block: Any) -> float:
    """The mean squared norm of a block's rows."""
    total = block.multiply(block).sum() if hasattr(block, "multiply") else np.square(block).sum()
    return float(total) / int(block.shape[0])


def _penalty(job: Job) -> ClientPenalty:
    """Without a size `l1` and `l2` are none; a box or a ball is refused."""
    none = job.penalty_kind == "none" or (job.penalty_kind in ("l1", "l2") and job.strength == 0)
    return ClientPenalty() if none else ClientPenalty(job.penalty_kind, job.strength)


def private_mode(entry: Any, *, predictions_max: int = 0, row_norm: float | None = None) -> PrivateEmbedding | None:
    """The mechanism of a table [embedding] with an epsilon. `row_norm`: to which rows are scaled."""
    if entry.epsilon is None:
        return None
    once = {"embedding_share": EMBEDDING_SHARE, "covariance_share": COVARIANCE_SHARE}
    return calibrate(
        entry.epsilon,
        entry.delta,
        entry.uploads_max or 1,
        clip=entry.clip,
        gradient_clip=entry.gradient_clip,
        predictions_max=predictions_max,
        covariance_clip=entry.covariance_clip or row_norm,
        **(once if takes_covariance(entry) else {}),
    )


def takes_covariance(entry: Any) -> bool:
    """Whether a table [embedding] asks for privacy and leaves open how often records may leave: then they leave once,
    and each client's one step is multiplied with the inverse of a private covariance (docs/decisions/0152)."""
    return entry.epsilon is not None and entry.uploads_max is None
