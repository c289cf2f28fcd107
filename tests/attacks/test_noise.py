"""Attacks on noise: each is run as an attacker would, against what leaves a party, and must get no more than chance.

The attacker knows everything but the party's rows and its noise: the code, the model, the clip, the grid. Where an
attack worked on noise drawn as doubles, the same attack is run on such noise first, so that a test cannot pass because
the attack is broken.
"""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import norm

from offbeat.algorithms import vafl
from offbeat.algorithms.mapa import Edge, Hello, Model, Upload, noise_source
from offbeat.algorithms.mapa.privacy import EdgePrivacy, Sound, privacy_of_edges
from offbeat.algorithms.vafl import Client, Vafl
from offbeat.algorithms.vafl.messages import Ask, Gradient, PredictAsked, Refresh, Resume, Resumed
from offbeat.algorithms.vafl.messages import Upload as Embedded
from offbeat.algorithms.vafl.releases import LIFE
from offbeat.errors import UnexpectedEvent
from offbeat.families.networks import automatic_step
from offbeat.lab.bench.edge_audit import CLIP, Doubles, clipped
from offbeat.learning.embeddings import AdditiveHead, LinearEmbedding, Weights
from offbeat.learning.grid import Grid, round_rows
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.message.codec import decode_state, encode_state
from offbeat.orgs.keyed_noise import KeyedNoise
from offbeat.orgs.scoring import GivenScores, noisy_scores
from offbeat.party.contract import Compute, Computed, Received, Send, Started
from offbeat.privacy import accountant
from offbeat.privacy.accountant import GaussianRelease, PureRelease, calibrate_multiplier
from offbeat.privacy.audit import epsilon_shown, reachable_as_doubles
from offbeat.privacy.clipping import AdaptiveClip, clipped_sum
from offbeat.privacy.embedding import calibrate
from offbeat.privacy.mechanism import Gaussian
from offbeat.privacy.noise import SeededNoise, SystemNoise, gaussian_noise

SOURCE = SeededNoise(0, "attacks")
"""The sampler is the same whatever its words come from; with these a test always ends the same way."""


def two_tables(rows=40, columns=300):
    rng = np.random.default_rng(0)
    table = rng.random((rows, columns))
    table = 4 * table / np.linalg.norm(table, axis=1, keepdims=True)
    other, labels = table.copy(), rng.integers(0, 3, rows)
    other[0] = other[0, ::-1]
    return edge_data(table, labels), edge_data(other, labels)


# -- which of two tables is it? One row is known to be one or the other ----------------------------------------------


def worlds_told_apart(mechanism, trials=40):
    """How often the world whose sum explains more coordinates is the true one, of `trials`."""
    worlds, model = two_tables(), LinearModel("softmax", 300, 3)
    start, deviation = model.start(), mechanism.multiplier * CLIP
    sums = [clipped(model, start, data) for data in worlds]
    differ, right = sums[0] != sums[1], 0.0
    for trial in range(trials):
        released, _ = mechanism.release(model, start, worlds[trial % 2], CLIP, SOURCE.stream(trial))
        fits = [reachable_as_doubles(released, value, deviation, mechanism.batch)[differ].mean() for value in sums]
        right += 0.5 if fits[0] == fits[1] else float((fits[1] > fits[0]) == (trial % 2 == 1))
    return right


def test_one_upload_does_not_tell_two_tables_apart():
    """At a promised epsilon of 0.1 over 300 uploads, doubles tell 40 of 40 apart."""
    multiplier = calibrate_multiplier(0.1, 1e-5, 300, 1.0)
    assert worlds_told_apart(Doubles(multiplier, 1.0, 40)) == 40
    assert 8 <= worlds_told_apart(Gaussian(multiplier, 1.0, 40)) <= 32, "chance: 20, deviation 3.2"


