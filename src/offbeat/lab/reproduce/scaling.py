"""Speed-up with the number of parties, over one pooled run in which nobody is slow: VFB2's Figure 2, AFSGD-VP's
Figure 6. All runs of a method have one step, as in print; seconds stand beside speed-ups."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import msgspec

from offbeat.data.dataset import DataSet
from offbeat.data.vertical import VerticalData, vertical_from_dataset
from offbeat.jobs.vertical import Job
from offbeat.lab.catalogue import LabOptions, LabResult
from offbeat.lab.reproduce.measure import Course, Kept, Pair, automatic_step

SLOWER = 1.4
TUNED_AT = 8
MULTIPLES = (1.0, 2.0)
PASSES = 30.0
EVEN, SLOW = "nobody slow", "one 40 % slower"

OVERHEAD_S, LATENCY_S, PER_NONZERO_S = 1e-4, 2e-5, 5e-9
"""What an update costs by itself, what a message takes between processes of one machine, and what a step over one
non-zero takes with compiled code: twice the 2.6 ns of a sparse product, as measured here."""


@dataclass(frozen=True)
class Scaling:
    """What is measured: the pairs by method, and the course over so many parties (1: pooled)."""

    name: str
    title: str
    counts: Sequence[int]
    pairs: Mapping[str, Pair]
    course: Callable[[int], Course]
    published: tuple[str, str]  # of the asynchronous side, of the rounds


def dealt(data: DataSet, count: int, options: LabOptions) -> VerticalData:
    """Columns over so many parties. One party: the pool, beside which a second one has a single column."""
    keys: dict[str, Any] = {"rows": "pooled-unit", "seed": options.seed, "test_fraction": 0.2}
    if count > 1:
        return vertical_from_dataset(data, count, "mod", **keys)
    width = len(data.table.columns)
    return vertical_from_dataset(data, ["pool", "beside"], [width - 1, 1], **keys)


def costed(job: Job, count: int, like_nonzeros: float) -> Job:
    """The same job with realistic costs; each non-zero counts as so many. The pool sends nothing."""
    latency_s = LATENCY_S if count > 1 else 0.0
    costs: dict[str, Any] = {"per_sample_s": 0.0, "per_nonzero_s": PER_NONZERO_S * like_nonzeros, "lanes": 2}
    runtime = msgspec.structs.replace(job.runtime, overhead_s=OVERHEAD_S, latency_s=latency_s, **costs)
    return msgspec.structs.replace(job, runtime=runtime, two_party_insecure=count == 1)


def measure(scaling: Scaling, options: LabOptions, notes: Sequence[str]) -> LabResult:
    from offbeat.report.figures import draw_panels

    file = f"{scaling.name}-quick.json" if options.quick else f"{scaling.name}.json"
    kept = Kept(options.out / file, options.say)
    course = cache(scaling.course)
    rows: list[dict[str, Any]] = []
    panels, runs = [], {}
    for method, pair in scaling.pairs.items():
        step = kept.get(f"{method} step", partial(_common_step, course, pair, options))
        pooled = kept.get(f"{method} pooled", partial(_timed, course, pair.synchronous, 1, EVEN, pair, step, options))
        found = {
            (algorithm, count, world): kept.get(
                f"{algorithm} {count} {world}", partial(_timed, course, algorithm, count, world, pair, step, options)
            )
            for algorithm in (pair.asynchronous, pair.synchronous)
            for count in scaling.counts
            for world in (EVEN, SLOW)
        }
        rows += _rows(scaling, pair, pooled, found)
        panels += _panels(scaling, method, pair, pooled, found)
        runs[method] = {
            "step": step,
            "pooled": pooled,
            "passes": {" ".join(map(str, k)): v[1] for k, v in found.items()},
        }
    figures = draw_panels(panels, options.out / scaling.name, columns=2)
    return LabResult(rows, figures, notes, more={"seeds": [options.seed], "runs": runs})


Measured = tuple[float | None, float]


def _common_step(course: Callable[[int], Course], pair: Pair, options: LabOptions) -> float:
    """The step with which the two sides together are soonest there, with so many parties and one of them slow."""
    automatic = automatic_step(course(1), pair.synchronous, options.seed, {})

    def together(step: float) -> float:
        both = (
            _timed(course, algorithm, TUNED_AT, SLOW, pair, step, options)[0]
            for algorithm in (pair.asynchronous, pair.synchronous)
        )
        return sum(math.log(time_s) if time_s else math.inf for time_s in both)

    return min((multiple * automatic for multiple in MULTIPLES), key=together)


def _timed(
    course: Callable[[int], Course],
    algorithm: str,
    count: int,
    world: str,
    pair: Pair,
    step: float,
    options: LabOptions,
) -> Measured:
    """(seconds to the target, passes)"""
    options.say(f"{algorithm} with {count} parties, {world}")
    slow = {course(count).data.names[-1]: SLOWER} if world == SLOW else {}
    timed = course(count).time(algorithm, pair.target, seed=options.seed, passes=PASSES, step=step, slow=slow)
    return timed.time_s, timed.passes


def _rows(
    scaling: Scaling, pair: Pair, pooled: Measured, found: Mapping[tuple[str, int, str], Measured]
) -> list[dict[str, Any]]:
    rows = []
    for algorithm, printed in zip((pair.asynchronous, pair.synchronous), scaling.published, strict=True):
        for count in scaling.counts:
            ours: dict[str, float | None] = {}
            for world in (EVEN, SLOW):
                time_s = found[algorithm, count, world][0]
                ours |= {f"Speed-up, {world}": _ratio(pooled[0], time_s), f"Seconds, {world}": time_s}
            rounds, mine = (found[name, count, SLOW][0] for name in (pair.synchronous, algorithm))
            gain, beside = ours[f"Speed-up, {SLOW}"], _ratio(rounds, mine)
            share = "not reached" if gain is None else f"{gain / count:.0%} of ideal with one slower"
            told = f"; {beside:.2f} times as fast as rounds" if beside and algorithm == pair.asynchronous else ""
            rows.append(
                {"setting": f"{algorithm}, q={count}", "ours": ours, "published": printed, "verdict": share + told}
            )
    return rows


def _ratio(base: float | None, time_s: float | None) -> float | None:
    return base / time_s if base and time_s else None


def _panels(
    scaling: Scaling, method: str, pair: Pair, pooled: Measured, found: Mapping[tuple[str, int, str], Measured]
) -> list[Any]:
    from offbeat.report.figures import Curve, Panel

    panels = []
    for world in (EVEN, SLOW):
        lines = [Curve("ideal", [(1.0, 1.0), *((float(count), float(count)) for count in scaling.counts)], 2)]
        for tone, algorithm in enumerate((pair.asynchronous, pair.synchronous)):
            gains = ((float(count), _ratio(pooled[0], found[algorithm, count, world][0])) for count in scaling.counts)
            lines.append(Curve(algorithm, [(1.0, 1.0), *((x, y) for x, y in gains if y is not None)], tone))
        panels.append(Panel(f"{scaling.title}, {method}, {world}", "parties q", "speed-up over pooled", lines))
    return panels
