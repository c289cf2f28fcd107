"""The runtimes by name, set up as a job says."""

from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path

import msgspec

from offbeat.errors import BadJob
from offbeat.jobs.methods import EMBEDDING
from offbeat.jobs.vertical import Job, RuntimeEntry
from offbeat.party.contract import Message, Party
from offbeat.randomness import stream
from offbeat.runtime.contract import Runtime
from offbeat.runtime.simulator import CostModel, Jitter, Link, Simulator, profile

SIMULATED_LATENCY_S = 1e-4
PARTY_OF_JOB = "offbeat.run.parties:party_of_job"
RESTARTS = 3
"""Whoever waits for a lost party can be helped on one machine: its process is started again, so often."""
THREADS_KNOW = (
    "kind",
    "slow",
    "latency_s",
    "bandwidth_mbit_s",
    "lanes",
    "overhead_s",
    "per_sample_s",
    "per_nonzero_s",
    "until_s",
)


def resolved(job: Job) -> Job:
    """The job with what its runtime kind decides filled in: a simulated network has latency, threads have none."""
    if job.runtime.latency_s is not None:
        return job
    latency_s = SIMULATED_LATENCY_S if job.runtime.kind == "simulator" else 0.0
    return msgspec.structs.replace(job, runtime=msgspec.structs.replace(job.runtime, latency_s=latency_s))


def costs_of(job: Job) -> CostModel:
    """What things cost in the simulated (or slowed-down) world."""
    entry: RuntimeEntry = resolved(job).runtime
    assert entry.latency_s is not None
    bytes_s = inf if entry.bandwidth_mbit_s == inf else entry.bandwidth_mbit_s * 1e6 / 8
    return CostModel(
        overhead_s=entry.overhead_s,
        per_sample_s=entry.per_sample_s,
        per_nonzero_s=entry.per_nonzero_s,
        link=Link(entry.latency_s, bytes_s),
        slow=dict(entry.slow),
        serving=entry.serving,
        jitter=Jitter(entry.jitter, entry.jitter_cv),
        link_jitter=Jitter(entry.link_jitter, entry.jitter_cv),
        lanes=entry.lanes,
    )


def ignored_by(job: Job) -> list[str]:
    """Keys of [runtime] that were set to something and that the runtime of this kind does not know."""
    known = {"simulator": None, "threads": THREADS_KNOW, "ray": THREADS_KNOW, "processes": ("kind",)}[job.runtime.kind]
    if known is None:
        return []
    plain, usual = msgspec.to_builtins(job.runtime), msgspec.to_builtins(RuntimeEntry())
    return [f"runtime.{key}" for key in plain if key not in known and plain[key] != usual[key]]


def runtime_for(
    job: Job, messages: Iterable[type[Message]], parties: Sequence[Party], folder: Path | None = None
) -> Runtime:
    """A runtime for one run. `folder`: where event logs go, for the runtimes that keep them."""
    kind = job.runtime.kind
    if kind == "simulator":
        return _simulator(job, parties)
    if kind == "threads":
        from offbeat.runtime.threads import Threads

        return Threads(messages=tuple(messages), costs=costs_of(job), folder=folder, until_s=job.runtime.until_s)
    if kind == "processes":
        return _processes(job, folder)
    if kind == "ray":
        return _ray(job, folder)
    raise BadJob(f"There is no runtime {kind!r} for a run in one place.")


def _simulator(job: Job, parties: Sequence[Party]) -> Simulator:
    names = [party.name for party in parties]
    faults = profile(job.runtime.faults, names, stream(job.seed, "fault profile"), job.runtime.faults_until_s)
    return Simulator(seed=job.seed, costs=costs_of(job), faults=faults, until_s=job.runtime.until_s)


def _processes(job: Job, folder: Path | None) -> Runtime:
    from offbeat.runtime.processes import Processes

    if folder is None:
        raise BadJob("The runtime 'processes' keeps its parties' logs in a run folder; none was given.")
    session: dict[str, object] = {"on_loss": job.on_loss}
    if job.algorithm in EMBEDDING:
        session["checkpoint_s"] = inf  # a snapshot of theirs forgets the work that is under way: the whole log, then
    return Processes(
        PARTY_OF_JOB,
        msgspec.to_builtins(job),
        folder,
        session=session,
        restarts=RESTARTS if job.on_loss == "wait" else 0,
        timeout_s=inf,
    )


def _ray(job: Job, folder: Path | None) -> Runtime:
    from offbeat.runtime.ray import Ray

    if folder is None:
        raise BadJob("The runtime 'ray' keeps its parties' logs in a run folder; none was given.")
    return Ray(
        PARTY_OF_JOB,
        msgspec.to_builtins(job),
        folder,
        costs=costs_of(job),
        on_loss=job.on_loss,
        until_s=job.runtime.until_s,
    )
