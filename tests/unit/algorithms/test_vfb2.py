"""VFB2's parties, event by event: numbers and gaps, queues and fusing, lanes, alarms, and going on after a crash."""

from dataclasses import replace

import numpy as np
import pytest

from offbeat.algorithms import vfb2
from offbeat.algorithms.afsgd_vp import lag_allowance
from offbeat.algorithms.vfb2 import (
    BACKWARDS_KEPT,
    QUEUE_MAX,
    STARVED_AFTER,
    WANTED_TRIES,
    WORK_BEFORE_ASKING,
    Backward,
    BackwardWanted,
    Inbox,
    RoundParty,
    Stepped,
    StepsWanted,
)
from offbeat.errors import BadJob, UnexpectedEvent
from offbeat.learning.losses import LOGISTIC, LS_SVM, SQUARED
from offbeat.learning.sampling import BlockSampler
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast, Compute, Computed, Observe, Received, Send, Started, Woken
from offbeat.party.masked_sum import CURRENT, ShareAsked, ShareGiven
from offbeat.party.member import LinearOptions
from offbeat.party.survey import Certified, Mark
from offbeat.randomness import stream
from offbeat.testing.small_problem import draw_problem

BATCH = 8
ANA, BO, CY = "party0", "party1", "party2"
UNKNOWN = np.full(3, -1)


def a_problem(holders=1, sparse=False):
    drawn = draw_problem(2, parties=3, rows=64, sparse=sparse, loss=LOGISTIC)
    return replace(drawn, labels_at=drawn.names[:holders])


class Room:
    """Three parties that have begun. Requests for products at the current blocks are put aside; so is whatever `keep`
    does not let through. Work is done at once unless `settle` is told otherwise."""

    def __init__(self, method="saga", *, holders=1, lanes=1, sparse=False, synchronous=False, **options):
        self.problem = a_problem(holders, sparse)
        self.make = {"lanes": lanes, "synchronous": synchronous}
        self.options = LinearOptions(method=method, batch=BATCH, passes=1e6, **{"certify_passes": 1e6, **options})
        self.parties = {party.name: party for party in self.build()}
        self.asked = []
        self.queue = [(name, Started()) for name in self.parties]
        self.settle()

    def build(self, only=None):
        problem = self.problem
        return vfb2.build(
            problem.blocks(),
            problem.problem(),
            self.options,
            labels_at=problem.labels_at,
            seed=1,
            secrets_seed=1,
            only=only,
            **self.make,
        )

    def settle(self, keep=lambda body: True):
        while self.queue:
            name, event = self.queue.pop(0)
            self.post(name, self.parties[name].handle(event), keep)

    def post(self, name, effects, keep=lambda body: True):
        for effect in effects:
            if isinstance(effect, (Send, Broadcast)):
                if isinstance(effect.body, ShareAsked) and effect.body.point == CURRENT:
                    self.asked.append((name, effect))
                elif keep(effect.body):
                    to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
                    self.queue += [(peer, Received(name, effect.body)) for peer in to]
            elif isinstance(effect, Compute):
                self.queue.append((name, Computed(effect.ticket, effect.job() if effect.job is not None else None)))

    def serve(self, keep=lambda body: True):
        """One request that was put aside is answered by the others; then all that follows happens."""
        name, effect = self.asked.pop(0)
        for peer in effect.to:
            self.post(peer, self.parties[peer].handle(Received(name, effect.body)), keep)
        self.settle(keep)

    def crash(self, name):
        """The party made anew from its snapshot, as it would be read from a disk."""
        state = decode_state(encode_state(self.parties[name].snapshot()))
        (self.parties[name],) = self.build(only=name)
        self.parties[name].restore(state)
        return self.parties[name]


def backward(number, start=0, rng=None, read=-1):
    theta = np.full(BATCH, 0.1) if rng is None else rng.standard_normal(BATCH)
    return Backward(number, start, start + BATCH, theta, 0, 0, np.full(3, read))


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects, kind):
    return [effect for effect in effects if isinstance(effect, (Send, Broadcast)) and isinstance(effect.body, kind)]


def work(party, effects):
    """Do all work that these effects ask for, and what follows from it."""
    jobs, after = of(effects, Compute), []
    while jobs:
        job = jobs.pop(0)
        more = party.handle(Computed(job.ticket, job.job() if job.job is not None else None))
        jobs += of(more, Compute)
        after += more
    return after


