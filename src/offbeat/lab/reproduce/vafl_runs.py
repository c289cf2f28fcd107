"""One run of VAFL in virtual time, looked at on a fixed clock, kept as plain values so that a long job can be resumed.

One unit of time is what a client of ordinary speed needs for one batch, forward and backward. Every variant is
looked at at the same times and judged by the same crossing rule; clients have the same step in all of them.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Client, Server, Vafl
from offbeat.lab.reproduce.vafl_problems import VaflProblem
from offbeat.metrics.curves import CurveRow, to_target
from offbeat.metrics.machine import offbeat_version
from offbeat.metrics.plain import encode_plain, replace_file
from offbeat.party.contract import Compute, Effect, Event, Party
from offbeat.randomness import stream
from offbeat.runtime.simulator import CostModel, Jitter, Link, Simulator

Told = Callable[[float], None]
LATENCY = 0.05
SERVER_SPEED = 20.0  # the paper delays clients only; a server is the larger machine
NEVER = 1e9


def _nobody(share: float) -> None:
    pass


@dataclass(frozen=True)
class Delays:
    """How long clients take: the last is `slowest` times slower than the first, the rest in even steps between.

    `waits`: for how many units the first and the last client wait on average before a batch, a Poisson number of them
    each time. `jitter`: a random factor of mean one on every computation; "poisson" is a number of equal delays.
    """

    name: str
    slowest: float = 1.0
    jitter: str = "none"
    cv: float = 1.0
    waits: tuple[float, float] | None = None

    @property
    def short(self) -> str:
        """For the names of files."""
        if self.waits is not None:
            return f"waits-{self.waits[0]:g}-{self.waits[1]:g}"
        return f"{self.jitter}-{self.slowest:g}"

    def costs(self, problem: VaflProblem, batch: int) -> CostModel:
        factors = np.linspace(1.0, self.slowest, len(problem.clients))
        return CostModel(
            overhead_s=0.0,
            per_sample_s=0.0,
            per_nonzero_s=1.0 / unit_of(problem, batch),
            link=Link(latency_s=LATENCY),
            slow=dict(zip(problem.clients, factors.tolist(), strict=True)) | {"server": 1.0 / SERVER_SPEED},
            jitter=Jitter(self.jitter, self.cv),
        )

    def delayed(self, clients: Sequence[Client], problem: VaflProblem, trial: "VaflTrial") -> list[Party]:
        """The clients, each with its own waits where there are any."""
        if self.waits is None:
            return list(clients)
        unit = unit_of(problem, trial.batch)
        means = np.linspace(*self.waits, len(clients)).tolist()
        return [
            Waiting(client, mean, unit, stream(trial.seed, client.name, "waits"))
            for client, mean in zip(clients, means, strict=True)
        ]


def unit_of(problem: VaflProblem, batch: int) -> float:
    """The work of one unit of time: one batch, forward and backward, at a client of mean size."""
    return 3 * batch * float(np.mean([embedding.work for embedding in problem.embeddings().values()]))


class Waiting:
    """A client that waits before each forward pass: a Poisson number of units, of its own mean."""

    def __init__(self, client: Client, mean: float, unit: float, rng: np.random.Generator) -> None:
        self.name, self.client, self.mean, self.unit, self.rng = client.name, client, mean, unit, rng
        self.snapshot, self.restore = client.snapshot, client.restore

    def handle(self, event: Event) -> list[Effect]:
        return [self._delayed(effect) for effect in self.client.handle(event)]

    def _delayed(self, effect: Effect) -> Effect:
        if not isinstance(effect, Compute) or effect.nonzeros != effect.samples * self.client.embedding.work:
            return effect
        wait = round(self.unit * float(self.rng.poisson(self.mean)))
        return Compute(effect.ticket, effect.samples, effect.nonzeros + wait, effect.job)


PUBLISHED = Delays("Poisson delays, means of 1 to 4 units", waits=(1.0, 4.0))
BURSTS = Delays("rare long delays, clients up to 4 times slower", 4.0, "poisson", cv=2.0)
EXPONENTIAL = Delays("exponential delays, clients up to 4 times slower", 4.0, "exponential")
NONE = Delays("no delays")


@dataclass(frozen=True)
class VaflTrial:
    """What to run. `noise` is the deviation c of the last layer's noise: perturbed, no privacy claim. `head` is the
    head's step as a multiple of the clients'."""

    variant: str
    delays: Delays = PUBLISHED
    batch: int = 100
    units: float = 500.0
    looks: int = 40
    noise: float = 0.0
    seed: int = 0
    head: float = 1.0


@dataclass(frozen=True)
class VaflRun:
    """What came of it: looks as (time, loss, metric), and counts."""

    looks: list[tuple[float, float, float]]
    passes: float
    iterations: int
    uploads_max: int
    lag_mean: float
    lag_max: int
    verdict: str
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def final_loss(self) -> float:
        return self._mean(1)

    @property
    def best_metric(self) -> float:
        """The best of all looks: the same rule for every side of a comparison."""
        return max(look[2] for look in self.looks)

    def _mean(self, column: int) -> float:
        """Over the last three looks, as the crossing rule has it."""
        return float(np.mean([look[column] for look in self.looks[-3:]]))

    def loss_at(self, time: float) -> float:
        """The mean of the three looks up to this time."""
        until = [loss for t, loss, _ in self.looks if t <= time]
        return float(np.exp(np.mean(np.log(until[-3:]))))

    def time_to(self, loss: float) -> float | None:
        rows = [CurveRow(t, 0.0, 0, objective=value) for t, value, _ in self.looks]
        return to_target(rows, loss * (1 + 1e-9), quantity="objective")


def run_trial(problem: VaflProblem, trial: VaflTrial, told: Told = _nobody, **changes: Any) -> VaflRun:
    """Train once in the simulator; the arithmetic is real, the clock is virtual. `told` hears how much is done."""
    server, clients = parties_of(problem, trial, **changes)
    rows = None
    if problem.looked_at < problem.rows:
        rows = np.random.default_rng(7).permutation(problem.rows)[: problem.looked_at]
    looks: list[tuple[float, float, float]] = []

    def look(now: float) -> float | None:
        loss = vafl.objective(server, clients, problem.targets, rows)
        metric = vafl.score(server.head, vafl.joint_scores(server, clients), problem.test_targets)[problem.metric]
        looks.append((now, loss, metric))
        told(now / trial.units)
        return trial.units / trial.looks if now < trial.units * (1 - 1e-9) and math.isfinite(loss) else None

    costs = trial.delays.costs(problem, trial.batch)
    outcome = Simulator(seed=trial.seed, costs=costs, digest=False, timeline_max=0).run(
        [server, *trial.delays.delayed(clients, problem, trial)], look
    )
    if outcome.time_s > looks[-1][0]:  # it ended by itself, between two looks
        look(outcome.time_s)
    return _run_of(server, clients, looks)


def parties_of(problem: VaflProblem, trial: VaflTrial, **changes: Any) -> tuple[Server, list[Client]]:
    """Linear embeddings begin at weights of zero: all are zero, as the server's table is, and need no first upload."""
    options = Vafl(
        variant=trial.variant,
        batch=trial.batch,
        passes=NEVER,
        optimiser=problem.optimiser,
        head_optimiser=replace(problem.optimiser, step=trial.head * problem.optimiser.step),
        penalty=problem.penalty,
        noise=trial.noise,
        retry_s=NEVER,
        chunk=1024,
    )
    if not problem.network:
        options = replace(options, initial_upload=False, delay_bound=None)
    server, clients = vafl.build(
        problem.features,
        problem.targets,
        problem.embeddings(),
        problem.head(),
        replace(options, **changes),
        seed=trial.seed,
        test_features=problem.test_features,
    )
    return server, clients


