"""Step sizes and batch sizes, each rule with its source.

L is the largest eigenvalue of curvature X^T X / n over all parties' columns, L_max = curvature * (largest row norm)^2,
both in the metric of the steps; `party/smoothness.py` measures them.
"""

import math
from typing import NamedTuple

from offbeat.errors import BadJob
from offbeat.learning.losses import unknown_name

FACTORS = {"sgd": 0.5, "svrg": 1.0, "saga": 1.0}
BATCH_PLAIN, BATCH_PLAIN_MOST = 64, 128
BATCH_LEAST, BATCH_MOST = 16, 4096
BLOCKS_A_PASS, BLOCKS_A_PASS_LEAST = 32, 8
LAG_COST = 0.4


class Steepness(NamedTuple):
    """How steep a problem is, in the metric of the steps."""

    smoothness: float  # L
    row_smoothness: float  # L_max
    plain: bool  # whether some block steps without a metric, or by a diagonal alone


def batch_smoothness(smoothness: float, row_smoothness: float, batch: int, rows: int) -> float:
    """L_b = n(b-1)/(b(n-1)) L + (n-b)/(b(n-1)) L_max: expected smoothness of a batch drawn without replacement.

    Gower et al., "SGD: General Analysis and Improved Rates" (2019), Proposition 3.8. It is L_max at b = 1, L at b = n.
    """
    if rows == 1:
        return smoothness
    batch = min(batch, rows)
    whole = rows * (batch - 1) / (batch * (rows - 1))
    single = (rows - batch) / (batch * (rows - 1))
    return whole * smoothness + single * row_smoothness


def default_step(method: str, smoothness: float, row_smoothness: float, batch: int, rows: int) -> float:
    """eta = c / L_b, with c = 1 (SVRG, SAGA) or 0.5 (SGD)."""
    if method not in FACTORS:
        raise BadJob(unknown_name("method", method, list(FACTORS)))
    steep = batch_smoothness(smoothness, row_smoothness, batch, rows)
    if not (math.isfinite(steep) and steep > 0.0):
        raise BadJob(
            f"Expected positive smoothness constants to choose a step size from; got {smoothness} and "
            f"{row_smoothness}. Set the step size."
        )
    return FACTORS[method] / steep


def lag_factor(lag: float) -> float:
    """What a step is multiplied by whose derivative is so many versions old, on average.

    A constant lag of k is stable below 2 sin(pi / (2 (2k + 1))) / L. This is less up to a lag of two, and at most 1.6
    times as much beyond. But lags vary, most of a derivative's age is in other parties' blocks, and what was measured
    as stable lies at two to three times this (docs/explanation/staleness.md).
    """
    return 1.0 / (1.0 + LAG_COST * lag)


def decayed(eta: float, strength: float, step: int) -> float:
    """eta_t = eta / (1 + eta * strength * t): SGD's step under a penalty of this strength.

    Bottou, "Stochastic Gradient Descent Tricks" (2012), section 5.2. Without a penalty it stays constant.
    """
    return eta / (1.0 + eta * strength * step)


def default_batch(found: Steepness, method: str, rows: int, trip_rows: float = 0.0) -> int:
    """How many rows one update looks at.

    Where every block steps by all of its curvature, a pass of 32 long updates gains about as much as one of hundreds
    of short ones. Elsewhere updates are the ones that go forward: 2 L_max / L to the nearest power of two, for beyond
    that a larger batch saves none, between 64 and 128. Where a round trip takes the time of more rows than that, as
    many, but at least 8 blocks make a pass.
    """
    if found.plain or method == "sgd":
        wanted = 2.0 * found.row_smoothness / found.smoothness if found.smoothness > 0.0 else BATCH_PLAIN
        batch = 2 ** round(math.log2(min(max(wanted, BATCH_PLAIN), BATCH_PLAIN_MOST)))
    else:
        batch = min(max(rows // BLOCKS_A_PASS, BATCH_LEAST), BATCH_MOST)
    batch = max(batch, min(trip_rows, BATCH_MOST))
    return max(1, min(int(batch), max(rows // BLOCKS_A_PASS_LEAST, 1)))


def grid(decades: int = 6) -> tuple[float, ...]:
    """{5, 1} x 10^-j, largest first: the grid the papers tune over."""
    return tuple(lead / 10**j for j in range(decades) for lead in (5.0, 1.0))
