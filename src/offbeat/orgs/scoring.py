"""A party's shares of scores for rows named by tokens: from its table as it is now, its kept block, and its ledger."""

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Floats, Matrix
from offbeat.jobs.organisations import OrgJob
from offbeat.learning.grid import round_rows
from offbeat.orgs.durable import append_line, locked, read_lines
from offbeat.orgs.keyed_noise import KeyedNoise
from offbeat.orgs.party_config import Home
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.rows import OwnModel
from offbeat.orgs.tables import KeptTable
from offbeat.privacy.embedding import PrivateEmbedding

if TYPE_CHECKING:
    from offbeat.orgs.runs import Run

log = logging.getLogger("offbeat.party")


def part_scores(
    job: OrgJob,
    home: Home,
    model: OwnModel,
    block: Matrix,
    tokens: Sequence[bytes],
    secret: bytes,
    given: "GivenScores",
) -> Floats:
    """This party's part of the scores of some prepared rows, named by tokens; in private mode clipped and noisy."""
    from offbeat.orgs.train_embedding import network_scores, own_private_mode

    if model.network is None:
        scores, bias = model.products(block), model.weights[..., -1]
    else:
        bias = model.weights[..., 0]
        scores = network_scores(job, home.name, home.config.data.shape, model.network, float(bias), block)
    private = own_private_mode(job)
    if private is None:
        return scores
    return bias + given.once(tokens, noisy_scores(private, scores - bias, tokens, secret))


def noisy_scores(private: PrivateEmbedding, parts: Floats, tokens: Sequence[bytes], secret: bytes) -> Floats:
    """One embedding of each record, which its budget has kept back for this. The noise follows from the record's token
    and columns: should a record come twice with other columns, the second noise is another one."""
    whole, source = round_rows(parts[:, None], private.grid)[:, 0], KeyedNoise(secret, "scores")
    noise = [
        int(private.grid_noise.draw(source.stream(0, token + int(value).to_bytes(8, "big", signed=True)), 1)[0])
        for token, value in zip(tokens, whole, strict=True)
    ]
    return np.asarray((whole + np.array(noise, dtype=np.int64)) * private.grid.step, dtype=np.float64)


class GivenScores:
    """The one noisy score that each record of a run has had, in a file of the run's private folder. A record keeps it
    for ever, also when its columns have changed since: its budget pays for one."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def once(self, tokens: Sequence[bytes], scores: Floats) -> Floats:
        """These scores, or for each record the one that it was given before; on the disk before any is used."""
        with locked(self._file.with_suffix(".lock")):
            before = {name: value for line in read_lines(self._file)[0] for name, value in line.items()}
            names = [token.hex() for token in tokens]
            fresh = {name: float(score) for name, score in zip(names, scores, strict=True) if name not in before}
            if fresh:
                append_line(self._file, fresh)
        return np.array([before.get(name, fresh.get(name)) for name in names], dtype=np.float64)


class TableScores:
    """Looks rows up by token; every row that enters a sum is counted in the owner's ledger, and held to the cap."""

    def __init__(
        self, home: Home, run: "Run", kept: KeptTable, model: OwnModel, ledger: RowLedger, *, what: str, asker: str
    ) -> None:
        self._home, self._run, self._kept, self._model = home, run, kept, model
        self._ledger, self._asker = ledger, asker
        self._what = f"{what}-{secrets.token_hex(4)}"  # whoever asks chose the name: it may come twice

    def scores(self, tokens: Sequence[bytes]) -> tuple[Floats, NDArray[np.bool_]]:
        table, model = self._kept.table, self._model
        rows = self._kept.rows_of(list(tokens), self._run.own.salt)
        known = self._counted(table.ids, rows, tokens)
        outputs = self._run.job.loss.outputs
        values = np.zeros(len(tokens) if outputs == 1 else (len(tokens), outputs))
        if known.any():
            chosen = [token for token, knows in zip(tokens, known, strict=True) if knows]
            private = self._run.job.embedding.epsilon is not None
            block, secret = model.block(table, rows[known]), self._run.own.secret("scores") if private else b""
            values[known] = part_scores(self._run.job, self._home, model, block, chosen, secret, self._run.own.given)
        who = {"run": self._run.run, "peer": self._asker}
        log.debug("%d of %d rows scored for %s", known.sum(), len(tokens), self._asker, extra=who)
        return values, known

    def _counted(self, ids: NDArray[Any], rows: NDArray[np.int64], tokens: Sequence[bytes]) -> NDArray[np.bool_]:
        """Which rows may be answered. Every answer is a sum of its own, also to the same question under another roster.
        A row that the run's parties do not share is answered at its cap as if it were lacking: whoever is refused would
        know that it is here."""
        asked, first, times = np.unique(rows[rows >= 0], return_index=True, return_counts=True)
        named = [tokens[place] for place in np.flatnonzero(rows >= 0)[first]]
        counted = self._ledger.use(
            ids[asked].tolist(),
            self._run.job.loss.outputs * times.astype(np.int64),
            what=self._what,
            asker=self._asker,
            who=self._home.name,
            cap=self._home.config.policy.row_cap,
            shared=lambda: self._shared(named),
            once=False,
        )
        if not counted.all():
            log.warning("%s: %d rows are at their row_cap, and were left out", self._what, int((~counted).sum()))
        return np.isin(rows, asked[counted])

    def _shared(self, tokens: Sequence[bytes]) -> NDArray[np.bool_]:
        """Which of these rows the run's parties have found to be common."""
        aligned = self._run.own.kept("alignment")
        common = frozenset(aligned["tokens"]) if aligned is not None else frozenset()
        return np.array([token in common for token in tokens], np.bool_)
