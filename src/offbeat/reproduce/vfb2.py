"""VFB2's Table 2, Figures 2, 3 and 4, and the bytes that one aggregation for all blocks saves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, stdev
from typing import Any

import msgspec
import numpy as np

from offbeat.algorithms import afsgd_vp, vfb2
from offbeat.data.matrix import stack_columns
from offbeat.data.vertical import VerticalData, vertical_from_dataset
from offbeat.evaluation import Setting, accuracy, party_weights, prepare
from offbeat.experiment import setting_for
from offbeat.job import Job
from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2, NONCONVEX, Penalty
from offbeat.metrics.curves import to_target
from offbeat.party.member import LinearOptions
from offbeat.party.survey import Problem
from offbeat.reproduce.catalogue import ReproduceOptions, ReproduceResult, Reproduction
from offbeat.reproduce.measure import Course, Kept, Timed, automatic_step, base_job, curve_points
from offbeat.runtime.simulator import CostModel, Link, Simulator

PARTIES, LABELLED, STRENGTH = 8, 3, 1e-4
HALF = PARTIES // 2


@dataclass(frozen=True)
class PrintedSet:
    """A data set of the paper, what stands for it here, and its rows of Table 2 (NonF, AFSVRG-VP, VFB2-SVRG)."""

    printed: str
    set: str
    quick_set: str
    split: str
    problem13: tuple[float, float, float]
    problem14: tuple[float, float, float]
    note: str = "the real set"


SETS = (
    PrintedSet(
        "D1 UCICreditCard", "uci_credit_card", "uci_credit_card", "equal", (81.96, 79.35, 81.96), (82.03, 79.36, 82.03)
    ),
    PrintedSet(
        "D2 GiveMeSomeCredit",
        "give_me_some_credit",
        "give_me_some_credit",
        "equal",
        (93.56, 93.35, 93.56),
        (93.56, 93.35, 93.56),
    ),
    PrintedSet(
        "D3 news20",
        "news20_ngrams",
        "news20_ngrams_47k",
        "mod",
        (98.29, 97.24, 98.29),
        (98.45, 97.59, 98.45),
        "20 Newsgroups n-grams",
    ),
    PrintedSet(
        "D4 webspam",
        "webspam-shaped@0.01",
        "webspam-shaped@0.001",
        "mod",
        (92.17, 89.17, 92.17),
        (92.71, 89.98, 92.71),
        "generated in webspam's shape",
    ),
)
QUICK_ROWS = 2000


def load(printed: PrintedSet, options: ReproduceOptions, seed: int, parties: int = PARTIES) -> VerticalData:
    return vertical_from_dataset(
        printed.quick_set if options.quick else printed.set,
        parties,
        printed.split,
        rows="pooled-unit",
        data_dir=options.data_dir,
        seed=seed,
        limit_rows=QUICK_ROWS if options.quick else None,
        split_after_one_hot=printed.split == "equal",
        test_fraction=0.2 if "shaped" in printed.set else None,
    )


# -- table 2 ---------------------------------------------------------------------------------------------------------


def table2(options: ReproduceOptions) -> ReproduceResult:
    """Accuracy without a federation, with labels at half of the parties, and with VFB2-SVRG; q=8, m=3."""
    kept = Kept(options.out / ("vfb2-table2-quick.json" if options.quick else "vfb2-table2.json"))
    rows: list[dict[str, Any]] = []
    for printed in SETS:
        for problem, penalty, published in ((13, L2, printed.problem13), (14, NONCONVEX, printed.problem14)):
            trials = []
            for seed in range(options.seed, options.seed + (2 if options.quick else 10)):
                options.say(f"{printed.printed}, problem {problem}, trial {seed}")
                trials.append(
                    kept.get(
                        f"{printed.printed} {problem} {seed}",
                        partial(_trial, printed, penalty, options, seed),
                    )
                )
            rows += _table_rows(printed, problem, published, trials)
    return ReproduceResult(rows, notes=TABLE_NOTES)


TABLE_NOTES = (
    "Test accuracy in percent, mean and deviation over trials that differ in the split and every random choice. NonF "
    "is the pooled problem: for problem 13 its optimum, for problem 14 pooled SVRG from zero to the same objective.",
    "VFB2-SVRG stops at a duality gap of 1e-6 (problem 13), or at a gradient norm of 1e-4 or 60 passes (problem 14).",
    "The half-labelled baseline is AFSVRG-VP with labels at 4 of 8 parties; the others answer, but their blocks stay "
    "at zero, so it trains on the labelled parties' columns alone.",
)


def _trial(printed: PrintedSet, penalty: Penalty, options: ReproduceOptions, seed: int) -> dict[str, float]:
    data = load(printed, options, seed)
    setting = prepare(data, loss=LOGISTIC, penalty=penalty, strength=STRENGTH, intercept=False, seed=seed)
    ours, half = federated(setting, seed), federated(setting, seed, half=True)
    pooled = _pooled_weights(setting, ours, seed)
    test: Any = stack_columns([setting.test[name] for name in setting.names])
    nonf = 100 * accuracy(np.asarray(test @ pooled), setting.y_test)
    return {"nonf": nonf, "half": half.accuracy, "vfb2": ours.accuracy, "certificate": ours.certificate}


@dataclass(frozen=True)
class Trained:
    """A federated model: its test accuracy in percent, its certificate, and how it was come by."""

    accuracy: float
    certificate: float
    objective: float
    eta: float
    batch: int


def federated(setting: Setting, seed: int, *, half: bool = False) -> Trained:
    """VFB2-SVRG, or the half-labelled baseline."""
    labelled = setting.names[: HALF if half else LABELLED]
    problem = Problem(setting.rows, LOGISTIC, setting.penalty, STRENGTH, setting.y_train)
    passes, target = (60.0, 1e-4) if setting.penalty is NONCONVEX else (400.0, 1e-6)
    options = LinearOptions(
        method="svrg", passes=25.0 if half else passes, target=None if half else target, patience_s=1e6
    )
    family: Any = afsgd_vp if half else vfb2
    parties = family.build(setting.new_blocks(), problem, options, labels_at=labelled, seed=seed, secrets_seed=seed)
    costs = CostModel(link=Link(latency_s=1e-4), lanes=2)
    outcome = Simulator(seed=seed, costs=costs, timeline_max=0, digest=False).run(parties)
    assert not outcome.stalled, outcome.stalled
    chair = parties[0].member
    last = chair.survey.history[-1]
    certificate = last.gradient_norm if math.isnan(last.gap) else last.gap
    score = 100 * setting.test_metrics(party_weights(parties))["test_accuracy"]
    return Trained(score, certificate, last.objective, chair.conduct.eta, chair.conduct.batch)


def _pooled_weights(setting: Setting, ours: Trained, seed: int) -> Any:
    """Problem 13: the optimum. Problem 14, which has many: the same method on the pooled data, from zero to the same
    objective."""
    pooled: Any = stack_columns([setting.train[name] for name in setting.names])
    if setting.penalty is L2:
        return central.optimum(pooled, setting.y_train, LOGISTIC, STRENGTH, tolerance=1e-9)[0]
    return central.fit(
        pooled,
        setting.y_train,
        LOGISTIC,
        setting.penalty,
        STRENGTH,
        method="svrg",
        eta=ours.eta,
        passes=400,
        batch=ours.batch,
        seed=seed,
        target=ours.objective,
    ).weights


def _table_rows(
    printed: PrintedSet, problem: int, published: tuple[float, float, float], trials: Sequence[dict[str, float]]
) -> list[dict[str, Any]]:
    means = {key: mean(trial[key] for trial in trials) for key in ("nonf", "half", "vfb2")}
    spread = {key: stdev(trial[key] for trial in trials) for key in means}
    worst = max(trial["certificate"] for trial in trials)
    apart = abs(means["vfb2"] - means["nonf"])
    verdicts = {
        "nonf": "",
        "half": "worse, as printed" if means["half"] < means["nonf"] - 0.05 else "not visibly worse here",
        "vfb2": f"{apart:.3f} points from NonF; largest certificate {worst:.1e}",
    }
    names = {"nonf": "NonF", "half": "AFSVRG-VP, labels at half", "vfb2": "VFB2-SVRG"}
    return [
        {
            "setting": f"{printed.printed} ({printed.note}), problem {problem}, {names[key]}",
            "ours": f"{means[key]:.2f} +- {spread[key]:.2f}",
            "published": figure,
            "verdict": verdicts[key],
        }
        for key, figure in zip(names, published, strict=True)
    ]


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
    Reproduction("vfb2-table2", "VFB2 Table 2: accuracy of NonF, half-labelled AFSVRG-VP and VFB2-SVRG", table2),
    Reproduction("vfb2-fig2", "VFB2 Figure 2: speed-up with the number of parties", figure2),
    Reproduction("vfb2-fig3", "VFB2 Figure 3: convergence for problem 13 against time and passes", figure3),
    Reproduction("vfb2-fig4", "VFB2 Figure 4: convergence for problem 14 against time and passes", figure4),
    Reproduction("vfb2-bytes", "VFB2 against AFSGD-VP: bytes for one pass of all blocks", bytes_per_pass),
)
