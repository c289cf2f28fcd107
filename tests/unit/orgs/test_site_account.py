"""A site's account over all its runs, whatever folder their state lies in."""

from pathlib import Path

import pytest

from offbeat.errors import BadData, BudgetSpent
from offbeat.orgs.budget import SiteAccount, reservation_name
from offbeat.privacy.accountant import GaussianRelease, calibrate_multiplier
from offbeat.privacy.ledger import Budget, Ledger, Releases

STEP = GaussianRelease(calibrate_multiplier(2.0, 1e-5, 100))
PLAN: Releases = {STEP: 100}
BUDGET = Budget(2.0, 1e-5)


def test_a_second_run_in_a_new_folder_does_not_get_the_budget_again(tmp_path: Path) -> None:
    """Before: the ledger lay in the state folder, so every new folder began with a full budget."""
    first = reservation_name(tmp_path / "one" / "run", "run", "oslo")
    assert SiteAccount(tmp_path / "ledger").reserve(first, PLAN, BUDGET) == PLAN
    assert reservation_name(tmp_path / "one" / "run", "run", "oslo") == first
    assert SiteAccount(tmp_path / "ledger").reserve(first, PLAN, BUDGET) == PLAN, "killed, and started again"
    second = reservation_name(tmp_path / "two" / "run", "run", "oslo")
    with pytest.raises(BudgetSpent, match=r"with what was released and reserved before, it comes to 2\.9"):
        SiteAccount(tmp_path / "ledger").reserve(second, PLAN, BUDGET)
    SiteAccount(tmp_path / "ledger").settle(first, {STEP: 40})
    assert SiteAccount(tmp_path / "ledger").reserve(second, {STEP: 60}, BUDGET) == {STEP: 60}, (
        "what was not sent is free"
    )
    assert SiteAccount(tmp_path / "ledger").reserve(first, PLAN, BUDGET) == {}, "a run that is over sends no more"


def test_an_older_copy_of_the_account_is_noticed(tmp_path: Path) -> None:
    account, file = SiteAccount(tmp_path), tmp_path / "account.json"
    account.reserve("one", {STEP: 10}, BUDGET)
    reserved = file.read_bytes()
    account.settle("one", {STEP: 10})
    for older, lost in ((reserved, "1 of 2"), (None, "2 of 2")):
        file.unlink()
        if older is not None:
            file.write_bytes(older)
        with pytest.raises(BadData, match=f"has lost {lost} charges"):
            SiteAccount(tmp_path).reserve("two", {STEP: 10}, BUDGET)


@pytest.mark.parametrize("file", ["account.json", "account.count"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"runs": 3, "open": []}', b"\xff"])
def test_a_damaged_account_is_named(tmp_path: Path, file: str, content: bytes) -> None:
    SiteAccount(tmp_path).reserve("one", {STEP: 10}, BUDGET)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(BadData, match=f"{file} is damaged"):
        SiteAccount(tmp_path).reserve("two", {STEP: 10}, BUDGET)


def test_a_run_spends_no_more_than_was_reserved_for_it() -> None:
    """A larger budget of the site is for other runs."""
    ledger = Ledger(Budget(50.0, 1e-5), reserved={STEP: 3})
    for _ in range(3):
        ledger.spend(STEP)
    assert not ledger.affords(STEP) and not ledger.affords(GaussianRelease(9.0))
    with pytest.raises(BudgetSpent):
        ledger.spend(STEP)
    assert not Ledger(Budget(50.0, 1e-5), reserved={}).affords(STEP)
