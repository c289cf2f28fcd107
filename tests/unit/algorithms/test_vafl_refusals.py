"""What VAFL's parties refuse: each message names its sender in the error, and changes nothing."""

import tracemalloc

import numpy as np
import pytest

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Vafl, one_hot
from offbeat.algorithms.vafl.messages import (
    Ask,
    Goodbye,
    Gradient,
    Halt,
    Noted,
    PredictAsked,
    PredictGiven,
    Refresh,
    Refreshed,
    Resting,
    Resume,
    Resumed,
    Upload,
)
from offbeat.algorithms.vafl.releases import LIFE
from offbeat.errors import UnexpectedEvent
from offbeat.learning.embeddings import AdditiveHead, LinearEmbedding, Sgd
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast, Compute, Computed, Received, Send, Started
from offbeat.privacy.embedding import PrivateEmbedding

ROWS, TEST_ROWS = 8, 6
PRIVATE = PrivateEmbedding(noise=1.0, gradient_noise=1.0, uploads_max=9)


class Elsewhere(LinearEmbedding):
    """Does not say that it begins at zero: a first upload is made in private mode too."""

    begins_at_zero = False


def build(**changes):
    rng = np.random.default_rng(0)
    x, targets = rng.normal(size=(ROWS + TEST_ROWS, 4)), one_hot(rng.integers(0, 3, ROWS + TEST_ROWS), 3)
    columns = {"ana": x[:, :2], "bo": x[:, 2:]}
    options = {"batch": 4, "passes": 100, "optimiser": Sgd(0.5), "head_optimiser": Sgd(0.5)} | changes
    server, clients = vafl.build(
        {name: part[:ROWS] for name, part in columns.items()},
        targets[:ROWS],
        {name: Elsewhere(2, 3) for name in columns},
        AdditiveHead(3),
        Vafl(**options),
        test_features={name: part[ROWS:] for name, part in columns.items()},
        test_targets=targets[ROWS:],
    )
    return server, {client.name: client for client in clients}


def carry(parties, name, event, keep=()):
    """Hand on what parties say to each other, but for messages of the kinds in `keep`; those are returned."""
    kept = []
    for effect in parties[name].handle(event):
        if isinstance(effect, Compute):
            kept += carry(parties, name, Computed(effect.ticket), keep)
        elif isinstance(effect, Send | Broadcast):
            for to in effect.to if isinstance(effect, Broadcast) else (effect.to,):
                if isinstance(effect.body, keep):
                    kept.append((to, effect.body))
                else:
                    kept += carry(parties, to, Received(name, effect.body), keep)
    return kept


def training(**changes):
    """A server and two clients; every client has an upload under way that has not arrived."""
    server, clients = build(**changes)
    parties = {"server": server, **clients}
    kept = []
    for name in parties:
        kept += carry(parties, name, Started(), (Gradient, Ask))
    return parties, kept


def asked():
    """A synchronous round is open: the server's request has not arrived."""
    parties, kept = training(variant="vafl-sync")
    return parties, kept[0][1]


def refreshing():
    """The server waits for fresh rows of bo."""
    parties, _ = training(delay_bound=0.25)
    server = parties["server"]
    server.iteration = 40
    upload = Upload(9, 1, -1, True, np.array([0, 1, 2]), np.zeros((3, 3)))
    (effect,) = [e for e in server.handle(Received("ana", upload)) if isinstance(e, Send)]
    assert effect.to == "bo"
    return parties, effect.body


def predicting():
    """The server has asked for the embeddings of the test rows."""
    parties, _ = training()
    (effect,) = [e for e in parties["server"]._end("passes", "") if isinstance(e, Broadcast)]
    return parties, effect.body


def refused(party, sender, body, words):
    before = encode_state(party.snapshot())
    with pytest.raises(UnexpectedEvent, match=words) as refusal:
        party.handle(Received(sender, body))
    assert str(refusal.value).startswith((f"{sender} sent", f"{party.name} ("))
    assert encode_state(party.snapshot()) == before


def two(*rows):
    return np.array(rows, dtype=np.int64)


