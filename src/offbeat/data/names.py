"""Names: of parties and edges when nobody chose any, of columns when there are millions, and the nearest right one."""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob

PARTY_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?")
FRIENDLY = ("bank", "shop", "telecom", "insurer")


def party_names(count: int) -> tuple[str, ...]:
    """bank, shop, telecom, insurer, then party5, party6, ..."""
    return tuple(FRIENDLY[i] if i < len(FRIENDLY) else f"party{i + 1}" for i in range(count))


def edge_names(count: int) -> tuple[str, ...]:
    """edge1, edge2, ..."""
    return tuple(f"edge{i + 1}" for i in range(count))


def check_party_names(names: Iterable[object], where: str) -> None:
    """Models and logs are written to files named after the parties, so not every text is a name."""
    for name in names:
        if not isinstance(name, str) or not PARTY_NAME.fullmatch(name):
            shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:77]}..."
            raise BadJob(
                f"{where}: {shown} cannot be a party's name. Expected a text of letters a to z, digits, '-' and '_', "
                "perhaps '.' inside, 64 characters at most, as in 'bank-2'. Rename the party."
            )


def nearest(wanted: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that look most like the wanted one, best first; capitals do not count."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wanted.lower(), list(by_lower), n=count, cutoff=0.6)
    return [by_lower[name] for name in close]


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?`, or the first few known names when nothing is near."""
    names = list(known)
    close = nearest(wanted, names)
    if close:
        return "Did you mean " + " or ".join(repr(name) for name in close) + "?"
    if not names:
        return "There are none."
    shown = ", ".join(repr(name) for name in names[:8])
    return f"There are: {shown}{' and more' if len(names) > 8 else ''}."


class NumberedColumns(Sequence[str]):
    """The names of many unnamed columns (`x17`), made when asked for: a million strings are not worth keeping."""

    def __init__(self, numbers: NDArray[np.int64] | range, prefix: str = "x") -> None:
        self.numbers = numbers
        self.prefix = prefix

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "NumberedColumns": ...
    def __getitem__(self, index: int | slice) -> "str | NumberedColumns":
        if isinstance(index, slice):
            return NumberedColumns(self.numbers[index], self.prefix)
        return f"{self.prefix}{self.numbers[index]}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    def __hash__(self) -> int:
        return hash((self.prefix, len(self)))

    def __repr__(self) -> str:
        return f"NumberedColumns({len(self)} columns, {self[0]!r}...)" if len(self) else "NumberedColumns(0 columns)"

    def take(self, positions: NDArray[np.int64]) -> "NumberedColumns":
        return NumberedColumns(np.asarray(self.numbers)[positions], self.prefix)


def take_names(columns: Sequence[str], positions: NDArray[np.int64]) -> Sequence[str]:
    """The names at these positions, in this order."""
    if isinstance(columns, NumberedColumns):
        return columns.take(positions)
    return tuple(columns[i] for i in positions)
