"""`offbeat bench core`: CPU seconds to a relative sub-optimality of 1e-4 and 1e-7, all in one process and one run.

Our methods go through the whole protocol in the simulator: eight parties, pairwise masks, every message handled. Beside
them stand our own centralised kernel on the pooled data and scikit-learn's solvers, each at the smallest number of
iterations that reaches the target. What is timed is process CPU time; compilation is not timed. A first run finds at
which survey the target is met (the chair knows the objective where each leap ends); the timed runs go just as far.
Measuring the constants is part of a run of ours; building the parties is shown apart.

The last lines are of updates: microseconds of one update of VFB2-SVRG with all its events, beside the same arithmetic
(shares, masks, derivatives, steps) called in a bare loop. A short run is subtracted from a longer one: keys, constants
and the first survey are no part of an update. What they would add is said beside it.
"""

import gc
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, islice
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from offbeat.algorithms import afsgd_vp, vfb2
from offbeat.data.vertical import vertical_from_dataset
from offbeat.families.setting import Setting, prepare
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.learning import central
from offbeat.learning.blocks import finish_product
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2
from offbeat.learning.sampling import Schedule
from offbeat.party.contract import Party
from offbeat.party.linear_options import LinearOptions
from offbeat.privacy.masks import NetMask
from offbeat.runtime.contract import Outcome
from offbeat.runtime.simulator import CostModel, Link, Simulator

PARTIES = 8
LABELLED = 3
STRENGTH = 1e-4
RELATIVE_TARGETS = (1e-4, 1e-7)
PASSES_MOST = 200.0
UPDATE_BATCH, UPDATES_FROM_S, UPDATES_UNTIL_S = 64, 0.5, 3.0

SETS = (
    ("credit, all columns standardised", "uci_credit_card", "standardised", "equal"),
    ("credit, one-hot left 0/1", "uci_credit_card", "01", "equal"),
    ("news20 n-grams, tf-idf", "news20_ngrams", None, "mod"),
)


@dataclass(frozen=True)
class Way:
    """One way of ours to train: a family, its method, and who holds labels."""

    title: str
    family: Any
    method: str
    synchronous: bool
    labelled: int


OURS = (
    Way("vfb2-svrg, labels at 3", vfb2, "svrg", False, LABELLED),
    Way("vfb2-saga, labels at 3", vfb2, "saga", False, LABELLED),
    Way("vfb2-svrg, labels at 1", vfb2, "svrg", False, 1),
    Way("vfb2-saga, labels at 1", vfb2, "saga", False, 1),
    Way("vfb-svrg, labels at 3 (synchronous)", vfb2, "svrg", True, LABELLED),
    Way("afsvrg-vp", afsgd_vp, "svrg", False, PARTIES),
    Way("fsvrg-vp (synchronous)", afsgd_vp, "svrg", True, PARTIES),
)


@dataclass(frozen=True)
class SolverRow:
    """One solver on one set."""

    data: str
    target: float
    solver: str
    cpu_s: float | None
    times_saga: float | None  # how many times less CPU than scikit-learn's saga in this run
    note: str


def core(options: LabOptions) -> LabResult:
    """Every solver on every set."""
    from threadpoolctl import threadpool_limits

    rows: list[SolverRow] = []
    sets, repeats = (SETS[1:2], 1) if options.quick else (SETS, 5)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns at every cut-off that is not convergence
        for title, name, preparation, split in sets:
            setting = _setting(name, preparation, split, options.data_dir)
            for target in RELATIVE_TARGETS:
                rows += _one_set(title, setting, target, repeats, options.say)
            rows += update_rows(title, setting)
    return LabResult([asdict(row) for row in rows], notes=NOTES)


NOTES = (
    "Process CPU seconds to (f - f*) / f* <= target, l2 logistic regression, lambda 1e-4, no intercept, rows scaled to "
    "norm one; eight parties with pairwise masks in the simulator; one BLAS thread; medians of interleaved rounds.",
    "times_saga: how many times less CPU than scikit-learn's saga in this very run. Compare within one set only.",
)


def _setting(name: str, preparation: str | None, split: str, data_dir: Path | None) -> Setting:
    data = vertical_from_dataset(
        name,
        PARTIES,
        split,
        preparation=preparation,
        rows="pooled-unit",
        data_dir=data_dir,
        split_after_one_hot=name == "uci_credit_card",
    )
    return prepare(data, loss=LOGISTIC, penalty=L2, strength=STRENGTH, intercept=False, seed=0)