@pytest.mark.parametrize("low_bits", [1, 4, 10])
def test_the_lowest_bits_of_an_upload_do_not_tell_two_tables_apart(low_bits):
    """The attack that knows the grid: the true sums in whole steps, against the released whole numbers modulo 2^b."""
    worlds, model, mechanism = two_tables(), LinearModel("softmax", 300, 3), Gaussian(20.0, 1.0, 40)
    scale = CLIP / mechanism.bound / mechanism.batch
    grid_sums = [np.rint(clipped(model, model.start(), data) / scale / mechanism.batch) for data in worlds]
    scores = [[], []]
    for trial in range(400):
        data = worlds[trial % 2]
        released, _ = mechanism.release(model, model.start(), data, CLIP, SOURCE.stream(trial))
        whole = np.rint(released / scale)
        angles = [2 * np.pi * (whole - value) / 2**low_bits for value in grid_sums]
        scores[trial % 2].append(float(np.cos(angles[0]).sum() - np.cos(angles[1]).sum()))
    one, two = (np.array(found) for found in scores)
    spread = math.sqrt((one.var() + two.var()) / 200)
    assert abs(one.mean() - two.mean()) < 4 * spread
    promised = accountant.epsilon({GaussianRelease(20.0): 1}, 1e-5)
    assert epsilon_shown(one, two, 1e-5).epsilon <= promised


# -- which columns were touched? Nothing is known of any row ---------------------------------------------------------


def said_touched(mechanism, dense_noise, again=lambda values, deviation: values):
    """(precision, base rate) of naming the columns in which a sampled row has an entry. A coordinate that a sum of zero
    cannot have reached, were the noise doubles, is said to be touched."""
    rng, rows, columns = np.random.default_rng(0), 400, 1500
    table = (rng.random((rows, columns)) < 0.002).astype(np.float64)
    data, model = edge_data(table, rng.integers(0, 2, rows)), LinearModel("logistic", columns, 2)
    said, right, touched, all_columns = 0, 0, 0, 0
    for trial in range(5):
        stream, same = SeededNoise(trial, "sparse").stream(0), SeededNoise(trial, "sparse").stream(0)
        chosen = np.flatnonzero(same.words(rows) < np.uint64(int(mechanism.rate * 2.0**64)))
        each = [model.gradient_sum(model.start(), data, np.array([row])) for row in chosen]
        truth = (np.array(each) != 0).any(axis=0)
        deviation = mechanism.multiplier * 0.5
        if dense_noise:
            summed = clipped_sum(np.array(each), 0.5)
            released = (summed + gaussian_noise(SOURCE.stream(trial), summed.size, deviation)) / mechanism.batch
        else:
            released, _ = mechanism.release(model, model.start(), data, 0.5, stream)
        released = again(released * mechanism.batch, deviation) / mechanism.batch
        claimed = ~reachable_as_doubles(released, np.zeros(released.size), deviation, mechanism.batch)
        said, right = said + claimed.sum(), right + (claimed & truth).sum()
        touched, all_columns = touched + truth.sum(), all_columns + truth.size
    return right / max(said, 1), touched / all_columns


SPARSE = Gaussian(24.36, 0.1, 400)


def test_an_upload_does_not_tell_which_columns_its_rows_have():
    """At an epsilon of 0.5, doubles name touched columns with a precision of 1."""
    precision, base = said_touched(SPARSE, dense_noise=True)
    assert precision > 0.99 > base
    precision, base = said_touched(SPARSE, dense_noise=False)
    assert abs(precision - base) < 0.05


def test_rounding_an_upload_further_brings_nothing_back():
    """What was found to help doubles, rounding to a 2^16th of the deviation, changes nothing here."""
    step = 2.0**-16
    precision, base = said_touched(SPARSE, False, lambda values, s: np.rint(values / (s * step)) * (s * step))
    assert abs(precision - base) < 0.05


def test_zero_columns_rows_and_signs_leave_no_trace():
    """Of a column that is zero in all rows, an upload has noise alone, and never a negative zero."""
    rng = np.random.default_rng(1)
    table = rng.standard_normal((60, 8))
    table[:, 3] = -0.0
    data, model, mechanism = (
        edge_data(table, rng.integers(0, 2, 60)),
        LinearModel("logistic", 8),
        Gaussian(1e-4, 1.0, 60),
    )
    released = np.array(
        [mechanism.release(model, model.start(), data, CLIP, SystemNoise().stream(i))[0] for i in range(300)]
    )
    assert not np.signbit(released[released == 0]).any()
    scale = CLIP / mechanism.bound / mechanism.batch
    assert np.array_equal(np.rint(released / scale) * scale, released)


# -- is the accountant right? An own computation by other means ------------------------------------------------------


