"""This party's part in the sessions of one run: alignment, training, test, predictions; the same after a restart.

private/<run>/   salt, nonce, aligned rows, this party's block: never leaves the owner
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Floats
from offbeat.data.table import Table
from offbeat.errors import BadData, BadInput, Refused
from offbeat.jobs.organisations import OrgJob, read_job
from offbeat.orgs.align_psi import Aligner
from offbeat.orgs.durable import read_secret
from offbeat.orgs.guards import Reserve, WatchedRows
from offbeat.orgs.kept_alignments import tokens_in_order
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy import refused_code
from offbeat.orgs.predict import Predictor
from offbeat.orgs.rows import OwnModel, OwnRows, read_model
from offbeat.orgs.scoring import GivenScores, part_scores
from offbeat.orgs.tokens import IdColumn, tokens_of
from offbeat.orgs.train import OwnLinear, sums_of
from offbeat.orgs.train_embedding import OwnEmbedding
from offbeat.runtime.checkpoint import read_checkpoint
from offbeat.runtime.grpc.identity import Identity

OwnTraining = OwnLinear | OwnEmbedding
"""One party's side of a training: the party behind its owner's guard, and what may be told of it."""


class OwnSessions:
    """Builds one party of each session of a run, from its owner's folder and secrets alone."""

    def __init__(self, home: Home, identity: Identity, run: str, job: OrgJob) -> None:
        self.home, self.identity, self.run, self.job = home, identity, run, job
        self.folder, self.private = home.runs / run, home.private / run
        self.given = GivenScores(self.private / "scores.jsonl")

    @property
    def salt(self) -> bytes:
        return read_secret(self.private / "salt")

    def secret(self, purpose: str) -> bytes:
        """This party's own secret for one purpose of this run; the same after a restart, another in a run that only
        has the same name."""
        nonce = read_secret(self.private / "nonce")
        return self._key().derive(f"{purpose} {self.private.name} {nonce.hex()}")

    def _key(self) -> Identity:
        """The key that the run began with: another would draw other masks."""
        kept = self.private / "key-mark"
        mark = kept.read_text() if kept.is_file() else self.identity.mark
        return self.identity if mark == self.identity.mark else self.home.key_of(mark)

    def kept(self, name: str) -> dict[str, Any] | None:
        return read_checkpoint(self.private, name)

    @property
    def taken_over(self) -> str:
        """The run whose alignment this one uses; nothing if it makes its own."""
        begun = self.kept("begun")
        return str(begun.get("aligned", "")) if begun is not None else ""

    def aligner(self, column: IdColumn) -> Aligner:
        job, imported, coin, begun = self.job, None, b"", self.kept("begun")
        assert begun is not None, "a run begins with everybody's number of ids"
        if job.rows.align == "import":
            imported = imported_order(self.home, job, self.salt)
        elif self.taken_over:
            offered = self.kept("offered")
            assert offered is not None, "an alignment that is taken over was offered by this party"
            imported, coin = tokens_in_order(column, offered["rows"]), offered["coin"]
        return Aligner(
            self.home.name,
            job.parties,
            job.labels_at[0],
            column,
            sizes=begun["ids"],
            least=begun["least"],
            secret=self.secret("alignment"),
            imported=imported,
            coin=coin,
        )

    def training(self, own: OwnRows, reserve: Reserve) -> OwnTraining:
        policy = self.home.config.policy
        watched = WatchedRows(self.home.name, own.tokens_train, reserve=reserve, cap=policy.row_cap)
        secret = self.secret("masks")
        if self.job.embeds:
            return OwnEmbedding(self.job, own, watched, secret=secret, shape=self.home.config.data.shape)
        if refused := refused_code(policy, self.job.method.algorithm):  # it may have changed since the proposal
            raise Refused(f"'{self.home.name}' does not build its party of {self.run}: {refused}.")
        start = begins_with(self.home, self.job)
        # Parties whose parts come of different histories give words that do not cancel, as in predictions.
        name = self.run if start is None else f"{self.run}/{start.told.hex()}"
        terms: Any = {"run": name, "secret": secret, "parties_least": policy.parties_least}
        return OwnLinear(self.job, own, watched, start=start, **terms)

    def tester(self, own: OwnRows) -> Predictor:
        """The held-out rows are scored together; the first label holder alone learns the scores."""
        model = read_model(self.private, "model")
        secret = self.secret("scores")
        scores = part_scores(self.job, self.home, model, own.test, own.tokens_test, secret, self.given)
        asker = self.job.labels_at[0]
        return Predictor(
            self.home.name,
            self.job.parties,
            asker,
            FixedScores(own.tokens_test, scores),
            run=f"{self.run}/test/{model.told.hex()}",  # parties with another history give words that do not cancel
            secret=self.secret("test"),
            sums=sums_of(self.job, self.home.config.policy.parties_least),
            tokens=own.tokens_test if self.home.name == asker else (),
            rows=len(own.tokens_test),
            outputs=self.job.loss.outputs,
        )


def begins_with(home: Home, job: OrgJob) -> OwnModel | None:
    """This party's part of the model that a job begins with, if it names one. It must be a model of the same parties:
    fewer would tell the part of whoever is left out, and others have no right to it."""
    if not job.method.start:
        return None
    try:
        found = read_model(home.private / job.method.start, "model")
        before = read_job(home.runs / job.method.start / "job.toml")
    except BadInput:
        before = None
    if before is None or set(before.parties) != set(job.parties):
        raise Refused(
            f"the job begins with the model of run '{job.method.start}', of which '{home.name}' has kept no part. Name "
            "a run of the same parties that ended well at all of them, or leave `start` out."
        )
    if job.method.label_dp_epsilon is not None and before.method.label_dp_epsilon is None:
        raise Refused(
            f"the job answers labels at random, and begins with the model of run '{job.method.start}', which has "
            "learned from the labels themselves. Begin with a run that answered them too, or leave `start` out."
        )
    if not found.told and found.network is None:
        raise Refused(
            f"run '{job.method.start}' ended at '{home.name}' without a model that all parties have kept; leave "
            "`start` out."
        )
    if found.network is not None:
        raise Refused(
            f"the part of '{home.name}' in run '{job.method.start}' is a network; `start` is for linear models."
        )
    return found


def imported_order(home: Home, job: OrgJob, salt: bytes) -> list[bytes]:
    """The tokens of an alignment that was computed elsewhere, in its order."""
    path: Path = home.folder / f"{job.name}.ids"
    if not path.is_file():
        raise BadData(f"the job imports an alignment: expected one id per line, in the common order, in {path}.")
    return tokens_of(path.read_text(encoding="utf-8").split("\n")[:-1], salt)


def ids_of(tokens: Sequence[bytes], table: Table, aligned: dict[str, Any]) -> list[Any]:
    """The ids of some aligned rows, by their tokens."""
    position = dict(zip(aligned["tokens"], aligned["rows"].tolist(), strict=True))
    return [table.ids[position[token]] for token in tokens]


class FixedScores:
    """Scores that are known already, by token."""

    def __init__(self, tokens: Sequence[bytes], values: Floats) -> None:
        self._position = {token: i for i, token in enumerate(tokens)}
        self._values = values

    def scores(self, tokens: Sequence[bytes]) -> tuple[Floats, NDArray[np.bool_]]:
        places = [self._position.get(token, -1) for token in tokens]
        known = np.array(places) >= 0
        values = self._values[places] if len(self._values) else np.zeros(len(places))
        return np.where(known if values.ndim == 1 else known[:, None], values, 0.0), known
