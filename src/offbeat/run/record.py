"""From what a runtime saw to a run record: who did how much, what was disclosed, what should worry the reader."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec

from offbeat.data.assemble import VerticalData
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.lag import Lags
from offbeat.metrics.live import Now, PartyNow
from offbeat.metrics.record import Certificate, DataRecord, Delivery, PartyRecord, Reveal
from offbeat.party.contract import Message
from offbeat.privacy.label_response import response_probabilities
from offbeat.privacy.ledger import Ledger, PureRelease
from offbeat.runtime.contract import Outcome, Runtime, Tally

SEEDED = "Keys and masks are seeded: for experiments only."


def reveals_of(kind: type[Message], *, private_labels: bool = False) -> str:
    """The sentence after "Reveals:" in a message's docstring, on one line; where labels were answered at random, the
    one after "With label_dp_epsilon:", if the message has one."""
    text = inspect.getdoc(kind) or ""
    for mark in ("With label_dp_epsilon:", "Reveals:") if private_labels else ("Reveals:",):
        _, found, rest = text.partition(mark)
        if found:
            return re.sub(r"\s+", " ", rest.split("\n\n")[0]).strip()
    return ""


def reveals(
    tallies: Mapping[str, Tally], kinds: Iterable[type[Message]], *, private_labels: bool = False
) -> tuple[Reveal, ...]:
    """Every kind of message that was really sent, the most telling traffic (by bytes) first."""
    by_name = {kind.__name__: kind for kind in kinds}
    totals: dict[str, list[int]] = {}
    for tally in tallies.values():
        for name, (count, size) in tally.sent.items():
            row = totals.setdefault(name, [0, 0])
            row[0] += count
            row[1] += size
    rows = [
        Reveal(name, count, size, reveals_of(by_name[name], private_labels=private_labels))
        for name, (count, size) in totals.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.message)))


def party_record(party: Any, tally: Tally, total_s: float, lanes: int) -> PartyRecord:
    """One linear party, from its own counters and its runtime's."""
    member = party.member
    lags = Lags.bucketed(member.lags, member.lag_sum, member.lag_max)
    return PartyRecord(
        updates=lags.number,
        lag_mean=lags.mean,
        lag_max=lags.most,
        lag_histogram=lags.histogram,
        dropped=_dropped(party),
        retried=member.sums.retried,
        abandoned=member.sums.abandoned,
        **traffic(tally, total_s, lanes),
    )


def traffic(tally: Tally, total_s: float, lanes: int = 1) -> dict[str, Any]:
    """Those fields of a party's record that its runtime counted, whatever the party is."""
    compute_s, communicate_s, wait_s = tally.split(total_s, lanes)
    return {
        "bytes_sent": tally.bytes_sent,
        "bytes_by_kind": {kind: size for kind, (_, size) in tally.sent.items()},
        "messages_by_kind": {kind: count for kind, (count, _) in tally.sent.items()},
        "compute_s": compute_s,
        "communicate_s": communicate_s,
        "wait_s": wait_s,
    }


def _dropped(party: Any) -> int:
    """What was received and never applied: too old a product, or a derivative that a full queue let go."""
    losses = getattr(party, "losses", None)
    return sum(losses().values()) if losses is not None else int(getattr(party, "stale", 0))


def certificate_of(outcome: Outcome, best: int) -> Certificate:
    """The certificate of the snapshot that was kept."""
    for _, _, name, value in reversed(outcome.observations):
        if name == "certificate" and value["snapshot"] == best:
            return certificate_from(value)
    return Certificate()


def certificate_from(value: Mapping[str, float]) -> Certificate:
    """What a party observed as a certificate; a gap that bounds nothing is left out."""
    return Certificate(value["gradient_norm"], value["gap"] if isfinite(value["gap"]) else None)


