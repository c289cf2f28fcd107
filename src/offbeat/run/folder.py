"""A run folder: written when a run ends, read by report, compare, replay and audit.

job.toml                 the job, fully resolved
record.json              the record; written last, so a folder that has it is complete
metrics.jsonl            the curve; while the run goes on, its looks so far, and live.json beside it
events/                  messages for the timeline; on threads, processes and ray, each party's log
checkpoints/             the model by party
report.html              one page for browsers
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offbeat.data.assemble import VerticalData
from offbeat.data.names import NumberedColumns
from offbeat.errors import BadInput
from offbeat.jobs.horizontal import EdgeJob, read_edge_job
from offbeat.jobs.methods import HORIZONTAL
from offbeat.jobs.vertical import Job, read_job, read_tree, toml_of, toml_of_tree
from offbeat.learning.embeddings import Embedding, Head, Weights
from offbeat.metrics.live import forget_live
from offbeat.metrics.plain import json_text
from offbeat.metrics.record import CURVE_FILE, JOB_FILE, RunRecord
from offbeat.run.edge_experiment import EdgeResult
from offbeat.run.embedding_experiment import EmbeddingResult
from offbeat.run.experiment import Result
from offbeat.run.runtimes import resolved


def write_job(job: Job | EdgeJob, folder: Path) -> None:
    """Before the run: an interrupted one can be looked at, and run again."""
    folder.mkdir(parents=True, exist_ok=True)
    forget_live(folder)
    (folder / CURVE_FILE).unlink(missing_ok=True)  # of a run that was broken off here
    text = toml_of(resolved(job)) if isinstance(job, Job) else toml_of_tree(msgspec.to_builtins(job))
    (folder / JOB_FILE).write_text(text, encoding="utf-8")


def write_result(result: Result, data: VerticalData, folder: Path) -> Path:
    """Models, page and record. Returns the page's path."""
    for name in data.names:
        write_model(result, data, name, folder / "checkpoints")
    return write_record(result.record, folder)


def write_record(record: RunRecord, folder: Path) -> Path:
    """The page, and then the record: a folder that has one is complete."""
    from offbeat.report.page import write_report

    page = write_report(record, folder)
    record.write(folder)
    forget_live(folder)
    return page


def write_embeddings(result: EmbeddingResult, folder: Path) -> Path:
    """Every client's weights and the head's, buffers included; page and record."""
    parties: list[tuple[str, Head | Embedding, Weights]] = [
        (result.server.name, result.server.head, result.server.weights)
    ]
    parties += [(client.name, client.embedding, client.weights) for client in result.clients]
    for name, network, weights in parties:
        tensors = {**network.to_arrays(weights.trained), **network.to_arrays(weights.kept)}
        _save(tensors, folder / "checkpoints" / f"{name}.safetensors", result.record, name)
    return write_record(result.record, folder)


def write_edges(result: EdgeResult, folder: Path) -> Path:
    """The cloud's parameters, the last and the averaged; page and record."""
    tensors = {"parameters": result.parameters, "averaged": result.averaged}
    _save(tensors, folder / "checkpoints" / "cloud.safetensors", result.record, "cloud")
    return write_record(result.record, folder)


def _save(tensors: Mapping[str, Any], path: Path, record: RunRecord, party: str) -> None:
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    save_file(arrays, path, {"party": party, "algorithm": record.algorithm})


def write_model(result: Result, data: VerticalData, name: str, folder: Path) -> None:
    """One party's block: `weights` (and `intercept`, where it has the constant column), its columns beside it."""
    tensors = {"weights": result.weights[name]}
    if name == data.labels_at[0]:
        tensors["intercept"] = np.array([result.intercept])
    _save(tensors, folder / f"{name}.safetensors", result.record, name)
    columns = data.columns[name]
    if not isinstance(columns, NumberedColumns):
        (folder / f"{name}.columns.json").write_text(json_text(list(columns)), encoding="utf-8")


def any_job_of(folder: Path) -> Job | EdgeJob:
    """The job that a run folder keeps, vertical or horizontal."""
    path = folder / JOB_FILE
    if not path.is_file():
        raise BadInput(
            f"{folder} has no {JOB_FILE}, so the run cannot be repeated. Give a folder that `offbeat run` made."
        )
    return read_edge_job(path) if read_tree(path).get("algorithm") in HORIZONTAL else read_job(path)
