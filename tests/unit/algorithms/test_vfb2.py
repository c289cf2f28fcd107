"""VFB2's parties, event by event: questions and derivatives, queues, lanes, alarms, and going on after a crash."""

from functools import partial

import numpy as np
import pytest
import vertical_room
from vertical_room import (
    ANA,
    BATCH,
    BO,
    CY,
    ROWS,
    a_problem,
    ask,
    bodies,
    is_question,
    of,
    question,
    tell,
    work,
)

from offbeat.algorithms import vfb2
from offbeat.algorithms.vfb2 import OPEN_MOST, QUEUE_MOST, STARVED_AFTER, Backward, Stepped, VfbParty
from offbeat.errors import BadJob, UnexpectedEvent
from offbeat.learning.sampling import Schedule
from offbeat.learning.steps import lag_factor
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Compute, Computed, Observe
from offbeat.party.lifecycle import Halt, RosterNamed
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import ShareAsked, ShareGiven
from offbeat.party.survey_messages import Mark

Room = partial(vertical_room.Room, vfb2.build)


def backward(party, number, rng=None, *, sender=ANA, asks=-1, at_once=0):
    start, stop = party.rows_asked(sender, number)
    theta = np.full(stop - start, 0.1) if rng is None else rng.standard_normal(stop - start)
    return Backward(0, number, theta, 0, asks, at_once)


# -- questions and derivatives ---------------------------------------------------------------------------------------


def test_the_dominators_deal_the_schedule_out_among_themselves():
    room = Room(holders=2)
    room.update(9)
    schedule, cy = Schedule(ROWS, BATCH, 1), room.parties[CY]
    for at, name in enumerate((ANA, BO)):
        sent = [body for sender, body in room.told() if sender == name]
        assert [body.number for body in sent] == list(range(len(sent)))
        for body in sent:
            assert cy.rows_asked(name, body.number) == schedule.block(2 * body.number + at)
            assert len(body.derivatives) == np.ptp(schedule.block(2 * body.number + at))


def test_every_derivative_reaches_every_block_once_and_passes_are_counted_alike():
    room = Room(holders=2)
    room.update(10)
    room.finish()
    assert len(room.told()) >= 10
    assert {party.block.version for party in room.parties.values()} == {len(room.told())}
    blocks = Schedule(ROWS, BATCH, 1).blocks_a_pass
    assert {party.passes() for party in room.parties.values()} == {len(room.told()) / blocks}


@pytest.mark.parametrize("in_flight", [1, 3])
def test_the_next_question_rides_on_the_derivatives(in_flight):
    room = Room(in_flight=in_flight)
    assert [event.body.first for to, event in room.asked if to == CY] == list(range(in_flight))
    room.update(6)
    assert [body.first for _, body in room.sent if is_question(body)] == list(range(in_flight))  # and no more
    assert [body.asks for _, body in room.told()] == [in_flight + at for at in range(6)]


def test_a_collaborator_answers_the_next_question_after_its_step():
    cy = Room().parties[CY]
    assert bodies(ask(cy, 0), ShareGiven)[0].version == 0
    effects = tell(cy, backward(cy, 0, asks=1))
    assert not bodies(effects, ShareGiven)
    assert [(given.first, given.version) for given in bodies(work(cy, effects), ShareGiven)] == [(1, 1)]


def test_a_collaborator_that_is_not_waited_for_answers_before_its_step():
    cy = Room().parties[CY]
    ask(cy, 0)
    effects = work(cy, tell(cy, backward(cy, 0, asks=1, at_once=0b100)))
    assert [(given.first, given.version) for given in bodies(effects, ShareGiven)] == [(1, 1)], "but for the first"
    effects = tell(cy, backward(cy, 1, asks=2, at_once=0b100))
    assert [(given.first, given.version) for given in bodies(effects, ShareGiven)] == [(2, 1)]
    assert not bodies(work(cy, effects), ShareGiven)
    assert cy.block.version == 2