# -- numbers, gaps, doubles ------------------------------------------------------------------------------------------


def test_an_inbox_takes_each_number_once_and_knows_its_gaps():
    inbox = Inbox()
    assert [inbox.accept(n) for n in (0, 1, 1, 4, 2, 2, 0)] == [True, True, False, True, True, False, False]
    assert (inbox.next, inbox.gaps) == (5, {3: 0})


def test_a_gap_is_asked_for_at_the_second_patrol_a_few_times_and_then_given_up():
    inbox = Inbox()
    inbox.accept(2)
    asked = [inbox.wanted() for _ in range(WANTED_TRIES + 3)]
    assert asked == [()] + [(0, 1)] * WANTED_TRIES + [()] * 2  # the first time it may only be late
    assert (inbox.given_up, inbox.gaps) == (2, {})
    assert not inbox.accept(1)  # too late: a number that was given up is not applied any more


def test_a_long_gap_is_bounded():
    inbox = Inbox()
    inbox.accept(10 * BACKWARDS_KEPT)
    assert len(inbox.gaps) == BACKWARDS_KEPT and min(inbox.gaps) == 9 * BACKWARDS_KEPT


def test_derivatives_are_numbered_and_reach_every_block():
    room = Room(holders=2)
    for _ in range(6):
        room.serve()
    ana, bo, cy = room.parties.values()
    assert (ana.number, bo.number, cy.number) == (3, 3, 0)
    assert [body.number for body in ana.sent.values()] == [0, 1, 2]
    assert {party.member.block.version for party in room.parties.values()} == {6}
    assert {name: inbox.next for name, inbox in cy.inboxes.items()} == {ANA: 3, BO: 3}
    assert ana.passes() == bo.passes() == cy.passes() == 6 * BATCH / 64


def test_the_dominators_share_the_rows_out():
    room = Room(holders=2)
    for _ in range(8):
        room.serve()
    common = BlockSampler(64, BATCH, stream(1, "rounds"))
    order = [common.next() for _ in range(8)]
    for at, name in enumerate((ANA, BO)):
        assert [(body.start, body.stop) for body in room.parties[name].sent.values()] == order[at::2]


def test_a_doubled_derivative_is_applied_once():
    room = Room()
    cy = room.parties[CY]
    for number in (0, 1, 1, 0, 1):
        work(cy, cy.handle(Received(ANA, backward(number))))
    assert cy.member.block.version == cy.applied == cy.received == 2


def test_a_derivative_that_overtook_another_closes_its_gap_when_it_comes():
    room = Room()
    cy = room.parties[CY]
    for number in (0, 2, 1):
        work(cy, cy.handle(Received(ANA, backward(number))))
    assert cy.applied == 3 and cy.losses() == {"dropped": 0, "lost": 0}
    cy.handle(Woken())
    assert not sent(cy.handle(Woken()), BackwardWanted)


def test_what_was_lost_is_asked_for_again_and_sent_again_with_the_same_bytes():
    room = Room()
    for _ in range(3):
        room.serve(keep=lambda body: not (isinstance(body, Backward) and body.number == 1))
    ana, cy = room.parties[ANA], room.parties[CY]
    assert cy.applied == 2 and ana.applied == 3
    cy.handle(Woken())
    (wanted,) = sent(cy.handle(Woken()), BackwardWanted)
    assert (wanted.to, wanted.body.numbers) == (ANA, (1,))
    (again,) = sent(ana.handle(Received(CY, wanted.body)), Backward)
    assert again.to == CY and again.body is ana.sent[1]
    work(cy, cy.handle(Received(ANA, again.body)))
    assert cy.applied == 3


def test_what_the_dominator_no_longer_has_is_given_up_and_counted():
    room = Room()
    ana, cy = room.parties[ANA], room.parties[CY]
    assert ana.handle(Received(CY, BackwardWanted((0, 7)))) == []
    work(cy, cy.handle(Received(ANA, backward(3))))
    for _ in range(WANTED_TRIES + 2):
        cy.handle(Woken())
    assert cy.losses() == {"dropped": 0, "lost": 3}
    assert cy.passes() == 4 * BATCH / 64  # what was given up was sent all the same


