"""VFB2's Figures 2, 3 and 4, and the bytes that one aggregation for all blocks saves."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from offbeat.data.matrix import stack_columns
from offbeat.data.vertical import VerticalData
from offbeat.experiment import setting_for
from offbeat.job import Job
from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC
from offbeat.metrics.curves import to_target
from offbeat.reproduce.catalogue import ReproduceOptions, ReproduceResult, Reproduction
from offbeat.reproduce.measure import Course, Kept, Timed, automatic_step, base_job, curve_points
from offbeat.reproduce.vfb2_sets import LABELLED, SETS, STRENGTH, PrintedSet, load

# -- figure 2 --------------------------------------------------------------------------------------------------------


TARGET_2 = 1e-3
TARGET_2_RELATIVE = 0.25  # of what there is to gain


def figure2(options: ReproduceOptions) -> ReproduceResult:
    """q-party speed-up on webspam, problem 14, two label holders, sub-optimality 1e-3."""
    from offbeat.report.figures import Curve, Panel, draw_panels

    counts = (3, 6) if options.quick else (3, 4, 6, 8, 12)
    kept = Kept(options.out / ("vfb2-fig2-quick.json" if options.quick else "vfb2-fig2.json"))
    rows: list[dict[str, Any]] = []
    curves: list[Curve] = []
    for tone, algorithm in enumerate(("vfb2-svrg", "vfb-svrg")):
        times: list[tuple[int, float | None]] = []
        for count in counts:
            options.say(f"{algorithm} with {count} parties")
            key = f"{algorithm} {count}"
            times.append((count, kept.get(key, partial(_scaling_time, algorithm, count, options))))
        base = times[0][1]
        gains = [(count, base / t * counts[0] if t and base else None) for count, t in times]
        printed = "near linear" if algorithm == "vfb2-svrg" else "clearly below"
        rows += [
            {
                "setting": f"{algorithm}, q={count}, m=2",
                "ours": gain,
                "published": printed,
                "verdict": "not reached" if gain is None else f"{gain / count:.0%} of ideal",
            }
            for count, gain in gains
        ]
        curves.append(Curve(algorithm, [(c, g) for c, g in gains if g is not None], tone))
    curves.append(Curve("ideal", [(c, float(c)) for c in counts], 2))
    name = "20 Newsgroups, 2,000 rows" if options.quick else "webspam-shaped"
    panel = Panel(f"{name}, problem 14, m=2", "parties q", "speed-up", curves)
    figures = draw_panels([panel], options.out / "vfb2-fig2", columns=1)
    notes = (
        "Anchored at q=3: the print starts at q=1, where two label holders are impossible and nothing needs hiding. A "
        "party's work per batch falls as 1/q; latency and the fixed cost of a batch do not. One party is 40 % slower.",
        "Target: a quarter of what L-BFGS gains from zero, or 1e-3 where that is more. The print's 1e-3 is not "
        "reached in 60 passes here: with this penalty the objective falls ever more slowly on separable rows.",
    )
    return ReproduceResult(rows, figures, notes)


def _scaling_time(algorithm: str, count: int, options: ReproduceOptions) -> float | None:
    data = _with_labels_at(load(SETS[2 if options.quick else 3], options, options.seed, count), 2)
    job = base_job(options.seed, penalty_kind="nonconvex", algorithm=algorithm, looks_per_pass=2.0)
    costs = msgspec.structs.replace(job.runtime, per_sample_s=0.0, per_nonzero_s=2e-6, overhead_s=2e-4, lanes=2)
    least = _least_from_zero(data, job)
    course = Course(data, msgspec.structs.replace(job, runtime=costs), least)
    target = max(TARGET_2, TARGET_2_RELATIVE * (math.log(2) - least))
    return course.time(algorithm, target, seed=options.seed, passes=60.0, slow={data.names[-1]: 1.4}).time_s


def _least_from_zero(data: VerticalData, job: Job) -> float:
    """The least objective on L-BFGS's way from zero: what a method that starts there is held against."""
    setting = setting_for(data, job)
    pooled: Any = stack_columns([setting.train[name] for name in setting.names])
    start = np.zeros(pooled.shape[1])
    weights = central.descend(pooled, setting.y_train, start, LOGISTIC, setting.penalty, STRENGTH, iterations=300)
    return central.objective(pooled, setting.y_train, weights, LOGISTIC, setting.penalty, STRENGTH)


def _with_labels_at(data: VerticalData, count: int) -> VerticalData:
    return replace(data, labels_at=data.names[:count])


# -- figures 3 and 4 -------------------------------------------------------------------------------------------------


def figure3(options: ReproduceOptions) -> ReproduceResult:
    """Sub-optimality against time and passes, problem 13, one party 40 % slower."""
    return _curves(options, "vfb2-fig3", 13)


def figure4(options: ReproduceOptions) -> ReproduceResult:
    """The same for problem 14."""
    return _curves(options, "vfb2-fig4", 14)


