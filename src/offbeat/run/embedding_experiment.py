"""One VAFL run from its parts: columns at clients + labels at a server + a job -> RunRecord.

    data = vertical_from_dataset("mnist", parties=7)
    result = run_embedding(data, Job(algorithm="vafl", passes=10, step=0.3))
    result.record.metrics["test_accuracy"]

Without more, every client's embedding is linear and the head additive: logistic, softmax or least-squares regression.
`embeddings` and `head` take networks instead, `options` everything a job has no key for (private mode, delay bound).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import MESSAGES, Client, Server, Vafl
from offbeat.data.assemble import VerticalData
from offbeat.errors import BadJob
from offbeat.families.networks import additive_head, networks_of, options_of, vafl_options
from offbeat.jobs.embedding import check_secret_noise
from offbeat.jobs.vertical import SERVER, Job
from offbeat.learning.embeddings import Embedding, Head, LinearEmbedding
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.live import LiveRun, PartyNow, live_run
from offbeat.metrics.machine import library_versions, offbeat_version, this_machine
from offbeat.metrics.record import Certificate, PartyRecord, RunRecord
from offbeat.party.contract import Party
from offbeat.run.record import data_record, deliveries, label_ledger, now_of, reveals, sent_so_far, traffic, verdict_of
from offbeat.run.runtimes import runtime_for
from offbeat.runtime.contract import Outcome, Runtime

Array = NDArray[Any]
Watch = Callable[[CurveRow], bool | None]
"""Called at every look; False ends the run there."""
WALL_LOOK_S = 0.5


@dataclass(frozen=True)
class EmbeddingResult:
    """A finished run: its record and the parties with the model in them."""

    record: RunRecord
    server: Server
    clients: Sequence[Client]

    def predict(self, *, test: bool = True) -> Array:
        """Probabilities of the classes, or predicted values, from everyone's newest weights."""
        return vafl.joint_scores(self.server, self.clients, test=test)


def run_embedding(
    data: VerticalData,
    job: Job,
    *,
    embeddings: Mapping[str, Embedding] | None = None,
    head: Head | None = None,
    options: Vafl | None = None,
    runtime: Runtime | None = None,
    watch: Watch | None = None,
    folder: Path | None = None,
    secret_noise: bool = False,
) -> EmbeddingResult:
    """Train once. What `options` leaves at its default is taken from the job."""
    secret_noise = secret_noise or job.embedding.secret_noise
    if secret_noise:
        check_secret_noise(job.runtime.kind, "the job")
    server, clients = embedding_parties(data, job, embeddings, head, options, secret_noise=secret_noise)
    head = server.head
    test_targets = targets_of(data.y_test, head) if data.test_rows else None
    parties: list[Party] = [server, *clients]
    chosen = runtime if runtime is not None else runtime_for(job, MESSAGES, parties, folder)
    with live_run(folder, now_of(job.algorithm, job.seed, job.runtime.kind, job.passes)) as live:
        onlooker = _Onlooker(server, clients, targets_of(data.y_train, head), test_targets, job, chosen, watch, live)
        outcome = chosen.run(parties, onlooker.look)
        onlooker.note(outcome.time_s)
    record = _record(data, job, server, clients, outcome, onlooker, secret_noise)
    return EmbeddingResult(record, server, clients)


def embedding_parties(
    data: VerticalData,
    job: Job,
    embeddings: Mapping[str, Embedding] | None = None,
    head: Head | None = None,
    options: Vafl | None = None,
    *,
    secret_noise: bool = False,
) -> tuple[Server, list[Client]]:
    """The server and its clients, before anything has happened; what is not given is as the job says."""
    if SERVER in data.names:
        raise BadJob(f"A client is called {SERVER!r}, which is VAFL's own name for who holds the labels; rename it.")
    if embeddings is None and head is None:
        embeddings, head = networks_of(job, data)
        options = vafl_options(job, data, head) if options is None else options
    head = additive_head(data, job) if head is None else head
    _check_head(data, head)
    if embeddings is None:
        embeddings = {name: LinearEmbedding(data.widths[name], head.outputs) for name in data.names}
    options = options_of(job, data, head) if options is None else replace(options, variant=job.algorithm)
    return vafl.build(
        data.train,
        targets_of(data.y_train, head),
        embeddings,
        head,
        options,
        seed=job.seed,
        server=SERVER,
        test_features=data.test if data.test_rows else None,
        test_targets=targets_of(data.y_test, head) if data.test_rows else None,
        secret_noise=secret_noise or job.embedding.secret_noise,
    )


