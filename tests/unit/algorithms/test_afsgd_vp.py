"""AFSGD-VP's workers, event by event; `test_vfb2.py` has what both papers share."""

from functools import partial

import numpy as np
import pytest
import vertical_room
from vertical_room import ANA, BATCH, BO, CY, ROWS, ask, bodies, is_question, of, question, tell, work

from offbeat.algorithms import afsgd_vp
from offbeat.algorithms.afsgd_vp import Product
from offbeat.errors import UnexpectedEvent
from offbeat.learning.sampling import Schedule
from offbeat.message.codec import encode_state
from offbeat.party.contract import Compute, Computed
from offbeat.party.lifecycle import Halt
from offbeat.party.masked_sum import AFTER_SURVEY, ASK, UNASKED, ShareAsked, ShareGiven
from offbeat.party.survey_messages import Mark

Room = partial(vertical_room.Room, afsgd_vp.build, holders=3)
SCHEDULE = Schedule(ROWS, BATCH, 1)


def share_given(room, giver, asker, number):
    """What a worker answers to another's question, which is put once."""
    kept = room.__dict__.setdefault("kept", {})
    if (giver, asker, number) not in kept:
        (kept[giver, asker, number],) = bodies(ask(room.parties[giver], number, asker), ShareGiven)
    return kept[giver, asker, number]


def let_ask_first(room, worker):
    """Nobody takes its first step before everybody has put its first questions."""
    here = room.parties[worker]
    for peer in (name for name in room.parties if name != worker):
        for number in range(here.numbers.get(peer, 0), here.party.options.in_flight or 1):
            share_given(room, worker, peer, number)


def products_for(room, worker, number):
    """Everything that the others' answers to a worker's question make it do."""
    let_ask_first(room, worker)
    effects = []
    for peer in (name for name in room.parties if name != worker):
        effects += tell(room.parties[worker], share_given(room, peer, worker, number), peer)
    return effects


def shares(effects):
    """(to whom, share) of all shares that these effects send."""
    return [(effect.to, effect.body) for effect in effects if isinstance(getattr(effect, "body", None), ShareGiven)]


# -- asynchronous workers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_worker_keeps_so_many_questions_under_way(in_flight):
    room = Room(in_flight=in_flight)
    ana = room.parties[ANA]
    assert [event.body.first for to, event in room.asked if to == CY and event.sender == ANA] == list(range(in_flight))
    after = work(ana, products_for(room, ANA, 0))
    assert [body.first for body in bodies(after, ShareAsked)] == ([] if in_flight == 1 else [in_flight])
    assert (ana.taken, ana.block.version, ana.under_way) == (1, 1, in_flight)


def test_a_step_moves_the_own_block_alone_by_the_products_of_the_schedules_rows():
    room = Room("sgd", step=0.5)
    ana, problem = room.parties[ANA], room.problem
    work(ana, products_for(room, ANA, 0))
    rows = slice(*SCHEDULE.block(0))
    theta = problem.loss.derivative(np.zeros(rows.stop - rows.start), problem.y[rows])
    expected = -0.5 * problem.X[rows][:, problem.columns[ANA]].T @ theta / SCHEDULE.whole
    assert np.abs(ana.block.weights()[0, :-1] - expected).max() < 1e-12
    assert not room.parties[BO].block.weights().any() and not room.parties[CY].block.weights().any()


def test_a_worker_without_labels_answers_and_asks_nothing():
    room = Room(holders=2)
    assert {event.sender for _, event in room.asked} == {ANA, BO}
    assert not of(ask(room.parties[CY], 0), Compute) and room.parties[CY].block.version == 0
    with pytest.raises(UnexpectedEvent, match="not its to ask"):
        ask(room.parties[BO], 0, CY)


def test_a_product_that_is_too_old_is_not_used():
    room = Room(lag_max=1, in_flight=3)
    ana = room.parties[ANA]
    (late,) = of(products_for(room, ANA, 2), Compute)
    for number in range(2):
        work(ana, products_for(room, ANA, number))
    after = ana.handle(Computed(late.ticket))
    assert (ana.late, ana.taken) == (1, 2)
    assert len(bodies(after, ShareAsked)) == 1  # another product is asked for instead


