"""Alignments that need not be made again: the same parties, the same leader, and nobody's table has changed.

A party keeps the order of its own rows and the coin that was tossed over them, with the digest of the table it was made
from and the name of the run that made it: jobs over the same rows are tested on the same ones. Where all parties name
the same run, its order is taken as an imported one would be: under the new run's tokens, and with every party comparing
every digest. If one of them names another or none, ids are matched anew.

    private/alignments/<digest of parties and leader>    the last one of each; so many in all

Runs that go on side by side keep theirs one after the other. A damaged one is removed: it can be made again.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadData
from offbeat.jobs.organisations import OrgJob
from offbeat.orgs.durable import locked
from offbeat.orgs.tokens import IdColumn
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint

log = logging.getLogger("offbeat.party")

KEPT_MOST = 16


class KeptAlignments:
    def __init__(self, private: Path) -> None:
        self._folder, self._lock = private / "alignments", private / "alignments.lock"

    def note(self, run: str, job: OrgJob, table_digest: str, rows: NDArray[np.int64], coin: bytes) -> None:
        with locked(self._lock):
            self._read(_key(job))  # which removes it if it is damaged
            write_checkpoint(self._folder, _key(job), {"run": run, "digest": table_digest, "rows": rows, "coin": coin})
            by_age = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
            names = list(dict.fromkeys(path.name.split(".")[0] for path in reversed(by_age)))
            for path in by_age:
                if path.name.split(".")[0] in names[KEPT_MOST:]:
                    path.unlink()

    def found(self, job: OrgJob, table_digest: str) -> dict[str, Any] | None:
        """`run`, `rows` and `coin` of an alignment that still holds at this party."""
        if job.rows.align != "psi":
            return None
        with locked(self._lock):
            kept = self._read(_key(job))
        return kept if kept is not None and kept["digest"] == table_digest and kept.get("coin") else None

    def _read(self, key: str) -> dict[str, Any] | None:
        try:
            return read_checkpoint(self._folder, key)
        except BadData as problem:
            log.warning("a kept alignment is removed, and ids are matched anew: %s", problem)
            for path in self._folder.glob(f"{key}.*"):
                path.unlink()
            return None


def _key(job: OrgJob) -> str:
    return hashlib.sha256(repr((job.labels_at[0], sorted(job.parties))).encode()).hexdigest()[:32]


def tokens_in_order(column: IdColumn, rows: NDArray[np.int64]) -> list[bytes]:
    """The tokens of these rows of the table, under this run's salt."""
    by_row = dict(zip(column.rows.tolist(), column.tokens, strict=True))
    return [by_row[row] for row in rows.tolist()]
