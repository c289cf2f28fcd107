"""One party of a VAFL run, built from its own rows: the label holder is the server, and a client too.

Every party turns its columns into one number a row and the server adds them up: so the trained model is a sum of
parts, each kept by its owner, and joint predictions work as for the linear methods, under masks.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Client, Server, Vafl
from offbeat.algorithms.vafl.checks import check_private
from offbeat.algorithms.vafl.options import known_start
from offbeat.data.matrix import Floats
from offbeat.errors import BadJob
from offbeat.families.contract import Counters
from offbeat.families.networks import ADAM_STEP, CURVATURE, mean_square, network, private_mode, takes_covariance
from offbeat.jobs.organisations import OrgJob
from offbeat.learning.embeddings import (
    Adam,
    AdditiveHead,
    ClientPenalty,
    Embedding,
    LinearEmbedding,
    Optimiser,
    Sgd,
    Weights,
)
from offbeat.learning.layouts import LAYOUTS, fits
from offbeat.orgs.guards import BatchNamed, GuardedEmbedding, WatchedRows
from offbeat.orgs.keyed_noise import KeyedNoise
from offbeat.orgs.rows import OwnModel, OwnRows
from offbeat.party import contract
from offbeat.party.contract import Message
from offbeat.privacy.embedding import PrivateEmbedding
from offbeat.randomness import stream


class CombinedParty:
    """Two parties under one roof: to everybody else they are one, with one name. What they tell each other is handled
    at once, in the order in which it was said. The first of `members` has the house's name: it hears what comes from
    outside, and its end is the house's."""

    def __init__(self, members: Sequence[contract.Party]) -> None:
        self.members = tuple(members)
        self.name: contract.PartyName = self.members[0].name
        self._place = {member.name: place for place, member in enumerate(self.members)}

    def handle(self, event: contract.Event) -> list[contract.Effect]:
        waiting = deque(self._for_whom(event))
        outside: list[contract.Effect] = []
        while waiting:
            place, news = waiting.popleft()
            for effect in self.members[place].handle(news):
                if isinstance(effect, (contract.Send, contract.Broadcast)):
                    self._post(self.members[place].name, effect, waiting, outside)
                elif not isinstance(effect, contract.Finish) or place == 0:
                    outside.append(self._marked(effect, place))
        return outside

    def _for_whom(self, event: contract.Event) -> list[tuple[int, contract.Event]]:
        count = len(self.members)
        if isinstance(event, contract.Received):
            return [(0, event)]
        if isinstance(event, contract.Computed):
            ticket, place = divmod(event.ticket, count)
            return [(place, contract.Computed(ticket, event.result))]
        if isinstance(event, contract.Woken):
            token, place = divmod(event.token, count)
            return [(place, contract.Woken(token))]
        return [(place, event) for place in range(count)]

    def _post(
        self,
        sender: contract.PartyName,
        effect: contract.Send | contract.Broadcast,
        waiting: deque[tuple[int, contract.Event]],
        outside: list[contract.Effect],
    ) -> None:
        to = (effect.to,) if isinstance(effect, contract.Send) else effect.to
        waiting.extend(
            (self._place[name], contract.Received(sender, effect.body)) for name in to if name in self._place
        )
        away = tuple(name for name in to if name not in self._place)
        if away:
            outside.append(effect if isinstance(effect, contract.Send) else contract.Broadcast(away, effect.body))

    def _marked(self, effect: contract.Effect, place: int) -> contract.Effect:
        """Tickets and tokens say whose they are."""
        if isinstance(effect, contract.Compute):
            return msgspec.structs.replace(effect, ticket=effect.ticket * len(self.members) + place)
        if isinstance(effect, contract.Wake):
            return msgspec.structs.replace(effect, token=effect.token * len(self.members) + place)
        return effect

    def snapshot(self) -> contract.State:
        return {"members": [member.snapshot() for member in self.members]}

    def restore(self, state: Mapping[str, object]) -> None:
        kept = state["members"]
        assert isinstance(kept, list)
        for member, one in zip(self.members, kept, strict=True):
            member.restore(one)


BATCH_LEAST = 64