def test_no_question_is_answered_from_zero_while_the_first_step_is_under_way():
    cy = Room().parties[CY]
    ask(cy, 0)
    effects = tell(cy, backward(cy, 0, asks=1, at_once=0b100))
    assert not bodies([*effects, *ask(cy, 7)], ShareGiven)
    again = Room().parties[CY]
    again.restore(decode_state(encode_state(cy.snapshot())))
    for party in (cy, again):
        given = bodies(work(party, effects), ShareGiven)
        assert sorted(share.first for share in given) == [1, 7] and {share.version for share in given} == {1}


def slow_to(party, *, bo=1e-3, cy=1e-3, trip=0.0):
    """Whom a party takes for slow, as bits, where it takes a millisecond for a row itself."""
    sums = party.party.sums
    sums.own_seconds, sums.seconds, party.party.round_trip_s = 1e-3, {BO: bo, CY: cy}, trip
    party.party.judge.look_who_is_slow()
    return party.party.judge.slow


def test_whoever_makes_it_take_much_longer_from_survey_to_survey_is_slow():
    ana = Room().parties[ANA]
    for cy, bits in ((1e-3, 0b000), (1.9e-3, 0b000), (2.1e-3, 0b100), (1.0, 0b100)):
        assert slow_to(ana, cy=cy) == bits
    assert slow_to(ana, bo=4e-3, cy=4e-3) == 0b110
    assert slow_to(ana, bo=1.9e-3, cy=5e-3) == 0b100
    assert slow_to(ana, cy=2.8e-3, trip=1.0) == 0, "beside such a way some milliseconds of work are nothing"


def test_without_leaps_whoever_is_slower_at_all_is_slow():
    assert slow_to(Room(leap=False).parties[ANA], cy=1.4e-3) == 0b100


def test_whoever_is_slow_in_a_run_is_not_waited_for():
    room = Room(seconds={ANA: 1e-3, BO: 1e-3, CY: 1e-2})
    room.update(40)
    assert room.told()[-1][1].at_once == 0b100


def test_derivatives_that_make_no_sense_are_refused_and_change_nothing():
    cy = Room().parties[CY]
    with pytest.raises(UnexpectedEvent, match="which it did not ask"):
        tell(cy, backward(cy, 0))
    ask(cy, 0)
    for theta in (np.zeros(3), np.zeros(len(backward(cy, 0).derivatives), np.float32)):
        room_cy = Room().parties[CY]
        ask(room_cy, 0)
        with pytest.raises(UnexpectedEvent, match=ANA):
            tell(room_cy, Backward(0, 0, theta, 0, -1, 0))
        assert room_cy.block.version == 0 and not room_cy.queue
    tell(cy, backward(cy, 0))
    with pytest.raises(UnexpectedEvent, match="which it did not ask"):
        tell(cy, backward(cy, 0))  # a second time


def test_a_question_is_answered_once():
    cy = Room().parties[CY]
    ask(cy, 0)
    with pytest.raises(UnexpectedEvent, match="products 0 again"):
        ask(cy, 0)
    assert cy.party.sums.refused == 1


def test_a_party_without_labels_may_not_ask():
    cy = Room().parties[CY]
    with pytest.raises(UnexpectedEvent, match="not its to ask"):
        ask(cy, 0, sender=BO)


def test_questions_without_derivatives_are_bounded():
    cy = Room().parties[CY]
    for number in range(OPEN_MOST):
        ask(cy, number)
    with pytest.raises(UnexpectedEvent, match="may be open"):
        ask(cy, OPEN_MOST)


# -- the queue -------------------------------------------------------------------------------------------------------