def test_whoever_is_a_step_ahead_is_answered_after_the_own_step_unless_one_is_slow():
    room = Room(in_flight=2)
    bo = room.parties[BO]
    assert bodies(ask(bo, 1, ANA), ShareGiven) and not bodies(ask(bo, 2, ANA), ShareGiven)
    assert bodies(ask(bo, 0, CY), ShareGiven)
    given = bodies(work(bo, products_for(room, BO, 0)), ShareGiven)
    assert [(body.first, body.version) for body in given] == [(2, 1)] and bo.block.version == 1
    bo.party.judge.slow = 0b010
    assert bodies(ask(bo, 4, ANA), ShareGiven)


def test_nobody_shows_a_block_beside_one_that_has_not_moved():
    """Bo would step before Cy has asked; Cy's total would be Bo's share alone, where Ana has not moved. And Ana, who is
    slow, would answer his next question from zero."""
    room = Room()
    ana, bo = room.parties[ANA], room.parties[BO]
    ana.party.judge.slow = 0b001
    share_given(room, BO, ANA, 0)
    for peer in (ANA, CY):
        assert not of(tell(bo, share_given(room, peer, BO, 0), peer), Compute)
    (update,) = of(ask(bo, 0, CY), Compute)
    bo.handle(Computed(update.ticket))
    assert ask(ana, 1, BO) == [] and ana.block.version == 0
    assert {body.first for _, body in shares(work(ana, products_for(room, ANA, 0)))} == {1}


def test_a_share_says_that_the_next_one_comes_unasked_where_both_are_at_the_same_block():
    room = Room()
    bo = room.parties[BO]
    (first,) = bodies(ask(bo, 0, ANA), ShareGiven)
    assert (first.first, first.then) == (0, UNASKED)
    with pytest.raises(UnexpectedEvent, match="question 1, whose answer comes unasked"):
        ask(bo, 1, ANA)
    (late,) = bodies(ask(bo, 0, CY), ShareGiven)
    assert late.then == UNASKED
    after = work(bo, products_for(room, BO, 0))
    assert {(to, body.first, body.version) for to, body in shares(after)} == {(ANA, 1, 1), (CY, 1, 1)}
    assert not bodies(after, ShareAsked)  # Ana and Cy have said so too


def test_nobody_slow_is_promised_anything():
    room = Room()
    bo = room.parties[BO]
    bo.party.judge.slow = 0b001
    (to_slow,) = bodies(ask(bo, 0, ANA), ShareGiven)
    (to_quick,) = bodies(ask(bo, 0, CY), ShareGiven)
    assert (to_slow.then, to_quick.then) == (ASK, UNASKED)


def test_shares_that_come_before_the_own_step_wait_for_it():
    room = Room()
    ana, ahead = room.parties[ANA], []
    (update,) = of(products_for(room, ANA, 0), Compute)
    for peer in (BO, CY):
        ahead += [
            (peer, body) for to, body in shares(work(room.parties[peer], products_for(room, peer, 0))) if to == ANA
        ]
    assert [tell(ana, body, peer) for peer, body in ahead] == [[], []] and ana.early.first == 1
    assert of(ana.handle(Computed(update.ticket)), Compute)  # the next step begins at once
    assert (ana.taken, ana.under_way, ana.early) == (1, 1, None)


def test_before_a_survey_the_chair_says_so_and_everybody_rests():
    room = Room("svrg", survey_passes=1 / SCHEDULE.blocks_a_pass)
    ana, bo = room.parties[ANA], room.parties[BO]
    (update,) = of(products_for(room, ANA, 0), Compute)
    first = share_given(room, ANA, BO, 0)
    assert first.then == AFTER_SURVEY
    after = work(bo, products_for(room, BO, 0))
    assert bo.rests and not bodies(after, ShareAsked) and not shares(after)
    assert bodies(ana.handle(Computed(update.ticket)), Mark) and ana.party.survey.under_way
    assert {to for to, body in shares(bo.resume()) if body.first == 1} == {ANA, CY}  # after the survey


def test_who_rests_before_a_survey_still_answers_for_the_steps_that_it_waits_for():
    """Cy's question for the last block may come when Bo has taken that step already: Cy needs the share for his."""
    bo = Room().parties[BO]
    bo.number, bo.under_way, bo.taken = 6, 0, 6
    bo.rests, bo.survey_after = True, 5  # after the last step before a survey
    assert [body.first for body in bodies(ask(bo, 5, CY), ShareGiven)] == [5]
    assert ask(bo, 6, CY) == [] and bo.waiting == [(CY, 6)]


