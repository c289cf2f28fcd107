"""The model that is kept when a party did not live to hear the end."""

from types import SimpleNamespace

import numpy as np

from offbeat.families.linear import kept_weights
from offbeat.party.conduct import Halt

NAMES = ("bank", "shop", "telecom")


def party(name, *, halt=None, best=3, roster=NAMES):
    """Its block stands at 9; its snapshots 3 and 4 at their numbers."""
    conduct = SimpleNamespace(halt=halt, roster=roster, presides=name == "bank")
    shares = SimpleNamespace(points={best_one: np.full(2, float(best_one)) for best_one in (3, 4)})
    block = SimpleNamespace(weights=lambda: np.full(2, 9.0))
    member = SimpleNamespace(conduct=conduct, shares=shares, block=block, survey=SimpleNamespace(best=best))
    return SimpleNamespace(name=name, member=member)


def kept(parties, finished):
    outcome = SimpleNamespace(stalled="", finished=dict.fromkeys(finished))
    return {name: float(weights[0]) for name, weights in kept_weights(parties, outcome).items()}


def test_who_finished_keeps_its_block():
    assert kept([party(name) for name in NAMES], NAMES) == dict.fromkeys(NAMES, 9.0)


def test_a_dead_partys_block_is_that_of_the_snapshot_the_others_kept():
    halted = Halt("peer-lost", "", 4)
    parties = [party("bank", halt=halted), party("shop"), party("telecom", halt=halted)]
    assert kept(parties, ("bank", "telecom")) == dict.fromkeys(NAMES, 4.0)
    assert kept([party(name) for name in NAMES], ("bank", "telecom")) == dict.fromkeys(NAMES, 3.0), "nobody said Halt"


def test_a_dead_party_that_was_left_out_has_no_part_in_the_model():
    left = {"halt": Halt("target", "", 4), "roster": ("bank", "telecom")}
    parties = [party("bank", **left), party("shop"), party("telecom", **left)]
    assert kept(parties, ("bank", "telecom")) == {"bank": 4.0, "shop": 0.0, "telecom": 4.0}