def test_a_dominator_keeps_so_many_derivatives_and_no_more():
    ana = Room().parties[ANA]
    for number in range(BACKWARDS_KEPT + 5):
        ana._keep(backward(number))
    assert len(ana.sent) == BACKWARDS_KEPT and min(ana.sent) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        Backward(0, -1, 7, np.zeros(8), 0, 0, UNKNOWN),
        Backward(0, 60, 68, np.zeros(8), 0, 0, UNKNOWN),
        Backward(0, 8, 8, np.zeros(0), 0, 0, UNKNOWN),
        Backward(0, 0, 8, np.zeros(7), 0, 0, UNKNOWN),
        Backward(0, 0, 8, np.zeros(8), 0, 0, np.full(2, -1)),
        Backward(0, 0, 8, np.zeros(8, np.int64), 0, 0, UNKNOWN),
    ],
)
def test_derivatives_that_make_no_sense_are_refused_and_change_nothing(wrong):
    cy = Room().parties[CY]
    with pytest.raises(UnexpectedEvent, match=ANA):
        cy.handle(Received(ANA, wrong))
    assert cy.inboxes[ANA].next == 0 and not cy.queue


def test_a_party_without_labels_cannot_dominate():
    cy = Room().parties[CY]
    assert cy.handle(Received(BO, backward(0))) == [] and not cy.queue


# -- the queue -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [QUEUE_MAX, 8])
def test_what_waits_is_fused_into_one_piece_of_work_and_the_oldest_is_dropped(most, monkeypatch):
    monkeypatch.setattr(vfb2, "QUEUE_MAX", most)
    room, rng = Room(), np.random.default_rng(0)
    cy = room.parties[CY]
    bodies = [backward(n, start=8 * (n % 8), rng=rng) for n in range(12)]
    (first,) = of(cy.handle(Received(ANA, bodies[0])), Compute)
    for body in bodies[1:]:
        assert cy.handle(Received(ANA, body)) == []  # its lane is busy
    assert [entry[0] for entry in cy.queue] == [body.start for body in bodies[-most:]]
    (fused,) = of(cy.handle(Computed(first.ticket)), Compute)
    assert (fused.samples, fused.nonzeros) == (most * first.samples, most * first.nonzeros)
    assert not cy.queue
    cy.handle(Computed(fused.ticket))
    assert cy.applied == cy.member.block.version == 1 + most
    assert cy.losses() == {"dropped": 11 - most, "lost": 0}


def test_fused_steps_are_the_steps_one_by_one_in_order():
    one, other, rng = Room().parties[CY], Room().parties[CY], np.random.default_rng(1)
    bodies = [backward(n, start=8 * n, rng=rng) for n in range(1 + QUEUE_MAX)]
    waiting = [effect for body in bodies for effect in one.handle(Received(ANA, body))]
    work(one, waiting)
    for body in bodies:
        work(other, other.handle(Received(ANA, body)))
    assert one.applied == other.applied == 1 + QUEUE_MAX
    assert (one.member.block.weights() == other.member.block.weights()).all()


def test_nothing_is_asked_for_while_derivatives_wait_at_home():
    room = Room(holders=2)
    ana = room.parties[ANA]
    (mine,) = [effect for name, effect in room.asked if name == ANA]
    (steps,) = of(ana.handle(Received(BO, backward(0))), Compute)  # the lane is busy with one of Bo's
    ana.handle(Received(BO, backward(1, start=8)))  # and another waits
    given = [room.parties[p].handle(Received(ANA, mine.body)) for p in (BO, CY)]
    assert ana.handle(Received(BO, sent(given[0], ShareGiven)[0].body)) == []
    (derive,) = of(ana.handle(Received(CY, sent(given[1], ShareGiven)[0].body)), Compute)
    effects = ana.handle(Computed(derive.ticket))
    assert sent(effects, Backward) and not sent(effects, ShareAsked)
    assert len(ana.queue) == 2  # Bo's and its own
    effects = ana.handle(Computed(steps.ticket))
    (fused,) = of(effects, Compute)
    assert not sent(effects, ShareAsked) and not ana.queue  # its own step is still being taken
    assert len(sent(ana.handle(Computed(fused.ticket)), ShareAsked)) == 1  # now the others can have taken it too


