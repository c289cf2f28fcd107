"""What a party keeps of runs: names, each used once; folders, taken up or set aside; logs, for a time.

Masks, noise and charges of a run hang on its name. A name that came back would bring them back: so it is burnt when
the run is accepted, in a file beside the other ledgers, before anything else of the run is written.

Old runs lose their logs and their masks' secret after the days, or beyond the room, that the owner set; what they came
to stays. A log and a
nonce let its owner replay a run. Whoever stole the nonce and the key could take the masks off what was recorded of the
run elsewhere. So both go together. Transcripts stay: they hold hashes and signatures.
"""

import json
import logging
import re
import secrets
import shutil
import threading
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import BadInput, BadJob, OffbeatError, Refused
from offbeat.jobs.organisations import OrgJob, job_from_text
from offbeat.orgs.control import ENDED_PHASES, RunStatus
from offbeat.orgs.discreet import printable
from offbeat.orgs.durable import append_line, now_text, read_lines
from offbeat.orgs.party_config import Home

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,119}")


class RunNames:
    """`private/ledger/runs.jsonl`: one line for each name, and one when its run begins. One per daemon; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "runs.jsonl"
        self._lock = threading.Lock()
        self._burnt: dict[str, int] = {}
        self._last: dict[str, str] = {}
        for line in read_lines(self._path)[0]:
            self._burnt.setdefault(str(line["run"]), len(self._burnt))
            self._last |= dict.fromkeys(line.get("begun_with", ()), str(line["run"]))

    def burn(self, run: str, initiator: str, who: str) -> None:
        """Use a name up, or refuse."""
        with self._lock:
            if run in self._burnt:
                raise Refused(f"'{who}' has had a run '{run}' before, and a run's name is used once; propose another.")
            self._burnt[run] = len(self._burnt)
            append_line(self._path, {"at": now_text(), "run": run, "initiator": initiator})

    def begin(self, run: str, peers: Sequence[str]) -> None:
        """Whoever takes part in a run that begins has burnt its name. So a peer that does not know the name that we
        tell it later has put back an old copy of its ledger."""
        with self._lock:
            if any(self._last.get(peer) != run for peer in peers):
                self._last |= dict.fromkeys(peers, run)
                append_line(self._path, {"at": now_text(), "run": run, "begun_with": list(peers)})

    def last_with(self, peer: str) -> str:
        """The run that began last with this peer, or nothing."""
        return self._last.get(peer, "")

    def set_back(self, peer: str, last: str) -> str:
        """What is wrong, if this peer has begun a run with us that we do not know."""
        if not last or last in self._burnt:
            return ""
        return (
            f"'{peer}' says that run '{printable(last)[:120]}' began with us, and {self._path} does not know it: an "
            "older copy of this home was put back, and what was used and spent since then is not counted. End the "
            "daemon and put back the newest copy of private/ledger. Without one, ask the others what has run since."
        )

    def place(self, run: str) -> int:
        """Where a run stands in the order in which this party accepted them."""
        return self._burnt.get(run, -1)


def check_run_name(run: str, job: str, peer: str) -> None:
    if not RUN_NAME.fullmatch(run) or not run.startswith(f"{job}-"):
        raise BadJob(f"'{peer}' named a run {run[:120]!r}, which is not a name for job '{job}'.")


DAMAGED = "damaged"


def read_left(folder: Path, private: Path) -> tuple[RunStatus, dict[str, Any], OrgJob]:
    """(how it stood, what was reported, its job); raises whatever is wrong with the folder."""
    state = json.loads((folder / "state.json").read_bytes())
    reports = state.pop("reports")
    job = job_from_text((folder / "job.toml").read_text(encoding="utf-8"), folder / "job.toml")
    status = msgspec.convert(state, RunStatus)
    if status.run != folder.name:
        raise BadInput(f"its state.json is of run '{status.run}'")
    if not status.ended and not (private / folder.name / "nonce").is_file():
        raise BadInput("its secrets under private/ are gone")
    return status, reports, job


def set_aside(folder: Path, problem: Exception) -> str:
    """Move a damaged folder away; what happened is returned as words about the run."""
    aside = folder.parent / DAMAGED / f"{folder.name}-{secrets.token_hex(3)}"
    aside.parent.mkdir(exist_ok=True, mode=0o700)
    folder.rename(aside)
    return f"its folder is damaged ({type(problem).__name__}: {problem}) and was moved to {aside}"


log = logging.getLogger("offbeat.party")

LOGS = tuple(place + kind for place in ("", "align/", "test/") for kind in ("events", "checkpoints"))
DAY_S, MB = 86_400.0, 1e6
UNBEGUN_KEPT_DAYS = 7.0


def prune(home: Home, now_s: float | None = None) -> list[str]:
    """The runs whose logs went: those that ended long enough ago (keep_days), and the oldest ones for which there is no
    room (keep_mb). What is left of proposals that ended before they began goes after a week: their names are burnt, and
    decisions about them are written down."""
    now_s = time.time() if now_s is None else now_s
    for folder in home.runs.glob("*/"):
        if _never_began(home, folder, now_s - UNBEGUN_KEPT_DAYS * DAY_S):
            shutil.rmtree(home.private / folder.name, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
    pruned = sorted(folder.name for folder in _without_room(home, now_s) if _pruned(home, folder))
    if pruned:
        log.info("logs of %d ended runs were deleted: %s", len(pruned), ", ".join(pruned))
    return pruned


def _never_began(home: Home, folder: Path, before_s: float) -> bool:
    began = (home.private / folder.name / "begun.json", folder / "record.json", folder / "align", folder / "events")
    return not any(trace.exists() for trace in began) and _ended_s(folder) <= before_s


def _ended_s(folder: Path) -> float:
    """Since when a run is over; infinity for one under way, and for a damaged one, of which nothing is known."""
    state = folder / "state.json"
    try:
        return state.stat().st_mtime if json.loads(state.read_bytes())["phase"] in ENDED_PHASES else inf
    except (OSError, ValueError, KeyError, TypeError):
        return inf


def _without_room(home: Home, now_s: float) -> list[Path]:
    """Ended runs whose logs the owner does not want to keep."""
    store = home.config.store
    if not store.keep_days and not store.keep_mb:
        return []
    before_s = now_s - store.keep_days * DAY_S if store.keep_days else -inf
    room, found = store.keep_mb * MB if store.keep_mb else inf, []
    logged = [folder for folder in home.runs.glob("*/") if _logs(folder)]
    ended = sorted((-ended_s, folder) for folder in logged if (ended_s := _ended_s(folder)) < inf)
    for minus_s, folder in ended:  # the newest first
        room -= sum(path.stat().st_size for one in _logs(folder) for path in one.rglob("*") if path.is_file())
        if room < 0 or -minus_s <= before_s:
            found.append(folder)
    return found


def _logs(folder: Path) -> list[Path]:
    return [folder / name for name in LOGS if (folder / name).is_dir()]


def _pruned(home: Home, folder: Path) -> bool:
    logs = _logs(folder)
    try:
        private = job_from_text((folder / "job.toml").read_text(encoding="utf-8")).embedding.epsilon is not None
    except (OSError, ValueError, OffbeatError):
        return False  # damaged: for its owner to look at
    if logs and not private:  # the noise of private scores comes from it as long as they are asked for
        (home.private / folder.name / "nonce").unlink(missing_ok=True)
    for one in logs:
        shutil.rmtree(one, ignore_errors=True)  # runs that end at once prune at once
    return bool(logs) and not any(one.exists() for one in logs)
