"""What left, and whether more may leave.

A *release* is a frozen description of one private thing that left a party. A *ledger* counts them, asks the
accountant what they cost together, and refuses the one that would pass the budget. A release is spent when it is
sent: a message that gets lost was still seen by whoever reads the line. A retry of the same bytes is not a release.

    ledger = Ledger(Budget(epsilon=3.0, delta=1e-5))
    ledger.spend(GaussianRelease(noise_multiplier=2.0, sampling_rate=0.01))     # raises BudgetSpent

An *account* holds what all runs together released about one site or one person. It keeps releases, not epsilons, so
that they are composed as one sequence, however many runs and kinds there are. It is a value: whoever keeps it on disk
writes down the one with the reservation before the run begins.

    account = account.reserve("run 7", {release: 600}, budget)                  # raises BudgetSpent
    ledger = Ledger(budget, before=account.without("run 7"))
    account = account.settle("run 7", ledger.spent)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from offbeat.errors import BadInput, BudgetSpent, Refused
from offbeat.privacy import accountant
from offbeat.privacy.accountant import Adjacency, GaussianRelease, PureRelease, Release

__all__ = ["Account", "Adjacency", "Budget", "GaussianRelease", "Ledger", "PureRelease", "Release", "Releases"]

Releases = Mapping[Release, int]
"""How many of each kind."""


class Budget(msgspec.Struct, frozen=True):
    """The most a party is willing to reveal about one record, over everything it ever sends."""

    epsilon: float
    delta: float
    adjacency: Adjacency = "replace-one"


class Ledger:
    """Counts the releases of one run and refuses what the budget does not cover.

    `before`: what earlier runs released under the same budget. `proven` may carry a plan that calibration has already
    shown to fit, if nothing came before it: then no accounting happens while training stays inside it. `reserved`: what
    an account holds for this run; nothing beyond it is spent. Without a budget the ledger only counts.
    """

    def __init__(
        self,
        budget: Budget | None,
        proven: Releases | None = None,
        before: Releases | None = None,
        reserved: Releases | None = None,
    ) -> None:
        self.budget, self.reserved = budget, reserved
        self.before: Releases = dict(before or {})
        self.spent: dict[Release, int] = {}
        self._proven: dict[Release, int] = {} if self.before else dict(proven or {})
        self._refused: dict[Release, int] | None = None

    def spend(self, release: Release, times: int = 1) -> None:
        """Count `times` releases, before they are sent."""
        if not self.affords(release, times):
            raise BudgetSpent(self._refusal(release))
        self.spent[release] = self.spent.get(release, 0) + times

    def catch_up(self, release: Release, times: int) -> None:
        """Count releases that are known to have been made, whatever the budget says: a peer remembers more of them
        than we do."""
        self.spent[release] = self.spent.get(release, 0) + times

    def affords(self, release: Release, times: int = 1) -> bool:
        """Whether `times` more of these stay within the budget."""
        if self.reserved is not None and not _within(together(self.spent, {release: times}), self.reserved):
            return False
        if self.budget is None:
            return True
        wanted = together(self.before, self.spent, {release: times})
        if _within(wanted, self._proven):
            return True
        if self._refused is not None and _within(self._refused, wanted):
            return False
        return self._prove(release, wanted)

    def _prove(self, release: Release, wanted: dict[Release, int]) -> bool:
        """Ask the accountant, for more than is wanted first so that it is asked rarely."""
        ahead = {kind: count + count // 2 + 8 for kind, count in wanted.items()}
        if self._fits(ahead):
            self._proven = ahead
            return True
        if not self._fits(wanted):
            self._refused = wanted
            return False
        self._find_last(release, wanted, ahead[release])
        return True

    def _find_last(self, release: Release, wanted: dict[Release, int], refused: int) -> None:
        """Bisect between what fits and what is thought not to, so that the limit is known once and for all."""
        fits = wanted[release]
        if not self._fits({**wanted, release: refused}):
            self._refused = {**wanted, release: refused}
        while refused - fits > 1:
            middle = (fits + refused) // 2
            if self._fits({**wanted, release: middle}):
                fits = middle
            else:
                refused = middle
                self._refused = {**wanted, release: middle}
        self._proven = {**wanted, release: fits}

    def _fits(self, counts: Mapping[Release, int]) -> bool:
        assert self.budget is not None
        return accountant.epsilon(counts, self.budget.delta, self.budget.adjacency) <= self.budget.epsilon

    def epsilon(self, delta: float | None = None, adjacency: Adjacency | None = None) -> float:
        """What has been spent so far, with what came before, at the budget's delta and adjacency unless others are
        asked for."""
        if self.budget is None and (delta is None or adjacency is None):
            raise BadInput("A ledger without a budget needs a delta and an adjacency to state an epsilon.")
        if self.budget is not None:
            delta = self.budget.delta if delta is None else delta
            adjacency = self.budget.adjacency if adjacency is None else adjacency
        assert delta is not None and adjacency is not None
        return accountant.epsilon(together(self.before, self.spent), delta, adjacency)

    def statement(self, *, exact: bool = True) -> dict[str, Any]:
        """What the run record says: releases, budget and, where `exact` (it takes a second), what was spent of it
        under both adjacencies."""
        stated: dict[str, Any] = {"releases": self.releases, "spent": plain(self.spent)}
        if self.before:
            stated |= {"spent_before": plain(self.before)}
        if self.budget is None:
            return stated
        stated |= {"budget_epsilon": self.budget.epsilon, "delta": self.budget.delta}
        stated |= {"adjacency": self.budget.adjacency}
        if exact:
            stated |= {f"epsilon ({name})": self.epsilon(adjacency=name) for name in accountant.ADJACENCIES}
            stated |= {"epsilon": stated[f"epsilon ({self.budget.adjacency})"]}
        return stated

    @property
    def releases(self) -> int:
        return sum(self.spent.values())

    def snapshot(self) -> dict[str, Any]:
        """Plain values. Write them down BEFORE the release they count leaves: then a crash can over-count, never
        under-count."""
        return {"spent": plain(self.spent)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a snapshot; where this ledger has counted more, it keeps the larger number."""
        self.spent = larger(self.spent, from_plain(state["spent"]))

    def _refusal(self, release: Release) -> str:
        assert self.budget is not None
        return (
            f"The privacy budget of epsilon {self.budget.epsilon:g} at delta {self.budget.delta:g} "
            f"({self.budget.adjacency}) is spent after {self.releases} releases: one more ({release}) would pass it. "
            "Nothing was sent. Raise the budget, raise the noise, or stop here."
        )


