"""One run from its parts: data + job -> RunRecord.

    result = run_experiment(data, Job(algorithm="afsaga-vp", passes=20, target=1e-6))
    result.record.certificate.duality_gap

The rows are shuffled once by the shared seed, each party gets its block, the method's builder makes the parties, the
runtime carries them, and an onlooker evaluates the pooled objective now and then without costing the run anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offbeat.data.assemble import VerticalData
from offbeat.errors import BadJob
from offbeat.families.evaluation import Floats, Setting, Weights, party_weights, prepare
from offbeat.jobs.methods import Method, method_named
from offbeat.jobs.vertical import Job
from offbeat.learning.losses import DEBIASED_LOGISTIC, LOGISTIC, SQUARED, Loss, loss_named
from offbeat.learning.penalties import penalty_named
from offbeat.learning.steps import grid
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.live import LiveRun, PartyNow, live_run
from offbeat.metrics.machine import library_versions, offbeat_version, this_machine
from offbeat.metrics.record import Certificate, RunRecord
from offbeat.party.contract import Party
from offbeat.party.masked_sum import SumOptions
from offbeat.party.member import LinearOptions
from offbeat.party.survey import Problem
from offbeat.privacy.label_response import private_targets
from offbeat.privacy.masks import FRACTION_BITS
from offbeat.privacy.noise import SeededNoise
from offbeat.run.record import (
    certificate_from,
    certificate_of,
    data_record,
    deliveries,
    label_ledger,
    now_of,
    party_now,
    party_record,
    reveals,
    warnings_of,
    with_certificates,
)
from offbeat.run.runtimes import costs_of, ignored_by, runtime_for
from offbeat.runtime.contract import Outcome, Runtime

STEP_GRID_SPAN = 12.0
STEP_GRID_PASSES = 3.0
TEST_METRIC_EVERY = 4


@dataclass(frozen=True)
class Glance:
    """What an onlooker learns at one look."""

    time_s: float
    passes: float
    objective: float
    suboptimality: float | None
    lag_mean: float
    certificate: float | None


Watch = Callable[[Glance], bool]
"""Called at every look; False ends the run there."""


@dataclass(frozen=True)
class Result:
    """A finished run: its record, and the model by party."""

    record: RunRecord
    weights: Mapping[str, Floats]
    intercept: float
    optimum: float | None
    parties: Sequence[Any]


def run_experiment(
    data: VerticalData,
    job: Job,
    *,
    optimum: float | None = None,
    watch: Watch | None = None,
    folder: Path | None = None,
) -> Result:
    """Train once. `optimum`: the least objective where it is known already. `folder`: where event logs may go, and
    where the run can be watched."""
    with live_run(folder, now_of(job.algorithm, job.seed, job.runtime.kind, job.passes, job.target)) as live:
        return _run(data, job, optimum, watch, folder, live)


def _run(
    data: VerticalData,
    job: Job,
    optimum: float | None,
    watch: Watch | None,
    folder: Path | None,
    live: LiveRun | None,
) -> Result:
    setting = setting_for(data, job)
    if optimum is None and job.optimum:
        optimum = setting.optimum(job.seed)
    tried: list[dict[str, float]] = []
    if job.step == "grid":
        job, tried = _best_step(data, job, setting)
    method = method_named(job.algorithm)
    parties = build_parties(setting, data, job)
    runtime = runtime_for(job, method.family().messages, parties, folder)
    onlooker = Onlooker(setting, parties, job, method, runtime, optimum, watch, live)
    outcome = runtime.run(parties, onlooker.look)
    return _result(data, job, method, setting, parties, outcome, onlooker, optimum, tried)


# -- setting up ------------------------------------------------------------------------------------------------------


def setting_for(data: VerticalData, job: Job) -> Setting:
    """The problem that a job states, over its data."""
    loss = _loss(job, data)
    penalty = penalty_named(job.penalty_kind)
    strength = job.penalty if penalty.name != "none" else 0.0
    setting = prepare(data, loss=loss, penalty=penalty, strength=strength, intercept=job.intercept, seed=job.seed)
    return _with_private_labels(setting, job) if job.label_dp_epsilon is not None else setting


def _loss(job: Job, data: VerticalData) -> Loss:
    if job.loss == "auto":
        return SQUARED if data.task == "regression" else LOGISTIC
    loss = loss_named(job.loss.replace("_", "-"))
    if loss.binary and data.task != "classification":
        raise BadJob(f'The loss {job.loss} is for two classes, and this is {data.task}. Use loss = "squared".')
    return loss


def _with_private_labels(setting: Setting, job: Job) -> Setting:
    """Every label is answered at random once; from here on nobody sees the true ones, the test rows' excepted."""
    if setting.loss is not LOGISTIC:
        raise BadJob(f"label_dp_epsilon works with the logistic loss; got {setting.loss.name}.")
    assert job.label_dp_epsilon is not None
    stream = SeededNoise(job.seed, "labels").stream(0)
    truth = (setting.y_train > 0).astype(np.float64)[:, None]
    answers = private_targets(truth, job.label_dp_epsilon, stream)[:, 0]
    return replace(setting, loss=DEBIASED_LOGISTIC, y_train=np.ascontiguousarray(answers))


