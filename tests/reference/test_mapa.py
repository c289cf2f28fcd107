"""The simulated run against a slow loop transcribed from Algorithm 1.

With equal costs the simulator serves the edges in turn: the cyclic delay of the paper. The loop below keeps the K
models that are out, takes the edges round robin, and must give the same parameters to the last bits.
"""

import math

import numpy as np
import pytest

from offbeat.algorithms.mapa import stepping
from offbeat.algorithms.mapa.privacy import Paper, Sound, Unprotected, privacy_of_edges
from offbeat.algorithms.mapa.rates import AsyncRate, CentralRate, Constants, NoisyRate, StagedRate, SteadyRate
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.privacy.noise import SeededNoise
from offbeat.runtime.simulator import Simulator

EDGES, UPDATES, STRENGTH, SEED = 4, 120, 1e-3, 11
CONSTANTS = Constants(smoothness=1.0, deviation=2.0, radius=10.0, gap=math.log(3), lag_max=EDGES, batch=8)
MODEL = LinearModel("softmax", 5, 3)


def rows_of(seed, count=60):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, 5))
    return edge_data(features, (features @ rng.standard_normal((5, 3))).argmax(axis=1))


DATA = {f"edge-{k}": rows_of(k) for k in range(EDGES)}


def algorithm_1(rate, privacy, data):
    """Cloud and edges of Algorithm 1, served in turn."""
    recipes = privacy_of_edges(privacy, {name: rows.rows for name, rows in data.items()}, CONSTANTS.batch)
    rate.noise(max(recipe.mechanism.noise_per_clip(MODEL.dimension) for recipe in recipes.values()))
    x, names = MODEL.start(), list(data)
    out = dict.fromkeys(names, (x, rate.clip))
    numbers = dict.fromkeys(names, 0)
    for t in range(1, UPDATES + 1):
        k = names[(t - 1) % len(names)]
        pulled, clip = out[k]
        numbers[k] += 1
        stream = SeededNoise(SEED, k).stream(numbers[k])
        gradient, _ = recipes[k].mechanism.release(MODEL, pulled, data[k], clip, stream)
        gamma = rate.step(t)
        x = x * (1 - gamma * STRENGTH) - gamma * gradient
        rate.applied(-1)
        out[k] = (x, rate.clip)
    return x


def simulated(parties):
    outcome = Simulator(seed=1).run(parties)
    assert not outcome.stalled
    assert parties[0].version == UPDATES
    return parties[0].parameters


COMMON = {"constants": CONSTANTS, "updates": UPDATES, "strength": STRENGTH, "seed": SEED}
SOUND = Sound(epsilon=8.0, uploads=UPDATES // EDGES + 5)


@pytest.mark.parametrize("privacy", [Paper(0.5), SOUND], ids=["paper", "sound"])
def test_mapa(privacy):
    found, rate = (StagedRate(CONSTANTS, 4.0, deviation_within_clip=privacy is SOUND) for _ in range(2))
    found = simulated(stepping(MODEL, DATA, found, privacy=privacy, **COMMON))
    assert np.abs(found - algorithm_1(rate, privacy, DATA)).max() < 1e-12


def test_audp():
    found = simulated(stepping(MODEL, DATA, NoisyRate(CONSTANTS, 1.0), privacy=Paper(0.5), **COMMON))
    assert np.abs(found - algorithm_1(NoisyRate(CONSTANTS, 1.0), Paper(0.5), DATA)).max() < 1e-12


def test_asgd():
    found = simulated(stepping(MODEL, DATA, AsyncRate(CONSTANTS), **COMMON))
    assert np.abs(found - algorithm_1(AsyncRate(CONSTANTS), Unprotected(), DATA)).max() < 1e-12


def test_csgd_is_plain_stochastic_gradient_descent():
    pooled = rows_of(9, 200)
    found = simulated(stepping(MODEL, {"pool": pooled}, CentralRate(CONSTANTS), **COMMON))
    assert np.abs(found - algorithm_1(CentralRate(CONSTANTS), Unprotected(), {"pool": pooled})).max() < 1e-9


def test_cyclic_service_has_a_lag_of_one_less_than_the_edges():
    parties = stepping(MODEL, DATA, AsyncRate(CONSTANTS), **COMMON)
    simulated(parties)
    lags = parties[0].lags
    assert lags[EDGES - 1] == UPDATES - (EDGES - 1) and sum(lags) == UPDATES


def test_without_noise_the_whole_batch_finds_the_optimum():
    everything = Constants(1.0, 2.0, 10.0, math.log(3), EDGES, batch=60)
    parties = stepping(
        MODEL,
        DATA,
        SteadyRate(0.02),
        constants=everything,
        updates=6000,
        strength=0.05,
        seed=SEED,
    )
    Simulator(seed=1).run(parties)
    x = parties[0].parameters
    total = sum(MODEL.gradient_sum(x, rows, np.arange(60)) / 60 for rows in DATA.values()) / EDGES
    assert np.linalg.norm(total + 0.05 * x) < 0.02
