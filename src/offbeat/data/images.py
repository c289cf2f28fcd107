"""Pictures with class labels, as methods with embeddings or at the edge want them."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Images:
    """One row per picture, flattened, float32 in [0, 1]; `shape` gives its form back. Labels are 0, 1, ..."""

    name: str
    x_train: NDArray[np.float32] = field(repr=False)
    y_train: NDArray[np.int64] = field(repr=False)
    x_test: NDArray[np.float32] = field(repr=False)
    y_test: NDArray[np.int64] = field(repr=False)
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    source: str