def linear_options(job: Job, method: Method) -> LinearOptions:
    return LinearOptions(
        method=method.direction,
        passes=job.passes,
        target=job.target,
        step=job.step if isinstance(job.step, float | int) else None,
        batch=job.batch if isinstance(job.batch, int) else None,
        batch_least=job.batch_least,
        in_flight=job.in_flight,
        lag=job.lag,
        snapshot_passes=job.snapshot_passes,
        certify_passes=job.certify_passes,
        by_curvature=job.by_curvature,
        lag_max=job.lag_max,
        patience_s=job.patience_s,
        on_loss=job.on_loss,
        sums=SumOptions(
            scheme=job.secure_sum,
            fraction_bits=FRACTION_BITS if job.fraction_bits is None else job.fraction_bits,
            two_party_insecure=job.two_party_insecure,
        ),
    )


def build_parties(setting: Setting, data: VerticalData, job: Job, only: str | None = None) -> list[Party]:
    """The parties of a run in one process, with repeatable keys; `only`: that one alone."""
    method = method_named(job.algorithm)
    problem = Problem(setting.rows, setting.loss, setting.penalty, setting.strength, setting.y_train)
    more: dict[str, Any] = {} if method.labels_everywhere else {"labels_at": data.labels_at, "lanes": job.runtime.lanes}
    return list(
        method.family().build(
            setting.new_blocks(),
            problem,
            linear_options(job, method),
            synchronous=method.synchronous,
            seed=job.seed,
            secrets_seed=job.seed,
            only=only,
            **more,
        )
    )


def _best_step(data: VerticalData, job: Job, setting: Setting) -> tuple[Job, list[dict[str, float]]]:
    """Short runs over the grid's values near the automatic step; the lowest objective wins."""
    short = msgspec.structs.replace(
        job, passes=min(STEP_GRID_PASSES, job.passes), target=None, optimum=False, looks_per_pass=1.0
    )
    first = run_experiment(data, msgspec.structs.replace(short, step="auto"))
    automatic = float(first.record.options["chosen"]["step"])
    tried = [{"step": automatic, "objective": _or_inf(first.record.objective)}]
    for step in grid():
        if automatic / STEP_GRID_SPAN <= step <= automatic * STEP_GRID_SPAN:
            objective = run_experiment(data, msgspec.structs.replace(short, step=step)).record.objective
            tried.append({"step": step, "objective": _or_inf(objective)})
    best = min(tried, key=lambda row: row["objective"])
    return msgspec.structs.replace(job, step=best["step"]), tried


def _or_inf(value: float | None) -> float:
    return value if value is not None and isfinite(value) else float("inf")


# -- looking ---------------------------------------------------------------------------------------------------------


