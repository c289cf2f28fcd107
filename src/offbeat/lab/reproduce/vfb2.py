"""VFB2's Figures 2, 3 and 4, and the bytes that one aggregation for all blocks saves."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from offbeat.data.load import load_dataset
from offbeat.data.matrix import stack_columns
from offbeat.data.vertical import VerticalData
from offbeat.families.linear import setting_for
from offbeat.jobs.vertical import Job
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.lab.reproduce import scaling
from offbeat.lab.reproduce.measure import Course, Pair, automatic_step, base_job, kept_pieces, logs_of, sooner
from offbeat.lab.reproduce.vfb2_sets import LABELLED, QUICK_ROWS, SETS, STRENGTH, TEXT, PrintedSet, load
from offbeat.learning import central
from offbeat.learning.blocks import DIRECTIONS
from offbeat.learning.losses import LOGISTIC
from offbeat.metrics.curves import LOOKS_TOGETHER, Axis, CurveRow, points, to_target

# -- figure 2 --------------------------------------------------------------------------------------------------------


WEBSPAM_ROW = 3728 / 73
"""Non-zeros of a row of webspam over those of the rows that stand for it."""


def figure2(options: LabOptions) -> LabResult:
    """q-party speed-up on D4, problem 14, two label holders, sub-optimality 1e-3."""
    data = load_dataset(TEXT.quick_set if options.quick else TEXT.set, options.data_dir, options.seed)
    job = base_job(options.seed, penalty_kind="nonconvex", batch=64, looks_per_pass=4.0)
    least = cache(lambda: _least_from_zero(scaling.dealt(data, 1, options), job))

    def course(count: int) -> Course:
        labelled = _with_labels_at(scaling.dealt(data, count, options), min(count, 2))
        return Course(labelled, scaling.costed(job, count, WEBSPAM_ROW), least())

    wanted = scaling.Scaling(
        "vfb2-fig2",
        "problem 14, m=2",
        (4, 8) if options.quick else (4, 8, 12),
        {method.upper(): Pair(f"vfb2-{method}", f"vfb-{method}", 1e-3) for method in ("svrg", "saga")},
        course,
        ("near linear", "clearly below"),
    )
    return scaling.measure(wanted, options, (f"{data.about}, four fifths of them to train.", *NOTES_2))


NOTES_2 = (
    "Speed-up over the seconds of a pooled run: all columns at one party, rounds, no messages, nobody slow, one label "
    "holder. With q parties two hold labels. One step for all runs of a method, as in print: the one of two with "
    "which the two sides together are soonest at q=8 with one slower. Target: 1e-3 above the least objective on "
    "L-BFGS's way from zero.",
    "An update costs 0.1 ms by itself, a message takes 0.02 ms, a step 5 ns for each non-zero. The rows are those of a "
    "text set of rcv1's shape, since 35,000 rows of webspam's have 130 million non-zeros: each non-zero is charged as "
    "51, so that a row costs what one of webspam's does. A party's work falls as 1/q; the fixed cost does not.",
    "Rounds take one label holder's batch at a time; in VFB2 two label holders are at work at once. That, and not the "
    "slow party, is most of what VFB2 gains.",
)


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


Curves = Mapping[str, Sequence[CurveRow]]
"""Looks by side and world: "vfb2 even", "vfb slow" and so on."""
FIGURE_SETS = (*SETS[:2], replace(SETS[2], set=SETS[2].quick_set), TEXT)
ROWS_MOST = 12_500
MULTIPLES = {13: (1.0, 2.0), 14: (1.0, 4.0)}
TARGETS, LAST = {13: 1e-4, 14: 1e-3}, {13: 1e-8, 14: 1e-4}
PASSES = {13: 20.0, 14: 40.0}
SIDES, WORLDS = ("vfb2", "vfb"), ("even", "slow")


def _curves(name: str, problem: int, options: LabOptions) -> LabResult:
    """Sub-optimality against time and passes, one party 40 % slower."""
    from offbeat.report.figures import draw_panels

    kept = kept_pieces(options, name)
    panels: list[Any] = []
    rows: list[dict[str, Any]] = []
    runs: dict[str, Any] = {}
    for printed in FIGURE_SETS[::3] if options.quick else FIGURE_SETS:  # a real set and text
        course = cache(partial(_course, printed, problem, options))
        found = {}
        for method in DIRECTIONS:
            run = kept.get(f"{printed.printed} {method}", partial(_watched, course, method, problem, options))
            found[method] = {key: [CurveRow(*look) for look in looks] for key, looks in run["curves"].items()}
            rows.append(row := _curve_row(printed, problem, method, found[method]))
            runs[row["setting"]] = {"step": run["step"], "passes": {k: c[-1].passes for k, c in found[method].items()}}
        panels += _panels(printed.printed, found)
    figures = draw_panels(panels, options.out / name, columns=1 + len(DIRECTIONS), title=f"Problem {problem}")
    smaller = f"{QUICK_ROWS:,} rows, {PASSES[problem] / 2:g} passes" if options.quick else ""
    return LabResult(rows, figures, NOTES_3, more={"seeds": [options.seed], "runs": runs}, smaller=smaller)


NOTES_3 = (
    "Eight parties, three label holders; the slow party is passive, its updating 40 % slower. One step for both sides, "
    "as in print: of the automatic one of rounds and its double (problem 14: its fourfold) the one with which both "
    "together do best; the other one where with it a run with nobody slow misses the target.",
    "SVRG and SAGA: to 1e-4 (problem 13) or 1e-3 (problem 14) above the least objective known. SGD, and where a side "
    "misses that: to where the worst of the runs ends. Nobody slow: what VFB2 gains as three label holders work at "
    "once, in rounds one after the other. Beyond that column is what it gains of the slow party.",
    "Problem 14 on text is far from its end after 40 passes: the gap is a tenth of the first one and falls as the "
    "passes to the power of -0.5, so that 1e-3 would take tens of thousands of passes. Those rows compare how fast "
    "both sides go, not when they arrive.",
    "D3 is 20 Newsgroups with its 47,236 most frequent columns, D4 is generated in rcv1's shape; at most 10,000 rows "
    "of a set are trained on. Drawn: one party slower, the geometric mean of three looks, by which a target counts as "
    "met.",
)


def _panels(printed: str, found: Mapping[str, Curves]) -> list[Any]:
    """Each method against time beside its synchronous twin, and the three against passes."""
    from offbeat.report.figures import Curve, Panel

    panels = []
    for method, curves in found.items():
        lines = [Curve(side.upper(), _smoothed(curves[f"{side} slow"], "time_s"), at) for at, side in enumerate(SIDES)]
        title = f"{printed}, {method.upper()}"
        panels.append(Panel(title, "virtual seconds", "sub-optimality", lines, log_y=True))
    lines = [Curve(m.upper(), _smoothed(found[m]["vfb2 slow"], "passes"), 2 + at) for at, m in enumerate(found)]
    return [*panels, Panel(f"{printed}, VFB2", "passes", "sub-optimality", lines, log_y=True)]


def _smoothed(curve: Sequence[CurveRow], axis: Axis) -> list[tuple[float, float]]:
    found, logs = points(curve, axis, "suboptimality"), logs_of(curve)
    windows = (logs[max(0, at + 1 - LOOKS_TOGETHER) : at + 1] for at in range(len(logs)))
    return [(x, math.exp(sum(window) / len(window))) for (x, _), window in zip(found, windows, strict=True)]


def _course(printed: PrintedSet, problem: int, options: LabOptions) -> Course:
    data = _with_labels_at(load(printed, options, options.seed, rows=ROWS_MOST), LABELLED)
    kind = "l2" if problem == 13 else "nonconvex"
    job = base_job(options.seed, penalty_kind=kind, algorithm="vfb2-svrg", looks_per_pass=4.0)
    return Course(data, job, None if problem == 13 else _least_from_zero(data, job))


def _watched(course_of: Callable[[], Course], method: str, problem: int, options: LabOptions) -> dict[str, Any]:
    """The step with which the two sides together do best, and with it their looks, with nobody and with one slow, each
    as the fields of a `CurveRow`."""
    course = course_of()
    options.say(f"{course.data.source[:40]}: {method}, problem {problem}")
    slow = {course.data.names[-1]: 1.4}

    def run(side: str, world: str, step: float) -> Sequence[CurveRow]:
        chosen: dict[str, Any] = {"step": step, "slow": slow if world == "slow" else {}}
        passes = PASSES[problem] / (2 if options.quick else 1)
        return course.time(f"{side}-{method}", LAST[problem], seed=options.seed, passes=passes, **chosen).curve

    automatic = automatic_step(course, f"vfb-{method}", options.seed, {"slow": slow})
    steps = [multiple * automatic for multiple in MULTIPLES[problem]]
    tried = {step: {f"{side} slow": run(side, "slow", step) for side in SIDES} for step in steps}
    for step in sorted(steps, key=lambda each: _rank(tried[each].values(), method, problem)):
        even = {f"{side} even": run(side, "even", step) for side in SIDES}
        if _reaches(even, method, problem) or not _reaches(tried[step], method, problem):
            break
    curves = tried[step] | even
    return {"step": step, "curves": {k: [list(msgspec.structs.astuple(r)) for r in c] for k, c in curves.items()}}


def _rank(curves: Iterable[Sequence[CurveRow]], method: str, problem: int) -> tuple[float, float]:
    """How good a step is for both sides: the times to their target, multiplied, and where they end. SGD has none."""
    times, ends = 0.0, 0.0
    for curve in curves:
        reached = None if method == "sgd" else to_target(curve, TARGETS[problem])
        times, ends = times + (math.log(reached) if reached else math.inf), ends + math.log(_settled(curve))
    return times, ends


def _reaches(curves: Curves, method: str, problem: int) -> bool:
    return math.isfinite(_rank(curves.values(), method, problem)[0])


def _settled(curve: Sequence[CurveRow]) -> float:
    """Where a run has come to: the geometric mean of its last looks, so that no lucky swing counts."""
    last = logs_of(curve)[-8:]
    return math.exp(sum(last) / len(last)) if last else math.inf


def _curve_row(printed: PrintedSet, problem: int, method: str, curves: Curves) -> dict[str, Any]:
    """How much sooner the asynchronous run is at the target, in both worlds."""
    ends = max(_settled(curve) for curve in curves.values())
    reached = method != "sgd" and all(to_target(curve, TARGETS[problem]) for curve in curves.values())
    level = TARGETS[problem] if reached else 1.2 * ends
    times = {key: to_target(curve, level) for key, curve in curves.items()}
    gains = [sooner(times[f"vfb {world}"], times[f"vfb2 {world}"]) for world in WORLDS]
    as_printed = "as printed" if (gains[1] or 0.0) > 1 else "not ahead"
    return {
        "setting": f"{printed.printed}, problem {problem}, {method.upper()}: time of VFB / VFB2 to {level:.1e}",
        "ours": {"Nobody slow": gains[0], "One 40 % slower": gains[1]},
        "published": "VFB2 below VFB in loss against time",
        "verdict": "a side missed the target" if gains[1] is None else as_printed,
    }


# -- bytes -----------------------------------------------------------------------------------------------------------


def bytes_per_pass(options: LabOptions) -> LabResult:
    """One aggregation moves all blocks: payload bytes per pass against AFSGD-VP, measured and predicted."""
    from offbeat.report.figures import Bars, draw_bars

    rows: list[dict[str, Any]] = []
    for parties in (4, 8):
        data = load(SETS[0], options, options.seed, parties)
        course = Course(_with_labels_at(data, 1), base_job(options.seed, survey_passes=100.0))
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
        "shares a row, VFB2 q-1 shares and q-1 derivatives. Measured: what a run of six passes sends more than one of "
        "three, requests and versions too.",
    )
    places = [row["setting"].partition(":")[0] for row in rows]
    values = {"measured": [row["ours"] for row in rows], "predicted": [row["published"] for row in rows]}
    chart = Bars("Bytes of a row in one pass of all blocks", "bytes", places, values, digits=0)
    figures = draw_bars([chart], options.out / "vfb2-bytes", columns=1)
    return LabResult(rows, figures, notes, smaller=f"{QUICK_ROWS:,} rows" if options.quick else "")


def _bytes(course: Course, algorithm: str, seed: int) -> float:
    """Of one pass of steps: what a longer run sends more, as surveys and the start are in both."""
    kinds = ("ShareAsked", "ShareGiven", "Backward")
    sent, passes = [], []
    for wanted in (3.0, 6.0):
        record = course.time(algorithm, 1e-12, seed=seed, passes=wanted).record
        sent.append(sum(party.bytes_by_kind.get(kind, 0) for party in record.parties.values() for kind in kinds))
        passes.append(record.passes)
    return float((sent[1] - sent[0]) / (passes[1] - passes[0]))


def _predicted(parties: int, *, backward: bool) -> float:
    return 8.0 * (parties - 1) * (2 if backward else parties)


ENTRIES = (
    Entry("vfb2-fig2", "VFB2 Figure 2: speed-up with the number of parties", figure2),
    Entry(
        "vfb2-fig3",
        "VFB2 Figure 3: convergence for problem 13 against time and passes",
        partial(_curves, "vfb2-fig3", 13),
    ),
    Entry(
        "vfb2-fig4",
        "VFB2 Figure 4: convergence for problem 14 against time and passes",
        partial(_curves, "vfb2-fig4", 14),
    ),
    Entry("vfb2-bytes", "VFB2 against AFSGD-VP: bytes for one pass of all blocks", bytes_per_pass),
)
