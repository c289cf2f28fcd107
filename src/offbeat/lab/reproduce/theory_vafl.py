"""VAFL's theorems, measured: four clients with columns of the rows of `theory.py`, the last one four times slower.

| Theorem                                       | What is measured                                                    |
|-----------------------------------------------|---------------------------------------------------------------------|
| 2, 4: nonconvex, 1/sqrt(K)                    | the mean squared gradient of K passes with a step of c/sqrt(K)      |
| 3, 5: strongly convex, 1/K                    | the gap after K passes with a step of 1/K                           |
| 6: noise inside makes the loss smooth         | how fast the slope of a disturbed ReLU changes, beside the bound    |

2 and 3 are about delays that are bounded, 4 and 5 about random ones without a bound.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Client, Server, Vafl
from offbeat.data.vertical import VerticalData
from offbeat.families.vertical_data import load_data
from offbeat.jobs.vertical import Job
from offbeat.lab.catalogue import LabOptions
from offbeat.lab.reproduce.measure import Course, Kept, curve, power
from offbeat.learning.embeddings import Disturbance, Embedding, Sgd
from offbeat.run.experiment import run_experiment
from offbeat.runtime.simulator import CostModel, Jitter, Simulator

Row = dict[str, Any]
BOUNDED, RANDOM = "one client four times slower", "exponential delays, one client four times slower"
CONVEX = {BOUNDED: "VAFL Theorem 3", RANDOM: "VAFL Theorem 5"}
NONCONVEX = {BOUNDED: "VAFL Theorem 2", RANDOM: "VAFL Theorem 4"}
HORIZONS, ROWS, NETWORK_ROWS = (2, 4, 8, 16, 32), 1000, 400
STEPS = (0.3, 1.0)  # c: that of the step c/sqrt(K)
HIDDEN, WIDTH = 6, 3
NOISES = (0.1, 1.0)
SHORT = {BOUNDED: "bounded", RANDOM: "random"}
POWERS, GRADIENTS = "SGD and VAFL, strongly convex: gap", "Not convex: mean squared gradient"


def vafl_rows(course: Course, slow: dict[str, float], options: LabOptions, kept: Kept) -> list[Row]:
    rows = []
    for world, theorem in CONVEX.items():
        rows.append(kept.get(f"vafl {world}", partial(_convex, course, slow, world, theorem, options)))
    for world, theorem in NONCONVEX.items():
        for step in STEPS[: 1 if world == RANDOM or options.quick else None]:
            piece = partial(_nonconvex, course.data, slow, world, theorem, step, options)
            rows.append(kept.get(f"vafl networks {step:g} {world}", piece))
    return [*rows, *map(_smoothed, NOISES)]


def _horizons(options: LabOptions) -> tuple[int, ...]:
    return HORIZONS[::2] if options.quick else HORIZONS


def _seeds(options: LabOptions) -> Iterable[int]:
    return range(options.seed, options.seed + (1 if options.quick else 3))


def _jitter(world: str) -> Any:
    return "exponential" if world == RANDOM else "none"


# -- strongly convex -------------------------------------------------------------------------------------------------


def _convex(course: Course, slow: dict[str, float], world: str, theorem: str, options: LabOptions) -> Row:
    """With an additive head over linear embeddings VAFL's problem is the linear one: its optimum is known."""
    options.say(f"{theorem}: {world}")
    data = msgspec.structs.replace(course.job.data, limit_rows=ROWS)
    job: Job = msgspec.structs.replace(course.job, data=data)
    few = Course(load_data(job), job)  # the same rows with each seed: the gap is to their optimum
    runtime = msgspec.structs.replace(job.runtime, slow=slow, jitter=_jitter(world))
    found = []
    for passes in _horizons(options):
        gaps = []
        for seed in _seeds(options):
            mine = Job(
                seed=seed, algorithm="vafl", data=data, penalty=job.penalty, batch=job.batch, intercept=False,
                passes=float(passes), step=1.0 / passes, looks_per_pass=1.0, runtime=runtime,
            )  # fmt: skip
            last = run_experiment(few.data, mine).record.curve[-1].objective
            assert last is not None, "VAFL's observer tells the objective"
            gaps.append(last - few.optimum)
        found.append((float(passes), float(np.mean(gaps))))
    slope = power(found)
    return {
        "setting": f"{theorem}: vafl, {world}, strongly convex: gap after K passes, slope of logarithms",
        "ours": slope,
        "published": "1/K",
        "verdict": "holds" if slope < -0.75 else "not seen here",
        "curve": curve(POWERS, f"vafl, {SHORT[world]} delays", found),
    }


# -- networks --------------------------------------------------------------------------------------------------------


