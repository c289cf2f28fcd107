"""Proposals that wait for their owner: where the policy says `approve = "by hand"`, it allows, and a person decides.

A proposal that the policy does not allow is refused at once, as ever. One that it allows waits: nothing is read and
nothing leaves until the owner accepts it. The initiator asks now and then; it begins when all have accepted.

    private/ledger/decisions.jsonl   who decided what, when and why
"""

import threading
import time
from pathlib import Path
from typing import Any

from offbeat.errors import BadInput, PeerFailed, Refused
from offbeat.orgs.control import Decide
from offbeat.orgs.durable import append_line, read_lines
from offbeat.orgs.run_names import now_text
from offbeat.orgs.runs import Run

WAITING = "waiting"
WAITING_KEPT_S = 7 * 86_400.0


class StillWaiting(PeerFailed):
    """Some parties' owners have not decided yet."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"the owners of {' and '.join(names)} have not decided yet.")
        self.names = names


class Approvals:
    """The decisions of this party's owner. One per daemon; thread-safe."""

    def __init__(self, ledger: Path) -> None:
        self._path = ledger / "decisions.jsonl"
        self._lock = threading.Lock()

    def decide(self, run: Run, decision: Decide) -> None:
        """Accept or refuse a run that waits; written down before it takes effect."""
        if not decision.by.strip():
            raise BadInput("a decision has a name under it; say who decides.")
        with self._lock:
            if run.status.phase != WAITING:
                raise BadInput(f"run '{run.run}' is '{run.status.phase}': there is nothing to decide.")
            line = {"at": now_text(), "run": run.run, "initiator": run.initiator, "accepted": decision.accept}
            append_line(self._path, {**line, "by": decision.by, "reason": decision.reason})
            if decision.accept:
                run.accepted_s = time.monotonic()
                run.update(phase="accepted")
                return
        why = f": {decision.reason}" if decision.reason else ""
        run.stop("refused", f"the owner of '{run.home.name}' refused it{why}")
        run.update(phase="refused", kind=Refused.__name__)

    def history(self) -> list[dict[str, Any]]:
        return read_lines(self._path)[0]


def refuse_ended(run: Run) -> None:
    """What a party answers about a proposal that it, or its owner, has refused meanwhile."""
    if run.status.ended:
        raise Refused(f"run '{run.run}' has ended at '{run.home.name}' ({run.status.verdict}): {run.status.reason}.")
