"""Numbers as Prometheus reads them: text, one line a number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """One name with its values by labels. `kind` is "counter" or "gauge"."""

    name: str
    kind: str
    meaning: str
    values: Mapping[Labels, float] = field(default_factory=dict)


def single(name: str, kind: str, meaning: str, value: float) -> Metric:
    return Metric(name, kind, meaning, {(): value})


def by(label: str, values: Mapping[Any, float]) -> dict[Labels, float]:
    """Values that differ in one label."""
    return {((label, str(name)),): float(value) for name, value in values.items()}


def metrics_text(families: Sequence[Metric]) -> str:
    lines: list[str] = []
    for family in families:
        name = f"offbeat_{family.name}"
        lines += [f"# HELP {name} {_escaped(family.meaning)}", f"# TYPE {name} {family.kind}"]
        lines += [f"{name}{_shown(labels)} {value:.15g}" for labels, value in sorted(family.values.items())]
    return "\n".join(lines) + "\n"


def _shown(labels: Labels) -> str:
    quote = '"'
    inside = ",".join(f"{key}={quote}{_escaped(value).replace(quote, chr(92) + quote)}{quote}" for key, value in labels)
    return f"{{{inside}}}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
