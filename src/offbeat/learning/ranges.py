"""Refusals of the blocks: rows that do not exist, and shares that do not fit the fixed-point range."""

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadData, OutOfRange

WORD_BOUND = 2.0**63


def refuse_rows(start: int, stop: int, rows: int) -> NoReturn:
    raise IndexError(f"Expected a range of rows within 0..{rows}, not empty; got {start}..{stop}.")


def refuse_length(what: str, length: int, expected: int) -> NoReturn:
    raise ValueError(f"Expected {expected} values as {what}; got {length}.")


def refuse_share(share: NDArray[np.float64], start: int, scale: float, limit: float) -> NoReturn:
    """Say which rows do not fit, and why."""
    if limit * scale > WORD_BOUND:
        raise OutOfRange(
            f"A limit of {limit:g} with a scale of {scale:g} does not fit in 64-bit words: expected limit * scale of "
            f"at most 2^63. Lower the number of fraction bits or the limit."
        )
    outside = np.flatnonzero(~(np.abs(share) < limit))
    finite = np.isfinite(share[outside])
    largest = f"{np.abs(share[outside]).max():g}" if finite.all() else "not a finite number"
    rows = ", ".join(str(start + int(i)) for i in outside[:5]) + (", ..." if len(outside) > 5 else "")
    raise OutOfRange(
        f"Expected shares below {limit:g} in absolute value; {len(outside)} of {len(share)} rows are not (rows {rows}; "
        f"largest: {largest}). Nothing was sent. Either training diverged (lower the step size) or the columns are on "
        f"a very large scale (standardise them, or lower the number of fraction bits to widen the range)."
    )


def check_finite(X: NDArray[np.float64]) -> None:
    if not np.isfinite(X).all():
        raise BadData("Expected finite numbers in every column; found NaN or infinity. Fill or drop missing values.")
