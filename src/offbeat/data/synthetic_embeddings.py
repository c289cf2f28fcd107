"""Generated stand-ins for what methods with embeddings learn from: solids seen from several sides, and time series."""

import numpy as np

from offbeat.data.holdout import held_out
from offbeat.data.image_sets import Bytes, Solids
from offbeat.data.series import Cube, Series, build_series

SOLIDS = ("box", "ball", "cylinder", "table", "frame")


def solids_like(n: int = 400, seed: int = 0, side: int = 30, test: int | None = None) -> Solids:
    """Five kinds of made-up solids of random size and place on a grid of cubes."""
    rng = np.random.default_rng(seed)
    kept = n // 4 if test is None else test
    labels = rng.integers(0, len(SOLIDS), size=n + kept)
    grids = np.stack([_solid(SOLIDS[label], side, rng) for label in labels])
    return Solids(
        name="solids-like",
        x_train=grids[:n],
        y_train=labels[:n],
        x_test=grids[n:],
        y_test=labels[n:],
        classes=SOLIDS,
        source=f"solids on a grid of {side}x{side}x{side} (generated, seed {seed}, {n:,} + {kept:,} objects)",
    )


def _solid(kind: str, side: int, rng: np.random.Generator) -> Bytes:
    z, y, x = (axis - rng.uniform(-2, 2) - (side - 1) / 2 for axis in np.mgrid[0:side, 0:side, 0:side].astype(float))
    a, b, c = rng.uniform(0.2, 0.42, size=3) * side
    inside = (abs(x) < a) & (abs(y) < b) & (abs(z) < c)
    if kind == "ball":
        inside = (x / a) ** 2 + (y / b) ** 2 + (z / c) ** 2 < 1
    elif kind == "cylinder":
        inside = ((x / a) ** 2 + (y / b) ** 2 < 1) & (abs(z) < c)
    elif kind == "table":
        inside &= (z > 0.6 * c) | ((abs(x) > 0.75 * a) & (abs(y) > 0.75 * b))
    elif kind == "frame":
        inside &= (abs(x) > 0.7 * a) | (abs(z) > 0.7 * c)
    return np.asarray(inside, dtype=np.uint8)


ICU_LIKE = {
    "monitor": ("pulse", "pressure", "breaths"),
    "chemistry": ("urea", "sodium"),
    "blood": ("cells", "oxygen"),
    "ward": ("alertness", "age"),
}


def icu_like(n: int = 800, seed: int = 0, steps: int = 48) -> Series:
    """Made-up stays: a hidden severity that drifts, seen through noisy, irregular measurements at four clients."""
    rng = np.random.default_rng(seed)
    severity = rng.standard_normal((n, 1)) + np.cumsum(0.12 * rng.standard_normal((n, steps)), axis=1)
    chance = 1.0 / (1.0 + np.exp(2.4 - 1.6 * severity[:, -12:].mean(axis=1)))
    died = (rng.random(n) < chance).astype(np.int64)
    raw = {client: _measured(severity, len(names), rng) for client, names in ICU_LIKE.items()}
    ids = np.arange(1, n + 1, dtype=np.int64)
    return build_series(
        name="icu-like",
        raw=raw,
        measurements=ICU_LIKE,
        y=died,
        ids=ids,
        test=held_out(ids, seed=seed, fraction=0.2),
        source=f"icu-like stays (generated, seed {seed}, {n:,} stays, {steps} steps at four clients)",
    )


def _measured(
    severity: np.ndarray[tuple[int, int], np.dtype[np.float64]], count: int, rng: np.random.Generator
) -> Cube:
    shape = (*severity.shape, count)
    values = severity[:, :, None] * rng.uniform(-1, 1, size=count) + rng.standard_normal(shape)
    taken = rng.random(shape) < rng.uniform(0.1, 0.8, size=count)
    return np.where(taken, values, np.nan).astype(np.float32)
