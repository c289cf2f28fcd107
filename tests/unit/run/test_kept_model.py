"""The model that is kept when a party did not live to hear the end."""

from types import SimpleNamespace

import numpy as np

from offbeat.families.linear import kept_weights

NAMES = ("bank", "shop", "telecom")


def party(name, *, kept=3, roster=NAMES):
    """Its block stands at 9; its surveys 3 and 4 ended at their numbers."""
    survey = SimpleNamespace(points={number: np.full((1, 2), float(number)) for number in (3, 4)}, best=3)
    named = SimpleNamespace(names=roster, is_chair=name == "bank")
    linear = SimpleNamespace(roster=named, survey=survey, lifecycle=SimpleNamespace(kept=kept))
    return SimpleNamespace(name=name, party=linear, block=SimpleNamespace(weights=lambda: np.full((1, 2), 9.0)))


def kept(parties, finished):
    outcome = SimpleNamespace(stalled="", finished=dict.fromkeys(finished))
    return {name: float(weights[0, 0]) for name, weights in kept_weights(parties, outcome).items()}


def test_who_finished_keeps_its_block():
    assert kept([party(name) for name in NAMES], NAMES) == dict.fromkeys(NAMES, 9.0)


def test_a_dead_partys_block_is_that_of_the_snapshot_the_others_kept():
    parties = [party("bank", kept=4), party("shop"), party("telecom", kept=4)]
    assert kept(parties, ("bank", "telecom")) == dict.fromkeys(NAMES, 4.0)


def test_a_dead_party_that_was_left_out_has_no_part_in_the_model():
    left = {"kept": 4, "roster": ("bank", "telecom")}
    parties = [party("bank", **left), party("shop"), party("telecom", **left)]
    assert kept(parties, ("bank", "telecom")) == {"bank": 4.0, "shop": 0.0, "telecom": 4.0}
