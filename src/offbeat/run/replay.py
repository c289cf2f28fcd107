"""Doing a run again: from its seed where time was virtual, from its parties' logs where it was real."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from offbeat.data.sql import is_address, is_local, shown
from offbeat.errors import BadInput, PeerFailed
from offbeat.families.table import family_of
from offbeat.jobs.elsewhere import is_elsewhere
from offbeat.jobs.reading import AnyJob
from offbeat.message.codec import Codec
from offbeat.metrics.machine import computing_as_on, made_elsewhere
from offbeat.metrics.record import RunRecord
from offbeat.party.contract import Message, Party
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import job_of
from offbeat.run.observer import Progress
from offbeat.run.parties import training_of, without_optimum
from offbeat.runtime.eventlog import Replayed
from offbeat.runtime.recovery import log_path, recover
from offbeat.runtime.threads import digest_of
from offbeat.runtime.transcript import FOLDER, read_transcript


class Vouched(NamedTuple):
    """What the reader of a run folder, which may be somebody else's, answers for."""

    method: str = ""  # its method is no part of offbeat, and this is its name
    connect: bool = False  # its job names databases, and they may be asked

    def refuse_unknown(self, folder: Path, algorithm: str, sources: Iterable[str | None]) -> None:
        """Code that would be imported, and databases that would be given a password from the environment."""
        if is_elsewhere(algorithm) and algorithm != self.method:
            raise BadInput(
                f"{folder} is a run of {algorithm!r}, which is no part of offbeat. To do the run again, that code must "
                f"be imported and run here. If you know it, say so: --method {algorithm}"
            )
        asked = [source for source in sources if source is not None and is_address(source) and not is_local(source)]
        if asked and not self.connect:
            raise BadInput(
                f"{folder} names {', '.join(map(shown, asked))}. To read rows from there, whoever runs it is sent the "
                "password that the folder names by a variable of your environment. If you know it, say so: --connect"
            )

    def refuse_unknown_job(self, folder: Path, job: AnyJob) -> None:
        entries = (*getattr(job, "party", ()), *getattr(job, "site", ()))
        self.refuse_unknown(folder, job.algorithm, [entry.table for entry in entries])


NOTHING = Vouched()


def replay_run(folder: Path, *, verify: bool = False, vouched: Vouched = NOTHING) -> dict[str, Any]:
    """What was compared, and whether it is the same: for people (`sentence`) and for programs. `verify`: of a real run,
    every log must also lead to its party's end."""
    record, job = RunRecord.read(folder), without_optimum(job_of(folder))
    refuse_secret_noise(job, folder)
    vouched.refuse_unknown_job(folder, job)
    with computing_as_on(record.machine):
        if job.runtime.kind == "simulator":
            return with_reason(_from_seed(folder, record, job), record)
        training = training_of(job)
        logs = {party.name: Log(party, training.messages, folder) for party in training.parties}
        told = replay_logs(folder, logs, lambda digests: _recorded(record, digests), verify=verify)
        return with_reason(told, record)


def with_reason(told: dict[str, Any], record: RunRecord) -> dict[str, Any]:
    """What differs is not always somebody's doing: another processor adds in another order."""
    reason = "" if told["same"] else made_elsewhere(record.machine, record.versions)
    return told | {"sentence": f"{told['sentence']} {reason}"} if reason else told


def refuse_secret_noise(job: AnyJob, folder: Path) -> None:
    if job.secret_noise:
        how = "Give the job a seed" if job.seed is None else "Leave out embedding.secret_noise"
        raise BadInput(
            f"{folder} drew secret noise from the operating system, which nobody can draw again. {how} to have runs "
            "that can be done again."
        )


def _from_seed(folder: Path, record: RunRecord, job: AnyJob) -> dict[str, Any]:
    looks, seen = len(record.curve), 0

    def watch(progress: Progress) -> bool:
        nonlocal seen
        seen += progress.trying is None
        return record.verdict != "stopped" or seen < looks

    again = run_experiment(family_of(job).load(job), job, watch=watch).record
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


class Log(NamedTuple):
    """A party built anew, the messages that it may meet, and the folder that holds the log of its first life."""

    party: Party
    messages: Sequence[type[Message]]
    folder: Path


def replay_logs(
    run: Path, logs: Mapping[str, Log], recorded: Callable[[dict[str, bytes]], bool], *, verify: bool
) -> dict[str, Any]:
    """Feed each log to its party. `recorded`: whether digests by log are those that the run's record tells of."""
    digests: dict[str, bytes] = {}
    events: dict[str, int] = {}
    verdicts: dict[str, str] = {}
    for name, log in logs.items():
        path = log_path(log.folder, log.party.name)
        if not path.is_file():
            raise BadInput(f"{run} has no log of {name} ({path}): it cannot be replayed.")
        try:
            replayed = recover(log.party, Codec(log.messages), log.folder, from_start=True)
        except PeerFailed as problem:
            return _differs(run, name, str(problem))
        finish = replayed.drive.finished
        if verify and finish is None:
            ended = f"The log of {name} stops after {replayed.events} events, before its party has ended."
            return _differs(run, name, ended)
        if verify and (otherwise := _sent_otherwise(log, replayed)):
            return _differs(run, name, otherwise)
        digests[name], events[name] = replayed.drive.digest, replayed.events
        verdicts[name] = finish.verdict if finish is not None else ""
    same = recorded(digests)
    words = "gave the same effects, bit for bit" if same else "gave other effects than recorded"
    return {
        "run": str(run),
        "how": "logs",
        "same": same,
        "events": events,
        "verdicts": verdicts,
        "digests": {name: digest.hex() for name, digest in digests.items()},
        "sentence": f"{sum(events.values())} logged events of {', '.join(logs)} {words}.",
    }


def _sent_otherwise(log: Log, replayed: Replayed) -> str:
    """The first peer that was sent other messages, by the transcript, than the log leads to."""
    path = log.folder / FOLDER / f"{log.party.name}.json"
    for told in read_transcript(path).links if path.is_file() else ():
        chains = replayed.chains_with(told.receiver) if told.sender == log.party.name else None
        if chains is not None and (chains.sent.number, chains.sent.head) != (told.number, told.head):
            return f"The log of {told.sender} leads to other messages to {told.receiver} than its transcript tells of."
    return ""


def _differs(run: Path, name: str, sentence: str) -> dict[str, Any]:
    return {"run": str(run), "how": "logs", "same": False, "party": name, "sentence": sentence}


def _recorded(record: RunRecord, digests: dict[str, bytes]) -> bool:
    """Whether these are the effects that the run's record tells of."""
    if record.runtime == "threads":
        return digest_of(digests) == record.digest
    return " ".join(digests[name].hex() for name in sorted(digests)) == record.digest
