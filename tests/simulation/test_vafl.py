"""VAFL under a broken network: it ends, it learns, and nothing leaves twice."""

import numpy as np
import pytest

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import VARIANTS, Vafl, one_hot
from offbeat.algorithms.vafl.messages import Upload
from offbeat.learning.embeddings import Adam, AdditiveHead, LinearEmbedding, Sgd
from offbeat.message.codec import encode_state
from offbeat.party.contract import Send
from offbeat.privacy.embedding import PrivateEmbedding
from offbeat.randomness import stream
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint
from offbeat.runtime.simulator import PROFILES, CostModel, CrashAndRestore, Gone, Jitter, Simulator, profile
from offbeat.runtime.simulator.checkers import EndsOrSaysWhy, Violation
from offbeat.testing.embedding_cases import ReleasedOnce
from offbeat.testing.simulate import Case, run_case

COSTS = CostModel(slow={"bo": 3.0}, jitter=Jitter("exponential"))
NAMES = ("server", "ana", "bo", "cem")


def parties(seed=0, rows=60, **changes):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows + 20, 9))
    targets = one_hot(np.argmax(x @ rng.normal(size=(9, 3)), axis=1), 3)
    features = {name: x[:rows, 3 * i : 3 * i + 3] for i, name in enumerate(NAMES[1:])}
    test = {name: x[rows:, 3 * i : 3 * i + 3] for i, name in enumerate(NAMES[1:])}
    options = {"batch": 10, "passes": 6, "optimiser": Sgd(0.3), "head_optimiser": Sgd(0.3), "retry_s": 0.05} | changes
    embeddings = {name: LinearEmbedding(3, 3) for name in features}
    server, clients = vafl.build(
        features,
        targets[:rows],
        embeddings,
        AdditiveHead(3),
        Vafl(**options),
        seed=seed,
        test_features=test,
        test_targets=targets[rows:],
    )
    return [server, *clients]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("seed", range(2))  # one and two in flight; `make simulate` draws many
def test_fault_profiles(variant, name, seed):
    everyone = parties(seed, variant=variant, delay_bound=1.0, in_flight=1 + seed % 2)
    faults = profile(name, NAMES, stream(seed, "test"), until_s=0.5)
    before = vafl.objective(everyone[0], everyone[1:])
    checkers = [EndsOrSaysWhy(), ReleasedOnce()]
    outcome = Simulator(seed=seed, costs=COSTS, faults=faults, checkers=checkers, detect_s=0.02).run(everyone)
    verdicts = {finish.verdict for finish in outcome.finished.values()}
    assert "passes" in verdicts and verdicts <= {"passes", "peer-lost"}
    assert vafl.objective(everyone[0], everyone[1:]) < 0.75 * before


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_seed_is_a_run(variant):
    def digest():
        return (
            Simulator(seed=3, costs=COSTS, faults=profile("swarm", NAMES, stream(3), 0.5))
            .run(parties(3, variant=variant))
            .digest
        )

    assert digest() == digest()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("victim", ["server", "bo"])
def test_killed_and_restored_from_its_snapshot(variant, victim):
    """A fresh object takes up the snapshot; releases made before are not made again."""
    checker = ReleasedOnce()
    built = {party.name: party for party in parties(variant=variant, delay_bound=0.5)}
    final = dict(built)

    def rebuild(name):
        final[name] = next(p for p in parties(variant=variant, delay_bound=0.5) if p.name == name)
        return final[name]

    faults = [CrashAndRestore(victim, at_s=at, down_s=0.05) for at in (0.011, 0.093, 0.171)]
    outcome = Simulator(
        seed=5, costs=COSTS, faults=faults, checkers=[EndsOrSaysWhy(), checker], rebuild=rebuild, detect_s=0.02
    ).run(list(built.values()))
    assert {finish.verdict for finish in outcome.finished.values()} == {"passes"}
    assert final[victim] is not built[victim]
    assert vafl.objective(final["server"], [final[name] for name in NAMES[1:]]) < 0.75


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(6))
def test_a_client_that_returns_from_its_log_repeats_no_release(variant, seed):
    changes = {"variant": variant, "delay_bound": 0.5, "noise": 0.3, "in_flight": 1 + seed % 3, "passes": 8}
    final = {}

    def rebuild(name):
        final[name] = next(party for party in parties(seed, **changes) if party.name == name)
        return final[name]

    faults = [CrashAndRestore("bo", at_s=at, down_s=0.02) for at in stream(seed, "crashes").uniform(0.005, 0.08, 4)]
    checkers = [EndsOrSaysWhy(), ReleasedOnce()]
    simulator = Simulator(seed=seed, costs=COSTS, faults=faults, checkers=checkers, rebuild=rebuild, detect_s=0.01)
    outcome = simulator.run(parties(seed, **changes))
    assert outcome.finished["server"].verdict == "passes"
    assert final["bo"].releases.newest > 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_drawn_cases(variant):
    failures = [run_case(Case(seed, name, variant)) for seed, name in enumerate(PROFILES)]
    assert [result for result in failures if result.failure] == []