def test_a_question_that_waits_is_put_once():
    bo = Room().parties[BO]
    assert ask(bo, 1, ANA) == []
    with pytest.raises(UnexpectedEvent, match="question 1 again"):
        ask(bo, 1, ANA)
    with pytest.raises(UnexpectedEvent, match="more questions than can wait"):
        for number in range(2, 2 + afsgd_vp.WAITING_MOST):
            ask(bo, number, ANA)


def test_passes_are_those_of_the_slowest_worker_that_is_waited_for():
    room = Room()
    ana = room.parties[ANA]
    work(ana, products_for(room, ANA, 0))
    ask(ana, 5, BO)
    ask(ana, 3, CY)
    assert ana.passes() == 1 / SCHEDULE.blocks_a_pass
    ana.taken = 9
    assert ana.passes() == 4 / SCHEDULE.blocks_a_pass
    ana.party.judge.slow = 0b100
    assert ana.passes() == 6 / SCHEDULE.blocks_a_pass


def test_a_product_that_is_no_number_ends_the_run():
    room = Room()
    ana = room.parties[ANA]
    let_ask_first(room, ANA)
    ana.block.set_weights(np.full_like(ana.block.weights(), np.inf))
    (halt,) = bodies(work(ana, products_for(room, ANA, 0)), Halt)
    assert halt.verdict == "diverged" and ana.taken == 0


def test_a_mark_waits_for_the_step_under_way():
    room = Room("svrg")
    cy = room.parties[CY]
    (update,) = of(products_for(room, CY, 0), Compute)
    assert tell(cy, Mark(0, 2, 1, 0)) == [] and cy.party.survey.current == 1
    cy.handle(Computed(update.ticket))
    assert cy.party.survey.current == 2
    assert np.array_equal(cy.party.survey.frozen, cy.block.weights())


# -- rounds ----------------------------------------------------------------------------------------------------------


def test_shares_of_rounds_come_unasked_and_the_products_go_to_everybody():
    room = Room(synchronous=True)
    assert not any(is_question(body) for _, body in room.sent)
    room.update(6)
    assert [(name, body.round) for name, body in room.told()] == [(ANA, number) for number in range(len(room.told()))]
    assert len({party.block.version for party in room.parties.values()}) <= 2


def test_a_round_waits_for_every_share():
    room = Room(synchronous=True)
    shares = {event.sender: event.body for to, event in room.asked if to == ANA}
    ana = room.parties[ANA]
    assert set(shares) == {BO, CY} and tell(ana, shares[BO], BO) == []
    effects = tell(ana, shares[CY], CY)
    (products,) = bodies(effects, Product)
    assert products.round == 0 and not products.products.any()  # at the zero start
    work(ana, effects)
    assert ana.round == 1 and not ana.works.count[afsgd_vp.RoundStep]  # the next round's shares have not come


def test_words_of_another_round_are_refused():
    room = Room(synchronous=True, survey_passes=0.5)
    cy = room.parties[CY]
    values = np.zeros(np.ptp(SCHEDULE.block(cy.round)))
    for sender, body in ((ANA, Product(0, cy.round + 1, values, False)), (BO, Product(0, cy.round, values, False))):
        with pytest.raises(UnexpectedEvent, match="round"):
            tell(cy, body, sender)
    with pytest.raises(UnexpectedEvent, match="shares of rounds come unasked"):
        tell(cy, question(0))


def test_products_before_the_beginning_are_refused():
    (cy,) = Room(synchronous=True).build(only=CY)
    with pytest.raises(UnexpectedEvent, match="the products of round 0"):
        tell(cy, Product(0, 0, np.zeros(BATCH), False))


# -- going on later --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ANA, CY])
@pytest.mark.parametrize("method", ["sgd", "svrg", "saga"])
def test_a_restored_worker_goes_on_as_if_nothing_had_happened(name, method):
    rooms = [Room(method, survey_passes=0.5) for _ in range(2)]
    for room in rooms:
        room.events(400)
    rooms[1].crash(name)
    for room in rooms:
        room.events(400)
    one, other = (room.parties[name] for room in rooms)
    assert one.taken > 3 and encode_state(one.snapshot()) == encode_state(other.snapshot())
