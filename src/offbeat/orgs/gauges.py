"""How one daemon stands, as numbers for Prometheus: no id, no column, no score; names of parties and runs alone."""

import shutil
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat.metrics.prometheus import Labels, Metric, by, single
from offbeat.orgs.durable import NewLines
from offbeat.runtime.grpc.identity import validity

if TYPE_CHECKING:
    from offbeat.orgs.daemon import Daemon
    from offbeat.orgs.runs import Run

DISK_EVERY_S = 60.0
RUNS_TOLD = 50
"""Of ended runs, so many of the newest are told one by one; the others only in sums."""


class Gauges:
    """Reads a daemon; walks its folders once a minute at most."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._began_s = time.time()
        self._walked_s = -DISK_EVERY_S
        self._disk: dict[str, float] = {}
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._history = NewLines(daemon.ledger.folder / "history.jsonl")
        self._past_phases: Counter[str] = Counter()  # of runs that are no longer in memory
        self._past_sent: Counter[tuple[str, str]] = Counter()

    def forget(self, run: "Run") -> None:
        """A run leaves the daemon's memory; sums keep it."""
        self._past_phases[run.status.phase] += 1
        _add_sent(self._past_sent, run)

    def families(self) -> list[Metric]:
        return [*self._about_runs(), *self._about_peers(), *self._about_rows(), *self._about_budget(), *self._machine()]

    def _about_runs(self) -> list[Metric]:
        runs = list(self._daemon.runs.values())
        damaged = Counter({"damaged": len(self._daemon.damaged)})
        phases = Counter(run.status.phase for run in runs) + self._past_phases + damaged
        sent = self._past_sent.copy()
        for run in runs:
            _add_sent(sent, run)
        shown = [run for run in runs if not run.status.ended] + [run for run in runs if run.status.ended][-RUNS_TOLD:]
        lags = {run.run: lag for run in shown if (lag := run.mean_lag()) is not None}
        return [
            Metric("runs", "gauge", "Runs by phase.", by("phase", phases)),
            single("runs_at_once", "gauge", "Runs that this party works on at a time; others are queued.",
                   self._daemon.home.config.policy.runs_at_once),
            Metric("messages_total", "counter", "Messages sent in runs since the start.", _kinds(sent, "messages")),
            Metric("bytes_total", "counter", "Bytes sent in runs since the start.", _kinds(sent, "bytes")),
            Metric("run_passes", "gauge", "Passes over the rows.", _progress(shown, "passes")),
            Metric(
                "run_gap", "gauge", "Certified distance to the best objective, at the chair.", _progress(shown, "gap")
            ),
            Metric("run_objective", "gauge", "Certified objective, at the chair.", _progress(shown, "objective")),
            Metric("run_lag", "gauge", "Mean lag of what this party acted on.", by("run", lags)),
        ]  # fmt: skip

    def _about_peers(self) -> list[Metric]:
        daemon, lines = self._daemon, self._daemon.lines
        waiting = daemon.post.waiting()
        return [
            Metric("peer_calls_total", "counter", "Calls over standing connections: one round trip each.",
                   by("peer", lines.calls)),
            Metric("peer_seconds_total", "counter", "Time that these calls took.", by("peer", lines.seconds)),
            single("peer_connections_total", "counter", "Standing connections made.", lines.made),
            Metric("refusals_total", "counter", "Requests refused.", by("peer", daemon.limits.refused)),
            Metric("strangers_total", "counter", "Streams turned away.", by("why", daemon.server.refused)),
            Metric("letters_waiting", "gauge", "Letters for parties that call out only.", by("peer", waiting)),
        ]  # fmt: skip

    def _about_rows(self) -> list[Metric]:
        asking, answering = self._daemon.asking, self._daemon.answering
        used = by("asker", self._uses())
        return [
            Metric("rows_used_total", "counter", "Uses of rows in sums, ever, by who asked.", used),
            Metric("scoring_rows_answered_total", "counter", "Rows of peers' scoring questions.",
                   by("asker", answering.rows)),
            single("scoring_rows_asked_total", "counter", "Rows of our own scoring questions.", asking.rows),
            single("scoring_questions_total", "counter", "Our own scoring questions.", asking.questions),
            single("scoring_retries_total", "counter", "Scoring questions asked again.", asking.retries),
            single("row_cap", "gauge", "How often a row may be used, ever; 0: no cap.",
                   self._daemon.home.config.policy.row_cap),
        ]  # fmt: skip

    def _uses(self) -> Counter[str]:
        """Of the ledger's history, only what is new since the last look is read."""
        with self._lock:
            lines, anew = self._history.new()
            if anew:
                self._used.clear()
            for line in lines:
                self._used[str(line["asker"])] += int(line.get("sum", 0))
            return self._used

    def _about_budget(self) -> list[Metric]:
        policy = self._daemon.home.config.policy
        spent = self._daemon.privacy.after([], policy.delta)
        left: dict[Labels, float] = {} if policy.epsilon is None else {(): policy.epsilon - spent}
        return [
            single("epsilon_spent", "gauge", "Privacy budget spent over all runs, at the policy's delta.", spent),
            Metric("epsilon_left", "gauge", "Privacy budget left, where the policy has one.", left),
        ]

    def _machine(self) -> list[Metric]:
        end = validity(self._daemon.identity.certificate_pem)[1]
        days = (end - datetime.now(UTC)).total_seconds() / 86_400
        return [
            single("certificate_days_left", "gauge", "Until the own certificate ends.", days),
            single("up_seconds", "gauge", "Since the daemon was started.", time.time() - self._began_s),
            single("threads", "gauge", "Threads of the daemon.", threading.active_count()),
            single("memory_bytes", "gauge", "Resident memory of the daemon.", _resident_bytes()),
            Metric("disk_bytes", "gauge", "Used by this party, and free on its disk.", by("what", self._disks())),
        ]

    def _disks(self) -> dict[str, float]:
        home = self._daemon.home
        with self._lock:
            if time.monotonic() - self._walked_s > DISK_EVERY_S:
                self._walked_s = time.monotonic()
                self._disk = {"runs": _size(home.runs), "private": _size(home.private)}
        return {**self._disk, "free": float(shutil.disk_usage(home.folder).free)}


def _size(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # deleted meanwhile
            continue
    return float(total)


def _resident_bytes() -> float:
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        return 0.0
    import resource

    return float(statm.read_text().split()[1]) * resource.getpagesize()


def _add_sent(sent: Counter[tuple[str, str]], run: "Run") -> None:
    for kind, (messages, size) in run.sent_so_far().items():
        sent["messages", kind] += messages
        sent["bytes", kind] += size


def _kinds(sent: Counter[tuple[str, str]], what: str) -> dict[Labels, float]:
    return {(("kind", kind),): float(count) for (unit, kind), count in sent.items() if unit == what}


def _progress(runs: list[Any], key: str) -> dict[Labels, float]:
    told = {run.run: run.status.progress.get(key) for run in runs}
    return by("run", {run: float(value) for run, value in told.items() if isinstance(value, int | float)})
