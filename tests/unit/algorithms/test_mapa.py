"""One event in, these effects out; repeats, forgetfulness and spent budgets included."""

import math

import numpy as np
import pytest

from offbeat.algorithms.mapa import (
    MESSAGES,
    PROTOCOL,
    Cloud,
    Edge,
    Goodbye,
    GradientStep,
    Halt,
    Hello,
    Leaving,
    Model,
    Upload,
    parties,
    stepping,
)
from offbeat.algorithms.mapa.cloud import LINGER_ROUNDS
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.algorithms.mapa.rates import AsyncRate, Constants, SteadyRate
from offbeat.errors import BadData, BadJob, UnexpectedEvent
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.message.codec import Codec, decode_state, encode_state
from offbeat.party.contract import (
    END,
    Broadcast,
    Compute,
    Computed,
    Finish,
    Message,
    Observe,
    Party,
    PeerBack,
    PeerLost,
    Received,
    Send,
    Started,
    Wake,
    Woken,
)
from offbeat.privacy.ledger import Budget, GaussianRelease
from offbeat.privacy.mechanism import Gaussian, NoNoise
from offbeat.privacy.noise import SeededNoise

MODEL = LinearModel("logistic", 2)
RNG = np.random.default_rng(0)
DATA = edge_data(RNG.standard_normal((50, 2)), RNG.integers(0, 2, 50))
COST = GaussianRelease(5.0, 0.2)


def cloud(updates=10, lag_max=3, edges=("a", "b"), strength=0.0):
    return Cloud(
        np.zeros(3), GradientStep(SteadyRate(0.5, clip=2.0), strength), updates=updates, lag_max=lag_max, edges=edges
    )


def edge(uploads=100, epsilon=50.0):
    privacy = EdgePrivacy(Gaussian(5.0, 0.2, 50), Budget(epsilon, 1e-5), ((COST, uploads),))
    return Edge("a", MODEL, DATA, privacy, SeededNoise(0, "a"), patience=3)


def upload(number, version=0, value=1.0):
    return Received("a", Upload(np.full(3, value), version, number, -1.0))


def model(version=0, answers=0, clip=1.0):
    return Received("cloud", Model(np.zeros(3), version, clip, 0, answers, 0))


def sends(effects, kind=None):
    return [e for e in effects if isinstance(e, Send) and (kind is None or isinstance(e.body, kind))]


def run_job(effects):
    (job,) = [e for e in effects if isinstance(e, Compute)]
    return Computed(job.ticket, job.job())


def test_every_message_says_what_it_reveals_and_travels():
    codec = Codec(MESSAGES)
    bodies = [
        Hello(0.1, 3),
        Model(np.arange(3.0), 4, math.inf, 1, 2, 0),
        Upload(np.ones(3), 1, 2, -1.0),
        Leaving(5),
        Halt("passes", "done"),
        Goodbye(),
    ]
    assert {type(body) for body in bodies} == set(MESSAGES)
    for body in bodies:
        assert "Reveals:" in type(body).__doc__ and isinstance(body, Message)
        again = codec.decode(codec.encode(body))
        assert type(again) is type(body)
        for field in body.__struct_fields__:
            assert np.array_equal(getattr(again, field), getattr(body, field))


def test_parties_keep_the_contract_and_the_protocol_table_names_every_handler():
    assert isinstance(cloud(), Party) and isinstance(edge(), Party)
    assert {line.body for line in PROTOCOL if line.to == "cloud"} == set(cloud()._handlers)
    assert {line.body for line in PROTOCOL if line.to == "edge"} == set(edge()._handlers)


def test_cloud_answers_hello_with_its_model():
    (answer,) = cloud().handle(Received("a", Hello(0.1, 0)))
    assert answer.to == "a"
    assert (answer.body.version, answer.body.clip, answer.body.answers) == (0, 2.0, 0)


def test_cloud_steps_once_per_upload_and_answers_its_edge_alone():
    party = cloud(strength=0.1)
    (answer,) = party.handle(upload(1))
    assert answer.to == "a" and answer.body.version == 1 and answer.body.answers == 1
    assert np.allclose(party.parameters, -0.5)
    party.handle(upload(2, version=1))
    assert np.allclose(party.parameters, -0.5 * (1 - 0.05) - 0.5)


