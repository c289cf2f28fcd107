"""The sentences that the page of text and the page for browsers share, so that they cannot disagree."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from offbeat.metrics.record import PartyRecord, RunRecord
from offbeat.names import counted
from offbeat.party.verdicts import Mood, verdict_named
from offbeat.report import numbers

CHIEFS = ("server", "cloud")  # VAFL's and the horizontal methods': everybody's updates are theirs too
CLASSES_COUNTED = 12
_METRICS = {
    "test_auc": "Test AUC",
    "test_accuracy": "Test accuracy",
    "test_accuracy_averaged": "Test accuracy, averaged model",
    "test_log_loss": "Test log loss",
    "test_deviance": "Test mean deviance",
    "test_rmse": "Test RMSE",
    "train_auc": "Training AUC",
    "train_accuracy": "Training accuracy",
    "train_rmse": "Training RMSE",
}


def verdict(record: RunRecord) -> tuple[str, Mood]:
    """A headline for the run's verdict and how it should be felt; a word that is not known stands for itself."""
    if record.verdict == "passes" and unit(record) == "updates":
        return "Made all its updates", "good"
    found = verdict_named(record.verdict)
    return found.words, found.mood


def unit(record: RunRecord) -> str:
    """What a look counts: passes, or the updates of a horizontal run, whose job has no passes."""
    return "updates" if "updates" in record.options and "passes" not in record.options else "passes"


def title(record: RunRecord) -> str:
    if record.runtime == "grpc":  # an organisation's own side: its record knows the others by name alone
        count = len(record.options.get("parties", record.parties))
        return f"{record.algorithm} with {count} parties, as '{record.options.get('party', '')}' ran it"
    return f"{record.algorithm} with {who(record.parties)}, {record.runtime}, {seed(record)}"


def who(names: Iterable[str]) -> str:
    """How many take part; whoever leads them and has no data of its own is told apart."""
    chiefs = [name for name in names if name in CHIEFS]
    parties = counted(sum(name not in CHIEFS for name in names), "party")
    return f"{parties} and a {chiefs[0]}" if chiefs else parties


def seed(record: RunRecord) -> str:
    return "no seed" if record.seed < 0 else f"seed {record.seed}"


def certificate(record: RunRecord) -> str:
    """What the run proves about its own result. A bound is called one."""
    gap, norm = record.certificate.duality_gap, record.certificate.gradient_norm
    if gap is not None and record.bound != gap:
        return (
            f"The objective is {numbers.short(record.objective, 3)}, and no objective is below 0: more than that "
            f"cannot be gained. The certificate, {numbers.short(gap, 2)}, says no more yet."
        )
    if gap is not None:
        known = f" Against a known optimum it is within {numbers.short(record.suboptimality, 2)}."
        return (
            f"The objective is within {numbers.short(gap, 2)} of the best possible: an upper bound, computed by secure "
            f"sums without pooling data; the true distance is usually smaller."
            + (known if record.suboptimality is not None else "")
        )
    if norm is not None:
        return (
            f"The gradient's norm is {numbers.short(norm, 2)}. This problem has no bound on the distance to the best "
            f"objective (a nonconvex penalty, or none)."
        )
    if told_elsewhere(record):
        return "The certificate was computed where the training was led, and is told in the report there."
    return "No certificate was computed: nothing is proved about the distance to the best objective."


def model_kind(record: RunRecord) -> str:
    """A linear model, or what the job calls its networks."""
    entry = record.options.get("embedding") or record.options.get("model") or {}
    kind = entry.get("kind", "linear")
    return kind if isinstance(kind, str) else "networks by party"


def told_elsewhere(record: RunRecord) -> bool:
    """Whether this is the side of an organisation that did not lead: it was told the verdict and not the bound."""
    return record.runtime == "grpc" and record.objective is None and record.verdict == "target"


def metric_name(name: str) -> str:
    return _METRICS.get(name, name.replace("_", " "))


def test_metric(record: RunRecord) -> str:
    """What the looks of a run have measured on test rows: the first of the metrics of its end."""
    first = next((name for name in record.metrics if name.startswith("test_")), "")
    return metric_name(first).replace("Test ", "test ") if first else "test metric"


