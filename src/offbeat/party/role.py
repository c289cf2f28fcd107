"""What a linear method adds to a party (party/linear.py): what to ask, and what to do with a product."""

from typing import TYPE_CHECKING, Any, Protocol

from offbeat.party.contract import Computed, Effect, PartyName
from offbeat.party.masked_sum import Sum
from offbeat.party.memory import Memory

if TYPE_CHECKING:
    from offbeat.party.linear import LinearParty


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


class InRounds(Memory):
    """What roles have in common whose parties take one round after the other: a round is one block of rows, and the
    next one begins when every party has stepped."""

    def __init__(self, party: "LinearParty", lanes: int = 1) -> None:
        self.name, self.party, self.handle = party.name, party, party.handle
        self.block, self.works, self.stepper = party.block, party.works, party.stepper
        self.round = 0  # the round to be taken next

    def rows_asked(self, asker: PartyName, number: int) -> tuple[int, int]:
        return self.party.rows_of(number)

    def is_stepping(self) -> bool:
        return False

    def rostered(self) -> list[Effect]:
        return self.party.alarm("peer-lost", "synchronous rounds cannot go on without a party")

    def passes(self) -> float:
        return self.round / self.party.schedule.blocks_a_pass if self.party.schedule is not None else 0.0

    def losses(self) -> dict[str, int]:
        return {"dropped": 0, "late": 0}
