"""An epsilon that an attack has shown: a lower bound with a stated confidence.

Two worlds differ in one record. The attacker sees what one of them released and computes a score, best the log of the
likelihood ratio. If the mechanism were (epsilon, delta)-private, then for every set A of scores

    P[score in A | world one] <= e^epsilon P[score in A | world two] + delta.

So from many runs of both worlds, epsilon >= log((p - delta) / q), p from below and q from above by Clopper and Pearson.
The set A is chosen on one half of the runs and judged on the other, so that choosing costs no confidence.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtr, ndtri

Scores = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shown:
    """The bound, the test that showed it, and how often it fired in each world."""

    epsilon: float
    threshold: float
    fired_one: int
    fired_two: int
    runs: int
    confidence: float


def epsilon_shown(one: Scores, two: Scores, delta: float, confidence: float = 0.95) -> Shown:
    """The largest epsilon that the scores of the two worlds prove, by a threshold from above or from below, in either
    direction of the inequality. 0 if they prove nothing."""
    half = min(one.size, two.size) // 2
    best = Shown(0.0, math.nan, 0, 0, half, confidence)
    candidates = [(a, b, sign) for a, b in ((one, two), (two, one)) for sign in (1.0, -1.0)]
    share = 1 - (1 - confidence) / len(candidates)
    for first, second, sign in candidates:
        threshold = _best_threshold(sign * first[:half], sign * second[:half], delta, share)
        fired = [int((sign * world[half : 2 * half] > threshold).sum()) for world in (first, second)]
        found = float(_bounds(np.array(fired[0]), np.array(fired[1]), half, delta, share))
        if found > best.epsilon:
            best = Shown(found, sign * threshold, fired[0], fired[1], half, confidence)
    return best


def _best_threshold(first: Scores, second: Scores, delta: float, confidence: float) -> float:
    grid = np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0.0005, 0.9995, 400)))
    fired_first = first.size - np.searchsorted(np.sort(first), grid, side="right")
    fired_second = second.size - np.searchsorted(np.sort(second), grid, side="right")
    return float(grid[int(np.argmax(_bounds(fired_first, fired_second, first.size, delta, confidence)))])


def _bounds(fired_first: Counts, fired_second: Counts, runs: int, delta: float, confidence: float) -> Scores:
    each = (1 - confidence) / 2
    p = np.where(fired_first > 0, betaincinv(np.maximum(fired_first, 1), runs - fired_first + 1, each), 0.0)
    q = np.where(fired_second < runs, betaincinv(fired_second + 1, np.maximum(runs - fired_second, 1), 1 - each), 1.0)
    shown = (p > delta) & (q > 0)
    return np.log(np.where(shown, p - delta, 1.0) / np.where(shown, q, 1.0), where=shown, out=np.full(p.shape, -np.inf))


def exponential_norm_score(released: Scores, one: Scores, two: Scores, scale: float) -> float:
    """Log of the likelihood ratio under MAPA's printed noise around `one` and around `two`: the density is
    proportional to exp(-r/scale) r^-(d-1), r the distance from the true value."""
    near, far = float(np.linalg.norm(released - one)), float(np.linalg.norm(released - two))
    return (far - near) / scale + (released.size - 1) * math.log(max(far, 1e-300) / max(near, 1e-300))


def reachable_as_doubles(released: Scores, value: Scores, deviation: float, divisor: float) -> npt.NDArray[np.bool_]:
    """Which coordinates can be (value + deviation * ndtri(u)) / divisor in doubles, u one of 2^52 uniform numbers.

    Of noise drawn as doubles, all coordinates can be reached from the true value, and few from another one near it
    (Mironov 2012). To be tried on every release that is said to be private.
    """
    found = np.zeros(released.size, dtype=bool)
    for toward in (-np.inf, 0.0, np.inf):  # the division may have rounded either way
        sums = released * divisor if toward == 0 else np.nextafter(released * divisor, toward)
        divides = sums / divisor == released
        nearest = np.floor(ndtr((sums - value) / deviation) * 2.0**52 - 0.5)
        for step in range(-6, 7):
            found |= divides & (value + deviation * ndtri((nearest + step + 0.5) * 2.0**-52) == sums)
    return found