def test_a_model_that_is_no_longer_finite_ends_the_run_and_is_not_kept():
    party = cloud()
    party.handle(upload(1, value=1.5e308))
    party.handle(upload(2, version=1, value=1.5e308))
    last = party.parameters.copy()
    party.handle(upload(3, version=2, value=1.5e308))
    assert party.ending is not None and party.ending.verdict == "diverged" and "smaller step" in party.ending.reason
    assert np.isfinite(last).all() and (party.parameters == last).all()


def test_an_edge_with_rows_of_another_size_is_refused():
    with pytest.raises(BadData, match="columns"):
        Edge(
            "a",
            LinearModel("logistic", 3),
            edge_data(np.ones((4, 2)), np.array([0, 1, 0, 1])),
            EdgePrivacy(NoNoise(2)),
            SeededNoise(0, "a"),
        )


def test_a_repeated_upload_is_answered_but_not_applied():
    party = cloud()
    party.handle(upload(1))
    before = party.parameters
    (answer,) = party.handle(upload(1))
    assert isinstance(answer.body, Model) and party.parameters is before and party.version == 1
    assert party.repeated == 1


def test_an_upload_beyond_the_lag_is_refused_and_its_edge_pulls_anew():
    party = cloud(lag_max=1)
    for number in (1, 2):
        party.handle(upload(number, version=number - 1))
    effects = party.handle(upload(3, version=0))
    assert party.version == 2 and party.refused == 1
    assert sends(effects)[0].body.version == 2 and sends(effects)[0].body.answers == 3


@pytest.mark.parametrize("bad", [np.full(2, 1.0), np.full(3, np.nan), np.full(3, np.inf), np.ones(3, dtype=np.int64)])
def test_malformed_uploads_are_dropped(bad):
    party = cloud()
    party.handle(Received("a", Upload(bad, 0, 1, -1.0)))
    assert party.version == 0 and party.dropped == 1
    party.handle(Received("a", Upload(np.ones(3), 7, 2, -1.0)))
    assert party.dropped == 2


def test_cloud_ends_after_its_updates_and_waits_for_goodbyes():
    party = cloud(updates=1)
    effects = party.handle(upload(1))
    (halt,) = [e for e in effects if isinstance(e, Broadcast)]
    assert halt.to == ("a", "b") and halt.body.verdict == "passes"
    assert party.handle(Received("a", Goodbye())) == []
    assert party.handle(Received("b", Goodbye())) == [Finish("passes", halt.body.reason)]


def test_cloud_does_not_wait_for_ever():
    party = cloud(updates=1)
    effects = party.handle(upload(1))
    for _ in range(LINGER_ROUNDS + 1):
        assert not any(isinstance(e, Finish) for e in effects[:-1])
        effects = party.handle(Woken())
    assert isinstance(effects[-1], Finish)


def test_when_every_edge_has_left_the_run_ends():
    party = cloud()
    assert isinstance(party.handle(Received("a", Leaving(4)))[0].body, Halt)
    effects = party.handle(Received("b", Leaving(4)))
    assert effects[-1] == Finish("budget", party.ending.reason)


def test_when_every_edge_is_lost_the_run_ends_unless_one_is_back():
    party = cloud(edges=("a",))
    assert party.handle(PeerLost("a")) == [Wake(5.0)]
    party.handle(PeerBack("a"))
    assert party.handle(Woken()) == []
    party.handle(PeerLost("a"))
    assert party.handle(Woken())[-1].verdict == "peer-lost"


def test_an_edge_that_is_away_at_the_end_hears_of_it_when_it_is_back():
    """Before: the cloud had left, and an edge that was just being restarted asked it for a minute and ended as lost."""
    party = cloud(updates=1, edges=("a", "b"))
    party.handle(PeerLost("b"))
    party.handle(upload(1))
    assert party.handle(Received("a", Goodbye())) == []
    (told,) = party.handle(PeerBack("b"))
    assert told.to == "b" and isinstance(told.body, Halt)
    (over,) = party.handle(Received("b", Goodbye()))
    assert isinstance(over, Finish) and over.verdict == "passes"


