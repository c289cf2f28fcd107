"""The run record as one party may write it: its own counters, what it was told, and nobody else's data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.jobs.methods import method_named
from offbeat.jobs.organisations import Job
from offbeat.jobs.settings import settings_text
from offbeat.metrics.machine import library_versions, offbeat_version, this_machine
from offbeat.metrics.record import Certificate, DataRecord, PartyRecord, RunRecord
from offbeat.orgs import align_psi, guard, predict
from offbeat.orgs.embedding_guard import GuardedEmbedding
from offbeat.orgs.guard import Guarded
from offbeat.orgs.rows import OwnRows
from offbeat.orgs.train import AnyGuarded
from offbeat.orgs.train_embedding import MESSAGES as EMBEDDING_MESSAGES
from offbeat.orgs.train_embedding import client_of, server_of
from offbeat.party.contract import Message, PartyName
from offbeat.report.page import write_report
from offbeat.run.record import certificate_from, certified_row, label_ledger, party_record, reveals, traffic
from offbeat.runtime.contract import Outcome, Tally


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run as one party saw it: all that its record is made of."""

    job: Job
    run: str
    party: AnyGuarded
    outcome: Outcome
    rows: OwnRows
    notes: tuple[str, ...]
    metrics: Mapping[str, float]
    sent: Mapping[str, dict[str, list[int]]]  # by phase, as a tally counts it

    @property
    def name(self) -> PartyName:
        return self.party.name


def write_record(folder: Path, own: OwnRun) -> dict[str, Any]:
    """Write record.json and report.html; returns what the initiator is entitled to: counters, no block and no score."""
    record = _record(own)
    record.write(folder)
    write_report(record, folder)
    return {
        "updates": record.updates,
        "bytes_sent": record.bytes_sent,
        "rows": record.data.rows,
        "digest": record.digest,
    }


def _record(own: OwnRun) -> RunRecord:
    job, name, outcome = own.job, own.name, own.outcome
    finish = outcome.finished[name]
    counters = _counters(own.party, outcome.tallies[name], outcome.time_s)
    certified = [(at_s, value) for at_s, _, what, value in outcome.observations if what == "certificate"]
    last = min((value for _, value in certified), key=lambda v: v["gradient_norm"], default=None)
    return RunRecord(
        offbeat=offbeat_version(),
        algorithm=job.method.algorithm,
        runtime="grpc",
        clock="wall",
        seed=job.method.seed,
        digest=outcome.digest,
        verdict=finish.verdict,
        reason=finish.reason,
        objective=last["objective"] if last else None,
        certificate=certificate_from(last) if last else Certificate(),
        passes=float(last["passes"]) if last else _passes(own.party),
        seconds=outcome.time_s,
        metrics=dict(own.metrics),
        parties={name: counters},
        reveals=reveals(
            {phase: Tally(sent=rows) for phase, rows in own.sent.items()},
            _kinds(job),
            private_labels=job.method.label_dp_epsilon is not None,
        ),
        privacy=_privacy(job, name, own.party),
        warnings=_warnings(job, name, outcome),
        options=_options(own),
        data=_data(own),
        versions=library_versions(),
        machine=this_machine(),
        curve=tuple(certified_row(at_s, value, counters.bytes_sent) for at_s, value in certified),
    )


def _options(own: OwnRun) -> dict[str, Any]:
    return {
        "job": settings_text(own.job),
        "run": own.run,
        "party": own.name,
        "parties": list(own.job.parties),
        "row_most_asked": int(own.party.rows.asked.max(initial=0)),
    }


def _data(own: OwnRun) -> DataRecord:
    return DataRecord(
        source=f"'{own.name}', its own table, aligned with {len(own.job.parties) - 1} others",
        rows=len(own.rows.tokens_train),
        test_rows=len(own.rows.tokens_test),
        columns={own.name: int(own.rows.train.shape[1])},
        notes=own.notes,
    )


def _kinds(job: Job) -> tuple[type[Message], ...]:
    own: tuple[type[Message], ...] = EMBEDDING_MESSAGES
    if not job.embeds:
        own = (*method_named(job.method.algorithm).family().messages, *guard.MESSAGES)
    return tuple(dict.fromkeys((*own, *align_psi.MESSAGES, *predict.MESSAGES)))


def _counters(party: AnyGuarded, tally: Tally, total_s: float) -> PartyRecord:
    if isinstance(party, Guarded):
        return party_record(party.inner, tally, total_s, 1)
    client, server = client_of(party), server_of(party)
    return PartyRecord(
        updates=client.version,
        dropped=server.duplicates if server is not None else 0,
        retried=client.releases.retried,
        abandoned=server.refreshes.abandoned if server is not None else 0,
        **traffic(tally, total_s),
    )


def _passes(party: AnyGuarded) -> float:
    if isinstance(party, Guarded):
        inner: Any = party.inner
        return float(inner.passes())
    server, client = server_of(party), client_of(party)
    if server is not None:
        return float(server.rows_done / (server.rows * len(server.clients)))
    return float(client.version * client.options.batch / client.rows)


def _privacy(job: Job, name: str, party: AnyGuarded) -> dict[str, dict[str, Any]]:
    """What left of this party under an account."""
    if name in job.labels_at:
        epsilon = job.method.label_dp_epsilon
        return label_ledger([name], epsilon, seeded=False) if epsilon is not None else {}
    client = client_of(party) if isinstance(party, GuardedEmbedding) else None
    return {name: client.privacy()} if client is not None and client.ledger is not None else {}


def _warnings(job: Job, name: str, outcome: Outcome) -> tuple[str, ...]:
    found = []
    others = [party for party in job.parties if party not in job.labels_at]
    private = job.method.label_dp_epsilon
    if private is not None:
        found.append(
            f"The labels at {', '.join(job.labels_at)} were answered at random ({private:g}-label-privacy): objective "
            "and certificate are about those answers, the test metrics about the true labels."
        )
    elif others and job.model.task == "classification":
        found.append(
            f"Labels are disclosed: they stay at {', '.join(job.labels_at)}, but {', '.join(others)} received "
            "derivatives whose sign is the label."
        )
    if job.embeds:
        found.append(_about_embeddings(job))
    if len(job.parties) == 2:
        found.append("There are two parties: each learns the other's share of every sum, whatever the scheme.")
    if job.method.secure_sum == "tree":
        found.append('secure_sum = "tree" sends partial sums in the clear: it is insecure, for comparison only.')
    found += _losses(name, outcome)
    return tuple(found)


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


def _about_embeddings(job: Job) -> str:
    holder, entry = job.labels_at[0], job.embedding
    if entry.epsilon is None:
        return (
            f"'{holder}' learned one number of every row from every party, many times over, without masks or noise; "
            "there is no certificate for this method."
        )
    return (
        f"'{holder}' learned one clipped, noisy number of every row from every party, at most {entry.uploads_max} "
        f"times: ({entry.epsilon:g}, {entry.delta:g})-differentially private for one record's columns at one party."
    )
