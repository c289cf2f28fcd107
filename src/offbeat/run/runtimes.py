"""The runtimes by name, set up as a job says."""

from math import inf
from pathlib import Path

import msgspec

from offbeat.errors import BadJob
from offbeat.families.contract import Training
from offbeat.jobs.runtime import costs_of
from offbeat.randomness import stream
from offbeat.runtime.contract import Runtime
from offbeat.runtime.simulator import Simulator, profile

PARTY_OF_JOB = "offbeat.run.parties:party_of_job"
RESTARTS = 3
"""Whoever waits for a lost party can be helped on one machine: its process is started again, so often."""


def runtime_for(training: Training, folder: Path | None = None) -> Runtime:
    """A runtime for one run. `folder`: where event logs go, for the runtimes that keep them."""
    kind = training.job.runtime.kind
    if kind == "simulator":
        return simulator_for(training)
    if kind == "threads":
        from offbeat.runtime.threads import Threads

        entry = training.job.runtime
        return Threads(messages=tuple(training.messages), costs=costs_of(entry), folder=folder, until_s=entry.until_s)
    if folder is None:
        raise BadJob(f"The runtime {kind!r} keeps its parties' logs in a run folder; none was given.")
    return (_processes if kind == "processes" else _ray)(training, folder)


def simulator_for(training: Training) -> Simulator:
    entry, seed = training.job.runtime, training.job.seed or 0
    names = [party.name for party in training.parties]
    faults = profile(entry.faults, names, stream(seed, "fault profile"), entry.faults_until_s)
    return Simulator(seed=seed, costs=costs_of(entry), faults=faults, until_s=entry.until_s)


def _processes(training: Training, folder: Path) -> Runtime:
    from offbeat.runtime.processes import Processes

    session = dict(training.session)
    restarts = RESTARTS if session["on_loss"] == "wait" else 0
    spec = msgspec.to_builtins(training.job)
    return Processes(PARTY_OF_JOB, spec, folder, session=session, restarts=restarts, timeout_s=inf)


def _ray(training: Training, folder: Path) -> Runtime:
    from offbeat.runtime.ray import Ray

    entry, spec = training.job.runtime, msgspec.to_builtins(training.job)
    on_loss = training.session["on_loss"]
    return Ray(PARTY_OF_JOB, spec, folder, costs=costs_of(entry), on_loss=on_loss, until_s=entry.until_s)
