"""The parties of a job before anything has happened: all of them for a replay, one of them for its own process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import BadJob
from offbeat.families.contract import Part, Training
from offbeat.families.table import family_of
from offbeat.jobs.methods import family_named
from offbeat.jobs.reading import AnyJob, job_from
from offbeat.jobs.vertical import SERVER
from offbeat.metrics.record import RunRecord
from offbeat.party.contract import Message, Party
from offbeat.run.folder import job_of, read_parts


def training_of(job: AnyJob, data: Any = None, **more: Any) -> Training:
    """The run that a job stands for, over the data that it names unless they are given, from the model that it names to
    begin with. `more`: only one party, the optimum where it is known, or a model to begin with."""
    family = family_of(job)
    data = family.load(job) if data is None else data
    if getattr(job, "start", None) is not None:
        more = {"start": _start(job), **more}
    return family.training(job, data, **more)


def _start(job: Any) -> dict[str, Part]:
    """The model that a job begins with: that of a finished run."""
    folder = Path(job.start)
    record, before = RunRecord.read(folder), job_of(folder)
    if family_named(before.algorithm) != family_named(job.algorithm):
        raise BadJob(
            f"{folder} is a run of {before.algorithm}, and this one is of {job.algorithm}, whose model is of another "
            "kind. Begin with a run of the same kind, or anew."
        )
    return read_parts(folder, [*record.data.columns, *([SERVER] if job.embeds else [])])


def party_of_job(spec: Mapping[str, Any], name: str) -> tuple[Party, Sequence[type[Message]]]:
    """The party of this name, and the messages that it may meet."""
    training = training_of(job_from(spec), only=name)
    (party,) = training.parties
    return party, training.messages


def without_optimum(job: AnyJob) -> AnyJob:
    """Whoever does a run again need not know how near it came."""
    return msgspec.structs.replace(job, optimum=False) if hasattr(job, "optimum") else job
