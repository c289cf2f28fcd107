"""A deviating asker against honest parties: whatever it asks, it gets the total, noise, or a refusal with its name.

Eve holds the labels and the chair. She knows everything but the secrets of the others, and wants Ana's own share.
"""

from collections import Counter

import numpy as np
import pytest
from asker import BEGIN, ROWS, WIDTH, ask, decoded, is_noise, probe, refused, share_of, told, world

from offbeat.algorithms import afsgd_vp, vfb2
from offbeat.algorithms.afsgd_vp import Product
from offbeat.algorithms.vfb2 import Backward
from offbeat.party import survey as surveys
from offbeat.party.contract import Received, Send
from offbeat.party.lifecycle import Alarm, Begin, RosterNamed
from offbeat.party.masked_sum import (
    CERTIFICATE,
    EPOCH_STRIDE,
    KINDS,
    POINTS,
    PROBES,
    PRODUCTS,
    SURVEY,
    PartialGiven,
)
from offbeat.party.scalars import WORDS_EACH
from offbeat.party.smoothness import PROBES as PROBE_COUNT
from offbeat.party.smoothness import length_of
from offbeat.party.survey_messages import GoOn, Leap, Mark

# -- questions that differ from party to party -----------------------------------------------------------------------


def test_asked_alike_the_total_is_what_it_should_be():
    """The attack works where nothing deviates: with Bo at zero, the honest total is Ana's share."""
    here = world()
    (ana,), (bo,) = told(here.ana, ask()), told(here.bo, ask())
    start, stop = here.schedule.block(0)
    assert np.abs(decoded(ana + bo) - share_of(here, "ana", start, stop)).max() < 2.0**-39
    assert is_noise(ana) and is_noise(bo)


def test_another_block_of_rows_for_each():
    here = world()
    (ana,), (bo,) = told(here.ana, ask(first=0)), told(here.bo, ask(first=1))
    length = min(len(ana), len(bo))
    assert is_noise(ana[:length] + bo[:length])


def test_another_kind_for_each():
    """Ana is asked for rows at the frozen point, Bo for a block of the same rows at the current one."""
    here = world()
    for party in (here.ana, here.bo):
        party.handle(Received("eve", Mark(0, 1, 0, 0)))
    number = next(n for n in range(99) if here.schedule.block(n)[0] == 0)
    (ana,), (bo,) = told(here.ana, ask(SURVEY, 1, 0, ROWS)), told(here.bo, ask(first=number))
    assert is_noise(ana[: len(bo)] + bo)
    (points,), (rows,) = told(here.ana, ask(POINTS, 1, 0, WORDS_EACH)), told(here.bo, ask(SURVEY, 1, 0, ROWS))
    assert is_noise(points + rows[:WORDS_EACH])


def test_another_survey_for_each():
    here = world()
    for party in (here.ana, here.bo):
        party.party.survey.current = 1  # as after a first survey
    here.ana.handle(Received("eve", Mark(0, 2, 0, 0)))
    here.bo.handle(Received("eve", Mark(0, 2, 0, 0b100)))
    here.bo.handle(Received("eve", Leap(0, 2, np.zeros(0), 1.0)))
    here.bo.handle(Received("eve", GoOn(0, 2)))
    here.bo.handle(Received("eve", Mark(0, 3, 0, 0b100, False)))
    (ana,), (bo,) = told(here.ana, ask(SURVEY, 2, 0, ROWS)), told(here.bo, ask(SURVEY, 3, 0, ROWS))
    assert is_noise(ana + bo)


def test_another_batch_for_each():
    """A smaller batch would lay other rows over the same words."""
    here = world(begin=None)
    here.ana.handle(Received("eve", Begin(0, 0.1, 64, 0.0, 0.0, 1.0)))
    here.bo.handle(Received("eve", Begin(0, 0.1, 32, 0.0, 0.0, 1.0)))
    (ana,), (bo,) = told(here.ana, ask()), told(here.bo, ask())
    assert is_noise(ana[: len(bo)] + bo[: len(ana)])


def test_another_epoch_and_roster_for_each():
    here = world(("eve", "ana", "bo", "cy"), on_loss="continue")
    four, three = RosterNamed(4, ("eve", "ana", "bo", "cy"), "eve"), RosterNamed(8, ("eve", "ana", "bo"), "eve")
    here.ana.handle(Received("eve", four))
    for name, roster in (("bo", three), ("cy", four)):
        here.parties[name].handle(Received("eve", roster))
    words = [told(here.parties[name], ask(epoch=epoch))[0] for name, epoch in (("ana", 4), ("bo", 8), ("cy", 4))]
    assert is_noise(sum(words[1:], words[0])) and is_noise(words[0] + words[1]) and is_noise(words[0] + words[2])


