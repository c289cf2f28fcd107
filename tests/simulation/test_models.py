"""Models other than two classes and a plain number under every fault profile; methods take turns over the seeds."""

import pytest

from offbeat.runtime.simulator import PROFILES
from offbeat.testing.simulate import Case, cases, run_case
from offbeat.testing.small_problem import MODELS, methods_for

REGRESSIONS = [
    Case(18, "calm", "fsvrg-vp", "poisson"),  # no leap, no intercept: the first steps overshot, again and again
    Case(18, "loss", "vfb2-svrg", "poisson"),
]


def check(case):
    result = run_case(case)
    assert not result.failure, f"{result.failure}\n{case}"


def drawn(seeds, model, profile):
    known, shift = methods_for(model), PROFILES.index(profile)
    return cases(seeds, [profile], [known[(at + shift) % len(known)] for at in range(len(known))], model)


@pytest.mark.parametrize("case", REGRESSIONS, ids=str)
def test_what_once_failed(case):
    check(case)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("model", MODELS)
def test_safe_while_broken_and_at_its_target_once_healed(model, profile):
    for case in drawn(range(1), model, profile):
        check(case)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("model", MODELS)
def test_twenty_one_seeds_more(model, profile):
    for case in drawn(range(1, 22), model, profile):
        check(case)
