"""The run record as one party may write it: its own counters, what it was told, and nobody else's data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from offbeat.families import private_products
from offbeat.families.contract import RunAccount
from offbeat.families.linear import certificate_from, certified_row
from offbeat.families.statements import about_labels, about_sums, label_ledger
from offbeat.jobs.organisations import OrgJob
from offbeat.metrics.held_out import HeldOut
from offbeat.metrics.record import Certificate, DataRecord, RunRecord
from offbeat.names import counted
from offbeat.orgs import align_psi, predict
from offbeat.orgs.rows import OwnRows
from offbeat.orgs.sessions import OwnTraining
from offbeat.orgs.train import OwnLinear
from offbeat.party.contract import Message, PartyName
from offbeat.run.folder import write_record as write_run
from offbeat.run.record import record_of, reveals
from offbeat.runtime.contract import Outcome
from offbeat.runtime.transcript import unsigned_peers


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run as one party saw it: all that its record is made of."""

    job: OrgJob
    run: str
    training: OwnTraining
    outcome: Outcome
    rows: OwnRows
    notes: tuple[str, ...]
    metrics: Mapping[str, float]
    sent: Mapping[str, dict[str, list[int]]]  # by phase, as a tally counts it
    held_out: HeldOut | None = None  # at the label holder that learned the scores of the test rows

    @property
    def name(self) -> PartyName:
        return self.training.party.name


def write_record(folder: Path, own: OwnRun) -> dict[str, Any]:
    """Write record.json and report.html; returns what the initiator is entitled to: counters, no block and no score."""
    unsigned = [
        f"'{peer}' has not signed all that went between it and '{own.name}': see `offbeat audit --verify`."
        for peer in unsigned_peers(folder, own.name)
    ]
    record = _record(own)
    record = msgspec.structs.replace(record, warnings=(*record.warnings, *unsigned))
    write_run(record, folder)
    return {
        "updates": record.updates,
        "bytes_sent": record.bytes_sent,
        "rows": record.data.rows,
        "digest": record.digest,
    }


def _record(own: OwnRun) -> RunRecord:
    job = own.job
    kinds: list[type[Message]] = [*own.training.messages, *align_psi.MESSAGES, *predict.MESSAGES]
    private = job.method.label_dp_epsilon is not None
    options = {
        "job": job.text,
        "run": own.run,
        "party": own.name,
        "parties": list(job.parties),
        "row_most_asked": int(own.training.watched.asked.max(initial=0)),
    }
    return record_of(
        _account(own),
        own.outcome,
        algorithm=job.method.algorithm,
        runtime="grpc",
        seed=job.method.seed,
        options=options,
        reveals=reveals(own.sent.values(), kinds, private_labels=private, private_products=own.job.private_products),
    )


def _account(own: OwnRun) -> RunAccount:
    job, name, outcome = own.job, own.name, own.outcome
    finish = outcome.finished[name]
    certified = [(at_s, value) for at_s, _, what, value in outcome.observations if what == "certificate"]
    best = min((value for _, value in certified), key=lambda value: value["gradient_norm"], default=None)
    sent = outcome.tallies[name].bytes_sent
    return RunAccount(
        verdict=finish.verdict,
        reason=finish.reason,
        objective=best["objective"] if best else None,
        passes=float(best["passes"]) if best else own.training.passes(),
        counters={name: own.training.counters()},
        promises=_promises(own),
        warnings=(*_about_products(own.training), *_warnings(job, name, outcome)),
        data=_data(own),
        curve=[certified_row(at_s, value, sent) for at_s, value in certified],
        metrics=own.metrics,
        held_out=own.held_out,
        certificate=certificate_from(best) if best else Certificate(),
        privacy=_privacy(own),
    )


def _data(own: OwnRun) -> DataRecord:
    return DataRecord(
        source=f"'{own.name}', its own table, aligned with {counted(len(own.job.parties) - 1, 'other')}",
        rows=len(own.rows.tokens_train),
        test_rows=len(own.rows.tokens_test),
        columns={own.name: int(own.rows.train.shape[1])},
        notes=own.notes,
        task=own.job.model.task,
        classes=own.rows.classes or (),
    )


def _privacy(own: OwnRun) -> dict[str, dict[str, Any]]:
    """What left of this party under an account."""
    epsilon = own.job.method.label_dp_epsilon
    if own.name in own.job.labels_at and not own.job.private_products:
        return label_ledger([own.name], epsilon, seeded=False) if epsilon is not None else {}
    stated = own.training.privacy()
    return {own.name: stated} if stated is not None else {}


def _promises(own: OwnRun) -> list[str]:
    job, entry, training = own.job, own.job.embedding, own.training
    found = private_products.promises(training.plan) if isinstance(training, OwnLinear) else []
    if job.method.label_dp_epsilon is not None:
        found.append(
            f"The labels at {', '.join(job.labels_at)} were answered at random "
            f"({job.method.label_dp_epsilon:g}-label-privacy). Features are not covered."
        )
    if job.embeds and entry.epsilon is not None:
        found.append(
            f"'{job.labels_at[0]}' learned one clipped, noisy number of every row from every party, at most "
            f"{entry.uploads_max or 1} times: ({entry.epsilon:g}, {entry.delta:g})-differentially private for one "
            "record's columns at one party."
        )
    return found


def _about_products(training: OwnTraining) -> list[str]:
    if not isinstance(training, OwnLinear):
        return []
    unknown = "objective and metrics would tell of rows, and nobody has them. Predictions are not covered either."
    return private_products.warnings(training.plan, [training.inner], unknown)


def _warnings(job: OrgJob, name: str, outcome: Outcome) -> tuple[str, ...]:
    found = []
    others = [party for party in job.parties if party not in job.labels_at]
    if job.method.label_dp_epsilon is not None:
        found.append(
            "Objective, certificate and test metrics are computed from random answers in place of the labels, never "
            "from the labels."
        )
    elif others:
        found += about_labels(job.parties, job.labels_at, job.model.loss, None)
    if job.embeds and job.embedding.epsilon is None:
        found.append(
            f"'{job.labels_at[0]}' learned one number of every row from every party, many times over, without masks or "
            "noise; there is no certificate for this method."
        )
    return (*found, *about_sums(len(job.parties), job.method.secure_sum), *_losses(name, outcome))


def _losses(name: str, outcome: Outcome) -> list[str]:
    """Who was lost and came back, and what the run was worth before and after: the cost of going on without."""
    told = []
    for at_s, _, what, peer in outcome.observations:
        if what == "lost":
            told.append(f"'{name}' lost '{peer}' at {at_s:.3g} s{_cost(outcome, at_s)}.")
        elif what == "back":
            told.append(f"'{peer}' was back at {at_s:.3g} s.")
    return told


def _cost(outcome: Outcome, lost_s: float) -> str:
    seen = [(at_s, value["objective"]) for at_s, _, what, value in outcome.observations if what == "certificate"]
    before = [objective for at_s, objective in seen if at_s <= lost_s]
    without = any(what == "roster" and at_s >= lost_s for at_s, _, what, _ in outcome.observations)
    if not without:
        return ""
    cost = "; its block was frozen out of the sums from then on"
    after = [objective for at_s, objective in seen if at_s > lost_s]
    return (
        f"{cost}: the objective was {before[-1]:.6g} before and {after[-1]:.6g} in the end"
        if before and after
        else cost
    )
