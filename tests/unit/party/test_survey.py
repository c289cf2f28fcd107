"""A survey: the leap, the table, the gradient and the certificate of one point, whatever the cut and the arrivals."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from room import Room, labelled

from offbeat.errors import UnexpectedEvent
from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC, SQUARED, SQUARED_HINGE
from offbeat.learning.penalties import L2, NONCONVEX, NONE, elastic_net
from offbeat.message.codec import encode_state
from offbeat.party import survey as surveys
from offbeat.party.contract import Broadcast, Received
from offbeat.party.masked_sum import EPOCH_STRIDE, SURVEY, ShareAsked, SumOptions
from offbeat.party.survey import WITHOUT_MOST
from offbeat.party.survey_messages import Certified, Curved, GoOn, Leap, Mark, TablePart, Taken
from offbeat.runtime.simulator import CostModel, Link, Simulator
from offbeat.testing.small_problem import draw_problem

SURVEYS_ALONE = {"survey_passes": 0.0, "zero_start": False}


def drawn(loss=LOGISTIC, penalty=L2, *, parties=4, strength=0.02, intercept=False, holders=2, rows=90):
    problem = draw_problem(
        4, parties=parties, rows=rows, sparse=False, loss=loss, strength=strength, intercept=intercept
    )
    y = np.sign(problem.y) if loss is SQUARED_HINGE else problem.y
    return labelled(replace(problem, penalty=penalty, y=y), *problem.names[:holders])


def anywhere(room, seed=1):
    """Every block begins at some point of its own; the chair's constant too, where there is one."""
    rng = np.random.default_rng(seed)
    for party in room.parties.values():
        weights = rng.standard_normal(party.block.weights().shape)
        weights[:, -1] *= room.problem.intercept and party.party.roster.is_chair
        party.block.set_weights(weights)
    return room


def pooled(room, number):
    """(columns as the blocks have them, with ones last; the weights of all parties at the end of this leap)."""
    columns, weights, constant = [], [], 0.0
    for name, where in room.problem.columns.items():
        columns.append(room.problem.dense()[:, where] - room[name].block.means)
        point = room[name].survey.points[number][0]
        weights.append(point[:-1])
        constant += point[-1]
    return np.hstack([*columns, np.ones((len(room.problem.y), 1))]), np.concatenate([*weights, [constant]])


class Auditor:
    """Holds every certificate against the pooled data, when it is said."""

    def __init__(self, room):
        self.room, self.count, self.looked = room, 0, len(room.seen)

    def __call__(self):
        for _, name, said in self.room.seen[self.looked :]:
            self.looked += 1
            if name == "certificate":
                self.count += 1
                self.check(said)

    def check(self, said):
        problem = self.room.problem
        X, w = pooled(self.room, said["snapshot"])
        terms = (problem.loss, problem.penalty, problem.strength)
        assert said["objective"] == pytest.approx(central.objective(X, problem.y, w, *terms, free=1), abs=1e-9)
        theta = problem.loss.derivative(X @ w, problem.y)
        mean = X.T @ theta / len(theta)
        slope = problem.penalty.slope(w[:-1], mean[:-1], problem.strength)
        assert said["gradient_norm"] == pytest.approx(np.linalg.norm(slope), rel=1e-6, abs=1e-9)
        if problem.intercept:
            assert abs(mean[-1]) < 1e-9, "the constant is where the derivatives add up to nothing"
        gap = self.gap(X, w, theta, mean)
        assert np.isnan(said["gap"]) if gap is None else said["gap"] == pytest.approx(gap, rel=1e-6, abs=1e-9)

    def gap(self, X, w, theta, mean):
        """Primal minus dual, the slow and obvious way."""
        problem, strength = self.room.problem, self.room.problem.strength
        if problem.penalty is NONCONVEX or strength == 0.0:
            return None
        l1, smooth = strength * problem.penalty.l1, strength * problem.penalty.smooth
        conjugate = float(np.sum(np.maximum(np.abs(mean[:-1]) - l1, 0.0) ** 2)) / (2.0 * smooth)
        primal = central.objective(X, problem.y, w, problem.loss, problem.penalty, strength, free=1)
        return primal - (float(np.mean(problem.loss.dual(theta, problem.y))) - conjugate)


