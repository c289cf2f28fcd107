"""One run, of any family: data + job -> RunRecord.

    result = run_experiment(data, Job(algorithm="afsaga-vp", passes=20, target=1e-6))
    result.record.certificate.duality_gap

`run_training` takes a training that was made by hand, as with networks of one's own (families/embedding.py).
"""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from offbeat.families.contract import Part, Training
from offbeat.families.table import family_of
from offbeat.jobs.reading import AnyJob, plain_of
from offbeat.jobs.runtime import resolved
from offbeat.learning.steps import grid
from offbeat.metrics.live import Now, live_run
from offbeat.metrics.record import RunRecord
from offbeat.run.choose import Chosen, level_of, with_best_penalty
from offbeat.run.observer import Observer, Watch
from offbeat.run.parties import training_of
from offbeat.run.record import kept_private, largest_coefficients, record_of, reveals
from offbeat.run.result import Result
from offbeat.run.runtimes import runtime_for
from offbeat.runtime.contract import Runtime

STEP_GRID_SPAN = 12.0
STEP_GRID_PASSES = 3.0


def run_experiment(
    data: Any,
    job: AnyJob,
    *,
    optimum: float | None = None,
    watch: Watch | None = None,
    folder: Path | None = None,
    start: Mapping[str, Part] | None = None,
) -> Result:
    """Train once, in one process.

    data     what `load_data`, a `vertical_from_...` or `horizontal_from_arrays` gave
    job      a vertical or a horizontal job that fits the data
    optimum  the least objective of a linear problem, where it is known; None: it is found if the job asks for it
    watch    is called with the progress at every look
    folder   where event logs may go, and where the run can be watched; None: nowhere
    start    a model to begin with, by party; None: the one that the job names, or none
    """
    known = {"optimum": optimum, "start": start}
    known = {name: value for name, value in known.items() if value is not None}
    return run_training(training_of(resolved(job), data, **known), watch=watch, folder=folder)


def run_training(
    training: Training, *, runtime: Runtime | None = None, watch: Watch | None = None, folder: Path | None = None
) -> Result:
    """Train once, as the job's [runtime] says unless a runtime is given."""
    tried: list[dict[str, float]] = []
    chosen: Chosen | None = None
    with live_run(folder, _now(training)) as live:
        if getattr(training.job, "step", None) == "grid":
            training, tried = _with_best_step(training)
        if len(getattr(training.job, "penalties", ())) > 1:
            chosen = with_best_penalty(training, run_training, watch)
            training = chosen.training
        runtime = runtime_for(training, folder) if runtime is None else runtime
        training.begin()
        level = level_of(training, watch)
        observer = Observer(training, runtime, watch if level is None else level.look, live)
        outcome = runtime.run(training.parties, observer.look)
        stopped = observer.stopped
        observer.finish(outcome.time_s)
    job = training.job
    account = training.account(outcome, observer.rows, stopped=stopped)
    if level is not None and level.ended:
        account = account._replace(verdict="target", reason=level.reason(account.reason))
    told = training.chosen() | ({"steps_tried": tried} if tried else {})
    sent = [tally.sent for tally in outcome.tallies.values()]
    record = record_of(
        account,
        outcome,
        algorithm=job.algorithm,
        runtime=job.runtime.kind,
        seed=job.seed,
        options={**plain_of(job), "chosen": told},
        reveals=reveals(sent, training.messages, **kept_private(training)),
        lanes=job.runtime.lanes,
    )
    record = record if chosen is None else _with_choice(record, chosen)
    models = training.models(outcome)
    record = msgspec.structs.replace(record, coefficients=largest_coefficients(models))
    return Result(record, models, training.parties)


def _with_choice(record: RunRecord, chosen: Chosen) -> RunRecord:
    """The record, with a word on how the penalty was chosen and who learned what by it."""
    told = {**record.options["chosen"], "penalties_tried": [one._asdict() for one in chosen.tried]}
    notes = (*record.data.notes, chosen.sentence())
    return msgspec.structs.replace(
        record,
        options={**record.options, "chosen": told},
        data=msgspec.structs.replace(record.data, notes=notes),
        reveals=(*record.reveals, chosen.reveal()),
    )


def _now(training: Training) -> Now:
    """A run before anything has happened."""
    job = training.job
    return Now(
        algorithm=job.algorithm,
        runtime=job.runtime.kind,
        clock="virtual" if job.runtime.kind == "simulator" else "wall",
        seed=job.seed,
        goal=training.goal,
        target=getattr(job, "target", None),
        unit=training.unit,
    )


def _with_best_step(training: Any) -> tuple[Training, list[dict[str, float]]]:
    """Short runs over the grid's values near the automatic step; the lowest objective wins."""
    job, data = training.job, training.data
    passes = min(STEP_GRID_PASSES, job.passes)
    short = msgspec.structs.replace(job, passes=passes, target=None, optimum=False, looks_per_pass=1.0)

    def run(step: float | str) -> RunRecord:
        return run_experiment(data, msgspec.structs.replace(short, step=step)).record

    first = run("auto")
    automatic = float(first.options["chosen"]["step"])
    tried = [{"step": automatic, "objective": _or_inf(first.objective)}]
    near = [step for step in grid() if automatic / STEP_GRID_SPAN <= step <= automatic * STEP_GRID_SPAN]
    tried += [{"step": step, "objective": _or_inf(run(step).objective)} for step in near]
    best = min(tried, key=lambda row: row["objective"])
    chosen = msgspec.structs.replace(job, step=best["step"])
    return family_of(job).training(chosen, data, optimum=training.optimum), tried


def _or_inf(value: float | None) -> float:
    return value if value is not None and isfinite(value) else float("inf")
