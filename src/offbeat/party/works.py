"""Work under way: what a `Computed` is the end of.

A party asks for time by a value that says what to do afterwards. The contract carries a ticket only, so the values stay
with the party, and a snapshot keeps them.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from offbeat.party.contract import Compute


class Charged(msgspec.Struct, frozen=True, gc=False):
    """Work that is done already: only its time is asked for."""


CHARGED = Charged()


class Works:
    """Work by ticket. `kinds`: the types of work that a snapshot may hold."""

    def __init__(self, *kinds: type) -> None:
        self.kinds = {kind.__name__: kind for kind in (Charged, *kinds)}
        self.next = 0
        self.open: dict[int, Any] = {}
        self.count: Counter[type] = Counter()

    def know(self, *kinds: type) -> None:
        self.kinds.update({kind.__name__: kind for kind in kinds})

    def begin(self, work: Any, samples: int, nonzeros: int, job: Callable[[], Any] | None = None) -> Compute:
        """Ask for the time that this work takes."""
        ticket = self.next
        self.next = ticket + 1
        self.open[ticket] = work
        self.count[type(work)] += 1
        return Compute(ticket, samples, nonzeros, job)

    def end(self, ticket: int) -> Any:
        """The work whose time has gone by; None where it is of no use any more."""
        work = self.open.pop(ticket, None)
        if work is not None:
            self.count[type(work)] -= 1
        return work

    def of(self, kind: type) -> list[Any]:
        return [work for work in self.open.values() if type(work) is kind]

    def drop(self, kind: type) -> None:
        """Work of this kind is of no use any more."""
        self.open = {ticket: work for ticket, work in self.open.items() if type(work) is not kind}
        self.count[kind] = 0

    def snapshot(self) -> dict[str, Any]:
        works = [[ticket, type(work).__name__, _plain(work)] for ticket, work in self.open.items()]
        return {"next": self.next, "open": works}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.next = state["next"]
        self.open = {
            ticket: msgspec.convert(fields, self.kinds[kind], dec_hook=_as_it_is)
            for ticket, kind, fields in state["open"]
        }
        self.count = Counter(type(work) for work in self.open.values())


def _plain(value: Any) -> Any:
    """Values with fields become dictionaries, deep inside too; arrays stay what they are."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    fields = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if fields is None:
        return sorted(value) if isinstance(value, set) else value
    return {name: _plain(getattr(value, name)) for name in fields}


def _as_it_is(kind: type, value: Any) -> Any:
    return value
