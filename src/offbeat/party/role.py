"""What a linear method adds to a party (party/linear.py): what to ask, and what to do with a product."""

from typing import Any, Protocol

from offbeat.party.contract import Computed, Effect, PartyName
from offbeat.party.masked_sum import Sum


class Role(Protocol):
    """The hooks of a method. `begun`, `product`, `asked` and `worked` are the method itself."""

    def begun(self) -> list[Effect]:
        """Step size and batch are known; training may start."""

    def product(self, done: Sum) -> list[Effect]:
        """A sum at the current blocks is known."""

    def asked(self, asker: PartyName, number: int) -> list[Effect]:
        """A peer asks for this party's share of a block of rows."""

    def rows_asked(self, asker: PartyName, number: int) -> tuple[int, int]:
        """Which rows a peer's question is about, as (start, stop)."""

    def worked(self, work: Any, event: Computed) -> list[Effect]:
        """The time for this work of the role's has gone by. A role without kinds of work has no use for it."""

    def resume(self) -> list[Effect]:
        """A survey is over: go on, where it made a pause."""

    def is_stepping(self) -> bool:
        """Whether steps are under way or waiting."""

    def rostered(self) -> list[Effect]:
        """There is a new roster epoch; every open question is void."""

    def passes(self) -> float:
        """How many passes the run has made, as this party knows it."""

    def losses(self) -> dict[str, int]:
        """What was received and never applied, counted by its reason."""