def test_two_askers_that_put_their_answers_together():
    """Ana answers Eve and Bo answers Flo, each the same block of rows: their masks are not the same."""
    here = world(("eve", "flo", "ana", "bo", "cy"), labels_at=("eve", "flo"), method=afsgd_vp)
    words = [
        told(here.parties[name], ask(), sender)[0] for name, sender in (("ana", "eve"), ("bo", "flo"), ("cy", "eve"))
    ]
    assert is_noise(words[0] + words[1]) and is_noise(words[0] + words[1] + words[2])


def test_a_survey_is_cut_by_the_rule_and_by_nothing_else(monkeypatch):
    """Cuts of her own would let her lay the words of one row over those of another."""
    monkeypatch.setattr(surveys, "CHUNK_WORDS", 100)
    here = world(("eve", "flo", "ana", "bo"), labels_at=("eve", "flo"))
    here.ana.handle(Received("eve", Mark(0, 1, 0, 0)))
    for start, count in [(0, 99), (0, 256), (1, 99), (0, 0), (0, -1), (-100, 100), (128, 100), (200, 100), (300, 100)]:
        refused(here.ana, ask(SURVEY, 1, start, count), match="rows")
    assert len(told(here.ana, ask(SURVEY, 1, 0, 100))[0]) == 100
    assert len(told(here.ana, ask(SURVEY, 1, 200, 56))[0]) == 56, "the rows end here"


# -- the same question again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["pairwise", "two-tree"])
def test_a_question_asked_again_is_refused(scheme):
    """Two shares under one mask would show their difference: how Ana's block has moved."""
    here = world(("eve", "ana", "bo", "cy"), scheme=scheme)
    here.ana.handle(Received("eve", ask()))
    here.ana.block.set_weights(np.ones((1, WIDTH + 1)))
    refused(here.ana, ask(), match="again")
    here.ana.handle(Received("eve", Mark(0, 1, 0, 0)))
    for question in (ask(SURVEY, 1, 0, ROWS), ask(POINTS, 1, 0, WORDS_EACH)):
        here.ana.handle(Received("eve", question))
        refused(here.ana, question, match="again")


def test_a_question_about_a_survey_that_is_over_is_refused():
    here = world()
    here.ana.party.survey.current = 1  # as after a first survey
    here.ana.handle(Received("eve", Mark(0, 2, 0, 0b010)))
    assert told(here.ana, ask(SURVEY, 2, 0, ROWS))
    refused(here.ana, Mark(0, 3, 0, 0b010, False))
    here.ana.handle(Received("eve", Leap(0, 2, np.zeros(0), 1.0)))
    refused(here.ana, ask(SURVEY, 2, 0, ROWS))
    refused(here.ana, ask(POINTS, 2, 0, WORDS_EACH))
    refused(here.ana, Mark(0, 3, 0, 0b010, False))
    here.ana.handle(Received("eve", GoOn(0, 2)))
    here.ana.handle(Received("eve", Mark(0, 3, 0, 0b010, False)))
    for question in (ask(SURVEY, 2, 0, ROWS), ask(POINTS, 2, 0, WORDS_EACH), ask(CERTIFICATE, 2, 0, 3 * WORDS_EACH)):
        refused(here.ana, question)


def test_a_certificate_is_asked_for_once_and_only_of_the_survey_to_be_certified():
    here = world()
    here.ana.handle(Received("eve", Mark(0, 1, 0, 0)))
    refused(here.ana, ask(CERTIFICATE, 1, 0, 3 * WORDS_EACH), match="certificate")
    here.ana.handle(Received("eve", Leap(0, 1, np.zeros(0), 1.0)))
    assert told(here.ana, ask(CERTIFICATE, 1, 0, 3 * WORDS_EACH)) == [], "it waits for the table"
    refused(here.ana, ask(CERTIFICATE, 1, 0, 3 * WORDS_EACH), match="second")


def test_a_row_is_answered_as_often_as_the_schedule_has_it():
    """Row 7 cannot be asked for at will: a number stands for its rows."""
    here, answered = world(method=afsgd_vp), Counter()
    passes = 40
    for number in range(passes * here.schedule.blocks_a_pass):
        (words,) = told(here.ana, ask(first=number))
        start, stop = here.schedule.block(number)
        assert len(words) == stop - start
        answered.update(range(start, stop))
    assert set(answered.values()) == {passes} and len(answered) == ROWS


def test_a_dominator_cannot_ask_ahead_without_end():
    here = world()
    for number in range(vfb2.OPEN_MOST):
        assert told(here.ana, ask(first=number))
    refused(here.ana, ask(first=vfb2.OPEN_MOST), match="more questions than may be open")


