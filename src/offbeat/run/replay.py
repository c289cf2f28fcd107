"""Doing a run again: from its seed where time was virtual, from its parties' logs where it was real."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from offbeat.errors import BadInput, PeerFailed
from offbeat.families.vertical_data import load_data
from offbeat.jobs.horizontal import EdgeJob
from offbeat.jobs.methods import EMBEDDING
from offbeat.jobs.vertical import Job
from offbeat.message.codec import Codec
from offbeat.metrics.machine import computing_as_on
from offbeat.metrics.record import RunRecord
from offbeat.run.edge_experiment import load_edges, run_edges
from offbeat.run.embedding_experiment import run_embedding
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import any_job_of
from offbeat.run.parties import drew_secret_noise, messages_of_job, parties_of_edge_job, parties_of_job
from offbeat.runtime.recovery import log_path, recover
from offbeat.runtime.threads import digest_of


def replay_run(folder: Path, *, verify: bool = False) -> dict[str, Any]:
    """What was compared, and whether it is the same: for people (`sentence`) and for programs.

    `verify`: of a real run, every log must also lead to its party's end; of an organisation's run, its alignment and
    its test are replayed beside the training."""
    record = RunRecord.read(folder)
    with computing_as_on(record.machine):
        return _replay(folder, record, verify)


def _replay(folder: Path, record: RunRecord, verify: bool) -> dict[str, Any]:
    job = any_job_of(folder)
    if drew_secret_noise(job):
        how = "Give the job a seed" if job.seed is None else "Leave out embedding.secret_noise"
        raise BadInput(
            f"{folder} drew secret noise from the operating system, which nobody can draw again. {how} to have runs "
            "that can be replayed."
        )
    if job.runtime.kind == "simulator":
        return _from_seed(folder, record, job)
    return _from_logs(folder, record, job, verify)


def _from_seed(folder: Path, record: RunRecord, job: Job | EdgeJob) -> dict[str, Any]:
    looks = len(record.curve)
    seen = 0

    def watch(glance: object) -> bool:
        nonlocal seen
        seen += 1
        return record.verdict != "stopped" or seen < looks

    again = _again(job, watch)
    same = again.digest == record.digest
    words = "came out the same, bit for bit" if same else "came out differently"
    return {
        "run": str(folder),
        "how": "seed",
        "same": same,
        "digest": record.digest,
        "replayed": again.digest,
        "sentence": f"The run of seed {record.seed} {words}: digest {again.digest}, recorded {record.digest}.",
    }


def _again(job: Job | EdgeJob, watch: Callable[[object], bool]) -> RunRecord:
    if isinstance(job, EdgeJob):
        return run_edges(load_edges(job), job, watch=watch).record
    data = load_data(job)
    if job.algorithm not in EMBEDDING:
        return run_experiment(data, job, optimum=0.0, watch=watch).record
    return run_embedding(data, job, watch=watch).record


def _from_logs(folder: Path, record: RunRecord, job: Job | EdgeJob, verify: bool) -> dict[str, Any]:
    parties = parties_of_edge_job(job) if isinstance(job, EdgeJob) else parties_of_job(job, load_data(job))
    codec = Codec(messages_of_job(job))
    digests, events = {}, {}
    for party in parties:
        if not log_path(folder, party.name).is_file():
            raise BadInput(
                f"{folder} has no log of {party.name} ({log_path(folder, party.name)}): it cannot be replayed."
            )
        try:
            replayed = recover(party, codec, folder, from_start=True)
        except PeerFailed as problem:
            return {"run": str(folder), "how": "logs", "same": False, "party": party.name, "sentence": str(problem)}
        if verify and replayed.drive.finished is None:
            sentence = f"The log of {party.name} stops after {replayed.events} events, before its party has ended."
            return {"run": str(folder), "how": "logs", "same": False, "party": party.name, "sentence": sentence}
        digests[party.name], events[party.name] = replayed.drive.digest, replayed.events
    same = _recorded(record, digests)
    total = sum(events.values())
    words = "gave the same effects, bit for bit" if same else "gave other effects than recorded"
    return {
        "run": str(folder),
        "how": "logs",
        "same": same,
        "events": events,
        "digests": {name: digest.hex() for name, digest in digests.items()},
        "sentence": f"{total} logged events of {len(digests)} parties {words}.",
    }


def _recorded(record: RunRecord, digests: dict[str, bytes]) -> bool:
    """Whether these are the effects that the run's record tells of."""
    if record.runtime == "threads":
        return digest_of(digests) == record.digest
    if record.runtime not in ("processes", "ray"):
        return True
    return " ".join(digests[name].hex() for name in sorted(digests)) == record.digest
