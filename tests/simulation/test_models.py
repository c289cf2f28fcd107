"""Models other than two classes and a plain number, twenty seeds under every fault profile; methods take turns."""

import pytest

from offbeat.algorithms.methods import LINEAR
from offbeat.runtime.simulator import PROFILES
from offbeat.testing.simulate import cases, run_case
from offbeat.testing.small_problem import MODELS

SEEDS = range(20)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("model", MODELS)
def test_safe_while_broken_and_at_its_target_once_healed(model, profile):
    shift = PROFILES.index(profile)
    methods = [list(LINEAR)[(at + shift) % len(LINEAR)] for at in range(len(LINEAR))]
    for case in cases(SEEDS, [profile], methods, model):
        result = run_case(case)
        assert not result.failure, f"{result.failure}\n{case}"
