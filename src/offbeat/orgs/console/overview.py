"""What the console shows, gathered by one thread: asked of the daemon, read from the owner's folder."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offbeat.errors import OffbeatError
from offbeat.jobs.organisations import OrgJob, job_from_text
from offbeat.orgs.budget import PrivacyLedger, spent_so_far
from offbeat.orgs.console.policy_pages import costs, sentences
from offbeat.orgs.control import ListRuns, Ping, Pong, Predict, Predicted, RefusedCall, Runs, RunStatus
from offbeat.orgs.disclosure import disclosures
from offbeat.orgs.durable import NewLines
from offbeat.orgs.kept_runs import RunNames
from offbeat.orgs.lines import OwnDaemon, PeerCalls
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy import objections
from offbeat.orgs.policy_file import policy_history
from offbeat.orgs.run_queue import WAITING, Approvals
from offbeat.runtime.grpc.identity import PinnedRoster, validity
from offbeat.runtime.grpc.wire import offbeat_version

PEERS_EVERY_S = 15.0
PING_WITHIN_S = 3.0
CURVES_KEPT, POINTS_KEPT = 16, 400
USES_KEPT = 2000
ENDED_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    address: str
    standing: str
    good: bool
    days_left: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """One that waits for the owner."""

    run: str
    job: OrgJob
    initiator: str
    told: Sequence[str]
    costs: Sequence[str]
    objections: Sequence[str]


@dataclass(frozen=True, slots=True)
class Uses:
    """Rows in sums by asker: (seconds since the first use, uses so far)."""

    points: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    total: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Spending:
    """The privacy budget and what has been spent of it: (seconds since the first charge, epsilon so far)."""

    epsilon: float | None
    delta: float
    points: Sequence[tuple[float, float]] = ()

    @property
    def spent(self) -> float:
        return self.points[-1][1] if self.points else 0.0


@dataclass(frozen=True, slots=True)
class Overview:
    party: str
    version: str
    problem: str  # why the daemon does not answer
    days_left: int
    peers: Sequence[Peer]
    runs: Sequence[RunStatus]
    jobs: dict[str, OrgJob]
    proposals: Sequence[Proposal]
    curves: dict[str, list[tuple[float, float]]]
    policy: Sequence[str]
    policy_file: str
    by_hand: bool
    decisions: Sequence[dict[str, Any]]
    policy_changes: Sequence[dict[str, Any]]
    uses: Uses
    most_used: int
    row_cap: int
    budget: Spending
    refusals: Sequence[RefusedCall] = ()
    scores: "Scores | None" = None


@dataclass(frozen=True, slots=True)
class Scores:
    """The last prediction that was asked for here."""

    run: str
    ids: list[str]
    answer: Predicted | None
    problem: str = ""


class Watching:
    """Reads the party again and again; `newest` is what was found last."""

    def __init__(self, home: Home) -> None:
        self.home, self.daemon = home, OwnDaemon(home)
        self._approvals, self._privacy = Approvals(home.ledger, home.identity()), PrivacyLedger(home.ledger)
        self._peers: Sequence[Peer] = ()
        self._peers_s = -PEERS_EVERY_S
        self._curves: OrderedDict[str, list[tuple[float, float]]] = OrderedDict()
        self._jobs: dict[str, OrgJob] = {}
        self._uses, self._history, self._first_use_s = Uses(), NewLines(home.ledger / "history.jsonl"), 0.0
        self._charged: tuple[int, float, Sequence[tuple[float, float]]] = (0, 0.0, ())
        self._lock = threading.Lock()
        self.scores: Scores | None = None

    def look(self) -> Overview:
        self._ask_peers()
        with self._lock:
            return self._looked()

    def predict(self, run: str, ids: list[str]) -> None:
        try:
            answer = self.daemon.ask(Predict(run, ids), 120.0)
            self.scores = Scores(run, ids, answer)
        except OffbeatError as problem:
            self.scores = Scores(run, ids, None, str(problem))

    def folder_of(self, run: str) -> Path | None:
        """The folder of a run that the daemon knows."""
        return self.home.runs / run if run in {status.run for status in self.look().runs} else None

    def _looked(self) -> Overview:
        problem, told = "", Runs()
        try:
            self.home.read_again()
            told = self.daemon.ask(ListRuns(), 5.0)
        except OffbeatError as trouble:
            problem = str(trouble)
        config = self.home.config
        shown = [run for run in told.runs if not run.ended] + [run for run in told.runs if run.ended][-ENDED_SHOWN:]
        jobs = {status.run: job for status in shown if (job := self._job(status.run)) is not None}
        self._note_curves(shown)
        return Overview(
            party=self.home.name,
            version=offbeat_version(),
            problem=problem,
            days_left=_days_left(self.home.identity().certificate_pem),
            peers=self._peers,
            runs=shown,
            jobs=jobs,
            proposals=[self._proposal(one, jobs[one.run]) for one in shown if one.phase == WAITING and one.run in jobs],
            curves=dict(self._curves),
            policy=sentences(config.policy, config.data.label is not None),
            policy_file=str(self.home.file),
            by_hand=config.policy.approve == "by hand",
            decisions=self._approvals.history()[-ENDED_SHOWN:],
            policy_changes=policy_history(self.home)[-ENDED_SHOWN:],
            uses=self._all_uses(),
            most_used=told.most_used,
            row_cap=config.policy.row_cap,
            budget=self._budget(config.policy.epsilon, config.policy.delta),
            refusals=told.refusals,
            scores=self.scores,
        )

    def _job(self, run: str) -> OrgJob | None:
        if run not in self._jobs:
            try:
                self._jobs[run] = job_from_text((self.home.runs / run / "job.toml").read_text(encoding="utf-8"))
            except (OSError, OffbeatError):  # damaged or deleted: the daemon says which
                return None
        return self._jobs[run]

    def _proposal(self, status: RunStatus, job: OrgJob) -> Proposal:
        policy, me = self.home.config.policy, self.home.name
        return Proposal(
            status.run,
            job,
            status.initiator,
            disclosures(job),
            costs(job, me, policy, self._privacy.after),
            objections(policy, job, me, status.initiator),
        )

    def _note_curves(self, runs: Sequence[RunStatus]) -> None:
        """The certified bound by passes, as it is seen from here while the console is open."""
        for status in runs:
            passes, gap = (status.progress.get(key) for key in ("passes", "gap"))
            if not isinstance(passes, int | float) or not isinstance(gap, int | float):
                continue
            curve = self._curves.setdefault(status.run, [])
            if not curve or curve[-1][0] < passes:
                curve.append((float(passes), float(gap)))
                del curve[:-POINTS_KEPT]
        while len(self._curves) > CURVES_KEPT:
            self._curves.popitem(last=False)

    def _ask_peers(self) -> None:
        """All at once, and outside the lock: a peer that does not answer holds up nobody else's look."""
        if time.monotonic() - self._peers_s <= PEERS_EVERY_S:
            return
        self._peers_s, roster = time.monotonic(), self.home.roster()
        caller, others = PeerCalls(self.home.identity(), roster), [n for n in roster.names if n != self.home.name]
        with ThreadPoolExecutor(max(1, len(others))) as asking:
            self._peers = list(asking.map(lambda name: _peer(caller, self.home, roster, name), others))

    def _budget(self, epsilon: float | None, delta: float) -> Spending:
        """Composed anew only when something was charged: that takes its time."""
        lines = self._privacy.history()
        if self._charged[:2] != (len(lines), delta):
            self._charged = (len(lines), delta, spent_so_far(lines, delta))
        return Spending(epsilon, delta, self._charged[2])

    def _all_uses(self) -> Uses:
        lines, anew = self._history.new()
        if anew:
            self._uses, self._first_use_s = Uses(), 0.0
        for line in lines:
            at_s = datetime.fromisoformat(str(line["at"])).timestamp()
            self._first_use_s = self._first_use_s or at_s
            asker = str(line["asker"])
            self._uses.total[asker] += int(line.get("sum", 0))
            points = self._uses.points.setdefault(asker, [(0.0, 0.0)])
            points.append((at_s - self._first_use_s, float(self._uses.total[asker])))
            del points[1:-USES_KEPT]
        return self._uses


def _peer(caller: PeerCalls, home: Home, roster: PinnedRoster, name: str) -> Peer:
    member = roster.member(name)
    days = _days_left(member.certificate_pem)
    if not member.address:
        return Peer(name, "", "calls us; it has no address", True, days)
    try:
        answer = caller.call(name, Ping(), PING_WITHIN_S)
    except OffbeatError as problem:
        return Peer(name, member.address, str(problem), False, days)
    assert isinstance(answer, Pong)
    if answer.roster != roster.hash:
        return Peer(name, member.address, f"up, offbeat {answer.offbeat}, but with another roster", False, days)
    if found := RunNames(home.ledger).set_back(name, answer.last):
        return Peer(name, member.address, found, False, days)
    return Peer(name, member.address, f"up, offbeat {answer.offbeat}", True, days)


def _days_left(certificate_pem: bytes) -> int:
    return (validity(certificate_pem)[1] - datetime.now(UTC)).days
