"""Many short jobs and scores, daemons killed at random: every job ends, ledgers are exact, memory and disk have bounds.

Here a few jobs; `make soak` does as many as JOBS says (1,000).
"""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import NAMES, Town, job, serve, wait_until

from offbeat.errors import OffbeatError
from offbeat.orgs import control
from offbeat.orgs.row_ledger import RowLedger

JOBS = int(os.environ.get("OFFBEAT_SOAK_JOBS", "4"))
SCORES_EACH = 10
SETTLED_AFTER = 3  # jobs, until everything that is loaded once is loaded
GROWTH_MB = 150.0
KEEP_DAYS = 1e-5  # less than a second
LOGS_LEFT = 5  # runs that were too young to lose their logs when the last run ended
RUN_KB, PRIVATE_KB = 150.0, 150.0  # of each run without its logs; of what each run leaves among the owner's own files


class Soak:
    """Three daemons in processes of their own, killed and started again by a seed."""

    def __init__(self, town: Town, seed: int) -> None:
        self.town, self.rng = town, np.random.default_rng(seed)
        self.children = {name: serve(town, name) for name in NAMES}
        self.kills = 0

    def kill_somebody(self) -> None:
        name = str(self.rng.choice(NAMES[1:]))
        self.children[name].send_signal(signal.SIGKILL)
        self.children[name].wait()
        self.children[name] = serve(self.town, name)
        self.kills += 1

    def phase(self, name: str, run: str) -> str:
        try:
            status = self.town.ask(name, control.Status(run))
        except OffbeatError:  # it is being started
            return ""
        assert isinstance(status, control.RunStatus)
        return status.phase

    def one_job(self, kill: bool) -> str:
        run = self.town.submit(job(target=1e-2))
        if kill:
            self.kill_somebody()
        for name in NAMES:
            wait_until(lambda name=name: self.phase(name, run) in control.ENDED_PHASES)
        return run

    def memory_mb(self) -> dict[str, float]:
        return {name: _resident_mb(child.pid) for name, child in self.children.items()}

    def close(self) -> None:
        for child in self.children.values():
            child.terminate()
            child.wait()


def disk_of(home: Path) -> tuple[int, float, float]:
    """How many runs have their logs; kilobytes of a run without, and of a party's own files by run."""
    runs = [folder for folder in (home / "runs").glob("*/") if (folder / "state.json").is_file()]
    bare = [folder for folder in runs if not (folder / "events").is_dir()]
    each = sum(map(_kilobytes, bare)) / max(1, len(bare))
    return len(runs) - len(bare), each, _kilobytes(home / "private") / max(1, len(runs))


def _kilobytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1024


def _resident_mb(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return float(line.split()[1]) / 1024


@pytest.mark.slow
def test_many_jobs_and_scores_with_kills(tmp_path: Path) -> None:
    town = Town(tmp_path)
    for name in NAMES:
        town.settings(name, keep_days=f"{KEEP_DAYS}")
    soak, runs, settled = Soak(town, seed=JOBS), [], 0.0
    try:
        for number in range(JOBS):
            run = soak.one_job(kill=bool(soak.rng.integers(2)))
            runs.append(run)
            for name in NAMES:
                assert soak.phase(name, run) == "done", (number, name)
            for _ in range(SCORES_EACH):
                ids = [f"c{i}" for i in soak.rng.choice(240, 3, replace=False)]
                answer = town.ask("bank", control.Predict(run, ids))
                assert isinstance(answer, control.Predicted) and all(answer.known)
            if number + 1 == SETTLED_AFTER:
                settled = soak.memory_mb()["bank"]
        grown = soak.memory_mb()["bank"] - settled
    finally:
        soak.close()
    assert soak.kills > 0 and len(set(runs)) == JOBS
    assert grown < GROWTH_MB, f"the bank's daemon grew by {grown:.0f} MB over {JOBS - SETTLED_AFTER} jobs"
    print({name: disk_of(tmp_path / name) for name in NAMES}, f"the bank's daemon grew by {grown:.0f} MB")
    for name in NAMES:
        logs, run_kb, private_kb = disk_of(tmp_path / name)
        assert logs <= LOGS_LEFT and run_kb < RUN_KB and private_kb < PRIVATE_KB, (name, logs, run_kb, private_kb)
        history = RowLedger(tmp_path / name / "private" / "ledger").history()
        scored = [int(str(line["sum"])) for line in history if "/score-" in str(line["what"])]
        assert (len(scored), sum(scored)) == (JOBS * SCORES_EACH, 3 * JOBS * SCORES_EACH), name
        assert {str(line["what"]) for line in history} >= set(runs)
