"""Work a party has asked its runtime to charge for, by ticket: what to do when it comes back."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from offbeat.party.contract import Compute


class Pending:
    """Tickets and what they stand for, as plain values, so that a restored party can ask for the work again."""

    def __init__(self) -> None:
        self._next = 0
        self._open: dict[int, tuple[str, Any, int, int]] = {}
        self._counts: dict[str, int] = {}

    def add(
        self, kind: str, payload: Any, samples: int, nonzeros: int, job: Callable[[], Any] | None = None
    ) -> Compute:
        ticket = self._next
        self._next += 1
        self._open[ticket] = (kind, payload, samples, nonzeros)
        counts = self._counts
        counts[kind] = counts.get(kind, 0) + 1
        return Compute(ticket, samples, nonzeros, job)

    def take(self, ticket: int) -> tuple[str, Any] | None:
        """What this ticket stood for; None if it was taken before."""
        entry = self._open.pop(ticket, None)
        if entry is None:
            return None
        kind, payload, _, _ = entry
        self._counts[kind] -= 1
        return kind, payload

    def __len__(self) -> int:
        return len(self._open)

    def count(self, kind: str) -> int:
        return self._counts.get(kind, 0)

    def again(self) -> list[Compute]:
        """After a restore: the running work is gone, so ask for all of it anew (without jobs)."""
        return [Compute(ticket, entry[2], entry[3]) for ticket, entry in self._open.items()]

    def snapshot(self) -> dict[str, Any]:
        return {"next": self._next, "open": [[ticket, *entry] for ticket, entry in self._open.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._next = state["next"]
        self._open = {row[0]: (row[1], row[2], row[3], row[4]) for row in state["open"]}
        self._counts = dict(Counter(entry[0] for entry in self._open.values()))
