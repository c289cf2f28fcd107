"""The parties of a job before anything has happened: all of them for a replay, one of them for its own process."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from offbeat.families.contract import Training
from offbeat.families.table import family_of
from offbeat.jobs.reading import AnyJob, job_from
from offbeat.party.contract import Message, Party


def training_of(job: AnyJob, only: str | None = None) -> Training:
    """The run that a job stands for, over the data that it names."""
    family = family_of(job)
    return family.training(job, family.load(job), only=only)


def party_of_job(spec: Mapping[str, Any], name: str) -> tuple[Party, Sequence[type[Message]]]:
    """The party of this name, and the messages that it may meet."""
    training = training_of(job_from(spec), only=name)
    (party,) = training.parties
    return party, training.messages


def without_optimum(job: AnyJob) -> AnyJob:
    """Whoever does a run again need not know how near it came."""
    return msgspec.structs.replace(job, optimum=False) if hasattr(job, "optimum") else job
