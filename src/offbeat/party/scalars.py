"""A few numbers to be summed over the parties, however large or small they are.

Fixed-point words hold a range of about 2^23 with a precision of 2^-40. A squared gradient near the optimum is far
smaller, and one at the start of a regression far larger. So each number travels as three words: its whole part, counted
in ones; what is left, on the grid; and what the grid left, enlarged.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
WORDS_EACH = 3


def widen(values: Floats, scale: float) -> Floats:
    """Each value as (its whole part, the rest on the grid, the remainder): up to 2^62 fits."""
    whole = np.rint(values)
    rest = values - whole
    coarse = np.rint(rest * scale) / scale
    return np.concatenate((whole / scale, coarse, (rest - coarse) * scale))


def narrow(sums: Floats, scale: float) -> Floats:
    """Sums of widened values back to sums of values."""
    whole, coarse, fine = sums.reshape(WORDS_EACH, -1)
    return np.asarray(whole * scale + (coarse + fine / scale))


def decode(words: NDArray[np.uint64], scale: float) -> Floats:
    return np.asarray(words.view(np.int64) / scale)
