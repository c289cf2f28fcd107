"""A party's privacy budget over all its jobs, and the labels' random answers that it pays for.

Labels are answered at random once for each epsilon, for ever: the answer for an id comes from a secret of the owner,
so that a second job with the same epsilon shows the same answers and tells nothing new. Answers for another epsilon are
new draws, and their epsilons add up. Noisy embeddings are drawn anew in every run: there every run adds up.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offbeat.data.holdout import id_text
from offbeat.data.matrix import Floats
from offbeat.errors import BadData, Refused
from offbeat.jobs.organisations import LABELS
from offbeat.orgs.durable import append_line, read_lines, write_durably
from offbeat.orgs.keyed_noise import WordsByName
from offbeat.orgs.run_names import now_text
from offbeat.privacy.label_response import private_targets

SECRET_BYTES = 32


class PrivacyLedger:
    """What was spent, in `private/ledger/privacy.jsonl`. One per daemon; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()

    def after(self, what: str, epsilon: float, run: str = "") -> float:
        """What would be spent on `what` with this run; a run that is noted already adds nothing."""
        lines = [line for line in self.history() if line["what"] == what]
        if any(line["run"] == run for line in lines):
            epsilon = 0.0
        spent = [float(str(line["epsilon"])) for line in lines]
        return sum({*spent, epsilon} if what == LABELS else [*spent, epsilon])

    def spend(self, what: str, epsilon: float, run: str, budget: float | None, who: str) -> None:
        """Write it down before it is used, or refuse."""
        with self._lock:
            after = self.after(what, epsilon, run)
            if budget is not None and after > budget:
                raise Refused(overspent(who, what, after, budget))
            if any((line["what"], line["run"]) == (what, run) for line in self.history()):
                return
            line = {"at": now_text(), "what": what, "run": run, "epsilon": epsilon}
            append_line(self.folder / "privacy.jsonl", line)

    def history(self) -> list[dict[str, object]]:
        return read_lines(self.folder / "privacy.jsonl")[0]

    def secret(self) -> bytes:
        path = self.folder / "labels.secret"
        with self._lock:
            if not path.is_file():
                write_durably(path, os.urandom(SECRET_BYTES))
            secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise BadData(
                f"{path} has {len(secret)} bytes instead of {SECRET_BYTES}: without the secret the labels' random "
                "answers could be undone. Restore it from a backup; a new one would answer every label anew."
            )
        return secret


def overspent(who: str, what: str, after: float, budget: float) -> str:
    return f"'{who}' has a privacy budget of {budget:g} for its {what}; with this job {after:g} would be spent."


def private_labels(y: Floats, ids: Sequence[object], epsilon: float, secret: bytes) -> Floats:
    """Labels of -1 and 1, answered at random and de-biased, the same for the same id in every job."""
    names = [f"{epsilon!r} {id_text(value)}" for value in ids]
    truth = (y > 0).astype(np.float64)[:, None]
    return np.ascontiguousarray(private_targets(truth, epsilon, WordsByName(secret, names))[:, 0])