def own_epsilon(one, two, deviation, times, delta, grid, up):
    """From densities cut into bins, losses rounded up (or down), convolved by FFT: no library of ours is used."""
    x = np.linspace(-14 * deviation - 2, 14 * deviation + 2, 400_001)
    mass, middle = np.diff(one[1](x)), (x[1:] + x[:-1]) / 2
    loss = np.log(one[0](middle)) - np.log(two[0](middle))
    steps = (np.ceil if up else np.floor)(loss / grid).astype(int)
    width = 1 << math.ceil(math.log2(60 / grid))
    law = np.zeros(width)
    np.add.at(law, steps % width, mass)
    centre = round(float((mass * steps).sum()) * times)
    composed = np.maximum(np.fft.irfft(np.fft.rfft(law) ** times, width), 0)
    losses = (((np.arange(width) - centre + width // 2) % width) - width // 2 + centre) * grid
    low, high = 0.0, 30.0
    for _ in range(50):
        epsilon = (low + high) / 2
        above = losses > epsilon
        if (composed[above] * -np.expm1(epsilon - losses[above])).sum() > delta:
            low = epsilon
        else:
            high = epsilon
    return high


def mixture(rate, mean, deviation):
    return (
        lambda x: (1 - rate) * norm.pdf(x, 0, deviation) + rate * norm.pdf(x, mean, deviation),
        lambda x: (1 - rate) * norm.cdf(x, 0, deviation) + rate * norm.cdf(x, mean, deviation),
    )


@pytest.mark.parametrize(("rate", "multiplier", "times"), [(0.05, 2.0, 300), (0.2, 4.0, 500)])
def test_the_accountant_agrees_with_a_computation_of_its_own(rate, multiplier, times):
    release = GaussianRelease(multiplier, rate)
    pair = mixture(rate, 1, multiplier), mixture(rate, -1, multiplier)
    low, high = (own_epsilon(*pair, multiplier, times, 1e-5, 5e-4, up) for up in (False, True))
    assert low - 0.01 <= accountant.epsilon({release: times}, 1e-5) <= high + 0.01
    plain = mixture(rate, 1, multiplier), mixture(rate, 0, multiplier)
    there = max(own_epsilon(a, b, multiplier, times, 1e-5, 5e-4, True) for a, b in (plain, plain[::-1]))
    assert accountant.epsilon({release: times}, 1e-5, "add-remove") == pytest.approx(there, abs=0.15)


@pytest.mark.parametrize("mu", [0.3, 1.0, 5.0])
def test_full_batches_cost_what_the_exact_curve_says(mu):
    epsilon = accountant.gdp_epsilon(mu, 1e-5)
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)


def test_pure_releases_cost_what_optimal_composition_says():
    pure, rate, times = 0.5, 0.02, 200
    each = math.log1p(rate * math.expm1(pure))
    yes = math.exp(each) / (1 + math.exp(each))
    losses = {
        (times - 2 * j) * each: math.comb(times, j) * yes ** (times - j) * (1 - yes) ** j for j in range(times + 1)
    }
    found = accountant.epsilon({PureRelease(pure, rate): times}, 1e-5)
    for epsilon, enough in ((found * 1.002, True), (found * 0.998, False)):
        delta = sum(p * -math.expm1(epsilon - loss) for loss, p in losses.items() if loss > epsilon)
        assert (delta <= 1e-5) is enough


# -- the grid, the clip and the range --------------------------------------------------------------------------------


def test_the_grid_is_the_same_whatever_the_rows_hold():
    """Were the scale fitted to the rows, it would tell about them."""
    model, rng = LinearModel("softmax", 5, 3), np.random.default_rng(2)
    scales = set()
    for size in (1e-12, 1.0, 1e12):
        data = edge_data(size * rng.standard_normal((50, 5)), rng.integers(0, 3, 50))
        mechanism = privacy_of_edges(Sound(1.0, uploads=20), {"a": 50}, batch=10)["a"].mechanism
        released, _ = mechanism.release(model, model.start(), data, CLIP, SystemNoise().stream(0))
        scale = CLIP / mechanism.bound / mechanism.batch
        assert np.array_equal(np.rint(released / scale) * scale, released)
        scales.add(scale)
    assert len(scales) == 1


@pytest.mark.parametrize("poison", [1e-320, 1e-160, 1.0, 1e150, 1e308, math.inf, math.nan])
@pytest.mark.parametrize("clip", [1e-99, 1.0, 1e99])
def test_no_model_and_no_clip_make_one_row_count_for_more(poison, clip):
    """The cloud chooses both. Between a table and one with a row replaced, sums differ by two bounds at most."""
    model, rng = LinearModel("squared-hinge", 4, 3), np.random.default_rng(3)
    table, labels = rng.standard_normal((9, 4)), rng.integers(0, 3, 9)
    other = table.copy()
    other[0] = [1e200, -1e-300, 0.0, 1e8]
    parameters = rng.standard_normal(model.dimension)
    parameters[[0, 7]] = poison
    mechanism = Gaussian(1.0, 1.0, 9)
    grid = Grid(clip / mechanism.bound, mechanism.bound)
    with np.errstate(all="ignore"):
        sums = [model.grid_sum(parameters, edge_data(x, labels), np.arange(9), grid)[0] for x in (table, other)]
    change = sum(int(value) ** 2 for value in (sums[0] - sums[1]).tolist())
    assert change <= (2 * mechanism.bound) ** 2


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int64])
def test_no_number_format_of_the_cloud_makes_sums_inexact(kind):
    """Singles hold whole numbers up to 2^24 only: sums in them would round, and one row would decide how."""
    rng = np.random.default_rng(3)
    table, labels = rng.standard_normal((200, 4)), rng.integers(0, 3, 200)
    model, data = LinearModel("softmax", 4, 3), edge_data(table, labels)
    parameters, grid = (3 * rng.standard_normal(model.dimension)).astype(kind), Grid(1.0 / 2**20, 2**20)
    alone = [model.grid_sum(parameters, data, np.array([row]), grid)[0] for row in range(200)]
    together, _ = model.grid_sum(parameters, data, np.arange(200), grid)
    assert np.abs(together).max() > 2**24
    assert np.array_equal(together, np.sum(alone, axis=0))


