"""What an edge site has released in all its runs: one account, beside the site's key, whatever state folder a run has.

    ledger/account.json    what every run released, or may still release
    <state>/<run>/NAME.reservation    which reservation a run's state belongs to

A run reserves its whole plan before it connects, and is settled at its end: what it did not send is free again. A run
that was killed keeps its reservation and goes on with it, from the same state folder. From another folder it is another
run: it reserves anew, and what the first one reserved stays spent.
"""

import json
import secrets
from pathlib import Path

from offbeat.orgs.durable import locked, write_durably
from offbeat.privacy.ledger import Account, Budget, Releases


class SiteAccount:
    """The account in this folder; safe for several runs of a site at once."""

    def __init__(self, folder: Path) -> None:
        self._file, self._lock = folder / "account.json", folder / "account.lock"

    def read(self) -> Account:
        return Account.restored(json.loads(self._file.read_bytes())) if self._file.is_file() else Account()

    def reserve(self, run: str, planned: Releases, budget: Budget) -> Releases:
        """What this run may release, on the disk when this returns; nothing for a run that is over. Raises BudgetSpent
        where the plan and what all other runs released do not fit into the budget together."""
        with locked(self._lock):
            account = self.read()
            if run in account.runs and run not in account.open:
                return {}
            account = account.reserve(run, planned, budget)
            self._write(account)
            return account.runs[run]

    def settle(self, run: str, spent: Releases) -> None:
        with locked(self._lock):
            self._write(self.read().settle(run, spent))

    def _write(self, account: Account) -> None:
        write_durably(self._file, json.dumps(account.snapshot()).encode())


def reservation_name(state: Path, run: str, name: str) -> str:
    """The name under which the run whose state lies here has reserved, or will."""
    file = state / f"{name}.reservation"
    if not file.is_file():
        write_durably(file, f"{run} {secrets.token_hex(16)}".encode())
    return file.read_text(encoding="utf-8")
