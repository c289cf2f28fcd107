"""A budget is a stop rule, and a crash never makes it larger."""

import msgspec
import pytest

from offbeat.errors import BadInput, BudgetSpent
from offbeat.privacy.accountant import epsilon
from offbeat.privacy.ledger import Budget, GaussianRelease, Ledger, PureRelease

STEP = GaussianRelease(8.0)


def spend_all(ledger, release, most=100_000):
    for count in range(most):
        if not ledger.affords(release):
            return count
        ledger.spend(release)
    return most


def test_hard_stop_at_the_last_affordable_release():
    ledger = Ledger(Budget(2.0, 1e-5))
    count = spend_all(ledger, STEP)
    assert epsilon({STEP: count}, 1e-5) <= 2.0 < epsilon({STEP: count + 1}, 1e-5)
    with pytest.raises(BudgetSpent, match="epsilon 2 at delta 1e-05 \\(replace-one\\) is spent after"):
        ledger.spend(STEP)
    assert ledger.releases == count
    assert ledger.epsilon() == pytest.approx(epsilon({STEP: count}, 1e-5))


def test_sampled_releases_stop_at_the_same_place_with_or_without_a_proven_plan():
    release = GaussianRelease(2.0, 0.1)
    budget = Budget(2.0, 1e-5)
    count = spend_all(Ledger(budget), release)
    assert epsilon({release: count}, 1e-5) <= 2.0 < epsilon({release: count + 1}, 1e-5)
    assert spend_all(Ledger(budget, proven={release: count}), release) == count


def test_different_releases_share_one_budget():
    ledger = Ledger(Budget(2.0, 1e-5))
    spend_all(ledger, STEP)
    assert not ledger.affords(GaussianRelease(4.0))
    assert not ledger.affords(PureRelease(0.5))


def test_several_at_once_are_all_or_nothing():
    ledger = Ledger(Budget(2.0, 1e-5))
    with pytest.raises(BudgetSpent):
        ledger.spend(STEP, times=10_000)
    assert ledger.releases == 0
    ledger.spend(STEP, times=3)
    assert ledger.releases == 3


def test_snapshot_survives_and_never_lowers_the_count():
    ledger = Ledger(Budget(5.0, 1e-5))
    ledger.spend(STEP, 5)
    ledger.spend(PureRelease(0.01, 0.1), 2)
    state = msgspec.json.decode(msgspec.json.encode(ledger.snapshot()))
    again = Ledger(Budget(5.0, 1e-5))
    again.restore(state)
    assert again.spent == ledger.spent
    ledger.spend(STEP, 5)
    ledger.restore(state)
    assert ledger.spent[STEP] == 10


def test_without_a_budget_it_counts_and_asks_for_a_delta():
    ledger = Ledger(None)
    ledger.spend(STEP, 7)
    assert ledger.epsilon(1e-5, "add-remove") == epsilon({STEP: 7}, 1e-5, "add-remove")
    with pytest.raises(BadInput, match="delta"):
        ledger.epsilon()
