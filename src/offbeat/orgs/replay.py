"""A real run, again: feed each session's log of this party to a party built anew, and compare every effect's digest.

Only the owner can do it: the masks come from its key, which no run folder holds.
"""

from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import BadData, BadInput
from offbeat.jobs.organisations import job_from_text
from offbeat.metrics.record import RECORD_FILE, RunRecord
from offbeat.orgs import align_psi, predict
from offbeat.orgs.party_config import Home, home_of
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.rows import OwnRows, own_rows
from offbeat.orgs.sessions import OwnSessions
from offbeat.orgs.tables import KeptTable, OwnTables
from offbeat.run.replay import Log, replay_logs
from offbeat.runtime.grpc.identity import Identity
from offbeat.runtime.recovery import log_path


def replay_folder(
    folder: Path, *, verify: bool = False, data: Path | None = None, key: Path | None = None
) -> dict[str, Any]:
    """Replay the run in this folder, `runs/RUN` under a party's home: for people (`sentence`) and for programs.
    `verify`: the alignment and the test too, each to its end. `data`, `key`: the table and the private key as they were
    when the run was made, if they have changed."""
    return replay_own(home_of(folder), folder.name, verify=verify, data=data, key=key)


def replay_own(
    home: Home, run: str, *, verify: bool = False, data: Path | None = None, key: Path | None = None
) -> dict[str, Any]:
    sessions, own, table = _opened(_with_data(home, data), run, _identity(home, key))
    train, folder = f"{home.name}/train", sessions.folder
    record = folder / RECORD_FILE

    def recorded(digests: dict[str, bytes]) -> bool:
        """A run that was broken off has no record: its log's marks are what it is held to."""
        return not record.is_file() or digests[train].hex() == RunRecord.read(folder).digest

    logs = {train: _training(sessions, own)}
    if verify and log_path(folder / "align", home.name).is_file():
        aligner = sessions.aligner(table.column(sessions.salt))
        logs[f"{home.name}/align"] = Log(aligner, align_psi.MESSAGES, folder / "align")
    if verify and log_path(folder / "test", home.name).is_file():
        logs[f"{home.name}/test"] = Log(sessions.tester(own), predict.MESSAGES, folder / "test")
    return replay_logs(folder, logs, recorded, verify=verify)


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


def _training(sessions: OwnSessions, own: OwnRows) -> Log:
    training = sessions.training(own, RowLedger(sessions.home.ledger).granted(sessions.run))
    return Log(training.party, training.messages, sessions.folder)


def _opened(home: Home, run: str, identity: Identity) -> tuple[OwnSessions, OwnRows, KeptTable]:
    """This party's sessions of a run, its rows, and its table."""
    job_file = home.runs / run / "job.toml"
    if not job_file.is_file():
        raise BadInput(f"'{home.name}' has no run {run} under {home.runs}.")
    job = job_from_text(job_file.read_text(encoding="utf-8"), job_file)
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
    return sessions, own_rows(home, table.table, job, aligned["rows"], aligned["tokens"]), table
