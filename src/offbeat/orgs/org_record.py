"""The run record as one party may write it: its own counters, what it was told, and nobody else's data."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from offbeat.methods import method_named
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.machine import library_versions, offbeat_version, this_machine
from offbeat.metrics.record import Certificate, DataRecord, RunRecord
from offbeat.orgs import align_psi, guard, predict
from offbeat.orgs.guard import Guarded
from offbeat.orgs.job import Job
from offbeat.orgs.rows import OwnRows
from offbeat.orgs.structs import settings_text
from offbeat.party.contract import Message
from offbeat.recording import party_record, reveals
from offbeat.report.page import write_report
from offbeat.runtime.contract import Outcome, Tally


def write_record(
    folder: Path,
    job: Job,
    run: str,
    name: str,
    party: Guarded,
    outcome: Outcome,
    rows: OwnRows,
    metrics: dict[str, float],
    sent: Mapping[str, dict[str, list[int]]],
) -> dict[str, Any]:
    """Write record.json and report.html; returns what the initiator is entitled to: counters, no block and no score."""
    inner: Any = party.inner
    finish, tally = outcome.finished[name], outcome.tallies[name]
    counters = party_record(inner, tally, outcome.time_s, 1)
    certified = [(at_s, value) for at_s, _, what, value in outcome.observations if what == "certificate"]
    last = min((value for _, value in certified), key=lambda v: v["gradient_norm"], default=None)
    kinds: tuple[type[Message], ...] = tuple(
        dict.fromkeys(
            (
                *method_named(job.method.algorithm).family().messages,
                *guard.MESSAGES,
                *align_psi.MESSAGES,
                *predict.MESSAGES,
            )
        )
    )
    record = RunRecord(
        offbeat=offbeat_version(),
        algorithm=job.method.algorithm,
        runtime="grpc",
        clock="wall",
        seed=job.method.seed,
        digest=outcome.digest,
        verdict=finish.verdict,
        reason=finish.reason,
        objective=last["objective"] if last else None,
        certificate=_certificate(last),
        passes=float(last["passes"]) if last else float(inner.passes()),
        seconds=outcome.time_s,
        metrics=dict(metrics),
        parties={name: counters},
        reveals=reveals({what: Tally(sent=rows) for what, rows in sent.items()}, kinds),
        warnings=_warnings(job, name, outcome),
        options={
            "job": settings_text(job),
            "run": run,
            "party": name,
            "row_most_asked": int(party.asked.max(initial=0)),
        },
        data=DataRecord(
            source=f"'{name}', its own table, aligned with {len(job.parties) - 1} others",
            rows=len(rows.tokens_train),
            test_rows=len(rows.tokens_test),
            columns={name: int(rows.train.shape[1])},
            notes=rows.notes,
        ),
        versions=library_versions(),
        machine=this_machine(),
        curve=tuple(_look(at_s, value, counters.bytes_sent) for at_s, value in certified),
    )
    record.write(folder)
    write_report(record, folder)
    return {
        "updates": counters.updates,
        "bytes_sent": counters.bytes_sent,
        "rows": len(rows.tokens_train),
        "digest": outcome.digest,
    }


def _certificate(last: dict[str, float] | None) -> Certificate:
    if last is None:
        return Certificate()
    return Certificate(last["gradient_norm"], last["gap"] if isfinite(last["gap"]) else None)


def _look(at_s: float, value: dict[str, float], sent: int) -> CurveRow:
    gap = value["gap"] if isfinite(value["gap"]) else None
    return CurveRow(at_s, value["passes"], sent, value["objective"], value["gradient_norm"], gap)


def _warnings(job: Job, name: str, outcome: Outcome) -> tuple[str, ...]:
    found = []
    others = [party for party in job.parties if party not in job.labels_at]
    if others and job.model.task == "classification":
        found.append(
            f"Labels are disclosed: they stay at {', '.join(job.labels_at)}, but {', '.join(others)} received "
            "derivatives whose sign is the label."
        )
    if len(job.parties) == 2:
        found.append("There are two parties: each learns the other's share of every sum, whatever the scheme.")
    if job.method.secure_sum == "tree":
        found.append('secure_sum = "tree" sends partial sums in the clear: it is insecure, for comparison only.')
    found += [
        f"{name} lost {value} at {at_s:.3g} s." for at_s, _, what, value in outcome.observations if what == "lost"
    ]
    return tuple(found)