def _check_head(data: VerticalData, head: Head) -> None:
    """Refuse a head under which labels would be merged or numbers cut into classes."""
    if data.task == "regression" and head.loss_name != "squared":
        raise BadJob(f"The task is a regression, and the head's loss is {head.loss_name!r}; expected 'squared'.")
    classes = len(data.classes or ())
    if data.task == "multiclass" and (head.loss_name != "softmax" or head.outputs != classes):
        raise BadJob(
            f"There are {classes} classes, and the head's loss is {head.loss_name!r} with {head.outputs} outputs; "
            f"expected 'softmax' with {classes}."
        )


def targets_of(y: Array, head: Head) -> Array:
    """Labels as the head wants them: 0/1, one-hot, or the value."""
    if head.loss_name == "squared":
        return np.asarray(y, dtype=np.float64)[:, None]
    if head.outputs == 1:
        return (np.asarray(y) > 0).astype(np.float64)[:, None]
    if head.outputs == 2 and np.isin(y, (-1, 1)).all():  # as two classes are coded for the linear methods
        y = np.asarray(y) > 0
    return vafl.one_hot(y, head.outputs)


# -- looking on -----------------------------------------------------------------------------------------------------


class _Onlooker:
    """Evaluates everyone's newest weights so many times in a pass; costs the run nothing."""

    def __init__(
        self,
        server: Server,
        clients: Sequence[Client],
        targets: Array,
        test_targets: Array | None,
        job: Job,
        runtime: Runtime,
        watch: Watch | None,
        live: LiveRun | None = None,
    ) -> None:
        self.server, self.clients, self.targets, self.test_targets = server, clients, targets, test_targets
        self.job, self.runtime, self.watch, self.live = job, runtime, watch, live
        self.curve: list[CurveRow] = []
        self.rows_seen = -1
        self.stopped = False

    def look(self, time_s: float) -> float | None:
        """Looks often at first, to learn how long a part of a pass takes; notes only when one has gone by."""
        due = self.server.rows * len(self.clients) / self.job.looks_per_pass
        if self.rows_seen < 0 or self.server.rows_done >= self.rows_seen + due:
            self.note(time_s)
        if self.stopped:
            return None
        if self.job.runtime.kind != "simulator":
            return WALL_LOOK_S
        rate = self.server.rows_done / time_s if time_s > 0 and self.server.rows_done else 0.0
        return float(due / rate / 2) if rate else max(time_s, 1e-3)

    def note(self, time_s: float) -> None:
        if self.server.rows_done == self.rows_seen and self.curve:
            return
        self.rows_seen = self.server.rows_done
        row = CurveRow(
            time_s,
            self.passes(),
            int(getattr(self.runtime, "bytes_sent", 0)),
            objective=vafl.objective(self.server, self.clients, self.targets),
            test_metric=next(iter(self.metrics().values()), None),
        )
        self.curve.append(row)
        if self.live is not None:
            self.live.look(row, None, self._parties_now)
        if self.watch is not None and self.watch(row) is False:
            self.stopped = True

    def _parties_now(self) -> dict[str, PartyNow]:
        server, runtime = self.server, self.runtime
        found = {server.name: PartyNow(server.iteration, None, None, *sent_so_far(runtime, server.name))}
        for client in self.clients:
            lags = server.table.lag_summary(server.index[client.name])
            sent = sent_so_far(runtime, client.name)
            found[client.name] = PartyNow(client.version, lags["lag_mean"], lags["lag_max"], *sent)
        return found

    def passes(self) -> float:
        return self.server.rows_done / (self.server.rows * len(self.clients))

    def metrics(self) -> dict[str, float]:
        if self.test_targets is None:
            return {}
        found = vafl.score(self.server.head, vafl.joint_scores(self.server, self.clients), self.test_targets)
        return {f"test_{name}": value for name, value in found.items()}


# -- the record -----------------------------------------------------------------------------------------------------