def _curves(options: ReproduceOptions, name: str, problem: int) -> ReproduceResult:
    from offbeat.report.figures import Curve, Panel, draw_panels

    kind = "l2" if problem == 13 else "nonconvex"
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    sets = SETS[:2] if options.quick else SETS
    for printed in sets:
        data = _with_labels_at(load(printed, options, options.seed), LABELLED)
        job = base_job(options.seed, penalty_kind=kind, algorithm="vfb2-svrg")
        course = Course(data, job, None if problem == 13 else _least_from_zero(data, job))
        runs = {
            algorithm: _watched(course, algorithm, data, options)
            for algorithm in ("vfb2-sgd", "vfb-sgd", "vfb2-svrg", "vfb-svrg", "vfb2-saga", "vfb-saga")
        }
        for axis, label in (("time_s", "virtual seconds"), ("passes", "passes")):
            lines = [Curve(a, curve_points(timed, axis), tone) for tone, (a, timed) in enumerate(runs.items())]
            panels.append(Panel(f"{printed.printed}, problem {problem}", label, "sub-optimality", lines, log_y=True))
        rows += _curve_rows(printed, problem, runs)
    figures = draw_panels(panels, options.out / name, columns=2)
    notes = (
        "The slow party is passive, its updating 40 % slower; three label holders. Part of the gain is not straggler "
        "tolerance: three dominators work at once, and products overlap steps, even when nobody is slow.",
    )
    return ReproduceResult(rows, figures, notes)


def _watched(course: Course, algorithm: str, data: VerticalData, options: ReproduceOptions) -> Timed:
    """The best of a grid of steps, the same multiples of one automatic step for both sides, as the papers tune."""
    options.say(f"{data.source[:40]}: {algorithm}")
    passes = 6.0 if options.quick else 12.0
    slow = {data.names[-1]: 1.4}
    twin = algorithm.replace("vfb2", "vfb")
    automatic = automatic_step(course, twin, options.seed, {"slow": slow})
    tried = [
        course.time(algorithm, 1e-12, seed=options.seed, passes=passes, step=multiple * automatic, slow=slow)
        for multiple in ((0.5, 1.0) if options.quick else (0.25, 0.5, 1.0, 2.0))
    ]
    return min(tried, key=_settled)


def _settled(timed: Timed) -> float:
    """Where a run has come to: the geometric mean of its last looks, so that no lucky swing counts."""
    last = [math.log(max(y, 1e-16)) for _, y in curve_points(timed)[-8:]]
    return math.exp(sum(last) / len(last)) if last else math.inf


def _curve_rows(printed: PrintedSet, problem: int, runs: dict[str, Timed]) -> list[dict[str, Any]]:
    """How much sooner the asynchronous run is where its synchronous twin ended."""
    rows = []
    for method in ("sgd", "svrg", "saga"):
        ours, twin = runs[f"vfb2-{method}"], runs[f"vfb-{method}"]
        level = 1.2 * max(_settled(ours), _settled(twin))
        reached = to_target(ours.curve, level), to_target(twin.curve, level)
        gain = reached[1] / reached[0] if reached[0] and reached[1] else math.nan
        rows.append(
            {
                "setting": f"{printed.printed}, problem {problem}, {method.upper()}: time of VFB / VFB2 to {level:.1e}",
                "ours": gain,
                "published": "VFB2 below VFB in loss against time",
                "verdict": "as printed" if gain > 1 else "not ahead",
            }
        )
    return rows


# -- bytes -----------------------------------------------------------------------------------------------------------


def bytes_per_pass(options: ReproduceOptions) -> ReproduceResult:
    """One aggregation moves all blocks: payload bytes per pass against AFSGD-VP, measured and predicted."""
    rows: list[dict[str, Any]] = []
    for parties in (4, 8):
        data = load(SETS[0], options, options.seed, parties)
        course = Course(_with_labels_at(data, 1), base_job(options.seed))
        measured = {algorithm: _bytes(course, algorithm, options.seed) for algorithm in ("afsaga-vp", "vfb2-saga")}
        predicted = (_predicted(parties, backward=False), _predicted(parties, backward=True))
        ratio = measured["afsaga-vp"] / measured["vfb2-saga"]
        for (algorithm, size), expected in zip(measured.items(), predicted, strict=True):
            rows.append(
                {
                    "setting": f"{algorithm}, q={parties}: payload bytes per row and pass of all blocks",
                    "ours": size / data.rows,
                    "published": expected,
                    "verdict": f"AFSGD-VP sends {ratio:.1f} times as much; predicted {predicted[0] / predicted[1]:.1f}",
                }
            )
    notes = (
        "Predicted: 8 bytes for a share and 8 for a derivative; to move all q blocks once, AFSGD-VP needs q (q-1) "
        "shares a row, VFB2 q-1 shares and q-1 derivatives. Measured sizes hold the requests and versions too.",
    )
    return ReproduceResult(rows, notes=notes)


def _bytes(course: Course, algorithm: str, seed: int) -> float:
    timed = course.time(algorithm, 1e-12, seed=seed, passes=4.0)
    kinds = ("ShareAsked", "ShareGiven", "Backward")
    sent = sum(party.bytes_by_kind.get(kind, 0) for party in timed.record.parties.values() for kind in kinds)
    return float(sent / timed.record.passes)


def _predicted(parties: int, *, backward: bool) -> float:
    return 8.0 * (parties - 1) * (2 if backward else parties)


ENTRIES = (
    Reproduction("vfb2-fig2", "VFB2 Figure 2: speed-up with the number of parties", figure2),
    Reproduction("vfb2-fig3", "VFB2 Figure 3: convergence for problem 13 against time and passes", figure3),
    Reproduction("vfb2-fig4", "VFB2 Figure 4: convergence for problem 14 against time and passes", figure4),
    Reproduction("vfb2-bytes", "VFB2 against AFSGD-VP: bytes for one pass of all blocks", bytes_per_pass),
)
