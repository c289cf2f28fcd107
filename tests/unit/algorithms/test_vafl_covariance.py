"""Private VAFL with a covariance: what is released, that it is released once, charged to every record, and found out
by an attack where it is not."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_matrix

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Vafl, one_hot
from offbeat.algorithms.vafl.messages import Gradient, Upload
from offbeat.algorithms.vafl.noise import noisy_covariance
from offbeat.errors import BadJob
from offbeat.learning.embeddings import AdditiveHead, LinearEmbedding, Sgd
from offbeat.learning.grid import Grid
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Compute, Computed, Received, Send, Started
from offbeat.privacy.accountant import GaussianRelease
from offbeat.privacy.audit import epsilon_shown
from offbeat.privacy.embedding import PrivateEmbedding, RecordLedger, calibrate, whitening
from offbeat.privacy.noise import SeededNoise
from offbeat.runtime.simulator import CrashAndRestore, Simulator

PRIVATE = calibrate(8.0, 1e-5, 1, gradient_clip=2.0, embedding_share=0.1, covariance_share=0.25)


class Noted(SeededNoise):
    """Noise that repeats, and what it was asked for."""

    def __init__(self, name):
        super().__init__(0, name)
        self.asked = []

    def stream(self, number, about=b""):
        self.asked.append((number, about))
        return super().stream(number, about)


def build(rows=12, columns=2, kind=LinearEmbedding, **changes):
    rng = np.random.default_rng(0)
    x, targets = rng.normal(size=(rows, 2 * columns)), one_hot(np.arange(rows) % 3, 3)
    features = {"ana": x[:, :columns], "bo": x[:, columns:]}
    usual = {"batch": rows, "passes": 1.0, "optimiser": Sgd(0.5), "private": PRIVATE}
    embeddings = {name: kind(columns, 3) for name in features}
    server, clients = vafl.build(features, targets, embeddings, AdditiveHead(3), Vafl(**usual | changes))
    return server, {client.name: client for client in clients}


def run_jobs(party, effects):
    done = []
    for effect in effects:
        done += run_jobs(party, party.handle(Computed(effect.ticket))) if isinstance(effect, Compute) else [effect]
    return done


def uploads(effects):
    return [effect.body for effect in effects if isinstance(effect, Send) and isinstance(effect.body, Upload)]


# -- the sum --------------------------------------------------------------------------------------------------------


def outer_by_hand(row, grid):
    """One row's outer product: clipped, rounded, and left out where it is too long all the same."""
    product = np.outer(row, row)
    norm = float(np.linalg.norm(product))
    scaled = product * min(1.0, grid.reach(product.size) / norm) if norm > 0 else product
    whole = np.rint(scaled / grid.step)
    return whole if (whole**2).sum() <= grid.bound**2 else np.zeros_like(whole)


@pytest.mark.parametrize("bias", [False, True])
def test_the_sum_is_that_of_every_rows_outer_product(bias):
    rng, grid = np.random.default_rng(1), Grid(0.01, 900)
    x = np.round(rng.normal(size=(9, 3)) * rng.choice([0.1, 1, 5], (9, 1)), 1)
    embedding = LinearEmbedding(3, 2, bias)
    rows = np.hstack([x, np.ones((9, 1))]) if bias else x
    wanted = sum(outer_by_hand(row, grid) for row in rows)
    assert np.abs(embedding.grid_moments(embedding.place(x), grid) - wanted).max() <= 9, "a rounded half each"
    sparse = embedding.grid_moments(embedding.place(csr_matrix(x)), grid)
    np.testing.assert_array_equal(sparse, embedding.grid_moments(x, grid))


@given(
    arrays(np.float64, (3, 4), elements=st.floats(allow_nan=True, allow_infinity=True, width=64)),
    st.integers(20, 2**20),
)
@settings(max_examples=60, deadline=None)
def test_no_row_moves_the_sum_by_more_than_its_bound(rows, bound):
    """Whatever it holds: so replacing one moves the sum by at most twice the bound, rounding included."""
    grid, embedding = Grid(1.0 / bound, bound), LinearEmbedding(4, 2)
    for row in rows:
        moved = embedding.grid_moments(row[None], grid)
        assert int((moved.astype(object) ** 2).sum()) <= bound**2