class Onlooker:
    """Looks at the blocks of all parties, so many times in a pass, and keeps the curve."""

    def __init__(
        self,
        setting: Setting,
        parties: Sequence[Any],
        job: Job,
        method: Method,
        runtime: Runtime,
        optimum: float | None,
        watch: Watch | None,
        live: LiveRun | None = None,
    ) -> None:
        self.setting, self.parties, self.job, self.method = setting, parties, job, method
        self.runtime, self.optimum, self.watch, self.live = runtime, optimum, watch, live
        self.blocks = {party.name: party.member.block for party in parties}
        self.chair = next(party for party in parties if party.member.conduct.presides)
        self.curve: list[CurveRow] = []
        self.stopped = False
        self._certified = 0

    def look(self, time_s: float) -> float | None:
        """One look; the seconds until the next."""
        weights = party_weights(self.parties)
        objective = self.setting.objective(self.blocks, weights)
        passes = self.chair.member.role.passes()
        below = objective - self.optimum if self.optimum is not None else None
        metric = self._test_metric(weights)
        sent = int(getattr(self.runtime, "bytes_sent", 0))
        row = CurveRow(time_s, passes, sent, objective, suboptimality=below, test_metric=metric)
        self.curve.append(row)
        if self.live is not None:
            self.live.look(row, self._new_certificate(), self._parties_now)
        if self.watch is not None and not self.watch(self._glance(row)):
            self.stopped = True
            return None
        return self.period_s()

    def _test_metric(self, weights: Weights) -> float | None:
        if len(self.curve) % TEST_METRIC_EVERY:
            return None
        return next(iter(self.setting.test_metrics(weights).values()), None)

    def _glance(self, row: CurveRow) -> Glance:
        members = [party.member for party in self.parties]
        steps = sum(sum(member.lags) for member in members)
        lag = sum(member.lag_sum for member in members) / steps if steps else 0.0
        history = self.chair.member.survey.history
        last = history[-1] if history else None
        certificate = None if last is None else last.gap if isfinite(last.gap) else last.gradient_norm
        assert row.objective is not None
        return Glance(row.time_s, row.passes, row.objective, row.suboptimality, lag, certificate)

    def _new_certificate(self) -> Certificate | None:
        """The last that came since the look before, as `with_certificates` will put it."""
        history = self.chair.member.survey.history
        known, self._certified = self._certified, len(history)
        if len(history) <= known:
            return None
        return certificate_from({"gradient_norm": history[-1].gradient_norm, "gap": history[-1].gap})

    def _parties_now(self) -> dict[str, PartyNow]:
        return {party.name: party_now(party, self.runtime) for party in self.parties}

    def period_s(self) -> float:
        """A fixed part of a pass: of a fast party's where nobody waits, of the slowest party's where all do."""
        if self.job.runtime.kind != "simulator":
            return WALL_LOOK_S
        batch = self.chair.member.conduct.batch or self.job.batch_least
        rounds = self.setting.rows / batch
        times = [self._batch_s(name, batch) for name in self.setting.names]
        if self.method.synchronous:
            return max(times) * rounds / self.job.looks_per_pass
        together = 1 if self.method.labels_everywhere else len(self.chair.active)
        return min(times) * rounds / together / self.job.looks_per_pass

    def _batch_s(self, name: str, batch: int) -> float:
        costs = costs_of(self.job)
        block = self.blocks[name]
        work = costs.slow.get(name, 1.0) * costs.work_s(batch, round(block.nonzeros_total * batch / block.rows))
        return max(work, (work + 2 * costs.link.latency_s) / self.job.in_flight)


WALL_LOOK_S = 0.1


# -- the end ---------------------------------------------------------------------------------------------------------


def _result(
    data: VerticalData,
    job: Job,
    method: Method,
    setting: Setting,
    parties: Sequence[Any],
    outcome: Outcome,
    onlooker: Onlooker,
    optimum: float | None,
    tried: list[dict[str, float]],
) -> Result:
    verdict, reason = _verdict(outcome, onlooker)
    weights = _kept_weights(parties, outcome)
    best = onlooker.chair.member.survey.best
    objective = setting.objective(onlooker.blocks, weights)
    lanes = job.runtime.lanes
    record = RunRecord(
        offbeat=offbeat_version(),
        algorithm=job.algorithm,
        runtime=job.runtime.kind,
        clock=outcome.clock,
        seed=job.seed,
        digest=outcome.digest,
        verdict=verdict,
        reason=reason,
        objective=objective,
        certificate=certificate_of(outcome, best),
        suboptimality=objective - optimum if optimum is not None else None,
        passes=_passes(onlooker, outcome),
        seconds=outcome.time_s,
        metrics=dict(setting.test_metrics(weights)),
        parties={p.name: party_record(p, outcome.tallies[p.name], outcome.time_s, lanes) for p in parties},
        reveals=reveals(outcome.tallies, method.family().messages, private_labels=job.label_dp_epsilon is not None),
        privacy=_privacy(data, job, method),
        warnings=warnings_of(
            data=data,
            scheme=job.secure_sum,
            loss=setting.loss.name,
            labels_everywhere=method.labels_everywhere,
            labels_at=data.labels_at,
            label_dp_epsilon=job.label_dp_epsilon,
            seeded=True,
            ignored=ignored_by(job),
            faults=job.runtime.faults,
            outcome=outcome,
        ),
        options=_options(job, onlooker, tried),
        data=data_record(data),
        versions=library_versions(),
        machine=this_machine(),
        curve=with_certificates(onlooker.curve, outcome),
        timeline=deliveries(outcome),
    )
    plain, intercept = split_intercept(weights, setting.constant_at)
    return Result(record, plain, intercept, optimum, parties)


