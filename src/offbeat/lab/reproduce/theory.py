"""`offbeat reproduce theory`: what the papers' theorems say about rates, measured.

| Theorem                                           | What is measured                                            |
|---------------------------------------------------|-------------------------------------------------------------|
| AFSGD-VP 6, 8; VFB2 2, 3: SVRG, SAGA, O(log 1/e)  | log of the gap against passes: a straight line?             |
| AFSGD-VP 4; VFB2 1: SGD, O(1/e log 1/e)           | the gap against passes, in logarithms                       |
| VFB2 4: SGD, nonconvex, 1/sqrt(T)                 | mean squared gradient norm against passes, in logarithms    |
| VFB2 5, 6: SVRG, SAGA, nonconvex, 1/T             | the same                                                    |
| AFSGD-VP Def. 3, VFB2 Def. 1: v(t), eta_1, tau    | the order of updates, and how late they are                 |
| all: a step of the order 1 / (lag L)              | the largest step that converges, against the lag            |
| VAFL 2 to 6, MAPA 2 to 4                          | in `theory_vafl.py` and `theory_mapa.py`                    |

All runs have delays: one party is four times slower. The methods are as printed: no leaps, plain steps.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from offbeat.data.places import at_hand
from offbeat.families.vertical_data import load_data
from offbeat.jobs.runtime import resolved
from offbeat.jobs.vertical import DataEntry, Job
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.lab.reproduce.measure import Course, automatic_step, base_job, curve, fitted, kept_pieces, power
from offbeat.lab.reproduce.theory_mapa import mapa_rows
from offbeat.lab.reproduce.theory_vafl import GRADIENTS, POWERS, vafl_rows
from offbeat.metrics.curves import CurveRow, points
from offbeat.run.experiment import run_experiment, run_training
from offbeat.run.parties import training_of
from offbeat.run.runtimes import simulator_for
from offbeat.runtime.simulator.checkers import Checker

PARTIES = ("bank", "shop", "telecom", "clinic")
SLOW = {"telecom": 4.0}
FLOOR = 1e-11
STRAIGHT = "SVRG and SAGA, strongly convex: gap"
QUESTIONS = (1, 2, 4, 8, 16)
"""How many products a party asks for at a time: the lag grows with it."""
LINEAR = (
    ("vfb2-svrg", "VFB2 Theorem 2"),
    ("vfb2-saga", "VFB2 Theorem 3"),
    ("afsvrg-vp", "AFSGD-VP Theorem 6"),
    ("afsaga-vp", "AFSGD-VP Theorem 8"),
)
EPOCHS = (
    ("vfb2-svrg", "VFB2 Assumption 3, Definition 1: tau, eta_1, v(t)"),
    ("afsvrg-vp", "AFSGD-VP Assumptions 4 and 5, Definition 3: eta_1, tau, v(t)"),
)
NONCONVEX = (
    ("vfb2-sgd", "VFB2 Theorem 4", "1/sqrt(T)"),
    ("vfb2-svrg", "VFB2 Theorem 5", "1/T"),
    ("vfb2-saga", "VFB2 Theorem 6", "1/T"),
)
QUICK_ROWS = 1000


def theory(options: LabOptions) -> LabResult:
    kept = kept_pieces(options, "theory")
    convex, round_one, bent = (_course(options, *kind) for kind in (("l2", 1e-3), ("l2", 0.1), ("nonconvex", 1e-3)))
    rows = [kept.get(f"rate {name}", partial(_rate, convex, name, theorem, options)) for name, theorem in LINEAR]
    for name, theorem in (("vfb2-sgd", "VFB2 Theorem 1"), ("afsgd-vp", "AFSGD-VP Theorem 4")):
        rows.append(kept.get(f"decaying {name}", partial(_decaying, round_one, name, theorem, options)))
    rows += vafl_rows(round_one, SLOW, options, kept)
    rows += [kept.get(f"epochs {each[0]}", partial(_epochs, convex, *each, options)) for each in EPOCHS]
    rows += [kept.get(f"bent {each[0]}", partial(_gradients, bent, *each, options)) for each in NONCONVEX]
    for name in ("vfb2-svrg", "afsvrg-vp"):
        rows += kept.get(f"steps {name}", partial(_stable_steps, convex, name, options))
    rows += mapa_rows(convex.data, options, kept)
    notes = (
        f"{convex.data.source}; one party four times slower; virtual time; one seed.",
        "The proofs do not give O(log 1/eps) for SVRG and SAGA: their conditions make the step fall once eps is small. "
        "What is seen is a straight line all the same.",
        "VAFL: mean of three seeds; each horizon has its own constant step, as a method with steps of 1/k would end.",
        "A slope of -1 is 1/T, one of -0.5 is 1/sqrt(T); the border is drawn at -0.75.",
        "VAFL's networks have tanh inside: 400 rows, four clients. MAPA's rows are logistic regression on the rows of "
        "VFB2's, dealt to five edges, with a penalty of 0.01 and the noise as printed. Its bounds are computed with "
        "the largest gradient and distance that were seen.",
    )
    curves = [row["curve"] for row in rows if "curve" in row]
    drawn = _drawn(curves, options.out / "theory")
    told = [{key: value for key, value in row.items() if key != "curve"} for row in rows]
    return LabResult(
        told, drawn, notes, more={"seeds": [options.seed]}, smaller=f"{QUICK_ROWS:,} rows" if options.quick else ""
    )


def _drawn(curves: Sequence[Mapping[str, Any]], path: Path) -> list[Path]:
    """One panel for each kind of theorem; a straight line is a power of the time, in the first one a linear rate."""
    from offbeat.report.figures import Curve, Panel, draw_panels

    panels = []
    for title in dict.fromkeys(each["panel"] for each in curves):
        mine = [each for each in curves if each["panel"] == title]
        lines = [Curve(each["name"], each["points"], tone) for tone, each in enumerate(mine)]
        what = title.rpartition(": ")[2]
        panels.append(
            Panel(
                title.rpartition(": ")[0],
                "updates" if "MAPA" in title else "passes",
                what,
                lines,
                log_x=title != STRAIGHT,
                log_y=True,
            )
        )
    return list(draw_panels(panels, path, columns=2, title="What the theorems say about rates"))


def _course(options: LabOptions, penalty_kind: str, penalty: float) -> Course:
    where = None if options.data_dir is None else str(options.data_dir)
    entry = DataEntry(
        set=at_hand("uci_credit_card", options.data_dir),
        dir=where,
        parties=list(PARTIES),
        limit_rows=QUICK_ROWS if options.quick else 6000,
    )
    job = base_job(options.seed, data=entry, penalty=penalty, penalty_kind=penalty_kind, batch=16)
    return Course(load_data(job), job)


def _curve(course: Course, options: LabOptions, **keys: Any) -> list[CurveRow]:
    """One run's looks. Where there is no least objective to compare with, gradient norms are looked at."""
    runtime = msgspec.structs.replace(course.job.runtime, slow=SLOW)
    job: Job = msgspec.structs.replace(course.job, runtime=runtime, seed=options.seed, target=None, **keys)
    optimum = course.optimum if job.penalty_kind == "l2" else None
    return list(run_experiment(course.data, job, optimum=optimum).record.curve)


