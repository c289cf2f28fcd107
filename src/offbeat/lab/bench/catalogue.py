"""The side-by-side benchmarks: ours and its reference in one run, ratios and medians, never a time alone.

Every other module of this package lists its benchmarks in `ENTRIES`, a tuple of `Benchmark`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from offbeat.errors import BadInput
from offbeat.names import did_you_mean


def _silent(sentence: str) -> None:
    pass


@dataclass(frozen=True)
class BenchOptions:
    quick: bool = False
    seed: int = 0
    data_dir: Path | None = None
    out: Path | None = None
    say: Callable[[str], None] = _silent


@dataclass(frozen=True)
class BenchResult:
    """Rows with the same keys, and sentences on how they were measured."""

    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Benchmark:
    name: str
    title: str
    function: Callable[[BenchOptions], BenchResult]


def catalogue() -> dict[str, Benchmark]:
    """All of them by name, in the order of their modules' names."""
    import offbeat.lab.bench as package

    found: dict[str, Benchmark] = {}
    for module in iter_modules(package.__path__):
        entries = getattr(import_module(f"{package.__name__}.{module.name}"), "ENTRIES", ())
        found.update({entry.name: entry for entry in entries})
    return found


def benchmark(name: str) -> Benchmark:
    known = catalogue()
    if name not in known:
        raise BadInput(f"There is no benchmark {name!r}. {did_you_mean(name, known)}")
    return known[name]