H = np.zeros((2, 3))
UPLOADS = {
    "a row that is not there": (Upload(9, 0, -1, True, two(0, 8), H), "from 0 to 7"),
    "a negative row": (Upload(9, 0, -1, True, two(0, -1), H), "from 0 to 7"),
    "a huge row": (Upload(9, 0, -1, True, two(0, 2**62), H), "from 0 to 7"),
    "a row twice": (Upload(9, 0, -1, True, two(3, 3), H), "none of them twice"),
    "rows of another type": (Upload(9, 0, -1, True, np.array([0.0, 1.0]), H), "float64"),
    "rows in a table": (Upload(9, 0, -1, True, two(0, 1)[None], H[None]), r"\(1, 2\)"),
    "no rows": (Upload(9, 0, -1, True, two(), H[:0]), "an upload of no rows"),
    "too wide": (Upload(9, 0, -1, True, two(0, 1), np.zeros((2, 4))), "one vector of 3 numbers"),
    "too many": (Upload(9, 0, -1, True, two(0, 1), np.zeros((3, 3))), "one vector of 3 numbers"),
    "whole numbers": (Upload(9, 0, -1, True, two(0, 1), np.zeros((2, 3), dtype=np.int64)), "int64"),
    "release 0": (Upload(0, 0, -1, True, two(0, 1), H), "the release number 0"),
    "a negative release": (Upload(-LIFE, 0, -1, True, two(0, 1), H), "the release number"),
    "a release beyond all": (Upload(2**63 - 1, 0, -1, True, two(0, 1), H), "the release number"),
    "an oldest to come": (Upload(9, 0, -1, True, two(0, 1), H, 10), "10 as its oldest"),
}


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("case", UPLOADS)
def test_uploads_that_are_none(case, wanted):
    body, words = UPLOADS[case]
    if case == "no rows" and not wanted:
        return  # the rows of a first upload may all have reached their cap
    parties, _ = training()
    changed = Upload(body.release, 0, -1, wanted, body.rows, body.embedding, body.oldest)
    refused(parties["server"], "ana", changed, words)


def test_a_synchronous_upload_has_the_rows_that_were_asked_for():
    parties, ask = asked()
    others = two(*(set(range(ROWS)) - set(ask.rows.tolist())))
    refused(parties["server"], "ana", Upload(1, 0, ask.request, True, others, np.zeros((4, 3))), "other rows")
    carry(parties, "server", Received("ana", Upload(1, 0, ask.request, True, ask.rows, np.zeros((4, 3)))))
    assert parties["server"].buffer.keys() == {0}


@pytest.mark.parametrize(
    ("sender", "rows", "width", "release", "words"),
    [
        ("ana", two(0, 1), 3, 5, "of another client"),
        ("bo", two(0, 7), 3, 5, "other rows than request"),
        ("bo", two(0, 0), 3, 5, "none of them twice"),
        ("bo", two(0, 1), 2, 5, "one vector of 3 numbers"),
        ("bo", two(0, 1), 3, -5, "the release number -5"),
    ],
)
def test_refreshed_rows_are_those_that_were_asked_for(sender, rows, width, release, words):
    parties, refresh = refreshing()
    body = Refreshed(refresh.request, release, 0, rows, np.zeros((2, width)))
    refused(parties["server"], sender, body, words)


@pytest.mark.parametrize("shape", [(5, 3), (6, 2), (6,), (0, 3)])
def test_predicted_rows_are_those_that_were_asked_for(shape):
    parties, ask = predicting()
    refused(parties["server"], "ana", PredictGiven(ask.request, 5, np.zeros(shape)), "for 6 rows")


@pytest.mark.parametrize(
    "body", [Resting(0, ""), Resume(-1), Resume(2**62), PredictGiven(1, 0, H), Refreshed(1, 2**62, 0, two(), H[:0])]
)
def test_numbers_of_releases_have_a_range(body):
    parties, _ = training()
    refused(parties["server"], "ana", body, "the release number")


def test_a_goodbye_before_the_end_ends_nothing():
    parties, _ = training()
    for name in ("ana", "bo"):
        assert parties["server"].handle(Received(name, Goodbye())) == []


