"""A party's privacy budget: one account of all that left about a person, over all jobs, and the labels' random answers.

The account keeps releases, not epsilons: they are composed as one sequence at the delta of the owner's policy, whatever
delta a job names. It is one for everybody in the table: a job is charged to each person, whether its row took part or
not, so nobody's loss is larger than what the account says. The whole plan of a job (training, test and one score of
each record) is written down before anything leaves, and stays.

Labels are answered at random once for each epsilon, column and state of that column, for ever: the answer for an id
comes from a secret of the owner, so that a second job shows the same answers and costs nothing. Another epsilon,
another column, or a column in which one label has changed is answered by new draws, and charged. Were the old draws
used for it, two answers would show who has changed. Noisy embeddings and noisy products are drawn anew in every run and
charged each time.

An edge site has one account too (`SiteAccount`), beside its key, whatever state folder a run has:

    ledger/account.json    what every run released, or may still release
    ledger/account.count   how many entries that has, so that an older copy is noticed
    <state>/<run>/NAME.reservation    which reservation a run's state belongs to

A run reserves its whole plan before it connects, and is settled at its end: what it did not send is free again. A run
that was killed keeps its reservation and goes on with it, from the same state folder. From another folder it is another
run: it reserves anew, and what the first one reserved stays spent.
"""

import hashlib
import json
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.data.holdout import id_text
from offbeat.data.matrix import Floats
from offbeat.errors import BadData, Refused
from offbeat.families.networks import private_mode
from offbeat.jobs.organisations import OrgJob
from offbeat.orgs.durable import SECRET_BYTES, append_line, locked, now_text, read_lines, write_durably
from offbeat.orgs.keyed_noise import WordsByName
from offbeat.privacy import accountant
from offbeat.privacy.accountant import PureRelease
from offbeat.privacy.label_response import private_targets
from offbeat.privacy.ledger import Account, Budget, Releases, from_plain, plain, together
from offbeat.privacy.products import release_within

POINTS_MOST = 30
LABELS, COLUMNS = "labels", "columns"


@dataclass(frozen=True)
class Charge:
    """What of a party leaves in a job. `releases`: None where it leaves without noise. `key`: what is charged once."""

    what: str
    releases: Releases | None
    key: str


def charges_of(job: OrgJob, me: str, run: str = "", column: str = "", digest: str = "") -> list[Charge]:
    """Of a party's labels and columns; the column of labels and its digest are known once the table is read."""
    epsilon, found = job.method.label_dp_epsilon, []
    if me in job.labels_at:
        key = f"labels {epsilon!r}" + (f" {column!r} {digest}" if digest else "")
        found.append(Charge(LABELS, None if epsilon is None else {PureRelease(epsilon): 1}, key))
    if job.embeds and job.embedding.epsilon is not None:
        found.append(Charge(COLUMNS, _embedding_plan(job), f"columns {run}"))
    elif job.method.product_epsilon is not None:
        release = release_within(job.method.product_epsilon, job.method.product_delta)
        found.append(Charge(COLUMNS, {release: 1}, f"columns {run}"))
    elif me not in job.labels_at:
        found.append(Charge(COLUMNS, None, f"columns {run}"))
    return found


def _embedding_plan(job: OrgJob) -> Releases:
    """All that one record can cost in a run: its uploads, its steps, the covariance where one is taken, and one
    embedding kept back for its score."""
    mechanism = private_mode(job.embedding, predictions_max=1)
    assert mechanism is not None
    return dict(mechanism.cost(mechanism.uploads_max + 1, mechanism.uploads_max).items())


class PrivacyLedger:
    """What was charged, in `private/ledger/privacy.jsonl`; how many lines that has, in `privacy.count` beside it, so
    that an older copy is noticed. One per daemon; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file, self._counted = folder / "privacy.jsonl", folder / "privacy.count"
        self._lock = threading.Lock()

    def after(self, charges: Sequence[Charge], delta: float) -> float:
        """The epsilon of all that was charged before and of these charges; what is paid for already adds nothing."""
        lines = self.history()
        new = [charge.releases for charge in charges if charge.releases and not _paid(lines, charge.key)]
        return composed(together(*(_releases(line) for line in lines), *new), delta)

    def spend(self, charges: Sequence[Charge], run: str, epsilon: float | None, delta: float, who: str) -> None:
        """Write it down before it is used, or refuse it all."""
        with self._lock, locked(self.folder / "privacy.lock"):
            lines = self.history()
            new = [charge for charge in charges if charge.releases and not _paid(lines, charge.key)]
            after = self.after(new, delta) if new and epsilon is not None else 0.0
            if epsilon is not None and after > epsilon:
                raise Refused(overspent(who, after, epsilon, delta))
            for charge in new:
                line = {"at": now_text(), "run": run, "what": charge.what, "key": charge.key}
                append_line(self._file, {**line, "releases": plain(charge.releases or {})})
            if new:
                write_durably(self._counted, str(len(lines) + len(new)).encode())

    def history(self) -> list[dict[str, Any]]:
        counted = _number_in(self._counted)  # first: a charge may come meanwhile
        lines = read_lines(self._file)[0]
        _refuse_older(self._file, len(lines), counted)
        return lines

    def secret(self) -> bytes:
        path = self.folder / "labels.secret"
        with self._lock:
            if not path.is_file():
                self._refuse_new_secret(path)
                write_durably(path, os.urandom(SECRET_BYTES))
            secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise BadData(
                f"{path} has {len(secret)} bytes instead of {SECRET_BYTES}: without the secret the labels' random "
                "answers could be undone. Restore it from a backup; a new one would answer every label anew."
            )
        return secret

    def _refuse_new_secret(self, path: Path) -> None:
        """Other answers to labels that were answered before would be charged to nobody."""
        if any(line.get("what") == LABELS for line in self.history()):
            raise BadData(
                f"{path} is gone, and labels were answered with it: a new one would answer every label anew, and two "
                "answers tell more than one. Restore it from a backup."
            )


def _paid(lines: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Before the table is read, a key of labels is an epsilon alone: then any column that was paid for will do."""
    return any(line.get("key") == key or str(line.get("key")).startswith(f"{key} ") for line in lines)


