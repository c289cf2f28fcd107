"""Many short jobs and scores, daemons killed at random: every job ends, ledgers are exact, memory and disk have bounds.

Here a few jobs; `make soak` does as many as JOBS says (1,000). Some are under way at a time, each with its scores after
it. A kill meets whatever the others are at: a proposal, ids, a training, a question. What it breaks off is asked again.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import NAMES, WITHIN_S, Town, job, serve, wait_until

from offbeat.errors import OffbeatError, PeerFailed
from offbeat.orgs import control
from offbeat.orgs.lines import OwnDaemon
from offbeat.orgs.party_config import read_home
from offbeat.orgs.row_ledger import RowLedger

JOBS = int(os.environ.get("OFFBEAT_SOAK_JOBS", "6"))
AT_ONCE = 4
SCORES_EACH, ROWS_EACH = 10, 3
KILL_WITHIN_S = 1.0  # of a job's acceptance, before each second job on average
SETTLED_AFTER = 3  # jobs, until everything that is loaded once is loaded
LOOKS = 20  # at the memory of the daemon that is never killed
GROWTH_MB = 150.0
KEEP_DAYS = 1e-5  # less than a second
LOGS_LEFT = 5  # runs that were too young to lose their logs when the last run ended
RUN_KB, PRIVATE_KB = 150.0, 150.0  # of each run without its logs; of what each run leaves among the owner's own files
LOOK_S = 0.1
T = TypeVar("T")


class Soak:
    """Three daemons in processes of their own. The bank, which leads, lives on; others are killed and started again."""

    def __init__(self, town: Town) -> None:
        self.town, self.never = town, threading.Event()
        self.children = {name: serve(town, name) for name in NAMES}
        self.owners = {name: OwnDaemon(read_home(town.folder / name)) for name in NAMES}
        self.kills, self.again = Counter[str](), Counter[str]()
        self.ended: list[str] = []
        self.memory: list[float] = []
        self._killing = {name: threading.Lock() for name in NAMES}
        self._lock = threading.Lock()

    def one_job(self, number: int) -> None:
        """A job, a kill with it or not, and its scores."""
        rng = np.random.default_rng((JOBS, number))
        run = self.asked("job", lambda: self.town.submit(job(target=1e-2)))
        if rng.integers(2):
            self.never.wait(KILL_WITHIN_S * rng.random())
            self.kill(str(rng.choice(NAMES[1:])))
        for name in NAMES:
            assert self.end_of(name, run) == "done", (number, name, run)
        for _ in range(SCORES_EACH):
            ids = [f"c{i}" for i in rng.choice(240, ROWS_EACH, replace=False)]
            answer = self.asked("question", lambda ids=ids: self.owners["bank"].ask(control.Predict(run, ids)))
            assert isinstance(answer, control.Predicted) and all(answer.known) and np.isfinite(answer.scores).all()
        with self._lock:
            self.ended.append(run)
            if len(self.ended) == SETTLED_AFTER or len(self.ended) % max(1, JOBS // LOOKS) == 0:
                self.memory.append(_resident_mb(self.children["bank"].pid))
                print(f"{len(self.ended)} jobs, {self.kills.total()} kills, bank {self.memory[-1]:.0f} MB", flush=True)

    def kill(self, name: str) -> None:
        with self._killing[name]:
            self.children[name].send_signal(signal.SIGKILL)
            self.children[name].wait()
            self.children[name] = serve(self.town, name)
            self.kills[name] += 1

    def asked(self, what: str, ask: Callable[[], T]) -> T:
        """Again and again while a party is being started."""
        end_s = time.monotonic() + WITHIN_S
        while True:
            try:
                return ask()
            except PeerFailed:
                assert time.monotonic() < end_s, f"no {what} was answered within {WITHIN_S:.0f} s"
            with self._lock:
                self.again[what] += 1
            self.never.wait(LOOK_S)

    def end_of(self, name: str, run: str) -> str:
        """The phase in which a run has ended; asked again, the daemon might just be killed."""
        seen = ""

        def ended() -> bool:
            nonlocal seen
            seen = self.phase(name, run)
            return seen in control.ENDED_PHASES

        wait_until(ended, LOOK_S)
        return seen

    def phase(self, name: str, run: str) -> str:
        try:
            status = self.owners[name].ask(control.Status(run))
        except OffbeatError:  # it is being started
            return ""
        assert isinstance(status, control.RunStatus)
        return status.phase

    def everything_has_ended(self) -> bool:
        """Proposals that were broken off, too."""
        return all(one.ended for name in NAMES for one in self.owners[name].ask(control.ListRuns()).runs)

    def close(self) -> None:
        for name, child in self.children.items():
            child.terminate()
            child.wait()
            self.owners[name].close()


def disk_of(home: Path) -> tuple[int, float, float]:
    """How many runs have their logs; kilobytes of a run without, and of a party's own files by run. What is left of
    proposals that were broken off does not make a run smaller."""
    runs = [folder for folder in (home / "runs").glob("*/") if (folder / "record.json").is_file()]
    bare = [folder for folder in runs if not (folder / "events").is_dir()]
    each = sum(map(_kilobytes, bare)) / max(1, len(bare))
    return len(runs) - len(bare), each, _kilobytes(home / "private") / max(1, len(runs))


def _kilobytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1024


def _resident_mb(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return float(line.split()[1]) / 1024


def counted(home: Path) -> tuple[Counter[str], Counter[str], dict[str, int]]:
    """From a party's ledger: trainings and tests by name, questions by run, session and number, and their rows."""
    ledger = RowLedger(home / "private" / "ledger")
    history = ledger.history()
    texts = [f"c{i}" for i in range(300)]
    told = sum(int(str(line.get("sum", 0))) for line in history)
    assert int(ledger.counts(texts).sum()) == told, home
    names = [str(line["what"]) for line in history]
    questions = {name: name.rpartition("-")[0] for name in names if "/score-" in name}
    rows = {questions[str(line["what"])]: int(str(line["sum"])) for line in history if line["what"] in questions}
    return Counter(name for name in names if name not in questions), Counter(questions.values()), rows


