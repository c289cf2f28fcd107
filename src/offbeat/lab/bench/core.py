"""`offbeat bench core`: CPU seconds to a relative sub-optimality of 1e-4, everything in one process and one run.

Our methods go through the whole protocol in the simulator: eight parties, pairwise masks, every message handled. Beside
them stand our own centralised kernel on the pooled data and scikit-learn's solvers, each at the smallest number of
iterations that reaches the target. What is timed is process CPU time; evaluation is not timed (a first, watched run
finds where the target is met; the timed runs go just as far without a watcher), nor is compilation. For our methods
the sounding of the step size is part of the run, and building the parties is shown apart.
"""

import gc
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from offbeat.algorithms import afsgd_vp, vfb2
from offbeat.data.matrix import stack_columns
from offbeat.data.vertical import vertical_from_dataset
from offbeat.families.setting import Setting, prepare
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2
from offbeat.party.contract import Party
from offbeat.party.member import LinearOptions
from offbeat.party.survey import Problem
from offbeat.runtime.simulator import CostModel, Link, Simulator

PARTIES = 8
LABELLED = 3
STRENGTH = 1e-4
RELATIVE_TARGET = 1e-4
LOOK_S = 0.02

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
    by_curvature: bool = False


OURS = (
    Way("vfb2-svrg, labels at 3", vfb2, "svrg", False, LABELLED),
    Way("vfb2-svrg, labels at 3, by curvature", vfb2, "svrg", False, LABELLED, by_curvature=True),
    Way("vfb2-saga, labels at 3", vfb2, "saga", False, LABELLED),
    Way("vfb2-svrg, labels at 1", vfb2, "svrg", False, 1),
    Way("vfb2-svrg, labels at 1, by curvature", vfb2, "svrg", False, 1, by_curvature=True),
    Way("vfb-svrg, labels at 3 (synchronous)", vfb2, "svrg", True, LABELLED),
    Way("afsvrg-vp", afsgd_vp, "svrg", False, PARTIES),
    Way("fsvrg-vp (synchronous)", afsgd_vp, "svrg", True, PARTIES),
)


@dataclass(frozen=True)
class Row:
    """One solver on one set."""

    data: str
    solver: str
    cpu_s: float | None
    times_saga: float | None  # how many times less CPU than scikit-learn's saga in this run
    note: str


def core(options: LabOptions) -> LabResult:
    """Every solver on every set."""
    from threadpoolctl import threadpool_limits

    rows: list[Row] = []
    sets, repeats = (SETS[1:2], 1) if options.quick else (SETS, 5)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns at every cut-off that is not convergence
        for title, name, preparation, split in sets:
            rows += _one_set(title, _setting(name, preparation, split, options.data_dir), repeats, options.say)
    return LabResult([asdict(row) for row in rows], notes=NOTES)


NOTES = (
    "Process CPU seconds to (f - f*) / f* <= 1e-4, l2 logistic regression, lambda 1e-4, no intercept, rows scaled to "
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


def _one_set(title: str, setting: Setting, repeats: int, progress: Callable[[str], None]) -> list[Row]:
    pooled: Any = stack_columns([setting.train[name] for name in setting.names])
    _, best = central.optimum(pooled, setting.y_train, LOGISTIC, STRENGTH)
    goal = best * (1 + RELATIVE_TARGET)
    solvers: list[tuple[str, _Solver | None]] = [
        *((way.title, _ours(setting, goal, way)) for way in OURS),
        ("our centralised kernel, SVRG", _central(pooled, setting, goal, "svrg")),
        ("our centralised kernel, SAGA", _central(pooled, setting, goal, "saga")),
        *((f"scikit-learn {name}", _sklearn(pooled, setting, goal, **how)) for name, how in SKLEARN),
    ]
    times: dict[str, list[float]] = {name: [] for name, _ in solvers}
    for turn in range(repeats):
        progress(f"{title}: round {turn + 1} of {repeats}")
        for name, solver in solvers:
            if solver is not None:
                times[name].append(solver.time())
    saga = median(times["scikit-learn saga"]) if times["scikit-learn saga"] else None
    return [_row(title, name, solver, times[name], saga) for name, solver in solvers]


def _row(title: str, name: str, solver: "_Solver | None", times: Sequence[float], saga: float | None) -> Row:
    if solver is None:
        return Row(title, name, None, None, "did not reach the target")
    cpu_s = median(times)
    return Row(title, name, cpu_s, saga / cpu_s if saga is not None else None, solver.note)


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


def _parties(setting: Setting, way: Way) -> list[Party]:
    problem = Problem(setting.rows, LOGISTIC, L2, STRENGTH, setting.y_train)
    options = LinearOptions(
        method=way.method, passes=1000.0, certify_passes=1000.0, by_curvature=way.by_curvature, patience_s=1e6
    )
    parties: list[Party] = way.family.build(
        setting.new_blocks(),
        problem,
        options,
        synchronous=way.synchronous,
        labels_at=setting.names[: way.labelled],
        seed=1,
        secrets_seed=1,
    )
    return parties


def _ours(setting: Setting, goal: float, way: Way) -> _Solver | None:
    costs = CostModel(link=Link(latency_s=1e-3))
    parties: list[Any] = _parties(setting, way)
    met: list[float] = []

    def look(now: float) -> float | None:
        blocks = {party.name: party.member.block for party in parties}
        reached = setting.objective(blocks, {name: block.weights() for name, block in blocks.items()}) <= goal
        if reached:
            met.append(now)
        return None if reached or parties[0].member.role.passes() > 60 else LOOK_S

    Simulator(costs=costs, timeline_max=0, digest=False).run(parties, look)
    if not met:
        return None
    conduct, passes = parties[0].member.conduct, parties[0].member.role.passes()
    updates = parties[0].member.block.version

    def timed() -> float:
        fresh = _parties(setting, way)
        simulator = Simulator(costs=costs, timeline_max=0, digest=False, until_s=met[0])
        return _cpu_s(lambda: simulator.run(fresh))

    building = _cpu_s(lambda: _parties(setting, way))
    note = f"{passes:.1f} passes, {updates} updates of a block, batch {conduct.batch}, building {building:.3f} s"
    return _Solver(timed, note)


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

ENTRIES = (Entry("core", "CPU to 1e-4: eight parties with masks, our centralised kernel, scikit-learn", core),)
