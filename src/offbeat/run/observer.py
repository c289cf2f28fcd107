"""Looks at a run now and then, keeps the curve, and may end the run; costs the parties nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from offbeat.families.contract import Counters, Training
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.live import LiveRun, PartyNow
from offbeat.runtime.contract import Runtime


@dataclass(frozen=True)
class Progress:
    """One look at a run. `passes` counts what the run counts: passes, or updates. `trying`: the strength of a penalty
    that this fit is to judge, while one is chosen."""

    time_s: float
    passes: float
    objective: float | None
    suboptimality: float | None = None
    metric: float | None = None
    lag_mean: float | None = None
    certificate: float | None = None
    trying: float | None = None


Watch = Callable[[Progress], bool | None]
"""Called at every look; False ends the run there."""


class Observer:
    """The eyes of one run. `live`: where others may follow it."""

    def __init__(self, training: Training, runtime: Runtime, watch: Watch | None, live: LiveRun | None) -> None:
        self.training, self.runtime, self.watch, self.live = training, runtime, watch, live
        self.rows: list[CurveRow] = []
        self.stopped = False

    def look(self, time_s: float) -> float | None:
        """What a runtime calls; the seconds until the next look."""
        if self.training.due():
            progress = self._note(time_s)
            self.stopped = self.watch is not None and self.watch(progress) is False
        return None if self.stopped else self.training.pause_s(time_s)

    def finish(self, time_s: float) -> None:
        """The last look, where something has happened since the one before."""
        if self.training.final_look and (not self.rows or self.rows[-1].passes != self.training.done()):
            self._note(time_s)

    def _note(self, time_s: float) -> Progress:
        seen, done = self.training.seen(), self.training.done()
        sent = int(getattr(self.runtime, "bytes_sent", 0))
        row = CurveRow(time_s, done, sent, seen.objective, suboptimality=seen.suboptimality, test_metric=seen.metric)
        self.rows.append(row)
        if self.live is not None:
            self.live.look(row, seen.news, self._parties_now)
        return Progress(time_s, done, seen.objective, seen.suboptimality, seen.metric, seen.lag_mean, seen.certificate)

    def _parties_now(self) -> dict[str, PartyNow]:
        """What was sent, where the runtime tells it at a look."""
        sent: Mapping[str, tuple[int | None, int | None]] = getattr(self.runtime, "sent", {})
        told = self.training.counters(None)
        return {name: _party_now(mine, *sent.get(name, (None, None))) for name, mine in told.items()}


def _party_now(told: Counters, messages: int | None, payload: int | None) -> PartyNow:
    mean, most = (None, None) if told.lags is None else (told.lags.mean, told.lags.most)
    return PartyNow(told.updates, mean, most, messages, payload)
