"""The data of a job: each party's own file, joined on ids, or a named set cut into columns."""

from typing import Literal

from offbeat.data.assemble import VerticalData
from offbeat.data.labels import Task
from offbeat.data.matrix import is_sparse
from offbeat.data.names import did_you_mean, party_names
from offbeat.data.prepare import Preparation
from offbeat.data.table import Table, read_table
from offbeat.data.vertical import vertical_from_dataset, vertical_from_tables
from offbeat.errors import BadData, BadJob
from offbeat.jobs.methods import EMBEDDING, labels_everywhere
from offbeat.jobs.vertical import SERVER, Job, PartyEntry

ROW_SCALINGS = ("as-is", "party-unit", "pooled-unit")


def load_data(job: Job) -> VerticalData:
    """Read, check, join and prepare; what is wrong is said with its file, column and row."""
    if job.data.rows is not None and job.data.rows not in ROW_SCALINGS:
        raise BadJob(f"data.rows must be one of {', '.join(ROW_SCALINGS)}; got {job.data.rows!r}.")
    if job.party:
        return _from_files(job)
    if job.data.set is not None:
        data = _from_set(job)
        _check_slow(job, data)
        return data
    raise BadJob(
        "The job names no data. Add one [[party]] table with name and file for each organisation, or [data] with "
        'set = "..." for a named set (`offbeat data` lists them).'
    )


def _check_slow(job: Job, data: VerticalData) -> None:
    """A set's parties are known only now."""
    known = (*data.names, SERVER) if job.algorithm in EMBEDDING else data.names
    for name in job.runtime.slow:
        if name not in known:
            raise BadJob(f"runtime.slow names {name!r}, which is no party. {did_you_mean(name, known)}")


# -- parties with files ----------------------------------------------------------------------------------------------


def _from_files(job: Job) -> VerticalData:
    if len(job.party) < 2:
        raise BadJob(f"Vertical learning needs two parties or more; the job names {len(job.party)}.")
    tables = {entry.name: _table(entry, job) for entry in job.party}
    if all(table.labels is None for table in tables.values()):
        raise BadData(
            f"No party brought labels ({', '.join(tables)}). Give the [[party]] that has them the key `label`, with "
            "the name of its label column."
        )
    holders = _labels_at(job)
    _check_labels_at(job, tables)
    return vertical_from_tables(
        tables,
        labels_at=holders,
        preparation={entry.name: _preparation(entry, tables[entry.name], job) for entry in job.party},
        test_fraction=0.2 if job.data.test_fraction is None else job.data.test_fraction,
        seed=job.seed,
        task=_task(job),
    )


def _check_labels_at(job: Job, tables: dict[str, Table]) -> None:
    """Labels stay where they are: no key may hand one party's to another."""
    brought = [name for name, table in tables.items() if table.labels is not None]
    for name in job.labels_at or ():
        if name in tables and name not in brought:
            raise BadJob(
                f"labels_at names {name!r}, which brings no labels: its [[party]] has no `label`. Those who do: "
                f"{', '.join(brought)}. Leave labels_at out to keep the labels where they are, or give {name} the key "
                "`label` with the name of its own label column."
            )


def _table(entry: PartyEntry, job: Job) -> Table:
    return read_table(
        entry.file,
        id=entry.id,
        label=entry.label,
        columns=entry.columns,
        text=entry.one_hot,
        missing="refuse" if job.data.missing == "refuse" else "keep",
        duplicates="refuse" if job.data.duplicates == "refuse" else "keep-first",
    )


def _preparation(entry: PartyEntry, table: Table, job: Job) -> Preparation:
    wanted = job.data.standardise
    if wanted == "auto":
        wanted = "none" if is_sparse(table.features) else "numeric"
    return Preparation(
        one_hot=tuple(entry.one_hot),
        missing=job.data.missing,  # type: ignore[arg-type]  # checked when the job was read
        standardise=wanted,  # type: ignore[arg-type]
        rows=job.data.rows or "as-is",  # type: ignore[arg-type]
    )


def _task(job: Job) -> Task:
    if job.task == "auto":
        return "regression" if job.loss == "squared" else "classification"
    return (
        "classification" if job.task == "classification" else "multiclass" if job.task == "multiclass" else "regression"
    )


def _labels_at(job: Job) -> list[str] | Literal["all"] | None:
    """All parties, where the method gives labels to all; else those named, or those that brought them."""
    if not labels_everywhere(job.algorithm):
        return job.labels_at
    if job.labels_at is not None:
        raise BadJob(
            f"{job.algorithm} gives the labels to every party, so labels_at = {job.labels_at} cannot be kept. Leave it "
            "out, or choose a method that keeps labels where they are, such as vfb2-svrg."
        )
    return "all"


# -- a named set -----------------------------------------------------------------------------------------------------


def _from_set(job: Job) -> VerticalData:
    entry = job.data
    assert entry.set is not None
    holders = _labels_at(job)
    if holders is None:
        holders = [party_names(entry.parties)[0] if isinstance(entry.parties, int) else entry.parties[0]]
    if entry.standardise != "auto" or entry.missing != "refuse" or entry.duplicates != "refuse":
        raise BadJob(
            "data.standardise, data.missing and data.duplicates are for parties with files of their own; a named set "
            "is prepared by data.preparation and data.rows."
        )
    data = vertical_from_dataset(
        entry.set,
        parties=entry.parties,
        split=entry.split,
        labels_at=holders,
        preparation=entry.preparation,
        data_dir=entry.dir,
        seed=job.seed,
        rows=entry.rows,  # type: ignore[arg-type]
        test_fraction=entry.test_fraction,
        limit_rows=entry.limit_rows,
        split_after_one_hot=entry.split_after_one_hot,
    )
    if data.task == "multiclass" and job.algorithm not in EMBEDDING:
        raise BadData(
            f"The set {entry.set!r} has several classes; the linear methods need two, or a number. For several classes "
            'use algorithm = "vafl".'
        )
    if job.task not in ("auto", data.task):
        raise BadJob(f"The set {entry.set!r} is for {data.task}; the job says task = {job.task!r}.")
    return data
