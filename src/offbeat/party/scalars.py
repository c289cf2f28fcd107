"""A few numbers to be summed over the parties, however large or small they are.

Fixed-point words hold a range of about 2^23 with a precision of 2^-40. A squared gradient near the optimum is far
smaller, and one at the start of a regression far larger. So each number travels as four words: how often it holds 2^40;
the ones that are left; what is left of these, on the grid; and what the grid left, enlarged.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
WORDS_EACH = 4
LARGE = 2.0**40


def widen(values: Floats, scale: float) -> Floats:
    """Each value in four parts, as above: up to 2^100 fits."""
    large = np.rint(values / LARGE)
    left = values - large * LARGE
    whole = np.rint(left)
    rest = left - whole
    coarse = np.rint(rest * scale) / scale
    return np.concatenate((large / scale, whole / scale, coarse, (rest - coarse) * scale))


def narrow(sums: Floats, scale: float) -> Floats:
    """Sums of widened values back to sums of values."""
    large, whole, coarse, fine = sums.reshape(WORDS_EACH, -1)
    return np.asarray(large * scale * LARGE + (whole * scale + (coarse + fine / scale)))


def decode(words: NDArray[np.uint64], scale: float) -> Floats:
    return np.asarray(words.view(np.int64) / scale)
