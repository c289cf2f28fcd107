"""What every runtime is given, and what it gives back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from offbeat.party.contract import Finish, Party, PartyName

Passage = tuple[float, float, PartyName, PartyName, str]
"""A message of the timeline: when it left and when it came, from whom, to whom, its kind."""


@dataclass(slots=True)
class Tally:
    """What one party did, as its runtime saw it. Times are virtual or wall seconds."""

    events: int = 0
    compute_s: float = 0.0
    serve_s: float = 0.0
    transit_s: float = 0.0  # time during which some message to or from this party was on its way
    sent: dict[str, list[int]] = field(default_factory=dict)  # kind -> [messages, payload bytes]

    def split(self, total_s: float, lanes: int = 1) -> tuple[float, float, float]:
        """(compute, communicate, wait): lane time; then the idle time covered by messages on their way; then the
        idle time in which nothing moved, which is what a barrier costs."""
        compute = self.compute_s / max(lanes, 1)
        idle = max(0.0, total_s - compute)
        communicate = min(idle, self.transit_s)
        return compute, communicate, idle - communicate

    @property
    def bytes_sent(self) -> int:
        return sum(size for _, size in self.sent.values())


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended and what was seen on the way."""

    clock: str  # "virtual" or "wall"
    time_s: float
    digest: str
    finished: dict[PartyName, Finish]
    observations: list[tuple[float, PartyName, str, Any]]
    tallies: dict[PartyName, Tally]
    timeline: list[Passage]
    events: int
    lost: tuple[PartyName, ...] = ()
    stalled: str = ""  # why the run ended without every party finishing; empty if all did
    out_of_time: bool = False  # it was broken off at the runtime's limit of time, as asked


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Several parties' outcomes as one of all."""
    return Outcome(
        clock=outcomes[0].clock,
        time_s=max(outcome.time_s for outcome in outcomes),
        digest=" ".join(outcome.digest for outcome in outcomes),
        finished={name: finish for outcome in outcomes for name, finish in outcome.finished.items()},
        observations=sorted((row for outcome in outcomes for row in outcome.observations), key=lambda row: row[0]),
        tallies={name: tally for outcome in outcomes for name, tally in outcome.tallies.items()},
        timeline=sorted(row for outcome in outcomes for row in outcome.timeline),
        events=sum(outcome.events for outcome in outcomes),
        lost=tuple(sorted({name for outcome in outcomes for name in outcome.lost})),
        stalled="; ".join(outcome.stalled for outcome in outcomes if outcome.stalled),
    )


Look = Callable[[float], float | None]
"""Called with the time; returns the seconds until the next look, or None to end the run here."""


class Runtime(Protocol):
    """Turns effects into reality and reality into events. The parties do not change between runtimes."""

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome: ...
