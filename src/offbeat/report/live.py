"""A run folder followed while it is being written: what is there now, in memory of a fixed size.

`Follower.look` reads what is new since the look before and returns a `View`, or None where nothing has changed. A line
without its end counts as not yet written. A folder in which another run begins is followed from its beginning.
"""

import os
import socket
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec

from offbeat.data.places import file_mark
from offbeat.errors import BadInput
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.live import LIVE_FILE, Now, read_now
from offbeat.metrics.record import CURVE_FILE, JOB_FILE, RECORD_FILE, Certificate, RunRecord
from offbeat.report.wording import unit
from offbeat.runtime.processes import OBSERVED

KEPT = 200
READ_MOST = 4_000_000
FILES_MOST = 200
APART = ("processes", "ray")  # runtimes whose parties live in processes of their own

Standing = Literal["waiting", "preparing", "running", "ending", "failed", "broken off", "ended", "unreadable"]


@dataclass(frozen=True)
class View:
    """A run as its folder shows it at one moment."""

    name: str
    standing: Standing
    reason: str = ""
    now: Now | None = None
    record: RunRecord | None = None
    curve: Sequence[CurveRow] = ()
    looks: int = 0
    damaged: int = 0
    certificate: Certificate = field(default_factory=Certificate)
    certified_s: float | None = None
    logged: Mapping[str, int] = field(default_factory=dict)
    news_s: float | None = None

    @property
    def over(self) -> bool:
        return self.record is not None

    @property
    def unit(self) -> str:
        """What `CurveRow.passes` counts: the updates of a horizontal run, the passes of any other."""
        if self.record is not None:
            return unit(self.record)
        return self.now.unit if self.now is not None else "passes"


def check_folder(folder: Path) -> None:
    """A folder that a run is in, or may begin in: an empty one may."""
    if not folder.is_dir():
        raise BadInput(
            f"There is no folder {folder}. Expected the folder of a run, finished or not: start the run first, as in "
            "`offbeat run JOB.toml --out DIR`. It makes the folder once its data is read; --wait 60 waits for it."
        )
    known = (JOB_FILE, RECORD_FILE, LIVE_FILE)
    if any(folder.iterdir()) and not any((folder / name).is_file() for name in known):
        raise BadInput(
            f"{folder} is not a run folder: it holds other things, and neither {JOB_FILE} nor {RECORD_FILE}. Give the "
            "folder that `offbeat run` writes to."
        )
    begun = any((folder / name).is_file() for name in (RECORD_FILE, LIVE_FILE))
    if not begun and (folder / JOB_FILE).is_file() and _names_files_beside((folder / JOB_FILE).read_bytes()):
        raise BadInput(
            f"{folder} is not a run folder: its {JOB_FILE} is a job to be run, for it names files beside itself. Give "
            "the folder that `offbeat run` writes to."
        )


def _names_files_beside(job: bytes) -> bool:
    """A run's own job has absolute paths alone."""
    try:
        tree = tomllib.loads(job.decode())
    except ValueError:
        return False  # of a run that is just writing it
    owners = [owner for kind in ("party", "site") for owner in tree.get(kind, ())]
    return any(isinstance(owner, dict) and not Path(owner.get("file", "/")).is_absolute() for owner in owners)


class Tail:
    """The new whole lines of a file that grows, or that another takes the place of."""

    def __init__(self, path: Path) -> None:
        self.path, self.place, self.file = path, 0, 0
        self.more = False  # there was more than one reading takes
        self.damaged = 0

    def lines(self) -> tuple[bool, list[bytes]]:
        """(whether the file began anew, its new lines)."""
        try:
            with self.path.open("rb") as source:
                status = os.fstat(source.fileno())
                anew = status.st_ino != self.file or status.st_size < self.place
                if anew:
                    self.restart(status.st_ino)
                source.seek(self.place)
                chunk = source.read(READ_MOST)
        except OSError:
            anew, chunk = self.place > 0, b""
            self.restart(0)
        return anew, self._whole(chunk)

    def restart(self, file: int = 0) -> None:
        self.place, self.file, self.more, self.damaged = 0, file, False, 0

    def _whole(self, chunk: bytes) -> list[bytes]:
        whole, end, rest = chunk.rpartition(b"\n")
        self.more = len(chunk) == READ_MOST
        if self.more and not end:  # no line of ours is so long
            self.damaged += 1
            self.place += len(rest)
        self.place += len(whole) + len(end)
        return [line for line in whole.split(b"\n") if line]


class ThinnedRows:
    """Some of many rows, evenly chosen, at most twice KEPT of them, and always the last."""

    def __init__(self) -> None:
        self.rows: list[CurveRow] = []
        self.last: CurveRow | None = None
        self.every, self.count = 1, 0

    def add(self, row: CurveRow) -> None:
        if self.count % self.every == 0:
            self.rows.append(row)
            if len(self.rows) == 2 * KEPT:
                self.rows, self.every = self.rows[::2], 2 * self.every
        self.count += 1
        self.last = row

    def __iter__(self) -> Iterator[CurveRow]:
        yield from self.rows
        if self.last is not None and self.last is not self.rows[-1]:
            yield self.last


