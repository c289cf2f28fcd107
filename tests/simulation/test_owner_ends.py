"""The owner of a party asks it to end the run: every party ends, and says who stopped it."""

import numpy as np
import pytest

from offbeat.algorithms import vafl
from offbeat.algorithms.fedbuff import BufferedMean, LocalSteps
from offbeat.algorithms.mapa import GradientStep, parties
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.algorithms.mapa.rates import SteadyRate
from offbeat.algorithms.vafl import VARIANTS, Vafl
from offbeat.learning.embeddings import AdditiveHead, LinearEmbedding, Sgd
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.orgs.train_embedding import CombinedParty
from offbeat.party.contract import END, Finish, Woken
from offbeat.party.linear_options import LinearOptions
from offbeat.privacy.mechanism import NoNoise
from offbeat.randomness import stream
from offbeat.runtime.simulator import CostModel, Gone, Jitter, Simulator, profile
from offbeat.runtime.simulator.checkers import EndsOrSaysWhy
from offbeat.testing.small_problem import build_parties, draw_problem

COSTS = CostModel(jitter=Jitter("exponential"))
FAULTS = ("calm", "loss", "duplicate", "reorder", "crash", "suspicion", "swarm")
CLIENTS = ("ana", "bo", "cem")
EDGES = ("edge-0", "edge-1", "edge-2")


class StoppedByOwner:
    """A party that gets `Woken(END)` after so many events."""

    def __init__(self, party, after):
        self.party, self.name, self.left = party, party.name, after

    def handle(self, event):
        effects = self.party.handle(event)
        self.left -= 1
        if self.left == 0 and not any(isinstance(effect, Finish) for effect in effects):
            effects = [*effects, *self.party.handle(Woken(END))]
        return effects

    def snapshot(self):
        return self.party.snapshot()

    def restore(self, state):
        self.party.restore(state)


def run(made, stopped, after, faults=()):
    watched = [StoppedByOwner(party, after) if party.name == stopped else party for party in made]
    return Simulator(seed=after, costs=COSTS, faults=faults, checkers=[EndsOrSaysWhy()], detect_s=0.02).run(watched)


def verdicts(outcome):
    return {name: finish.verdict for name, finish in outcome.finished.items()}


# -- VAFL ------------------------------------------------------------------------------------------------------------


def embedding_parties(variant, **changes):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 6))
    features = {name: x[:40, 2 * i : 2 * i + 2] for i, name in enumerate(CLIENTS)}
    test = {name: x[40:, 2 * i : 2 * i + 2] for i, name in enumerate(CLIENTS)}
    targets = (x.sum(axis=1) > 0).astype(float)
    options = Vafl(variant=variant, batch=8, passes=1e6, optimiser=Sgd(0.3), retry_s=0.05, **changes)
    embeddings = {name: LinearEmbedding(2, 1) for name in CLIENTS}
    server, clients = vafl.build(
        features,
        targets[:40],
        embeddings,
        AdditiveHead(1, "logistic"),
        options,
        test_features=test,
        test_targets=targets[40:],
    )
    return [server, *clients]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stopped", ["server", "bo"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_vafl_ends_on_every_side(variant, stopped, fault):
    names = ("server", *CLIENTS)
    for after in (1, 2, 3, 40):
        made = embedding_parties(variant)
        outcome = run(made, stopped, after, profile(fault, names, stream(after, fault), until_s=0.3))
        assert verdicts(outcome) == dict.fromkeys(names, "stopped"), after
        assert outcome.finished["server"].reason == f"stopped by the owner of '{stopped}'"
        assert len(np.concatenate(made[0].prediction.scores)) == 20


def test_a_label_holder_that_is_server_and_client_in_one_ends_the_run():
    server, *clients = embedding_parties("vafl", rates={"ana": 50.0})
    house = CombinedParty([server, clients[0]])
    outcome = run([house, *clients[1:]], "server", 30)
    assert verdicts(outcome) == dict.fromkeys(("server", "bo", "cem"), "stopped")


def test_a_client_that_cannot_reach_the_server_ends_alone():
    made = embedding_parties("vafl", retries_max=3)
    outcome = run(made, "bo", 20, [Gone("server", at_s=0.001)])
    assert verdicts(outcome)["bo"] == "peer-lost"


# -- a cloud and its edges --------------------------------------------------------------------------------------------

MODEL = LinearModel("logistic", 2)
RULES = {
    "mapa": (lambda: GradientStep(SteadyRate(0.2, clip=1.0), 1e-4), NoNoise(5)),
    "fedbuff": (lambda: BufferedMean(3, 1.0), LocalSteps(steps=2, rate=0.3, rows_each=4, strength=1e-3)),
}


def edge_parties(rule, updates=10**9, edges=EDGES):
    make, mechanism = RULES[rule]
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal((20, 2)) for name in edges}
    data = {name: edge_data(x, (x.sum(axis=1) > 0).astype(int)) for name, x in rows.items()}
    recipes = dict.fromkeys(data, EdgePrivacy(mechanism))
    return parties(MODEL, data, make(), recipes, updates=updates, lag_max=50, seed=1, retry_s=0.05)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rule", RULES)
def test_the_cloud_ends_the_run_on_every_side(rule, fault):
    for after in (1, 2, 40):
        names = ("cloud", *EDGES)
        outcome = run(edge_parties(rule), "cloud", after, profile(fault, names, stream(after, fault), until_s=0.3))
        allowed = {"stopped"} if fault == "calm" else {"stopped", "peer-lost"}
        assert verdicts(outcome)["cloud"] == "stopped" and set(verdicts(outcome).values()) <= allowed, after


@pytest.mark.parametrize("rule", RULES)
def test_an_edge_ends_alone_and_the_others_go_on(rule):
    for after in (1, 2, 3, 30):
        made = edge_parties(rule, updates=200)
        outcome = run(made, "edge-1", after)
        assert verdicts(outcome) == {"cloud": "passes", "edge-0": "passes", "edge-1": "stopped", "edge-2": "passes"}
        assert outcome.finished["edge-1"].reason == "stopped by the owner of 'edge-1'"
        assert made[2].uploads < 200 / 3


def test_the_run_ends_when_its_last_edge_is_stopped():
    outcome = run(edge_parties("mapa", edges=EDGES[:1]), "edge-0", 30)
    assert verdicts(outcome) == {"cloud": "stopped", "edge-0": "stopped"}


def test_the_run_ends_when_its_last_edge_is_stopped_and_the_others_are_lost():
    outcome = run(edge_parties("mapa", edges=EDGES[:2]), "edge-0", 60, [Gone("edge-1", at_s=0.001)])
    assert verdicts(outcome) == {"cloud": "peer-lost", "edge-0": "stopped"}


# -- the linear family ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["vfb2-svrg", "afsgd-vp"])
def test_linear_methods_end_on_every_side(method):
    problem = draw_problem(1, parties=4, rows=60)
    for stopped in problem.names:
        options = LinearOptions(method="svrg" if "svrg" in method else "sgd", batch=16, passes=1e6)
        outcome = run(build_parties(method, problem, options, 1), stopped, 200)
        assert verdicts(outcome) == dict.fromkeys(problem.names, "stopped")
        assert outcome.finished[stopped].reason == f"stopped by the owner of '{stopped}'"
