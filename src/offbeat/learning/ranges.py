"""Refusals of the blocks: rows that do not exist, and shares that do not fit the fixed-point range.

Peers read these sentences: they hold no number of a share, and no row.
"""

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadData, OutOfRange

WORD_BOUND = 2.0**63


def refuse_rows(start: int, stop: int, rows: int) -> NoReturn:
    raise IndexError(f"Expected a range of rows within 0..{rows}, not empty; got {start}..{stop}.")


def refuse_length(what: str, length: int, expected: int) -> NoReturn:
    raise ValueError(f"Expected {expected} values as {what}; got {length}.")


def refuse_share(scale: float, limit: float) -> NoReturn:
    """Say that shares do not fit, and why."""
    if limit * scale > WORD_BOUND:
        raise OutOfRange(
            f"A limit of {limit:g} with a scale of {scale:g} does not fit in 64-bit words: expected limit * scale of "
            f"at most 2^63. Lower the number of fraction bits or the limit."
        )
    raise OutOfRange(
        f"Expected shares below {limit:g} in absolute value; one is too large. Nothing was sent. Either training "
        "diverged (lower the step size) or the columns are on a very large scale (standardise them, or lower the "
        "number of fraction bits to widen the range)."
    )


def check_finite(X: NDArray[np.float64]) -> None:
    if not np.isfinite(X).all():
        raise BadData("Expected finite numbers in every column; found NaN or infinity. Fill or drop missing values.")


def refuse_number(what: str, limit: float) -> NoReturn:
    raise OutOfRange(
        f"{what} is too large: sums over the parties hold numbers below {limit:.3g} only. "
        "Bring the columns to a common scale (standardise them), or set fraction_bits lower, to 20 say: each bit "
        "less doubles the range and halves the precision."
    )
