"""A real run, again: feed each session's log of this party to a party built anew, and compare every effect's digest.

Only the owner can do it: the masks come from its key, which no run folder holds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.errors import BadInput, PeerFailed
from offbeat.message.codec import Codec
from offbeat.orgs.job import job_from_text
from offbeat.orgs.party_config import Home, read_home
from offbeat.orgs.rows import load_table, own_rows
from offbeat.orgs.runs import run_secret
from offbeat.orgs.train import build_party
from offbeat.runtime.checkpoint import read_checkpoint
from offbeat.runtime.recovery import log_path, recover


@dataclass(frozen=True, slots=True)
class Repeated:
    """What a replay did: all marks in the log were met, or it would have raised."""

    party: str
    events: int
    marks: int
    digest: str
    verdict: str


def replay_training(home: Home, run: str) -> Repeated:
    """Replay this party's training of one run from the first event; raises where the effects differ."""
    folder, private = home.runs / run, home.private / run
    kept, limits = read_checkpoint(private, "alignment"), read_checkpoint(private, "limits")
    if kept is None or limits is None or not log_path(folder, home.name).is_file():
        raise BadInput(f"'{home.name}' has no log of a training under {folder}.")
    job = job_from_text((folder / "job.toml").read_text(encoding="utf-8"), folder / "job.toml")
    own = own_rows(home, load_table(home), job, kept["rows"], kept["tokens"])
    secret = run_secret(home.identity(), private, "masks")
    party, messages = build_party(
        job,
        home.name,
        own,
        run=run,
        secret=secret,
        cap=limits["cap"],
        before=limits["before"],
        shape=home.config.data.shape,
    )
    replayed = recover(party, Codec(messages), folder, from_start=True)
    finish = replayed.drive.finished
    verdict = finish.verdict if finish is not None else ""
    return Repeated(home.name, replayed.events, replayed.marks, replayed.drive.digest.hex(), verdict)


def replay_folder(folder: Path) -> dict[str, Any]:
    """Replay the run in this folder, `runs/RUN` under a party's home: for people (`sentence`) and for programs."""
    home = _home_of(folder)
    try:
        repeated = replay_training(home, folder.name)
    except PeerFailed as problem:
        return {"run": str(folder), "how": "logs", "same": False, "party": home.name, "sentence": str(problem)}
    return {
        "run": str(folder),
        "how": "logs",
        "same": True,
        "events": {home.name: repeated.events},
        "digests": {home.name: repeated.digest},
        "sentence": f"{repeated.events} logged events of '{home.name}' gave the same effects, bit for bit.",
    }


def _home_of(folder: Path) -> Home:
    """The party whose run this is: the nearest party.toml above the run folder."""
    for place in folder.resolve().parents:
        if (place / "party.toml").is_file():
            return read_home(place)
    raise BadInput(
        f"{folder} is a run of an organisation, but no party.toml lies above it: only its owner can replay it."
    )
