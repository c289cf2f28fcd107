"""This party's table as its daemon keeps it: read once for each version of the file, with its rows found by token.

A prediction of one row then costs one row, not the table. The digest says which version was read: a run keeps the
digest of the table it was accepted for, and refuses to go on with another.
"""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.data.table import Table
from offbeat.errors import BadData, Refused
from offbeat.orgs.party_config import Home
from offbeat.orgs.rows import load_table
from offbeat.orgs.tokens import IdColumn, id_column

INDEXES_KEPT = 4
READS_MOST = 5
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class KeptTable:
    """One version of the table. Columns of tokens are made when a salt is first asked for, and the last few kept."""

    table: Table
    digest: str
    _columns: "OrderedDict[bytes, IdColumn]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def column(self, salt: bytes) -> IdColumn:
        with self._lock:
            found = self._columns.get(salt)
            if found is None:
                found = self._columns[salt] = id_column(self.table.ids, salt)
            self._columns.move_to_end(salt)
            while len(self._columns) > INDEXES_KEPT:
                self._columns.popitem(last=False)
            return found

    def rows_of(self, tokens: list[bytes], salt: bytes) -> NDArray[np.int64]:
        """The row of each token, -1 where there is none."""
        return self.column(salt).rows_of(tokens)


class OwnTables:
    """The party's file, read again only when it or its settings have changed. One per daemon; thread-safe."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._version: Any = None
        self._kept: KeptTable | None = None

    def current(self) -> KeptTable:
        with self._lock:
            for _ in range(READS_MOST):
                version = self._seen()
                if self._kept is not None and version == self._version:
                    return self._kept
                self._kept, self._version = KeptTable(load_table(self._home), self._digest()), version
        raise BadData(f"{self._home.data_file} changes all the time; write it to another file and rename that.")

    def as_accepted(self, digest: str, run: str) -> KeptTable:
        """The table, if it is still the one with which a run was accepted."""
        kept = self.current()
        if kept.digest != digest:
            raise Refused(
                f"'{self._home.name}' has another table, or other settings for it, than when it accepted run '{run}': "
                "its rows could meet the wrong rows of the others. Put the old file back, or submit the job again."
            )
        return kept

    def _seen(self) -> Any:
        """What changes when the file does. A missing file is for the reader to complain about."""
        file, settings = self._home.data_file, self._settings()
        if not file.is_file():
            return file, settings
        stat = file.stat()
        return file, settings, stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _settings(self) -> bytes:
        """What decides which cells are read; where the file lies does not."""
        config = self._home.config
        return msgspec.json.encode((msgspec.structs.replace(config.data, file=""), config.policy.columns_never))

    def _digest(self) -> str:
        digest = hashlib.sha256(self._settings())
        with self._home.data_file.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()
