"""Digits recovered from one upload: the attack of MAPA's Figure 4, on uploads as printed and on sound ones.

For a linear model and a batch of one, an output's released gradient is (residual x row, residual): dividing its
weights' part by its intercept's part gives the row back. With several outputs the strongest intercept is used.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from offbeat.jobs.rules import model_of
from offbeat.lab.reproduce.mapa_runs import BATCH, DELTA, Courses, MapaSetting, job_of, parties_of
from offbeat.learning.grid import Grid, round_rows
from offbeat.learning.horizontal import EdgeData, LinearModel, edge_data
from offbeat.privacy.accountant import calibrate_multiplier
from offbeat.privacy.clipping import clip_average
from offbeat.privacy.discrete import GridNoise
from offbeat.privacy.noise import SeededNoise, exponential_norm_noise
from offbeat.runtime.simulator import Simulator

EPSILONS = (0.01, 0.1, 1.0)
DIGITS = 4
SIDE = 28
SOUND_EPSILON = 3.0

Pictures = dict[str, list[np.ndarray]]
Release = Callable[[np.ndarray, float], np.ndarray]


def inverted_digits(
    courses: Courses, model_name: str, iterations: Sequence[int], seed: int, say: Callable[[str], None]
) -> tuple[Pictures, dict[str, list[float]]]:
    """Pictures by row (first the digit, then what is recovered at each iteration), and all correlations by row."""
    pictures: Pictures = {}
    likeness: dict[str, list[float]] = {}
    for epsilon in EPSILONS:
        name = f"(paper) epsilon {epsilon:g}"
        stops = trained_models(courses, model_name, epsilon, iterations, seed)
        pictures[name], likeness[name] = _recover_all(
            courses, model_name, stops, seed, partial(as_printed, epsilon=epsilon, seed=seed)
        )
        say(f"mapa-fig4: {model_name}, epsilon {epsilon:g}: likeness {np.mean(likeness[name]):.2f}")
    multiplier = calibrate_multiplier(SOUND_EPSILON, DELTA, iterations[-1] // 5, BATCH / 12_000)
    name = f"sound, epsilon {SOUND_EPSILON:g} in all"
    pictures[name], likeness[name] = _recover_all(
        courses, model_name, stops, seed, partial(soundly, multiplier=multiplier, seed=seed)
    )
    return pictures, likeness


def trained_models(
    courses: Courses, model_name: str, epsilon: float, iterations: Sequence[int], seed: int
) -> list[tuple[np.ndarray, float]]:
    """MAPA in paper mode: (model, clip) after each of the iterations."""
    setting = MapaSetting("mnist", model_name, "mapa", "paper", epsilon, updates=iterations[-1], seed=seed)
    rows, _ = courses.rows(setting)
    cloud, edges = parties_of(job_of(setting, rows), rows)
    stops: list[tuple[np.ndarray, float]] = []

    def look(time_s: float) -> float:
        if len(stops) < len(iterations) and cloud.version >= iterations[len(stops)]:
            stops.append((cloud.parameters, cloud.rule.clip))
        return 2e-4

    Simulator(seed=seed).run([cloud, *edges], look)
    while len(stops) < len(iterations):
        stops.append((cloud.parameters, cloud.rule.clip))
    return stops


def as_printed(clip: float, epsilon: float, seed: int) -> Release:
    """Clip the gradient, add the printed noise of the stage: scale DeltaS/epsilon, DeltaS = 2 clip/batch."""
    source = SeededNoise(seed, f"inversion {epsilon}")

    def release(gradient: np.ndarray, number: float) -> np.ndarray:
        noise = exponential_norm_noise(source.stream(int(number)), gradient.size, 2 * clip / (BATCH * epsilon))
        return clip_average(gradient, clip) + noise

    return release


def soundly(clip: float, multiplier: float, seed: int) -> Release:
    """One record clipped at most at 1, and the noise of a sound upload (its sum over a batch of one)."""
    source, noise = SeededNoise(seed, "inversion sound"), GridNoise.of(multiplier)
    bound = math.isqrt(noise.squared)
    grid = Grid(min(clip, 1.0) / bound, bound)

    def release(gradient: np.ndarray, number: float) -> np.ndarray:
        whole = round_rows(gradient[None, :], grid)[0] + noise.draw(source.stream(int(number)), gradient.size)
        released: np.ndarray = whole * grid.step
        return released

    return release


def _recover_all(
    courses: Courses,
    model_name: str,
    stops: Sequence[tuple[np.ndarray, float]],
    seed: int,
    mechanism: Callable[[float], Release],
) -> tuple[list[np.ndarray], list[float]]:
    setting = MapaSetting("mnist", model_name, "mapa", seed=seed)
    rows, test = courses.rows(setting)
    model = model_of(job_of(setting, rows))
    assert isinstance(model, LinearModel)
    shown: list[np.ndarray] = []
    likeness: list[float] = []
    for digit in range(DIGITS):
        for stop, (parameters, clip) in enumerate(stops):
            row = 17 * digit + 3  # four test digits, the same at every stop
            truth = np.asarray(test.features[row], dtype=np.float64)
            gradient = model.gradient_sum(parameters, _one(test, row), np.array([0]))
            recovered = recover(model, mechanism(clip)(gradient, digit * len(stops) + stop))
            likeness.append(correlation(recovered, truth))
            if digit == 0:
                if not shown:
                    shown.append(truth.reshape(SIDE, SIDE))
                shown.append(np.clip(recovered, 0, 1).reshape(SIDE, SIDE))
    return shown, likeness


def _one(data: EdgeData, row: int) -> EdgeData:
    return edge_data(data.features[row : row + 1], data.labels[row : row + 1])


def recover(model: LinearModel, released: np.ndarray) -> np.ndarray:
    """The row, from the output whose intercept's gradient is largest."""
    table = released.reshape(model.outputs, model.features + 1)
    strongest = table[int(np.abs(table[:, -1]).argmax())]
    divisor = strongest[-1] if abs(strongest[-1]) > 1e-12 else 1e-12
    found: np.ndarray = strongest[:-1] / divisor
    return found


def correlation(one: np.ndarray, two: np.ndarray) -> float:
    if one.std() == 0 or two.std() == 0:
        return 0.0
    return float(np.corrcoef(one, two)[0, 1])