def test_what_waits_is_fused_and_beyond_the_bound_the_oldest_is_dropped_but_its_question_answered():
    cy, rng = Room().parties[CY], np.random.default_rng(0)
    count, cy.stepped = QUEUE_MOST + 3, True
    for number in range(count):
        ask(cy, number)
    told = [backward(cy, number, rng, asks=100 + number) for number in range(count)]
    (first,) = of(tell(cy, told[0]), Compute)
    given = [[body.first for body in bodies(tell(cy, body), ShareGiven)] for body in told[1:]]
    assert given == [[]] * QUEUE_MOST + [[101], [102]]
    assert cy.losses() == {"dropped": 2, "late": 0}
    (fused,) = of(cy.handle(Computed(first.ticket)), Compute)
    assert fused.samples == sum((len(body.derivatives) + 1) // 2 for body in told[-QUEUE_MOST:])
    answers = bodies(cy.handle(Computed(fused.ticket)), ShareGiven)
    assert [body.first for body in answers] == [100 + number for number in range(3, count)]
    assert cy.block.version == 1 + QUEUE_MOST and not cy.queue


def test_fused_steps_are_the_steps_one_by_one_in_order():
    rng = np.random.default_rng(1)
    one, other = Room().parties[CY], Room().parties[CY]
    for cy in (one, other):
        for number in range(1 + QUEUE_MOST):
            ask(cy, number)
    told = [backward(one, number, rng) for number in range(1 + QUEUE_MOST)]
    work(one, [effect for body in told for effect in tell(one, body)])
    for body in told:
        work(other, tell(other, body))
    assert one.block.version == other.block.version == 1 + QUEUE_MOST
    assert np.array_equal(one.block.weights(), other.block.weights())


def test_a_dominator_steps_before_it_tells_the_others_and_the_time_is_charged():
    room = Room()
    room.update(1)
    ana = room.parties[ANA]
    assert ana.block.version == 1 and room.told()[0][1].version == 1
    assert room.parties[CY].block.version == 0
    assert any(to == ANA and isinstance(event, Computed) for to, event in room.queue)


def test_a_product_that_is_too_old_is_not_used():
    room = Room(holders=2, lag_max=1)
    ana = room.parties[ANA]
    given = {peer: bodies(ask(room.parties[peer], 0), ShareGiven)[0] for peer in (BO, CY)}
    for number in range(3):
        ask(ana, number, sender=BO)
        work(ana, tell(ana, backward(ana, number, sender=BO), BO))
    assert ana.block.version == 3
    effects = [effect for peer, body in given.items() for effect in tell(ana, body, peer)]
    after = work(ana, effects)
    assert (ana.late, ana.applied) == (1, 0) and not bodies(after, Backward)
    assert [body.first for body in bodies(after, ShareAsked)] == [1]  # another product is asked for instead


def test_a_derivative_that_is_no_number_ends_the_run():
    room = Room()
    ana = room.parties[ANA]
    ana.block.set_weights(np.full_like(ana.block.weights(), np.inf))
    room.update(1)
    (halt,) = [body for _, body in room.sent if isinstance(body, Halt)]
    assert halt.verdict == "diverged" and not room.told()


# -- alarms ----------------------------------------------------------------------------------------------------------


def test_a_party_whose_block_no_longer_moves_is_named_once():
    ana = Room().parties[ANA]
    alarms = []
    for number in range(0, STARVED_AFTER + 64, 16):
        ana.number = number
        alarms += ana._watch_peers({BO: number, CY: 4})
    assert [(alarm.name, alarm.value.split()[0]) for alarm in alarms] == [("alarm", CY)]
    assert isinstance(alarms[0], Observe) and ana.starved == {CY}
    assert ana._watch_peers({CY: 5}) == [] and not ana.starved  # it moves again
    ana.number += STARVED_AFTER + 16
    assert len(ana._watch_peers({CY: 5})) == 1


# -- surveys ---------------------------------------------------------------------------------------------------------


def test_derivatives_are_corrected_against_the_table_at_hand():
    """They carry their value and not a difference, so each party corrects them against the table that it has now."""
    room, rng = Room("svrg", step=0.3, leap=False, by_curvature=False), np.random.default_rng(3)
    cy, problem = room.parties[CY], room.problem
    ask(cy, 0)
    late = backward(cy, 0, rng)
    cy.block.refresh(0, ROWS, rng.standard_normal(ROWS))
    before, table = cy.block.weights()[0, :-1], cy.block.table[0].copy()
    work(cy, tell(cy, late))
    X, (start, stop) = problem.X[:, problem.columns[CY]], cy.rows_asked(ANA, 0)
    move = X[start:stop].T @ (late.derivatives - table[start:stop]) / (stop - start) + X.T @ table / ROWS
    expected = before - 0.3 * (move + problem.strength * before)
    assert np.abs(cy.block.weights()[0, :-1] - expected).max() < 1e-12


def test_the_chair_marks_when_a_survey_is_due_and_asks_nothing_meanwhile():
    room = Room("svrg", survey_passes=0.5)
    room.update(8)
    blocks = Schedule(ROWS, BATCH, 1).blocks_a_pass
    marks = [at for at, (_, body) in enumerate(room.sent) if isinstance(body, Mark)]
    told = [at for at, (_, body) in enumerate(room.sent) if isinstance(body, Backward)]
    last = int(np.ceil(0.5 * blocks)) - 1
    assert told[last] < marks[1] < told[last + 1]  # the first one was at the start
    assert [body.asks >= 0 for _, body in room.told()[: last + 1]] == [True] * last + [False]


def test_a_mark_waits_for_the_steps_that_were_told_before_it():
    room = Room("svrg")
    cy = room.parties[CY]
    ask(cy, 0)
    (steps,) = of(tell(cy, backward(cy, 0)), Compute)
    assert tell(cy, Mark(0, 2, 1, 0)) == [] and cy.party.survey.current == 1
    cy.handle(Computed(steps.ticket))
    assert cy.party.survey.current == 2
    assert np.array_equal(cy.party.survey.frozen, cy.block.weights())


def test_whoever_is_not_waited_for_freezes_its_block_as_it_is():
    room = Room("svrg", leap=False)
    cy = room.parties[CY]
    ask(cy, 0)
    (steps,) = of(tell(cy, backward(cy, 0)), Compute)
    tell(cy, Mark(0, 2, 1, 0b100))
    assert cy.party.survey.current == 2 and not cy.party.survey.frozen.any()
    cy.handle(Computed(steps.ticket))
    assert cy.block.version == 1 and not cy.party.survey.frozen.any()


# -- lanes -----------------------------------------------------------------------------------------------------------


def asked_on_lanes(cy, count):
    for number in range(count):
        work(cy, ask(cy, number))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_lanes_take_one_derivative_each_as_pure_jobs(sparse):
    room = Room(lanes=2, sparse=sparse)
    cy, rng = room.parties[CY], np.random.default_rng(4)
    asked_on_lanes(cy, 4)
    jobs = [job for number in range(4) for job in of(tell(cy, backward(cy, number, rng)), Compute)]
    assert len(jobs) == 2 and len(cy.queue) == 2
    before = cy.block.weights()
    results = [job.job() for job in jobs]
    assert np.array_equal(cy.block.weights(), before)  # a job touches nothing
    (third,) = of(cy.handle(Computed(jobs[1].ticket, results[1])), Compute)  # in any order
    assert cy.block.version == 1 and len(cy.queue) == 1
    (fourth,) = of(cy.handle(Computed(jobs[0].ticket, results[0])), Compute)
    for job in (third, fourth):
        cy.handle(Computed(job.ticket, job.job()))
    assert cy.block.version == 4
    mean = room.problem.dense()[:, room.problem.columns[CY]].T @ cy.block.table[0] / ROWS
    assert np.abs(cy.block.mean_gradient()[0, :-1] - mean).max() < 1e-12


@pytest.mark.parametrize("crash", [False, True])
def test_a_share_from_a_lane_is_of_the_version_at_which_it_was_asked_for(crash):
    """Unless a crash has lost it: then it is taken anew, from the block as it is, under the same number."""
    room = Room(lanes=2)
    cy = room.parties[CY]
    asked_on_lanes(cy, 1)
    (job,) = of(ask(cy, 1), Compute)
    expected = cy.block.share(*cy.rows_asked(ANA, 1))
    work(cy, tell(cy, backward(cy, 0)))
    assert cy.block.version == 1
    cy, share = (room.crash(CY), None) if crash else (cy, job.job())
    assert crash or np.array_equal(share, expected)
    (given,) = bodies(cy.handle(Computed(job.ticket, share)), ShareGiven)
    assert (given.first, given.version) == (1, int(crash))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_crash_in_the_middle_of_lane_work_finishes_each_exchange_exactly_once(sparse):
    """The table entry is exchanged when the job is made; the job's result is lost; the party finishes it itself."""
    whole, broken = (Room(lanes=2, sparse=sparse) for _ in range(2))
    for room in (whole, broken):
        asked_on_lanes(room.parties[CY], 4)
    told = [backward(whole.parties[CY], n, np.random.default_rng(n)) for n in range(4)]
    work(whole.parties[CY], [effect for body in told for effect in tell(whole.parties[CY], body)])
    cy = broken.parties[CY]
    jobs = [job for body in told for job in of(tell(cy, body), Compute)]
    cy.handle(Computed(jobs[0].ticket, jobs[0].job()))  # one came back; two are under way, one waits
    cy = broken.crash(CY)
    under_way = list(cy.works.open)  # the runtime gives their time back, without a result
    work(cy, [effect for ticket in under_way for effect in cy.handle(Computed(ticket))])
    assert cy.block.version == 4 and not cy.queue
    assert cy.handle(Computed(jobs[1].ticket, jobs[1].job())) == []  # a result from before the crash comes too late
    assert np.array_equal(cy.block.table, whole.parties[CY].block.table)
    assert np.abs(cy.block.weights() - whole.parties[CY].block.weights()).max() < 1e-12


# -- going on later --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ANA, CY])
@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "rounds"])
def test_a_restored_party_goes_on_as_if_nothing_had_happened(name, synchronous):
    rooms = [Room("svrg", holders=2, synchronous=synchronous, survey_passes=0.5) for _ in range(2)]
    for room in rooms:
        room.update(5)
    rooms[1].crash(name)
    for room in rooms:
        room.update(14)
    one, other = (room.parties[name] for room in rooms)
    assert encode_state(one.snapshot()) == encode_state(other.snapshot())