def _one_set(
    title: str, setting: Setting, target: float, repeats: int, progress: Callable[[str], None]
) -> list[SolverRow]:
    pooled = setting.pooled()
    _, best = central.optimum(pooled, setting.y_train, LOGISTIC, STRENGTH)
    goal = best * (1 + target)
    solvers: list[tuple[str, _Solver | None]] = [
        *((way.title, _ours(setting, goal, way)) for way in OURS),
        ("our centralised kernel, SVRG", _central(pooled, setting, goal, "svrg")),
        ("our centralised kernel, SAGA", _central(pooled, setting, goal, "saga")),
        *((f"scikit-learn {name}", _sklearn(pooled, setting, goal, **how)) for name, how in SKLEARN),
    ]
    times: dict[str, list[float]] = {name: [] for name, _ in solvers}
    for turn in range(repeats):
        progress(f"{title}, {target:g}: round {turn + 1} of {repeats}")
        for name, solver in solvers:
            if solver is not None:
                times[name].append(solver.time())
    saga = median(times["scikit-learn saga"]) if times["scikit-learn saga"] else None
    return [_row(title, target, name, solver, times[name], saga) for name, solver in solvers]


def _row(
    title: str, target: float, name: str, solver: "_Solver | None", times: Sequence[float], saga: float | None
) -> SolverRow:
    if solver is None:
        return SolverRow(title, target, name, None, None, "did not reach the target")
    cpu_s = median(times)
    return SolverRow(title, target, name, cpu_s, saga / cpu_s if saga is not None else None, solver.note)


@dataclass(frozen=True)
class _Solver:
    """Something that can be timed again and again."""

    run: Callable[[], float]
    note: str

    def time(self) -> float:
        gc.collect()
        return self.run()


