"""Which runs may begin: those that their owners have accepted, as soon as there is a place for them.

A proposal that the policy does not allow is refused at once. Where it says `approve = "by hand"`, one that it allows
waits: nothing is read and nothing leaves until the owner accepts it. The initiator asks now and then; it begins when
all have accepted.

    private/ledger/decisions.jsonl   who decided what, when and why: signed lines (history.py)

A party works on some runs at a time (`runs_at_once`), and others that it has accepted wait. The initiator asks one
party after the other for a place, in the order of their names, and gives the word to begin when it has all of them. So
all begin together, and no two initiators hold what the other waits for. Who waits comes in the order in which this
party accepted. A place that is not asked for any more, and one that no word follows, is free again.
"""

import threading
import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from offbeat.errors import BadInput, PeerFailed, Refused
from offbeat.names import counted
from offbeat.orgs.control import QUEUED, Decide
from offbeat.orgs.durable import read_lines
from offbeat.orgs.history import add_signed
from offbeat.orgs.party_config import Home
from offbeat.orgs.runs import Run
from offbeat.runtime.grpc.identity import Identity

DECISIONS = "decisions.jsonl"
WAITING = "waiting"
WAITING_KEPT_S = 7 * 86_400.0


class StillWaiting(PeerFailed):
    """Some parties' owners have not decided yet."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"the owners of {' and '.join(names)} have not decided yet.")
        self.names = names


class Approvals:
    """The decisions of this party's owner. One per daemon; thread-safe."""

    def __init__(self, ledger: Path, identity: Identity) -> None:
        self._path, self._identity = ledger / DECISIONS, identity
        self._lock = threading.Lock()

    def decide(self, run: Run, decision: Decide) -> None:
        """Accept or refuse a run that waits; written down before it takes effect."""
        if not decision.by.strip():
            raise BadInput("a decision has a name under it; say who decides.")
        with self._lock:
            if run.status.phase != WAITING:
                raise BadInput(f"run '{run.run}' is '{run.status.phase}': there is nothing to decide.")
            self._note(run.run, run.initiator, decision.accept, decision.by, decision.reason)
            if decision.accept:
                run.accepted_s = time.monotonic()
                run.update(phase="accepted")
                return
        why = f": {decision.reason}" if decision.reason else ""
        run.stop("refused", f"the owner of '{run.home.name}' refused it{why}")
        run.update(phase="refused", kind=Refused.__name__)

    def note_refusal(self, peer: str, reason: str) -> None:
        """The policy has refused a proposal of this peer."""
        self._note("", peer, False, "the policy", reason)

    def _note(self, run: str, initiator: str, accepted: bool, by: str, reason: str) -> None:
        line = {"run": run, "initiator": initiator, "accepted": accepted, "by": by, "reason": reason}
        add_signed(self._path, self._identity, **line)

    def history(self) -> list[dict[str, Any]]:
        return read_lines(self._path)[0]


def refuse_ended(run: Run) -> None:
    """What a party answers about a proposal that it, or its owner, has refused meanwhile."""
    if run.status.ended:
        raise Refused(f"run '{run.run}' has ended at '{run.home.name}' ({run.status.verdict}): {run.status.reason}.")


PLACE_KEPT_S = 60.0  # for a run whose initiator has not asked again
PROPOSAL_KEPT_S = 600.0  # after the last word of its initiator
PROPOSALS_OF_ONE = 3  # that wait for the owner's decision
UNBEGUN = ("accepted", QUEUED)


class InQueue(PeerFailed):
    """A party has no place for the run yet; the words say which party, and why."""


class RunQueue:
    """The places of one daemon. `runs`: all that it knows, in the order in which it accepted them. Thread-safe."""

    def __init__(self, home: Home, runs: Mapping[str, Run]) -> None:
        self._home, self._runs = home, runs
        self._lock = threading.Lock()

    def take(self, run: Run) -> None:
        """Give the run a place, or raise `InQueue`. One that it has is kept for it."""
        with self._lock:
            self._refuse_place(run)
            run.place_s = run.asked_s

    def look(self, run: Run) -> None:
        """Raise `InQueue` if there is no place for the run now."""
        with self._lock:
            self._refuse_place(run)

    def _refuse_place(self, run: Run) -> None:
        """Those before it, as far as somebody asks for them, take what is free first."""
        run.asked_s, active = time.monotonic(), self._active()
        places = [one for one in active if self._holds(one)]
        before = active[: active.index(run)] if run in active else active
        asking = [one for one in before if one not in places and one.asked_s + PLACE_KEPT_S > run.asked_s]
        for one in (*asking, run):
            if one not in places and len(places) < self._most and self._may_have(one.initiator, places, self._most):
                places.append(one)
        if run not in places:
            me, full = self._home.name, counted(self._most, "run")
            who = f" of '{run.initiator}'" if len(places) < self._most else ""
            raise InQueue(f"'{me}' works on at most {full} at a time{who}; {len(asking)} of those that wait come first")

    def refuse_crowd(self, initiator: str) -> None:
        """What waits is bounded, too, and one initiator's runs do not take all the room."""
        self.expire()
        me, active, most = self._home.name, self._active(), self._most + self._home.config.policy.runs_waiting
        undecided = [run for run in active if run.status.phase == WAITING and run.initiator == initiator]
        if len(undecided) >= PROPOSALS_OF_ONE:
            raise Refused(f"'{initiator}' has {len(undecided)} proposals at '{me}' whose owner has not decided yet.")
        active = [run for run in active if run.status.phase != WAITING]
        if len(active) >= most:
            raise Refused(
                f"the queue of '{me}' is full: {len(active)} runs are under way or wait (its policy has runs_at_once = "
                f"{self._most}, runs_waiting = {most - self._most}). Ask again when some have ended."
            )
        if not self._may_have(initiator, active, most):
            own = sum(run.initiator == initiator for run in active)
            raise Refused(f"'{initiator}' has {own} runs under way or waiting at '{me}', the most of one.")

    def expire(self) -> None:
        """End what nobody leads any more, and what its owner did not decide about."""
        for run in self._active():
            waits, kept_s = run.status.phase == WAITING, PROPOSAL_KEPT_S
            if waits:
                kept_s = WAITING_KEPT_S
            elif run.status.phase not in UNBEGUN:
                kept_s = inf
            if run.initiator != self._home.name and time.monotonic() > run.accepted_s + kept_s:
                late = "its owner did not decide" if waits else f"'{run.initiator}' did not begin it"
                run.stop("failed", f"{late} within {kept_s:.0f} s")

    @property
    def _most(self) -> int:
        return self._home.config.policy.runs_at_once

    def _active(self) -> list[Run]:
        return [run for run in list(self._runs.values()) if not run.status.ended]

    def _holds(self, run: Run) -> bool:
        if run.status.phase in UNBEGUN:
            return run.place_s + PLACE_KEPT_S > time.monotonic()
        return run.status.phase != WAITING

    def _may_have(self, initiator: str, runs: list[Run], most: int) -> bool:
        """Three quarters of the room are the most of one initiator that is not the owner."""
        return initiator == self._home.name or sum(run.initiator == initiator for run in runs) < max(1, 3 * most // 4)
