"""Whole linear parties: races between links, restarts at any event, losses, alarms, endings."""

import re
from dataclasses import replace

import numpy as np
import pytest
from room import Room, labelled

from offbeat.algorithms.methods import LINEAR
from offbeat.errors import BadJob, UnexpectedEvent
from offbeat.learning.losses import SQUARED
from offbeat.message.codec import encode_state
from offbeat.party import smoothness
from offbeat.party.contract import (
    END,
    Computed,
    Finish,
    Message,
    Observe,
    PeerBack,
    PeerLost,
    Received,
    Send,
    Wake,
    Woken,
)
from offbeat.party.lifecycle import LABELS_LOST_S, Alarm, Begin, Halt, RosterNamed
from offbeat.party.linear import LABELS_LOST
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import EPOCH_STRIDE, PROBES, PRODUCTS, KeyOffered, ShareAsked, ShareGiven, SumOptions
from offbeat.party.survey_messages import Mark
from offbeat.testing.small_problem import draw_problem, weights

PROBLEM = labelled(draw_problem(5, parties=4, rows=90), "party0", "party1")
METHODS = list(LINEAR)


def verdicts(room):
    return {name: finish.verdict for name, finish in room.finished.items()}


def all_weights(room):
    return {name: room.parties[name].block.weights().tobytes() for name in room.parties}


# -- races -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("method", METHODS)
def test_links_may_race_each_other(method, seed):
    """No order of links, whatever it is, makes an honest party's message unexpected or stops a run."""
    room = Room(PROBLEM, method, passes=3.0).run(np.random.default_rng(seed))
    assert set(verdicts(room).values()) == {"passes"} and len(room.finished) == 4


@pytest.mark.parametrize("method", ["vfb2-svrg", "vfb2-sgd", "afsaga-vp"])
def test_a_question_that_overtakes_the_word_to_begin_waits_for_it(method):
    room = Room(PROBLEM, method)
    room.run(until=lambda: room["party3"].sums.ready)
    party = room["party3"]
    ask = ShareAsked(0, PRODUCTS, 0, 0, 0, 0)
    assert party.handle(Received("party1", ask)) == [] and party.waiting == [("party1", ask)]
    effects = party.handle(Received("party0", Begin(0, 0.1, 16, 1.0, 1.0, 1.0)))
    assert [e.to for e in effects if isinstance(e, Send) and e.body.kind == PRODUCTS] == ["party1"]
    assert party.waiting == []


def test_a_question_waits_for_the_key_of_a_party_that_was_lost_and_is_back():
    """The chair counts everybody as ready, by what they said of the roster before."""
    room = Room(PROBLEM, start=False)
    party = room["party3"]
    offers = {name: KeyOffered(room[name].sums.keys.public) for name in ("party0", "party1", "party2")}
    for name in ("party0", "party1"):
        party.handle(Received(name, offers[name]))
    words = smoothness.length_of(party.block)
    assert party.handle(Received("party0", ShareAsked(0, PROBES, 0, 0, words, 0))) == []
    effects = party.handle(Received("party2", offers["party2"]))
    assert [effect.to for effect in effects if isinstance(effect.body, ShareGiven)] == ["party0"]


def test_questions_ahead_of_their_time_are_bounded(monkeypatch):
    monkeypatch.setattr("offbeat.party.linear.HELD_MOST", 5)
    party = Room(PROBLEM, start=False)["party3"]
    for number in range(5):
        party.handle(Received("party1", ShareAsked(0, PRODUCTS, 0, number, 0, 0)))
    with pytest.raises(UnexpectedEvent, match="party1 sent more questions"):
        party.handle(Received("party1", ShareAsked(0, PRODUCTS, 0, 5, 0, 0)))


