"""An answer is late: the client asks for it, the server says what has become of it, and both learn how long to wait."""

import numpy as np
import pytest

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Vafl, one_hot
from offbeat.algorithms.vafl.messages import (
    AnswerWanted,
    Ask,
    Gradient,
    Halt,
    Noted,
    PredictAsked,
    Refresh,
    ReleaseWanted,
    Resting,
    UnderWay,
    Upload,
)
from offbeat.algorithms.vafl.patience import Patience
from offbeat.learning.embeddings import AdditiveHead, LinearEmbedding, Sgd
from offbeat.message.codec import Codec, decode_state, encode_state
from offbeat.party.contract import Broadcast, Compute, Computed, PeerBack, Received, Send, Started, Wake, Woken
from offbeat.privacy.embedding import PrivateEmbedding

ROWS = 8


class Elsewhere(LinearEmbedding):
    """Does not say that it begins at zero: a first upload is made in private mode too."""

    begins_at_zero = False


def build(**changes):
    rng = np.random.default_rng(0)
    x, targets = rng.normal(size=(2 * ROWS, 4)), one_hot(rng.integers(0, 3, 2 * ROWS), 3)
    columns = {"ana": x[:, :2], "bo": x[:, 2:]}
    options = {"batch": 4, "passes": 100, "optimiser": Sgd(0.5), "retry_s": 1.0} | changes
    server, clients = vafl.build(
        {name: part[:ROWS] for name, part in columns.items()},
        targets[:ROWS],
        {name: Elsewhere(2, 3) for name in columns},
        AdditiveHead(3),
        Vafl(**options),
        test_features={name: part[ROWS:] for name, part in columns.items()},
        test_targets=targets[ROWS:],
    )
    server.handle(Started())
    return server, {client.name: client for client in clients}


def done(party, effects):
    """Effects, with all that is to be computed computed."""
    found = []
    for effect in effects:
        found += done(party, party.handle(Computed(effect.ticket))) if isinstance(effect, Compute) else [effect]
    return found


def sent(effects):
    return [effect.body for effect in effects if isinstance(effect, Send | Broadcast)]


def pauses(effects):
    return [effect.after_s for effect in effects if isinstance(effect, Wake)]


def training(**changes):
    """Everybody's rows are at the server; the clients' first uploads have left and not arrived."""
    server, clients = build(**changes)
    told, firsts = [], {}
    for client in clients.values():
        (fill,) = sent(done(client, client.handle(Started())))
        told = server.handle(Received(client.name, fill))
    for effect in told:
        (firsts[effect.to],) = sent(
            done(clients[effect.to], clients[effect.to].handle(Received("server", effect.body)))
        )
    return server, clients, firsts


# -- the client asks --------------------------------------------------------------------------------------------------


def test_a_late_answer_is_asked_after_ever_more_patiently_and_in_the_end_given_up():
    _, clients, firsts = training(retries_max=5)
    release, waits = firsts["ana"].release, []
    for _ in range(5):
        effects = clients["ana"].handle(Woken(release))
        assert sent(effects) == [AnswerWanted(release)]
        waits += pauses(effects)
    assert waits == [2.0, 4.0, 8.0, 8.0, 8.0]
    (end,) = clients["ana"].handle(Woken(release))
    assert end.verdict == "peer-lost"


def test_what_did_not_arrive_is_sent_again_byte_for_byte_and_costs_nothing():
    private = PrivateEmbedding(noise=1.0, gradient_noise=1.0, uploads_max=5)
    server, clients, firsts = training(private=private)
    ana, upload, codec = clients["ana"], firsts["ana"], Codec(vafl.MESSAGES)
    spent = ana.ledger.released.copy()
    for _ in range(3):
        (question,) = sent(ana.handle(Woken(upload.release)))
        (answer,) = sent(server.handle(Received("ana", question)))
        assert answer == ReleaseWanted(upload.release)
        (again,) = sent(ana.handle(Received("server", answer)))
        assert codec.encode(again) == codec.encode(upload)
    np.testing.assert_array_equal(ana.ledger.released, spent)
    assert ana.releases.retried == 3 and ana.releases.patience.factor == 1.0


def test_a_client_is_patient_with_a_server_that_is_at_it():
    server, clients, firsts = training(retries_max=2)
    ana, release = clients["ana"], firsts["ana"].release
    work = server.handle(Received("ana", firsts["ana"]))
    for factor in (2.0, 4.0, 8.0, 8.0):
        (question,) = sent(ana.handle(Woken(release)))
        (answer,) = sent(server.handle(Received("ana", question)))
        assert answer == UnderWay(release) and ana.handle(Received("server", answer)) == []
        assert ana.releases.patience.factor == factor
    (gradient,) = sent(done(server, work))
    effects = done(ana, ana.handle(Received("server", gradient)))
    assert [type(body) for body in sent(effects)] == [Upload] and pauses(effects) == [8.0 * 0.98]


def test_an_answer_that_comes_twice_was_asked_after_too_early():
    server, clients, firsts = training()
    ana = clients["ana"]
    (gradient,) = sent(done(server, server.handle(Received("ana", firsts["ana"]))))
    (again,) = sent(server.handle(Received("ana", AnswerWanted(firsts["ana"].release))))
    assert again is gradient
    ana.handle(Received("server", gradient))
    ana.handle(Received("server", again))
    assert ana.releases.patience.factor == 2.0


