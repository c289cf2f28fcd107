"""From what a family tells and what a runtime saw to a run record."""

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from offbeat.families.contract import Counters, Part, RunAccount, Training
from offbeat.metrics.lag import Lags
from offbeat.metrics.machine import library_versions, offbeat_version, this_machine
from offbeat.metrics.record import PartyRecord, Reveal, RunRecord, Transit
from offbeat.party.contract import Message
from offbeat.runtime.contract import Outcome, Tally

COEFFICIENTS_TOLD = 12


def record_of(
    account: RunAccount,
    outcome: Outcome,
    *,
    algorithm: str,
    runtime: str,
    seed: int | None,
    options: dict[str, Any],
    reveals: tuple[Reveal, ...],
    lanes: int = 1,
) -> RunRecord:
    """The record of a run in one place, or of an organisation's own side of one. Without a seed it says -1."""
    parties = {
        name: _party_record(told, outcome.tallies.get(name, Tally()), outcome.time_s, lanes)
        for name, told in account.counters.items()
    }
    return RunRecord(
        offbeat=offbeat_version(),
        algorithm=algorithm,
        runtime=runtime,
        clock=outcome.clock,
        seed=-1 if seed is None else seed,
        digest=outcome.digest,
        verdict=account.verdict,
        reason=account.reason,
        objective=account.objective,
        certificate=account.certificate,
        suboptimality=account.suboptimality,
        passes=account.passes,
        seconds=outcome.time_s,
        metrics=dict(account.metrics),
        parties=parties,
        reveals=reveals,
        privacy=dict(account.privacy),
        promises=tuple(account.promises),
        warnings=tuple(account.warnings),
        options=options,
        data=account.data,
        held_out=account.held_out,
        versions=library_versions(),
        machine=this_machine(),
        curve=tuple(account.curve),
        timeline=tuple(Transit(*row) for row in outcome.timeline),
    )


def largest_coefficients(models: Mapping[str, Part]) -> dict[str, dict[str, float]]:
    """By party, those furthest from 0, the largest first; nothing of networks, several outputs and columns without
    names."""
    found = {}
    for name, part in models.items():
        weights = part.arrays.get("weights")
        if part.columns is not None and weights is not None and weights.ndim == 1:
            chosen = np.argsort(-np.abs(weights), kind="stable")[:COEFFICIENTS_TOLD]
            found[name] = {part.columns[place]: float(weights[place]) for place in chosen.tolist()}
    return found


def _party_record(told: Counters, tally: Tally, total_s: float, lanes: int) -> PartyRecord:
    lags = told.lags or Lags()
    compute_s, communicate_s, wait_s = tally.split(total_s, lanes)
    return PartyRecord(
        updates=told.updates,
        lag_mean=lags.mean,
        lag_max=lags.most,
        lag_histogram=lags.histogram,
        bytes_sent=tally.bytes_sent,
        bytes_by_kind={kind: size for kind, (_, size) in tally.sent.items()},
        messages_by_kind={kind: count for kind, (count, _) in tally.sent.items()},
        compute_s=compute_s,
        communicate_s=communicate_s,
        wait_s=wait_s,
        dropped=told.dropped,
        retried=told.retried,
        abandoned=told.abandoned,
    )


def reveals_of(kind: type[Message], *, private_labels: bool = False, private_products: bool = False) -> str:
    """The sentence after "Reveals:" in a message's docstring, on one line; where labels were answered at random, or
    products are private, the one after "With label_dp_epsilon:" or "With product_epsilon:", if the message has one."""
    text = inspect.getdoc(kind) or ""
    options = (
        ("With label_dp_epsilon:", private_labels),
        ("With product_epsilon:", private_products),
        ("Reveals:", True),
    )
    for mark in (mark for mark, holds in options if holds):
        _, found, rest = text.partition(mark)
        if found:
            return re.sub(r"\s+", " ", rest.split("\n\n")[0]).strip()
    return ""


def kept_private(training: Training) -> dict[str, bool]:
    """What a run protects beyond masks, for `reveals_of`."""
    products = getattr(training.job, "product_epsilon", None) is not None
    return {"private_labels": training.private_labels, "private_products": products}


def reveals(
    sent: Iterable[Mapping[str, list[int]]], kinds: Iterable[type[Message]], **private: bool
) -> tuple[Reveal, ...]:
    """Every kind of message that was really sent, the most telling traffic (by bytes) first."""
    by_name = {kind.__name__: kind for kind in kinds}
    totals: dict[str, list[int]] = {}
    for counted in sent:
        for name, (count, size) in counted.items():
            row = totals.setdefault(name, [0, 0])
            row[0] += count
            row[1] += size
    rows = [Reveal(name, count, size, reveals_of(by_name[name], **private)) for name, (count, size) in totals.items()]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.message)))