def _releases(line: Mapping[str, Any]) -> Releases:
    """Lines of an earlier version have an epsilon alone: it is composed as a pure one, which costs the most."""
    return from_plain(line["releases"]) if "releases" in line else {PureRelease(float(line["epsilon"])): 1}


def composed(releases: Releases, delta: float) -> float:
    """Their epsilon at this delta; pure ones alone are never worse than their sum."""
    found = accountant.epsilon(releases, delta)
    pure = [kind.epsilon * count for kind, count in releases.items() if isinstance(kind, PureRelease)]
    return min(found, sum(pure)) if len(pure) == len(releases) else found


def spent_so_far(lines: Sequence[Mapping[str, Any]], delta: float) -> list[tuple[float, float]]:
    """After each charge of a history: (seconds since the first, epsilon of all so far); of a long one, some of them."""
    places = (
        sorted({round(part * (len(lines) - 1) / (POINTS_MOST - 1)) for part in range(POINTS_MOST)}) if lines else []
    )
    at_s = [datetime.fromisoformat(str(line["at"])).timestamp() for line in lines]
    return [(at_s[place] - at_s[0], composed(together(*map(_releases, lines[: place + 1])), delta)) for place in places]


def overspent(who: str, after: float, epsilon: float, delta: float) -> str:
    return (
        f"'{who}' has a privacy budget of {epsilon:g} at delta {delta:g} over all jobs, and with this job {after:.4g} "
        "would be spent."
    )


def label_digest(column: str, ids: Sequence[object], labels: Sequence[object]) -> str:
    """Which labels these are: of which column, and the label of every id, in whatever order the file has them."""
    lines = sorted(f"{id_text(value)}\0{label!r}\n" for value, label in zip(ids, labels, strict=True))
    return hashlib.sha256(f"{column!r}\n".encode() + "".join(lines).encode()).hexdigest()


def private_labels(y: Floats, ids: Sequence[object], epsilon: float, secret: bytes, digest: str) -> Floats:
    """Labels of -1 and 1, answered at random and de-biased, the same for the same id in every job over the same labels
    (`digest`)."""
    names = [f"{epsilon!r} {digest} {id_text(value)}" for value in ids]
    truth = (y > 0).astype(np.float64)[:, None]
    return np.ascontiguousarray(private_targets(truth, epsilon, WordsByName(secret, names))[:, 0])


def _number_in(file: Path) -> int:
    try:
        return int(file.read_bytes()) if file.is_file() else 0
    except ValueError:
        raise BadData(f"{file} is damaged: expected a number. Restore the newest copy of its folder.") from None


def _refuse_older(file: Path, entries: int, counted: int) -> None:
    if entries < counted:
        raise BadData(
            f"{file} has lost {counted - entries} of {counted} charges: it was deleted, or an older copy was put back. "
            "Restore the newest copy of it."
        )


class SiteAccount:
    """The account in this folder; safe for several runs of a site at once."""

    def __init__(self, folder: Path) -> None:
        self._file, self._lock, self._counted = (folder / f"account.{kind}" for kind in ("json", "lock", "count"))

    def read(self) -> Account:
        counted = _number_in(self._counted)
        try:
            account = Account.restored(json.loads(self._file.read_bytes())) if self._file.is_file() else Account()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadData(f"{self._file} is damaged. Restore the newest copy of its folder.") from None
        _refuse_older(self._file, account.entries, counted)
        return account

    def reserve(self, run: str, planned: Releases, budget: Budget) -> Releases:
        """What this run may release, on the disk when this returns; nothing for a run that is over. Raises BudgetSpent
        where the plan and what all other runs released do not fit into the budget together."""
        with locked(self._lock):
            account = self.read()
            if run in account.runs and run not in account.open:
                return {}
            account = account.reserve(run, planned, budget)
            self._write(account)
            return account.runs[run]

    def settle(self, run: str, spent: Releases) -> None:
        with locked(self._lock):
            self._write(self.read().settle(run, spent))

    def _write(self, account: Account) -> None:
        write_durably(self._file, json.dumps(account.snapshot()).encode())
        write_durably(self._counted, str(account.entries).encode())


def reservation_name(state: Path, run: str, name: str) -> str:
    """The name under which the run whose state lies here has reserved, or will."""
    file = state / f"{name}.reservation"
    if not file.is_file():
        write_durably(file, f"{run} {secrets.token_hex(16)}".encode())
    return file.read_text(encoding="utf-8")
