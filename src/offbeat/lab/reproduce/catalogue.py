"""The published tables and figures that can be redrawn.

Every other module of this package lists what it redraws in `ENTRIES`, a tuple of `Reproduction`. A row of a result
says at least which `setting` it is, what `ours` is, what was `published` and the `verdict` on both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from offbeat.errors import BadInput
from offbeat.names import did_you_mean


def _silent(sentence: str) -> None:
    pass


@dataclass(frozen=True)
class ReproduceOptions:
    """What the command line passes on. `files`: a user's own file for a setting, in place of a stand-in."""

    quick: bool = False
    seed: int = 0
    data_dir: Path | None = None
    out: Path = Path("out")
    files: Mapping[str, Path] = field(default_factory=dict)
    say: Callable[[str], None] = _silent


@dataclass(frozen=True)
class ReproduceResult:
    """Rows beside the published ones, figures that were drawn, and sentences on where and why we differ."""

    rows: Sequence[Mapping[str, Any]]
    figures: Sequence[Path] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Reproduction:
    name: str
    title: str
    function: Callable[[ReproduceOptions], ReproduceResult]


def catalogue() -> dict[str, Reproduction]:
    """All of them by name, in the order of their modules' names."""
    import offbeat.lab.reproduce as package

    found: dict[str, Reproduction] = {}
    for module in iter_modules(package.__path__):
        entries = getattr(import_module(f"{package.__name__}.{module.name}"), "ENTRIES", ())
        found.update({entry.name: entry for entry in entries})
    return found


def reproduction(name: str) -> Reproduction:
    known = catalogue()
    if name not in known:
        raise BadInput(f"There is nothing to reproduce under the name {name!r}. {did_you_mean(name, known)}")
    return known[name]