def _cpu_s(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


# -- ours ------------------------------------------------------------------------------------------------------------


def _parties(setting: Setting, way: Way, **options: Any) -> list[Party]:
    chosen = LinearOptions(method=way.method, passes=PASSES_MOST, asynchronous=not way.synchronous, **options)
    parties: list[Party] = way.family.build(
        setting.new_blocks(way.method),
        setting.problem(),
        chosen,
        synchronous=way.synchronous,
        labels_at=setting.names[: way.labelled],
        seed=1,
        secrets_seed=1,
    )
    return parties


def _ours(setting: Setting, goal: float, way: Way) -> _Solver | None:
    parties: list[Any] = _parties(setting, way)
    outcome = _simulator().run(parties)
    met = [time_s for time_s, _, name, value in outcome.observations if name == "leap" and value[1] <= goal]
    if not met:
        return None
    until_s = met[0]
    fresh: list[Any] = []

    def timed() -> float:
        fresh[:] = _parties(setting, way)
        return _cpu_s(lambda: _simulator(until_s).run(fresh))

    building = _cpu_s(lambda: _parties(setting, way))
    timed()
    party = fresh[0].party
    made = f"{party.role.passes():.1f} passes of steps and {party.survey.current} surveys"
    note = f"{made}, {party.block.version} updates of a block, batch {party.lifecycle.batch}, building {building:.3f} s"
    return _Solver(timed, note)


def _simulator(until_s: float = inf) -> Simulator:
    return Simulator(costs=CostModel(link=Link(latency_s=1e-3)), timeline_max=0, digest=False, until_s=until_s)


# -- updates -----------------------------------------------------------------------------------------------------------


def update_rows(title: str, setting: Setting) -> list[SolverRow]:
    """Microseconds of one update with its events, and of its arithmetic alone; events in a CPU second."""
    _updates(setting, 0.0)  # what is compiled, is
    short, long = _updates(setting, UPDATES_FROM_S), _updates(setting, UPDATES_UNTIL_S)
    cpu_s, updates, events = (after - before for after, before in zip(long, short, strict=True))
    spent, with_all = 1e6 * cpu_s / max(updates, 1), 1e6 * long[0] / max(long[1], 1)
    bare = 1e6 * bare_update_s(setting, UPDATE_BATCH)
    what = f"{updates} updates of batch {UPDATE_BATCH}, labels at one, {len(setting.names)} parties"
    times = f"{spent / bare:.2f} times its arithmetic alone ({with_all / bare:.2f} with all that comes before); {what}"
    return [
        SolverRow(title, 0.0, "one update, us", spent, None, times),
        SolverRow(title, 0.0, "its arithmetic in a bare loop, us", bare, None, "shares, masks, derivatives and steps"),
        SolverRow(title, 0.0, "events in a CPU second", events / cpu_s, None, f"{events} events"),
    ]


def _updates(setting: Setting, until_s: float) -> tuple[float, int, int]:
    """A run of so many virtual seconds: its CPU seconds, updates and events."""
    way = Way("", vfb2, "svrg", False, 1)
    plain = {"batch": UPDATE_BATCH, "survey_passes": PASSES_MOST, "leap": False, "by_curvature": False}
    parties: list[Any] = _parties(setting, way, **plain)
    simulator, outcomes = _simulator(until_s), list[Outcome]()
    gc.collect()
    cpu_s = _cpu_s(lambda: outcomes.append(simulator.run(parties)))
    return cpu_s, parties[0].applied, outcomes[0].events


def bare_update_s(setting: Setting, batch: int) -> float:
    """CPU seconds of what one update computes: each party's share under its mask, the sum, the derivatives, steps."""
    blocks = list(setting.new_blocks("svrg").values())
    keys = [bytes([i]) * 16 for i in range(len(blocks) - 2)]
    nets = [NetMask(keys, (), batch) for _ in blocks[1:]]
    schedule, labels, scale, times = Schedule(setting.rows, batch, 0), setting.y_train, 2.0**40, 1000
    numbers, told = count(), bytes(range(32))  # no mask is given twice

    def work() -> None:
        for number in islice(numbers, times):
            start, stop = schedule.block(number)
            words = np.zeros(stop - start, np.uint64)
            for block, net in zip(blocks[1:], nets, strict=True):
                mask = net.take(number, 1, stop - start, told)
                words += block.answer(start, stop, None, mask, 0, scale, 2.0**20)
            _, theta = finish_product(words, blocks[0].share(start, stop), start, labels, LOGISTIC, scale)
            theta = np.clip(theta, -1.0, 1.0)  # masks do not cancel here
            for block in blocks:
                block.step(start, stop, theta, 1e-9)

    work()
    return _cpu_s(work) / times


# -- references ------------------------------------------------------------------------------------------------------


def _central(pooled: Any, setting: Setting, goal: float, method: str) -> _Solver | None:
    row_smoothness = 0.25  # unit rows
    problem = (pooled, setting.y_train, LOGISTIC, L2, STRENGTH)
    fitted = partial(central.fit, *problem, method=method, passes=60, batch=1, seed=0, target=goal)
    best: tuple[float, float, float] | None = None
    for factor in (0.05, 0.1, 0.2, 0.5, 1.0):
        eta = factor / row_smoothness
        fit = fitted(eta=eta)
        if fit.objective <= goal and (best is None or fit.cpu_s < best[0]):
            best = fit.cpu_s, eta, fit.passes
    if best is None:
        return None
    _, eta, passes = best
    return _Solver(lambda: fitted(eta=eta).cpu_s, f"{passes:.1f} passes, step tuned over five values")


SKLEARN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("saga", {"solver": "saga"}),
    ("lbfgs", {"solver": "lbfgs"}),
    ("liblinear (primal)", {"solver": "liblinear"}),
    ("liblinear (dual)", {"solver": "liblinear", "dual": True}),
)


def _sklearn(pooled: Any, setting: Setting, goal: float, **how: Any) -> _Solver | None:
    from sklearn.linear_model import LogisticRegression

    def model(iterations: int) -> Any:
        return LogisticRegression(
            C=1 / (STRENGTH * setting.rows), fit_intercept=False, tol=1e-12, max_iter=iterations, random_state=0, **how
        )

    for iterations in ITERATIONS:
        weights = model(iterations).fit(pooled, setting.y_train).coef_[0].astype(np.float64)
        if central.objective(pooled, setting.y_train, weights, LOGISTIC, L2, STRENGTH) <= goal:
            return _Solver(partial(_fit_s, model(iterations), pooled, setting.y_train), f"{iterations} iterations")
    return None


def _fit_s(model: Any, pooled: Any, labels: Any) -> float:
    return _cpu_s(lambda: model.fit(pooled, labels))


ITERATIONS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300, 500, 1000)

ENTRIES = (Entry("core", "CPU to 1e-4 and 1e-7: eight parties with masks, our centralised kernel, scikit-learn", core),)
