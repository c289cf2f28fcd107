"""A real run, again: feed each session's log of this party to a party built anew, and compare every effect's digest.

Only the owner can do it: the masks come from its key, which no run folder holds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import BadData, BadInput
from offbeat.jobs.organisations import OrgJob, job_from_text
from offbeat.metrics.record import RECORD_FILE, RunRecord
from offbeat.orgs import align_psi, predict
from offbeat.orgs.party_config import Home
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.rows import OwnRows, own_rows
from offbeat.orgs.sessions import OwnSessions, OwnTraining
from offbeat.orgs.tables import KeptTable, OwnTables
from offbeat.run.replay import NOTHING, Log, Vouched, replay_logs, with_reason
from offbeat.runtime.grpc.identity import Identity
from offbeat.runtime.recovery import log_path


def replay_own(
    home: Home,
    run: str,
    vouched: Vouched | None = NOTHING,
    *,
    verify: bool = False,
    data: Path | None = None,
    key: Path | None = None,
) -> dict[str, Any]:
    """Replay a run of this party: for people (`sentence`) and for programs. `verify`: the alignment and the test too,
    each to its end. `data`, `key`: the table and the private key as they were when the run was made, if they have
    changed. `vouched`: None where the home is one's own."""
    side = own_side(home, run, vouched, data=data, key=key)
    train, folder = f"{home.name}/train", side.folder
    record = folder / RECORD_FILE

    def recorded(digests: dict[str, bytes]) -> bool:
        """A run that was broken off has no record: its log's marks are what it is held to."""
        return not record.is_file() or digests[train].hex() == RunRecord.read(folder).digest

    logs = {f"{home.name}/{what}": log for what, log in side.logs.items() if verify or what == "train"}
    told = replay_logs(folder, logs, recorded, verify=verify)
    return with_reason(told, RunRecord.read(folder)) if record.is_file() else told


@dataclass(frozen=True)
class OwnSide:
    """One party's side of a run, built anew: its rows, and by session a party with the log of its first life."""

    home: Home
    folder: Path
    job: OrgJob
    rows: OwnRows
    training: OwnTraining
    logs: dict[str, Log]


def own_side(
    home: Home, run: str, vouched: Vouched | None, *, data: Path | None = None, key: Path | None = None
) -> OwnSide:
    sessions, own, table = _opened(_with_data(home, data), run, _identity(home, key), vouched)
    folder = sessions.folder
    training = sessions.training(own, RowLedger(home.ledger).granted(run))
    logs = {"train": Log(training.party, training.messages, folder)}
    if log_path(folder / "align", home.name).is_file():
        aligner = sessions.aligner(table.column(sessions.salt))
        logs["align"] = Log(aligner, align_psi.MESSAGES, folder / "align")
    if log_path(folder / "test", home.name).is_file():
        logs["test"] = Log(sessions.tester(own), predict.MESSAGES, folder / "test")
    return OwnSide(home, folder, sessions.job, own, training, logs)


def _with_data(home: Home, data: Path | None) -> Home:
    if data is None:
        return home
    settings = msgspec.structs.replace(home.config.data, file=str(data.resolve()), table=None)
    return Home(msgspec.structs.replace(home.config, data=settings), home.folder, home.file)


def _identity(home: Home, key: Path | None) -> Identity:
    """The masks come from the key that the run was made with; its certificate is of no use here."""
    if key is None:
        return home.identity()
    if not key.is_file():
        raise BadInput(f"expected the private key of the run at {key}, found nothing.")
    return Identity(home.name, b"", key.read_bytes())


def _opened(
    home: Home, run: str, identity: Identity, vouched: Vouched | None
) -> tuple[OwnSessions, OwnRows, KeptTable]:
    """This party's sessions of a run, its rows, and its table."""
    job_file = home.runs / run / "job.toml"
    if not job_file.is_file():
        raise BadInput(f"'{home.name}' has no run {run} under {home.runs}.")
    job = job_from_text(job_file.read_text(encoding="utf-8"), job_file)
    if vouched is not None:
        vouched.refuse_unknown(home.runs / run, job.method.algorithm, [home.config.data.table])
    sessions = OwnSessions(home, identity, run, job)
    aligned, accepted = sessions.kept("alignment"), sessions.kept("table")
    if aligned is None or not log_path(sessions.folder, home.name).is_file():
        raise BadInput(
            f"'{home.name}' has no log of a training under {sessions.folder}: it did not begin, or keep_days is over."
        )
    table = OwnTables(home).current()
    if accepted is not None and accepted["digest"] != table.digest:
        raise BadData(
            f"{table.table.name} or its settings have changed since run {run}, which can be replayed only with the "
            "table that it learned from. Give that file by --data FILE."
        )
    return (
        sessions,
        own_rows(home, table.table, job, aligned["rows"], aligned["tokens"], aligned.get("coin", b"")),
        table,
    )
