"""A run folder: written when a run ends, read by report, compare, replay and audit.

job.toml                 the job, fully resolved
record.json              the record; written last, so a folder that has it is complete
metrics.jsonl            the curve
events/                  messages for the timeline; on threads and processes, each party's log
checkpoints/             the model by party
report.html              one page for browsers
"""

import json
from pathlib import Path

import numpy as np

from offbeat.data.assemble import VerticalData
from offbeat.data.names import NumberedColumns
from offbeat.errors import BadInput
from offbeat.experiment import Result
from offbeat.job import Job, read_job, toml_of
from offbeat.runtimes import resolved

JOB_FILE = "job.toml"


def write_job(job: Job, folder: Path) -> None:
    """Before the run: an interrupted one can be looked at, and run again."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JOB_FILE).write_text(toml_of(resolved(job)), encoding="utf-8")


def write_result(result: Result, data: VerticalData, folder: Path) -> Path:
    """Models, page and record. Returns the page's path."""
    from offbeat.report.page import write_report

    for name in data.names:
        write_model(result, data, name, folder / "checkpoints")
    page = write_report(result.record, folder)
    result.record.write(folder)
    return page


def write_model(result: Result, data: VerticalData, name: str, folder: Path) -> None:
    """One party's block: `weights` (and `intercept`, where it has the constant column), its columns beside it."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"weights": np.ascontiguousarray(result.weights[name])}
    if name == data.labels_at[0]:
        tensors["intercept"] = np.array([result.intercept])
    save_file(tensors, folder / f"{name}.safetensors", {"party": name, "algorithm": result.record.algorithm})
    columns = data.columns[name]
    if not isinstance(columns, NumberedColumns):
        (folder / f"{name}.columns.json").write_text(json.dumps(list(columns)), encoding="utf-8")


def job_of(folder: Path) -> Job:
    """The job that a run folder keeps."""
    if not (folder / JOB_FILE).is_file():
        raise BadInput(
            f"{folder} has no {JOB_FILE}, so the run cannot be repeated. Give a folder that `offbeat run` made."
        )
    return read_job(folder / JOB_FILE)