# -- going on later --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("method", METHODS)
def test_a_party_that_is_restored_at_any_event_ends_with_the_same_weights(method, every):
    """Whoever has just handled every k-th event is replaced by a fresh party that its snapshot was restored into."""
    plain = Room(PROBLEM, method, passes=2.0, target=None).run(np.random.default_rng(3))
    room = Room(PROBLEM, method, passes=2.0, target=None)
    names = list(room.parties)

    def restart():
        if room.events % every == 0:
            room.restart(names[(room.events // every) % len(names)])

    room.run(np.random.default_rng(3), every=restart)
    assert room.events == plain.events and all_weights(room) == all_weights(plain)
    assert verdicts(room) == verdicts(plain)


@pytest.mark.parametrize("method", ["vfb2-saga", "afsvrg-vp"])
@pytest.mark.parametrize("scheme", ["two-tree", "tree"])
def test_restored_with_trees_too(method, scheme):
    options = {"passes": 2.0, "sums": SumOptions(scheme=scheme), "in_flight": 2}
    plain = Room(PROBLEM, method, **options).run(np.random.default_rng(3))
    room = Room(PROBLEM, method, **options)
    room.run(np.random.default_rng(3), every=lambda: room.restart(f"party{room.events % 4}"))
    assert all_weights(room) == all_weights(plain)


def test_restored_on_two_lanes_and_with_a_slow_party():
    options = {"seed": 3, "passes": 4.0, "sample_s": {"party0": 1e-4, "party1": 1e-4, "party2": 1e-4, "party3": 1e-2}}
    plain = Room(PROBLEM, "vfb2-saga", **options).run(np.random.default_rng(4))
    assert plain.parties["party0"].lanes == 2
    room = Room(PROBLEM, "vfb2-saga", **options)
    room.run(np.random.default_rng(4), every=lambda: room.restart(f"party{room.events % 4}"))
    assert all_weights(room) == all_weights(plain) and room.events == plain.events


@pytest.mark.parametrize("method", ["vfb2-svrg", "afsaga-vp"])
def test_a_snapshot_shares_nothing_with_the_living_party(method):
    room = Room(PROBLEM, method, passes=3.0)
    kept = []

    def keep():
        if room.events % 40 == 0:
            states = [party.snapshot() for party in room.parties.values()]
            kept.append((states, encode_state(states)))

    room.run(every=keep)
    assert len(kept) > 3 and all(encode_state(states) == frame for states, frame in kept)


# -- strangers and misfits -------------------------------------------------------------------------------------------


def test_strangers_and_messages_of_another_protocol_are_refused():
    class Other(Message, frozen=True):
        """Not ours.

        Reveals: nothing.
        """

    party = Room(PROBLEM, start=False)["party2"]
    for sender, body in [("party0", Other()), ("eve", Halt("target", "", 1)), ("eve", Alarm("range", ""))]:
        with pytest.raises(UnexpectedEvent, match=f"from {sender}, which has no place in this protocol"):
            party.handle(Received(sender, body))
    with pytest.raises(UnexpectedEvent, match="eve sent"):
        party.handle(Received("eve", Mark(0, 1, 0, 0)))


def test_a_halt_comes_from_a_label_holder():
    party = Room(PROBLEM, start=False)["party3"]
    with pytest.raises(UnexpectedEvent, match="party2 sent the word to keep survey 1"):
        party.handle(Received("party2", Halt("target", "", 1)))


def test_a_probe_is_measured_before_the_beginning_only():
    room = Room(PROBLEM)
    room.run(until=lambda: room["party2"].lifecycle.begun)
    with pytest.raises(UnexpectedEvent, match="party0 sent a probe after the beginning"):
        room["party2"].handle(Received("party0", ShareAsked(0, PROBES, 0, 0, 10, 0)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "adam"},
        {"passes": 0},
        {"seconds": -1.0},
        {"step": -1.0},
        {"in_flight": 0},
        {"batch": 0},
        {"survey_passes": -1.0},
        {"survey_passes": 0.0, "method": "sgd"},
        {"survey_passes": 0.0, "leap": False},
        {"method": "sgd", "by_curvature": True},
    ],
    ids=str,
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(BadJob):
        LinearOptions(**wrong)


# -- somebody is lost ------------------------------------------------------------------------------------------------


def lose(room, name):
    """A party goes, and everybody else hears of it."""
    room.held |= {source for source in room.sources if source[0] == name}
    room.finished[name] = Finish("gone")
    for other in room.parties:
        if other != name:
            room.tell(other, PeerLost(name))


@pytest.mark.parametrize("lost", ["party0", "party1", "party3"], ids=["the chair", "a label holder", "without labels"])
@pytest.mark.parametrize("after", [40, 150])
@pytest.mark.parametrize("method", ["vfb2-svrg", "vfb2-sgd", "afsaga-vp"])
def test_the_others_go_on_without_a_lost_party(method, after, lost):
    room = Room(PROBLEM, method, on_loss="continue", passes=4.0)
    room.run(np.random.default_rng(after), until=lambda: room.events >= after)
    lose(room, lost)
    room.run(np.random.default_rng(after))
    assert set(verdicts(room).values()) == {"passes", "gone"} and len(room.finished) == 4
    rest = [name for name in room.parties if name != lost]
    assert {room[name].roster.names for name in rest} == {tuple(rest)}
    assert len({room[name].roster.epoch for name in rest}) == 1 and room[rest[0]].roster.epoch > 0
    assert room["party1" if lost == "party0" else "party0"].roster.is_chair
    last = room.certificates()[-1]
    assert last["snapshot"] > EPOCH_STRIDE
    columns = np.concatenate([PROBLEM.columns[name] for name in rest])
    part = replace(PROBLEM, X=PROBLEM.X[:, columns], columns={})
    w = np.concatenate([weights(room.parties[name])[:-1] for name in rest])
    constant = sum(weights(room.parties[name])[-1] for name in rest)
    kept = [value["objective"] for value in room.certificates() if value["snapshot"] > EPOCH_STRIDE]
    assert part.objective(np.append(w, constant)) == pytest.approx(min(kept), abs=1e-9)


def test_work_of_the_old_roster_is_of_no_use_and_harms_nothing():
    """A label holder goes while chunks are refreshed: the rows are cut anew, and the old chunk means nothing."""
    room = Room(PROBLEM, on_loss="continue")
    room.run(until=lambda: room["party2"].survey.tables.under_way is not None and room["party2"].survey.current > 1)
    room.held = {("party2", "work")}
    lose(room, "party1")
    room.run(until=lambda: room["party2"].roster.epoch > 0)
    assert 45 not in room["party2"].survey.chunks
    old = [event for _, event in room.sources["party2", "work"]]
    assert old and all(room["party2"].handle(event) == [] for event in old[:1])


def test_a_party_that_comes_back_is_on_a_new_roster():
    room = Room(PROBLEM, on_loss="continue", passes=8.0)
    room.run(until=lambda: room["party0"].lifecycle.begun)
    room.run(until=lambda: room["party3"].lifecycle.begun)
    for name in ("party0", "party1", "party2"):
        room.tell(name, PeerLost("party3"))
    room.run(until=lambda: all(len(room[f"party{i}"].roster.names) == 3 for i in range(3)))
    for name in ("party0", "party1", "party2"):
        room.tell(name, PeerBack("party3"))
    room.run(np.random.default_rng(0))
    assert set(verdicts(room).values()) == {"passes"} and len(room.finished) == 4
    assert {room[name].roster.names for name in room.parties} == {PROBLEM.names}
    assert {room[name].roster.epoch for name in room.parties} == {room.chair.roster.epoch}


@pytest.mark.parametrize("lost", ["party0", "party3"])
@pytest.mark.parametrize("method", ["vfb2-svrg", "fsaga-vp"])
def test_stopping_keeps_the_best_model_everywhere(method, lost):
    room = Room(PROBLEM, method, on_loss="stop", passes=50.0)
    room.run(until=lambda: len(room.certificates()) >= 3)
    lose(room, lost)
    room.run()
    rest = [name for name in room.parties if name != lost]
    assert {verdicts(room)[name] for name in rest} == {"peer-lost"}
    assert len({room[name].lifecycle.kept for name in rest}) == 1


def test_waiting_gives_nothing_up():
    room = Room(PROBLEM, on_loss="wait", passes=3.0)
    room.run(until=lambda: room["party0"].lifecycle.begun)
    for name in ("party0", "party1", "party2"):
        room.tell(name, PeerLost("party3"))
        room.tell(name, PeerBack("party3"))
    room.run()
    assert set(verdicts(room).values()) == {"passes"}


@pytest.mark.parametrize("method", ["fsvrg-vp", "vfb-saga"])
def test_synchronous_rounds_cannot_go_on_without_a_party(method):
    room = Room(PROBLEM, method, on_loss="continue", passes=50.0)
    room.run(until=lambda: room["party2"].lifecycle.begun and room["party0"].lifecycle.begun)
    lose(room, "party3")
    room.run()
    assert {verdicts(room)[name] for name in ("party0", "party1", "party2")} == {"peer-lost"}


def test_too_few_to_hide_behind_ends_the_run():
    problem = labelled(draw_problem(5, parties=3, rows=90), "party0")
    room = Room(problem, on_loss="continue", passes=50.0)
    room.run(until=lambda: room["party0"].lifecycle.begun)
    lose(room, "party2")
    room.run()
    assert verdicts(room) == {"party0": "peer-lost", "party1": "peer-lost", "party2": "gone"}
    assert "hide a share" in room.finished["party1"].reason


def test_without_label_holders_a_party_waits_and_then_keeps_the_best():
    room = Room(labelled(PROBLEM, "party0"), on_loss="continue", passes=50.0)
    room.run(until=lambda: len(room.certificates()) >= 2 and len(room["party3"].survey.history) >= 2)
    party = room["party3"]
    best = party.survey.points[party.survey.best]
    assert party.handle(PeerLost("party0")) == [Observe("lost", "party0"), Wake(LABELS_LOST_S, LABELS_LOST)]
    party.handle(PeerBack("party0"))
    assert party.handle(Woken(LABELS_LOST)) == [], "it came back in time"
    party.handle(PeerLost("party0"))
    assert party.handle(Woken(LABELS_LOST)) == [Finish("peer-lost", "every party with labels was lost")]
    assert np.array_equal(party.block.weights(), best)


def test_messages_of_a_roster_to_come_are_kept_for_it():
    room = Room(PROBLEM, on_loss="continue")
    room.run(until=lambda: room["party3"].lifecycle.begun)
    party = room["party3"]
    early = Received("party1", ShareAsked(4, PRODUCTS, 0, 0, 0, 0))
    assert party.handle(early) == [] and party.held == [early]
    room.restart("party3")
    party = room["party3"]
    effects = party.handle(Received("party0", RosterNamed(4, ("party0", "party1", "party3"), "party0")))
    assert party.held == [] and [e.body.epoch for e in effects if isinstance(e, Send)] == [4]
    assert party.handle(Received("party1", ShareAsked(0, PRODUCTS, 0, 99, 0, 0))) == [], "an old one is of no use"


def test_where_no_other_roster_is_allowed_nothing_is_kept_for_one():
    party = Room(PROBLEM, on_loss="wait", start=False)["party3"]
    assert party.handle(Received("party1", ShareAsked(4, PRODUCTS, 0, 0, 0, 0))) == [] and party.held == []


# -- endings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["party0", "party3"], ids=["the chair's", "another's"])
@pytest.mark.parametrize("method", ["vfb2-svrg", "fsaga-vp"])
def test_an_owner_ends_a_run_and_the_best_model_is_kept(method, name):
    room = Room(PROBLEM, method, passes=50.0)
    room.run(until=lambda: len(room.certificates()) >= 3)
    room.tell(name, Woken(END))
    room.run()
    assert set(verdicts(room).values()) == {"stopped"}
    assert room.finished["party1"].reason == f"stopped by the owner of '{name}'"
    w = PROBLEM.pooled({name: weights(party) for name, party in room.parties.items()})
    assert PROBLEM.objective(w) == pytest.approx(min(c["objective"] for c in room.certificates()), abs=1e-9)


def test_an_alarm_that_reaches_another_than_the_chair_ends_nothing():
    party = Room(PROBLEM, start=False)["party1"]
    assert party.handle(Received("party2", Alarm("range", "too large"))) == [] and not party.lifecycle.halted


def test_work_that_comes_back_after_the_halt_moves_nothing():
    room = Room(PROBLEM, passes=50.0)
    room.run(until=lambda: room["party0"].works.open and len(room.certificates()) >= 2)
    party = room["party0"]
    party.end("stopped", "enough")
    kept = party.block.weights()
    for ticket in list(party.works.open):
        assert party.handle(Computed(ticket)) == []
    assert np.array_equal(party.block.weights(), kept)


def test_a_run_may_start_from_weights():
    room = Room(PROBLEM, zero_start=False, passes=2.0, leap=False)
    rng = np.random.default_rng(0)
    for party in room.parties.values():
        start = rng.standard_normal(party.block.weights().shape)
        start[:, -1] = 0.0
        party.block.set_weights(start)
    w = PROBLEM.pooled({name: weights(party) for name, party in room.parties.items()})
    room.run()
    first = room.certificates()[0]["objective"]
    if PROBLEM.intercept:  # the chair's constant goes to its best place at once
        assert first <= PROBLEM.objective(w)
    else:
        assert first == pytest.approx(PROBLEM.objective(w), rel=1e-9)


def test_a_label_that_no_product_can_reach_is_refused_before_the_first_step():
    drawn = labelled(draw_problem(5, parties=3, rows=90, loss=SQUARED), "party0")
    far = replace(drawn, y=1e8 * drawn.y)
    room = Room(far).run()
    ((verdict, reason),) = {(finish.verdict, finish.reason) for finish in room.finished.values()}
    assert verdict == "range" and len(room.finished) == 3
    (bits,) = re.findall(r"Divide the label by 1e\+08, say, or set fraction_bits to (\d+) or less", reason)
    room = Room(far, passes=2.0, sums=SumOptions(fraction_bits=int(bits))).run()
    assert set(verdicts(room).values()) == {"passes"}
    room = Room(replace(drawn, y=1e15 * drawn.y)).run()
    assert all("say." in finish.reason for finish in room.finished.values()) and len(room.finished) == 3
