"""What an experiment, an audit, a replay or an organisation asks of a kind of learning, and what it is told.

A `Family` reads the data of a job and makes a `Training` of both: the parties before anything has happened, and all
that can be told of them while they run and after. There are three families (families/table.py); what is the same for
all stands in `run`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from offbeat.data.prepare import Fitted
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.held_out import HeldOut
from offbeat.metrics.lag import Lags
from offbeat.metrics.record import Certificate, DataRecord
from offbeat.party.contract import Message, Party, PartyName
from offbeat.runtime.contract import Outcome


class Evaluation(NamedTuple):
    """What an observer finds when it looks at all parties at once. `lag_mean`, `certificate` and `news` (a certificate
    that came since the look before) are of families that have them."""

    objective: float | None
    metric: float | None = None
    suboptimality: float | None = None
    lag_mean: float | None = None
    certificate: float | None = None
    news: Certificate | None = None


class Counters(NamedTuple):
    """What one party did. `lags`: those it acted on; None where it has none, or before they are known."""

    updates: int
    lags: Lags | None = None
    dropped: int = 0
    retried: int = 0
    abandoned: int = 0


class RunAccount(NamedTuple):
    """What a family tells of a finished run, for its record."""

    verdict: str
    reason: str
    objective: float | None
    passes: float
    counters: Mapping[PartyName, Counters]
    warnings: Sequence[str]
    data: DataRecord
    curve: Sequence[CurveRow] = ()
    metrics: Mapping[str, float | None] = {}
    certificate: Certificate = Certificate()
    suboptimality: float | None = None
    privacy: Mapping[str, dict[str, Any]] = {}
    promises: Sequence[str] = ()
    held_out: HeldOut | None = None


class Part(NamedTuple):
    """One party's part of the model, as named arrays; `columns` where they have names; `fitted`: how the party prepares
    its rows, where it does so by itself."""

    arrays: Mapping[str, np.ndarray]
    columns: Sequence[str] | None = None
    fitted: Fitted | None = None


class Training(Protocol):
    """One run before, while and after it goes on. Whoever holds all parties may look at them at any time."""

    @property
    def job(self) -> Any: ...
    @property
    def parties(self) -> Sequence[Party]: ...
    @property
    def messages(self) -> Sequence[type[Message]]: ...
    @property
    def private_labels(self) -> bool: ...
    @property
    def goal(self) -> float: ...
    @property
    def unit(self) -> str: ...  # what `goal` and `done` count: passes, or updates
    @property
    def session(self) -> Mapping[str, Any]: ...  # what a runtime with real links must know: on_loss, checkpoint_s
    @property
    def final_look(self) -> bool: ...  # whether the parties may be looked at once more when all is over

    def begin(self) -> None:
        """What takes its time and is not the parties' work."""

    def done(self) -> float: ...

    def due(self) -> bool:
        """Whether enough has happened since the look before."""

    def pause_s(self, time_s: float) -> float:
        """Seconds of the runtime's clock until somebody may look again."""

    def seen(self) -> Evaluation:
        """All parties at once, as they are now."""

    def counters(self, outcome: Outcome | None) -> Mapping[PartyName, Counters]:
        """Of all parties, while the run goes on (None) or at its end."""

    def account(self, outcome: Outcome, rows: Sequence[CurveRow], *, stopped: bool) -> RunAccount:
        """`rows`: what was seen on the way. `stopped`: an observer ended the run."""

    def chosen(self) -> dict[str, Any]:
        """What the job left open and the run has chosen."""

    def models(self, outcome: Outcome) -> Mapping[PartyName, Part]: ...


@dataclass(frozen=True)
class Family:
    """`load` reads the data that a job names. `training` takes job and data; with `only`, of that one party."""

    load: Callable[[Any], Any]
    training: Callable[..., Training]
