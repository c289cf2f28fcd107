"""Whole runs in virtual time: a thousand edges, every fault profile, and a ledger that never counts too little."""

import math

import numpy as np
import pytest

from offbeat.algorithms.fedbuff import BufferedMean, LocalSteps, Mixing
from offbeat.algorithms.mapa import MESSAGES, Edge, GradientStep, Upload, parties, stepping
from offbeat.algorithms.mapa.privacy import EdgePrivacy, Paper, Sound, Unprotected
from offbeat.algorithms.mapa.rates import AsyncRate, Constants, NoisyRate, StagedRate, SteadyRate
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.party.contract import Send
from offbeat.privacy.clipping import AdaptiveClip
from offbeat.privacy.ledger import Budget
from offbeat.privacy.mechanism import Gaussian, PaperNoise
from offbeat.runtime.simulator import PROFILES, CostModel, CrashAndRestore, Gone, Jitter, Simulator, profile
from offbeat.runtime.simulator.checkers import EndsOrSaysWhy, Violation
from offbeat.testing.algorithm_checks import Trial, check_algorithm

MODEL = LinearModel("logistic", 8)


def blobs(edges, rows, seed=0):
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(8)
    made = {}
    for k in range(edges):
        features = rng.standard_normal((rows, 8))
        made[f"edge-{k:04d}"] = edge_data(features, (features @ direction > 0).astype(int))
    return made


def constants(edges, batch=10):
    return Constants.from_public(MODEL, norm_max=4.0, strength=1e-4, lag_max=4 * edges, batch=batch)


NOISE = Gaussian(0.5, 0.17, 60)
RECIPE = EdgePrivacy(NOISE, Budget(200.0, 1e-5), ((NOISE.cost(), 400),))  # 400 releases cost epsilon 160


class LedgerCounts:
    """What was really released, message by message, against what every ledger says."""

    def __init__(self):
        self.released = {}

    def handled(self, now_s, party, event, effects):
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.body, Upload):
                numbers = self.released.setdefault(party.name, {})
                bytes_sent = effect.body.gradient.tobytes()
                if numbers.setdefault(effect.body.number, bytes_sent) != bytes_sent:
                    raise Violation(f"{party.name} sent two different uploads under number {effect.body.number}")
                if len(numbers) > party.ledger.releases:
                    raise Violation(f"{party.name} released {len(numbers)} and counted {party.ledger.releases}")

    def ended(self, outcome, parties):
        cloud = parties[0]
        if sum(cloud.applied.values()) != cloud.version:
            raise Violation(f"{sum(cloud.applied.values())} uploads applied in {cloud.version} versions")
        for name, count in cloud.applied.items():
            if count > len(self.released.get(name, {})):
                raise Violation(f"{name}: {count} applied, {len(self.released[name])} released")


def sound_run(faults=(), updates=60, seed=0, rebuild=True, edges=4):
    data = blobs(edges, 60)

    def build():
        rule = GradientStep(SteadyRate(0.2, clip=1.0), 1e-4)
        recipes = dict.fromkeys(data, RECIPE)
        return parties(MODEL, data, rule, recipes, updates=updates, lag_max=4 * edges, seed=seed, retry_s=0.05)

    spare = {party.name: party for party in build()} if rebuild else {}
    checkers = (EndsOrSaysWhy(), LedgerCounts())
    simulator = Simulator(
        seed=seed,
        costs=CostModel(jitter=Jitter("exponential")),
        faults=faults,
        checkers=checkers,
        rebuild=spare.__getitem__ if rebuild else None,
    )
    made = build()
    outcome = simulator.run(made)
    return made, outcome


@pytest.mark.parametrize("name", PROFILES)
def test_every_fault_profile_ends_and_counts_right(name):
    for seed in range(4):
        names = ["cloud", *blobs(4, 1)]
        faults = profile(name, names, np.random.default_rng(seed), until_s=0.4)
        made, outcome = sound_run(faults, seed=seed)
        assert outcome.finished, f"profile {name}, seed {seed}"
        if name in ("calm", "duplicate", "reorder", "delay"):
            assert made[0].version == 60, f"profile {name}, seed {seed}"


def test_the_same_seed_gives_the_same_run():
    one, two = sound_run(seed=3)[1], sound_run(seed=3)[1]
    assert one.digest == two.digest
    assert sound_run(seed=4)[1].digest != one.digest


def test_a_crashed_cloud_goes_on_where_it_was():
    made, outcome = sound_run((CrashAndRestore("cloud", 0.02, 0.1),), rebuild=False)
    assert made[0].version == 60 and outcome.finished["cloud"].verdict == "passes"


def test_a_lost_edge_does_not_stop_the_others():
    made, outcome = sound_run((Gone("edge-0001", 0.005),))
    assert made[0].version == 60 and outcome.lost == ("edge-0001",)


def test_spent_edges_stop_and_the_others_go_on():
    data = blobs(3, 60)
    plan = Sound(epsilon={"edge-0000": 1.0, "edge-0001": 400.0, "edge-0002": 400.0}, uploads=10)
    made = stepping(
        MODEL,
        data,
        SteadyRate(0.2, clip=1.0),
        privacy=plan,
        constants=constants(3),
        updates=1000,
        seed=0,
        retry_s=0.05,
    )
    outcome = Simulator(seed=0, checkers=(EndsOrSaysWhy(), LedgerCounts())).run(made)
    edges = {party.name: party for party in made[1:]}
    assert edges["edge-0000"].ledger.releases == 10
    assert outcome.finished["edge-0000"].verdict == "budget"
    assert all(edge.ledger.epsilon() <= edge.ledger.budget.epsilon for edge in edges.values())
    assert outcome.finished["cloud"].verdict == "budget"
    assert made[0].version == sum(edge.uploads for edge in edges.values())