@pytest.mark.parametrize("body", [Backward(0, 5, np.zeros(64), 0, -1, 0), Backward(0, -1, np.zeros(64), 0, 3, 0)])
def test_derivatives_of_what_was_not_asked_are_refused(body):
    refused(world().ana, body, match="which it did not ask")


# -- probes ----------------------------------------------------------------------------------------------------------


def test_probes_are_answered_once_before_the_beginning_and_are_nobodys_choice():
    """Once Eve read a Gram matrix off probes of her own. Now they are signs from everybody's keys, and there is one."""
    here = world(begin=None)
    (ana,), (bo,) = told(here.ana, probe(here.ana)), told(here.bo, probe(here.bo))
    assert is_noise(ana) and is_noise(bo)
    assert len(ana) == PROBE_COUNT * ROWS + 3 * WORDS_EACH
    assert here.ana.party.sums.joint_coin() == here.bo.party.sums.joint_coin()
    refused(here.ana, probe(here.ana), match="again")
    refused(here.ana, ask(PROBES, 0, 1, 5), match="probe")
    refused(here.ana, ask(PROBES, 0, PROBE_COUNT * ROWS + 3 * WORDS_EACH, 5), match="probe")


def test_probes_after_the_beginning_are_refused():
    here = world()
    refused(here.ana, probe(here.ana), match="after the beginning")


# -- who may ask -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
@pytest.mark.parametrize("sender", ["eve", "flo", "bo", "stranger"])
def test_every_kind_is_asked_by_its_roles_alone(kind, sender):
    here = world(("eve", "flo", "ana", "bo"), labels_at=("eve", "flo"), begin=None)
    if kind != PROBES:
        here.ana.handle(Received("eve", BEGIN))
        here.ana.handle(Received("eve", Mark(0, 1, 0, 0)))
    if kind == CERTIFICATE:
        here.ana.handle(Received("eve", Leap(0, 1, np.zeros(0), 1.0)))
    count = {
        PRODUCTS: 0,
        SURVEY: ROWS,
        POINTS: WORDS_EACH,
        CERTIFICATE: 3 * WORDS_EACH,
        PROBES: length_of(here.ana.block),
    }[kind]
    survey = 0 if kind in (PRODUCTS, PROBES) else 1
    question = ask(kind, survey, 0, count)
    if sender == "eve" or (sender == "flo" and kind == PRODUCTS):
        assert len(told(here.ana, question, sender)) == (kind != CERTIFICATE)
    else:
        refused(here.ana, question, sender, "not its to ask")


@pytest.mark.parametrize("kind", [-1, len(KINDS), 1000])
def test_there_are_no_other_kinds(kind):
    refused(world().ana, ask(kind), match="not its to ask")


def test_rounds_are_answered_in_their_order_and_never_on_request():
    """A synchronous party sends its share of a round unasked, once; the round ends by the chair's word alone."""
    here = world(method=afsgd_vp, synchronous=True)
    refused(here.ana, ask(), match="unasked")
    start, stop = here.schedule.block(1)
    refused(here.ana, Product(0, 1, np.zeros(stop - start), False), match="while round 0 is on")
    here = world(synchronous=True)
    refused(here.ana, ask(first=1), match="round 1")


# -- rosters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_loss", ["wait", "stop"])
def test_a_smaller_roster_that_the_job_does_not_allow_is_refused(on_loss):
    """The difference of two rosters' totals would be the share of whoever was left out."""
    here = world(("eve", "ana", "bo", "cy"), on_loss=on_loss)
    for name in ("ana", "bo"):
        refused(here.parties[name], RosterNamed(4, ("eve", "ana", "bo"), "eve"), match=f"on_loss is '{on_loss}'")
        assert here.parties[name].party.roster.names == ("eve", "ana", "bo", "cy")
        assert told(here.parties[name], ask(epoch=4)) == []


@pytest.mark.parametrize(
    "names",
    [
        ("eve", "ana", "ana"),
        ("ana", "ana", "eve"),
        ("eve", "ana", "eve"),
        ("eve", "ana", "mallory"),
        ("ana", "eve", "bo", "cy"),
        ("eve", "bo", "cy"),
        (),
    ],
)
def test_a_roster_that_hides_behind_nobody_is_refused(names):
    here = world(("eve", "ana", "bo", "cy"), on_loss="continue")
    refused(here.ana, RosterNamed(4, names, "eve"), match="the roster")


def test_a_roster_of_two_is_answered_by_nobody():
    here = world(("eve", "ana", "bo", "cy"), on_loss="continue")
    effects = here.ana.handle(Received("eve", RosterNamed(4, ("eve", "ana"), "eve")))
    assert [type(e.body).__name__ for e in effects if isinstance(e, Send)] == ["Alarm"]
    assert effects[0].to == "eve" and "hide a share" in effects[0].body.reason
    assert told(here.ana, ask(epoch=4)) == []
    assert here.ana.party.roster.names == ("eve", "ana", "bo", "cy")


