"""The audit of the linear methods, whose sums hide shares under masks.

masks       every word of every mask stream was used for one answer only; a repeated answer had the same bytes
sums        how many sums were complete; what is learned from the others is nothing
attacks     whose labels the derivatives' signs give away, and how many products an asker learned
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat.families.linear import LinearTraining
from offbeat.metrics.record import RunRecord
from offbeat.party.contract import Effect, Event, Received, Send
from offbeat.party.masked_sum import PRODUCTS, SURVEY, ShareGiven
from offbeat.party.survey_messages import TablePart

Stream = tuple[str, str, int, int, int]
"""Whose masks, for whom, in which roster epoch, for which kind of sum, of which survey."""


@dataclass(frozen=True)
class Followed:
    """What is known of a linear training where it is audited: all of it, or one organisation's side."""

    names: Sequence[str]
    labels_at: Sequence[str]
    rows: int
    outputs: int
    classifies: bool
    y_train: np.ndarray | None  # None: not known here
    private_labels: bool
    labels_everywhere: bool
    secure_sum: str
    rows_asked: Callable[[str, str, int], tuple[int, int]]  # of a party, by an asker, under a number
    private_products: bool = False


def followed(training: LinearTraining) -> Followed:
    data, setting, parties = training.data, training.setting, {party.name: party for party in training.parties}
    return Followed(
        data.names,
        data.labels_at,
        setting.rows,
        setting.loss.outputs,
        setting.classifies,
        setting.y_train,
        training.private_labels,
        training.method.labels_everywhere,
        training.job.secure_sum,
        lambda name, asker, number: parties[name].rows_asked(asker, number),
        private_products=training.products is not None,
    )


