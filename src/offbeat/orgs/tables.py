"""This party's table as its daemon keeps it: read once for each version of the file, or now and then from a database,
with its rows found by token.

A prediction of one row then costs one row, not the table. The digest says which version was read: a run keeps the
digest of the table it was accepted for, and refuses to go on with another.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.data.places import file_mark
from offbeat.data.sql import is_address
from offbeat.data.table import Table
from offbeat.errors import BadData, Refused
from offbeat.orgs.party_config import Home
from offbeat.orgs.rows import load_table
from offbeat.orgs.tokens import IdColumn, id_column

INDEXES_KEPT = 4
READS_MOST = 5
ASKED_AGAIN_S = 600
"""A database does not say when a table changes: it is read again at the latest after so long."""
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
                table = load_table(self._home)
                self._kept, self._version = KeptTable(table, self._digest(table)), version
        raise BadData(f"{self._home.source} changes all the time; write it to another file and rename that.")

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
        """What changes when the file does, or when a database is to be asked again. A missing file is for the reader to
        complain about."""
        file, settings = Path(self._home.source), self._settings()
        if is_address(self._home.source):
            return self._home.source, settings, int(time.monotonic() // ASKED_AGAIN_S)
        return file, settings, file_mark(file)

    def _settings(self) -> bytes:
        """What decides which cells are read; where the file lies does not."""
        config = self._home.config
        data = {**msgspec.structs.asdict(config.data), "file": ""}
        if config.data.table is None:  # files' digests are kept with runs of earlier versions
            del data["table"]
        return msgspec.json.encode((data, config.policy.columns_never))

    def _digest(self, table: Table) -> str:
        digest = hashlib.sha256(self._settings())
        if is_address(self._home.source):
            labels = None if table.labels is None else table.labels.astype(str)
            parts: Any = (table.ids.astype(str), table.features, labels, table.weights, table.exposure)
            for part in parts:  # cells are dense, as all frames become
                digest.update(np.ascontiguousarray(() if part is None else part).tobytes())
            digest.update(msgspec.json.encode((list(table.columns), table.levels)))
            return digest.hexdigest()
        with Path(self._home.source).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()
