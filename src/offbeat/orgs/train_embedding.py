"""One party of a VAFL run, built from its own rows: the label holder is the server, and a client too.

Every party turns its columns into one number a row and the server adds them up: so the trained model is a sum of
parts, each kept by its owner, and joint predictions work as for the linear methods, under masks.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Client, Server, Vafl
from offbeat.algorithms.vafl.options import known_start
from offbeat.data.matrix import Floats, Matrix
from offbeat.errors import BadJob
from offbeat.jobs.organisations import Job
from offbeat.learning.embeddings import Adam, AdditiveHead, Embedding, LinearEmbedding, Optimiser, Penalty, Sgd, Weights
from offbeat.learning.layouts import LAYOUTS, fits
from offbeat.orgs import embedding_guard
from offbeat.orgs.embedding_guard import GuardedEmbedding
from offbeat.orgs.housemates import Housemates
from offbeat.orgs.keyed_noise import KeyedNoise
from offbeat.orgs.row_ledger import Counts
from offbeat.orgs.rows import OwnModel, OwnRows, holds_intercept
from offbeat.orgs.watched_rows import WatchedRows
from offbeat.party.contract import Message
from offbeat.privacy.embedding import PrivateEmbedding, calibrate
from offbeat.randomness import stream

MESSAGES = (*vafl.MESSAGES, *embedding_guard.MESSAGES)
BATCH_LEAST = 64
ADAM_STEP = 2e-3
CURVATURE = {"logistic": 0.25, "squared": 1.0}


def build_embedding_party(
    job: Job, name: str, rows: OwnRows, shape: tuple[int, ...], *, secret: bytes, cap: int, before: Counts
) -> tuple[GuardedEmbedding, tuple[type[Message], ...]]:
    """The party and its message types. `secret` is this party's own, for this run: noise comes from it."""
    server, features = job.labels_at[0], columns_of(job, name, rows.train)
    embedding = embedding_of(job, features.shape[1], shape, name)
    options = known_start(replace(_options(job, rows), optimiser=_optimiser(job, features)), [embedding])
    me = f"{name} (columns)" if name == server else name
    client = Client(
        me,
        server,
        embedding.place(features),
        embedding,
        embedding.initial(stream(job.method.seed, name, "weights")),
        options,
        job.method.seed,
        KeyedNoise(secret, "embedding"),
        KeyedNoise(secret, "gradient"),
    )
    inner = Housemates([_server(job, rows, options), client]) if name == server else client
    return GuardedEmbedding(inner, WatchedRows(name, rows.tokens_train, cap=cap, before=before)), MESSAGES


def columns_of(job: Job, name: str, block: Matrix) -> Any:
    """A party's columns without the column of ones, which the server's head has instead."""
    return block[:, :-1] if holds_intercept(job, name) else block


def embedding_of(job: Job, columns: int, shape: tuple[int, ...], name: str) -> Embedding:
    kind, entry = job.embedding.kind, job.embedding
    if kind == "linear":
        return LinearEmbedding(columns, 1)
    from offbeat.learning.networks import TorchEmbedding, cnn, lstm, mlp

    seed = int(stream(job.method.seed, name, "network").integers(2**31))
    if kind == "mlp":
        return TorchEmbedding(mlp(columns, 1, entry.hidden, seed=seed), (columns,))
    check_shape(job, shape, name, columns)
    if kind == "cnn":
        return TorchEmbedding(cnn(shape[0], shape[1], 1, entry.channels, seed=seed), shape)
    return TorchEmbedding(lstm(shape[1], 1, entry.hidden[0], seed=seed), shape)


def check_shape(job: Job, shape: tuple[int, ...], name: str, columns: int | None = None) -> None:
    """Refuse a shape that the job's network cannot take; `columns`: how many values a row has, once that is known."""
    kind = job.embedding.kind
    if not job.embeds or kind not in LAYOUTS:
        return
    if not fits(kind, shape) or (columns is not None and int(np.prod(shape)) != columns):
        whole = "" if columns is None else f", {columns} values in all"
        raise BadJob(
            f"a {kind} at '{name}' needs data.shape = {LAYOUTS[kind][0]} in its party.toml{whole}; it says "
            f"{list(shape) or 'nothing'}."
        )


