"""Step sizes and batch sizes, each rule with its source.

L is the largest eigenvalue of curvature X^T X / n over all parties' columns, L_max = curvature * (largest row norm)^2;
both come from `Block.smoothness`, and a sum over the parties bounds either from above. Lag is how many versions old a
derivative is when it is applied: with m dominators in turn it is m - 1.
"""

import math

from offbeat.errors import BadJob
from offbeat.learning.losses import unknown_name

FACTOR_AT_LAG_2 = {"sgd": 0.5, "svrg": 0.5, "saga": 0.35}
BATCH_MOST = 128


def _batch_parts(smoothness: float, row_smoothness: float, batch: int, rows: int) -> tuple[float, float]:
    """The two terms of L_b: what all rows have in common, and the noise of drawing only some."""
    if rows == 1:
        return smoothness, 0.0
    batch = min(batch, rows)
    whole = rows * (batch - 1) / (batch * (rows - 1))
    single = (rows - batch) / (batch * (rows - 1))
    return whole * smoothness, single * row_smoothness


def staleness_bound(lag: float) -> float:
    """The largest stable eta * L for a gradient that is `lag` steps old: 2 sin(pi / (2 (2 lag + 1))).

    From the characteristic equation of w_{t+1} = w_t - eta L w_{t-lag}: 2 at no lag, 0.62 at a lag of 2.
    """
    return 2.0 * math.sin(math.pi / (2.0 * (2.0 * lag + 1.0)))


def default_step(
    method: str, smoothness: float, row_smoothness: float, batch: int, rows: int, lag: float = 2.0
) -> float:
    """eta = c / L_b at a lag of 2, with c = 0.5 (SGD, SVRG) or 0.35 (SAGA), scaled by `staleness_bound` elsewhere.

    Less lag allows longer steps along what the rows have in common, but does not lessen the noise: below a lag of 2
    only the first term of L_b is scaled. (SVRG on credit data, row by row without lag, took 10 passes to 1e-4 with a
    step of 0.5 / L_max, 18 with 1 / L_max, and diverged with 2 / L_max.)
    """
    if method not in FACTOR_AT_LAG_2:
        raise BadJob(unknown_name("method", method, list(FACTOR_AT_LAG_2)))
    common, noise = _batch_parts(smoothness, row_smoothness, batch, rows)
    if not (math.isfinite(common + noise) and common + noise > 0.0):
        raise BadJob(
            f"Expected positive smoothness constants to choose a step size from; got {smoothness} and "
            f"{row_smoothness}. Set the step size."
        )
    scale = staleness_bound(lag) / staleness_bound(2.0)
    return FACTOR_AT_LAG_2[method] / (common / scale + noise / min(scale, 1.0))


def decayed(eta: float, strength: float, step: int) -> float:
    """eta_t = eta / (1 + eta * strength * t): SGD's step under a penalty of this strength.

    Bottou, "Stochastic Gradient Descent Tricks" (2012), section 5.2. Without a penalty it stays constant.
    """
    return eta / (1.0 + eta * strength * step)


def default_batch(smoothness: float, row_smoothness: float, floor: int = 16) -> int:
    """2 L_max / L to the nearest power of two, at least `floor` and at most 128.

    Beyond a few times L_max / L a larger batch saves no updates; below `floor` (rows whose arithmetic costs about as
    much as one update's messages: 64 for narrow dense blocks, 16 for hundreds of non-zeros) it saves no time.
    """
    wanted = 2.0 * row_smoothness / smoothness if smoothness > 0.0 else BATCH_MOST
    clipped = min(max(wanted, floor, 1), BATCH_MOST)
    return int(2 ** round(math.log2(clipped)))


def grid(decades: int = 6) -> tuple[float, ...]:
    """{5, 1} x 10^-j, largest first: the grid the papers tune over."""
    return tuple(lead / 10**j for j in range(decades) for lead in (5.0, 1.0))