def test_a_server_that_came_back_is_asked_and_not_flooded():
    _, clients, firsts = training()
    assert clients["ana"].handle(PeerBack("server")) == [Send("server", AnswerWanted(firsts["ana"].release))]


def test_rows_that_wait_for_others_to_begin_are_asked_after_and_not_sent_again():
    server, clients = build()
    (fill,) = sent(done(clients["ana"], clients["ana"].handle(Started())))
    assert sent(server.handle(Received("ana", AnswerWanted(fill.release)))) == [ReleaseWanted(fill.release)]
    server.handle(Received("ana", fill))
    for _ in range(50):
        (question,) = sent(clients["ana"].handle(Woken(fill.release)))
        (answer,) = sent(server.handle(Received("ana", question)))
        assert answer == Noted(fill.release, False) and clients["ana"].handle(Received("server", answer)) == []


def test_what_the_server_says_of_a_release():
    server, _, firsts = training(variant="vafl-tsync", t=2, in_flight=1)

    def told(release, client="ana"):
        (body,) = sent(server.handle(Received(client, AnswerWanted(release))))
        return body

    upload = firsts["ana"]
    assert told(upload.release) == ReleaseWanted(upload.release)
    server.handle(Received("ana", upload))
    assert told(upload.release) == UnderWay(upload.release)  # it waits for a second client
    newer = Upload(9, 1, -1, True, upload.rows, upload.embedding, 2)
    server.handle(Received("ana", newer))
    assert told(upload.release) == Noted(upload.release, True)  # replaced
    work = server.handle(Received("bo", firsts["bo"]))
    assert told(9) == UnderWay(9)  # the head is at it
    done(server, work)
    assert isinstance(told(9), Gradient)
    assert told(1) == Noted(1, True)  # the first rows, long there
    server._end("passes", "")
    assert told(9) == UnderWay(9)  # the test rows come first
    server._shut_down()
    assert isinstance(told(9), Halt)


def test_a_client_that_rests_is_heard_in_the_end():
    private = PrivateEmbedding(noise=1.0, gradient_noise=1.0, uploads_max=2)
    server, clients, _ = training(private=private)
    resting = clients["ana"].releases.keep(Resting(clients["ana"].releases.next_number(), "spent"))[0].body
    (question,) = sent(clients["ana"].handle(Woken(resting.release)))
    (answer,) = sent(server.handle(Received("ana", question)))
    assert sent(clients["ana"].handle(Received("server", answer))) == [resting]


# -- the server asks --------------------------------------------------------------------------------------------------


def test_a_client_that_is_at_it_says_so():
    _, clients, _ = training()
    for body in (Refresh(9, np.array([0, 1])), PredictAsked(10, 0, 3)):
        assert isinstance(clients["ana"].handle(Received("server", body))[0], Compute)
        assert sent(clients["ana"].handle(Received("server", body))) == [UnderWay(body.request)]


def test_a_slow_round_is_not_given_up_and_the_next_ones_are_given_time():
    server, clients = build(variant="vafl-sync", retries_max=2)
    clients["ana"].handle(Started())
    ask = Ask(server.rounds.request, False, server.rounds.rows)
    clients["ana"].handle(Received("server", ask))
    for factor in (2.0, 4.0, 8.0, 8.0):
        (again,) = sent(server.handle(Woken(ask.request)))
        (answer,) = sent(clients["ana"].handle(Received("server", again)))
        assert answer == UnderWay(ask.request) and server.handle(Received("ana", answer)) == []
        assert server.patience.factor == factor
    assert server.phase == "training"


def test_nobody_is_asked_again_while_the_server_is_at_work():
    server, clients = build(variant="vafl-sync")
    ask = Ask(server.rounds.request, False, server.rounds.rows)
    for client in clients.values():
        client.handle(Started())
        (upload,) = sent(done(client, client.handle(Received("server", ask))))
        work = server.handle(Received(client.name, upload))
    assert [type(effect) for effect in work] == [Compute]
    assert server.handle(Woken(ask.request)) == []


def test_only_who_was_asked_can_say_that_he_is_at_it():
    server, _, firsts = training(delay_bound=0.25)
    server.iteration = 40
    (refresh,) = sent(server.handle(Received("ana", firsts["ana"])))
    server.handle(Woken(refresh.request))
    for name, tries in (("ana", 1), ("bo", 0)):
        server.handle(Received(name, UnderWay(refresh.request)))
        assert server.refreshes.wanted[refresh.request].tries == tries


def test_patience_has_bounds_and_is_remembered():
    patience = Patience(2.0)
    for _ in range(9):
        patience.too_short()
    assert patience.pause_s() == patience.pause_s(40) == 16.0
    for _ in range(500):
        patience.long_enough()
    assert patience.pause_s() == 2.0
    server, clients, _ = training()
    for party, patience in ((server, server.patience), (clients["ana"], clients["ana"].releases.patience)):
        patience.too_short()
        state = decode_state(encode_state(party.snapshot()))
        patience.too_short()
        party.restore(state)
        assert patience.factor == 2.0


@pytest.mark.parametrize("name", ["server", "ana"])
def test_numbers_that_stand_for_nothing_change_nothing(name):
    server, clients, _ = training()
    party = server if name == "server" else clients[name]
    before = encode_state(party.snapshot())
    bodies = [UnderWay(99)] if name == "server" else [UnderWay(99), ReleaseWanted(99)]
    for body in bodies:
        assert party.handle(Received("ana" if name == "server" else "server", body)) == []
    assert encode_state(party.snapshot()) == before