def test_a_job_that_accepts_two_parties_does_not_speak_for_an_owner_who_does_not():
    """Tried: two_party_insecure in a job of four, and then a roster of two. Each owner's parties_least stands above."""
    four = ("eve", "ana", "bo", "cy")
    for least, answers in ((2, 1), (3, 0)):
        here = world(four, on_loss="continue", two_party_insecure=True, parties_least=least)
        effects = here.ana.handle(Received("eve", RosterNamed(4, ("eve", "ana"), "eve")))
        assert len(told(here.ana, ask(epoch=4))) == answers
        alarms = [e.body.reason for e in effects if isinstance(e, Send) and isinstance(e.body, Alarm)]
        assert len(alarms) == 1 - answers and all("at least 3 parties; 2 take part" in reason for reason in alarms)


def test_the_share_of_whoever_is_left_out_is_the_difference_of_two_rosters():
    """Why an owner's on_loss does not allow "continue" by itself: where nothing moves, masks cannot help."""
    here = world(("eve", "ana", "bo", "cy"), on_loss="continue")
    before = sum(told(here.parties[name], ask())[0] for name in ("ana", "bo", "cy"))
    for name in ("ana", "bo"):
        here.parties[name].handle(Received("eve", RosterNamed(4, ("eve", "ana", "bo"), "eve")))
    after = sum(told(here.parties[name], ask(epoch=4))[0] for name in ("ana", "bo"))
    start, stop = here.schedule.block(0)
    assert np.abs(decoded(before - after) - share_of(here, "cy", start, stop)).max() < 2.0**-38


def test_a_roster_of_an_old_epoch_is_not_entered_again():
    """Tried: back to an earlier roster, whose masks have been used."""
    here = world(("eve", "ana", "bo", "cy"), on_loss="continue")
    assert told(here.ana, ask())
    here.ana.handle(Received("eve", RosterNamed(4, ("eve", "ana", "bo"), "eve")))
    for epoch in (0, 4):
        assert here.ana.handle(Received("eve", RosterNamed(epoch, ("eve", "ana", "bo", "cy"), "eve"))) == []
    assert here.ana.party.roster.epoch == 4 and told(here.ana, ask()) == []


def test_surveys_of_another_epoch_have_other_masks():
    here = world(("eve", "ana", "bo", "cy"), on_loss="continue")
    here.ana.handle(Received("eve", Mark(0, 1, 0, 0)))
    (before,) = told(here.ana, ask(SURVEY, 1, 0, ROWS))
    here.ana.handle(Received("eve", RosterNamed(4, ("eve", "ana", "bo", "cy"), "eve")))
    here.ana.handle(Received("eve", Mark(4, 4 * EPOCH_STRIDE + 1, 0, 0)))
    (after,) = told(here.ana, ask(SURVEY, 4 * EPOCH_STRIDE + 1, 0, ROWS, epoch=4))
    assert is_noise(before - after), "the same share twice, under two masks"


# -- two trees -------------------------------------------------------------------------------------------------------


def partials(party, body):
    effects = party.handle(Received("eve", body))
    return [e.body for e in effects if isinstance(e, Send) and isinstance(e.body, PartialGiven)]


def test_masked_words_of_a_leaf_say_nothing_about_each_other():
    """Once two ranges of rows lay over the same mask words: answers differed by what the shares differed by."""
    here = world(("eve", "ana", "bo", "cy"), scheme="two-tree")
    for name in ("ana", "bo", "cy"):
        sent = [partials(here.parties[name], ask(first=number)) for number in (0, 1, 2)]
        masked = [body.words for bodies in sent for body in bodies if body.tree == 0]
        for one in range(len(masked)):
            for other in range(one):
                length = min(len(masked[one]), len(masked[other])) - 1
                assert is_noise(masked[one][:length] - masked[other][:length])
                assert is_noise(masked[one][1 : length + 1] - masked[other][:length])
        assert len(masked) in (0, 3)


def test_two_trees_asked_differently_give_the_asker_nothing():
    here = world(("eve", "ana", "bo", "cy"), scheme="two-tree")
    queue = [(name, "eve", ask(first=number)) for name, number in (("ana", 0), ("bo", 1), ("cy", 2))]
    reached = []
    while queue:
        to, sender, body = queue.pop(0)
        for effect in here.parties[to].handle(Received(sender, body)):
            if isinstance(effect, Send) and effect.to == "eve":
                reached.append(effect.body)
            elif isinstance(effect, Send):
                queue.append((effect.to, to, effect.body))
    assert reached == []
