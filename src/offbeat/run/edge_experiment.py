"""One horizontal run from its parts: rows at edges + a job -> RunRecord.

data = horizontal_from_dataset("mnist", edges=5)
result = run_edges(data, edge_job_from({"algorithm": "steady", "rate": {"clip": 1.0, "step": 8.0}}))
result.record.metrics["test_accuracy"], result.privacy["edge1"]["epsilon"]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offbeat.algorithms.mapa import MESSAGES, Cloud, Edge
from offbeat.algorithms.mapa.privacy import EdgePrivacy, privacy_of_edges
from offbeat.data.horizontal import HorizontalData, horizontal_from_dataset
from offbeat.data.names import did_you_mean
from offbeat.errors import BadJob
from offbeat.jobs.horizontal import EdgeJob, build_cloud, build_edge, model_of, privacy_of, recipe_of, rows_for
from offbeat.jobs.vertical import Job
from offbeat.learning.horizontal import EdgeData, HorizontalModel
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.lag import Lags
from offbeat.metrics.live import LiveRun, PartyNow, live_run
from offbeat.metrics.machine import library_versions, offbeat_version, this_machine
from offbeat.metrics.record import Certificate, DataRecord, PartyRecord, RunRecord
from offbeat.privacy.noise import SEEDED_WARNING
from offbeat.run.record import deliveries, now_of, reveals, sent_so_far, traffic, verdict_of
from offbeat.run.runtimes import runtime_for
from offbeat.runtime.contract import Outcome, Runtime, Tally

LOOKS = 40
STAND_IN_SECONDS = 0.05

Watch = Callable[[CurveRow], bool | None]
"""Called at every look; False ends the run there."""


@dataclass(frozen=True)
class EdgeResult:
    """A finished run: its record, the model, and what every edge promised and spent."""

    record: RunRecord
    parameters: np.ndarray
    averaged: np.ndarray
    privacy: Mapping[str, Mapping[str, Any]]
    cloud: Cloud
    edges: Sequence[Edge]


def load_edges(job: EdgeJob) -> HorizontalData:
    """The rows that a job's [data] names, shared out over its edges, of the size that its model wants."""
    entry = job.data
    if entry.set is None:
        raise BadJob(
            'The job names no data. Add [data] with set = "mnist" or another named set (`offbeat data` lists them); '
            "sites with files of their own are served by `offbeat cloud serve` and `offbeat edge serve`."
        )
    data = horizontal_from_dataset(
        entry.set,
        entry.edges,
        entry.split,
        entry.dir,
        job.seed or 0,
        shards_per_edge=entry.shards_per_edge,
        concentration=entry.concentration,
        limit_rows=entry.limit_rows,
    )
    _check_fit(job, data)
    return data


def rows_of_edges(data: HorizontalData, job: EdgeJob) -> tuple[dict[str, EdgeData], EdgeData]:
    """Every edge's rows, and the test rows, as the job's model wants them. CSGD has them all at one place."""
    sites = {"pool": _pooled(data)} if job.algorithm == "csgd" else data.edges
    edges = {name: rows_for(job, x, y) for name, (x, y) in sites.items()}
    return edges, rows_for(job, data.x_test, data.y_test)


def _pooled(data: HorizontalData) -> tuple[Any, Any]:
    return tuple(np.concatenate([part[at] for part in data.edges.values()]) for at in (0, 1))  # type: ignore[return-value]


def run_edges(
    data: HorizontalData,
    job: EdgeJob,
    *,
    runtime: Runtime | None = None,
    watch: Watch | None = None,
    folder: Path | None = None,
) -> EdgeResult:
    """Train once, as job.runtime says unless a runtime is given. `folder`: where event logs may go."""
    _check_fit(job, data)
    rows, test = rows_of_edges(data, job)
    cloud, edges = edge_parties(job, rows)
    if runtime is None:
        runtime = runtime_for(Job(seed=job.seed or 0, runtime=job.runtime), MESSAGES, [cloud, *edges], folder)
    with live_run(folder, now_of(job.algorithm, job.seed, job.runtime.kind, job.updates, unit="updates")) as live:
        onlooker = _Onlooker(cloud, edges, model_of(job), test, job, watch, runtime, live)
        outcome = runtime.run([cloud, *edges], onlooker.look)
        return _result(data, job, cloud, edges, outcome, onlooker)


