"""Who may ask the scoring service: a token each, so many rows a day, so many calls a second.

private/callers.json           names, digests of tokens, limits; the tokens themselves are nowhere
private/callers/<day>.jsonl    rows taken on that day (UTC), written before they are asked for
"""

import hashlib
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from offbeat.data.places import file_mark
from offbeat.errors import BadInput, OffbeatError
from offbeat.names import did_you_mean
from offbeat.orgs.durable import NewLines, locked, write_durably
from offbeat.runtime.grpc.identity import check_name
from offbeat.settings import Settings

FILE = "callers.json"
DAYS_KEPT = 31
DAY_S = 86_400
BURST_S = 2.0
"""How many seconds' worth of calls may come at once."""


class Caller(Settings, frozen=True):
    name: str
    digest: str  # SHA-256 of the token
    rows_a_day: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    calls_a_second: Annotated[float, msgspec.Meta(gt=0)] = 20.0


class TooMuch(OffbeatError):
    """A caller has used up its quota, or calls too fast."""

    def __init__(self, message: str, again_s: float) -> None:
        super().__init__(message)
        self.again_s = again_s


class CallersFile:
    """The callers as the owner named them; read again when the file has changed."""

    def __init__(self, private: Path) -> None:
        self.path = private / FILE
        self._seen: object = ()
        self._callers: dict[str, Caller] = {}

    def all(self) -> list[Caller]:
        seen = file_mark(self.path)
        if seen != self._seen:
            self._callers, self._seen = {caller.digest: caller for caller in self._read()}, seen
        return list(self._callers.values())

    def with_token(self, token: str) -> Caller | None:
        self.all()
        return self._callers.get(digest_of(token))

    def new(self, name: str, rows_a_day: int, calls_a_second: float) -> str:
        """Add a caller; its token is returned, and kept nowhere."""
        if any(caller.name == check_name(name) for caller in self.all()):
            raise BadInput(f"there is a caller '{name}' already; remove it first, then its old token ends.")
        token = f"offbeat-{secrets.token_urlsafe(32)}"
        self._write([*self.all(), Caller(name, digest_of(token), rows_a_day, calls_a_second)])
        return token

    def remove(self, name: str) -> None:
        names = [caller.name for caller in self.all()]
        if name not in names:
            raise BadInput(f"there is no caller '{name}'. {did_you_mean(name, names)}")
        self._write([caller for caller in self.all() if caller.name != name])

    def _read(self) -> list[Caller]:
        if not self.path.is_file():
            return []
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[Caller])
        except msgspec.MsgspecError as problem:
            raise BadInput(
                f"{self.path} is not a list of callers as `offbeat caller new` writes it: {problem}."
            ) from None

    def _write(self, callers: list[Caller]) -> None:
        write_durably(self.path, msgspec.json.format(msgspec.json.encode(callers)))


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(slots=True)
class Bucket:
    """Calls that may still be made now; it fills with time."""

    calls: float
    seen_s: float


class Quotas:
    """What each caller has taken today, of all services over one home, and how fast it calls this one. Thread-safe."""

    def __init__(self, private: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = private / "callers", clock
        self._buckets: dict[str, Bucket] = {}
        self._day, self._lines = "", NewLines(self._folder)
        self._rows: Counter[str] = Counter()
        self._lock = threading.Lock()

    def called(self, caller: Caller) -> None:
        """Note a call, or refuse one that comes too fast."""
        now_s, most = self._clock(), max(1.0, caller.calls_a_second * BURST_S)
        with self._lock:
            bucket = self._buckets.setdefault(caller.name, Bucket(most, now_s))
            bucket.calls = min(most, bucket.calls + max(0.0, now_s - bucket.seen_s) * caller.calls_a_second)
            bucket.seen_s = now_s
            if bucket.calls < 1.0:
                again_s = (1.0 - bucket.calls) / caller.calls_a_second
                raise TooMuch(f"'{caller.name}' may call {caller.calls_a_second:g} times a second.", again_s)
            bucket.calls -= 1.0

    def take(self, caller: Caller, rows: int) -> int:
        """Write rows down as asked for; how many are left today is returned."""
        with self._lock, locked(self._folder / "lock"):
            self._today()
            left = caller.rows_a_day - self._rows[caller.name]
            if rows > left:
                until_s = DAY_S - self._clock() % DAY_S
                raise TooMuch(
                    f"'{caller.name}' may ask for {caller.rows_a_day:,} rows a day (UTC), has {max(left, 0):,} left "
                    f"and asks for {rows:,}.",
                    until_s,
                )
            self._note(caller.name, rows)
            return left - rows

    def left(self, caller: Caller) -> int:
        with self._lock:
            self._today()
            return max(0, caller.rows_a_day - self._rows[caller.name])

    def taken(self) -> Mapping[str, int]:
        with self._lock:
            self._today()
            return dict(self._rows)

    def _note(self, name: str, rows: int) -> None:
        """Into the file, but not forced to the disk: the ledgers of rows are, and they guard what leaves."""
        with self._file_of(self._day).open("ab") as file:
            file.write(json.dumps({"caller": name, "rows": rows}).encode() + b"\n")

    def _today(self) -> None:
        """Read what was taken since the last look, by another service too."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        if day != self._day:
            self._day, self._rows, self._lines = day, Counter(), NewLines(self._file_of(day))
            for old in sorted(self._folder.glob("*.jsonl"))[:-DAYS_KEPT]:
                old.unlink(missing_ok=True)
        for line in self._lines.new()[0]:
            self._rows[str(line["caller"])] += int(line["rows"])

    def _file_of(self, day: str) -> Path:
        return self._folder / f"{day}.jsonl"