@pytest.mark.parametrize("place", ["upload", "refreshed", "predicted"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_embeddings_that_are_not_finite_end_the_run_and_are_not_kept(place, value):
    bad = np.full((2, 3), value)
    if place == "upload":
        parties, body = training()[0], Upload(9, 0, -1, True, two(0, 1), bad)
    elif place == "refreshed":
        parties, refresh = refreshing()
        body = Refreshed(refresh.request, 5, 0, two(0, 1), bad)
    else:
        parties, ask = predicting()
        body = PredictGiven(ask.request, 5, np.full((TEST_ROWS, 3), value))
    server = parties["server"]
    (halt,) = [e.body for e in server.handle(Received("bo", body)) if isinstance(e, Broadcast)]
    assert (halt.verdict, halt.reason) == ("diverged", "the embeddings of bo are no longer finite numbers")
    assert all(np.isfinite(shelf.to_array()).all() for shelf in server.table.shelves) and not server.prediction.scores


# -- the client -------------------------------------------------------------------------------------------------------

D = np.zeros((4, 3))
TO_CLIENT = {
    "a derivative too narrow": (Gradient(2, 0, 0.0, 0, np.zeros((4, 2))), "one vector of 3 numbers"),
    "derivatives of other rows": (Gradient(2, 0, 0.0, 0, np.zeros((5, 3))), "for 4 rows"),
    "a derivative of whole numbers": (Gradient(2, 0, 0.0, 0, D.astype(int)), "int64"),
    "nan": (Gradient(2, 0, 0.0, 0, np.full((4, 3), np.nan)), "not finite"),
    "a round where there is none": (Ask(1, False, two(0, 1)), "a synchronous round"),
    "a refresh of a row that is not there": (Refresh(9, two(0, 8)), "from 0 to 7"),
    "a refresh of a huge row": (Refresh(9, two(2**62)), "from 0 to 7"),
    "a row twice for the price of one": (Refresh(9, two(3, 3)), "none of them twice"),
    "a refresh by other numbers": (Refresh(9, np.array([1.0])), "float64"),
    "too many test rows": (PredictAsked(9, 0, 2**62), "rows 0 to .* of 6"),
    "a test row too many": (PredictAsked(9, 0, 7), "rows 0 to 7 of 6"),
    "test rows before the first": (PredictAsked(9, -1, 3), "rows -1 to 3 of 6"),
    "test rows backwards": (PredictAsked(9, 3, 2), "rows 3 to 2 of 6"),
    "no test rows": (PredictAsked(9, 3, 3), "rows 3 to 3 of 6"),
    "fewer than none forgotten": (Resumed(LIFE, -1, True), "-1 as the number of forgotten"),
    "more forgotten than can be": (Resumed(LIFE, 2**62, True), "as the number of forgotten"),
    "a number beyond all": (Resumed(2**62, 0, True), "the release number"),
}


@pytest.mark.parametrize("private", [None, PRIVATE])
@pytest.mark.parametrize("case", TO_CLIENT)
def test_what_a_client_refuses(case, private):
    body, words = TO_CLIENT[case]
    parties, _ = training(private=private)
    if isinstance(body, Resumed):
        parties["ana"].handle(Started(resumed=True))
    tracemalloc.start()
    refused(parties["ana"], "server", body, words)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (Ask(2**62, False, two(0)), "the request number"),
        (Ask(9, False, two()), "for no rows"),
        (Ask(9, False, two(1, 1)), "none of them twice"),
        (Ask(9, False, two(8)), "from 0 to 7"),
    ],
)
def test_what_a_client_of_synchronous_rounds_refuses(body, words):
    parties, _ = asked()
    refused(parties["ana"], "server", body, words)


def test_a_release_that_asks_for_no_derivative_gets_none():
    clients = build()[1]
    (upload,) = [e.body for e in run(clients["ana"], clients["ana"].handle(Started())) if isinstance(e, Send)]
    body = Gradient(upload.release, 0, 0.0, 0, np.zeros((ROWS, 3)))
    refused(clients["ana"], "server", body, "which asks for none")


def run(party, effects):
    done = []
    for effect in effects:
        done += run(party, party.handle(Computed(effect.ticket))) if isinstance(effect, Compute) else [effect]
    return done


def test_only_the_server_is_listened_to():
    parties, _ = training()
    for body in (Halt("passes", "", 1), Noted(2, True), Resumed(LIFE, 0, True)):
        refused(parties["ana"], "bo", body, "from bo")


def test_the_answer_to_an_earlier_restart_gives_no_number_twice():
    """Ana restarts, goes on, and restarts again: a copy of the first answer arrives and would repeat numbers."""
    parties, _ = training()
    ana, server = parties["ana"], parties["server"]
    (first,) = restart(server, ana, ana.snapshot())
    run(ana, ana.handle(Received("server", first)))
    ana.releases.newest += 1  # something was released
    old = decode_state(encode_state(ana.snapshot()))
    ana.releases.newest += 3  # and more, which the snapshot does not know
    (second,) = restart(server, ana, old)
    assert ana.handle(Received("server", first)) == [] and ana.resuming
    ana.handle(Received("server", second))
    assert not ana.resuming and ana.releases.newest >= second.first > first.first


def restart(server, client, state):
    client.restore(decode_state(encode_state(state)))
    (resume,) = [e.body for e in client.handle(Started(resumed=True)) if isinstance(e, Send)]
    return [e.body for e in server.handle(Received(client.name, resume)) if isinstance(e, Send)]