def edge_parties(job: EdgeJob, rows: Mapping[str, EdgeData]) -> tuple[Cloud, list[Edge]]:
    """The cloud and its edges, before anything has happened."""
    recipes = _recipes(job, rows)
    return build_cloud(job, tuple(rows)), [build_edge(job, name, mine, recipes[name]) for name, mine in rows.items()]


def _check_fit(job: EdgeJob, data: HorizontalData) -> None:
    """The job states the model's size for everybody; the rows must be of that size."""
    for name in job.runtime.slow:
        if name not in (known := ("cloud", *data.names)):
            raise BadJob(f"runtime.slow names {name!r}, which is no party. {did_you_mean(name, known)}")
    columns = int(data.x_test.shape[1])
    wanted = job.model.side**2 if job.model.kind == "digits-network" else job.model.features
    key = "model.side (its square)" if job.model.kind == "digits-network" else "model.features"
    if columns != wanted:
        raise BadJob(f"{key} is {wanted}, and the data has {columns} columns. Set it to fit the data.")
    classes = len(data.classes or ())
    if job.model.kind == "logistic" and classes != 2:
        raise BadJob(
            f'model.kind = "logistic" tells two classes apart, and the data has {classes}. Use "softmax", or "hinge".'
        )
    if job.model.kind != "logistic" and job.model.kind != "digits-network" and classes != job.model.classes:
        raise BadJob(
            f"model.classes is {job.model.classes}, and the data has {classes} classes. Set it to fit the data."
        )


def _recipes(job: EdgeJob, rows: Mapping[str, EdgeData]) -> dict[str, EdgePrivacy]:
    if job.algorithm in ("fedasync", "fedbuff"):
        return {name: recipe_of(job, name, mine.rows) for name, mine in rows.items()}
    return privacy_of_edges(privacy_of(job), {name: mine.rows for name, mine in rows.items()}, job.batch)


