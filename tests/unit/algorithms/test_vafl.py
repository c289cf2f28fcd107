"""VAFL, one event at a time: these effects, these numbers, nothing twice."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Vafl, one_hot
from offbeat.algorithms.vafl.messages import (
    AnswerWanted,
    Ask,
    Goodbye,
    Gradient,
    Halt,
    Noted,
    PredictAsked,
    PredictGiven,
    Refresh,
    Refreshed,
    ReleaseWanted,
    Resting,
    Resume,
    Resumed,
    StopWanted,
    UnderWay,
    Upload,
)
from offbeat.algorithms.vafl.releases import LIFE, GivenAnswers
from offbeat.errors import BadData, BadJob, UnexpectedEvent
from offbeat.learning.embeddings import Adam, AdditiveHead, ClientPenalty, LinearEmbedding, Sgd
from offbeat.learning.scores import area_under_curve
from offbeat.message.codec import Codec, decode_state, encode_state
from offbeat.party.contract import Broadcast, Compute, Computed, Finish, PeerLost, Received, Send, Started
from offbeat.privacy.embedding import PrivateEmbedding
from offbeat.run.record import reveals_of
from offbeat.runtime.simulator import CostModel, Jitter, Simulator

ROWS = 8


class Elsewhere(LinearEmbedding):
    """Begins at zero and does not say so, as networks do not: a first upload is made, and charged."""

    begins_at_zero = False


def build(rows=ROWS, seed=0, test=False, clients=("ana", "bo"), kind=LinearEmbedding, **changes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2 * len(clients)))
    targets = one_hot(rng.integers(0, 3, rows), 3)
    features = {name: x[:, 2 * i : 2 * i + 2] for i, name in enumerate(clients)}
    options = Vafl(**({"batch": 4, "passes": 100, "optimiser": Sgd(0.5), "head_optimiser": Sgd(0.5)} | changes))
    more = {"test_features": features, "test_targets": targets} if test else {}
    return vafl.build(features, targets, {n: kind(2, 3) for n in features}, AdditiveHead(3), options, seed=seed, **more)


def bodies(effects, kind=None):
    sent = [effect.body for effect in effects if isinstance(effect, Send | Broadcast)]
    return sent if kind is None else [body for body in sent if isinstance(body, kind)]


def run_jobs(party, effects):
    """Deliver what was asked to be computed, until nothing is."""
    done = []
    for effect in effects:
        if isinstance(effect, Compute):
            done += run_jobs(party, party.handle(Computed(effect.ticket)))
        else:
            done.append(effect)
    return done


def started(**changes):
    """A server and two clients whose initial upload is over."""
    server, clients = build(**changes)
    server.handle(Started())
    waiting = {}
    for client in clients:
        (upload,) = bodies(run_jobs(client, client.handle(Started())), Upload)
        for effect in server.handle(Received(client.name, upload)):
            waiting[effect.to] = effect.body
    firsts = {c.name: run_jobs(c, c.handle(Received("server", waiting[c.name]))) for c in clients}
    return server, {c.name: c for c in clients}, {name: bodies(e, Upload) for name, e in firsts.items()}


# -- one round trip --------------------------------------------------------------------------------------------------


def test_initial_upload_begins_training_for_all():
    server, clients, firsts = started()
    assert server.phase == "training"
    assert [server.table.cold(i) for i in range(2)] == [0, 0]
    for name, uploads in firsts.items():
        (upload,) = uploads
        assert upload.wanted and upload.release == 2 and len(upload.rows) == 4
        np.testing.assert_array_equal(upload.embedding, np.zeros((4, 3)))
        assert clients[name].releases.pending.keys() == {2}


def test_upload_is_answered_at_the_head_before_its_step():
    server, _, firsts = started()
    (upload,) = firsts["ana"]
    before = server.weights.trained["bias"].copy()
    effects = run_jobs(server, server.handle(Received("ana", upload)))
    (gradient,) = bodies(effects, Gradient)
    expected = np.full((4, 3), 1 / 3) - server.targets[upload.rows]
    np.testing.assert_allclose(gradient.derivative, expected)
    np.testing.assert_allclose(server.weights.trained["bias"], before - 0.5 * expected.mean(axis=0))
    assert (gradient.release, gradient.iteration, server.iteration) == (2, 0, 1)


def test_the_server_takes_a_release_once_and_repeats_its_answer():
    server, _, firsts = started()
    (upload,) = firsts["ana"]
    waiting = server.handle(Received("ana", upload))
    assert bodies(server.handle(Received("ana", upload))) == [UnderWay(upload.release)]
    (first,) = bodies(run_jobs(server, waiting), Gradient)
    iteration = server.iteration
    (second,) = bodies(server.handle(Received("ana", upload)), Gradient)
    assert second is first
    assert server.iteration == iteration
    assert server.duplicates == 2


def test_a_gradient_is_applied_once():
    server, clients, firsts = started()
    ana = clients["ana"]
    (gradient,) = bodies(run_jobs(server, server.handle(Received("ana", firsts["ana"][0]))), Gradient)
    effects = ana.handle(Received("server", gradient))
    assert ana.handle(Received("server", gradient)) == []
    (next_upload,) = bodies(run_jobs(ana, effects), Upload)
    weight = ana.weights.trained["weight"].copy()
    rows = firsts["ana"][0].rows
    np.testing.assert_allclose(weight, -0.5 * gradient.derivative.T @ ana.features[rows] / 4)
    assert ana.handle(Received("server", gradient)) == []
    assert (ana.version, next_upload.version, next_upload.release) == (1, 1, 3)


def test_noise_is_fresh_for_every_row_and_release_and_the_same_for_a_seed():
    uploads = [started(noise=0.5, seed=s)[2]["ana"][0] for s in (1, 1, 2)]
    np.testing.assert_array_equal(uploads[0].embedding, uploads[1].embedding)
    assert not np.array_equal(uploads[0].embedding, uploads[2].embedding)
    assert len(np.unique(uploads[0].embedding)) == 12


# -- the bounded delay -----------------------------------------------------------------------------------------------


def test_an_old_row_is_refreshed_and_only_this_update_waits():
    server, clients, firsts = started(delay_bound=0.25)  # of 4 updates: one
    run_jobs(server, server.handle(Received("ana", firsts["ana"][0])))
    server.iteration = 7
    rows = np.array([0, 1, 2, 3])
    effects = server.handle(Received("ana", Upload(3, 1, -1, True, rows, np.zeros((4, 3)))))
    (refresh,) = bodies(effects, Refresh)
    assert not [effect for effect in effects if isinstance(effect, Compute)]
    np.testing.assert_array_equal(refresh.rows, rows)
    (given,) = bodies(run_jobs(clients["bo"], clients["bo"].handle(Received("server", refresh))), Refreshed)
    effects = server.handle(Received("bo", given))
    assert bodies(run_jobs(server, effects), Gradient)
    assert server.table.lag_max.tolist() == [0, 0]  # what was used had just come
    assert server.refreshes.asked_rows == 4
    assert server.handle(Received("bo", given)) == []  # a late copy


def test_a_refresh_is_answered_with_the_same_bytes_when_asked_again():
    _, clients, _ = started(noise=1.0)
    refresh, bo = Refresh(9, np.array([5, 6])), clients["bo"]
    (first,) = bodies(run_jobs(bo, bo.handle(Received("server", refresh))), Refreshed)
    assert bodies(bo.handle(Received("server", refresh)), Refreshed) == [first]


def test_nobody_waits_for_the_refresh_of_a_lost_client():
    server, _, firsts = started(delay_bound=0.25)
    server.iteration = 7
    assert bodies(server.handle(Received("ana", firsts["ana"][0])), Refresh)
    assert bodies(run_jobs(server, server.handle(PeerLost("bo"))), Gradient)
    assert server.refreshes.abandoned == 1


def test_a_row_that_could_not_be_refreshed_is_counted_as_late():
    server, _, firsts = started(delay_bound=0.25)
    server.iteration = 7
    server.handle(PeerLost("bo"))
    run_jobs(server, server.handle(Received("ana", firsts["ana"][0])))
    assert [server.table.lag_summary(i)["late_used"] for i in range(2)] == [0, 4]


def test_the_bound_is_in_units_of_passes():
    assert Vafl(batch=10, delay_bound=5).lag_max(200, 4) == 400
    assert Vafl(delay_bound=None).lag_max(200, 4) == math.inf


# -- variants --------------------------------------------------------------------------------------------------------


def test_tsync_waits_for_different_clients_and_averages_over_all_their_rows():
    server, _, firsts = started(variant="vafl-tsync", t=2)
    first, second = firsts["ana"][0], firsts["bo"][0]
    assert not [e for e in server.handle(Received("ana", first)) if isinstance(e, Compute)]
    effects = run_jobs(server, server.handle(Received("bo", second)))
    answers = bodies(effects, Gradient)
    assert [answer.derivative.shape for answer in answers] == [(4, 3), (4, 3)]
    union = np.union1d(first.rows, second.rows)
    expected = (1 / 3 - server.targets[union]).mean(axis=0)
    np.testing.assert_allclose(server.weights.trained["bias"], -0.5 * expected)
    assert server.iteration == 1


def test_tsync_a_newer_upload_replaces_the_older_in_any_order():
    server, _, firsts = started(variant="vafl-tsync", t=2, in_flight=2)
    old, new = firsts["ana"]
    server.handle(Received("ana", new))
    server.handle(Received("ana", old))
    (first, _) = bodies(run_jobs(server, server.handle(Received("bo", firsts["bo"][0]))), Gradient)
    assert first.release == new.release
    assert bodies(server.handle(Received("ana", old))) == [Noted(old.release, True)]


def test_tsync_counts_only_who_is_there():
    server, _, firsts = started(variant="vafl-tsync", t=2)
    server.handle(Received("ana", firsts["ana"][0]))
    assert bodies(run_jobs(server, server.handle(PeerLost("bo"))), Gradient)


def test_sync_asks_all_and_embeds_only_after_the_last_step():
    server, clients = build(variant="vafl-sync")
    (ask,) = bodies(server.handle(Started()), Ask)
    for client in clients:
        client.handle(Started())
    uploads = {c.name: bodies(run_jobs(c, c.handle(Received("server", ask))), Upload)[0] for c in clients}
    assert server.handle(Received("ana", uploads["ana"])) == []
    effects = run_jobs(server, server.handle(Received("bo", uploads["bo"])))
    (next_ask,), gradients = bodies(effects, Ask), bodies(effects, Gradient)
    ana = clients[0]
    assert ana.handle(Received("server", next_ask)) == []  # the gradient has not come yet
    (upload,) = bodies(run_jobs(ana, ana.handle(Received("server", gradients[0]))), Upload)
    assert (upload.version, upload.asked) == (1, next_ask.request)


def test_every_client_may_have_its_own_rule_and_penalty():
    server, clients = build(
        optimisers={"ana": Adam(0.1)}, penalties={"bo": ClientPenalty("box", 0.02)}, passes=20, delay_bound=None
    )
    Simulator(seed=1).run([server, *clients])
    ana, bo = clients
    assert (ana.rule, bo.rule, ana.penalty) == (Adam(0.1), Sgd(0.5), ClientPenalty())
    assert ana.memory["count"][0] == ana.version
    assert np.abs(bo.weights.trained["weight"]).max() == 0.02 < np.abs(ana.weights.trained["weight"]).max()


def test_poisson_activation_has_the_stated_rates():
    """Rates 1, 2 and 5: shares of 1/8, 2/8 and 5/8 of the uploads, not the inverse."""
    rates = {"ana": 10.0, "bo": 20.0, "cem": 50.0}
    server, clients = build(rows=40, clients=tuple(rates), rates=rates, passes=120, delay_bound=None, in_flight=4)
    Simulator(seed=1, costs=CostModel(overhead_s=1e-6, per_sample_s=0, per_nonzero_s=0)).run([server, *clients])
    shares = np.array([client.version for client in clients]) / server.iteration
    np.testing.assert_allclose(shares, [1 / 8, 2 / 8, 5 / 8], atol=0.03)


def test_lags_grow_as_rows_times_clients_over_batch():
    """The mean age of a pair is about N*M/b updates when rows are drawn anew each time."""
    server, clients = build(rows=60, clients=("ana", "bo", "cem"), sampling="uniform", batch=6, delay_bound=None)
    Simulator(seed=1, costs=CostModel(jitter=Jitter("exponential"))).run([server, *clients])
    means = [server.table.lag_summary(i)["lag_mean"] for i in range(3)]
    assert np.mean(means) == pytest.approx(60 * 3 / 6, rel=0.15)


def test_without_initial_upload_rows_are_cold_and_counted():
    server, clients = build(initial_upload=False, delay_bound=None, passes=2)
    Simulator(seed=1).run([server, *clients])
    assert server.table.cold_used.sum() > 0


# -- private mode, labels, prediction --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "steps"), [(LinearEmbedding, 3), (Elsewhere, 2)])
def test_private_embeddings_are_clipped_noisy_and_capped(kind, steps):
    private = PrivateEmbedding(noise=1e-9, gradient_noise=1e-9, uploads_max=3, clip=0.01, gradient_clip=100.0)
    server, clients = build(private=private, passes=50, kind=kind)
    Simulator(seed=1).run([server, *clients])
    norms = [np.linalg.norm(shelf.to_array(), axis=1).max() for shelf in server.table.shelves]
    assert max(norms) == pytest.approx(0.01, abs=1e-6)
    for client in clients:
        assert client.ledger.released.tolist() == [3] * ROWS  # one of them at the start where that is not zero
        assert client.ledger.stepped.tolist() == [steps] * ROWS
    assert server.verdict == "budget"


@pytest.mark.parametrize("variant", vafl.VARIANTS)
def test_zeros_that_everybody_knows_are_neither_sent_nor_charged(variant):
    private = PrivateEmbedding(noise=0.5, gradient_noise=0.5, uploads_max=1)
    server, clients = build(private=private, passes=50, variant=variant)
    assert server.table.cold(0) == 0 and not server.table.shelves[0].to_array().any()
    Simulator(seed=1).run([server, *clients])
    for client in clients:
        assert client.ledger.released.tolist() == client.ledger.stepped.tolist() == [1] * ROWS
        assert client.weights.trained["weight"].any()
        assert client.privacy()["epsilon"] <= private.epsilon_max * (1 + 1e-12)


def test_one_upload_that_would_be_the_first_is_refused():
    private = PrivateEmbedding(noise=0.5, gradient_noise=0.5, uploads_max=1)
    with pytest.raises(BadJob, match="nothing would be trained"):
        build(private=private, kind=Elsewhere)
    build(private=private, kind=Elsewhere, variant="vafl-sync")  # has no first upload


def test_private_step_is_the_noisy_clipped_sum():
    private = PrivateEmbedding(noise=0.5, gradient_noise=2.0, uploads_max=9, gradient_clip=0.1)
    _, clients, firsts = started(private=private, kind=Elsewhere)
    ana, upload = clients["ana"], firsts["ana"][0]
    derivative = np.ones((4, 3))
    forward = ana.passes[upload.release]
    exact = ana.embedding.grid_sum(forward, derivative, private.gradient_grid)["weight"]
    draws = private.gradient_grid_noise.draw(ana.gradient_noise_source.stream(upload.release), 6).reshape(3, 2)
    run_jobs(ana, ana.handle(Received("server", Gradient(upload.release, 0, 0.0, 0, derivative))))
    np.testing.assert_allclose(
        ana.weights.trained["weight"], -0.5 * (exact + draws) * private.gradient_grid.step / 4, rtol=1e-12
    )
    assert np.linalg.norm(exact) <= 4 * private.gradient_grid.bound


def test_an_old_snapshot_repeats_no_number_and_charges_what_it_forgot():
    private = PrivateEmbedding(noise=1.0, gradient_noise=1.0, uploads_max=9)
    server, clients, firsts = started(private=private, kind=Elsewhere)
    ana = clients["ana"]
    old = decode_state(encode_state(ana.snapshot()))
    upload = firsts["ana"][0]
    for _ in range(3):
        (gradient,) = bodies(run_jobs(server, server.handle(Received("ana", upload))), Gradient)
        (upload,) = bodies(run_jobs(ana, ana.handle(Received("server", gradient))), Upload)
    server.handle(Received("ana", upload))
    spent = ana.ledger.statement()["epsilon"]
    ana.restore(old)
    (resume,) = bodies(ana.handle(Started(resumed=True)), Resume)
    (resumed,) = bodies(server.handle(Received("ana", resume)), Resumed)
    (again,) = bodies(run_jobs(ana, ana.handle(Received("server", resumed))), Upload)
    assert again.release > upload.release
    assert not np.array_equal(again.embedding, upload.embedding)
    assert ana.ledger.statement()["epsilon"] >= spent


def test_an_upload_still_on_its_way_at_a_crash_shares_its_number_with_nothing():
    server, clients, firsts = started(noise=1.0)
    ana = clients["ana"]
    old = decode_state(encode_state(ana.snapshot()))
    (gradient,) = bodies(run_jobs(server, server.handle(Received("ana", firsts["ana"][0]))), Gradient)
    (late,) = bodies(run_jobs(ana, ana.handle(Received("server", gradient))), Upload)
    ana.restore(old)
    (resume,) = bodies(ana.handle(Started(resumed=True)), Resume)
    (resumed,) = bodies(server.handle(Received("ana", resume)), Resumed)
    assert resumed.forgotten == 0  # the server has not seen it
    run_jobs(ana, ana.handle(Received("server", resumed)))
    (again,) = bodies(run_jobs(server, server.handle(Received("ana", firsts["ana"][0]))), Gradient)
    (new,) = bodies(run_jobs(ana, ana.handle(Received("server", again))), Upload)
    assert late.release == 3 and new.release == LIFE + 1
    assert not np.array_equal(new.embedding, late.embedding)
    assert bodies(run_jobs(server, server.handle(Received("ana", new))), Gradient)


def test_lives_count_what_a_client_forgot():
    answers = GivenAnswers(1)
    for release in (1, 2, 3):
        answers.saw(0, release)
    assert answers.new_life(0, 2, True) == Resumed(LIFE, 1, True)
    answers.saw(0, LIFE + 2)
    assert answers.new_life(0, LIFE + 1, True) == Resumed(2 * LIFE, 1, True)
    answers.saw(0, 2 * LIFE + 1)
    assert answers.new_life(0, 2, True) == Resumed(3 * LIFE, 1 + 2 + 1, True)  # from the oldest snapshot of all
    answers.settle(0, LIFE + 2)
    assert answers.too_late(0, LIFE + 1) and not answers.too_late(0, LIFE + 2)
    again = GivenAnswers(1)
    again.restore(decode_state(encode_state(answers.snapshot())))
    assert encode_state(again.snapshot()) == encode_state(answers.snapshot())


def test_label_privacy_hides_the_labels_from_the_derivative():
    server, _ = build(rows=3000, label_dp_epsilon=1.0)
    plain, _ = build(rows=3000)
    true = np.argmax(plain.targets, axis=1)
    told = server.head.evaluate(server.weights, [np.zeros((3000, 3))] * 2, server.targets, [0]).derivatives[0]
    share = np.mean(np.argmin(told, axis=1) == true)
    assert share == pytest.approx(math.e / (math.e + 2), abs=0.03)


def test_prediction_is_joint_and_flags_who_is_missing():
    server, clients = build(test=True, passes=5)
    Simulator(seed=1).run([server, *clients])
    scores = np.concatenate(server.prediction.scores)
    np.testing.assert_allclose(scores, vafl.joint_scores(server, clients), atol=1e-12)
    assert server.prediction.without == {}

    server.phase, server.prediction.scores, server.requests = "training", [], 1000
    (ask,) = bodies(server._end("passes", ""), PredictAsked)
    server.handle(Received("ana", PredictGiven(ask.request, 99, vafl.joint_embeddings(clients)[0])))
    server.handle(PeerLost("bo"))
    replaced = [vafl.joint_embeddings(clients)[0], np.tile(server.table.mean(1), (ROWS, 1))]
    np.testing.assert_allclose(server.prediction.scores[0], server.head.scores(server.weights, replaced))
    assert server.prediction.without == {1: set(range(ROWS))}


def test_prediction_in_private_mode_is_noisy_and_counted():
    private = PrivateEmbedding(noise=1.0, gradient_noise=1.0, uploads_max=3)
    server, clients = build(test=True, private=private, passes=50)
    Simulator(seed=1).run([server, *clients])
    assert all(client.test_ledger.released.tolist() == [1] * ROWS for client in clients)
    assert not np.allclose(np.concatenate(server.prediction.scores), vafl.joint_scores(server, clients))


# -- memory, mistakes, measures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", vafl.VARIANTS)
def test_a_snapshot_goes_through_the_codec_and_back(variant):
    private = PrivateEmbedding(noise=1.0, gradient_noise=1.0, uploads_max=30)
    server, clients = build(variant=variant, test=True, passes=6, private=private, delay_bound=0.25)
    seen = []

    def look(now):
        seen.append([decode_state(encode_state(party.snapshot())) for party in (server, *clients)])
        return 0.002

    Simulator(seed=1, costs=CostModel(slow={"bo": 4.0})).run([server, *clients], look)
    assert len(seen) > 5
    for states in seen:
        other, others = build(variant=variant, test=True, passes=6, private=private, delay_bound=0.25)
        for party, state in zip((other, *others), states, strict=True):
            party.restore(state)
            assert encode_state(party.snapshot()) == encode_state(state)


def test_every_message_travels():
    rows, h = np.array([1, 2]), np.ones((2, 3))
    codec = Codec(vafl.MESSAGES)
    sent = [
        Upload(1, 0, -1, True, rows, h),
        Gradient(1, 2, 0.5, 3, h),
        Noted(1, True),
        AnswerWanted(1),
        UnderWay(1),
        ReleaseWanted(1),
        Refresh(4, rows),
        Refreshed(4, 2, 0, rows, h.astype(np.float32)),
        Ask(1, False, rows),
        Resting(3, "cap"),
        PredictAsked(5, 0, 9),
        PredictGiven(5, 7, h),
        Resume(3),
        Resumed(LIFE, 4, True),
        StopWanted(),
        Halt("passes", "done", 9),
        Goodbye(),
    ]
    assert {type(body) for body in sent} == set(vafl.MESSAGES)
    for body in sent:
        back = codec.decode(codec.encode(body))
        assert type(back) is type(body)
        for name in body.__struct_fields__:
            np.testing.assert_array_equal(getattr(back, name), getattr(body, name))


def test_what_has_no_place_is_refused():
    server, clients = build()
    with pytest.raises(UnexpectedEvent, match="from zoe"):
        server.handle(Received("zoe", Goodbye()))
    with pytest.raises(UnexpectedEvent, match="got Goodbye"):
        clients[0].handle(Received("server", Goodbye()))
    with pytest.raises(UnexpectedEvent, match=r"ana sent row numbers .* from 0 to 7"):
        server.handle(Received("ana", Upload(1, 0, -1, True, np.array([0, 99]), np.zeros((2, 3)))))
    with pytest.raises(UnexpectedEvent, match="one vector of 3 numbers"):
        server.handle(Received("ana", Upload(1, 0, -1, True, np.array([0, 1]), np.zeros((2, 4)))))


def test_a_ticket_of_before_a_restart_is_passed_over():
    server, clients, firsts = started()
    for party in (server, *clients.values()):
        before = encode_state(party.snapshot())
        assert party.handle(Computed(99)) == [] and encode_state(party.snapshot()) == before
    (work,) = server.handle(Received("ana", firsts["ana"][0]))
    assert bodies(server.handle(Computed(work.ticket)), Gradient)
    assert server.handle(Computed(work.ticket)) == []


def test_wrong_options_are_named():
    with pytest.raises(BadJob, match="Did you mean 'vafl-sync'"):
        Vafl(variant="vafl-synch")
    with pytest.raises(BadJob, match="t must lie between"):
        Vafl(variant="vafl-tsync", t=5).contributors(3)
    with pytest.raises(BadJob, match="buys no privacy"):
        Vafl(private=PrivateEmbedding(1.0, 1.0, 1), inner_noise=True)
    with pytest.raises(BadJob, match="rate"):
        Vafl(rates={"ana": 0.0})
    with pytest.raises(BadJob, match="Did you mean 'ana'"):
        build(rates={"anna": 1.0})
    with pytest.raises(BadData, match="Align the tables"):
        vafl.build({"a": np.ones((3, 1))}, np.ones((4, 2)), {"a": LinearEmbedding(1, 2)}, AdditiveHead(2), Vafl())
    with pytest.raises(BadData, match="they must agree"):
        vafl.build({"a": np.ones((4, 1))}, np.ones((4, 2)), {"a": LinearEmbedding(1, 3)}, AdditiveHead(3), Vafl())


@pytest.mark.parametrize(
    ("labels", "classes", "words"),
    [([-1, 1], 2, "labels > 0"), ([0, 1, 5], 2, r"got \[5\]"), ([0.5], 2, r"\[0.5\]"), ([[0, 1]], 2, "shape")],
)
def test_labels_that_are_no_class_numbers_are_refused(labels, classes, words):
    with pytest.raises(BadData, match=words):
        one_hot(np.array(labels), classes)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", ["features", "sparse", "targets", "test_features", "test_targets"])
def test_numbers_that_are_not_finite_are_refused_with_whose_they_are(value, place):
    good, bad = np.ones((4, 1)), np.array([[0.0], [value], [1.0], [0.0]])
    parts = dict.fromkeys(("features", "targets", "test_features", "test_targets"), good) | {place: bad}
    ana = csr_matrix(bad) if place == "sparse" else parts["features"]
    with pytest.raises(BadData, match="The server has 1" if "targets" in place else "ana has 1"):
        vafl.build(
            {"ana": ana},
            parts["targets"],
            {"ana": LinearEmbedding(1, 1)},
            AdditiveHead(1, "squared"),
            Vafl(),
            test_features={"ana": parts["test_features"]},
            test_targets=parts["test_targets"],
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": {"ana": np.ones((4, 3))}}, "ana has rows of 3 numbers, and its embedding takes 1"),
        ({"test_features": {"bo": np.ones((2, 1))}}, "every client and of no other, ana; it has those of bo"),
        ({"test_features": {"ana": np.ones((3, 1))}}, "differ: ana 3, the server 2"),
        ({"test_features": {"ana": np.ones((2, 2))}}, "rows of 1 numbers for training and of 2 for testing"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_whose_they_are(changes, words):
    whole = {"features": {"ana": np.ones((4, 1))}, "test_features": {"ana": np.ones((2, 1))}} | changes
    with pytest.raises(BadData, match=words):
        vafl.build(
            targets=np.ones(4),
            embeddings={"ana": LinearEmbedding(1, 1)},
            head=AdditiveHead(1, "squared"),
            options=Vafl(),
            test_targets=np.ones(2),
            **whole,
        )


def test_an_embedding_belongs_to_one_client_that_exists():
    x, y, head = {"ana": np.ones((4, 1)), "bo": np.ones((4, 1))}, np.ones(4), AdditiveHead(1, "squared")
    shared = LinearEmbedding(1, 1)
    vafl.build(x, y, {"ana": shared, "bo": shared}, head, Vafl())  # it holds nothing of a pass
    with pytest.raises(BadJob, match="Did you mean 'ana'"):
        vafl.build(x, y, {"ana": shared, "bo": shared, "anna": shared}, head, Vafl())
    other = Stateful(1, 1)
    with pytest.raises(BadJob, match="ana and bo were given the same embedding object"):
        vafl.build(x, y, {"ana": other, "bo": other}, head, Vafl())


class Stateful:
    def __init__(self, inputs, width):
        self.inner = LinearEmbedding(inputs, width)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_the_sentences_about_privacy():
    assert vafl.privacy_label(Vafl(noise=0.1)) == "perturbed, no privacy claim"
    assert "give" in vafl.what_clients_learn(AdditiveHead(3), Vafl())
    assert "or label_dp_epsilon" not in vafl.what_clients_learn(AdditiveHead(1, "squared"), Vafl())
    assert "negative entry" not in reveals_of(Gradient) and "target itself" in reveals_of(Gradient)
    assert "2-label-privacy" in vafl.what_clients_learn(AdditiveHead(3), Vafl(label_dp_epsilon=2.0))
    assert "experiments only" in vafl.noise_warning(False, Vafl(noise=0.1))
    assert vafl.noise_warning(True, Vafl(noise=0.1)) == ""


def test_a_diverging_run_says_so():
    server, clients = build(optimiser=Sgd(1e200), head_optimiser=Sgd(1e200))
    with np.errstate(all="ignore"):
        outcome = Simulator(seed=1).run([server, *clients])
    assert outcome.finished["server"].verdict == "diverged"


def test_time_is_up():
    server, clients = build(seconds=0.01, passes=1e9)
    outcome = Simulator(seed=1).run([server, *clients])
    assert outcome.finished["server"] == Finish("time", "the 0.01 seconds are over")
    assert outcome.time_s < 0.02


def test_the_last_answer_is_applied_before_the_client_leaves():
    server, clients, firsts = started()
    ana = clients["ana"]
    (gradient,) = bodies(run_jobs(server, server.handle(Received("ana", firsts["ana"][0]))), Gradient)
    waiting = ana.handle(Received("server", gradient))
    assert ana.handle(Received("server", Halt("passes", "", 1))) == []
    effects = run_jobs(ana, waiting)
    assert ana.version == 1
    assert isinstance(effects[-1], Finish)


def test_area_under_curve_counts_ties_half():
    scores, positive = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, True, False, True])
    assert area_under_curve(scores, positive) == pytest.approx(0.875)
    assert math.isnan(area_under_curve(scores, np.ones(4, dtype=bool)))