def test_an_edge_that_stays_away_at_the_end_is_waited_for_as_long_as_one_that_does_not_answer():
    party = cloud(updates=1, edges=("a", "b"))
    party.handle(PeerLost("b"))
    party.handle(upload(1))
    party.handle(Received("a", Goodbye()))
    rounds = [party.handle(Woken()) for _ in range(LINGER_ROUNDS)]
    assert rounds[:-1] == [[Wake(1.0)]] * (LINGER_ROUNDS - 1) and isinstance(rounds[-1][0], Finish)


def test_new_edges_may_join_at_any_time():
    party = cloud(edges=("a",))
    party.handle(upload(1))
    (answer,) = party.handle(Received("newcomer", Hello(0.3, 0)))
    assert answer.body.version == 1 and "newcomer" in party.waiting_for


def test_edge_pulls_computes_pays_and_uploads():
    party = edge()
    hello = party.handle(Started())
    assert isinstance(sends(hello)[0].body, Hello)
    effects = party.handle(model(version=7))
    assert party.ledger.releases == 0
    (sent,) = sends(party.handle(run_job(effects)), Upload)
    assert (sent.body.number, sent.body.version) == (1, 7)
    assert party.ledger.spent == {COST: 1}


def test_edge_ignores_models_while_it_computes_and_answers_to_older_uploads():
    party = edge()
    party.handle(Started())
    effects = party.handle(model())
    assert party.handle(model()) == []
    party.handle(run_job(effects))
    assert party.handle(model(answers=0)) == []
    assert any(isinstance(e, Compute) for e in party.handle(model(version=1, answers=1)))


def test_a_retry_is_the_same_message_and_costs_nothing():
    party = edge()
    party.handle(Started())
    first = party.handle(run_job(party.handle(model())))
    (wake,) = [e for e in first if isinstance(e, Wake)]
    again = party.handle(Woken(wake.token))
    assert sends(again)[0].body is sends(first)[0].body and party.ledger.releases == 1
    assert party.handle(Woken(wake.token - 1)) == []
    assert sends(party.handle(PeerBack("cloud")))[0].body is sends(first)[0].body


def test_an_unanswered_edge_gives_up():
    party = edge()
    effects = party.handle(Started())
    for _ in range(party.patience + 1):
        (wake,) = [e for e in effects if isinstance(e, Wake)]
        effects = party.handle(Woken(wake.token))
    assert effects[-1].verdict == "peer-lost"


def test_a_spent_budget_ends_the_edge_before_it_computes():
    party = edge(uploads=0, epsilon=1e-3)
    party.handle(Started())
    effects = party.handle(model())
    assert sends(effects, Leaving) and not any(isinstance(e, Compute) for e in effects)
    end = party.handle(Received("cloud", Halt("budget", "spent")))
    assert end[-1] == Finish("budget", "spent") and party.ledger.releases == 0


def test_an_edge_that_forgot_uploads_pays_for_them():
    party = edge()
    party.handle(Started(resumed=True))
    effects = party.handle(model(answers=5))
    assert party.ledger.spent == {COST: 5}
    (sent,) = sends(party.handle(run_job(effects)), Upload)
    assert sent.body.number == 6 and party.ledger.spent == {COST: 6}


def test_after_a_crash_what_was_paid_for_is_sent_again_byte_for_byte():
    party = edge()
    party.handle(Started())
    (sent,) = sends(party.handle(run_job(party.handle(model()))), Upload)
    again = edge()
    again.restore(decode_state(encode_state(party.snapshot())))
    (resent,) = sends(again.handle(Started(resumed=True)))
    assert resent.body.number == 1 and np.array_equal(resent.body.gradient, sent.body.gradient)
    assert again.ledger.spent == {COST: 1}
    (second,) = sends(again.handle(run_job(again.handle(model(answers=1)))), Upload)
    assert second.body.number == 2 and not np.array_equal(second.body.gradient, sent.body.gradient)


def test_a_crash_in_the_middle_of_a_job_costs_nothing_and_begins_anew():
    party = edge()
    party.handle(Started())
    party.handle(model())
    again = edge()
    again.restore(decode_state(encode_state(party.snapshot())))
    (hello,) = sends(again.handle(Started(resumed=True)), Hello)
    assert hello.body.uploads == 0 and again.ledger.releases == 0 and not again.computing