def test_a_dominator_that_cannot_keep_up_asks_nevertheless():
    room = Room(holders=2)
    ana = room.parties[ANA]
    (mine,) = [effect for name, effect in room.asked if name == ANA]
    given = [room.parties[p].handle(Received(ANA, mine.body)) for p in (BO, CY)]
    ana.handle(Received(BO, sent(given[0], ShareGiven)[0].body))
    (derive,) = of(ana.handle(Received(CY, sent(given[1], ShareGiven)[0].body)), Compute)
    (steps,) = of(ana.handle(Computed(derive.ticket)), Compute)
    asked = []
    for number in range(WORK_BEFORE_ASKING):  # whenever a piece of work is done, another waits
        ana.handle(Received(BO, backward(number)))
        effects = ana.handle(Computed(steps.ticket))
        (steps,) = of(effects, Compute)
        asked.append(len(sent(effects, ShareAsked)))
    assert asked == [0] * (WORK_BEFORE_ASKING - 1) + [1]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_so_many_products_are_in_flight(in_flight):
    room = Room(in_flight=in_flight)
    assert len(room.asked) == in_flight
    for _ in range(5):
        room.serve()
        assert len(room.asked) == in_flight


def test_a_product_that_is_too_old_is_not_used():
    room = Room(holders=2, lag_max=1)
    ana = room.parties[ANA]
    (mine,) = [item for item in room.asked if item[0] == ANA]
    for number in range(3):
        work(ana, ana.handle(Received(BO, backward(number))))
    room.asked = [mine]
    room.serve()
    assert (ana.late, ana.number) == (1, 0)
    assert len(room.asked) == 1  # another product is asked for instead


def test_a_derivative_that_is_no_number_ends_the_run():
    room = Room()
    ana = room.parties[ANA]
    ana.member.block.set_weights(np.full(ana.member.block.width, np.inf))
    name, effect = room.asked.pop()
    for peer in effect.to:
        room.post(peer, room.parties[peer].handle(Received(name, effect.body)))
    with np.errstate(invalid="ignore"):
        room.settle()
    assert ana.member.conduct.halt.verdict == "diverged" and ana.number == 0


# -- alarms ----------------------------------------------------------------------------------------------------------


def test_a_party_whose_block_no_longer_moves_is_named_once():
    ana = Room().parties[ANA]
    alarms = []
    for number in range(STARVED_AFTER + 40):
        ana.number = number
        alarms += ana._watch_peers({BO: number, CY: 4})
    assert [(alarm.name, alarm.value.split()[0]) for alarm in alarms] == [("alarm", CY)]
    assert isinstance(alarms[0], Observe) and ana.starved == {CY}
    assert ana._watch_peers({CY: 5}) == [] and not ana.starved  # it moves again
    ana.number += STARVED_AFTER + 1
    assert len(ana._watch_peers({CY: 5})) == 1


def test_the_alarm_is_raised_in_a_run():
    room = Room(holders=1)
    for _ in range(STARVED_AFTER + 3):
        name, effect = room.asked.pop(0)
        room.queue += [(peer, Received(name, effect.body)) for peer in effect.to]
        while room.queue:
            to, event = room.queue.pop(0)
            if isinstance(event, Received) and isinstance(event.body, Backward) and to == CY:
                continue  # nothing gets through to Cy
            effects = room.parties[to].handle(event)
            if found := [effect for effect in of(effects, Observe) if effect.name == "alarm"]:
                assert CY in found[0].value
                return
            room.post(to, effects)
    pytest.fail("no alarm")


# -- snapshots -------------------------------------------------------------------------------------------------------


def test_nothing_is_taken_before_the_first_table():
    """SVRG cannot correct a derivative before it has a table; what comes earlier waits."""
    room = Room("svrg", snapshot_passes=1e6)
    (fresh,) = room.build(only=CY)
    room.parties[CY].member.sums.offer_key()
    assert not fresh.started
    fresh.queue.append([0, 8, np.zeros(8), -1])
    assert fresh._take_queue() == []


