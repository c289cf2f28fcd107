"""A run's model card: one page of Markdown, made of its record and of nothing else."""

from collections.abc import Iterable, Iterator, Sequence

from offbeat.metrics.record import RunRecord
from offbeat.report import numbers, wording

CARD_FILE = "model_card.md"
TOLD = ("loss", "penalty", "penalty_kind", "l1_ratio", "class_weight", "intercept", "labels_at", "secure_sum")
"""Keys of the job that say which model was learned; those that are absent, empty or off are passed over."""


def card_text(record: RunRecord, run: str = "") -> str:
    words, _ = wording.verdict(record)
    parts = [
        f"# Model card{f': {run}' if run else ''}",
        f"{_escaped(wording.title(record))}. {words}: {_sentence(record.reason)} Made from record.json by offbeat "
        f"{record.offbeat}; digest {record.digest}.",
        *_section("Data", _data(record)),
        *_section("Model", _model(record)),
        *_section("Certificate", [wording.certificate(record)]),
        *_section("Scores on held-out rows", _scores(record)),
        *(_section(wording.PROMISED, promised) if (promised := wording.promised(record)) else []),
        *_section("Privacy", _privacy(record)),
        *_section("What it is not for", _limits(record)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {_escaped(line)}" for line in lines if line)]


def _escaped(text: str) -> str:
    """Names and notes come from tables: they are text here, not markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_<>[]#|" else letter for letter in " ".join(text.split()))


def _sentence(text: str) -> str:
    return _escaped(text).rstrip(".") + "."


def _data(record: RunRecord) -> Iterator[str]:
    data = record.data
    yield data.source
    yield f"{numbers.count(data.rows)} rows to train, {numbers.count(data.test_rows)} held out."
    yield "Prepared columns: " + ", ".join(f"{name} {numbers.count(count)}" for name, count in data.columns.items())
    yield f"Task: {data.task}. {wording.classes(record)}" if data.task else ""
    yield from data.notes


def _model(record: RunRecord) -> Iterator[str]:
    yield f"Method: {record.algorithm}, on {record.runtime}, {wording.seed(record)}."
    options = record.options
    if isinstance(options.get("job"), str):  # between organisations
        yield "The job as all parties agreed to it: " + "; ".join(line for line in options["job"].splitlines() if line)
    told = [f"{key} = {_plain(options[key])}" for key in TOLD if options.get(key) not in (None, 0.0, "", [])]
    yield f"Settings: {', '.join(told)}." if told else ""
    objective = "" if record.objective is None else f"; objective {numbers.short(record.objective, 6)} on training rows"
    yield f"{numbers.short(record.passes, 3)} {wording.unit(record)}{objective}."


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _scores(record: RunRecord) -> Iterator[str]:
    for name, value in record.metrics.items():
        yield f"{wording.metric_name(name)}: {numbers.short(value)}"
    seen = record.held_out
    if seen is not None and seen.ks is not None:
        yield f"KS: {numbers.short(seen.ks)}"
    if seen is not None and len(seen.confusion) == 2:
        names = [str(name) for name in record.data.classes] or ["the negative class", "the positive class"]
        yield from _errors(names, seen.confusion)
    if record.worth is not None:
        shares = ", ".join(f"{name} {value:+.4f}" for name, value in record.worth.values.items())
        yield f"What each party is worth ({record.worth.score}, Shapley values): {shares}"
    if not record.metrics:
        yield "None were computed."


def _errors(names: Sequence[str], confusion: Sequence[Sequence[int]]) -> Iterator[str]:
    for place, (name, counts) in enumerate(zip(names, confusion, strict=True)):
        yield f"Of {numbers.count(sum(counts))} rows of {name}, {numbers.count(counts[place])} were taken for it."


def _privacy(record: RunRecord) -> Iterator[str]:
    for row in wording.privacy_rows(record):
        yield "; ".join(f"{head.lower()}: {cell}" for head, cell in zip(wording.PRIVACY_HEAD, row, strict=True) if cell)
    if not record.private:
        yield "No epsilon: neither the model nor its predictions are differentially private."
    yield from record.warnings
    for reveal in record.reveals:
        often = "once" if reveal.count == 1 else f"{numbers.count(reveal.count)} times"
        yield f"{reveal.message}, sent {often}: {reveal.reveals}"


def _limits(record: RunRecord) -> Iterator[str]:
    """What the record does not show."""
    if not record.data.test_rows:
        yield "Nothing is known about rows that it was not trained on: none were held out."
    else:
        yield (
            "Rows of another time, place or kind: the held-out rows were drawn from the same tables as the training "
            "rows, and the scores speak of such rows alone."
        )
    if record.certificate.duality_gap is None and not wording.told_elsewhere(record):
        yield "Taking it for the best model of its kind: no bound on the distance to that was computed."
    yield "Claims about causes: coefficients say what goes with what in these rows."
    yield "Claims about fairness: no group was compared with another."
    yield "Publication without thought: a model may tell about people in its training rows; see Privacy."
    if any("generated" in warning for warning in record.warnings):
        yield "Decisions about real people: its data was generated."
