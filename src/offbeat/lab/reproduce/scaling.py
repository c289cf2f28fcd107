"""Speed-up with the number of parties, over one pooled run in which nobody is slow: VFB2's Figure 2, AFSGD-VP's
Figure 6. All runs of a method have one step, as in print; seconds stand beside speed-ups."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import msgspec

from offbeat.data.dataset import DataSet
from offbeat.data.vertical import VerticalData, vertical_from_dataset
from offbeat.jobs.vertical import Job
from offbeat.lab.catalogue import LabOptions, LabResult
from offbeat.lab.reproduce.measure import Course, Pair, automatic_step, kept_pieces, sooner

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


Measured = tuple[float | None, float]
"""Seconds to the target, and passes."""


def measure(scaling: Scaling, options: LabOptions, notes: Sequence[str]) -> LabResult:
    from offbeat.report.figures import draw_panels

    kept, course = kept_pieces(options, scaling.name), cache(scaling.course)
    rows: list[dict[str, Any]] = []
    panels, runs = [], {}

    def timed(algorithm: str, count: int, world: str, step: float, target: float) -> Measured:
        options.say(f"{algorithm} with {count} parties, {world}")
        slow = {course(count).data.names[-1]: SLOWER} if world == SLOW else {}
        found = course(count).time(algorithm, target, seed=options.seed, passes=PASSES, step=step, slow=slow)
        return found.time_s, found.passes

    def common_step(pair: Pair) -> float:
        """The step with which the two sides together are soonest there, with so many parties and one of them slow."""
        automatic = automatic_step(course(1), pair.synchronous, options.seed, {})

        def together(step: float) -> float:
            both = (timed(algorithm, TUNED_AT, SLOW, step, pair.target)[0] for algorithm in pair.both)
            return sum(math.log(time_s) if time_s else math.inf for time_s in both)

        return min((multiple * automatic for multiple in MULTIPLES), key=together)

    for method, pair in scaling.pairs.items():
        step = kept.get(f"{method} step", partial(common_step, pair))
        pooled = kept.get(f"{method} pooled", partial(timed, pair.synchronous, 1, EVEN, step, pair.target))
        found = {
            key: kept.get(" ".join(map(str, key)), partial(timed, *key, step, pair.target))
            for key in product(pair.both, scaling.counts, (EVEN, SLOW))
        }
        rows += _rows(scaling, pair, pooled, found)
        panels += _panels(scaling, method, pair, pooled, found)
        passes = {" ".join(map(str, key)): run[1] for key, run in found.items()}
        runs[method] = {"step": step, "pooled": pooled, "passes": passes}
    figures = draw_panels(panels, options.out / scaling.name, columns=2)
    smaller = f"{course(1).data.rows:,} rows" if options.quick else ""
    return LabResult(rows, figures, notes, more={"seeds": [options.seed], "runs": runs}, smaller=smaller)


def _rows(
    scaling: Scaling, pair: Pair, pooled: Measured, found: Mapping[tuple[str, int, str], Measured]
) -> list[dict[str, Any]]:
    rows = []
    for algorithm, printed in zip(pair.both, scaling.published, strict=True):
        for count in scaling.counts:
            ours: dict[str, float | None] = {}
            for world in (EVEN, SLOW):
                time_s = found[algorithm, count, world][0]
                ours |= {f"Speed-up, {world}": sooner(pooled[0], time_s), f"Seconds, {world}": time_s}
            rounds, mine = (found[name, count, SLOW][0] for name in (pair.synchronous, algorithm))
            gain, beside = ours[f"Speed-up, {SLOW}"], sooner(rounds, mine)
            share = "not reached" if gain is None else f"{gain / count:.0%} of ideal with one slower"
            told = f"; {beside:.2f} times as fast as rounds" if beside and algorithm == pair.asynchronous else ""
            rows.append(
                {"setting": f"{algorithm}, q={count}", "ours": ours, "published": printed, "verdict": share + told}
            )
    return rows


def _panels(
    scaling: Scaling, method: str, pair: Pair, pooled: Measured, found: Mapping[tuple[str, int, str], Measured]
) -> list[Any]:
    from offbeat.report.figures import Curve, Panel

    panels = []
    for world in (EVEN, SLOW):
        lines = [Curve("ideal", [(1.0, 1.0), *((float(count), float(count)) for count in scaling.counts)], 2)]
        for tone, algorithm in enumerate(pair.both):
            gains = ((float(count), sooner(pooled[0], found[algorithm, count, world][0])) for count in scaling.counts)
            lines.append(Curve(algorithm, [(1.0, 1.0), *((x, y) for x, y in gains if y is not None)], tone))
        panels.append(Panel(f"{scaling.title}, {method}, {world}", "parties q", "speed-up over pooled", lines))
    return panels
