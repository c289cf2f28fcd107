"""Every linear method under every fault profile; parties that are lost for good; and the conformance kit itself.

A failure names the line that replays it. Seeds that once failed stay in REGRESSIONS.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from offbeat.algorithms.methods import LINEAR
from offbeat.families.vertical_data import load_data
from offbeat.jobs.runtime import RuntimeEntry
from offbeat.jobs.vertical import DataEntry, Job
from offbeat.learning import central
from offbeat.party.contract import Send
from offbeat.party.masked_sum import EPOCH_STRIDE, ShareGiven
from offbeat.run.experiment import run_experiment
from offbeat.runtime.simulator import PROFILES, CostModel, CrashAndRestore, Gone, Link, Simulator
from offbeat.runtime.threads import Threads
from offbeat.testing.algorithm_checks import LastParties, Trial, check_algorithm
from offbeat.testing.linear_checkers import linear_checkers
from offbeat.testing.party_checks import check_party
from offbeat.testing.runtime_checks import MESSAGES, check_runtime, runners
from offbeat.testing.simulate import Case, cases, main, run_case, table
from offbeat.testing.small_problem import (
    build_parties,
    draw_options,
    draw_problem,
    method_named,
    target_of,
    weights,
    weights_of,
)

ASYNCHRONOUS = [name for name, method in LINEAR.items() if not method.synchronous]
SYNCHRONOUS = [name for name, method in LINEAR.items() if method.synchronous]

REGRESSIONS = [
    Case(10, "loss", "vfb2-sgd"),  # rounded sums, times the coefficients of a leap, were counted as another model
]


def passes(case):
    result = run_case(case)
    assert not result.failure, f"{result.failure}\n{case}"
    return result


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("method", LINEAR)
def test_safe_while_broken_and_at_its_target_once_healed(method, name):
    passes(Case(1000 + 12 * PROFILES.index(name) + list(LINEAR).index(method), name, method))


@pytest.mark.parametrize("case", REGRESSIONS, ids=str)
def test_what_once_failed(case):
    passes(case)


def test_a_case_is_the_same_every_time():
    assert run_case(Case(3, "swarm", "vfb2-saga")) == run_case(Case(3, "swarm", "vfb2-saga"))


def test_a_failure_is_one_line_to_paste(capsys, monkeypatch):
    monkeypatch.setattr("offbeat.testing.simulate.build_parties", lambda *a: 1 / 0)
    assert main(["--seed", "4", "--profile", "loss", "--method", "afsaga-vp"]) == 1
    told = capsys.readouterr().out
    assert "make replay SEED=4 PROFILE=loss METHOD=afsaga-vp    # ZeroDivisionError: division by zero" in told


def test_every_method_has_its_turn_in_every_profile():
    drawn = list(cases(range(len(LINEAR)), PROFILES, list(LINEAR)))
    assert {(case.profile, case.method) for case in drawn} == {(p, m) for p in PROFILES for m in LINEAR}
    assert "profile" in table([], PROFILES)


# -- a party that is gone for good -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """What is left of a run in which somebody was lost."""

    outcome: object
    parties: dict
    problem: object
    certificates: list

    @property
    def verdicts(self):
        return {finish.verdict for finish in self.outcome.finished.values()}


def lose(method, fault, *, parties=5, on_loss, until_s=60.0, ends=True, tighter=1.0, latency_s=1e-3, **changes):
    kind, problem = method_named(method), draw_problem(21, parties=parties, rows=240, sparse=False)
    problem = replace(problem, labels_at=problem.names[:2])
    changes = {"survey_passes": 1.0, **changes}
    options = draw_options(21, kind.direction, target=target_of(kind) * tighter, on_loss=on_loss, **changes)
    last = LastParties()
    outcome = Simulator(
        seed=3,
        costs=CostModel(link=Link(latency_s)),
        faults=[fault],
        checkers=[last, *linear_checkers(method, problem, options, ends=ends)],
        rebuild=lambda name: build_parties(method, problem, options, 21, only=name)[0],
        detect_s=0.03,
        until_s=until_s,
    ).run(build_parties(method, problem, options, 21))
    certificates = [value for _, _, name, value in outcome.observations if name == "certificate"]
    return Ending(outcome, {party.name: party for party in last.parties}, problem, certificates)


@pytest.mark.parametrize("method", ASYNCHRONOUS)
@pytest.mark.parametrize("lost", ["party0", "party3"], ids=["the chair", "another"])
def test_the_others_go_on_without_a_lost_party_and_certify_what_is_left(method, lost):
    end = lose(method, Gone(lost, 0.02), on_loss="continue")
    assert end.verdicts == {"target"}
    assert lost not in end.outcome.finished and end.outcome.lost == (lost,)
    rest = {name: columns for name, columns in end.problem.columns.items() if name != lost}
    w = np.concatenate([weights(end.parties[name])[:-1] for name in rest])
    constant = sum(weights(end.parties[name])[-1] for name in rest)
    some = replace(end.problem, X=end.problem.X[:, np.concatenate(list(rest.values()))], columns=rest)
    epoch = end.certificates[-1]["snapshot"] // EPOCH_STRIDE
    of_the_rest = [value for value in end.certificates if value["snapshot"] // EPOCH_STRIDE == epoch > 0]
    kept = min(of_the_rest, key=lambda value: value["objective"])
    objective = some.objective(np.append(w, constant))
    assert objective == pytest.approx(kept["objective"], abs=1e-9)
    assert objective - optimum_of(some) <= min(value["gap"] for value in of_the_rest) + 1e-12
    assert min(value["gap"] for value in of_the_rest) <= target_of(method_named(method))


def optimum_of(problem):
    X, free = (problem.with_ones(), 1) if problem.intercept else (problem.X, 0)
    return central.optimum(X, problem.y, problem.loss, problem.strength, free=free)[1]


@pytest.mark.parametrize("method", list(LINEAR))
@pytest.mark.parametrize("lost", ["party0", "party3"], ids=["the chair", "another"])
def test_stopping_keeps_the_best_certified_model_everywhere(method, lost):
    end = lose(method, Gone(lost, 0.12), on_loss="stop", passes=1e6, tighter=1e-12)
    assert end.verdicts == {"peer-lost"}
    others = [party for name, party in end.parties.items() if name != lost]
    kept = {party.party.lifecycle.kept for party in others}
    assert len(kept) == 1 and min(kept) >= 1
    best = kept.pop()
    for party in others:
        assert np.array_equal(party.block.weights(), party.party.survey.points[best])


@pytest.mark.parametrize("method", ["afsvrg-vp", "vfb2-saga"])
def test_too_few_are_left_to_hide_a_share(method):
    end = lose(method, Gone("party2", 0.04), parties=3, on_loss="continue")
    assert end.verdicts == {"peer-lost"}
    assert "too few parties" in next(iter(end.outcome.finished.values())).reason


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_rounds_end_where_a_party_is_missing(method):
    end = lose(method, Gone("party3", 0.02), on_loss="continue")
    assert end.verdicts <= {"peer-lost", "target"}


@pytest.mark.parametrize("method", ["afsvrg-vp", "vfb2-svrg", "vfb-saga"])
def test_whoever_waits_for_a_lost_party_goes_nowhere_and_that_is_said(method):
    end = lose(method, Gone("party3", 0.01), on_loss="wait", until_s=2.0, ends=False)
    assert end.outcome.finished == {}
    assert end.outcome.stalled == "nothing is left to happen, and party0, party1, party2, party4 had not finished"


@pytest.mark.parametrize("method", [name for name in ASYNCHRONOUS if LINEAR[name].direction != "sgd"])
@pytest.mark.parametrize("lost", ["party0", "party3"], ids=["the chair", "another"])
@pytest.mark.parametrize("down_s", [0.02, 0.05])
def test_a_party_that_returns_takes_part_again(method, lost, down_s):
    end = lose(method, CrashAndRestore(lost, 0.015, down_s), on_loss="continue", tighter=1e-2)
    assert end.verdicts == {"target"}
    kept = end.problem.objective(end.problem.pooled(weights_of(list(end.parties.values()))))
    assert kept - optimum_of(end.problem) <= min(value["gap"] for value in end.certificates) + 1e-12


@pytest.mark.parametrize("lost", ["party0", "party3"], ids=["the chair", "another"])
def test_a_party_that_returns_when_all_is_over_ends_too(lost):
    end = lose("afsvrg-vp", CrashAndRestore(lost, 0.015, 5.0), on_loss="continue")
    assert {name: finish.verdict for name, finish in end.outcome.finished.items()} == {
        name: "peer-lost" if name == lost else "target" for name in end.problem.names
    }
    assert end.outcome.finished[lost].reason.startswith("the others ended without this party")


# -- the kit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", LINEAR)
def test_restored_parties_end_in_the_same_state(method):
    kind, problem = method_named(method), draw_problem(31, rows=150)
    options = draw_options(31, kind.direction, passes=5.0)
    check_party(lambda: build_parties(method, problem, options, 31), seed=3)


def test_a_party_that_forgets_something_is_found_out():
    def build():
        problem = draw_problem(31, rows=150)
        parties = build_parties("afsaga-vp", problem, draw_options(31, "saga", passes=5.0), 31)
        for party in parties:
            party.restore = lambda state, party=party: type(party).restore(party, {**state, "taken": 0})
        return parties

    with pytest.raises(AssertionError, match="another snapshot"):
        check_party(build)


def test_a_party_that_writes_to_what_it_sent_is_found_out():
    def build():
        parties = build_parties("afsaga-vp", draw_problem(31, rows=150), draw_options(31, "saga", passes=2.0), 31)
        for party in parties:
            party.handle = lambda event, handle=party.handle: scribbled(handle(event))
        return parties

    sent = []

    def scribbled(effects):
        for body in sent:
            body.words[:] = 0
        sent.clear()
        sent.extend(e.body for e in effects if isinstance(e, Send) and isinstance(e.body, ShareGiven))
        return effects

    with pytest.raises(ValueError, match="read-only"):
        check_party(build)


@pytest.mark.parametrize("method", ["afsgd-vp", "afsvrg-vp", "afsaga-vp", "vfb2-saga"])
def test_the_kit_passes_our_own_algorithms(method):
    kind, problem = method_named(method), draw_problem(41, parties=3, rows=200)
    options = draw_options(41, kind.direction, target=target_of(kind))
    best = optimum_of(problem)

    def gap(outcome, parties):
        return problem.objective(problem.pooled(weights_of(parties))) - best

    trial = Trial(
        build=lambda: build_parties(method, problem, options, 41),
        messages=kind.messages,
        checkers=lambda: linear_checkers(method, problem, options),
        converged=lambda outcome, parties: "" if gap(outcome, parties) <= target_of(kind) else "not at its target",
        distance=gap,
        distance_most=target_of(kind),
        costs=CostModel(slow={"party1": 2.0}),
    )
    asked = check_algorithm(trial, profiles=("loss", "crash", "swarm"))
    assert len(asked) == 6


def test_an_algorithm_that_never_converges_is_found_out():
    problem, options = draw_problem(41, parties=3, rows=200), draw_options(41, "saga", passes=2.0)
    trial = Trial(
        build=lambda: build_parties("afsaga-vp", problem, options, 41),
        messages=LINEAR["afsaga-vp"].messages,
        checkers=list,
        converged=lambda outcome, parties: "" if {f.verdict for f in outcome.finished.values()} == {"target"} else "no",
    )
    with pytest.raises(AssertionError, match="profile calm, seed 0: no"):
        check_algorithm(trial, profiles=("calm",))


@pytest.mark.parametrize("count", [2, 3, 6])
def test_the_simulator_and_threads_are_runtimes(count):
    check_runtime(Simulator, parties=count)
    check_runtime(lambda: Threads(messages=MESSAGES), parties=count)


class Forgetful(Simulator):
    """A runtime that loses what is observed."""

    def run(self, parties, look=None):
        outcome = super().run(parties, look)
        return replace(outcome, observations=outcome.observations[::2])


def test_a_runtime_that_loses_something_is_found_out():
    with pytest.raises(AssertionError):
        check_runtime(Forgetful)
    check_party(runners)


@pytest.mark.parametrize("page", ["add-an-algorithm", "replay-a-failure"])
def test_the_how_to_pages_do_what_they_say(page, capsys):
    text = (Path(__file__).parents[2] / "docs" / "how-to" / f"{page}.md").read_text()
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, page, "exec"), names)
    told = capsys.readouterr().out
    assert "profile swarm, seed 2: ended and converged" in told or "verdict='target'" in told


@pytest.mark.parametrize("latency_s", [1.0, 10.0, 60.0])
def test_a_long_round_trip_makes_a_run_slow_and_nothing_else(latency_s):
    job = Job(
        algorithm="vfb2-svrg",
        passes=30,
        target=1e-3,
        penalty=1e-2,
        data=DataEntry(set="known-logistic", parties=["bank", "shop", "telecom"]),
        runtime=RuntimeEntry(latency_s=latency_s, until_s=1e5),
    )
    result = run_experiment(load_data(job), job)
    assert result.record.verdict == "target"
    assert 4 * latency_s < result.record.seconds < 200 * latency_s