def _within(counts: Mapping[Release, int], bound: Mapping[Release, int]) -> bool:
    return all(count <= bound.get(release, 0) for release, count in counts.items())


# -- releases as plain values ---------------------------------------------------------------------------------------


def together(*parts: Releases) -> dict[Release, int]:
    """All of them: counts add up."""
    found: dict[Release, int] = {}
    for part in parts:
        for release, count in part.items():
            found[release] = found.get(release, 0) + count
    return found


def larger(one: Releases, other: Releases) -> dict[Release, int]:
    """Two records of the same thing: the larger count of each."""
    return {release: max(one.get(release, 0), other.get(release, 0)) for release in {**one, **other}}


def plain(releases: Releases) -> list[list[Any]]:
    """Numbers and words alone, to be written down."""
    kinds = {GaussianRelease: "gaussian", PureRelease: "pure"}
    return [[kinds[type(release)], *msgspec.structs.astuple(release), count] for release, count in releases.items()]


def from_plain(values: Iterable[Sequence[Any]]) -> dict[Release, int]:
    kinds: dict[str, type[Release]] = {"gaussian": GaussianRelease, "pure": PureRelease}
    return {kinds[kind](float(amount), float(rate)): int(count) for kind, amount, rate, count in values}


# -- over several runs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    """What every run released, or may still release, about one unit. `open`: runs that only have a reservation."""

    runs: Mapping[str, Releases] = field(default_factory=dict)
    open: frozenset[str] = frozenset()

    @property
    def entries(self) -> int:
        """Every reservation and every settlement is one; none ever goes."""
        return 2 * len(self.runs) - len(self.open)

    def without(self, run: str) -> dict[Release, int]:
        """What all other runs come to."""
        return together(*(releases for name, releases in self.runs.items() if name != run))

    def reserve(self, run: str, planned: Releases, budget: Budget) -> "Account":
        """The account with this plan in it, to be written down before the first release; BudgetSpent if it does not
        fit. A run that starts again after a crash has its reservation; a run that is over never gets another one."""
        if run in self.runs and run not in self.open:
            raise Refused(f"The run '{run}' is over and its account is settled. Give a new run a new name.")
        if run in self.open and _within(planned, self.runs[run]):
            return self
        cost = accountant.epsilon(together(self.without(run), planned), budget.delta, budget.adjacency)
        if cost > budget.epsilon:
            raise BudgetSpent(
                f"The privacy budget of epsilon {budget.epsilon:g} at delta {budget.delta:g} ({budget.adjacency}) does "
                f"not cover run '{run}': with what was released and reserved before, it comes to {cost:.4g}. Nothing "
                "was sent. Raise the budget, raise the noise, or ask for fewer releases."
            )
        return Account({**self.runs, run: dict(planned)}, self.open | {run})

    def settle(self, run: str, spent: Releases) -> "Account":
        """The run is over: what it did not use is free again. A run that is settled stays as it is."""
        if run not in self.open:
            return self
        return Account({**self.runs, run: dict(spent)}, self.open - {run})

    def snapshot(self) -> dict[str, Any]:
        return {"runs": {run: plain(releases) for run, releases in self.runs.items()}, "open": sorted(self.open)}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Account":
        runs = {run: from_plain(releases) for run, releases in state["runs"].items()}
        return cls(runs, frozenset(state["open"]))
