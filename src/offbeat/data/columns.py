"""The names of columns, also where there are millions of them."""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray


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