# -- the step --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [None, 0.5])
def test_old_products_shorten_an_automatic_step_and_leave_a_chosen_one_alone(step):
    stepper = Room(step=step).parties[CY].stepper
    chosen = stepper.eta(0, BATCH)
    for _ in range(64):
        last = stepper.eta(30, BATCH)
        stepper.block.version += 1
    assert last == pytest.approx(chosen if step else chosen * lag_factor(30.0), rel=0.05)
    for _ in range(400):
        last = stepper.eta(0, BATCH)
        stepper.block.version += 1
    assert last == pytest.approx(chosen, rel=1e-3)


def test_the_lag_of_a_step_is_the_own_versions_since_the_share():
    cy = Room().parties[CY]
    for number in range(5):
        ask(cy, number)
    for number in range(5):
        work(cy, tell(cy, backward(cy, number)))
    assert (cy.party.lags.most, cy.party.lags.total) == (4, 0 + 1 + 2 + 3 + 4)


# -- a new roster ----------------------------------------------------------------------------------------------------


def test_a_new_roster_makes_every_question_void_and_deals_the_schedule_anew():
    room = Room(holders=2, parties=4, on_loss="continue")
    room.update(6)
    room.finish()
    cy, before = room.parties[CY], room.parties[CY].passes()
    ask(cy, cy.numbers[ANA] + 1)
    (steps,) = of(tell(cy, backward(cy, cy.numbers[ANA] + 1, asks=99)), Compute)
    tell(cy, RosterNamed(4, (ANA, BO, CY), ANA))
    assert cy.answered == {} and cy.numbers == {} and cy.passes() >= before
    assert not bodies(cy.handle(Computed(steps.ticket)), ShareGiven)  # the step is taken, its question is void


