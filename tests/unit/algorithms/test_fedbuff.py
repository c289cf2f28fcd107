"""FedAsync and FedBuff on MAPA's parties."""

import math

import numpy as np
import pytest

from offbeat.algorithms.fedbuff import BufferedMean, LocalSteps, Mixing
from offbeat.algorithms.mapa import Upload, parties
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.message.codec import decode_state, encode_state
from offbeat.privacy.noise import SeededNoise
from offbeat.runtime.simulator import CostModel, Jitter, Simulator
from offbeat.runtime.simulator.checkers import EndsOrSaysWhy

MODEL = LinearModel("softmax", 4, 3)
LOCAL = LocalSteps(steps=5, rate=0.3, rows_each=8, strength=1e-3)
TRUTH = np.random.default_rng(0).standard_normal((4, 3))


def rows_of(seed, count=80):
    features = np.random.default_rng(seed).standard_normal((count, 4))
    return edge_data(features, (features @ TRUTH).argmax(axis=1))


DATA = {f"edge-{k}": rows_of(k + 1) for k in range(6)}


def upload(value, version):
    return Upload(np.full(2, value), version, 1, -1.0)


def test_mixing_moves_towards_what_the_edge_came_to():
    rule = Mixing(mixing=0.5, decay=1.0, lag_max=4)
    first = rule.apply(np.zeros(2), upload(-2.0, 0), 0, 0)
    assert first.tolist() == [1.0, 1.0]
    second = rule.apply(first, upload(-4.0, 0), 1, 1)
    assert second.tolist() == [1.75, 1.75]


def test_mixing_keeps_the_models_that_may_be_out_and_no_more():
    rule = Mixing(0.5, 0.5, lag_max=3)
    x = np.zeros(2)
    for version in range(20):
        x = rule.apply(x, upload(0.1, max(0, version - 3)), min(version, 3), version)
    assert set(rule.recent) == {17, 18, 19}


def test_buffer_steps_by_the_weighted_mean():
    rule = BufferedMean(buffer=2, rate=1.0)
    assert rule.apply(np.zeros(2), upload(1.0, 0), 0, 0) is None
    again = BufferedMean(2, 1.0)
    again.restore(decode_state(encode_state(rule.snapshot())))
    moved = again.apply(np.zeros(2), upload(1.0, 0), 3, 0)
    assert moved.tolist() == pytest.approx([-0.75, -0.75])


def test_local_steps_are_plain_gradient_descent():
    whole = LocalSteps(steps=3, rate=0.2, rows_each=80, strength=0.1)
    data, x = DATA["edge-0"], MODEL.start()
    for _ in range(3):
        total = MODEL.gradient_sum(x, data, np.arange(80))
        x = x - 0.2 * (total / 80 + 0.1 * x)
    change, _ = whole.release(MODEL, MODEL.start(), data, math.inf, SeededNoise(0, "a").stream(0))
    assert np.allclose(-change, x)
    assert "not differentially private" in whole.warning


@pytest.mark.parametrize(
    "rule,updates", [(Mixing(0.6, 0.5, lag_max=40), 120), (BufferedMean(10, 1.0), 30)], ids=["fedasync", "fedbuff"]
)
def test_both_learn_asynchronously(rule, updates):
    recipes = dict.fromkeys(DATA, EdgePrivacy(LOCAL))
    made = parties(MODEL, DATA, rule, recipes, updates=updates, lag_max=40, seed=0)
    outcome = Simulator(seed=0, costs=CostModel(jitter=Jitter("exponential")), checkers=(EndsOrSaysWhy(),)).run(made)
    assert made[0].version == updates and outcome.finished["cloud"].verdict == "passes"
    assert MODEL.accuracy(made[0].parameters, rows_of(99, 1000)) > 0.85


def test_fedasync_survives_a_snapshot():
    rule = Mixing(0.5, 0.5, 5)
    rule.apply(np.zeros(2), upload(1.0, 0), 0, 0)
    again = Mixing(0.5, 0.5, 5)
    again.restore(decode_state(encode_state(rule.snapshot())))
    assert np.array_equal(again.recent[0], rule.recent[0])
