"""Time to a target, measured the same way on both sides of every comparison.

One clock (virtual), the newest block of every party, surveys and waits counted, the same number of looks in a pass,
the same crossing rule (the geometric mean of three looks), and the same grid of step sizes: multiples of one automatic
step, tuned on the first seed. What is already measured is kept in the output folder, so an interrupted run goes on.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offbeat.data.vertical import VerticalData
from offbeat.errors import BadInput
from offbeat.families.linear import setting_for
from offbeat.jobs.runtime import RuntimeEntry
from offbeat.jobs.vertical import Job
from offbeat.lab.catalogue import LabOptions
from offbeat.metrics.curves import LOOKS_TOGETHER, CurveRow, points, to_target
from offbeat.metrics.plain import json_text, replace_file
from offbeat.run.experiment import run_experiment
from offbeat.run.observer import Progress

PASSES_MOST = 200.0
PATIENCE = 2.0  # an asynchronous run that takes so many times its twin's time has lost


@dataclass(frozen=True)
class Timed:
    """One run, as far as its target."""

    time_s: float | None  # None: the target was not met
    passes: float
    bytes: int
    curve: Sequence[CurveRow] = field(repr=False)
    record: Any = field(repr=False, default=None)


class Course:
    """One data set with one problem on it: its optimum is found once, its runs are timed against that."""

    def __init__(self, data: VerticalData, job: Job, optimum: float | None = None) -> None:
        self.data, self.job = data, job
        self._optimum = optimum

    @property
    def optimum(self) -> float:
        if self._optimum is None:
            found = setting_for(self.data, self.job).optimum(self.job.seed)
            assert found is not None, "a penalised problem has an optimum"
            self._optimum = found
        return self._optimum

    def time(
        self,
        algorithm: str,
        target: float,
        *,
        seed: int,
        step: float | str = "auto",
        passes: float = PASSES_MOST,
        limit_s: float = math.inf,
        **runtime: Any,
    ) -> Timed:
        """Run until the sub-optimality has been below the target for three looks, or so many passes or seconds."""
        entry = msgspec.structs.replace(self.job.runtime, **runtime)
        job = msgspec.structs.replace(
            self.job, algorithm=algorithm, seed=seed, step=step, passes=passes, target=None, runtime=entry
        )
        crossing = Crossing(target, passes, limit_s)
        result = run_experiment(self.data, job, optimum=self.optimum, watch=crossing.watch)
        curve = [row for row in result.record.curve if row.suboptimality is not None]
        record = result.record
        return Timed(to_target(curve, target), record.passes, record.bytes_sent, curve, record)


class Crossing:
    """Ends a run once its target is met, or when it has plainly diverged."""

    def __init__(self, target: float, passes: float, limit_s: float = math.inf) -> None:
        self.target, self.passes, self.limit_s = target, passes, limit_s
        self.logs: list[float] = []

    def watch(self, progress: Progress) -> bool:
        below = progress.suboptimality
        assert below is not None
        if not math.isfinite(below) or progress.passes > self.passes or progress.time_s > self.limit_s:
            return False
        self.logs.append(math.log(max(below, 1e-16)))
        recent = self.logs[-LOOKS_TOGETHER:]
        return not (len(recent) == LOOKS_TOGETHER and sum(recent) / LOOKS_TOGETHER < math.log(self.target))


@dataclass(frozen=True)
class Pair:
    """An asynchronous method and its synchronous counterpart."""

    asynchronous: str
    synchronous: str
    target: float

    @property
    def both(self) -> tuple[str, str]:
        return self.asynchronous, self.synchronous


def tuned_steps(
    course: Course, pair: Pair, *, seed: int, multiples: Sequence[float], passes: float = PASSES_MOST, **runtime: Any
) -> dict[str, float]:
    """The best step of each side, of the same multiples of the synchronous automatic step."""
    automatic = automatic_step(course, pair.synchronous, seed, runtime)
    steps, limit_s, best = [multiple * automatic for multiple in multiples], math.inf, {}
    if len(steps) == 1:
        return dict.fromkeys(pair.both, steps[0])
    for name in (pair.synchronous, pair.asynchronous):
        best[name], time_s = _tuned(course, name, pair.target, seed, steps, limit_s, passes, runtime)
        limit_s = PATIENCE * time_s if time_s is not None else math.inf
    return best


def raced(
    course: Course, pair: Pair, steps: Mapping[str, float], *, seed: int, last: float, passes: float, **runtime: Any
) -> tuple[Timed, Timed]:
    """The asynchronous side and the rounds, each as far as the target `last`."""
    rounds, ours = (
        course.time(name, last, seed=seed, step=steps[name], passes=passes, **runtime)
        for name in (pair.synchronous, pair.asynchronous)
    )
    return ours, rounds


def automatic_step(course: Course, algorithm: str, seed: int, runtime: Mapping[str, Any]) -> float:
    """What the parties would choose for themselves, in a short run."""
    chosen = course.time(algorithm, 1e-300, seed=seed, passes=3.0, **runtime).record.options["chosen"]
    return float(chosen["step"])


def _tuned(
    course: Course,
    name: str,
    target: float,
    seed: int,
    steps: Sequence[float],
    limit_s: float,
    passes: float,
    runtime: Mapping[str, Any],
) -> tuple[float, float | None]:
    """The step that is soonest at the target, and its time; the first where none gets there."""
    best, least_s = steps[0], None
    for step in steps:
        time_s = course.time(name, target, seed=seed, step=step, passes=passes, limit_s=limit_s, **runtime).time_s
        if time_s is not None and (least_s is None or time_s < least_s):
            best, least_s = step, time_s
            limit_s = min(limit_s, time_s)  # no use going further
    return best, least_s


def base_job(seed: int = 0, **keys: Any) -> Job:
    """What the published experiments share: l2 1e-4, no intercept, free serving, a fast network, and the methods as
    printed, with plain steps, a snapshot in each pass and no leaps."""
    runtime = RuntimeEntry(latency_s=2e-5, serving="free")
    printed: dict[str, Any] = {"leap": False, "by_curvature": False, "survey_passes": 1.0}
    common: dict[str, Any] = {"penalty": 1e-4, "intercept": False, "optimum": False, "runtime": runtime}
    return Job(seed=seed, **{**common, **printed, **keys})


def sooner(rounds_s: float | None, ours_s: float | None) -> float | None:
    """How many times as fast ours is; None where a side missed its target."""
    return rounds_s / ours_s if rounds_s and ours_s else None


def logs_of(curve: Sequence[CurveRow]) -> list[float]:
    """The logarithms of the sub-optimality at each look."""
    return [math.log(max(y, 1e-16)) for _, y in points(curve, "time_s", "suboptimality")]


def fitted(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(slope, R^2) of the straight line through these points."""
    x, y = np.array(found, dtype=float).T
    slope, offset = np.polyfit(x, y, 1)
    left, spread = np.sum((y - slope * x - offset) ** 2), np.sum((y - y.mean()) ** 2)
    return float(slope), float(1.0 - left / spread) if spread > 0 else 0.0


def power(found: Sequence[tuple[float, float]]) -> float:
    """The slope of the logarithms."""
    return fitted([(math.log(x), math.log(y)) for x, y in found])[0]


def curve(panel: str, name: str, found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """A line of a figure as plain values, of some sixty of its points."""
    return {"panel": panel, "name": name, "points": list(found[:: max(1, len(found) // 60)])}


def kept_pieces(options: LabOptions, name: str) -> "Kept":
    return Kept(options.out / f"{name}{'-quick' if options.quick else ''}.json", options.say)


class Kept:
    """Finished pieces of a long run, in one JSON file of the output folder. `say` is told of those found there: they
    are of the code and the data of their day."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self.pieces: dict[str, Any] = self._read()
        if self.pieces:
            say(f"{len(self.pieces)} finished pieces are taken from {path}; remove it to measure them anew.")

    def _read(self) -> dict[str, Any]:
        try:
            pieces = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError:
            pieces = None
        if not isinstance(pieces, dict):
            raise BadInput(f"{self.path} should hold finished pieces, and is damaged. Remove it to begin anew.")
        return pieces

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        if key not in self.pieces:
            self.pieces[key] = compute()
            replace_file(self.path, json_text(self.pieces).encode())
        return self.pieces[key]