# -- who may do what -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sgd", "svrg", "saga"])
@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "rounds"])
def test_a_passive_party_never_holds_a_label(method, synchronous):
    """Not in its memory, not in its snapshot; what it can work out from derivatives is told in docs/explanation."""
    room = Room(method, synchronous=synchronous, survey_passes=0.5)
    room.update(12)
    labels = room.problem.y
    for name in (BO, CY):
        party = room.parties[name]
        assert party.party.problem.labels is None
        assert not holds(party.snapshot(), labels)
        assert not holds(everything(party), labels)
    assert holds(everything(room.parties[ANA]), labels)


def holds(value, secret):
    """Whether the secret, whole or in part, stands in these nested values (as it is, or with its sign turned)."""
    if isinstance(value, np.ndarray):
        flat = np.ravel(value)
        if flat.dtype != np.float64 or len(flat) < BATCH:
            return False
        pieces = [secret[at : at + BATCH] for at in range(0, len(secret), BATCH)]
        rows = np.lib.stride_tricks.sliding_window_view(flat, BATCH)
        return any((rows == sign * piece).all(axis=1).any() for piece in pieces for sign in (1, -1))
    if isinstance(value, dict):
        return any(holds(inner, secret) for inner in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(holds(inner, secret) for inner in value)
    return False


def everything(root):
    """Every array that can be reached from an object."""
    found, seen, todo = [], set(), [root]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            found.append(value)
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
            todo += list(value)
        elif type(value).__module__.startswith("offbeat"):
            todo += vars(value).values() if hasattr(value, "__dict__") else []
            todo += [getattr(value, slot) for slot in getattr(value, "__slots__", ()) if hasattr(value, slot)]
            todo += [getattr(value, field) for field in getattr(value, "__struct_fields__", ())]
    return found


def test_somebody_must_hold_the_labels():
    problem, options = a_problem(), LinearOptions()
    with pytest.raises(BadJob, match="hold the labels"):
        vfb2.build(problem.blocks(), problem.problem(), options, labels_at=("nobody",))
    alone = {ANA: problem.block(ANA)}
    with pytest.raises(BadJob, match="two parties"):
        vfb2.build(alone, problem.problem(), options)


# -- rounds ----------------------------------------------------------------------------------------------------------


def test_rounds_pass_from_one_dominator_to_the_next():
    room = Room(holders=2, synchronous=True)
    room.update(6)
    assert [(name, body.number) for name, body in room.told()] == [((ANA, BO)[n % 2], n) for n in range(6)]
    versions = [party.block.version for party in room.parties.values()]
    assert min(versions) >= 5


def test_the_next_question_waits_for_every_partys_step():
    room = Room(holders=2, synchronous=True)
    bo = room.parties[BO]
    room.update(1)
    room.run(lambda: bo.round == 1)
    assert bo.unstepped == {ANA, CY} and not bodies(tell(bo, Stepped(0, 0), CY), ShareAsked)
    (asked,) = bodies(tell(bo, Stepped(0, 0), ANA), ShareAsked)
    assert asked.first == 1


def test_a_word_of_another_round_is_refused():
    room = Room(synchronous=True)
    cy = room.parties[CY]
    assert isinstance(cy, VfbParty)
    for body in (backward(cy, 1), question(1), Stepped(0, 5)):
        with pytest.raises(UnexpectedEvent, match="round"):
            tell(cy, body)
    with pytest.raises(UnexpectedEvent, match="derivatives of round 0"):
        tell(cy, backward(cy, 0), BO)  # whose turn it is not