def key_figures(record: RunRecord) -> list[tuple[str, str]]:
    """(name, value) pairs: the result in one line."""
    figures = [("Objective", numbers.short(record.objective, 6))]
    if record.bound is not None:
        figures.append(("At most above the best", numbers.short(record.bound, 2)))
    elif record.certificate.gradient_norm is not None:
        figures.append(("Gradient norm", numbers.short(record.certificate.gradient_norm, 2)))
    figures += [(metric_name(name), numbers.short(value)) for name, value in record.metrics.items()]
    figures += [
        ("Passes", numbers.short(record.passes, 3)),
        ("Virtual time" if record.clock == "virtual" else "Wall-clock time", numbers.seconds(record.seconds)),
        ("Sent by it" if record.runtime == "grpc" else "Sent by all", numbers.size(record.bytes_sent)),
    ]
    return figures


NOTHING_DISCLOSED = "The record lists no messages, so it cannot say what was disclosed."


def disclosed(record: RunRecord) -> list[tuple[str, ...]]:
    """Of each kind of message: its name, how often it was sent, its bytes, and what it tells to whom."""
    return [
        (kind.message, numbers.count(kind.count), numbers.size(kind.bytes), kind.reveals) for kind in record.reveals
    ]


PROMISED = "What is promised"
SEEDED = "The draws came from a seed: nothing is promised against whoever knows it."


def promised(record: RunRecord) -> list[str]:
    """What is guaranteed, and whom a seed makes an exception of."""
    seeded = any(statement.get("seeded") for statement in record.privacy.values())
    return [*record.promises, SEEDED] if record.promises and seeded else list(record.promises)


PRIVACY_HEAD = ("Party", "Releases", "Epsilon", "Delta", "Budget", "Adjacency", "Remark")


def privacy_rows(record: RunRecord) -> list[tuple[str, ...]]:
    """What each party's ledger says. Releases without an epsilon are not differentially private, and are called so."""
    return [(name, *_privacy_cells(statement)) for name, statement in record.privacy.items()]


def _privacy_cells(statement: Mapping[str, Any]) -> tuple[str, ...]:
    epsilon, remarks = statement.get("epsilon"), [str(statement["warning"])] if statement.get("warning") else []
    if epsilon is None and not remarks:
        remarks.append("no epsilon was accounted for")
    if "steps" in statement:
        remarks.append(f"of one record at most; steps with its gradient: {numbers.count(statement['steps'])}")
    if statement.get("seeded"):
        remarks.append("noise is seeded: for experiments only")
    return (
        numbers.count(statement.get("releases", 0)),
        "none" if epsilon is None else numbers.short(epsilon, 3),
        numbers.short(statement.get("delta")),
        numbers.short(statement.get("budget_epsilon"), 3),
        str(statement.get("adjacency") or numbers.UNKNOWN),
        "; ".join(remarks),
    )


def party_cells(party: PartyRecord, time: Callable[[float], str] = numbers.seconds) -> tuple[str, ...]:
    """What a party did: updates, lag, bytes, and where its time went."""
    return (
        numbers.count(party.updates),
        f"{party.lag_mean:.2f}",
        numbers.count(party.lag_max),
        numbers.size(party.bytes_sent),
        *map(time, (party.compute_s, party.communicate_s, party.wait_s)),
    )


def losses(record: RunRecord) -> list[str]:
    """One sentence for each party that dropped, retried or abandoned something."""
    sentences = []
    for name, party in record.parties.items():
        counted = (("dropped", party.dropped), ("retried", party.retried), ("abandoned", party.abandoned))
        parts = [f"{word} {numbers.count(number)}" for word, number in counted if number]
        if parts:
            sentences.append(f"{name} {', '.join(parts)}")
    return sentences


def classes(record: RunRecord) -> str:
    """Which classes there are, which of two is the positive one, and how the held-out rows are divided among them;
    empty where numbers are predicted."""
    found = record.data.classes
    if not found:
        return ""
    named = f"{len(found)} classes: {', '.join(map(str, found))}."
    if len(found) == 2:
        named = f"{found[1]} is the positive class, {found[0]} the other."
    return named + _balance(record, [str(name) for name in found])


def _balance(record: RunRecord, names: list[str]) -> str:
    counts = [sum(row) for row in record.held_out.confusion] if record.held_out is not None else []
    if len(counts) != len(names) or len(names) > CLASSES_COUNTED:
        return ""
    shares = [f"{name} {numbers.percent(count, sum(counts))}" for name, count in zip(names, counts, strict=True)]
    return f" Held-out rows: {', '.join(shares)}."
