"""The names of all runs that this party ever accepted. A name is used once, whatever becomes of the run's folder.

Masks, noise and charges of a run hang on its name. A name that came back would bring them back: so it is burnt when
the run is accepted, in a file beside the other ledgers, before anything else of the run is written.
"""

import re
import threading
import time
from pathlib import Path

from offbeat.errors import BadJob, Refused
from offbeat.orgs.durable import append_line, read_lines

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,119}")


def now_text() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class RunNames:
    """`private/ledger/runs.jsonl`: one line for each name. One per daemon; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "runs.jsonl"
        self._lock = threading.Lock()
        self._burnt = {str(line["run"]): place for place, line in enumerate(read_lines(self._path)[0])}

    def burn(self, run: str, initiator: str, who: str) -> None:
        """Use a name up, or refuse."""
        with self._lock:
            if run in self._burnt:
                raise Refused(f"'{who}' has had a run '{run}' before, and a run's name is used once; propose another.")
            self._burnt[run] = len(self._burnt)
            append_line(self._path, {"at": now_text(), "run": run, "initiator": initiator})

    def place(self, run: str) -> int:
        """Where a run stands in the order in which this party accepted them."""
        return self._burnt.get(run, -1)


def check_run_name(run: str, job: str, peer: str) -> None:
    if not RUN_NAME.fullmatch(run) or not run.startswith(f"{job}-"):
        raise BadJob(f"'{peer}' named a run {run[:120]!r}, which is not a name for job '{job}'.")
