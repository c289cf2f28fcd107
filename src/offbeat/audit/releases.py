"""The audit of runs that release embeddings (VAFL) or gradients (horizontal): every release has a number.

releases    each number was used for one value only; what was sent again had the same bytes
ledger      no party sent more releases than its ledger charged
attacks     what the clients of VAFL read of the labels or targets, and how often the server saw each row
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.algorithms.mapa import CLOUD
from offbeat.data.assemble import VerticalData
from offbeat.families.embedding import EmbeddingTraining
from offbeat.learning.embeddings import AdditiveHead
from offbeat.message.codec import Codec
from offbeat.metrics.record import RunRecord
from offbeat.party.contract import Broadcast, Effect, Event, Message, Received, Send

RELEASES = {"Upload": ("release", "number"), "Refreshed": ("release",), "PredictGiven": ("release",)}


class ReleaseWatch:
    """Follows every release by its number, and every derivative that came back."""

    def __init__(self, training: Any) -> None:
        self.training, self.codec = training, Codec(training.messages)
        self.sent: dict[str, dict[int, bytes]] = {}  # by party: number -> fingerprint
        self.violations: list[str] = []
        self.repeated = 0
        self.uploads = 0  # that the cloud has received
        self.rows_of: dict[tuple[str, int], np.ndarray] = {}
        self.seen: dict[str, Counter[int]] = {}  # by client: row -> releases of it
        self.derivatives: dict[str, dict[int, np.ndarray]] = {}  # by client: row -> first derivative

    def handled(self, name: str, event: Event, effects: Sequence[Effect]) -> None:
        if type(event) is Received:
            self._took(name, event.body)
        for effect in effects:
            if isinstance(effect, Send | Broadcast) and type(effect.body).__name__ in RELEASES:
                self._released(name, effect.body)

    def _took(self, name: str, body: Any) -> None:
        self.uploads += name == CLOUD and type(body).__name__ == "Upload"
        if type(body).__name__ == "Gradient":
            rows = self.rows_of.get((name, body.release))
            kept = self.derivatives.setdefault(name, {})
            for row, derivative in zip(() if rows is None else rows, body.derivative, strict=False):
                kept.setdefault(int(row), derivative)

    def findings(self, record: RunRecord) -> dict[str, Any]:
        training = self.training
        if isinstance(training, EmbeddingTraining):
            epsilon = training.job.label_dp_epsilon
            attacks = embedding_attacks(training.data, training.server.head, epsilon, self)
        else:
            attacks = [_uploads_learned(record, self.uploads)]
        return {"releases": release_findings(record, self), "attacks": attacks}

    def _released(self, name: str, body: Message) -> None:
        kind = type(body).__name__
        number = next(int(getattr(body, key)) for key in RELEASES[kind] if hasattr(body, key))
        fingerprint = hashlib.blake2b(self.codec.encode(body), digest_size=16).digest()
        before = self.sent.setdefault(name, {}).get(number)
        if before is None:
            self.sent[name][number] = fingerprint
            self._note_rows(name, number, body)
        elif before == fingerprint:
            self.repeated += 1
        else:
            self.violations.append(f"{name} used release number {number} for two different values")

    def _note_rows(self, name: str, number: int, body: Message) -> None:
        rows = getattr(body, "rows", None)
        if rows is not None:
            self.rows_of[name, number] = rows
            self.seen.setdefault(name, Counter()).update(rows.tolist())


def release_findings(record: RunRecord, watch: ReleaseWatch) -> dict[str, Any]:
    """Whether numbers were used once, and whether the ledgers cover what was sent."""
    violations = list(watch.violations)
    for name, stated in record.privacy.items():
        by_row = watch.seen.get(name)  # a client charges every row by itself, an edge every release
        charged = int(stated["releases_most" if by_row else "releases"])
        sent = max(by_row.values()) if by_row else len(watch.sent.get(name, {}))
        if charged < sent:
            what = "releases of one row" if by_row else "releases"
            violations.append(f"{name} sent {sent} {what} and its ledger charged {charged}")
    return {
        "by_party": {name: len(numbers) for name, numbers in sorted(watch.sent.items())},
        "repeated_with_the_same_bytes": watch.repeated,
        "used_once": not violations,
        "violations": violations,
    }


def _uploads_learned(record: RunRecord, uploads: int) -> dict[str, Any]:
    """What the cloud holds of the edges' rows. Recovering those takes an attack made for the model: none is tried."""
    if record.private:
        bound = "the ledgers bound what they tell of any one row; `offbeat bench edge-audit` attacks such releases"
    else:
        bound = "nothing bounds what they tell; `offbeat reproduce mapa-fig4` recovers pictures from such uploads"
    finding = f"received {uploads:,} uploads made from the edges' rows: {bound}. No attack was tried here"
    return {"attack": "uploads", "party": CLOUD, "finding": finding, "uploads": uploads}


