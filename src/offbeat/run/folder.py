"""A run folder: written when a run ends, read by report, compare, replay and audit.

job.toml                 the job, fully resolved
record.json              the record; written last, so a folder that has it is complete
metrics.jsonl            the curve; while the run goes on, its looks so far, and live.json beside it
events/                  messages for the timeline; on threads, processes and ray, each party's log
checkpoints/             the model by party: PARTY.safetensors, and in PARTY.preparation.* how it prepares its rows
report.html              one page for browsers
model_card.md            one page for those who are to use the model
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offbeat.data.prepare import fitted_from, state_of
from offbeat.errors import BadInput
from offbeat.families.contract import Part
from offbeat.jobs.reading import AnyJob, job_text, read_job
from offbeat.jobs.runtime import resolved
from offbeat.metrics.live import forget_live
from offbeat.metrics.plain import json_text
from offbeat.metrics.record import CURVE_FILE, JOB_FILE, RunRecord
from offbeat.run.result import Result
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint

CHECKPOINTS = "checkpoints"


def write_job(job: AnyJob, folder: Path) -> None:
    """Before the run: an interrupted one can be looked at, and run again."""
    folder.mkdir(parents=True, exist_ok=True)
    forget_live(folder)
    (folder / CURVE_FILE).unlink(missing_ok=True)  # of a run that was broken off here
    (folder / JOB_FILE).write_text(job_text(resolved(job)), encoding="utf-8")


def write_result(result: Result, folder: Path) -> Path:
    """Models, page and record. Returns the page's path."""
    for name, part in result.models.items():
        _write_part(part, folder / CHECKPOINTS, name, result.record.algorithm)
    return write_record(result.record, folder)


def write_record(record: RunRecord, folder: Path) -> Path:
    """The page, and then the record: a folder that has one is complete."""
    from offbeat.report.page import write_report

    page = write_report(record, folder)
    record.write(folder)
    forget_live(folder)
    return page


def _write_part(part: Part, folder: Path, party: str, algorithm: str) -> None:
    """One party's arrays, and beside them the names of its columns."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(values) for name, values in part.arrays.items()}
    save_file(arrays, folder / f"{party}.safetensors", {"party": party, "algorithm": algorithm})
    if part.columns is not None:
        (folder / f"{party}.columns.json").write_text(json_text(list(part.columns)), encoding="utf-8")
    if part.fitted is not None:
        write_checkpoint(folder, f"{party}.preparation", state_of(part.fitted))


def read_parts(folder: Path, names: Sequence[str]) -> dict[str, Part]:
    """Each party's part of a finished run's model."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    found = {}
    for name in names:
        file = folder / CHECKPOINTS / f"{name}.safetensors"
        if not file.is_file():
            raise BadInput(f"{folder} has no model of {name}: {file} is not there. Has the run ended?")
        try:
            arrays, state = load_file(file), read_checkpoint(folder / CHECKPOINTS, f"{name}.preparation")
        except (SafetensorError, ValueError, KeyError) as problem:
            raise BadInput(
                f"{folder}: {name}'s part of the model cannot be read ({problem}). Its files in {CHECKPOINTS}/ were "
                "changed or cut off since the run ended: take them from a copy, or run again."
            ) from None
        fitted = None if state is None else fitted_from(state)
        found[name] = Part(arrays, None if fitted is None else fitted.columns, fitted)
    return found


def job_of(folder: Path) -> AnyJob:
    """The job that a run folder keeps."""
    path = folder / JOB_FILE
    if not folder.is_dir():
        what = "is a file, and the folder of a run was expected" if folder.exists() else "is not there"
        raise BadInput(f"{folder} {what}. Give a folder that `offbeat run` made.")
    if not path.is_file():
        raise BadInput(
            f"{folder} has no {JOB_FILE}, so it is not the folder of a run. Give a folder that `offbeat run` made."
        )
    return read_job(path)