class Looks:
    """All that is kept of a curve: some looks, and some certificates."""

    def __init__(self) -> None:
        self.looks, self.certified = ThinnedRows(), ThinnedRows()

    def add(self, row: CurveRow) -> None:
        self.looks.add(row)
        if row.gradient_norm is not None:
            self.certified.add(row)

    def curve(self) -> list[CurveRow]:
        """In the order of time; a row that is kept twice stands once."""
        rows = {id(row): row for row in (*self.looks, *self.certified)}
        return sorted(rows.values(), key=lambda row: row.time_s)


class Follower:
    """Follows one folder. It reads fixed names in it and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.tail = Tail(self.folder / CURVE_FILE)
        self.seen = Looks()
        self.observed: dict[Path, Tail] = {}
        self.snapshots: dict[Path, int] = {}
        self.run = ""
        self._before: object = None

    def look(self) -> View | None:
        """What is there now, or None if that has not changed."""
        marks = self._marks()
        if marks == self._before:
            return None
        view = self._finished() if (self.folder / RECORD_FILE).is_file() else self._unfinished()
        self._before = None if self.tail.more else marks
        return view

    def _marks(self) -> object:
        """Everything that a view depends on, by size and time."""
        names = (RECORD_FILE, LIVE_FILE, CURVE_FILE, JOB_FILE)
        paths = [*(self.folder / name for name in names), *self._files("events", "*.log"), *self._observed()]
        now = read_now(self.folder)
        return [(path, file_mark(path)) for path in paths], now is not None and _abandoned(now)

    def _files(self, where: str, pattern: str) -> list[Path]:
        return sorted((self.folder / where).glob(pattern))[:FILES_MOST]

    def _observed(self) -> list[Path]:
        return self._files(OBSERVED, "*.jsonl")

    # -- a finished run ------------------------------------------------------------------------------------------

    def _finished(self) -> View:
        try:
            record = RunRecord.read(self.folder)
        except (BadInput, OSError) as problem:
            return View(self.folder.name, "unreadable", str(problem))
        looks = Looks()
        for row in record.curve:
            looks.add(row)
        return View(
            self.folder.name,
            "ended",
            record.reason,
            record=record,
            curve=looks.curve(),
            looks=len(record.curve),
            certificate=record.certificate,
        )

    # -- a run that goes on --------------------------------------------------------------------------------------

    def _unfinished(self) -> View:
        now = read_now(self.folder)
        if now is None or now.run != self.run:
            self._begin_anew(now.run if now is not None else "")
        if now is None:
            begun = (self.folder / JOB_FILE).is_file()
            return View(self.folder.name, "preparing" if begun else "waiting")
        self._read_looks()
        for path in self._observed():
            self._read_observed(path)
        logs = self._files("events", "*.log") if now.runtime in APART else []
        logged = {path.stem: _size(path) for path in logs}
        if now.phase == "preparing" and logged:  # nobody looks into processes, so nobody says that they have begun
            now = msgspec.structs.replace(now, phase="running")
        abandoned = _abandoned(now)
        last = self.seen.certified.last
        known = now.certificate if now.certificate != Certificate() or last is None else _certificate(last)
        return View(
            self.folder.name,
            "broken off" if abandoned and now.phase != "failed" else now.phase,
            "Its process is gone; this is what it had written." if abandoned and not now.reason else now.reason,
            now=now,
            curve=self.seen.curve(),
            looks=self.seen.looks.count,
            damaged=self.tail.damaged,
            certificate=known,
            certified_s=last.time_s if last is not None else None,
            logged=logged,
            news_s=_changed_s(self.folder / LIVE_FILE, self.folder / CURVE_FILE, *self._observed()),
        )

    def _begin_anew(self, run: str) -> None:
        self.run, self.seen, self.observed, self.snapshots = run, Looks(), {}, {}
        self.tail.restart()

    def _read_looks(self) -> None:
        anew, lines = self.tail.lines()
        if anew:
            self.seen = Looks()
        for line in lines:
            try:
                self.seen.add(msgspec.json.decode(line, type=CurveRow))
            except msgspec.DecodeError:
                self.tail.damaged += 1

    def _read_observed(self, path: Path) -> None:
        """Certificates of a process; one that was started again may tell of a snapshot a second time."""
        tail = self.observed.setdefault(path, Tail(path))
        for line in tail.lines()[1]:
            try:
                at_s, value = msgspec.json.decode(line, type=tuple[float, dict[str, Any]])
                row = CurveRow(at_s, value["passes"], 0, value["objective"], value["gradient_norm"], value["gap"])
                snapshot = int(value["snapshot"])
            except (msgspec.DecodeError, KeyError, TypeError, ValueError):
                self.tail.damaged += 1
                continue
            if snapshot > self.snapshots.get(path, -1):
                self.snapshots[path] = snapshot
                self.seen.add(row)


def _certificate(row: CurveRow) -> Certificate:
    return Certificate(row.gradient_norm, row.gap if row.gap is not None and isfinite(row.gap) else None)


def _size(path: Path) -> int:
    mark = file_mark(path)
    return mark[1] if mark is not None else 0


def _changed_s(*paths: Path) -> float | None:
    times = [mark[2] for mark in map(file_mark, paths) if mark is not None]
    return max(times) / 1e9 if times else None


def _abandoned(now: Now) -> bool:
    """Whether the process that wrote this is known to be gone; of another machine's nothing is known."""
    if now.host != socket.gethostname() or now.process <= 0:
        return False
    try:
        os.kill(now.process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _dead(now.process)


def _dead(process: int) -> bool:
    """Whether a process that the system still lists has ended, and only waits for its parent to notice."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
