"""A budget is a stop rule, and a crash never makes it larger."""

import msgspec
import numpy as np
import pytest

from offbeat.errors import BadInput, BudgetSpent, Refused
from offbeat.privacy.accountant import epsilon
from offbeat.privacy.embedding import RecordLedger, calibrate
from offbeat.privacy.ledger import Account, Budget, GaussianRelease, Ledger, PureRelease, together

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


# -- over several runs -----------------------------------------------------------------------------------------------


SAMPLED = GaussianRelease(2.0, 0.1)
BUDGET = Budget(2.0, 1e-5)


def test_what_came_before_is_composed_with_what_comes():
    whole = spend_all(Ledger(BUDGET), STEP)
    later = Ledger(BUDGET, proven={STEP: whole}, before={STEP: 4})
    assert spend_all(later, STEP) == whole - 4
    assert later.epsilon() == pytest.approx(epsilon({STEP: whole}, 1e-5))
    assert later.statement()["spent_before"] == [["gaussian", 8.0, 1.0, 4]]


def test_one_sequence_costs_less_than_the_sum_of_its_parts():
    """Why releases are kept and not epsilons: two runs of epsilon 1.2 and 1.2 fit into 2."""
    small = GaussianRelease(40.0)
    count = next(n for n in range(1, 1000) if epsilon({small: n + 1}, 1e-5) > 1.2)
    half = {small: count}
    account = Account().reserve("one", half, BUDGET).settle("one", half).reserve("two", half, BUDGET)
    assert epsilon(together(*account.runs.values()), 1e-5) <= 2.0 < 2 * epsilon(half, 1e-5)


def test_a_reservation_binds_until_it_is_settled():
    account = Account().reserve("one", {STEP: 3}, BUDGET)
    with pytest.raises(BudgetSpent, match="does not cover run 'two'"):
        account.reserve("two", {STEP: 3}, BUDGET)
    settled = account.settle("one", {STEP: 1})
    assert settled.reserve("two", {STEP: 3}, BUDGET).runs == {"one": {STEP: 1}, "two": {STEP: 3}}


def test_a_restart_has_its_reservation_and_a_used_name_never_gets_another():
    account = Account().reserve("one", {STEP: 3}, BUDGET)
    assert account.reserve("one", {STEP: 3}, BUDGET) == account
    with pytest.raises(BudgetSpent):
        account.reserve("one", {STEP: 3, PureRelease(3.0): 1}, BUDGET)
    settled = account.settle("one", {STEP: 2})
    assert settled.settle("one", {}) == settled
    with pytest.raises(Refused, match="a new name"):
        settled.reserve("one", {STEP: 1}, BUDGET)


def test_an_account_is_a_value_that_can_be_written_down():
    account = Account().reserve("one", {STEP: 2, PureRelease(0.1): 2}, BUDGET).reserve("two", {SAMPLED: 3}, BUDGET)
    account = account.settle("one", {STEP: 2})
    state = msgspec.json.decode(msgspec.json.encode(account.snapshot()))
    assert Account.restored(state) == account
    assert account.without("two") == {STEP: 2}


def test_a_records_releases_go_into_an_account():
    mechanism = calibrate(4.0, 1e-5, 5, predictions_max=1)
    ledger = RecordLedger(mechanism, 3)
    ledger.spend(np.array([0, 2]), step=True)
    spent = ledger.cost(2)
    assert sum(spent.values()) == 3, "an embedding, a step, and the score that is kept back"
    account = Account().reserve("one", mechanism.cost(6, 5), Budget(4.0, 1e-5)).settle("one", spent)
    assert epsilon(account.runs["one"], 1e-5) == pytest.approx(ledger.statement()["epsilon"])
