"""One party of a job, built alone: what a process of its own does with a job's plain values."""

from collections.abc import Mapping
from typing import Any

from offbeat.experiment import build_parties, setting_for
from offbeat.job import job_from
from offbeat.job_data import load_data
from offbeat.methods import method_named
from offbeat.party.contract import Message, Party


def party_of_job(spec: Mapping[str, Any], name: str) -> tuple[Party, tuple[type[Message], ...]]:
    """The party of this name, and the messages that it may meet."""
    job = job_from(spec)
    data = load_data(job)
    (party,) = build_parties(setting_for(data, job), data, job, only=name)
    return party, method_named(job.algorithm).family().messages
