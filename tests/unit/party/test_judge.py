"""When a run ends, which model it keeps, and whom a survey does not wait for."""

from dataclasses import replace

import numpy as np
import pytest
from room import Room, labelled

from offbeat.learning.losses import DEBIASED_LOGISTIC, LOGISTIC, SQUARED
from offbeat.party.contract import Finish, Woken
from offbeat.party.lifecycle import Halt
from offbeat.party.linear import TIME_UP
from offbeat.party.survey_messages import Certified
from offbeat.testing.small_problem import build_parties, draw_problem, weights

PROBLEM = labelled(draw_problem(5, parties=3, rows=90, sparse=False, loss=LOGISTIC, intercept=False), "party0")


def certified(survey=1, objective=0.5, gap=1.0, best=1):
    return Certified(0, survey, objective, 2.0, gap, best)


def judging(passes_made=0.0, **options):
    """A chair without peers around it, whose role has made so many passes."""
    party = Room(PROBLEM, start=False, **options).chair
    party.lifecycle.begun = True
    party.role.passes = lambda: passes_made
    party.survey.history = [certified()]
    party.survey.best = 1
    return party


def halts(effects):
    return [effect.body for effect in effects if isinstance(getattr(effect, "body", None), Halt)]


def test_the_target_ends_a_run_at_once():
    party = judging(target=0.1)
    (halt,) = halts(party.judge.judge(certified(gap=0.1)))
    assert (halt.verdict, halt.best) == ("target", 1)
    assert halt.reason == "the certificate 0.1 is at or below the target 0.1"


def test_above_the_target_it_goes_on():
    party = judging(target=0.1)
    party.judge.due = 5.0
    assert halts(party.judge.judge(certified(gap=0.11))) == [] and not party.lifecycle.halted


@pytest.mark.parametrize(
    ("passes_made", "time_up", "over"),
    [(60.0, True, True), (60.0, False, False), (59.9, True, False), (5.0, False, False)],
)
def test_passes_and_seconds_whichever_is_later(passes_made, time_up, over):
    party = judging(passes_made - 1.0, passes=60.0)  # one survey was certified
    party.judge.time_up = time_up
    party.judge.due = 1e9
    assert party.judge.survey_is_due() == over
    assert party.judge.closing == over


def test_the_last_survey_is_begun_after_the_last_pass():
    """One that had begun before is not the last one."""
    party = judging(60.0, passes=60.0)
    party.judge.time_up = party.judge.closing = True
    effects = party.judge.judge(certified())
    assert party.survey.current == 1 and party.judge.final and not halts(effects)
    (halt,) = halts(party.judge.judge(certified()))
    assert halt.verdict == "passes"
    assert halt.reason == "61 passes were made (60 passes and 0 s were asked for at least); the certificate is 1"


def test_the_reason_names_the_certificate_of_the_model_that_is_kept():
    party = judging(60.0, passes=60.0, target=1e-3, seconds=2.0)
    party.judge.time_up = party.judge.closing = party.judge.final = True
    party.survey.history = [certified(1, 0.5, 0.25), certified(2, 0.6, 7.0)]
    (halt,) = halts(party.judge.judge(certified(2, 0.6, 7.0)))
    assert halt.best == 1
    assert "(60 passes and 2 s were asked for at least); the certificate is 0.25, above the target 0.001" in halt.reason


def test_the_owners_clock_ends_a_run_that_has_made_its_passes():
    party = judging(60.0, passes=60.0, seconds=3.0)
    party.judge.due = 1e9
    assert not party.judge.survey_is_due()
    party.handle(Woken(TIME_UP))
    assert party.judge.closing and party.survey.current == 1


@pytest.mark.parametrize("objective", [float("nan"), float("inf"), 7.0])
def test_an_objective_beyond_ten_times_its_start_has_diverged(objective):
    party = judging()
    assert party.judge.start_objective == pytest.approx(np.log(2))
    (halt,) = halts(party.judge.judge(certified(objective=objective)))
    assert halt.verdict == "diverged" and "use a smaller step" in halt.reason


def test_divergence_under_a_small_epsilon_names_it():
    noisy = replace(PROBLEM, loss=DEBIASED_LOGISTIC, y=50.0 * PROBLEM.y)
    party = Room(noisy, start=False).chair
    (halt,) = halts(party.judge.judge(certified(objective=1e9)))
    assert halt.verdict == "diverged" and "label_dp_epsilon" in halt.reason and "larger epsilon" in halt.reason


def test_the_start_counts_the_rows_as_the_objective_does():
    """With weights on the rows, a model better than the zero start is kept, however large its weighted labels are."""
    drawn = replace(
        draw_problem(5, parties=3, rows=90, sparse=False, loss=SQUARED, intercept=False), labels_at=("party0",)
    )
    heavy = np.where(np.abs(drawn.y) > np.median(np.abs(drawn.y)), 1.9, 0.1)
    room = Room(drawn, start=False)
    party = room.chair
    party.problem = replace(party.problem, weights=heavy / heavy.mean())
    start = party.judge._objective_at_zero()
    assert start == pytest.approx(float(np.mean(party.problem.weights * drawn.y**2)))
    assert start > float(np.mean(drawn.y**2))


