"""The audit of a run between organisations, by one of them: its own side is done again from its log.

Nobody has everybody's data, so nobody can audit the whole run. What a party received and sent is all in its log: which
masks it used, which sums it learned, and what the derivatives that it was sent tell it of the labels.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offbeat.audit.masks import Followed, MaskWatch
from offbeat.audit.releases import ReleaseWatch, release_findings
from offbeat.audit.runs import Watch, Watched, Witness, told_of
from offbeat.jobs.methods import linear_named
from offbeat.message.codec import Codec
from offbeat.metrics.machine import computing_as_on
from offbeat.metrics.record import RunRecord
from offbeat.orgs.party_config import home_of
from offbeat.orgs.replay import OwnSide, own_side
from offbeat.orgs.train import OwnLinear
from offbeat.party.contract import Effect, Event
from offbeat.run.replay import NOTHING, Vouched
from offbeat.runtime.recovery import recover


def audit_own(folder: Path, vouched: Vouched | None = NOTHING) -> dict[str, Any]:
    """The audit of `runs/RUN` under a party's home, as plain values. `vouched`: None where the home is one's own."""
    record = RunRecord.read(folder)
    with computing_as_on(record.machine):
        side = own_side(home_of(folder), folder.resolve().name, vouched)
        training = side.training
        watch: Watch = _masks(side, training) if isinstance(training, OwnLinear) else _Releases(side)
        received: Counter[str] = Counter()
        for what, log in side.logs.items():
            witness = Witness(watch if what == "train" else None)  # of the others messages are counted
            recover(Watched(log.party, witness), Codec(log.messages), log.folder, from_start=True)
            received += witness.received.get(side.home.name, Counter())
    kinds = [kind for log in side.logs.values() for kind in log.messages]
    private = {
        "private_labels": side.job.method.label_dp_epsilon is not None,
        "private_products": side.job.private_products,
    }
    return told_of(folder, record, kinds, private, {side.home.name: received}, watch, side=side.home.name)


def _masks(side: OwnSide, training: OwnLinear) -> MaskWatch:
    """The linear methods."""
    job = side.job
    return MaskWatch(
        Followed(
            names=job.parties,
            labels_at=job.labels_at,
            rows=len(side.rows.tokens_train),
            outputs=job.loss.outputs,
            classifies=job.model.task == "classification",
            y_train=side.rows.y_train,
            private_labels=job.method.label_dp_epsilon is not None,
            private_products=job.private_products,
            labels_everywhere=linear_named(job.method.algorithm).labels_everywhere,
            secure_sum=job.method.secure_sum,
            rows_asked=lambda _, asker, number: training.inner.rows_asked(asker, number),
        )
    )


class _Releases:
    """VAFL: releases by number, and the rows of which derivatives came back."""

    def __init__(self, side: OwnSide) -> None:
        self.side, self.watch = side, ReleaseWatch(side.training)

    def handled(self, name: str, event: Event, effects: Sequence[Effect]) -> None:
        self.watch.handled(name, event, effects)

    def findings(self, record: RunRecord) -> dict[str, Any]:
        name, rows = self.side.home.name, len(self.side.rows.tokens_train)
        learned, shown = len(self.watch.derivatives.get(name, {})), self.watch.seen.get(name, Counter())
        told = f"was sent derivatives of {learned:,} of {rows:,} rows, which tell it of their labels"
        gave = f"showed the label holder {max(shown.values(), default=0)} embeddings of one row at most"
        holder = name == self.side.job.labels_at[0]
        attacks = [] if holder else [{"attack": "labels", "party": name, "finding": told}]
        if shown:
            attacks.append({"attack": "embeddings", "party": name, "finding": gave})
        return {"releases": release_findings(record, self.watch), "attacks": attacks}