def with_certificates(curve: Sequence[CurveRow], outcome: Outcome) -> tuple[CurveRow, ...]:
    """Put each certificate into the first look that came after it; what came after the last look, into its own row."""
    rows = list(curve)
    news = [(time, value) for time, _, name, value in outcome.observations if name == "certificate"]
    if len(rows) < 2:
        return (*(certified_row(time, value, 0) for time, value in news), *rows)
    at, looks = 0, len(rows)
    for time, value in news:
        while at < looks and rows[at].time_s < time:
            at += 1
        known = certificate_from(value)
        if at < looks:
            rows[at] = msgspec.structs.replace(rows[at], gradient_norm=known.gradient_norm, gap=known.duality_gap)
        else:
            rows.append(_after_the_last_look(rows[-1], time, value, outcome))
    return tuple(rows)


def _after_the_last_look(last: CurveRow, time_s: float, value: Mapping[str, float], outcome: Outcome) -> CurveRow:
    """The certificate alone: nobody looked at the model then. A snapshot is older than its certificate, so its passes
    may be fewer than the last look's, and no axis may run backwards."""
    known = certificate_from(value)
    return CurveRow(
        time_s=time_s,
        passes=max(last.passes, value["passes"]),
        bytes=max(last.bytes, sum(tally.bytes_sent for tally in outcome.tallies.values())),
        gradient_norm=known.gradient_norm,
        gap=known.duality_gap,
    )


def certified_row(time_s: float, value: Mapping[str, float], bytes_sent: int) -> CurveRow:
    """Where nobody could look, as between processes, the certificates are the curve."""
    known = certificate_from(value)
    return CurveRow(time_s, value["passes"], bytes_sent, value["objective"], known.gradient_norm, known.duality_gap)


def verdict_of(outcome: Outcome, party: str, stopped: bool) -> tuple[str, str]:
    """How a run ended, by the word of the party that decides it: the server, or the cloud."""
    if stopped:
        return "stopped", "stopped on request; the model as it was is kept"
    finish = outcome.finished.get(party)
    if finish is not None:
        return finish.verdict, finish.reason
    if party in outcome.lost and not outcome.stalled:
        told = next((end.reason for end in outcome.finished.values() if end.verdict == "peer-lost"), "")
        return "peer-lost", told or f"{party} was lost"
    return ("time" if outcome.out_of_time else "stalled"), outcome.stalled


def deliveries(outcome: Outcome) -> tuple[Delivery, ...]:
    return tuple(Delivery(*row) for row in outcome.timeline)


def data_record(data: VerticalData) -> DataRecord:
    return DataRecord(data.source, data.rows, data.test_rows, dict(data.widths), tuple(data.notes))


# -- while it goes on ------------------------------------------------------------------------------------------------


def now_of(
    algorithm: str, seed: int | None, runtime: str, goal: float, target: float | None = None, unit: str = "passes"
) -> Now:
    """A run before anything has happened."""
    clock = "virtual" if runtime == "simulator" else "wall"
    return Now(algorithm=algorithm, runtime=runtime, clock=clock, seed=seed, goal=goal, target=target, unit=unit)


def party_now(party: Any, runtime: Runtime) -> PartyNow:
    """One linear party at a look, by its own counters."""
    member = party.member
    lags = Lags.bucketed(member.lags, member.lag_sum, member.lag_max)
    return PartyNow(*lags[:3], *sent_so_far(runtime, party.name))


def sent_so_far(runtime: Runtime, party: str) -> tuple[int | None, int | None]:
    """(messages, payload bytes), where the runtime tells them at a look."""
    sent: Mapping[str, tuple[int, int]] = getattr(runtime, "sent", {})
    return sent.get(party, (None, None))


# -- warnings --------------------------------------------------------------------------------------------------------


