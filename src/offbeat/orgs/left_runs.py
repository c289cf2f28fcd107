"""Runs that an earlier process of this party left: read from their folders, or set aside when those are damaged."""

import json
import secrets
from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import BadInput
from offbeat.jobs.organisations import OrgJob, job_from_text
from offbeat.orgs.control import RunStatus

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