class _Onlooker:
    """Evaluates the cloud's model on the test rows now and then; costs the run nothing."""

    def __init__(
        self,
        cloud: Cloud,
        edges: Sequence[Edge],
        model: HorizontalModel,
        test: EdgeData,
        job: EdgeJob,
        watch: Watch | None,
        runtime: Runtime,
        live: LiveRun | None,
    ) -> None:
        self.cloud, self.model, self.test, self.job, self.watch = cloud, model, test, job, watch
        self.edges, self.runtime, self.live = edges, runtime, live
        self.curve: list[CurveRow] = []
        self.seen = -1
        self.stopped = False
        self.every = max(1, job.updates // LOOKS)

    def look(self, time_s: float) -> float | None:
        if self.cloud.version >= self.seen + self.every or self.seen < 0:
            self.seen = self.cloud.version
            self.note(time_s)
        return None if self.stopped else STAND_IN_SECONDS

    def note(self, time_s: float) -> None:
        parameters = self.cloud.parameters
        with np.errstate(over="ignore", invalid="ignore"):  # a model on its way to infinity; the cloud will say so
            loss, accuracy = self.model.loss(parameters, self.test), self.model.accuracy(parameters, self.test)
        sent = int(getattr(self.runtime, "bytes_sent", 0))
        row = CurveRow(time_s, float(self.cloud.version), sent, objective=loss, test_metric=accuracy)
        self.curve.append(row)
        if self.live is not None:
            self.live.look(row, None, self._parties_now)
        if self.watch is not None and self.watch(row) is False:
            self.stopped = True

    def _parties_now(self) -> dict[str, PartyNow]:
        """An edge's own lags are gathered at the end; until then the cloud's are those of all."""
        cloud, runtime = self.cloud, self.runtime
        found = {cloud.name: PartyNow(*Lags.counted(cloud.lags)[:3], *sent_so_far(runtime, cloud.name))}
        for edge in self.edges:
            applied = cloud.applied.get(edge.name, 0)
            found[edge.name] = PartyNow(applied, None, None, *sent_so_far(runtime, edge.name))
        return found


def _result(
    data: HorizontalData, job: EdgeJob, cloud: Cloud, edges: Sequence[Edge], outcome: Outcome, onlooker: _Onlooker
) -> EdgeResult:
    stopped = onlooker.stopped
    onlooker.note(outcome.time_s)
    model, test, last = onlooker.model, onlooker.test, onlooker.curve[-1]
    verdict, reason = verdict_of(outcome, cloud.name, stopped)
    privacy = {edge.name: edge.statement() for edge in edges}
    record = RunRecord(
        offbeat=offbeat_version(),
        algorithm=job.algorithm,
        runtime=job.runtime.kind,
        clock=outcome.clock,
        seed=job.seed if job.seed is not None else -1,
        digest=outcome.digest,
        verdict=verdict,
        reason=reason,
        objective=last.objective,
        certificate=Certificate(),
        passes=sum(cloud.applied.get(edge.name, 0) * edge.mechanism.batch for edge in edges) / sum(data.rows.values()),
        seconds=outcome.time_s,
        metrics={
            "test_accuracy": float(last.test_metric or 0.0),
            "test_accuracy_averaged": model.accuracy(cloud.averaged, test),
        },
        parties=_parties(cloud, edges, outcome),
        reveals=reveals(outcome.tallies, MESSAGES),
        warnings=_warnings(job, edges, privacy, data),
        privacy={name: dict(stated) for name, stated in privacy.items()},
        options=msgspec.to_builtins(job),
        data=DataRecord(data.source, sum(data.rows.values()), int(data.y_test.size), dict(data.rows), data.notes),
        versions=library_versions(),
        machine=this_machine(),
        curve=tuple(onlooker.curve),
        timeline=deliveries(outcome),
    )
    return EdgeResult(record, cloud.parameters, cloud.averaged, privacy, cloud, edges)


def _parties(cloud: Cloud, edges: Sequence[Edge], outcome: Outcome) -> dict[str, PartyRecord]:
    everyone: list[Cloud | Edge] = [cloud, *edges]
    return {party.name: _party(party, outcome) for party in everyone}


def _party(party: Cloud | Edge, outcome: Outcome) -> PartyRecord:
    tally = outcome.tallies.get(party.name, Tally())
    lags = Lags.counted(_lags(party, outcome))
    return PartyRecord(
        updates=lags.number,
        lag_mean=lags.mean,
        lag_max=lags.most,
        lag_histogram=lags.histogram,
        dropped=party.refused + party.dropped if isinstance(party, Cloud) else 0,
        retried=0 if isinstance(party, Cloud) else party.retried,
        **traffic(tally, outcome.time_s),
    )


def _lags(party: Cloud | Edge, outcome: Outcome) -> list[int]:
    """Counts by lag: of every update at the cloud, of its own uploads at an edge."""
    if isinstance(party, Cloud):
        return party.lags
    mine = [value for _, name, what, value in outcome.observations if name == party.name and what == "lag"]
    return np.bincount(np.array(mine, dtype=np.int64)).tolist() if mine else []


def _warnings(
    job: EdgeJob, edges: Sequence[Edge], privacy: Mapping[str, Mapping[str, Any]], data: HorizontalData
) -> tuple[str, ...]:
    found = [warning for edge in edges for warning in edge.warnings]
    spent = [stated["epsilon"] for stated in privacy.values() if stated.get("epsilon") is not None]
    if spent:
        other = max(stated["epsilon (add-remove)"] for stated in privacy.values())
        found.append(
            f"Every edge's uploads together are ({max(spent):.3g}, {job.privacy.delta:g})-differentially private for "
            f"{job.privacy.adjacency} ({other:.3g} for add-remove) against whoever does not see which rows were drawn."
        )
    if job.seed is not None:
        found.append(SEEDED_WARNING)
    if "generated" in data.source:
        found.append("The data is generated, not real.")
    return tuple(dict.fromkeys(found))