def test_a_clip_beyond_the_range_is_refused():
    edge = an_edge(SystemNoise())
    edge.handle(Started())
    for clip in (0.0, -1.0, 1e-200, 1e200, math.inf, math.nan):
        with pytest.raises(UnexpectedEvent, match="clip"):
            edge.handle(Received("cloud", Model(np.zeros(3), 0, clip, 0, 0, 0)))


def test_an_adaptive_clips_count_is_noisy_to_its_last_bit():
    """The fraction beside the gradient comes from one more noisy whole number: the same rows give other fractions."""
    data, model = edge_data(np.ones((30, 2)), np.zeros(30, dtype=int)), LinearModel("logistic", 2)
    mechanism = Gaussian(2.0, 1.0, 30, AdaptiveClip(count_deviation=5.0))
    found = [mechanism.release(model, model.start(), data, 9.0, SystemNoise().stream(i))[1] for i in range(200)]
    inside = [value for value in found if 0 < value < 1]
    assert len(set(inside)) > 0.9 * len(inside) > 45  # a few of so many are the same by chance
    whole = [(value - 0.5) * 2 * mechanism.weight * mechanism.batch for value in inside]
    assert np.allclose(whole, np.rint(whole), atol=1e-3)


# -- the same noise twice --------------------------------------------------------------------------------------------


MODEL = LinearModel("logistic", 2)
ROWS = edge_data(np.random.default_rng(4).standard_normal((30, 2)), np.arange(30) % 2)


def an_edge(noise):
    recipe = privacy_of_edges(Sound(2.0, uploads=50), {"a": 30}, batch=30)["a"]
    return Edge("a", MODEL, ROWS, recipe, noise)


def uploaded(edge, parameters, answers):
    (work,) = [
        e for e in edge.handle(Received("cloud", Model(parameters, 0, 1.0, 0, answers, 0))) if type(e) is Compute
    ]
    effects = edge.handle(Computed(work.ticket, work.job()))
    (sent,) = [e.body for e in effects if type(e) is Send]
    return sent