def _record(
    data: VerticalData,
    job: Job,
    server: Server,
    clients: Sequence[Client],
    outcome: Outcome,
    onlooker: _Onlooker,
    secret_noise: bool,
) -> RunRecord:
    verdict, reason = verdict_of(outcome, server.name, onlooker.stopped)
    embedded = {client.name: client.privacy() for client in clients if client.ledger is not None}
    answered = server.options.label_dp_epsilon
    labels = {} if answered is None else label_ledger([server.name], answered, seeded=not secret_noise)
    objective = vafl.objective(server, clients, onlooker.targets)
    return RunRecord(
        offbeat=offbeat_version(),
        algorithm=job.algorithm,
        runtime=job.runtime.kind,
        clock=outcome.clock,
        seed=job.seed,
        digest=outcome.digest,
        verdict=verdict,
        reason=reason,
        objective=objective if isfinite(objective) else None,
        certificate=Certificate(),
        passes=onlooker.passes(),
        seconds=outcome.time_s,
        metrics=dict(onlooker.metrics()),
        parties=_parties(server, clients, outcome, job.runtime.lanes),
        reveals=reveals(outcome.tallies, MESSAGES, private_labels=server.options.label_dp_epsilon is not None),
        warnings=_warnings(data, server, outcome, embedded, secret_noise),
        privacy=labels | embedded,
        options={**msgspec.to_builtins(job), "chosen": _chosen(server)},
        data=data_record(data),
        versions=library_versions(),
        machine=this_machine(),
        curve=tuple(onlooker.curve),
        timeline=deliveries(outcome),
    )


def _chosen(server: Server) -> dict[str, Any]:
    options = server.options
    plain = asdict(options) | {
        "optimiser": repr(options.optimiser),
        "head_optimiser": repr(options.head_optimiser),
        "optimisers": {name: repr(rule) for name, rule in options.optimisers.items()},
        "noise_label": vafl.privacy_label(options),
        "delay_bound_updates": server.lag_max if isfinite(server.lag_max) else None,
        "refreshed_rows": server.refreshes.asked_rows,
        "cold_rows_used": int(server.table.cold_used.sum()),
        "late_rows_used": int(server.table.late_used.sum()),
        "head_updates": server.iteration,
    }
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items()}


def _parties(server: Server, clients: Sequence[Client], outcome: Outcome, lanes: int) -> dict[str, PartyRecord]:
    """A client's lags are those of its embeddings when others' updates used them."""
    found = {}
    everyone: list[Server | Client] = [server, *clients]
    for party in everyone:
        lags = server.table.lag_summary(server.index[party.name]) if party.name in server.index else {}
        found[party.name] = PartyRecord(
            updates=server.iteration if isinstance(party, Server) else party.version,
            lag_mean=lags.get("lag_mean", 0.0),
            lag_max=lags.get("lag_max", 0),
            lag_histogram=tuple(lags.get("lag_histogram", ())),
            dropped=server.duplicates if isinstance(party, Server) else 0,
            retried=0 if isinstance(party, Server) else party.releases.retried,
            abandoned=server.refreshes.abandoned if isinstance(party, Server) else 0,
            **traffic(outcome.tallies[party.name], outcome.time_s, lanes),
        )
    return found


def _warnings(
    data: VerticalData,
    server: Server,
    outcome: Outcome,
    privacy: Mapping[str, Mapping[str, Any]],
    secret_noise: bool,
) -> tuple[str, ...]:
    options = server.options
    found = [vafl.what_clients_learn(server.head, options), _about_embeddings(options, privacy)]
    missing = {server.clients[i]: len(rows) for i, rows in server.prediction.without.items()}
    if missing:
        told = ", ".join(f"{name} ({count} rows)" for name, count in missing.items())
        found.append(f"Predicted without {told}: the mean of its training embeddings stood in for each.")
    if outcome.stalled and not outcome.out_of_time:
        found.append(f"The run did not end by itself: {outcome.stalled}.")
    found.append(vafl.noise_warning(secret_noise, options))
    if options.private is not None:
        found.append(
            "The curves and metrics here were computed without noise, from all columns in one place. They are no part "
            "of what the server learned, and are not private."
        )
    if "generated" in data.source:
        found.append("The data is generated, not real.")
    return tuple(sentence for sentence in found if sentence)


def _about_embeddings(options: Vafl, privacy: Mapping[str, Mapping[str, Any]]) -> str:
    if not privacy:
        return f"The server learned an embedding of every row, many times over ({vafl.privacy_label(options)})."
    worst = max(privacy.values(), key=lambda said: float(said["epsilon"]))
    return (
        f"What the server learned about one record's columns at one client is ({worst['epsilon']:.3g}, "
        f"{worst['delta']:g})-differentially private for replace-one, over {worst['releases']} releases and "
        f"{worst['steps']} steps; labels, scaling and several records of one person are not covered."
    )