@pytest.mark.parametrize("intercept", [False, True], ids=["no constant", "constant"])
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED, SQUARED_HINGE], ids=lambda loss: loss.name)
@pytest.mark.parametrize("penalty", [L2, NONCONVEX, elastic_net(0.4)], ids=lambda penalty: penalty.name)
def test_the_certificate_is_that_of_the_pooled_data(loss, penalty, intercept, monkeypatch):
    monkeypatch.setattr(surveys, "CHUNK_WORDS", 16)
    room = anywhere(Room(drawn(loss, penalty, intercept=intercept), passes=3.0, **SURVEYS_ALONE))
    audit = Auditor(room)
    room.run(np.random.default_rng(0), every=audit)
    assert audit.count >= 3 and {finish.verdict for finish in room.finished.values()} == {"passes"}


def test_without_a_penalty_there_is_no_gap():
    room = anywhere(Room(drawn(penalty=NONE, strength=0.0), passes=3.0, **SURVEYS_ALONE))
    audit = Auditor(room)
    room.run(every=audit)
    assert audit.count >= 3


@pytest.mark.parametrize("scheme", ["pairwise", "two-tree", "tree"])
@pytest.mark.parametrize("holders", [1, 2, 4])
@pytest.mark.parametrize("chunk", [7, 1024])
def test_whoever_sums_and_however_the_rows_are_cut(chunk, holders, scheme, monkeypatch):
    monkeypatch.setattr(surveys, "CHUNK_WORDS", chunk)
    room = anywhere(Room(drawn(holders=holders), sums=SumOptions(scheme=scheme), passes=2.0, **SURVEYS_ALONE))
    audit = Auditor(room)
    room.run(np.random.default_rng(1), every=audit)
    assert audit.count >= 2
    chunks = sorted(room.chair.survey.chunks.items())
    assert chunks[0][0] == 0 and chunks[-1][1] == 90
    assert all(stop == start for (_, stop), (start, _) in pairwise(chunks))
    assert max(stop - start for start, stop in chunks) <= chunk


@pytest.mark.parametrize("method", ["vfb2-saga", "vfb2-sgd", "afsvrg-vp", "vfb-svrg", "fsaga-vp"])
def test_certificates_are_exact_between_steps_too(method):
    room = Room(drawn(intercept=True), method, survey_passes=1.0)
    audit = Auditor(room)
    room.run(np.random.default_rng(2), every=audit)
    assert audit.count >= 2


@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED], ids=lambda loss: loss.name)
def test_a_run_that_goes_on_after_it_has_converged_says_nothing_false(loss):
    """The last moves are as short as the rounding of sums: their products are noise, and no leap may follow noise."""
    room = Room(drawn(loss, rows=200), survey_passes=0.0, passes=50.0)
    audit = Auditor(room)
    room.run(every=audit)
    _, best = central.optimum(room.problem.X, room.problem.y, loss, room.problem.strength)
    said = room.certificates()
    assert audit.count >= 50 and said[-1]["gap"] < 1e-11
    assert all(value["objective"] > best - 1e-10 for value in said)


SLOW = {"party0": 1e-4, "party1": 1e-4, "party2": 1e-4, "party3": 1e-1}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("method", ["vfb2-svrg", "afsaga-vp"])
def test_surveys_go_on_while_a_slow_party_takes_its_table_and_certificates_are_exact(method, seed):
    """The slow party's lane stands still: a few surveys go by without it, then everybody waits, and it is exact."""
    room = Room(drawn(holders=2), method, sample_s=SLOW, passes=30.0)
    audit, rng = Auditor(room), np.random.default_rng(seed)
    survey = room.chair.survey
    room.run(rng, until=lambda: survey.late == 0b1000 and survey.certifies and not survey.under_way)
    assert survey.certifying == survey.current, "the others go on before the certificate has come"
    room.held = {("party3", "work")}
    room.run(rng, every=audit, most=10**6)  # until nothing can happen any more
    assert survey.certifying and survey.current == survey.certifying + WITHOUT_MOST, "then they wait"
    room.held = set()
    room.run(rng, every=audit, until=lambda: audit.count >= 3)
    assert audit.count >= 3