def test_a_derivative_of_an_older_snapshot_is_corrected_against_the_table_at_hand():
    """It carries its value and not a difference, so each party corrects it against the table that it has now."""
    room, rng = Room("svrg", snapshot_passes=1e6), np.random.default_rng(3)
    for _ in range(4):
        room.serve()
    late = backward(room.parties[CY].inboxes[ANA].next, start=16, rng=rng)
    assert late.snapshot == 0
    room.post(ANA, room.parties[ANA].member.begin_survey())
    room.settle()
    cy = room.parties[CY]
    assert cy.member.survey.current == 1 and cy.member.survey.complete
    block, eta = cy.member.block, cy.member.conduct.eta
    before, table, mean = block.weights(), cy.member.survey.table.copy(), cy.member.survey.gradient.copy()
    work(cy, cy.handle(Received(ANA, late)))
    rows = room.problem.X[16:24][:, room.problem.columns[CY]]
    move = rows.T @ (late.derivatives - table[16:24]) / 8 + mean + room.problem.strength * before
    assert np.abs(block.weights() - (before - eta * move)).max() < 1e-12


def test_a_table_is_adopted_while_steps_are_under_way():
    room = Room("svrg", snapshot_passes=1e6)
    cy = room.parties[CY]
    (steps,) = of(cy.handle(Received(ANA, backward(0))), Compute)
    room.post(ANA, room.parties[ANA].member.begin_survey())
    room.settle()
    assert cy.member.survey.current == 1 and cy.applied == 0
    frozen = cy.member.shares.points[1]
    cy.handle(Computed(steps.ticket))
    assert cy.applied == 1 and (frozen == 0).all()  # frozen before the step, adopted before it too


def test_old_copies_are_forgotten_but_for_the_best():
    room = Room("svrg", snapshot_passes=1e6)
    for _ in range(4):
        room.serve()
        room.post(ANA, room.parties[ANA].member.begin_survey())
        room.settle()
    for party in room.parties.values():
        held = {point for point in party.member.shares.points if point >= 0}
        assert held <= {party.member.survey.current, party.member.survey.best, party.member.survey.current - 1}


def test_the_chair_marks_when_a_survey_is_due():
    room, marks = Room("svrg", snapshot_passes=0.5), []
    for _ in range(8):
        room.serve(keep=lambda body: not (isinstance(body, Mark) and marks.append(body.snapshot)))
    assert marks[0] == 1


# -- lanes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_lanes_take_one_derivative_each_as_pure_jobs(sparse):
    room = Room(lanes=2, sparse=sparse)
    cy, rng = room.parties[CY], np.random.default_rng(4)
    jobs = []
    for number in range(4):
        jobs += of(cy.handle(Received(ANA, backward(number, start=8 * number, rng=rng))), Compute)
    assert len(jobs) == 2 and len(cy.queue) == 2
    before = cy.member.block.weights()
    results = [job.job() for job in jobs]
    assert (cy.member.block.weights() == before).all()  # a job touches nothing
    (third,) = of(cy.handle(Computed(jobs[1].ticket, results[1])), Compute)  # in any order
    assert cy.applied == 1 and len(cy.queue) == 1
    (fourth,) = of(cy.handle(Computed(jobs[0].ticket, results[0])), Compute)
    for job in (third, fourth):
        cy.handle(Computed(job.ticket, job.job()))
    assert cy.applied == 4
    mean = room.problem.dense()[:, room.problem.columns[CY]].T @ cy.stepper.direction.table / 64
    assert np.abs(cy.member.block.mean_gradient() - mean).max() < 1e-12


