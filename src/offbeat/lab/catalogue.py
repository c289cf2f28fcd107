"""What can be redrawn and what can be measured.

    lab/reproduce   published tables and figures
    lab/bench       ours beside its reference in one run: ratios and medians, never a time alone

A module of either package lists its pieces in `ENTRIES`. A row of a reproduction says at least which `setting` it is,
what `ours` is, what was `published` and the `verdict` on both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Literal

from offbeat.errors import BadInput
from offbeat.names import did_you_mean

Kind = Literal["reproduce", "bench"]


def _silent(sentence: str) -> None:
    pass


@dataclass(frozen=True)
class LabOptions:
    """What the command line passes on. `files`: a user's own file for a setting, in place of a stand-in; `job`: a job
    whose data a benchmark is to use."""

    quick: bool = False
    seed: int = 0
    data_dir: Path | None = None
    out: Path = Path("out")
    files: Mapping[str, Path] = field(default_factory=dict)
    job: Path | None = None
    draws: bool = False  # a benchmark that can, draws its figures into `out`
    say: Callable[[str], None] = _silent


@dataclass(frozen=True)
class LabResult:
    """Rows with the same keys, figures that were drawn, and sentences on how they came about and where they differ.
    `more` is for programs: it stands beside the rows in JSON. `smaller`: how small a run with the same settings was
    made. Each row's setting says it, so that nobody compares such a row with one of a full run."""

    rows: Sequence[Mapping[str, Any]]
    figures: Sequence[Path] = ()
    notes: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    smaller: str = ""

    @property
    def told(self) -> list[dict[str, Any]]:
        """The rows, with their size in their setting."""
        size = f" ({self.smaller})" if self.smaller else ""
        return [{**row, "setting": f"{row['setting']}{size}"} if size else dict(row) for row in self.rows]


@dataclass(frozen=True)
class Entry:
    name: str
    title: str
    function: Callable[[LabOptions], LabResult]


def catalogue(kind: Kind) -> dict[str, Entry]:
    """All pieces of a kind by name, in the order of their modules' names."""
    package = import_module(f"offbeat.lab.{kind}")
    found: dict[str, Entry] = {}
    for module in iter_modules(package.__path__):
        entries = getattr(import_module(f"{package.__name__}.{module.name}"), "ENTRIES", ())
        found.update({entry.name: entry for entry in entries})
    return found


def entry_named(kind: Kind, name: str) -> Entry:
    known = catalogue(kind)
    if name not in known:
        what = "There is nothing to reproduce under the name" if kind == "reproduce" else "There is no benchmark"
        raise BadInput(f"{what} {name!r}. {did_you_mean(name, known)}")
    return known[name]