@pytest.mark.slow
def test_many_jobs_and_scores_with_kills(tmp_path: Path) -> None:
    town = Town(tmp_path)
    for name in NAMES:
        town.settings(name, keep_days=f"{KEEP_DAYS}")
    begun_s = time.monotonic()
    with ExitStack() as opened:
        soak = opened.enter_context(closing(Soak(town)))
        with ThreadPoolExecutor(AT_ONCE) as some:
            for ended in [some.submit(soak.one_job, number) for number in range(JOBS - 1)]:
                ended.result()
        soak.one_job(JOBS - 1)  # alone: what ended before it may lose its logs
        wait_until(soak.everything_has_ended, look_s=LOOK_S)
    took_s, grown = time.monotonic() - begun_s, max(soak.memory) - soak.memory[0]
    print(f"{JOBS} jobs, {took_s:.0f} s, kills {dict(soak.kills)}, asked again {dict(soak.again)}")
    assert soak.kills.total() > 0 and len(set(soak.ended)) == JOBS
    assert grown < GROWTH_MB, f"the bank's daemon grew by {grown:.0f} MB over {JOBS - SETTLED_AFTER} jobs"
    _, answered, _ = counted(tmp_path / "bank")
    assert answered.total() == JOBS * SCORES_EACH
    for name in NAMES:
        logs, run_kb, private_kb = disk_of(tmp_path / name)
        trained, questions, rows = counted(tmp_path / name)
        broken = questions.keys() - answered.keys()  # questions that a kill of another party broke off
        print(f"{name}: logs of {logs} runs; {run_kb:.0f} and {private_kb:.0f} KB a run; {len(broken)} more questions")
        assert logs <= LOGS_LEFT and run_kb < RUN_KB and private_kb < PRIVATE_KB, name
        assert all(trained[run] == trained[f"{run}/test"] == 1 for run in soak.ended), name
        assert {*questions.values()} == {1} and {*rows.values()} == {ROWS_EACH}, name
        assert answered.keys() <= questions.keys(), name
        assert len(broken) <= AT_ONCE * soak.kills.total() and not (name == "bank" and broken), name
