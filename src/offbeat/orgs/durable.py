"""Files that survive a power cut, and room for them on the disk.

A file is written beside the old one, forced to the disk, then renamed over it. Without room nothing new is begun, and
what is under way waits until there is some again.
"""

import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from offbeat.errors import BadData, BadInput, DiskFull, Refused
from offbeat.runtime.checkpoint import replace_durably
from offbeat.runtime.grpc.identity import write_private

SECRET_BYTES = 32


def now_text() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def write_durably(path: Path, content: bytes, *, new_folder: bool = True) -> None:
    """Replace a file as a whole. Only its owner can read it."""
    if new_folder:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_durably(path, content)
    _force_folder(path.parent)


def write_secret(path: Path, secret: bytes) -> None:
    """A secret of SECRET_BYTES and a check of it: with a damaged one, nothing would fit what the others hold."""
    write_private(path, secret + _check(secret))


def read_secret(path: Path) -> bytes:
    content = path.read_bytes()
    secret, check = content[:SECRET_BYTES], content[SECRET_BYTES:]
    if len(secret) < SECRET_BYTES or check not in (b"", _check(secret)):  # none: of an earlier version
        raise BadData(f"{path} is damaged: expected what this run began with. Restore the file from a backup.")
    return secret


def _check(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()[:8]


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file; when this returns, the line survives a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = not path.exists()
    with path.open("a+b") as file:
        torn = file.tell() and _last_byte(file) != b"\n"  # a power cut left half a line: it stays alone
        _force(file, (b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")
    path.chmod(0o600)
    if fresh:
        _force_folder(path.parent)


def read_lines(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """(the whole lines from an offset on, where they end); what a power cut left of a line is passed over."""
    if not path.is_file():
        return [], 0
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read()
    end = content.rfind(b"\n") + 1
    lines = enumerate(content[:end].split(b"\n"), 1)
    return [line for number, raw in lines if (line := _line(raw, path, number)) is not None], offset + end


def _line(raw: bytes, path: Path, number: int) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except ValueError:
        if raw.endswith(b"}"):  # half a line has no end, and nothing was done by it
            raise BadData(f"line {number} of {path} is damaged; restore the file from a backup.") from None
        return None
    return line if isinstance(line, dict) else None


class NewLines:
    """Reads what was added to a file of lines since the last look. One that was written anew, which its first line
    says (`written_anew`), is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path, self._head, self.read_to = path, b"", 0

    def new(self) -> tuple[list[dict[str, Any]], bool]:
        """(the new lines, whether they are all that count from now on)."""
        head, size = b"", 0
        if self._path.is_file():
            with self._path.open("rb") as file:
                head, size = _mark(file.readline(HEAD_BYTES)), os.fstat(file.fileno()).st_size
        anew = head != self._head or size < self.read_to
        if anew:
            self._head, self.read_to = head, 0
        lines, self.read_to = read_lines(self._path, self.read_to)
        return [line for line in lines if WRITTEN_ANEW not in line], anew


WRITTEN_ANEW = "written_anew"
HEAD_BYTES = 64


def _mark(first: bytes) -> bytes:
    return first if first.startswith(b'{"' + WRITTEN_ANEW.encode()) else b""


def write_lines_anew(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file of lines, so that whoever reads along by `NewLines` notices."""
    first = {WRITTEN_ANEW: secrets.token_hex(8)}
    write_durably(path, b"".join(json.dumps(line).encode() + b"\n" for line in (first, *lines)))


def _last_byte(file: BinaryIO) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


@contextmanager
def locked(path: Path, complaint: str = "") -> Iterator[None]:
    """Hold a lock file. With a complaint, whoever comes second is refused by it; without one, it waits."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if complaint else 0))
        except BlockingIOError:
            raise BadInput(complaint) from None
        yield


def _force(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _force_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


log = logging.getLogger("offbeat.party")

ROOM_BYTES = 64 * 2**20
LOOK_EVERY_S = 2.0


def free_bytes(folder: Path) -> int:
    """What is free where this folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def refuse_without_room(folder: Path, who: str) -> None:
    if free_bytes(folder) < ROOM_BYTES:
        log.error("%s has %d MB left on its disk: nothing new is begun", who, free_bytes(folder) // 2**20)
        raise Refused(f"'{who}' has too little room on its disk to begin anything new; ask again later.")


def wait_for_room(folder: Path, run: str, within_s: float, stopped: Callable[[], str]) -> None:
    """Return when there is room again; raise `DiskFull` after so long. The others wait for this party meanwhile."""
    log.error("run %s is paused: the disk of %s is full; it goes on by itself once there is room", run, folder)
    end_s, never = time.monotonic() + within_s, threading.Event()
    while free_bytes(folder) < ROOM_BYTES and not stopped():
        if time.monotonic() > end_s:
            raise DiskFull(
                f"the disk of {folder} has been full for {within_s:.0f} s; make room, and submit the job again."
            )
        never.wait(LOOK_EVERY_S)
    log.warning("run %s goes on: there is room on the disk again", run)
