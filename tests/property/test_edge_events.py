"""Any message, at any moment, from anybody, between a cloud and its edges: a party takes it, drops and counts it, or
refuses it and names the sender, unchanged. The model stays finite; no upload leaves that the ledger has not counted."""

from functools import cache

import numpy as np
import pytest
from arbitrary import Letters, check_refusals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offbeat.algorithms.fedbuff import BufferedMean, LocalSteps, Mixing
from offbeat.algorithms.mapa import MESSAGES, Cloud, GradientStep, Upload, parties
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.algorithms.mapa.rates import Constants, NoisyRate, StagedRate, SteadyRate
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.party.contract import Send
from offbeat.privacy.clipping import AdaptiveClip
from offbeat.privacy.ledger import Budget
from offbeat.privacy.mechanism import Gaussian, PaperNoise

MODEL = LinearModel("logistic", 2)
CONSTANTS = Constants.from_public(MODEL, norm_max=4.0, strength=1e-4, lag_max=6, batch=5)
NOISE = Gaussian(5.0, 1.0, 20)
COUNTED = Gaussian(5.0, 1.0, 20, AdaptiveClip())
LOCAL = LocalSteps(steps=2, rate=0.3, rows_each=4, strength=1e-3)
RULES = {
    "sound": (lambda: GradientStep(SteadyRate(0.2, clip=1.0), 1e-4, lag=2), NOISE, 12),
    "adaptive": (lambda: GradientStep(SteadyRate(0.2, adaptive=AdaptiveClip()), 1e-4), COUNTED, 8),
    "mapa": (lambda: GradientStep(StagedRate(CONSTANTS, 4.0), 1e-4), PaperNoise(0.5, 10), None),
    "audp": (lambda: GradientStep(NoisyRate(CONSTANTS, 1.0), 1e-4), PaperNoise(0.5, 10), None),
    "fedasync": (lambda: Mixing(0.6, 0.5, 6), LOCAL, None),
    "fedbuff": (lambda: BufferedMean(3, 1.0), LOCAL, None),
}


def builder(rule):
    make, mechanism, uploads = RULES[rule]
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal((20, 2)) for name in ("edge-0", "edge-1", "edge-2")}
    data = {name: edge_data(x, (x.sum(axis=1) > 0).astype(int)) for name, x in rows.items()}
    recipe = EdgePrivacy(mechanism)
    if uploads is not None:
        recipe = EdgePrivacy(mechanism, Budget(1.0, 1e-5), ((mechanism.cost(), uploads),))

    def build():
        return parties(MODEL, data, make(), dict.fromkeys(data, recipe), updates=30, lag_max=6, seed=1)

    return build


@cache
def drawn(rule):
    """How to build the parties, and what they say to each other in a whole run."""
    build = builder(rule)
    return build, Letters(build, MESSAGES)


class Watched:
    """The cloud's model, clip and noise are numbers; an edge's ledger has counted every upload that left."""

    def __init__(self):
        self.numbers = set()

    def __call__(self, party, effects):
        if isinstance(party, Cloud):
            assert np.isfinite(party.parameters).all() and np.isfinite(party.averaged).all()
            assert party.rule.clip > 0
            return
        self.numbers |= {e.body.number for e in effects if isinstance(e, Send) and isinstance(e.body, Upload)}
        if party.mechanism.cost() is not None:
            assert len(self.numbers) <= party.ledger.releases


@pytest.mark.parametrize("rule", RULES)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_anything_is_taken_or_refused_without_a_trace(rule, data):
    name = data.draw(st.sampled_from(["cloud", "cloud", "edge-0"]))
    build, letters = drawn(rule)
    check_refusals(data, build, letters, name, timers=data.draw(st.booleans()), after=Watched())