def test_a_model_worse_than_the_zero_start_is_not_kept():
    party = judging()
    assert party.judge.best_worth_keeping() == 1
    party.survey.history = [certified(objective=0.7)]
    assert party.judge.best_worth_keeping() == -1
    party.survey.history = []
    assert party.judge.best_worth_keeping() == -1


@pytest.mark.parametrize(
    ("seconds", "trip", "bits"),
    [
        ({}, 0.0, 0),
        ({"party0": 1.0, "party1": 1.0, "party2": 1.9}, 0.0, 0),
        ({"party0": 1.0, "party1": 1.0, "party2": 2.1}, 0.0, 0b100),
        ({"party0": 1.0, "party1": 9.0, "party2": 1.2}, 0.0, 0b010),
        ({"party0": 1.0, "party1": 9.0, "party2": 9.0}, 0.0, 0b110),
        ({"party0": 9.0, "party1": 1.0, "party2": 3.0}, 0.0, 0),
        ({"party0": 1.0, "party1": 1.0, "party2": 2.1}, 1e3, 0),
    ],
    ids=[
        "nothing is known",
        "all alike",
        "one is slow",
        "in the middle",
        "two are slow",
        "the chair is slow",
        "far away",
    ],
)
def test_slow_is_whoever_makes_a_survey_much_longer(seconds, trip, bits):
    party = Room(PROBLEM, start=False).chair
    party.sums.seconds = {name: value for name, value in seconds.items() if name != "party0"}
    party.sums.own_seconds, party.round_trip_s = seconds.get("party0", 0.0), trip
    party.judge.look_who_is_slow()
    assert party.judge.slow == bits


@pytest.mark.parametrize(("leap", "bits"), [(True, 0b000), (False, 0b010)])
def test_methods_as_printed_wait_for_nobody_who_is_slower(leap, bits):
    party = Room(PROBLEM, start=False, leap=leap).chair
    party.sums.seconds, party.sums.own_seconds = {"party1": 1.4, "party2": 1.0}, 1.0
    party.judge.look_who_is_slow()
    assert party.judge.slow == bits


def test_synchronous_rounds_wait_for_everybody():
    party = Room(PROBLEM, "vfb-svrg", start=False).chair
    party.sums.seconds, party.sums.own_seconds = {"party1": 9.0, "party2": 1.0}, 1.0
    party.judge.look_who_is_slow()
    assert party.judge.slow == 0


def test_a_judge_goes_on_where_it_was():
    party = judging()
    party.judge.closing, party.judge.time_up, party.judge.due = True, True, 3.5
    again = build_parties("vfb2-svrg", PROBLEM, party.options, 1, only="party0")[0].party.judge
    again.restore(party.judge.snapshot())
    assert again.snapshot() == party.judge.snapshot()


# -- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["vfb2-svrg", "afsaga-vp", "fsvrg-vp", "vfb-saga"])
def test_a_run_ends_at_its_target_with_the_model_that_reached_it(method):
    room = Room(PROBLEM, method, target=1e-6, passes=500.0).run()
    assert {finish.verdict for finish in room.finished.values()} == {"target"}
    w = PROBLEM.pooled({name: weights(party) for name, party in room.parties.items()})
    last = room.certificates()[-1]
    assert last["gap"] <= 1e-6 and PROBLEM.objective(w) == pytest.approx(last["objective"], abs=1e-10)


def test_everybody_keeps_the_best_certified_model():
    """SGD goes up and down: what is kept is the lowest of what was certified."""
    room = Room(PROBLEM, "vfb2-sgd", step=2.0, survey_passes=1.0, passes=8.0, leap=False).run()
    said = room.certificates()
    objectives = [value["objective"] for value in said]
    assert len(room.finished) == 3 and len({room[name].lifecycle.kept for name in room.parties}) == 1
    w = PROBLEM.pooled({name: weights(party) for name, party in room.parties.items()})
    assert PROBLEM.objective(w) == pytest.approx(min(objectives), abs=1e-9)


def test_a_step_that_is_far_too_long_ends_as_diverged_and_keeps_nothing_worse_than_zero():
    drawn = labelled(draw_problem(5, parties=3, rows=90, sparse=False, loss=SQUARED, intercept=False), "party0")
    room = Room(drawn, "vfb2-saga", step=30.0, batch=90, leap=False, survey_passes=1.0, passes=30.0).run()
    assert {finish.verdict for finish in room.finished.values()} == {"diverged"}
    w = drawn.pooled({name: weights(party) for name, party in room.parties.items()})
    assert drawn.objective(w) <= np.mean(drawn.y**2) * (1 + 1e-9)


def test_nothing_is_said_twice():
    room = Room(PROBLEM, target=1e-4).run()
    party = room.chair
    assert party.end("stopped", "again") == [] and isinstance(room.finished["party0"], Finish)


@pytest.mark.parametrize(("leap", "late", "due"), [(False, 0b100, 8.0), (False, 0, 6.0), (True, 0b100, 6.0)])
def test_without_leaps_the_late_step_as_long_as_they_took_their_table(leap, late, due):
    party = judging(passes_made=5.0, leap=leap, passes=60.0)
    party.lifecycle.spacing, party.judge.due = 1.0, 6.0
    party.survey.current, party.survey.late = 4, late
    party.judge.judge(certified(survey=2))
    assert party.judge.due == due