def test_a_share_from_a_lane_is_of_the_version_at_which_it_was_asked_for():
    room = Room(lanes=2)
    cy = room.parties[CY]
    name, effect = room.asked[0]
    (job,) = of(cy.handle(Received(name, effect.body)), Compute)
    expected = cy.member.block.share(effect.body.start, effect.body.stop)
    work(cy, cy.handle(Received(ANA, backward(0))))
    assert cy.member.block.version == 1
    share = job.job()
    assert (share == expected).all()
    (given,) = sent(cy.handle(Computed(job.ticket, share)), ShareGiven)
    assert given.body.version == 0
    again = sent(cy.handle(Received(name, effect.body)), ShareGiven)  # a repeated request gets the same bytes
    assert again[0].body is given.body


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_crash_in_the_middle_of_lane_work_finishes_each_exchange_exactly_once(sparse):
    """The table entry is exchanged when the job is made; the job's result is lost; the party finishes it itself."""
    whole, broken = (Room(lanes=2, sparse=sparse) for _ in range(2))
    bodies = [backward(n, start=8 * n, rng=np.random.default_rng(n)) for n in range(4)]
    work(
        whole.parties[CY],
        [effect for body in bodies for effect in whole.parties[CY].handle(Received(ANA, body))],
    )
    cy = broken.parties[CY]
    jobs = [job for body in bodies for job in of(cy.handle(Received(ANA, body)), Compute)]
    cy.handle(Computed(jobs[0].ticket, jobs[0].job()))  # one came back; two are under way, one waits
    assert (cy.applied, len(cy.queue)) == (1, 1)
    cy = broken.crash(CY)
    asked_again = of(cy.handle(Started(resumed=True)), Compute)
    assert len(asked_again) == 2 and all(job.job is None for job in asked_again)
    work(cy, asked_again)
    assert cy.applied == cy.member.block.version == 4 and not cy.queue
    assert cy.handle(Computed(jobs[1].ticket, jobs[1].job())) == []  # a result from before the crash comes too late
    assert (cy.stepper.direction.table == whole.parties[CY].stepper.direction.table).all()
    assert np.abs(cy.member.block.weights() - whole.parties[CY].member.block.weights()).max() < 1e-12
    mean = broken.problem.dense()[:, broken.problem.columns[CY]].T @ cy.stepper.direction.table / 64
    assert np.abs(cy.member.block.mean_gradient() - mean).max() < 1e-12


def test_a_share_lost_in_a_crash_is_taken_anew_under_the_same_number():
    room = Room(lanes=2)
    name, effect = room.asked[0]
    room.parties[CY].handle(Received(name, effect.body))
    cy = room.crash(CY)
    (job,) = of(cy.handle(Started(resumed=True)), Compute)
    (given,) = sent(cy.handle(Computed(job.ticket)), ShareGiven)
    assert given.body.first == effect.body.first


# -- going on later --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ANA, CY])
def test_a_restored_party_goes_on_as_if_nothing_had_happened(name):
    rooms = [Room("svrg", holders=2, snapshot_passes=1e6) for _ in range(2)]
    for room in rooms:
        for _ in range(5):
            room.serve()
    broken = rooms[1].crash(name)
    assert not sent(broken.handle(Started(resumed=True)), ShareAsked)  # its product is still under way
    for room in rooms:
        for _ in range(5):
            room.serve()
    one, other = (room.parties[name] for room in rooms)
    assert one.number == other.number and one.applied == other.applied == 10
    assert (one.member.block.weights() == other.member.block.weights()).all()


def test_a_snapshot_keeps_queue_gaps_sent_derivatives_and_counts():
    room = Room(holders=2)
    for _ in range(3):
        room.serve()
    ana = room.parties[ANA]
    ana.handle(Received(BO, backward(9)))  # a gap; and a step under way
    ana.handle(Received(BO, backward(10)))  # and one that waits
    ana.starved, ana.dropped = {CY}, 4
    copy = room.crash(ANA)
    for field in ("number", "dropped", "late", "received", "applied", "started", "starved", "peer_steps"):
        assert getattr(copy, field) == getattr(ana, field)
    assert copy.inboxes[BO].gaps == ana.inboxes[BO].gaps != {}
    assert len(copy.queue) == 1 and (copy.queue[0][2] == ana.queue[0][2]).all()
    assert list(copy.sent) == list(ana.sent)
    assert (copy.sent[0].derivatives == ana.sent[0].derivatives).all()
    assert copy.sampler.next() == ana.sampler.next()


# -- the step --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [None, 0.5])
def test_old_products_shorten_an_automatic_step_and_leave_a_chosen_one_alone(step):
    room = Room(step=step)
    cy = room.parties[CY]
    chosen = cy.member.conduct.eta
    for _ in range(40):
        cy.stepper.note_lag(30)
        cy.member.block.version += 1
    if step is None:
        assert 0 < cy.stepper.eta() < chosen / 4
        for _ in range(400):
            cy.stepper.note_lag(0)
            cy.member.block.version += 1
    assert cy.stepper.eta() == pytest.approx(chosen, rel=1e-6)