class OwnEmbedding:
    """VAFL. `secret` is this party's own, for this run: noise comes from it. `shape`: how its columns are laid out."""

    messages: tuple[type[Message], ...] = (*vafl.MESSAGES, BatchNamed)

    def __init__(
        self, job: OrgJob, rows: OwnRows, watched: WatchedRows, *, secret: bytes, shape: tuple[int, ...] = ()
    ) -> None:
        self.job, self.rows, self.watched, self.name = job, rows, watched, watched.owner
        holder, features = job.labels_at[0], rows.train
        embedding = embedding_of(job, features.shape[1], shape, self.name)
        options = known_start(replace(_options(job, rows), optimiser=_optimiser(job, features)), [embedding])
        if options.private is not None:
            check_private(options.private, embedding)
        self.client = Client(
            f"{self.name} (columns)" if self.name == holder else self.name,
            holder,
            embedding.place(features),
            embedding,
            embedding.initial(stream(job.method.seed, self.name, "weights")),
            options,
            job.method.seed,
            KeyedNoise(secret, "embedding"),
            KeyedNoise(secret, "gradient"),
        )
        self.server = _server(job, rows, options) if self.name == holder else None
        inner = self.client if self.server is None else CombinedParty([self.server, self.client])
        self.party = GuardedEmbedding(inner, watched)

    def counters(self) -> Counters:
        client, server = self.client, self.server
        duplicates, abandoned = (0, 0) if server is None else (server.duplicates, server.refreshes.abandoned)
        return Counters(client.version, None, duplicates, client.releases.retried, abandoned)

    def passes(self) -> float:
        client, server = self.client, self.server
        if server is not None:
            return float(server.rows_done / (server.rows * len(server.clients)))
        return float(client.version * client.options.batch / client.rows)

    def model(self) -> OwnModel:
        client, server, rows = self.client, self.server, self.rows
        bias = float(server.weights.trained["bias"][0]) if server is not None and self.job.model.intercept else 0.0
        trained = client.embedding.to_arrays(client.weights.trained)
        if self.job.embedding.kind == "linear":
            return OwnModel(np.append(trained["weight"][0], bias), rows.fitted, rows.classes)
        arrays = {"trained": trained, "kept": client.embedding.to_arrays(client.weights.kept)}
        return OwnModel(np.array([bias]), rows.fitted, rows.classes, arrays)

    def certified(self) -> bool:
        return False

    def privacy(self) -> dict[str, Any] | None:
        return self.client.privacy() if self.client.ledger is not None else None


def embedding_of(job: OrgJob, columns: int, shape: tuple[int, ...], name: str) -> Embedding:
    kind = job.embedding.kind
    if kind == "linear":
        return LinearEmbedding(columns, 1)
    check_shape(job, shape, name, columns)
    seed = int(stream(job.method.seed, name, "network").integers(2**31))
    return network(kind, (columns,) if kind == "mlp" else shape, 1, job.embedding, seed=seed)


def check_shape(job: OrgJob, shape: tuple[int, ...], name: str, columns: int | None = None) -> None:
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


def _server(job: OrgJob, rows: OwnRows, options: Vafl) -> Server:
    assert rows.y_train is not None
    holder = job.labels_at[0]
    clients = tuple(f"{name} (columns)" if name == holder else name for name in job.parties)
    head = AdditiveHead(1, job.model.loss, bias=job.model.intercept)
    targets = rows.y_train[:, None]
    if job.model.task == "classification" and job.method.label_dp_epsilon is None:
        targets = (targets > 0).astype(np.float64)  # private answers are targets of 0 and 1 already, de-biased
    weights = head.initial(stream(job.method.seed, holder, "head"))
    return Server(holder, clients, targets, head, weights, [1] * len(clients), options, job.method.seed)


def _options(job: OrgJob, rows: OwnRows) -> Vafl:
    method, count = job.method, len(rows.tokens_train)
    step = method.step or 1.0 / (CURVATURE[job.model.loss] * (len(job.parties) + 1))
    once = takes_covariance(job.embedding)
    usual = count if once else max(BATCH_LEAST, count // 100)
    return Vafl(
        variant=method.algorithm,
        batch=min(count, method.batch or usual),
        passes=min(method.passes, 1.0) if once else method.passes,
        in_flight=method.in_flight,
        head_optimiser=Sgd(step),
        penalty=ClientPenalty("l2", job.model.strength) if job.model.strength > 0 else ClientPenalty(),
        private=own_private_mode(job),
    )


def own_private_mode(job: OrgJob) -> PrivateEmbedding | None:
    """The mechanism of a job with embedding.epsilon. One embedding of each record is kept back for its score."""
    return private_mode(job.embedding, predictions_max=1) if job.embeds else None


def _optimiser(job: OrgJob, features: Any) -> Optimiser:
    """Where the user left the step open: for a linear part, the share of the curvature bound that is its own. The
    parts' bounds need not be added up for that: each is taken as often as there are parts. In private mode the number
    of columns, which is public, takes the place of the rows' mean squared norm."""
    entry, step = job.embedding, job.method.step
    if entry.optimiser == "adam" or (entry.optimiser == "auto" and entry.kind != "linear"):
        return Adam(step or ADAM_STEP)
    if step is None and entry.kind != "linear":
        raise BadJob('a network needs a number as method.step with embedding.optimiser = "sgd"; "adam" needs none.')
    squared = mean_square(features) if entry.epsilon is None else float(features.shape[1])
    squared = 1.0 if takes_covariance(entry) else squared
    bound = CURVATURE[job.model.loss] * (len(job.parties) + 1) * max(squared, 1e-12)
    return Sgd(step or 1.0 / bound)


def network_scores(
    job: OrgJob, name: str, shape: tuple[int, ...], arrays: dict[str, Any], bias: float, block: Any
) -> Floats:
    """What a network makes of a block of this party's columns (the column of ones included, where it has one)."""
    features = block
    embedding = embedding_of(job, features.shape[1], shape, name)
    weights = Weights(embedding.from_arrays(arrays["trained"]), embedding.from_arrays(arrays["kept"]))
    values = embedding.infer(weights, embedding.place(features), np.arange(features.shape[0]))
    return np.asarray(values, dtype=np.float64)[:, 0] + bias
