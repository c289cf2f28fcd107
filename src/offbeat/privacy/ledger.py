"""What left, and whether more may leave.

A *release* is a frozen description of one private thing that left a party. A *ledger* counts them, asks the
accountant what they cost together, and refuses the one that would pass the budget. A release is spent when it is
sent: a message that gets lost was still seen by whoever reads the line. A retry of the same bytes is not a release.

    ledger = Ledger(Budget(epsilon=3.0, delta=1e-5))
    ledger.spend(GaussianRelease(noise_multiplier=2.0, sampling_rate=0.01))     # raises BudgetSpent
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from offbeat.errors import BadInput, BudgetSpent
from offbeat.privacy import accountant
from offbeat.privacy.accountant import Adjacency, GaussianRelease, PureRelease, Release

__all__ = ["Adjacency", "Budget", "GaussianRelease", "Ledger", "PureRelease", "Release"]

Kind = Literal["gaussian", "pure"]


class Budget(msgspec.Struct, frozen=True):
    """The most a party is willing to reveal about one record, over everything it ever sends."""

    epsilon: float
    delta: float
    adjacency: Adjacency = "replace-one"


class Ledger:
    """Counts releases and refuses what the budget does not cover.

    `proven` may carry a plan that calibration has already shown to fit (release -> how many): then no accounting
    happens while training stays inside it. Without a budget the ledger only counts.
    """

    def __init__(self, budget: Budget | None, proven: Mapping[Release, int] | None = None) -> None:
        self.budget = budget
        self.spent: dict[Release, int] = {}
        self._proven: dict[Release, int] = dict(proven or {})
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
        if self.budget is None:
            return True
        wanted = {**self.spent, release: self.spent.get(release, 0) + times}
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
        """What has been spent so far, at the budget's delta and adjacency unless others are asked for."""
        if self.budget is None and (delta is None or adjacency is None):
            raise BadInput("A ledger without a budget needs a delta and an adjacency to state an epsilon.")
        if self.budget is not None:
            delta = self.budget.delta if delta is None else delta
            adjacency = self.budget.adjacency if adjacency is None else adjacency
        assert delta is not None and adjacency is not None
        return accountant.epsilon(self.spent, delta, adjacency)

    def statement(self, *, exact: bool = True) -> dict[str, Any]:
        """What the run record says: releases, budget and, where `exact` (it takes a second), what was spent of it
        under both adjacencies."""
        stated: dict[str, Any] = {"releases": self.releases, "spent": self.snapshot()["spent"]}
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
        return {"spent": [[*_plain(release), count] for release, count in self.spent.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a snapshot; where this ledger has counted more, it keeps the larger number."""
        for kind, amount, rate, count in state["spent"]:
            release = _release(kind, amount, rate)
            self.spent[release] = max(int(count), self.spent.get(release, 0))

    def _refusal(self, release: Release) -> str:
        assert self.budget is not None
        return (
            f"The privacy budget of epsilon {self.budget.epsilon:g} at delta {self.budget.delta:g} "
            f"({self.budget.adjacency}) is spent after {self.releases} releases: one more ({release}) would pass it. "
            "Nothing was sent. Raise the budget, raise the noise, or stop here."
        )


def _within(counts: Mapping[Release, int], bound: Mapping[Release, int]) -> bool:
    return all(count <= bound.get(release, 0) for release, count in counts.items())


def _plain(release: Release) -> tuple[Kind, float, float]:
    if isinstance(release, GaussianRelease):
        return ("gaussian", release.noise_multiplier, release.sampling_rate)
    return ("pure", release.epsilon, release.sampling_rate)


def _release(kind: Kind, amount: float, rate: float) -> Release:
    if kind == "gaussian":
        return GaussianRelease(float(amount), float(rate))
    return PureRelease(float(amount), float(rate))