def test_a_retry_and_a_restart_repeat_the_bytes_and_draw_nothing_new():
    edge = an_edge(SystemNoise())
    assert isinstance(edge.handle(Started())[0].body, Hello)
    first = uploaded(edge, np.zeros(3), 0)
    kept = decode_state(encode_state(edge.snapshot()))
    again = an_edge(SystemNoise())
    again.restore(kept)
    (sent,) = [e.body for e in again.handle(Started(resumed=True)) if type(e) is Send]
    assert isinstance(sent, Upload) and np.array_equal(sent.gradient, first.gradient) and sent.number == first.number
    assert again.ledger.spent == edge.ledger.spent


def test_the_same_number_with_another_model_has_other_noise():
    """An old state is put back, and the cloud hides what it has seen: the same number comes twice. The difference of
    both uploads would be the difference of the sums, were the noise the same."""
    edge = an_edge(SystemNoise())
    edge.handle(Started())
    kept = decode_state(encode_state(edge.snapshot()))
    first = uploaded(edge, np.zeros(3), 0)
    edge.restore(kept)
    edge.handle(Started(resumed=True))
    second = uploaded(edge, np.full(3, 0.5), 0)
    assert first.number == second.number == 1
    exact = [clipped(MODEL, parameters, ROWS) / 30 for parameters in (np.zeros(3), np.full(3, 0.5))]
    scale = 1.0 / edge.mechanism.bound / edge.mechanism.batch
    left = (second.gradient - first.gradient) - (exact[1] - exact[0])
    assert np.abs(left).min() > 100 * scale, "what is left is noise"


PRIVATE = calibrate(4.0, 1e-5, 9)
SECRET = bytes(range(32))


def a_client(source=None, private=PRIVATE):
    rng = np.random.default_rng(5)
    table = rng.standard_normal((40, 4))
    embedding = LinearEmbedding(4, 2)
    client = Client(
        "ana",
        "server",
        embedding.place(table),
        embedding,
        Weights({"weight": 0.3 * rng.standard_normal((2, 4))}, {}),
        Vafl(private=private, batch=10),
        0,
        source or KeyedNoise(SECRET, "embedding"),
        KeyedNoise(SECRET, "gradient"),
        embedding.place(table),
    )
    return client, table


def sent_by(client, effects):
    """Everything that leaves, with all work done."""
    bodies = []
    for effect in effects:
        if type(effect) is Compute:
            bodies += sent_by(client, client.handle(Computed(effect.ticket, None)))
        elif type(effect) is Send:
            bodies.append(effect.body)
    return bodies


def test_a_client_of_an_old_state_and_a_lying_server_do_not_repeat_noise():
    """The server says that it has seen nothing. The client's noise is a function of a secret, the number and the
    contents: other contents have other noise, and the same contents the same bytes."""
    client, table = a_client()
    weight = client.weights.trained["weight"]
    kept, uploads = decode_state(encode_state(client.snapshot())), []
    for factor in (1.0, 3.0, 1.0):
        client.restore(kept)
        client.phase, client.weights = "training", Weights({"weight": factor * weight}, {})
        assert any(isinstance(b, Resume) for b in sent_by(client, client.handle(Started(resumed=True))))
        bodies = sent_by(client, client.handle(Received("server", Resumed(LIFE, 0, True))))
        uploads.append(next(b for b in bodies if isinstance(b, Embedded)))
    one, other, again = uploads
    assert one.release == other.release == again.release and np.array_equal(one.rows, other.rows)
    whole = [round_rows(table[one.rows] @ (factor * weight).T, PRIVATE.grid) for factor in (1.0, 3.0)]
    difference = np.rint((other.embedding - one.embedding) / PRIVATE.grid.step)
    assert np.count_nonzero(difference == whole[1] - whole[0]) == 0, "the noise did not cancel"
    assert np.array_equal(one.embedding, again.embedding)


# -- more of one row than was paid for -------------------------------------------------------------------------------


def test_a_row_named_often_in_one_request_leaves_once_or_not_at_all():
    """Each naming would have noise of its own and be counted once: 5,000 namings average the noise away."""
    client, _ = a_client()
    client.handle(Started())
    for request in (
        Refresh(1, np.full(5000, 7)),
        Refresh(1, np.array([39, -1])),
        Refresh(1, np.array([40])),
        Ask(1, False, np.array([3, 3])),
        PredictAsked(1, -3, 2),
        PredictAsked(1, 30, 41),
    ):
        before = client.ledger.released.copy()
        with pytest.raises(UnexpectedEvent, match=r"none of them twice|to be predicted|a synchronous round"):
            client.handle(Received("server", request))
        assert np.array_equal(client.ledger.released, before)