class MaskWatch:
    """Follows every answer, every sum and every derivative."""

    def __init__(self, training: Followed) -> None:
        self.training, self.rows, self.outputs = training, training.rows, training.outputs
        self.answers: dict[Stream, dict[int, tuple[int, bytes]]] = {}
        self.reused: list[str] = []
        self.repeated = 0
        self.givers: dict[tuple[Any, ...], set[str]] = {}
        self.learned: dict[tuple[Any, ...], int] = {}  # rows of each sum of products
        self.guesses: dict[str, np.ndarray] = {}  # by party, output and row: less its first derivative's sign

    def handled(self, name: str, event: Event, effects: Sequence[Effect]) -> None:
        if type(event) is Received:
            self._took(name, event)
        for effect in effects:
            if type(effect) is Send and type(effect.body) is ShareGiven:
                self._answered(name, effect.to, effect.body)

    def _took(self, name: str, event: Received) -> None:
        body: Any = event.body
        if type(body) is ShareGiven:
            which = (name, body.epoch, body.kind, body.survey, body.first)
            self.givers.setdefault(which, set()).add(event.sender)
            if body.kind == PRODUCTS:
                self.learned[which] = len(body.words) // self.outputs
        elif type(body) is TablePart:
            self._signs(name, body.start, body.derivatives)
        elif type(body).__name__ == "Backward":
            self._signs(name, self.training.rows_asked(name, event.sender, body.number)[0], body.derivatives)

    def _signs(self, name: str, start: int, derivatives: np.ndarray) -> None:
        signs = self.guesses.setdefault(name, np.zeros((self.outputs, self.rows)))
        each = derivatives.reshape(self.outputs, -1)
        mine = signs[:, start : start + each.shape[1]]
        new = ~mine.any(axis=0)  # later ones of least squares tell how far the model is, no longer the label
        mine[:, new] = -np.sign(each[:, new])

    def _answered(self, giver: str, asker: str, given: ShareGiven) -> None:
        kept = self.answers.setdefault((giver, asker, given.epoch, given.kind, given.survey), {})
        fingerprint = hashlib.blake2b(np.ascontiguousarray(given.words).tobytes(), digest_size=16).digest()
        before = kept.get(given.first)
        if before is None:
            kept[given.first] = (len(given.words), fingerprint)
        elif before == (len(given.words), fingerprint):
            self.repeated += 1
        else:
            self.reused.append(f"{giver} answered question {given.first} of {asker} twice, with different bytes")

    def overlaps(self) -> list[str]:
        """Answers that took the same words of one mask stream."""
        found = list(self.reused)
        for (giver, asker, _, kind, _), kept in self.answers.items():
            end = -1
            for first in sorted(kept):
                if first < end:
                    found.append(f"{giver} used the masks of row {first} for {asker} twice")
                end = max(end, first + (kept[first][0] // self.outputs if kind == SURVEY else 1))
        return found

    def findings(self, record: RunRecord) -> dict[str, Any]:
        overlaps, scheme = self.overlaps(), self.training.secure_sum
        others = len(self.training.names) - 1
        complete = sum(len(givers) == others for givers in self.givers.values())
        return {
            "secure_sum": scheme,
            "masks": {
                "used_once": not overlaps if scheme == "pairwise" else None,
                "answers": sum(map(len, self.answers.values())),
                "repeated_with_the_same_bytes": self.repeated,
                "violations": overlaps,
            },
            "sums": {"complete": complete, "incomplete": len(self.givers) - complete},
            "attacks": [*self._labels_read(), *self._products_learned()],
        }

    def _labels_read(self) -> list[dict[str, Any]]:
        """Each party that was not meant to hold labels guesses them from the derivatives' signs."""
        known, found, one = self.training, [], self.outputs == 1
        if known.labels_everywhere:
            holds = "holds the labels: the method gave them to it"
            return [{"attack": "labels", "party": name, "finding": holds} for name in known.names]
        if not known.classifies:
            return []
        told = None if known.private_labels else known.y_train
        truth = None if told is None else told > 0 if one else told
        for name in known.names:
            if name in known.labels_at or name not in self.guesses:
                continue
            signs = self.guesses[name]
            seen = (signs != 0).any(axis=0)
            guess = signs[0] > 0 if one else signs.argmax(axis=0)
            right = float(np.mean(guess[seen] == truth[seen])) if truth is not None and seen.any() else None
            share = f"{int(seen.sum()):,} of {self.rows:,} labels"
            blind = (
                "they were answered at random first" if known.private_labels else "how many are right is not known here"
            )
            how = f", {right:.1%} of them right" if right is not None else f"; {blind}"
            finding = f"reads {share} from the derivatives' signs{how}"
            found.append({"attack": "labels", "party": name, "finding": finding, "right": right})
        return found

    def _products_learned(self) -> list[dict[str, Any]]:
        """How often each asker learned the others' total, which is the other's own share when there are two parties."""
        names, found = self.training.names, []
        whose = "the other party's own share" if len(names) == 2 else "the total of the others' shares"
        whose = whose if not self.training.private_products else f"{whose}, with noise,"
        for name in names:
            pairs = sum(count for (asker, *_), count in self.learned.items() if asker == name)
            if not pairs:
                continue
            each = f"{pairs / self.rows:.1f} for each row on average"
            finding = f"learned {whose} for {pairs:,} (row, moment) pairs: {each}"
            found.append({"attack": "products", "party": name, "finding": finding, "pairs": pairs})
        return found


def mask_text(told: Mapping[str, Any]) -> list[str]:
    """The findings on masks and sums as lines of a page."""
    masks, sums = told["masks"], told["sums"]
    lines = ["", "Masks"]
    if masks["used_once"] is None:
        lines.append(f"  {told['secure_sum']}: partial sums, no pairwise masks to follow.")
    elif not masks["answers"]:
        lines.append("  No masked answer was given here.")
    elif masks["used_once"]:
        lines.append(
            f"  Every mask word was used once, in {masks['answers']:,} answers; "
            f"{masks['repeated_with_the_same_bytes']:,} answers were sent again with the same bytes."
        )
    lines += [f"  VIOLATION: {violation}" for violation in masks["violations"]]
    if sums["complete"] or sums["incomplete"]:
        lines.append(f"  {sums['complete']:,} sums were complete; {sums['incomplete']:,} were not, and told nothing.")
    return lines