def test_a_release_with_other_bytes_is_noticed():
    ana, checker = parties()[1], ReleasedOnce()
    rows = np.array([0])
    checker.handled(0.0, ana, None, [Send("server", Upload(1, 0, -1, True, rows, np.zeros((1, 3))))])
    checker.handled(0.0, ana, None, [Send("server", Upload(1, 0, -1, True, rows, np.zeros((1, 3))))])
    with pytest.raises(Violation, match="release 1 a second time with other bytes"):
        checker.handled(0.0, ana, None, [Send("server", Upload(1, 0, -1, True, rows, np.ones((1, 3))))])


def test_a_crash_in_the_synchronous_variant_changes_no_number():
    """A client that returns from its snapshot takes exactly the steps it would have taken."""
    calm, broken = parties(variant="vafl-sync"), parties(variant="vafl-sync")
    Simulator(seed=5, costs=COSTS).run(calm)
    faults = [CrashAndRestore("bo", at_s=at, down_s=0.03) for at in (0.012, 0.061, 0.148, 0.2)]
    Simulator(seed=5, costs=COSTS, faults=faults, detect_s=0.02).run(broken)
    for one, other in zip(calm[1:], broken[1:], strict=True):
        np.testing.assert_array_equal(one.weights.trained["weight"], other.weights.trained["weight"])


def test_networks_with_buffers_come_back_from_a_checkpoint(tmp_path):
    """Weights, batch-norm statistics and Adam's memory of a killed client, in memory and through files on disk."""
    torch = pytest.importorskip("torch", reason="networks need the deep extra")
    from offbeat.learning.networks import TorchEmbedding, TorchHead, mlp

    def network(seed):
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 3)
        )

    def built():
        rng = np.random.default_rng(1)
        x = rng.normal(size=(60, 9)).astype(np.float32)
        targets = one_hot(np.argmax(x[:, :3], axis=1), 3)
        features = {name: x[:, 3 * i : 3 * i + 3] for i, name in enumerate(NAMES[1:])}
        embeddings = {name: TorchEmbedding(network(i), (3,)) for i, name in enumerate(features)}
        options = Vafl(variant="vafl-sync", batch=10, passes=4, optimiser=Adam(0.01), head_optimiser=Adam(0.01))
        server, clients = vafl.build(features, targets, embeddings, TorchHead(mlp(9, 3), [3] * 3, 3), options)
        return [server, *clients]

    calm, broken = built(), {party.name: party for party in built()}
    Simulator(seed=5, costs=COSTS).run(calm)
    final = dict(broken)

    def rebuild(name):
        final[name] = next(party for party in built() if party.name == name)
        return final[name]

    faults = [CrashAndRestore("bo", at_s=0.03, down_s=0.02), CrashAndRestore("bo", at_s=0.09, down_s=0.02)]
    Simulator(seed=5, costs=COSTS, faults=faults, rebuild=rebuild, detect_s=0.01).run(list(broken.values()))
    one, other = calm[2], final["bo"]
    assert other is not broken["bo"]
    for part in ("trained", "kept"):
        a, b = getattr(one.weights, part), getattr(other.weights, part)
        assert a.keys() == b.keys() and a
        assert all(torch.equal(a[name], b[name]) for name in a)
    write_checkpoint(tmp_path, "bo", other.snapshot())
    again = rebuild("bo")
    again.restore(read_checkpoint(tmp_path, "bo"))
    assert encode_state(again.snapshot()) == encode_state(other.snapshot())


@pytest.mark.parametrize("variant", ["vafl", "vafl-tsync"])
def test_a_client_that_is_gone_stops_nobody_and_is_flagged(variant):
    everyone = parties(variant=variant, passes=20)
    outcome = Simulator(seed=1, costs=COSTS, faults=[Gone("cem", at_s=0.05)], detect_s=0.02).run(everyone)
    assert not outcome.stalled
    assert outcome.finished["server"].verdict == "passes"
    flagged = [value for _, _, name, value in outcome.observations if name == "predicted_without"]
    assert flagged == [{"cem": 20}]
    assert everyone[0].prediction.scores[0].shape == (20, 3)


def test_the_synchronous_baseline_says_who_is_missing():
    everyone = parties(variant="vafl-sync", retries_max=3)
    outcome = Simulator(seed=1, costs=COSTS, faults=[Gone("cem", at_s=0.05)], detect_s=0.02).run(everyone)
    assert outcome.finished["server"].verdict == "peer-lost"
    assert "cem" in outcome.finished["server"].reason


def test_without_the_server_clients_give_up():
    everyone = parties(retries_max=3)
    outcome = Simulator(seed=1, costs=COSTS, faults=[Gone("server", at_s=0.05)], detect_s=0.02).run(everyone)
    assert not outcome.stalled
    assert {outcome.finished[name].verdict for name in NAMES[1:]} == {"peer-lost"}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["calm", "loss", "duplicate", "crash"])
def test_the_cap_holds_whatever_the_network_does(variant, name):
    private = PrivateEmbedding(noise=0.5, gradient_noise=1.0, uploads_max=4)
    everyone = parties(variant=variant, passes=50, private=private, delay_bound=0.5)
    faults = profile(name, NAMES, stream(2, "cap"), until_s=0.3)
    outcome = Simulator(seed=2, costs=COSTS, faults=faults, checkers=[EndsOrSaysWhy()], detect_s=0.02).run(everyone)
    assert outcome.finished["server"].verdict == "budget"
    for client in everyone[1:]:
        assert client.ledger.released.max() <= 4
        assert client.ledger.statement()["epsilon"] <= private.epsilon_max
