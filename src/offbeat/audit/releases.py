"""The audit of runs that release embeddings (VAFL) or gradients (horizontal): every release has a number.

releases    each number was used for one value only; what was sent again had the same bytes
ledger      no party sent more releases than its ledger charged
attacks     what the clients of VAFL read of the labels or targets, and how often the server saw each row
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.data.assemble import VerticalData
from offbeat.learning.embeddings import AdditiveHead
from offbeat.message.codec import Codec
from offbeat.metrics.record import RunRecord
from offbeat.party.contract import Broadcast, Effect, Event, Message, Party, Received, Send
from offbeat.runtime.contract import Outcome

RELEASES = {"Upload": ("release", "number"), "Refreshed": ("release",), "PredictGiven": ("release",)}


@dataclass
class ReleaseWatch:
    """Sees every event of every party, and what followed."""

    codec: Codec
    received: dict[str, Counter[str]] = field(default_factory=dict)
    sent: dict[str, dict[int, bytes]] = field(default_factory=dict)  # by party: number -> fingerprint
    violations: list[str] = field(default_factory=list)
    repeated: int = 0
    rows_of: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    seen: dict[str, Counter[int]] = field(default_factory=dict)  # by client: row -> releases of it
    derivatives: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)  # by client: row -> first derivative

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        if type(event) is Received:
            self._took(party.name, event.body)
        for effect in effects:
            if isinstance(effect, Send | Broadcast) and type(effect.body).__name__ in RELEASES:
                self._released(party.name, effect.body)

    def ended(self, outcome: Outcome, parties: Sequence[Party]) -> None:
        pass

    def _took(self, name: str, body: Message) -> None:
        kind = type(body).__name__
        self.received.setdefault(name, Counter())[kind] += 1
        if kind == "Gradient":
            rows = self.rows_of.get((name, body.release))  # type: ignore[attr-defined]
            kept = self.derivatives.setdefault(name, {})
            for row, derivative in zip(() if rows is None else rows, body.derivative, strict=False):  # type: ignore[attr-defined]
                kept.setdefault(int(row), derivative)

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