def test_the_first_lags_shorten_the_step_at_once():
    stepper = Room().parties[CY].stepper
    chosen = stepper.eta()
    stepper.block.version = 1
    stepper.note_lag(30)
    assert 0 < stepper.eta() < chosen / 4


def test_a_loss_of_constant_curvature_is_given_no_allowance():
    assert (lag_allowance(LOGISTIC), lag_allowance(SQUARED), lag_allowance(LS_SVM)) == (1.5, 1.0, 1.0)


@pytest.mark.parametrize("step", [None, 0.5])
def test_steps_by_curvature_follow_the_table_and_shorten_when_the_objective_rises(step):
    options = {"step": step, "snapshot_passes": 1e6, "by_curvature": True}
    stepper = Room("svrg", **options).parties[CY].stepper
    chosen, ones = stepper.eta(), np.ones(stepper.block.width)
    first = stepper.block.in_step_metric(ones)
    stepper.member.survey.table = np.where(np.arange(stepper.member.problem.rows) % 2, 0.01, -0.01)
    stepper.adopt_survey()
    assert (stepper.block.in_step_metric(ones) > 2 * first).all()  # a flat loss; the penalty stays
    assert stepper.eta() == chosen
    stepper.member.survey.history = [Certified(s, f, 0.1, 0.1, 0) for s, f in ((0, 0.5), (1, 0.6))]
    stepper.adopt_survey()
    assert stepper.eta() == (chosen if step else chosen / 2)
    again = Room("svrg", **options).parties[CY].stepper
    again.restore(stepper.snapshot())
    assert (again.eta(), again.caution) == (stepper.eta(), stepper.caution)


def test_lag_is_counted_from_the_version_that_was_read():
    cy = Room().parties[CY]
    work(cy, cy.handle(Received(ANA, backward(0))))  # nobody said what was read: not counted
    assert sum(cy.member.lags) == 0
    for number in range(1, 6):
        work(cy, cy.handle(Received(ANA, backward(number, read=1))))
    assert (cy.member.lag_max, cy.member.lag_sum) == (4, 0 + 1 + 2 + 3 + 4)


# -- who may do what -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sgd", "svrg", "saga"])
@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "rounds"])
def test_a_passive_party_never_holds_a_label(method, synchronous):
    """Not in its memory, not in its snapshot; what it can work out from derivatives is told in docs/explanation."""
    room = Room(method, synchronous=synchronous, snapshot_passes=0.5)
    for _ in range(12):
        room.serve()
    labels = room.problem.y
    for name in (BO, CY):
        party = room.parties[name]
        assert party.member.problem.labels is None
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


def test_rounds_pass_from_one_dominator_to_the_next_and_wait_for_everybody():
    room = Room(holders=2, synchronous=True)
    dominators = []
    for _ in range(6):
        assert len(room.asked) == 1
        dominators.append(room.asked[0][0])
        room.serve()
    assert dominators == [ANA, BO] * 3
    assert {party.member.block.version for party in room.parties.values()} == {6}
    room.serve(keep=lambda body: not isinstance(body, Stepped))
    assert not room.asked  # Bo does not know that Cy has stepped


def test_lost_words_of_a_round_are_said_again():
    room = Room(holders=2, synchronous=True)
    room.serve(keep=lambda body: not isinstance(body, Stepped))
    bo, cy = room.parties[BO], room.parties[CY]
    (wanted,) = sent(bo.handle(Woken()), StepsWanted)
    assert set(wanted.to) == {ANA, CY} and wanted.body.round == 0
    (stepped,) = sent(cy.handle(Received(BO, wanted.body)), Stepped)
    assert (stepped.to, stepped.body.round) == (BO, 0)
    (again,) = sent(room.parties[ANA].handle(Woken()), Backward)
    assert again.body.number == 0
    assert cy.handle(Received(ANA, again.body)) == []  # a step is taken once


def test_a_round_of_other_rows_is_refused():
    room = Room(synchronous=True)
    cy = room.parties[CY]
    assert isinstance(cy, RoundParty)
    start = (cy.rows[0] + BATCH) % 64
    with pytest.raises(UnexpectedEvent, match="other rows"):
        cy.handle(Received(ANA, backward(0, start=start)))