def _privacy(data: VerticalData, job: Job, method: Method) -> dict[str, dict[str, Any]]:
    """What left under an account: the labels, where they were answered at random."""
    if job.label_dp_epsilon is None:
        return {}
    holders = data.names if method.labels_everywhere else data.labels_at
    return label_ledger(holders, job.label_dp_epsilon, seeded=True)


def _passes(onlooker: Onlooker, outcome: Outcome) -> float:
    """How far the model that is kept had come; of a run cut short, how far the run had."""
    member, cut_short = onlooker.chair.member, onlooker.stopped or outcome.out_of_time
    return float(member.role.passes() if cut_short else member.marked_passes or member.role.passes())


def _verdict(outcome: Outcome, onlooker: Onlooker) -> tuple[str, str]:
    if onlooker.stopped or outcome.out_of_time:
        certified = _certified_copies(onlooker.parties) is not None
        kept = "the best model certified so far" if certified else "none was certified yet: the model as it was"
        verdict, reason = ("stopped", "stopped on request") if onlooker.stopped else ("time", outcome.stalled)
        return verdict, f"{reason}; {kept} is kept"
    if outcome.stalled:
        return "stalled", outcome.stalled
    finish = outcome.finished.get(onlooker.chair.name) or next(iter(outcome.finished.values()))
    return finish.verdict, finish.reason


def _kept_weights(parties: Sequence[Any], outcome: Outcome) -> dict[str, Floats]:
    """What a finished party keeps in its block; of a run cut short, the best certified copy, or the block as it is."""
    best = _certified_copies(parties) if outcome.stalled else None
    if best is not None:
        return best
    weights = party_weights(parties)
    survivors = [party for party in parties if party.name in outcome.finished]
    if outcome.stalled or len(survivors) == len(parties):
        return weights
    return {party.name: _after_losses(party, survivors, weights[party.name]) for party in parties}


def _after_losses(party: Any, survivors: Sequence[Any], weights: Floats) -> Floats:
    """A party's block where somebody did not live to hear the end: the snapshot that those who did have kept; nothing
    of a party that they had left out."""
    decides = next((one for one in survivors if one.member.conduct.presides), survivors[0]).member
    halt, roster = decides.conduct.halt, decides.conduct.roster
    kept = party.member.shares.points.get(halt.best if halt is not None else decides.survey.best)
    return np.array(kept) if kept is not None and party.name in roster else np.zeros_like(weights)


def _certified_copies(parties: Sequence[Any]) -> dict[str, Floats] | None:
    """The best certified point, where every party knows of one."""
    best = {party.name: party.member.shares.points.get(party.member.survey.best) for party in parties}
    if any(weights is None for weights in best.values()):
        return None
    return {name: np.array(weights) for name, weights in best.items()}


def split_intercept(weights: Weights, constant_at: str | None) -> tuple[dict[str, Floats], float]:
    """The weights of the real columns, and that of the constant one."""
    if constant_at is None:
        return dict(weights), 0.0
    plain = {name: values[:-1] if name == constant_at else values for name, values in weights.items()}
    return plain, float(weights[constant_at][-1])


def _options(job: Job, onlooker: Onlooker, tried: list[dict[str, float]]) -> dict[str, Any]:
    conduct = onlooker.chair.member.conduct
    chosen: dict[str, Any] = {"step": conduct.eta, "batch": conduct.batch, "chair": conduct.chair}
    if onlooker.optimum is not None:
        chosen["optimum"] = onlooker.optimum
        chosen["optimum_is"] = "the minimum" if onlooker.setting.penalty.convex else "the best known stationary point"
    if tried:
        chosen["steps_tried"] = tried
    if job.label_dp_epsilon is not None:
        chosen["label_privacy"] = {
            "mechanism": "randomised response, once per label",
            "epsilon": job.label_dp_epsilon,
            "refers_to": "objective and certificate: the private answers; test metrics: the true labels",
        }
    return {**msgspec.to_builtins(job), "chosen": chosen}