def warnings_of(
    *,
    data: VerticalData,
    scheme: str,
    loss: str,
    labels_everywhere: bool,
    labels_at: Sequence[str],
    label_dp_epsilon: float | None,
    seeded: bool,
    ignored: Sequence[str],
    faults: str,
    outcome: Outcome,
) -> tuple[str, ...]:
    """Everything a careful reader must know before trusting the run, in the order of importance."""
    found = [*_about_labels(data, loss, labels_everywhere, labels_at, label_dp_epsilon), *_alarms(outcome)]
    if len(data.names) == 2:
        found.append(
            "There are two parties: each subtracts its own share from a sum and has the other's, whatever the scheme."
        )
    if scheme == "tree":
        found.append('secure_sum = "tree" sends partial sums in the clear: it is insecure, for comparison only.')
    if scheme == "two-tree":
        found.append(
            'secure_sum = "two-tree" hides a share from any one party; two that pool what they saw may uncover it.'
        )
    if seeded:
        found.append(SEEDED)
    if faults != "calm" and "runtime.faults" not in ignored:
        found.append(f"Faults were injected on purpose: {faults}.")
    if ignored:
        found.append(f"This runtime does not know {', '.join(ignored)}: the run went on without.")
    if "generated" in data.source:
        found.append("The data is generated, not real.")
    if "pooled-unit" in data.source:
        found.append(
            "Rows were scaled by their pooled norm, which real parties would have to share: for comparison only."
        )
    return tuple(found)


def _about_labels(
    data: VerticalData, loss: str, everywhere: bool, labels_at: Sequence[str], label_dp_epsilon: float | None
) -> list[str]:
    """Who learned the labels, and where they were answered at random, which labels the figures refer to."""
    noisy = [private_labels(label_dp_epsilon)] if label_dp_epsilon is not None else []
    if everywhere:
        given = "Random answers in place of the labels" if noisy else "The labels"
        return [f"{given} were given to every party: this method needs them everywhere.", *noisy]
    others = [name for name in data.names if name not in labels_at]
    if not others:
        return ["Every party holds the labels.", *noisy]
    advice = " Set label_dp_epsilon to protect them." if loss == "logistic" else ""
    told = f"stay at {', '.join(labels_at)}, but {', '.join(others)} received {DERIVATIVES_TELL[loss]}"
    if noisy:
        return [f"Random answers in place of the labels are disclosed: the labels {told}, not the label.", *noisy]
    return [f"Labels are disclosed: they {told}.{advice}"]


_MARGIN = "derivatives: at the known start they are the labels themselves, later how far the model is from them"
DERIVATIVES_TELL = {
    "logistic": "derivatives whose sign is the label",
    "debiased-logistic": "derivatives whose sign is the answer that was drawn for the label",
    "squared-hinge": "derivatives whose sign, where they are not zero, is the label",
    "squared": _MARGIN,
    "ls-svm": _MARGIN,
}
"""What a derivative says of a label, by loss."""


def private_labels(epsilon: float) -> str:
    kept, _ = response_probabilities(epsilon, 2)
    return (
        f"Training labels were answered at random first (label_dp_epsilon = {epsilon:g}): each is the true one with "
        f"probability {kept:.3g}. The objective and the certificate refer to these answers, de-biased; test metrics "
        "refer to the true labels."
    )


def label_ledger(labels_at: Sequence[str], epsilon: float, *, seeded: bool) -> dict[str, dict[str, Any]]:
    """What each label holder's ledger says: one answer per label, whatever is computed from it later. It is the same
    answer at every holder, so their epsilons do not add up."""
    release = PureRelease(epsilon)
    spent = Ledger(None)
    spent.spend(release)
    stated = {
        **spent.statement(),
        "epsilon": epsilon,
        "delta": 0.0,
        "budget_epsilon": epsilon,
        "adjacency": "replace-one label",
        "warning": "labels alone, by randomised response: features are not covered",
        "seeded": seeded,
    }
    return {name: dict(stated) for name in labels_at}


def _alarms(outcome: Outcome) -> list[str]:
    found = [
        f"{finish.reason}." for finish in _distinct(outcome) if finish.verdict in ("diverged", "range", "peer-lost")
    ]
    if outcome.stalled and outcome.stalled != "ended by the observer" and not outcome.out_of_time:
        found.append(f"The run did not end by itself: {outcome.stalled}.")
    for time_s, party, name, value in outcome.observations:
        if name == "lost":
            found.append(f"{party} lost {value} at {time_s:.3g} s.")
        elif name in ("starved", "alarm"):
            found.append(f"{party}: {value}")
    return list(dict.fromkeys(found))


def _distinct(outcome: Outcome) -> list[Any]:
    return list({(f.verdict, f.reason): f for f in outcome.finished.values()}.values())
