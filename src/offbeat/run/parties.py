"""The parties of a job, built without running them: all of them for a replay, one of them for a process of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from offbeat.algorithms import vafl
from offbeat.data.assemble import VerticalData
from offbeat.families.vertical_data import load_data
from offbeat.jobs.horizontal import MESSAGES as EDGE_MESSAGES
from offbeat.jobs.horizontal import EdgeJob
from offbeat.jobs.methods import EMBEDDING, method_named
from offbeat.jobs.vertical import Job, job_from
from offbeat.party.contract import Message, Party
from offbeat.run.edge_experiment import edge_parties, load_edges, rows_of_edges
from offbeat.run.embedding_experiment import embedding_parties
from offbeat.run.experiment import build_parties, setting_for


def parties_of_edge_job(job: EdgeJob) -> Sequence[Party]:
    """The cloud and the edges of a horizontal job over a named set."""
    rows, _ = rows_of_edges(load_edges(job), job)
    cloud, edges = edge_parties(job, rows)
    return [cloud, *edges]


def parties_of_job(job: Job, data: VerticalData, only: str | None = None) -> Sequence[Party]:
    """All parties of a vertical job; `only`: that one alone."""
    if job.algorithm not in EMBEDDING:
        return build_parties(setting_for(data, job), data, job, only=only)
    server, clients = embedding_parties(data, job)
    everyone: list[Party] = [server, *clients]
    return [party for party in everyone if only in (None, party.name)]


def drew_secret_noise(job: Job | EdgeJob) -> bool:
    """Whether noise came from the operating system, so that nobody can do the run again."""
    return job.seed is None or (isinstance(job, Job) and job.embedding.secret_noise)


def messages_of_job(job: Job | EdgeJob) -> tuple[type[Message], ...]:
    """What the parties of a job say to each other."""
    if isinstance(job, EdgeJob):
        return EDGE_MESSAGES
    return vafl.MESSAGES if job.algorithm in EMBEDDING else method_named(job.algorithm).family().messages


def party_of_job(spec: Mapping[str, Any], name: str) -> tuple[Party, tuple[type[Message], ...]]:
    """The party of this name, and the messages that it may meet."""
    job = job_from(spec)
    (party,) = parties_of_job(job, load_data(job), only=name)
    return party, messages_of_job(job)
