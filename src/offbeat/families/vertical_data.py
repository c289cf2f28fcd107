"""The data of a job: each party's own file, joined on ids, or a named set cut into columns."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from offbeat.data.assemble import VerticalData, preparations_by_party
from offbeat.data.formats import read_frame
from offbeat.data.labels import AnyTask
from offbeat.data.preparation import Preparation, preparation_from
from offbeat.data.table import Table, read_table
from offbeat.data.vertical import vertical_from_dataset, vertical_from_tables
from offbeat.data.weights import with_weights
from offbeat.errors import BadData, BadJob
from offbeat.jobs.methods import labels_everywhere
from offbeat.jobs.vertical import Job, PartyEntry, check_slow
from offbeat.names import party_names


def load_data(job: Job) -> VerticalData:
    """The data of `job`: read, checked, joined and prepared. What is wrong is said with its file, column and row."""
    if not isinstance(job, Job):
        raise BadJob(f"load_data reads the data of a vertical job, which read_job gives; got {type(job).__name__}.")
    if job.party:
        return _from_files(job)
    if job.data.set is not None:
        data = _from_set(job)
        check_slow(job, data.names, "the job")
        return data
    raise BadJob(
        "The job names no data. Add one [[party]] table with name and file for each organisation, or [data] with "
        'set = "..." for a named set (`offbeat data` lists them).'
    )


# -- parties with files ----------------------------------------------------------------------------------------------


def _from_files(job: Job) -> VerticalData:
    if len(job.party) < 2:
        raise BadJob(f"Vertical learning needs two parties or more; the job names {len(job.party)}.")
    preparations = {entry.name: preparation_of(entry, job) for entry in job.party}
    tables = {entry.name: _table(entry, preparations[entry.name], job) for entry in job.party}
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
        preparation=_each_its_own(job, preparations, tables),
        test_fraction=0.2 if job.data.test_fraction is None else job.data.test_fraction,
        seed=job.seed,
        task=_task(job),
        test_ids=None if job.data.test_ids is None else _listed_ids(Path(job.data.test_ids)),
    )


def _listed_ids(file: Path) -> list[Any]:
    """The first column of a file with a header."""
    raw = read_frame(file)
    if raw is None:
        raise BadData(f"{file}: expected a .csv, .tsv or .parquet file, whose first column lists the ids of test rows.")
    return raw.frame.iloc[:, 0].dropna().tolist()


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


def preparation_of(entry: PartyEntry, job: Job) -> Preparation:
    """The party's own words, or those for all; rows are scaled in the same way everywhere."""
    wanted = entry.prepare if entry.prepare is not None else job.data.prepare
    chosen = preparation_from("auto" if wanted is None else wanted, f"{entry.name}.prepare")
    return chosen if job.data.rows is None else msgspec.structs.replace(chosen, rows=job.data.rows)


def _each_its_own(job: Job, preparations: dict[str, Preparation], tables: dict[str, Table]) -> dict[str, Preparation]:
    """Of the columns that `data.prepare` names for all parties, each gets those that it has."""
    common = [entry.name for entry in job.party if entry.prepare is None]
    if not common:
        return preparations
    columns = {name: table.columns for name, table in tables.items()}
    by_party = preparations_by_party(preparations[common[0]], columns)
    return preparations | {name: by_party[name] for name in common}


def _table(entry: PartyEntry, preparation: Preparation, job: Job) -> Table:
    beside = [name for name in (entry.weight, entry.exposure) if name is not None]
    table = read_table(
        entry.source,
        id=entry.id,
        label=entry.label,
        columns=None if entry.columns is None else list(dict.fromkeys([*entry.columns, *beside])),
        text=preparation.as_text,
        missing="refuse" if preparation.strict and not preparation.columns else "keep",
        duplicates=job.data.duplicates,
    )
    return with_weights(table, entry.weight, entry.exposure)


def _task(job: Job) -> AnyTask:
    if job.task == "auto" and job.loss != "auto":
        return "regression" if job.loss in ("squared", "poisson", "gamma", "huber") else "classification"
    return job.task


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
    if entry.duplicates != "refuse":
        raise BadJob("data.duplicates is for parties with files of their own; a named set has every id once.")
    if entry.prepare is not None and entry.preparation is not None:
        raise BadJob(
            f"data.preparation = {entry.preparation!r} is one of the set's named preparations, and data.prepare is a "
            "preparation of your own; give one of the two."
        )
    data = vertical_from_dataset(
        entry.set,
        parties=entry.parties,
        split=entry.split,
        labels_at=holders,
        preparation=entry.preparation if entry.prepare is None else preparation_from(entry.prepare, "data.prepare"),
        data_dir=entry.dir,
        seed=job.seed,
        rows=entry.rows,
        test_fraction=entry.test_fraction,
        limit_rows=entry.limit_rows,
        split_after_one_hot=entry.split_after_one_hot,
    )
    several = job.task == "classification" and data.task == "multiclass"
    if job.task not in ("auto", data.task) and not several:
        raise BadJob(f"The set {entry.set!r} is for {data.task}; the job says task = {job.task!r}.")
    return data
