"""The main job in under a minute: who will default on a credit card, learned by four parties of which one is slow.

Three methods, the default one first, each asynchronous and in synchronous rounds, with one party sixteen times slower
and with none slower, all in virtual time. Times are those to the same distances from the pooled optimum, by one rule on
both sides: looks at the same part of a pass, met when the geometric mean of three looks is below the target.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from offbeat.data.assemble import VerticalData
from offbeat.data.places import find_set
from offbeat.families.linear import setting_for
from offbeat.families.vertical_data import load_data
from offbeat.jobs.runtime import RuntimeEntry
from offbeat.jobs.vertical import DataEntry, Job
from offbeat.lab.reproduce.measure import sooner
from offbeat.metrics.curves import to_target
from offbeat.names import FRIENDLY
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import write_job, write_result
from offbeat.run.observer import Watch
from offbeat.run.result import Result

SLOW_PARTY, SLOW_FACTOR = "telecom", 16.0
PASSES = 20.0
REAL, STAND_IN = "uci_credit_card", "credit-like"


@dataclass(frozen=True)
class RacedPair:
    """An asynchronous method, its synchronous counterpart, and how near to the optimum they race."""

    asynchronous: str
    synchronous: str
    targets: tuple[float, ...]


PAIRS = (
    RacedPair("vfb2-svrg", "vfb-svrg", (1e-2, 1e-3, 1e-4, 1e-6)),
    RacedPair("afsaga-vp", "fsaga-vp", (1e-2, 1e-3, 1e-4, 1e-6)),
    RacedPair("vfb2-sgd", "vfb-sgd", (1e-2, 10**-2.5)),  # plain stochastic gradients end further away, as in the paper
)
TARGETS = {name: pair.targets[-1] for pair in PAIRS for name in (pair.asynchronous, pair.synchronous)}
MAIN = "vfb2-svrg"


@dataclass(frozen=True)
class DemoRow:
    """One method and target: virtual seconds to it, and what the asynchronous run came to."""

    method: str
    target: float
    async_s: float | None
    sync_s: float | None
    speedup: float | None
    speedup_without_straggler: float | None
    auc: float | None
    certificate: float | None


@dataclass(frozen=True)
class Demo:
    data: VerticalData
    is_real: bool
    results: dict[str, Result]
    rows: tuple[DemoRow, ...]

    @property
    def digest(self) -> str:
        """One digest over all runs."""
        joined = hashlib.sha256()
        for name, result in self.results.items():
            joined.update(f"{name} {result.record.digest}\n".encode())
        return joined.hexdigest()


def demo_job(algorithm: str, seed: int, data_dir: str | None, *, straggler: bool) -> Job:
    real = find_set(REAL, data_dir) is not None
    return Job(
        algorithm=algorithm,
        seed=seed,
        passes=PASSES,
        data=DataEntry(set=REAL if real else STAND_IN, dir=data_dir, parties=list(FRIENDLY), split_after_one_hot=True),
        runtime=RuntimeEntry(slow={SLOW_PARTY: SLOW_FACTOR} if straggler else {}),
    )


def run_demo(seed: int, data_dir: Path | None, folder: Path, begun: Callable[[str], Watch] | None = None) -> Demo:
    """All runs, each in its own folder. `begun` is told each run's name and gives what watches it."""
    where = str(data_dir.resolve()) if data_dir is not None else None
    first = demo_job(MAIN, seed, where, straggler=True)
    data = load_data(first)
    optimum = setting_for(data, first).optimum(seed)
    results: dict[str, Result] = {}
    for straggler in (True, False):
        for pair in PAIRS:
            for algorithm in (pair.asynchronous, pair.synchronous):
                name = algorithm if straggler else f"{algorithm}-even"
                job = demo_job(algorithm, seed, where, straggler=straggler)
                write_job(job, folder / name)
                watch = begun(name) if begun is not None else None
                result = run_experiment(data, job, optimum=optimum, watch=watch)
                write_result(result, folder / name)
                results[name] = replace(result, parties=())  # their rows are not needed any more
                if results[name].record.verdict == "stopped":
                    return Demo(data, first.data.set == REAL, results, _rows(results))
    return Demo(data, first.data.set == REAL, results, _rows(results))


def _rows(results: dict[str, Result]) -> tuple[DemoRow, ...]:
    known = [pair for pair in PAIRS if pair.asynchronous in results]
    return tuple(_row(pair, target, results) for pair in known for target in pair.targets)


def _row(pair: RacedPair, target: float, results: dict[str, Result]) -> DemoRow:
    def time_s(name: str) -> float | None:
        return to_target(results[name].record.curve, target) if name in results else None

    async_s, sync_s = time_s(pair.asynchronous), time_s(pair.synchronous)
    record = results[pair.asynchronous].record
    return DemoRow(
        method=pair.asynchronous,
        target=target,
        async_s=async_s,
        sync_s=sync_s,
        speedup=sooner(sync_s, async_s),
        speedup_without_straggler=sooner(time_s(f"{pair.synchronous}-even"), time_s(f"{pair.asynchronous}-even")),
        auc=record.metrics.get("test_auc"),
        certificate=record.certificate.duality_gap,
    )


def demo_object(demo: Demo, folder: Path, page: Path) -> dict[str, Any]:
    """What --json prints: the main run's record, the demo's digest, and the speed-ups by method at its last target."""
    name = MAIN if MAIN in demo.results else next(iter(demo.results))
    return {
        **demo.results[name].record.to_json_object(folder / name),
        "digest": demo.digest,
        "digests": {name: result.record.digest for name, result in demo.results.items()},
        "speedups": {row.method: row.speedup for row in demo.rows},
        "rows": [msgspec.to_builtins(row) for row in demo.rows],
        "report": str(page),
        "folder": str(folder),
        "real_data": demo.is_real,
    }