def test_a_ticket_of_before_a_restart_releases_and_costs_nothing():
    party = edge()
    party.handle(Started())
    assert party.handle(Computed(1)) == [] and party.ledger.releases == 0
    done = run_job(party.handle(model()))
    assert party.handle(Computed(7, done.result)) == [] and party.ledger.releases == 0
    assert sends(party.handle(done), Upload) and party.ledger.releases == 1
    assert party.handle(done) == [] and party.ledger.releases == 1


def test_an_edge_that_was_stopped_keeps_what_it_had_computed():
    party = edge()
    party.handle(Started())
    done = run_job(party.handle(model()))
    (leaving,) = sends(party.handle(Woken(END)))
    assert leaving.body == Leaving(0, True)
    assert party.handle(done) == [] and party.handle(Woken(END)) == [] and party.ledger.releases == 0


def test_cloud_survives_its_snapshot():
    party = cloud(updates=2)
    party.handle(Received("a", Hello(0.1, 0)))
    party.handle(upload(1))
    again = cloud(updates=2)
    again.restore(decode_state(encode_state(party.snapshot())))
    assert np.array_equal(again.parameters, party.parameters) and again.seen == party.seen
    assert again.snapshot().keys() == party.snapshot().keys()
    again.handle(upload(1))
    assert again.version == 1
    again.handle(upload(2))
    assert again.ending is not None
    resumed = cloud(updates=2)
    resumed.restore(decode_state(encode_state(again.snapshot())))
    assert isinstance(resumed.handle(Started(resumed=True))[0], Broadcast)


def test_statement_names_both_adjacencies_or_the_missing_promise():
    party = edge()
    party.handle(Started())
    party.handle(run_job(party.handle(model())))
    stated = party.statement()
    assert stated["epsilon (add-remove)"] < stated["epsilon (replace-one)"] == stated["epsilon"]
    assert stated["seeded"]
    plain = Edge("a", MODEL, DATA, EdgePrivacy(NoNoise(5)), SeededNoise(0, "a"))
    assert plain.statement()["epsilon"] is None and plain.warnings


def test_mistakes_are_named():
    with pytest.raises(UnexpectedEvent, match="got a Model from 'a'"):
        cloud().handle(Received("a", Model(np.zeros(3), 0, 1.0, 0, 0, 0)))
    with pytest.raises(UnexpectedEvent, match="Hello"):
        edge().handle(Received("cloud", Hello(0.0, 0)))
    with pytest.raises(UnexpectedEvent, match="same model"):
        edge().handle(Received("cloud", Model(np.zeros(4), 0, 1.0, 0, 0, 0)))
    with pytest.raises(BadJob, match="at least one edge"):
        parties(MODEL, {}, GradientStep(SteadyRate(0.1), 0.0), {}, updates=1, lag_max=1, seed=0)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan, 1e200])
def test_a_private_edge_refuses_a_clip_that_would_void_its_noise(clip):
    party = edge()
    party.handle(Started())
    with pytest.raises(UnexpectedEvent, match="clip"):
        party.handle(model(clip=clip))
    assert party.ledger.releases == 0


def test_stage_changes_are_observed():
    from offbeat.algorithms.mapa.rates import Constants, StagedRate

    rate = StagedRate(Constants(1, 1, 1, 1e-9, 1, 1), 4.0)
    party = Cloud(np.zeros(3), GradientStep(rate, 0.0), updates=9, lag_max=9)
    effects = party.handle(upload(1))
    assert Observe("stage", 1) in effects and sends(effects)[0].body.clip == 2.0


def test_an_upload_later_than_the_step_allows_for_moves_less():
    upload = Upload(np.array([6.0]), 0, 1, -1.0)
    start = np.array([0.0])
    rule = GradientStep(SteadyRate(0.5), 0.0, lag=2)
    moved = [float(rule.apply(start, upload, lag, 9)[0]) for lag in (0, 2, 5)]
    assert moved == [-3.0, -3.0, -1.5]
    assert float(GradientStep(SteadyRate(0.5), 0.0).apply(start, upload, 5, 9)[0]) == -3.0


def test_builders_give_a_cloud_and_its_edges():
    constants = Constants(1, 1, 1, 1, 2, 5)
    made = stepping(MODEL, {"a": DATA, "b": DATA}, AsyncRate(constants), constants=constants, updates=3, seed=None)
    assert [party.name for party in made] == ["cloud", "a", "b"]
    assert not made[1].noise.seeded