def test_an_answer_of_another_shape_is_refused():
    client, _ = a_client()
    upload = next(b for b in sent_by(client, client.handle(Started())) if isinstance(b, Embedded))
    with pytest.raises(UnexpectedEvent, match=r"shape|asks for none"):
        client.handle(Received("server", Gradient(upload.release, 0, 0.0, 0, np.ones((1, 2)))))


def test_scores_of_a_private_model_are_one_noisy_number_for_ever():
    """Asked again, in other company or order, a record has the same score; its noise is that of a counted release."""
    parts = np.random.default_rng(6).standard_normal(300)
    tokens = [bytes([i % 256, i // 256]) * 8 for i in range(300)]
    found = noisy_scores(PRIVATE, parts, tokens, SECRET)
    order = np.random.default_rng(7).permutation(300)[:50]
    again = noisy_scores(PRIVATE, parts[order], [tokens[i] for i in order], SECRET)
    assert np.array_equal(found[order], again)
    noise = found - np.clip(parts, -PRIVATE.grid.reach(1), PRIVATE.grid.reach(1))
    assert noise.std() == pytest.approx(PRIVATE.noise, rel=0.2)
    changed = noisy_scores(PRIVATE, parts + 1e-3, tokens, SECRET)
    assert np.count_nonzero(np.abs((changed - found) - 1e-3) < 1e-4) < 10, "a changed record has other noise"
    assert noisy_scores(PRIVATE, parts, tokens, bytes(32)).tolist() != found.tolist()


def test_a_record_whose_columns_have_changed_keeps_the_score_it_was_given(tmp_path):
    """Before: a second noisy number about the same person, which nobody had charged, and the news that it changed."""
    parts, tokens = np.linspace(-1, 1, 30), [bytes([i]) * 16 for i in range(30)]
    first = GivenScores(tmp_path / "scores.jsonl").once(tokens, noisy_scores(PRIVATE, parts, tokens, SECRET))
    again = GivenScores(tmp_path / "scores.jsonl").once(tokens, noisy_scores(PRIVATE, -parts, tokens, SECRET))
    assert np.array_equal(first, again)
    later = [*tokens[:3], b"new" * 5 + b"!"]
    assert np.array_equal(GivenScores(tmp_path / "scores.jsonl").once(later, np.zeros(4)), [*first[:3], 0.0])


# -- private VAFL: the attack on last bits, and on what comes in two parts -------------------------------------------


def test_an_embedding_does_not_tell_two_records_apart():
    """As for uploads of edges: which of two records was embedded? Doubles tell all apart."""
    deviation = PRIVATE.noise
    client, table = a_client(SOURCE)
    weight = client.weights.trained["weight"]
    pair = table[0], table[1]
    values = [row @ weight.T for row in pair]
    values = [value * min(1.0, 1.0 / np.linalg.norm(value)) for value in values]
    right = {"doubles": 0.0, "grid": 0.0}
    for trial in range(200):
        truth = trial % 2
        doubles = values[truth] + gaussian_noise(SOURCE.stream(trial), 2, deviation)
        disturbance = client.upload_noise.of(trial, 1)
        on_grid = client.embedding.forward(client.weights, client.features, np.array([truth]), disturbance).embedding[0]
        for name, released in (("doubles", doubles), ("grid", on_grid)):
            fits = [int(reachable_as_doubles(released, value, deviation, 1.0).sum()) for value in values]
            right[name] += 0.5 if fits[0] == fits[1] else float((fits[1] > fits[0]) == (truth == 1))
    assert right["doubles"] > 180 and 70 < right["grid"] < 130, right


def test_a_sparse_row_in_two_parts_counts_for_one_clip():
    """Two entries of one column add up; rounded and held to the bound apart they would pass it together."""
    embedding = LinearEmbedding(3, 1)
    doubled = sp.csr_matrix((np.array([30.0, 40.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    weights = Weights({"weight": np.zeros((1, 3))}, {})
    placed = embedding.place(doubled)
    forward = embedding.forward(weights, placed, np.array([0]), vafl_disturbance())
    total = embedding.grid_sum(forward, np.ones((1, 1)), PRIVATE.gradient_grid)["weight"]
    assert np.square(total).sum() <= PRIVATE.gradient_grid.bound**2
    assert doubled.nnz == 2, "the caller's table is left alone"


def vafl_disturbance():
    client, _ = a_client(SystemNoise())
    return client.upload_noise.of(1, 1)


# -- seeds -----------------------------------------------------------------------------------------------------------


def test_noise_of_a_seed_is_drawn_again_by_anybody_and_says_so():
    """What a seed is worth: the attacker subtracts the noise. So a seed is never the default, and the record warns."""
    edge = an_edge(noise_source(7, "a"))
    edge.handle(Started())
    upload = uploaded(edge, np.zeros(3), 0)
    stream = SeededNoise(7, "a").stream(1)
    noise = edge.mechanism.noise.draw(stream, 3)
    whole = np.rint(upload.gradient / (1.0 / edge.mechanism.bound / edge.mechanism.batch)) - noise
    assert np.abs(whole / edge.mechanism.bound / 30 - clipped(MODEL, np.zeros(3), ROWS) / 30).max() < 1e-4
    assert edge.statement()["seeded"] is True
    assert not noise_source(None, "a").seeded and isinstance(noise_source(None, "a"), SystemNoise)


def test_noise_does_not_follow_from_names_and_numbers():
    """Two sources of the same name and number, and two runs of one party: no word is shared."""
    words = [source.stream(1).words(1000) for source in (SystemNoise(), SystemNoise(), noise_source(None, "a"))]
    words += [KeyedNoise(secret, "embedding").stream(1).words(1000) for secret in (SECRET, bytes(32))]
    assert len(np.unique(np.concatenate(words))) == 5000


def test_a_client_uses_nothing_but_its_own_source_for_noise():
    """The seed of a job is known to all parties; it must not decide what protects."""
    uploads = []
    for _ in range(2):
        client, _ = a_client(SystemNoise())
        uploads.append(sent_by(client, client.handle(Started()))[0])
    assert np.array_equal(uploads[0].rows, uploads[1].rows), "the order of rows follows from the seed"
    assert not np.array_equal(uploads[0].embedding, uploads[1].embedding)


def test_a_public_step_is_computed_from_no_row():
    """The automatic step of private mode is the same for tables of the same size, whatever they hold."""

    class Sizes:
        names, widths = ("a", "b"), {"a": 3, "b": 5}

        @property
        def train(self):
            raise AssertionError("the step looked at rows")

    assert automatic_step(Sizes(), AdditiveHead(2), public=True) == pytest.approx(1 / (0.5 * 9))


def test_edges_of_the_same_size_are_told_nothing_by_their_hellos():
    """Hello tells the noise level, which follows from epsilon, batch and the number of rows alone."""
    hellos = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        data = edge_data(rng.standard_normal((30, 2)), rng.integers(0, 2, 30))
        recipe: EdgePrivacy = privacy_of_edges(Sound(2.0, uploads=50), {"a": 30}, batch=10)["a"]
        hellos.append(Edge("a", MODEL, data, recipe, SystemNoise()).handle(Started())[0].body)
    assert hellos[0] == hellos[1]


def test_the_private_mode_of_vafl_has_noise_in_everything_that_leaves():
    """No message of a private client holds an embedding that is not noisy: uploads, refreshes, predictions."""
    client, table = a_client(SystemNoise())
    weight = client.weights.trained["weight"]
    bodies = sent_by(client, client.handle(Started()))
    bodies += sent_by(client, client.handle(Received("server", Refresh(1, np.arange(20)))))
    bodies += sent_by(client, client.handle(Received("server", PredictAsked(2, 0, 20))))
    seen = [body for body in bodies if hasattr(body, "embedding")]
    assert len(seen) == 3
    for body in seen:
        rows = getattr(body, "rows", np.arange(20))
        noise = body.embedding - table[rows] @ weight.T
        assert noise.std() > 0.5 * PRIVATE.noise
        assert np.array_equal(np.rint(body.embedding / PRIVATE.grid.step) * PRIVATE.grid.step, body.embedding)
    assert vafl.privacy_label(client.options).startswith("private")