def test_the_inverse_is_that_of_the_covariance_where_there_is_hardly_any_noise():
    private = PrivateEmbedding(1.0, 1.0, 1, covariance_noise=1e-3, covariance_clip=10.0)
    x = np.array([[2.0, 0.0], [0.0, 1.0], [2.0, 2.0], [1.0, -1.0]] * 5000)
    noisy = noisy_covariance(private, LinearEmbedding(2, 3), x, SeededNoise(0, "x"))
    exact = np.linalg.inv(x.T @ x / len(x) + 1e-3 * 100 / 2 * np.eye(2))
    np.testing.assert_allclose(whitening(private, noisy, len(x)), exact, rtol=1e-3)


def test_what_is_only_noise_is_kept_down():
    private = calibrate(1.0, 1e-5, 1, embedding_share=0.1, covariance_share=0.25)
    noisy = noisy_covariance(private, LinearEmbedding(30, 3), np.zeros((100, 30)), SeededNoise(0, "x"))
    largest = np.linalg.eigvalsh(noisy + noisy.T).max() * private.covariance_grid(30).step / 200
    found = np.linalg.eigvalsh(whitening(private, noisy, 100))
    assert found.min() > 0 and found.max() < 4 / largest


# -- the client -----------------------------------------------------------------------------------------------------


def test_a_step_is_the_noisy_gradient_times_the_inverse():
    _, clients = build()
    ana = clients["ana"]
    (upload,) = uploads(run_jobs(ana, ana.handle(Started())))
    assert not upload.embedding.any(), "weights of zero say nothing, and need no noise"
    metric = whitening(PRIVATE, noisy_covariance(PRIVATE, ana.embedding, ana.features, ana.gradient_noise_source), 12)
    np.testing.assert_array_equal(ana.metric, metric)
    derivative = np.random.default_rng(2).normal(size=(12, 3))
    summed = ana.embedding.grid_sum(ana.passes[upload.release], derivative, PRIVATE.gradient_grid)["weight"]
    noise = PRIVATE.gradient_grid_noise.draw(ana.gradient_noise_source.stream(upload.release), 6).reshape(3, 2)
    run_jobs(ana, ana.handle(Received("server", Gradient(upload.release, 0, 0.0, 0, derivative))))
    wanted = -0.5 * (summed + noise) * PRIVATE.gradient_grid.step / 12 @ metric
    np.testing.assert_allclose(ana.weights.trained["weight"], wanted, rtol=1e-12)


def test_weights_that_have_moved_are_embedded_with_noise():
    _, clients = build(batch=6)
    ana = clients["ana"]
    (first,) = uploads(run_jobs(ana, ana.handle(Started())))
    answer = Gradient(first.release, 0, 0.0, 0, np.ones((6, 3)))
    (second,) = uploads(run_jobs(ana, ana.handle(Received("server", answer))))
    exact = ana.embedding.infer(ana.weights, ana.features, second.rows)
    assert not first.embedding.any() and not np.allclose(second.embedding, exact, atol=1e-3)


@pytest.mark.parametrize("variant", vafl.VARIANTS)
def test_the_covariance_of_a_client_is_one_release_however_often_it_is_killed(variant):
    """A client that comes back from its log draws the same noise for the same sum, and no other."""
    sources = {name: Noted(name) for name in ("ana", "bo")}

    def built(name):
        server, clients = build(variant=variant, rows=60, batch=20, passes=1.0, retry_s=0.05)
        for client in clients.values():
            client.gradient_noise_source = sources[client.name]
        return {"server": server, **clients}[name]

    faults = [CrashAndRestore("bo", at_s=at, down_s=0.01) for at in (0.001, 0.004, 0.02)]
    outcome = Simulator(seed=1, faults=faults, rebuild=built, detect_s=0.005).run(
        [built(name) for name in ("server", "ana", "bo")]
    )
    assert outcome.finished["server"].verdict in ("passes", "budget")
    for source in sources.values():
        assert len({about for number, about in source.asked if number == 0}) == 1
    assert {number for number, _ in sources["ana"].asked} > {0}, "steps have numbers of their own"