def test_late_uploads_are_refused_and_the_run_goes_on():
    data = blobs(6, 40)
    tight = Constants.from_public(MODEL, norm_max=4.0, strength=1e-4, lag_max=6, batch=5)
    made = stepping(MODEL, data, AsyncRate(tight), constants=tight, updates=300, seed=0)
    costs = CostModel(slow={"edge-0000": 20.0})
    outcome = Simulator(seed=0, costs=costs, checkers=(EndsOrSaysWhy(),)).run(made)
    assert made[0].refused > 0 and made[0].version == 300
    assert made[0].applied.get("edge-0000", 0) <= 1
    assert outcome.finished["cloud"].verdict == "passes"


def test_edges_may_join_late():
    data = blobs(3, 40)
    made = stepping(MODEL, data, AsyncRate(constants(3)), constants=constants(3), updates=200, seed=0)
    late = next(party for party in made if isinstance(party, Edge) and party.name == "edge-0002")
    late.joins_after_s = 0.02
    outcome = Simulator(seed=0, checkers=(EndsOrSaysWhy(),)).run(made)
    assert 0 < made[0].applied["edge-0002"] < made[0].applied["edge-0000"]
    assert outcome.finished["edge-0002"].verdict == "passes"


def test_a_thousand_edges():
    data = blobs(1000, 20)
    many = constants(1000, batch=10)
    made = stepping(
        MODEL,
        data,
        StagedRate(many, 4.0, deviation_within_clip=False),
        privacy=Paper(1.0),
        constants=many,
        updates=5000,
        seed=0,
    )
    costs = CostModel(jitter=Jitter("lognormal"))
    outcome = Simulator(seed=0, costs=costs, checkers=(EndsOrSaysWhy(),)).run(made)
    cloud = made[0]
    assert cloud.version == 5000 and len(cloud.applied) == 1000
    mean_lag = sum(lag * count for lag, count in enumerate(cloud.lags)) / 5000
    assert 700 < mean_lag < 1100
    assert not outcome.stalled


def test_sound_training_learns_and_stays_within_its_budget():
    data = blobs(5, 400)
    test = blobs(1, 2000, seed=0)["edge-0000"]
    start = Constants.from_public(MODEL, norm_max=4.0, strength=1e-4, lag_max=20, batch=40)
    made = stepping(
        MODEL,
        data,
        SteadyRate(0.5, clip=1.0),
        privacy=Sound(epsilon=3.0, uploads=40),
        constants=start,
        updates=200,
        seed=0,
    )
    Simulator(seed=0, checkers=(EndsOrSaysWhy(), LedgerCounts())).run(made)
    assert MODEL.accuracy(made[0].parameters, test) > 0.85
    for edge in made[1:]:
        assert edge.statement()["epsilon"] <= 3.0
    plain = stepping(MODEL, data, SteadyRate(0.5), privacy=Unprotected(), constants=start, updates=200, seed=0)
    Simulator(seed=0).run(plain)
    assert MODEL.accuracy(plain[0].parameters, test) > MODEL.accuracy(made[0].parameters, test) - 0.02
    assert math.isfinite(MODEL.loss(plain[0].parameters, test))


def recipes_for(data, mechanism=None):
    recipe = RECIPE if mechanism is None else EdgePrivacy(mechanism)
    return dict.fromkeys(data, recipe)


LOCAL = LocalSteps(steps=3, rate=0.3, rows_each=8, strength=1e-3)
RULES = {
    "steady, sound": (lambda: GradientStep(SteadyRate(0.2, clip=1.0), 1e-4), None),
    "adaptive, sound": (lambda: GradientStep(SteadyRate(0.2, adaptive=AdaptiveClip()), 1e-4), None),
    "mapa": (lambda: GradientStep(StagedRate(constants(4), 4.0), 1e-4), PaperNoise(0.5, 10)),
    "audp": (lambda: GradientStep(NoisyRate(constants(4), 1.0), 1e-4), PaperNoise(0.5, 10)),
    "fedasync": (lambda: Mixing(0.6, 0.5, 16), LOCAL),
    "fedbuff": (lambda: BufferedMean(3, 1.0), LOCAL),
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_keeps_the_house_rules(name):
    """Same seed, same run; snapshots are complete; every fault profile ends; nothing passes the codec changed."""
    make, mechanism = RULES[name]
    data = blobs(4, 60)

    def build():
        return parties(MODEL, data, make(), recipes_for(data, mechanism), updates=40, lag_max=16, seed=5, retry_s=0.05)

    def converged(outcome, ended):
        done = ended[0].version == 40 or outcome.finished["cloud"].verdict == "peer-lost"
        return "" if done else f"the cloud stopped at {ended[0].version}"

    def checkers():
        return [LedgerCounts()] if name == "steady, sound" else []

    asked = check_algorithm(Trial(build, MESSAGES, checkers, converged), seeds=(0, 1))
    assert len(asked) == 2 + 2 * len(PROFILES)
