"""What a run folder shows while its run goes on.

    metrics.jsonl           the looks so far, as they come; at the end the record puts the whole curve in its place
    live.json               how far the run is, and who did how much; gone once the record is written
    observed/<party>.jsonl  between processes, where nobody can look: what a party's process has certified; gone as well

Looks may come by the thousand in a second. They are gathered and written four times in a second at most, so that being
watched costs a run next to nothing; a look that is followed by none waits in memory until the run ends.
"""

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from offbeat.errors import OffbeatError
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.plain import encode_plain, replace_file
from offbeat.metrics.record import CURVE_FILE, Certificate
from offbeat.runtime.processes import OBSERVED

log = logging.getLogger("offbeat.live")

LIVE_FILE = "live.json"
EVERY_S = 0.25

Phase = Literal["preparing", "running", "ending", "failed"]


class PartyNow(msgspec.Struct, frozen=True):
    """What one party has done so far; None where it is known at the end only."""

    updates: int = 0
    lag_mean: float | None = None
    lag_max: int | None = None
    messages: int | None = None
    bytes: int | None = None


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is. `run` differs between any two runs, also in one folder; `process` and `host` tell whether anybody
    is still at it; `goal` is the number of `unit`s (passes, updates) after which it ends at the latest."""

    algorithm: str
    runtime: str
    clock: str
    seed: int | None
    goal: float
    unit: str = "passes"
    target: float | None = None
    run: str = ""
    process: int = 0
    host: str = ""
    phase: Phase = "preparing"
    reason: str = ""
    time_s: float = 0.0
    done: float = 0.0
    certificate: Certificate = Certificate()
    parties: dict[str, PartyNow] = {}


Parties = Callable[[], Mapping[str, PartyNow]]
"""Asked only when something is about to be written."""


class LiveRun:
    """The writing side, for one run. A disk that refuses ends the writing, with a warning, and not the run."""

    def __init__(self, folder: Path, now: Now, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.clock = folder, clock
        run = f"{time.time_ns():x}-{os.getpid():x}"
        self.now = msgspec.structs.replace(now, run=run, process=os.getpid(), host=socket.gethostname())
        self._waiting: list[bytes] = []
        self._last: CurveRow | None = None
        self._certificate = Certificate()
        self._due = clock()
        self._rows: BinaryIO | None = None
        self._broken = False
        self._try(self._begin)

    def look(self, row: CurveRow, certificate: Certificate | None, parties: Parties) -> None:
        """One look; `certificate`, where one came since the look before."""
        if self._broken:
            return
        if certificate is not None:
            gradient_norm, gap = certificate.gradient_norm, certificate.duality_gap
            row = msgspec.structs.replace(row, gradient_norm=gradient_norm, gap=gap)
            self._certificate = certificate
        self._last = row
        self._waiting.append(encode_plain(row) + b"\n")
        if self.clock() >= self._due:
            self._move(phase="running", parties=dict(parties()))
            self._due = self.clock() + EVERY_S

    def end(self, phase: Phase, reason: str = "") -> None:
        self._move(phase=phase, reason=reason)
        if self._rows is not None:
            self._rows.close()

    def _move(self, **more: Any) -> None:
        last = self._last
        if last is not None:
            more = {"time_s": last.time_s, "done": last.passes, "certificate": self._certificate, **more}
        self.now = msgspec.structs.replace(self.now, **more)
        self._try(self._write)

    def _try(self, write: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            write()
        except OSError as problem:
            self._broken = True
            log.warning("%s cannot be written to (%s): the run goes on and cannot be watched.", self.folder, problem)

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        forget_live(self.folder)
        self._rows = (self.folder / CURVE_FILE).open("wb")
        self._write()

    def _write(self) -> None:
        if not self.folder.is_dir():
            raise FileNotFoundError("the folder was removed")
        if self._waiting and self._rows is not None:
            rows, self._waiting = b"".join(self._waiting), []
            self._rows.write(rows)
            self._rows.flush()
        replace_file(self.folder / LIVE_FILE, encode_plain(self.now) + b"\n")


@contextmanager
def live_run(folder: Path | None, now: Now) -> Iterator[LiveRun | None]:
    """A run that can be watched in its folder; without one, it cannot."""
    if folder is None:
        yield None
        return
    live = LiveRun(folder, now)
    try:
        yield live
    except BaseException as problem:
        live.end("failed", str(problem) if isinstance(problem, OffbeatError) else type(problem).__name__)
        raise
    live.end("ending")


def forget_live(folder: Path) -> None:
    """What only a run that goes on has; its curve stays."""
    (folder / LIVE_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / OBSERVED, ignore_errors=True)


def read_now(folder: Path) -> Now | None:
    """Where the run is, by its own word; None where it says nothing, or nothing that can be read."""
    try:
        return msgspec.json.decode((folder / LIVE_FILE).read_bytes(), type=Now)
    except (OSError, msgspec.DecodeError):
        return None