def _rate(course: Course, name: str, theorem: str, options: LabOptions) -> dict[str, Any]:
    options.say(f"linear rate: {name}")
    looks = _curve(course, options, algorithm=name, passes=40.0 if options.quick else 120.0)
    found = points(looks, "passes", "suboptimality")
    line = [(x, math.log10(y)) for x, y in found if y > FLOOR and x > 0]
    slope, fit = fitted(line[len(line) // 4 :])  # the first passes are faster than the line that they come to
    seen = fit > 0.95 and slope < 0
    return {
        "setting": f"{theorem}: {name}, strongly convex: log of the gap against passes",
        "ours": f"{-slope:.3f} digits a pass, R^2 {fit:.3f}, to {min(y for _, y in found):.1e}",
        "published": "O(log 1/eps)",
        "verdict": "linear, as seen; not what the proof yields" if seen else "not a straight line here",
        "curve": curve(STRAIGHT, name, [(x, y) for x, y in found if y > FLOOR]),
    }


def _decaying(course: Course, name: str, theorem: str, options: LabOptions) -> dict[str, Any]:
    """SGD's steps fall as 1/t in the end. The penalty is strong here, so that the end is reached."""
    options.say(f"decaying steps: {name}")
    looks = _curve(course, options, algorithm=name, passes=20.0)
    found = [(x, y) for x, y in points(looks, "passes", "suboptimality") if x > 0 and y > 0]
    slope = power(found[len(found) // 4 :])
    return {
        "setting": f"{theorem}: {name}, strongly convex: gap against passes, slope of logarithms",
        "ours": slope,
        "published": "1/T: O(1/eps log 1/eps)",
        "verdict": "holds" if slope < -0.75 else "not seen here",
        "curve": curve(POWERS, name, found),
    }


class Updates(Checker):
    """The order in which blocks were updated."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.counted: dict[str, int] = {}

    def handled(self, now_s: float, party: Any, event: Any, effects: Any) -> None:
        done = party.party.lags.count
        self.order += [party.name] * (done - self.counted.get(party.name, 0))
        self.counted[party.name] = done


def visits(order: Sequence[str]) -> tuple[int, int, int]:
    """v(t) of all updates, the largest K(t), and the most updates of one block in a K(t). K(t): the updates from t on
    until every block had one."""
    epochs, largest, busiest, free, end = 0, 0, 0, 0, 0
    inside: Counter[str] = Counter()
    blocks = len(set(order))
    for start, name in enumerate(order):
        while end < len(order) and len(inside) < blocks:
            inside[order[end]] += 1
            end += 1
        if len(inside) < blocks:
            break
        largest, busiest = max(largest, end - start), max(busiest, *inside.values())
        if start == free:
            epochs, free = epochs + 1, end
        inside[name] -= 1
        inside = +inside
    return epochs, largest, busiest


def _epochs(course: Course, name: str, symbols: str, options: LabOptions) -> dict[str, Any]:
    options.say(f"epochs: {name}")
    runtime = msgspec.structs.replace(course.job.runtime, slow=SLOW)
    job: Job = msgspec.structs.replace(course.job, algorithm=name, runtime=runtime, seed=options.seed, passes=20.0)
    training, seen = training_of(resolved(job), course.data, optimum=course.optimum), Updates()
    record = run_training(training, runtime=replace(simulator_for(training), checkers=(seen,))).record
    epochs, largest, busiest = visits(seen.order)
    lag = max(party.lag_max for party in record.parties.values())
    return {
        "setting": f"{symbols}: {name}, 20 passes",
        "ours": f"v(t) {epochs:,} at t {len(seen.order):,}; K(t) up to {largest}, of one block {busiest}; tau {lag}",
        "published": "taken to be bounded",
        "verdict": f"bounded; an epoch takes {len(seen.order) / epochs:.1f} updates of {len(PARTIES)} blocks",
    }


def _gradients(course: Course, name: str, theorem: str, published: str, options: LabOptions) -> dict[str, Any]:
    options.say(f"nonconvex: {name}")
    looks = _curve(course, options, algorithm=name, passes=20.0 if options.quick else 60.0)
    found = [(x, y**2) for x, y in points(looks, "passes", "gradient_norm") if x > 0]
    sums = accumulate(y for _, y in found)
    means = [(x, total / count) for count, ((x, _), total) in enumerate(zip(found, sums, strict=True), 1)]
    slope = power(means[len(means) // 4 :])
    seen = "1/T" if slope < -0.75 else "1/sqrt(T)" if slope < -0.25 else "slower than 1/sqrt(T)"
    order = ("slower than 1/sqrt(T)", "1/sqrt(T)", "1/T")
    return {
        "setting": f"{theorem}: {name}, nonconvex: mean squared gradient norm against passes, slope of logarithms",
        "ours": slope,
        "published": published,
        "verdict": f"holds: {seen}" if order.index(seen) >= order.index(published) else f"not seen here: {seen}",
        "curve": curve(GRADIENTS, name, means),
    }


def _stable_steps(course: Course, name: str, options: LabOptions) -> list[dict[str, Any]]:
    """The largest step, in halves, at which the gap falls a hundredfold, by the lag it brought."""
    rows: list[dict[str, Any]] = []
    first = automatic_step(course, name, options.seed, {"slow": SLOW})
    for questions in QUESTIONS[::2] if options.quick else QUESTIONS:
        options.say(f"largest step: {name}, {questions} products at a time")
        step, lag = _largest(course, name, questions, first, options)
        rows.append(
            {
                "setting": f"{name}, {questions} products at a time: largest step that converges over the automatic",
                "ours": step / first,
                "published": "of the order 1 / (lag L)",
                "verdict": f"mean lag {lag:.1f}; step times (1 + lag): {step / first * (1 + lag):.1f}",
            }
        )
    return rows


def _largest(course: Course, name: str, questions: int, first: float, options: LabOptions) -> tuple[float, float]:
    runtime = msgspec.structs.replace(course.job.runtime, slow=SLOW)
    for halvings in range(12):
        step = 32.0 * first / 2**halvings
        job: Job = msgspec.structs.replace(
            course.job, algorithm=name, runtime=runtime, step=step, in_flight=questions, passes=30.0, seed=options.seed
        )
        record = run_experiment(course.data, job, optimum=course.optimum).record
        found = [y for _, y in points(record.curve, "passes", "suboptimality")]
        if record.verdict != "diverged" and found and found[-1] < 0.01 * found[0]:
            lags = [party.lag_mean for party in record.parties.values()]
            return step, max(lags)
    return 0.0, math.nan


ENTRIES = (Entry("theory", "Rates of the theorems: what holds, fails, or holds under a condition", theory),)