def embedding_attacks(
    data: VerticalData, head: Any, label_dp_epsilon: float | None, watch: ReleaseWatch
) -> list[dict[str, Any]]:
    """What each client reads of the labels or targets, and how often the server saw one row of each client."""
    found = [_labels_of(name, data, head, label_dp_epsilon, watch) for name in data.names]
    for name in data.names:
        times = watch.seen.get(name)
        if times:
            mean, most = sum(times.values()) / len(times), max(times.values())
            finding = f"showed the server {mean:.1f} embeddings of each row on average, {most} at most"
            found.append({"attack": "embeddings", "party": name, "finding": finding, "mean": mean, "most": most})
    return [row for row in found if row]


def _labels_of(
    name: str, data: VerticalData, head: Any, label_dp_epsilon: float | None, watch: ReleaseWatch
) -> dict[str, Any]:
    kept = watch.derivatives.get(name, {})
    if not kept:
        return {}
    rows = np.fromiter(kept, dtype=np.int64)
    derivatives = np.stack([kept[int(row)] for row in rows])
    if data.task == "regression":
        return _targets_of(name, data, head, rows, derivatives)
    guess = _guess(derivatives, head, data)
    if guess is None:
        return {"attack": "labels", "party": name, "finding": "received derivatives; no attack on these was tried"}
    share = f"{len(rows):,} of {data.rows:,} labels"
    if label_dp_epsilon is not None:
        return {"attack": "labels", "party": name, "finding": f"reads {share}, which were answered at random first"}
    truth = data.y_train[rows] if data.task == "multiclass" else (data.y_train[rows] > 0).astype(int)
    right = float(np.mean(guess == truth))
    if not isinstance(head, AdditiveHead):
        right = max(right, 1 - right)  # which of the two groups is which, a guess at the base rate tells
    how = "the derivatives' signs" if isinstance(head, AdditiveHead) else "the derivatives' main direction"
    finding = f"reads {share} from {how}, {right:.1%} of them right"
    return {"attack": "labels", "party": name, "finding": finding, "right": right}


def _targets_of(name: str, data: VerticalData, head: Any, rows: np.ndarray, derivatives: np.ndarray) -> dict[str, Any]:
    """Numbers: the first derivative of a row is what was predicted of it so far, little, less its target. Behind
    another head it is a multiple of that, along a direction of the head's."""
    guess = -derivatives[:, 0] if isinstance(head, AdditiveHead) else _along_main_direction(derivatives)
    truth = np.asarray(data.y_train[rows], dtype=np.float64)
    share = f"{len(rows):,} of {data.rows:,} targets"
    if min(np.std(guess), np.std(truth)) == 0:
        return {"attack": "targets", "party": name, "finding": f"reads {share}: all are alike"}
    alike = abs(float(np.corrcoef(guess, truth)[0, 1]))  # a guess at one target tells the sign
    how = "the first derivatives" if isinstance(head, AdditiveHead) else "the first derivatives' main direction"
    finding = f"reads {share} from {how}, with a correlation of {alike:.3f} to the true ones"
    return {"attack": "targets", "party": name, "finding": finding, "correlation": alike}


def _along_main_direction(derivatives: np.ndarray) -> np.ndarray:
    _, _, directions = np.linalg.svd(derivatives, full_matrices=False)
    return np.asarray(derivatives @ directions[0])


def _guess(derivatives: np.ndarray, head: Any, data: VerticalData) -> np.ndarray | None:
    """An additive head's derivative is expected minus true: its negative entry is the label. For other heads and two
    classes: rows fall into two groups along the derivatives' first principal direction."""
    if isinstance(head, AdditiveHead):
        found = derivatives[:, 0] < 0 if head.outputs == 1 else np.argmin(derivatives, axis=1)
        return np.asarray(found, dtype=np.int64)
    if data.task != "classification":
        return None
    return np.asarray(_along_main_direction(derivatives) > 0, dtype=np.int64)


def release_text(found: Mapping[str, Any]) -> list[str]:
    """The findings on releases as lines of a page."""
    counts = ", ".join(f"{name} {count:,}" for name, count in found["by_party"].items())
    lines = ["", "Releases", f"  By party: {counts or 'none'}."]
    if found["used_once"]:
        again = f"{found['repeated_with_the_same_bytes']:,} messages were sent again with the same bytes"
        lines.append(f"  Every release number stands for one value; {again}.")
    return lines + [f"  VIOLATION: {violation}" for violation in found["violations"]]