def test_who_is_late_steps_at_a_mark_if_it_has_refreshed_rows_since_the_last_one():
    room = Room(drawn(holders=2, rows=200), "vfb2-svrg", sample_s=SLOW, passes=30.0)
    rng, party, survey = np.random.default_rng(0), room["party3"], room.chair.survey
    room.run(rng, until=lambda: survey.late == 0b1000 and survey.certifies and not survey.under_way)
    tables = party.survey.tables
    room.run(rng, until=lambda: tables.refreshed and tables.working)
    room.held = {("party3", "work")}
    frozen, version, gradient = party.survey.current, party.block.version, tables.gradient_so_far()
    assert not np.allclose(gradient, party.block.mean_gradient())
    versions = {}
    room.run(rng, most=10**6, every=lambda: versions.setdefault(party.survey.current, party.block.version))
    marks = [versions[number] for number in sorted(versions) if number > frozen]
    assert len(marks) > 2 and set(marks) == {version + 1}, "one step, for all that was new"


def test_a_tiny_gradient_keeps_its_digits():
    """A squared norm far below the fixed-point grid is still summed to many digits."""
    problem = drawn(holders=1)
    room = Room(problem, leap=False, passes=1.0, zero_start=False)
    best, _ = central.optimum(problem.X, problem.y, LOGISTIC, problem.strength, tolerance=1e-12)
    near = best + 1e-9
    for name, columns in problem.columns.items():
        room[name].block.set_weights(np.append(near[columns], 0.0)[None])
    room.run()
    gradient = central.gradient(problem.X, problem.y, near, LOGISTIC, L2, problem.strength)
    said = room.certificates()[0]
    assert said["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-2)
    assert said["gap"] == pytest.approx(gradient @ gradient / 0.04, rel=2e-2) and said["gap"] < 1e-15


@pytest.mark.parametrize("size", [1.0, 2e5])
@pytest.mark.parametrize("scheme", ["pairwise", "two-tree"])
def test_large_labels_lose_no_digits(size, scheme):
    problem = drawn(SQUARED, strength=1e-4)
    problem = replace(problem, y=size * problem.y)
    room = Room(problem, sums=SumOptions(scheme=scheme), survey_passes=0.0).run()
    for said in room.certificates()[:1]:
        gradient = central.gradient(problem.X, problem.y, np.zeros(problem.X.shape[1]), SQUARED, L2, 1e-4)
        assert said["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-12)
        assert said["gap"] == pytest.approx(gradient @ gradient / 2e-4, rel=1e-12)


def test_the_order_of_arrival_changes_nothing(monkeypatch):
    monkeypatch.setattr(surveys, "CHUNK_WORDS", 8)
    said = [
        anywhere(Room(drawn(), **SURVEYS_ALONE)).run(np.random.default_rng(seed)).certificates() for seed in range(3)
    ]
    assert all(encode_state(one) == encode_state(said[0]) for one in said)


def test_leaps_only_go_down_and_everybody_leaps_alike():
    """With surveys alone each objective is below the one before; the parties' points are those of the coefficients."""
    room = anywhere(Room(drawn(intercept=True), passes=7.0, **SURVEYS_ALONE))
    leaps = {}

    def watch():
        waiting = [event.body for queue in room.sources.values() for _, event in queue if isinstance(event, Received)]
        leaps.update((body.survey, len(body.coefficients)) for body in waiting if isinstance(body, Leap))

    room.run(every=watch)
    objectives = [said["objective"] for said in room.certificates()]
    assert objectives == sorted(objectives, reverse=True) and len(objectives) >= 7
    assert [count for _, count in sorted(leaps.items())] == list(range(len(objectives)))
    assert len({tuple(room[name].survey.history) for name in room.parties}) == 1


def test_the_first_survey_at_the_zero_start_needs_no_sum():
    problem = drawn()
    room = Room(problem, survey_passes=2.0)
    kinds = set()

    def watch():
        for queue in room.sources.values():
            kinds.update(event.body.kind for _, event in queue if isinstance(getattr(event, "body", 0), ShareAsked))

    room.run(every=watch, until=lambda: room["party0"].lifecycle.begun)
    assert SURVEY not in kinds
    for name in room.parties:
        assert np.allclose(room[name].block.table[0], -problem.y / 2, atol=1e-15)
    assert room.certificates()[0]["objective"] == pytest.approx(np.log(2), abs=1e-12)


def test_steps_pause_during_a_survey_and_go_on_after_it():
    room = Room(drawn(holders=1), "vfb2-svrg", survey_passes=1.0)
    room.run(until=lambda: room.chair.survey.current == 2)
    asked = room.parties["party0"].number
    room.run(until=lambda: len(room.chair.survey.history) == 2)
    assert room.parties["party0"].number == asked + 1, "one question followed the certificate"


def test_a_mark_waits_for_steps_and_questions_wait_for_the_mark():
    room = Room(drawn(holders=2), "vfb2-svrg", survey_passes=1.0)
    room.run(until=lambda: room["party0"].lifecycle.begun and room["party2"].lifecycle.begun)
    room.run(until=lambda: room.parties["party2"].is_stepping())
    room.held = {("party2", "work"), ("party0", "party2")}
    party, ask = room["party2"], ShareAsked(0, SURVEY, 2, 0, 90, 0)
    with pytest.raises(UnexpectedEvent, match="before its mark"):
        party.handle(Received("party0", ask))
    assert party.handle(Received("party0", Mark(0, 2, 1, 0))) == [] and party.survey.marked == 2
    assert party.handle(Received("party0", ask)) == [] and party.waiting == [("party0", ask)]
    assert party.survey.current == 1 and party.survey.frozen is None
    (ticket,) = [event.ticket for _, event in room.sources["party2", "work"]]
    effects = party.handle(room.sources["party2", "work"].popleft()[1])
    assert ticket >= 0 and party.survey.current == 2 and not party.waiting
    assert [effect.body.first for effect in effects if effect.to == "party0" and effect.body.kind == SURVEY] == [0]


def test_while_somebody_takes_its_table_the_others_have_a_few_surveys_without_it():
    party = Room(drawn(holders=2), "vfb2-svrg", start=False)["party3"]
    party.survey.current = 1  # as after a first survey
    for survey in range(2, WITHOUT_MOST + 3):
        party.handle(Received("party0", Mark(0, survey, 0, 0b1000, survey == 2)))
        party.handle(Received("party0", Leap(0, survey, np.zeros(survey - 2), 1.0)))
        party.handle(Received("party0", GoOn(0, survey)))
        assert party.survey.tables.newest.survey == party.survey.certifying == 2
    with pytest.raises(UnexpectedEvent, match="a table"):
        party.handle(Received("party0", TablePart(0, survey, 0, np.zeros(45))))
    for certifies in (False, True):  # one too many; or before the first one's certificate has come
        with pytest.raises(UnexpectedEvent, match="leaves others without a table"):
            party.handle(Received("party0", Mark(0, survey + 1, 0, 0b1000, certifies)))


def test_nobody_new_is_left_without_a_table():
    party = Room(drawn(holders=2), "vfb2-svrg", start=False)["party2"]
    party.survey.current = 1  # as after a first survey
    party.handle(Received("party0", Mark(0, 2, 0, 0b1000)))
    party.handle(Received("party0", Leap(0, 2, np.zeros(0), 1.0)))
    party.survey.tables.left, party.survey.open = set(), False
    with pytest.raises(UnexpectedEvent, match="leaves others without a table"):
        party.handle(Received("party0", Mark(0, 3, 0, 0b1100, False)))


# -- refusals --------------------------------------------------------------------------------------------------------


def at_survey(number=1, name="party2", landed=False):
    room = Room(drawn(), start=False)
    room[name].handle(Received("party0", Mark(0, number, 0, 0)))
    if landed:
        room[name].handle(Received("party0", Leap(0, number, np.zeros(0), 1.0)))
    return room[name]


@pytest.mark.parametrize(
    ("sender", "body"),
    [
        ("party1", Mark(0, 2, 0, 0)),
        ("party0", Mark(0, 1, 0, 0)),
        ("party0", Mark(0, 3, 0, 0)),
        ("party1", Leap(0, 1, np.zeros(0), 1.0)),
        ("party0", Leap(0, 2, np.zeros(0), 1.0)),
        ("party0", Leap(0, 1, np.zeros(1), 1.0)),
        ("party0", Leap(0, 1, np.zeros(0), -1.0)),
        ("party0", TablePart(0, 1, 0, np.zeros(45))),
        ("party0", Certified(0, 1, 0.5, 1.0, 1.0, 1)),
        ("party1", Taken(0, 1)),
    ],
    ids=[
        "another's mark",
        "a mark again",
        "a mark too early",
        "another's leap",
        "a leap of another survey",
        "too many coefficients",
        "a pace below zero",
        "a table before its leap",
        "a certificate before its leap",
        "progress for another than the chair",
    ],
)
def test_what_has_no_place_now_is_refused_with_the_senders_name(sender, body):
    with pytest.raises(UnexpectedEvent, match=f"{sender} sent"):
        at_survey().handle(Received(sender, body))


@pytest.mark.parametrize(
    ("sender", "body"),
    [
        ("party1", TablePart(0, 1, 0, np.zeros(45))),
        ("party0", TablePart(0, 1, 3, np.zeros(45))),
        ("party0", TablePart(0, 1, 0, np.zeros(44))),
        ("party0", TablePart(0, 1, 0, np.zeros(45, np.float32))),
        ("party0", Leap(0, 1, np.zeros(0), 1.0)),
        ("party1", Certified(0, 1, 0.5, 1.0, 1.0, 1)),
        ("party0", Certified(0, 2, 0.5, 1.0, 1.0, 1)),
        ("party0", Certified(0, 1, 0.5, 1.0, 1.0, 7)),
    ],
    ids=[
        "another's table",
        "no chunk",
        "too short",
        "other numbers",
        "a second leap",
        "another's certificate",
        "a certificate of another survey",
        "a best that nobody knows",
    ],
)
def test_after_the_leap_too(sender, body):
    with pytest.raises(UnexpectedEvent, match=f"{sender} sent"):
        at_survey(landed=True).handle(Received(sender, body))


def test_coefficients_must_be_numbers():
    room = Room(drawn(), **SURVEYS_ALONE)
    room.run(until=lambda: room["party2"].survey.current == 2 and room["party2"].survey.frozen is not None)
    with pytest.raises(UnexpectedEvent, match="not finite"):
        room["party2"].handle(Received("party0", Leap(0, 2, np.array([np.nan]), 1.0)))


# -- epochs ----------------------------------------------------------------------------------------------------------


def test_the_best_survey_is_the_one_of_lowest_objective_and_a_new_roster_starts_anew():
    survey = Room(drawn(), start=False).chair.survey
    survey.current, survey.best = 3, 2
    survey.history = [Certified(0, 2, 0.5, 1.0, 1.0, 2)]
    assert survey._is_best(0.4) and survey._is_best(0.5) and not survey._is_best(0.6)
    survey.roster.enter(4, ("party0", "party1", "party2"), "party0")
    survey.enter_epoch()
    assert survey._is_best(0.6)
    assert survey.current == 4 * EPOCH_STRIDE
    assert survey.begin(0)[0] == Broadcast(("party1", "party2"), Mark(4, 4 * EPOCH_STRIDE + 1, 2, 0))


def test_a_new_roster_forgets_moves_and_keeps_the_best_point():
    room = anywhere(Room(drawn(), **SURVEYS_ALONE)).run(until=lambda: False)
    survey = room["party2"].survey
    best = survey.points[survey.best]
    survey.roster.enter(4, ("party0", "party2", "party3"), "party0")
    survey.enter_epoch()
    assert list(survey.points) == [survey.best] and survey.points[survey.best] is best
    assert survey.moves.point is None and not survey.tables.working


def test_a_table_before_any_leap_is_refused():
    """Before: an assertion failed, which names nobody."""
    party = Room(drawn(), start=False)["party2"]
    for body in (TablePart(0, 0, 0, np.zeros(45)), Curved(0, 0, 0, np.zeros(45))):
        with pytest.raises(UnexpectedEvent, match=r"party0 sent .* from row 0"):
            party.handle(Received("party0", body))


def test_whoever_is_off_the_roster_has_no_word_on_a_table():
    survey = Room(drawn(), start=False).chair.survey
    survey.roster.enter(4, ("party0", "party1", "party2"), "party0")
    survey.late, survey.open = 0b100, True
    with pytest.raises(UnexpectedEvent, match="party3 sent the word on survey 0"):
        survey.note_taken("party3", Taken(4, 0))


def test_the_certificate_is_the_gap_or_the_gradient_norm():
    assert Certified(0, 1, 0.5, 3.0, 2.0, 1).certificate == 2.0
    assert Certified(0, 1, 0.5, 3.0, float("nan"), 1).certificate == 3.0


# -- surveys that overlap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "trips"), [("vfb2-svrg", 1), ("afsaga-vp", 1), ("vfb-svrg", 2)])
def test_a_survey_costs_one_round_trip_and_in_rounds_two(method, trips):
    """Where the clock runs for messages alone, and no steps lie between surveys."""
    room = Room(drawn(), method, start=False, passes=6.0, survey_passes=0.0)
    costs = CostModel(overhead_s=0.0, per_sample_s=0.0, per_nonzero_s=0.0, link=Link(latency_s=1.0))
    outcome = Simulator(costs=costs).run(list(room.parties.values()))
    leaps = [time_s for time_s, _, name, _ in outcome.observations if name == "leap"]
    between = np.diff(leaps)[2:]
    assert len(between) > 2 and np.allclose(between, 2.0 * trips, atol=1e-3)  # a trip is there and back
    assert sum(name == "certificate" for _, _, name, _ in outcome.observations) == len(leaps)


def overlapping(name="party2"):
    """A party that has leapt in its second survey, and waits for the certificate."""
    room = Room(drawn(), **SURVEYS_ALONE)
    room.run(until=lambda: room[name].survey.certifying == 2)
    return room[name]


def test_a_mark_may_come_before_the_certificate_where_no_steps_lie_between():
    party = overlapping()
    party.handle(Received("party0", Mark(0, 3, 1, 0)))
    assert 3 in (party.survey.current, party.survey.marked) and party.survey.certifying == 2


@pytest.mark.parametrize(
    "mark",
    [Mark(0, 3, 1, 0b1000), Mark(0, 3, 1, 0, False), Mark(0, 4, 1, 0)],
    ids=["names somebody late", "without a certificate", "of a later survey"],
)
def test_such_a_mark_waits_for_everybody(mark):
    with pytest.raises(UnexpectedEvent, match="party0 sent"):
        overlapping().handle(Received("party0", mark))


def test_a_leap_follows_the_certificate_of_the_survey_before():
    party = overlapping()
    party.survey.tables.left.clear()  # as after its table
    party.handle(Received("party0", Mark(0, 3, 1, 0)))
    with pytest.raises(UnexpectedEvent, match="before the certificate"):
        party.handle(Received("party0", Leap(0, 3, np.zeros(2), 1.0)))


def test_in_rounds_a_mark_waits_for_the_certificate():
    room = Room(drawn(), "vfb-svrg", **SURVEYS_ALONE)
    room.run(until=lambda: room["party2"].survey.certifying == 2)
    with pytest.raises(UnexpectedEvent, match="the mark of survey 3"):
        room["party2"].handle(Received("party0", Mark(0, 3, 1, 0)))
