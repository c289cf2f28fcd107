"""Doing a run again: from its seed where time was virtual, from its parties' logs where it was real."""

from pathlib import Path
from typing import Any

from offbeat.errors import BadInput, PeerFailed
from offbeat.experiment import build_parties, run_experiment, setting_for
from offbeat.job import Job
from offbeat.job_data import load_data
from offbeat.message.codec import Codec
from offbeat.methods import method_named
from offbeat.metrics.record import RunRecord
from offbeat.run_folder import job_of
from offbeat.runtime.recovery import log_path, recover
from offbeat.runtime.threads import digest_of


def replay_run(folder: Path) -> dict[str, Any]:
    """What was compared, and whether it is the same: for people (`sentence`) and for programs."""
    record = RunRecord.read(folder)
    if record.runtime == "grpc":  # an organisation's own side of a run, in its daemon's folder
        from offbeat.orgs.replay import replay_folder

        return replay_folder(folder)
    job = job_of(folder)
    if job.runtime.kind == "simulator":
        return _from_seed(folder, record, job)
    return _from_logs(folder, record, job)


def _from_seed(folder: Path, record: RunRecord, job: Job) -> dict[str, Any]:
    looks = len(record.curve)
    seen = 0

    def watch(glance: object) -> bool:
        nonlocal seen
        seen += 1
        return record.verdict != "stopped" or seen < looks

    again = run_experiment(load_data(job), job, optimum=0.0, watch=watch).record
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


def _from_logs(folder: Path, record: RunRecord, job: Job) -> dict[str, Any]:
    data = load_data(job)
    codec = Codec(method_named(job.algorithm).family().messages)
    digests, events = {}, {}
    for party in build_parties(setting_for(data, job), data, job):
        if not log_path(folder, party.name).is_file():
            raise BadInput(
                f"{folder} has no log of {party.name} ({log_path(folder, party.name)}): it cannot be replayed."
            )
        try:
            replayed = recover(party, codec, folder, from_start=True)
        except PeerFailed as problem:
            return {"run": str(folder), "how": "logs", "same": False, "party": party.name, "sentence": str(problem)}
        digests[party.name], events[party.name] = replayed.drive.digest, replayed.events
    same = record.runtime != "threads" or digest_of(digests) == record.digest
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