def _server(job: Job, rows: OwnRows, options: Vafl) -> Server:
    assert rows.y_train is not None
    holder = job.labels_at[0]
    clients = tuple(f"{name} (columns)" if name == holder else name for name in job.parties)
    head = AdditiveHead(1, job.model.loss, bias=job.model.intercept)
    targets = rows.y_train[:, None]
    if job.model.task == "classification" and job.method.label_dp_epsilon is None:
        targets = (targets > 0).astype(np.float64)  # private answers are targets of 0 and 1 already, de-biased
    weights = head.initial(stream(job.method.seed, holder, "head"))
    return Server(holder, clients, targets, head, weights, [1] * len(clients), options, job.method.seed)


def _options(job: Job, rows: OwnRows) -> Vafl:
    method, count = job.method, len(rows.tokens_train)
    step = method.step or 1.0 / (CURVATURE[job.model.loss] * (len(job.parties) + 1))
    return Vafl(
        variant=method.algorithm,
        batch=min(count, method.batch or max(BATCH_LEAST, count // 100)),
        passes=method.passes,
        in_flight=method.in_flight,
        head_optimiser=Sgd(step),
        penalty=Penalty("l2", job.model.strength) if job.model.strength > 0 else Penalty(),
        private=private_mode(job),
    )


def private_mode(job: Job) -> PrivateEmbedding | None:
    """The mechanism of a job with embedding.epsilon. One embedding of each record is kept back for its score."""
    entry = job.embedding
    if not job.embeds or entry.epsilon is None:
        return None
    assert entry.uploads_max is not None
    return calibrate(
        entry.epsilon,
        entry.delta,
        entry.uploads_max,
        clip=entry.clip,
        gradient_clip=entry.gradient_clip,
        predictions_max=1,
    )


def _optimiser(job: Job, features: Any) -> Optimiser:
    """Where the user left the step open: for a linear part, the share of the curvature bound that is its own. The
    parts' bounds need not be added up for that: each is taken as often as there are parts. In private mode the number
    of columns, which is public, takes the place of the rows' mean squared norm."""
    entry, step = job.embedding, job.method.step
    adam = entry.optimiser == "adam" or (entry.optimiser == "auto" and entry.kind != "linear")
    if adam:
        return Adam(step or ADAM_STEP)
    if step is None and entry.kind != "linear":
        raise BadJob('a network needs a number as method.step with embedding.optimiser = "sgd"; "adam" needs none.')
    squared = float(features.shape[1])
    if entry.epsilon is None:
        squares = features.multiply(features).sum() if hasattr(features, "multiply") else np.square(features).sum()
        squared = float(squares) / features.shape[0]
    bound = CURVATURE[job.model.loss] * (len(job.parties) + 1) * max(squared, 1e-12)
    return Sgd(step or 1.0 / bound)


# -- the trained part -------------------------------------------------------------------------------------------------


def client_of(party: GuardedEmbedding) -> Client:
    inner: Any = party.inner
    found = inner.members[1] if isinstance(inner, Housemates) else inner
    assert isinstance(found, Client)
    return found


def server_of(party: GuardedEmbedding) -> Server | None:
    inner: Any = party.inner
    found = inner.members[0] if isinstance(inner, Housemates) else None
    assert found is None or isinstance(found, Server)
    return found


def trained_part(party: GuardedEmbedding, job: Job, rows: OwnRows) -> OwnModel:
    """This party's part of the model, for its owner to keep."""
    client, server = client_of(party), server_of(party)
    bias = float(server.weights.trained["bias"][0]) if server is not None and job.model.intercept else 0.0
    intercept = holds_intercept(job, party.name)
    trained = client.embedding.to_arrays(client.weights.trained)
    if job.embedding.kind == "linear":
        weights = np.append(trained["weight"][0], bias) if intercept else trained["weight"][0]
        return OwnModel(weights, rows.fitted, intercept, rows.classes)
    arrays = {"trained": trained, "kept": client.embedding.to_arrays(client.weights.kept)}
    return OwnModel(np.array([bias]), rows.fitted, intercept, rows.classes, arrays)


def network_scores(
    job: Job, name: str, shape: tuple[int, ...], arrays: dict[str, Any], bias: float, block: Any
) -> Floats:
    """What a network makes of a block of this party's columns (the column of ones included, where it has one)."""
    features = columns_of(job, name, block)
    embedding = embedding_of(job, features.shape[1], shape, name)
    weights = Weights(embedding.from_arrays(arrays["trained"]), embedding.from_arrays(arrays["kept"]))
    values = embedding.infer(weights, embedding.place(features), np.arange(features.shape[0]))
    return np.asarray(values, dtype=np.float64)[:, 0] + bias
