"""`offbeat reproduce theory`: what the papers' theorems say about rates, measured.

| Theorem                                           | What is measured                                            |
|---------------------------------------------------|-------------------------------------------------------------|
| AFSGD-VP 6, 8; VFB2 2, 3: SVRG, SAGA, O(log 1/e)  | log of the gap against passes: a straight line?             |
| AFSGD-VP 4; VFB2 1: SGD, O(1/e log 1/e)           | the gap against passes, in logarithms                       |
| VFB2 4: SGD, nonconvex, 1/sqrt(T)                 | mean squared gradient norm against passes, in logarithms    |
| VFB2 5, 6: SVRG, SAGA, nonconvex, 1/T             | the same                                                    |
| VAFL 3, 5: strongly convex, 1/K                   | the gap after K passes with a step of 1/K, in logarithms    |
| all: a step of the order 1 / (lag L)              | the largest step that converges, against the lag            |

All runs have delays: one party is four times slower. The methods are as printed: no leaps, plain steps.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from offbeat.data.places import at_hand
from offbeat.families.vertical_data import load_data
from offbeat.jobs.vertical import DataEntry, Job
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.lab.reproduce.measure import Course, automatic_step, base_job, kept_pieces
from offbeat.metrics.curves import CurveRow, points
from offbeat.run.experiment import run_experiment

PARTIES = ("bank", "shop", "telecom", "clinic")
SLOW = {"telecom": 4.0}
FLOOR = 1e-11
QUESTIONS = (1, 2, 4, 8, 16)
"""How many products a party asks for at a time: the lag grows with it."""
LINEAR = (
    ("vfb2-svrg", "VFB2 Theorem 2"),
    ("vfb2-saga", "VFB2 Theorem 3"),
    ("afsvrg-vp", "AFSGD-VP Theorem 6"),
    ("afsaga-vp", "AFSGD-VP Theorem 8"),
)
NONCONVEX = (
    ("vfb2-sgd", "VFB2 Theorem 4", "1/sqrt(T)"),
    ("vfb2-svrg", "VFB2 Theorem 5", "1/T"),
    ("vfb2-saga", "VFB2 Theorem 6", "1/T"),
)
VAFL_WORLDS = {
    "one client four times slower": "VAFL Theorem 3",
    "exponential delays, one client four times slower": "VAFL Theorem 5",
}
HORIZONS, VAFL_ROWS = (2, 4, 8, 16, 32), 1000
QUICK_ROWS = 1000


def theory(options: LabOptions) -> LabResult:
    kept = kept_pieces(options, "theory")
    convex, round_one, bent = (_course(options, *kind) for kind in (("l2", 1e-3), ("l2", 0.1), ("nonconvex", 1e-3)))
    rows = [kept.get(f"rate {name}", partial(_rate, convex, name, theorem, options)) for name, theorem in LINEAR]
    for name, theorem in (("vfb2-sgd", "VFB2 Theorem 1"), ("afsgd-vp", "AFSGD-VP Theorem 4")):
        rows.append(kept.get(f"decaying {name}", partial(_decaying, round_one, name, theorem, options)))
    for world, theorem in VAFL_WORLDS.items():
        rows.append(kept.get(f"vafl {world}", partial(_vafl, round_one, world, theorem, options)))
    rows += [kept.get(f"bent {each[0]}", partial(_gradients, bent, *each, options)) for each in NONCONVEX]
    for name in ("vfb2-svrg", "afsvrg-vp"):
        rows += kept.get(f"steps {name}", partial(_stable_steps, convex, name, options))
    notes = (
        f"{convex.data.source}; one party four times slower; virtual time; one seed.",
        "The proofs do not give O(log 1/eps) for SVRG and SAGA: their conditions make the step fall once eps is small. "
        "What is seen is a straight line all the same.",
        "VAFL: mean of three seeds; each horizon has its own constant step, as a method with steps of 1/k would end.",
        "A slope of -1 is 1/T, one of -0.5 is 1/sqrt(T); the border is drawn at -0.75.",
    )
    return LabResult(rows, notes=notes, smaller=f"{QUICK_ROWS:,} rows" if options.quick else "")


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
    curve = _curve(course, options, algorithm=name, passes=40.0 if options.quick else 120.0)
    found = points(curve, "passes", "suboptimality")
    line = [(x, math.log10(y)) for x, y in found if y > FLOOR and x > 0]
    slope, fit = _line(line[len(line) // 4 :])  # the first passes are faster than the line that they come to
    seen = fit > 0.95 and slope < 0
    return {
        "setting": f"{theorem}: {name}, strongly convex: log of the gap against passes",
        "ours": f"{-slope:.3f} digits a pass, R^2 {fit:.3f}, to {min(y for _, y in found):.1e}",
        "published": "O(log 1/eps)",
        "verdict": "linear, as seen; not what the proof yields" if seen else "not a straight line here",
    }


def _decaying(course: Course, name: str, theorem: str, options: LabOptions) -> dict[str, Any]:
    """SGD's steps fall as 1/t in the end. The penalty is strong here, so that the end is reached."""
    options.say(f"decaying steps: {name}")
    curve = _curve(course, options, algorithm=name, passes=20.0)
    found = [(math.log(x), math.log(y)) for x, y in points(curve, "passes", "suboptimality") if x > 0 and y > 0]
    slope, _ = _line(found[len(found) // 4 :])
    return {
        "setting": f"{theorem}: {name}, strongly convex: gap against passes, slope of logarithms",
        "ours": slope,
        "published": "1/T: O(1/eps log 1/eps)",
        "verdict": "holds" if slope < -0.75 else "not seen here",
    }


def _vafl(course: Course, world: str, theorem: str, options: LabOptions) -> dict[str, Any]:
    """With an additive head over linear embeddings VAFL's problem is the linear one: its optimum is known."""
    options.say(f"{theorem}: {world}")
    data = msgspec.structs.replace(course.job.data, limit_rows=VAFL_ROWS)
    job: Job = msgspec.structs.replace(course.job, data=data)
    few = Course(load_data(job), job)  # the same rows with each seed: the gap is to their optimum
    jitter: Any = "exponential" if world.startswith("exponential") else "none"
    runtime = msgspec.structs.replace(job.runtime, slow=SLOW, jitter=jitter)
    horizons = HORIZONS[::2] if options.quick else HORIZONS
    found = []
    for passes in horizons:
        gaps = []
        for seed in range(options.seed, options.seed + (1 if options.quick else 3)):
            mine = Job(
                seed=seed, algorithm="vafl", data=data, penalty=job.penalty, batch=job.batch, intercept=False,
                passes=float(passes), step=1.0 / passes, looks_per_pass=1.0, runtime=runtime,
            )  # fmt: skip
            last = run_experiment(few.data, mine).record.curve[-1].objective
            assert last is not None, "VAFL's observer tells the objective"
            gaps.append(last - few.optimum)
        found.append((math.log(passes), math.log(np.mean(gaps))))
    slope, _ = _line(found)
    return {
        "setting": f"{theorem}: vafl, {world}, strongly convex: gap after K passes, slope of logarithms",
        "ours": slope,
        "published": "1/K",
        "verdict": "holds" if slope < -0.75 else "not seen here",
    }


def _gradients(course: Course, name: str, theorem: str, published: str, options: LabOptions) -> dict[str, Any]:
    options.say(f"nonconvex: {name}")
    curve = _curve(course, options, algorithm=name, passes=20.0 if options.quick else 60.0)
    found = [(x, y**2) for x, y in points(curve, "passes", "gradient_norm") if x > 0]
    means = np.cumsum([y for _, y in found]) / np.arange(1, len(found) + 1)
    slope, _ = _line(
        [(math.log(x), math.log(mean)) for (x, _), mean in zip(found, means, strict=True)][len(found) // 4 :]
    )
    seen = "1/T" if slope < -0.75 else "1/sqrt(T)" if slope < -0.25 else "slower than 1/sqrt(T)"
    order = ("slower than 1/sqrt(T)", "1/sqrt(T)", "1/T")
    return {
        "setting": f"{theorem}: {name}, nonconvex: mean squared gradient norm against passes, slope of logarithms",
        "ours": slope,
        "published": published,
        "verdict": f"holds: {seen}" if order.index(seen) >= order.index(published) else f"not seen here: {seen}",
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


def _line(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(slope, R^2) of the straight line through these points."""
    x, y = np.array(found, dtype=float).T
    slope, offset = np.polyfit(x, y, 1)
    left, spread = np.sum((y - slope * x - offset) ** 2), np.sum((y - y.mean()) ** 2)
    return float(slope), float(1.0 - left / spread) if spread > 0 else 0.0


ENTRIES = (Entry("theory", "Rates of the theorems: what holds, fails, or holds under a condition", theory),)
