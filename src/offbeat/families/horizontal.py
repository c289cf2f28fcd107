"""Rows at edges under a cloud: MAPA, AUDP, the steady rate, FedAsync, FedBuff."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.algorithms.fedbuff import LocalSteps
from offbeat.algorithms.mapa import CLOUD, MESSAGES, Cloud, Edge, GradientStep, noise_source
from offbeat.algorithms.mapa.privacy import EdgePrivacy, Paper, Privacy, Sound, Unprotected, privacy_of_edges
from offbeat.algorithms.mapa.rates import StagedRate
from offbeat.data.horizontal import HorizontalData, horizontal_from_dataset
from offbeat.data.sites import horizontal_from_tables
from offbeat.data.table import read_table
from offbeat.errors import BadJob
from offbeat.families.contract import Counters, Evaluation, Part, RunAccount
from offbeat.families.statements import about_data, verdict_of
from offbeat.jobs.horizontal import EdgeJob, sized
from offbeat.jobs.methods import horizontal_named
from offbeat.jobs.rules import NETWORK, PAPER, adaptive_clip, model_of, plain_step
from offbeat.learning.horizontal import EdgeData, check_table, edge_data
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.lag import Lags
from offbeat.metrics.record import DataRecord
from offbeat.names import counted, did_you_mean
from offbeat.party.contract import Party
from offbeat.privacy.noise import SEEDED_WARNING
from offbeat.runtime.contract import Outcome

LOOKS = 40
RISEN = 0.25  # of its fall, that an objective may take back
LOOK_S = 0.05


# -- data ------------------------------------------------------------------------------------------------------------


def load_edges(job: EdgeJob) -> HorizontalData:
    """The rows that a job's [data] names, shared out over its edges, of the size that its model wants."""
    entry = job.data
    if job.site:
        data = _from_sites(job)
        _check_fit(_fitting(job, data), data)
        return data
    if entry.set is None:
        raise BadJob(
            "The job names no data. Add one [[site]] table with name and file for each site, and data.label; or [data] "
            'with set = "mnist" or another named set (`offbeat data` lists them).'
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


def _from_sites(job: EdgeJob) -> HorizontalData:
    entry = job.data
    named = None if entry.columns is None else list(entry.columns)
    text = [name for name, holds in (entry.columns or {}).items() if isinstance(holds[0], str)]
    tables = {
        site.name: read_table(site.source, site.id, entry.label, named, text=text, missing="keep") for site in job.site
    }
    return horizontal_from_tables(tables, entry.columns, entry.test_fraction, job.seed or 0)


def _fitting(job: EdgeJob, data: HorizontalData) -> EdgeJob:
    """Where sites bring files, the model's size follows from them."""
    return sized(job, int(data.x_test.shape[1]), len(data.classes or ())) if job.site else job


def _check_fit(job: EdgeJob, data: HorizontalData) -> None:
    """The job states the model's size for everybody; the rows must be of that size."""
    known = (CLOUD, *data.names)
    for name in job.runtime.slow:
        if name not in known:
            raise BadJob(f"runtime.slow names {name!r}, which is no party. {did_you_mean(name, known)}")
    model, columns, classes = job.model, int(data.x_test.shape[1]), len(data.classes or ())
    wanted, key = (model.features, "model.features")
    if model.kind == NETWORK:
        wanted, key = model.side**2, "model.side (its square)"
    if columns != wanted:
        raise BadJob(f"{key} is {wanted}, and the data has {counted(columns, 'column')}. Set it to fit the data.")
    if model.kind == "logistic" and classes != 2:
        raise BadJob(
            f'model.kind = "logistic" tells two classes apart, and the data has {classes}. Use "softmax", or "hinge".'
        )
    if model.kind not in ("logistic", NETWORK) and classes != model.classes:
        raise BadJob(f"model.classes is {model.classes}, and the data has {classes} classes. Set it to fit the data.")


def rows_for(job: EdgeJob, features: Any, labels: Any) -> EdgeData:
    """An edge's rows as the model wants them. Scaling a row by its own norm looks at no other row."""
    values, labels = np.asarray(features), np.asarray(labels)
    check_table(values, labels)
    values = values.astype(np.float32).reshape(len(labels), -1)
    if job.model.rows == "unit":
        values = job.model.row_norm * values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return edge_data(values, labels)


# -- from a job to parties -------------------------------------------------------------------------------------------


def privacy_of(job: EdgeJob) -> Privacy:
    entry = job.privacy
    if entry.mode == "none" or not horizontal_named(job.algorithm).private:
        return Unprotected()
    if entry.mode == PAPER:
        return Paper(entry.epsilon, getattr(model_of(job), "first_layer", None))
    assert entry.uploads is not None, "a job is resolved before it is run"
    return Sound(entry.epsilon, entry.uploads, entry.delta, entry.adjacency, entry.noise, adaptive_clip(job))


def recipes_of(job: EdgeJob, rows: Mapping[str, int]) -> dict[str, EdgePrivacy]:
    """What each edge does with a batch before it leaves, by its number of rows."""
    if not horizontal_named(job.algorithm).local_steps:
        return privacy_of_edges(privacy_of(job), rows, job.batch)
    steps, size = job.rate.local_steps, plain_step(job)
    return {
        name: EdgePrivacy(LocalSteps(steps, size, min(job.batch, count), job.strength)) for name, count in rows.items()
    }


def build_cloud(job: EdgeJob, edges: Sequence[str] = ()) -> Cloud:
    """The cloud of a job; `edges` are those it waits for, others may join."""
    rule = horizontal_named(job.algorithm).rule(job)
    start = model_of(job).start()
    return Cloud(start, rule, updates=job.updates, lag_max=job.lag_max, edges=tuple(edges), linger_s=job.retry_s)


def build_edge(job: EdgeJob, name: str, data: EdgeData, recipe: EdgePrivacy | None = None) -> Edge:
    """One edge of a job, its noise calibrated to its own rows and budget."""
    recipe = recipe or recipes_of(job, {name: data.rows})[name]
    return Edge(name, model_of(job), data, recipe, noise_source(job.seed, name), retry_s=job.retry_s)


# -- one run ---------------------------------------------------------------------------------------------------------


class HorizontalTraining:
    """A run in one place."""

    unit, final_look, messages, private_labels = "updates", True, MESSAGES, False
    session: Mapping[str, Any] = {}

    def __init__(self, job: EdgeJob, data: HorizontalData, *, only: str | None = None) -> None:
        job = _fitting(job, data)
        _check_fit(job, data)
        self.job, self.data, self.goal = job, data, float(job.updates)
        sites = {"pool": _pooled(data)} if horizontal_named(job.algorithm).pooled else data.edges
        rows = {name: rows_for(job, x, y) for name, (x, y) in sites.items()}
        recipes = recipes_of(job, {name: mine.rows for name, mine in rows.items()})
        self.cloud = build_cloud(job, tuple(rows))
        self.edges = [build_edge(job, name, mine, recipes[name]) for name, mine in rows.items()]
        everyone: list[Party] = [self.cloud, *self.edges]
        self.parties = [party for party in everyone if only in (None, party.name)]
        self.model = model_of(job)
        self.test = rows_for(job, data.x_test, data.y_test) if data.y_test.size else None
        self._version_seen = -1

    # -- while it goes on

    def begin(self) -> None:
        pass

    def done(self) -> float:
        return float(self.cloud.version)

    def due(self) -> bool:
        every = max(1, self.job.updates // LOOKS)
        return self._version_seen < 0 or self.cloud.version >= self._version_seen + every

    def pause_s(self, time_s: float) -> float:
        return LOOK_S

    def seen(self) -> Evaluation:
        self._version_seen = self.cloud.version
        parameters = self.cloud.parameters
        if self.test is None:
            return Evaluation(None)
        with np.errstate(over="ignore", invalid="ignore"):  # a model on its way to infinity; the cloud will say so
            return Evaluation(self.model.loss(parameters, self.test), self.model.accuracy(parameters, self.test))

    def counters(self, outcome: Outcome | None) -> dict[str, Counters]:
        """Lags: of every update at the cloud; of its own uploads at an edge, which are known at the end."""
        cloud, lags = self.cloud, Lags.counted(self.cloud.lags)
        told = {cloud.name: Counters(lags.number, lags, cloud.refused + cloud.dropped)}
        for edge in self.edges:
            mine = None if outcome is None else _observed_lags(edge.name, outcome)
            updates = cloud.applied.get(edge.name, 0) if mine is None else mine.number
            told[edge.name] = Counters(updates, mine, retried=edge.retried)
        return told

    # -- at its end

    def account(self, outcome: Outcome, rows: Sequence[CurveRow], *, stopped: bool) -> RunAccount:
        verdict, reason = verdict_of(outcome, self.cloud.name, stopped)
        cloud, counts = self.cloud, self.data.rows
        drawn = sum(cloud.applied.get(edge.name, 0) * edge.mechanism.batch for edge in self.edges)
        privacy = {edge.name: dict(edge.statement()) for edge in self.edges}
        last = self.seen()
        return RunAccount(
            verdict=verdict,
            reason=reason,
            objective=last.objective,
            passes=drawn / sum(counts.values()),
            counters=self.counters(outcome),
            promises=self._promises(privacy),
            warnings=[*self._concerns(rows), *self._warnings()],
            data=DataRecord(
                self.data.source,
                sum(counts.values()),
                int(self.data.y_test.size),
                dict(counts),
                self.data.notes,
                classes=self.data.classes or () if self.job.site else (),
            ),
            curve=rows,
            metrics={}
            if self.test is None
            else {
                "test_accuracy": float(last.metric or 0.0),
                "test_accuracy_averaged": self.model.accuracy(cloud.averaged, self.test),
            },
            privacy=privacy,
        )

    def _promises(self, privacy: Mapping[str, Mapping[str, Any]]) -> list[str]:
        spent = [stated["epsilon"] for stated in privacy.values() if stated.get("epsilon") is not None]
        if not spent:
            return []
        entry, other = self.job.privacy, max(stated["epsilon (add-remove)"] for stated in privacy.values())
        return [
            f"Every edge's uploads together are ({max(spent):.3g}, {entry.delta:g})-differentially private for "
            f"{entry.adjacency} ({other:.3g} for add-remove) against whoever does not see which rows were drawn."
        ]

    def _warnings(self) -> list[str]:
        found = [warning for edge in self.edges for warning in edge.warnings]
        found += [SEEDED_WARNING] if self.job.seed is not None else []
        return list(dict.fromkeys([*found, *about_data(self.data.source)]))

    def _concerns(self, rows: Sequence[CurveRow]) -> list[str]:
        """What went wrong with a training that ended in good order."""
        found, rule = [], self.cloud.rule
        rate = rule.rate if isinstance(rule, GradientStep) else None
        if isinstance(rate, StagedRate) and rate.stage == 0 and rate.left > 0 and rate.clip > rate.floor:
            found.append(
                f"The first stage never ended: it lasts {rate.length:,} updates, and {self.cloud.version:,} were made. "
                f"The clip is still {rate.clip:.3g} and the step {rate.step(1):.2g}. Give constants.smoothness and "
                'constants.lag that are nearer to the truth, or use algorithm = "steady", which has no stages.'
            )
        by_rule = self.job.rate.step is None and self.job.rate.clip is None
        return [*found, *rising([row.objective for row in rows if row.objective is not None], by_rule)]

    def chosen(self) -> dict[str, Any]:
        """What the cloud's rule came to, where it steps along gradients."""
        rule, version = self.cloud.rule, max(1, self.cloud.version)
        return {"clip": rule.clip, "step": rule.rate.step(version)} if isinstance(rule, GradientStep) else {}

    def models(self, outcome: Outcome) -> dict[str, Part]:
        """The cloud's parameters, the last and the averaged."""
        arrays, fitted = {"parameters": self.cloud.parameters, "averaged": self.cloud.averaged}, self.data.fitted
        return {CLOUD: Part(arrays, None if fitted is None else fitted.columns, fitted)}


def rising(objectives: Sequence[float], by_rule: bool) -> list[str]:
    """A sentence if the objective did not fall, or took back a quarter of its fall. `by_rule`: the job has left step
    and clip out."""
    if len(objectives) < 2:
        return []
    first, best, last = objectives[0], min(objectives), objectives[-1]
    if last < best + RISEN * (first - best) or last <= best:
        return []
    how = f"rose from {first:.3g} to" if last > first else f"fell from {first:.3g} to {best:.3g} and rose again to"
    follow = "" if by_rule else "Leave rate.step and rate.clip out, so that they follow from the noise, or "
    shorten = "Set a shorter rate.step" if by_rule else "shorten the step"
    return [
        f"The objective {how} {last:.3g}: the steps are too long for these gradients and their noise. "
        f"{follow}{shorten}; a larger epsilon or more rows at each edge lower the noise."
    ]


def _observed_lags(name: str, outcome: Outcome) -> Lags:
    mine = [value for _, party, what, value in outcome.observations if party == name and what == "lag"]
    return Lags.counted(np.bincount(np.array(mine, dtype=np.int64)).tolist()) if mine else Lags()


def _pooled(data: HorizontalData) -> tuple[Any, Any]:
    return tuple(np.concatenate([part[at] for part in data.edges.values()]) for at in (0, 1))  # type: ignore[return-value]
