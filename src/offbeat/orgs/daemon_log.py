"""The daemon's log: lines for people, or one JSON object a line for programs; on standard error or in files.

Each line says whose log it is, and which run and peer it is about: as told by `extra`, or by the `about` around it.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from offbeat.orgs.discreet import OWNER_TEXT_MOST, printable

FILE_BYTES = 10 * 2**20
FILES_KEPT = 10
WHEN = "%Y-%m-%dT%H:%M:%S%z"
ABOUT = ("run", "peer")
_about: ContextVar[dict[str, str]] = ContextVar("about")


@contextmanager
def about(**what: str) -> Iterator[None]:
    """What this thread logs in here is about this run, or this peer."""
    before = _about.set({**_about.get({}), **what})
    try:
        yield
    finally:
        _about.reset(before)


def _told_about(record: logging.LogRecord) -> dict[str, str]:
    found = {key: str(getattr(record, key, "") or _about.get({}).get(key, "")) for key in ABOUT}
    return {key: value for key, value in found.items() if value}


class JsonLines(logging.Formatter):
    """`party` says whose log it is, where many are collected in one place."""

    def __init__(self, party: str = "") -> None:
        super().__init__()
        self._party = party

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record, WHEN),
            "level": record.levelname.lower(),
            "from": record.name,
            **({"party": self._party} if self._party else {}),
            **_told_about(record),
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class PlainLines(logging.Formatter):
    """A message may quote a peer: it stays on one line, and no character of it moves a cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        more = ", ".join(f"{key} {value}" for key, value in _told_about(record).items() if value not in record.message)
        return printable(f"{line} [{more}]" if more else line, OWNER_TEXT_MOST)


class _OwnersFiles(RotatingFileHandler):
    """Every file, the fresh one after a full one too, is made for its owner alone."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding=self.encoding, write_through=True)


def write_log(
    target: TextIO | Path, *, verbose: bool = False, as_json: bool = False, party: str = "", size: int = FILE_BYTES
) -> None:
    """Runs, phases, peers lost and back and refusals are always logged; `verbose` adds what helps to find a fault. A
    file is its owner's alone; a full one becomes PATH.1, the one before PATH.2, and ten are kept."""
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler: logging.Handler = _OwnersFiles(target, maxBytes=size, backupCount=FILES_KEPT, encoding="utf-8")
    else:
        handler = logging.StreamHandler(target)
    plain = PlainLines(f"%(asctime)s %(levelname)s {party or '%(name)s'}: %(message)s", WHEN)
    handler.setFormatter(JsonLines(party) if as_json else plain)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("offbeat").setLevel(logging.DEBUG if verbose else logging.INFO)