def _nonconvex(
    data: VerticalData, slow: dict[str, float], world: str, theorem: str, step: float, options: LabOptions
) -> Row:
    """Networks with tanh inside, so that the loss is smooth; each horizon K has its step of c/sqrt(K)."""
    options.say(f"{theorem}: {world}")
    found = []
    for passes in _horizons(options):
        means = [_mean_square(data, slow, world, passes, step, seed) for seed in _seeds(options)]
        found.append((float(passes), float(np.mean(means))))
    slope = power(found)
    return {
        "setting": f"{theorem}: vafl, networks, {world}, a step of {step:g}/sqrt(K): mean squared gradient "
        "of K passes, slope of logarithms",
        "ours": slope,
        "published": "1/sqrt(K), if the step is at most 1/(4 (1 + D) L)",
        "verdict": "holds" if slope < -0.45 else "not with so long a step" if step > STEPS[0] else "not seen here",
        "curve": curve(GRADIENTS, f"vafl, {SHORT[world]} delays, c = {step:g}", found),
    }


def _mean_square(data: VerticalData, slow: dict[str, float], world: str, passes: int, step: float, seed: int) -> float:
    """The mean of |gradient of F|^2 over a run, looked at as often in each pass."""
    features = {name: np.asarray(data.train[name])[:NETWORK_ROWS] for name in data.names}
    targets = (data.y_train[:NETWORK_ROWS] > 0).astype(np.float64)[:, None]
    rule = Sgd(step / math.sqrt(passes))
    bound = None if world == RANDOM else Vafl.delay_bound
    options = Vafl(batch=16, passes=float(passes), optimiser=rule, head_optimiser=rule, delay_bound=bound, retry_s=1e9)
    embeddings, head = _networks(features, seed)
    server, clients = vafl.build(features, targets, embeddings, head, options, seed=seed)
    squares: dict[int, float] = {}

    def look(now: float) -> float:
        if server.iteration:
            squares.setdefault(
                int(8 * server.rows_done / (server.rows * len(clients))), squared_gradient(server, clients)
            )
        return 2e-3

    costs = CostModel(slow=slow, jitter=Jitter(_jitter(world)))
    Simulator(seed=seed, costs=costs, digest=False, timeline_max=0).run([server, *clients], look)
    return float(np.mean(list(squares.values())))


def _networks(features: dict[str, Any], seed: int) -> tuple[dict[str, Embedding], Any]:
    from torch import nn

    from offbeat.learning.first_weights import first_weights
    from offbeat.learning.networks import TorchEmbedding, TorchHead

    with first_weights(seed):
        embeddings: dict[str, Embedding] = {
            name: TorchEmbedding(
                nn.Sequential(nn.Linear(rows.shape[1], HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, WIDTH)), rows.shape[1:]
            )
            for name, rows in features.items()
        }
        top = nn.Sequential(nn.Tanh(), nn.Linear(WIDTH * len(features), 1))
    return embeddings, TorchHead(top, [WIDTH] * len(features), 1, loss_name="logistic")


def squared_gradient(server: Server, clients: list[Client]) -> float:
    """|gradient of F|^2 at everyone's newest weights, over all rows."""
    rows = np.arange(server.rows)
    passes = [client.embedding.forward(client.weights, client.features, rows, Disturbance()) for client in clients]
    wanted = range(len(clients))
    top = server.head.evaluate(server.weights, [each.embedding for each in passes], server.targets, wanted)
    total = _squares(server.head.to_arrays(top.gradient))
    for i, (client, mine) in enumerate(zip(clients, passes, strict=True)):
        total += _squares(client.embedding.to_arrays(client.embedding.gradient(mine, top.derivatives[i])))
    return total


def _squares(tensors: dict[str, Any]) -> float:
    return sum(float(np.sum(np.asarray(value, dtype=np.float64) ** 2)) for value in tensors.values())


# -- noise that smooths ----------------------------------------------------------------------------------------------


def _smoothed(noise: float) -> Row:
    """The slope of E relu(x + Z) is the chance that x + Z is above zero. Z is what `Perturb` draws."""
    import torch

    from offbeat.learning.networks import Perturb

    layer = Perturb(noise)
    layer.generator = torch.Generator().manual_seed(0)
    drawn = np.sort(layer(torch.zeros(400_000, dtype=torch.float64)).numpy())
    places = np.linspace(-2 * noise, 2 * noise, 81)
    slopes = 1 - np.searchsorted(drawn, -places) / len(drawn)
    steepest, bound = float(np.abs(np.diff(slopes) / np.diff(places)).max()), 2 / noise
    return {
        "setting": f"VAFL Theorem 6: a ReLU with uniform noise of c = {noise:g}: how fast its slope changes at most",
        "ours": steepest,
        "published": f"at most {bound:g}",
        "verdict": "holds" if steepest <= bound else "fails",
    }