def _run_of(server: Server, clients: Sequence[Client], looks: list[tuple[float, float, float]]) -> VaflRun:
    summaries = [server.table.lag_summary(i) for i in range(len(clients))]
    return VaflRun(
        looks=looks,
        passes=server.rows_done / (server.rows * len(clients)),
        iterations=server.iteration,
        uploads_max=max(math.ceil(client.releases.newest * client.order.batch / client.rows) for client in clients),
        lag_mean=float(np.mean([summary["lag_mean"] for summary in summaries])),
        lag_max=max(summary["lag_max"] for summary in summaries),
        verdict=server.verdict,
        extra={"privacy": clients[0].privacy()} if clients[0].ledger is not None else {},
    )


# -- keeping results, so that an interrupted job goes on where it was -----------------------------------------------


def kept(folder: Path, name: str, what: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result stored under this name if it was computed from the same `what`, else a new one, stored at once."""
    key = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()
    path = folder / f"{name}.json"
    if path.is_file():
        stored = json.loads(path.read_text())
        if stored.get("key") == key:
            return dict(stored["result"])
    result = compute()
    replace_file(path, encode_plain({"key": key, "what": dict(what), "result": result}))
    return result


def kept_run(
    folder: Path, problem: VaflProblem, trial: VaflTrial, name: str, told: Told = _nobody, **changes: Any
) -> VaflRun:
    what = {
        "problem": problem.name,
        "data": problem.fingerprint(),
        "source": problem.source,
        "offbeat": offbeat_version(),
        "trial": asdict(trial),
        "optimiser": repr(problem.optimiser),
        "changes": {key: repr(value) for key, value in changes.items()},
    }
    stored = kept(folder, name, what, lambda: asdict(run_trial(problem, trial, told, **changes)))
    return VaflRun(**{**stored, "looks": [tuple(look) for look in stored["looks"]]})