def test_a_client_that_comes_back_keeps_its_covariance():
    _, clients = build()
    ana = clients["ana"]
    ana.gradient_noise_source = Noted("ana")
    run_jobs(ana, ana.handle(Started()))
    state = decode_state(encode_state(ana.snapshot()))
    _, again = build()
    again["ana"].gradient_noise_source = ana.gradient_noise_source
    again["ana"].restore(state)
    again["ana"].handle(Started(resumed=True))
    np.testing.assert_array_equal(again["ana"].metric, ana.metric)
    assert len(ana.gradient_noise_source.asked) == 1, "nothing is drawn again"


# -- what it costs --------------------------------------------------------------------------------------------------


def test_every_record_is_charged_and_the_statement_says_so():
    _, clients = build()
    for client in clients.values():
        cost = client.ledger.cost(0)
        assert cost[GaussianRelease(PRIVATE.covariance_noise)] == 1, "before anything has left"
        said = client.privacy()
        assert (said["covariances"], said["covariance_clip"]) == (1, "sqrt(columns)")
        assert said["mu"] == pytest.approx(2 / said["covariance_noise"])


def test_the_shares_add_up_to_the_budget():
    assert PRIVATE.epsilon_max == pytest.approx(8.0, rel=1e-6) and PRIVATE.epsilon_max <= 8.0
    whole = PRIVATE.mu(1, 1) ** 2
    assert (2 / PRIVATE.covariance_noise) ** 2 == pytest.approx(0.25 * whole)
    same = PrivateEmbedding(2.0, 2.0, 1, covariance_noise=2.0)
    assert same.cost(3, 4) == {GaussianRelease(2.0): 8}
    ledger = RecordLedger(PRIVATE, 3)
    ledger.spend(np.array([1]), step=True)
    said = ledger.statement()
    by_hand = said["releases"] * (said["clip"] / said["noise"]) ** 2 + said["steps"] / said["gradient_noise"] ** 2
    assert said["mu"] == pytest.approx(2 * math.sqrt(by_hand + 1 / said["covariance_noise"] ** 2))


def test_an_attack_finds_a_covariance_that_is_not_charged():
    """Two worlds: a record whose columns go together, or against each other. What their covariances show is within what
    is charged, and more than the rest of the budget would allow."""
    private = calibrate(16.0, 1e-5, 1, embedding_share=0.02, covariance_share=0.96, covariance_clip=1.0)
    uncharged = PrivateEmbedding(private.noise, private.gradient_noise, 1)
    others, half = np.full((3, 2), 0.3), math.sqrt(0.5)

    def scores(record, runs, name):
        x = np.vstack([others, record])
        released = [noisy_covariance(private, LinearEmbedding(2, 3), x, SeededNoise(r, name)) for r in range(runs)]
        return np.array([float(one[0, 1] + one[1, 0]) for one in released])

    shown = epsilon_shown(scores([half, half], 1500, "one"), scores([half, -half], 1500, "two"), 1e-5).epsilon
    assert uncharged.epsilon_max < shown <= private.epsilon_max


def test_what_has_no_covariance_is_refused_with_what_to_do():
    with pytest.raises(BadJob, match=r"at most 1,000 columns; a client here has 1,001.*Give uploads_max"):
        build(columns=1001)
    with pytest.raises(BadJob, match="covariance_share"):
        calibrate(1.0, 1e-5, 1, embedding_share=0.5, covariance_share=0.5)
    with pytest.raises(BadJob, match="covariance_noise = 0"):
        PrivateEmbedding(1.0, 1.0, 1, covariance_noise=0)
