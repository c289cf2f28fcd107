"""Generated data: small problems with a planted model, credit-like tables and digit-like pictures.

All of it is made from a seed, says in its `about` that it is generated, and needs no file.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from offbeat.data.columns import NumberedColumns
from offbeat.data.dataset import DataSet, Images
from offbeat.data.matrix import Floats
from offbeat.data.table import Table
from offbeat.data.tabular_sets import CREDIT_PREPARATIONS, PAY

# -- planted models ------------------------------------------------------------------------------------------------


def known_logistic(seed: int = 0) -> DataSet:
    return _known_set("logistic", seed)


def known_ridge(seed: int = 0) -> DataSet:
    return _known_set("ridge", seed)


def _known_set(loss: Literal["logistic", "ridge"], seed: int, rows: int = 400, columns: int = 24) -> DataSet:
    """Gaussian columns (neighbours correlated), rows scaled to norm 1, labels from a planted model with noise."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((rows, columns))
    mixed = base + 0.5 * np.roll(base, 1, axis=1)
    features = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    score = features @ (3.0 * rng.standard_normal(columns))
    if loss == "ridge":
        y = score + 0.1 * rng.standard_normal(rows)
    else:
        y = np.where(rng.random(rows) < _sigmoid(score), 1.0, -1.0)
    return DataSet(
        name=f"known-{loss}",
        about=f"{loss} problem with a planted model (generated, seed {seed}, {rows:,} rows)",
        table=Table(np.arange(rows, dtype=np.int64), NumberedColumns(range(columns)), features, y, f"known-{loss}"),
        task="classification" if loss == "logistic" else "regression",
    )


def _sigmoid(z: Floats) -> Floats:
    return np.exp(-np.logaddexp(0.0, -z))


# -- credit-like ---------------------------------------------------------------------------------------------------


def credit_like(n: int = 30_000, seed: int = 0) -> DataSet:
    """Clients of a made-up card issuer, with the columns of the UCI set: six months of payment status, bills and
    payments that hang together, and 22.1 % defaults. Not real, and not fitted to anyone."""
    rng = np.random.default_rng(seed)
    person = _people(n, rng)
    months = _months(person, rng)
    columns = {**_raw_people(person, rng), **months}
    risk = _default_score(person, columns, rng)
    default = (risk > np.quantile(risk, 1 - 0.2212)).astype(np.float64)
    table = Table(
        ids=np.arange(1, n + 1, dtype=np.int64),
        columns=tuple(columns),
        features=np.column_stack(list(columns.values())),
        labels=default,
        name="credit-like",
    )
    return DataSet(
        name="credit-like",
        about=f"credit-like table (generated, seed {seed}, {n:,} rows, 23 raw columns)",
        table=table,
        task="classification",
        preparations=CREDIT_PREPARATIONS,
        usual="01",
    )


@dataclass(frozen=True)
class _Person:
    strain: Floats  # how tight money is; the hidden cause behind all columns
    limit: Floats
    use: Floats  # share of the limit that is drawn


def _people(n: int, rng: np.random.Generator) -> _Person:
    strain = rng.standard_normal(n)
    limit = np.clip(np.exp(11.7 - 0.35 * strain + 0.75 * rng.standard_normal(n)), 1e4, 1e6)
    use = _sigmoid(-0.4 + 0.9 * strain + 1.2 * rng.standard_normal(n))
    return _Person(strain, np.round(limit, -4), use)


def _raw_people(person: _Person, rng: np.random.Generator) -> dict[str, Floats]:
    n = person.strain.size
    age = np.clip(np.round(21 + rng.gamma(2.6, 5.4, n)), 21, 79)
    return {
        "LIMIT_BAL": person.limit,
        "SEX": 1.0 + (rng.random(n) < 0.604),
        "EDUCATION": _draw([0, 1, 2, 3, 4, 5, 6], [0.0005, 0.353, 0.4675, 0.164, 0.004, 0.009, 0.002], n, rng),
        "MARRIAGE": np.where(rng.random(n) < 0.011, 3.0, 1.0 + (rng.random(n) > _sigmoid((age - 34) / 8))),
        "AGE": age,
    }


def _draw(values: list[int], shares: list[float], n: int, rng: np.random.Generator) -> Floats:
    weights = np.array(shares) / np.sum(shares)
    return rng.choice(np.array(values, dtype=np.float64), size=n, p=weights)


def _months(person: _Person, rng: np.random.Generator) -> dict[str, Floats]:
    """Newest month first, as in the UCI set: status, then bills, then payments."""
    n = person.strain.size
    status: dict[str, Floats] = {}
    bills: dict[str, Floats] = {}
    paid: dict[str, Floats] = {}
    late, use = np.zeros(n), person.use
    idle = rng.random(n) < 0.12
    for month in range(6, 0, -1):
        slips = rng.random(n) < _sigmoid(-2.9 + 1.1 * person.strain + 2.6 * (late > 0))
        late = np.where(
            slips, np.minimum(np.where(late > 0, late + (rng.random(n) < 0.25), 1 + (rng.random(n) < 0.8)), 8), 0
        )
        use = np.clip(0.9 * use + 0.1 * person.use + 0.06 * rng.standard_normal(n), -0.02, 1.2)
        bill = np.where(idle & (late == 0), np.maximum(0, 400 * rng.standard_normal(n)), use * person.limit)
        share = np.clip(rng.lognormal(-2.9 - 0.5 * person.strain, 1.0), 0, 1)
        in_full = rng.random(n) < 0.25
        status[PAY[month - 1]] = np.where(late > 0, late, np.where(bill <= 0, -2.0, np.where(in_full, -1.0, 0.0)))
        bills[f"BILL_AMT{month}"] = np.asarray(np.round(bill), dtype=np.float64)
        paid[f"PAY_AMT{month}"] = np.round(
            np.maximum(bill, 0) * np.where(late > 0, 0.2 * share, np.where(in_full, 1.0, share))
        )
    newest_first = [dict(reversed(group.items())) for group in (status, bills, paid)]
    return {name: values for group in newest_first for name, values in group.items()}


def _default_score(person: _Person, columns: dict[str, Floats], rng: np.random.Generator) -> Floats:
    late_now, late_before = np.maximum(columns["PAY_0"], 0), np.maximum(columns["PAY_2"], 0)
    score = 0.8 * np.minimum(late_now, 3) + 0.25 * np.minimum(late_before, 3) + 0.35 * person.strain + 0.4 * person.use
    score = score - 0.25 * np.log(columns["PAY_AMT1"] + 1) / 4 + 0.1 * (columns["SEX"] == 1)
    return np.asarray(score + rng.logistic(size=score.size))


# -- digit-like ----------------------------------------------------------------------------------------------------


def digits_like(n: int = 3_000, seed: int = 0, side: int = 28, test: int | None = None) -> Images:
    """Ten made-up glyphs, shifted, dimmed and noisy: pictures for tests, the size of MNIST's by default."""
    rng = np.random.default_rng(seed)
    glyphs = _glyphs(side)
    kept = n // 6 if test is None else test
    labels = rng.integers(0, 10, size=n + kept)
    shifts = rng.integers(-2, 3, size=(n + kept, 2))
    pictures = np.empty((n + kept, side, side), dtype=np.float32)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            mine = (shifts[:, 0] == dy) & (shifts[:, 1] == dx)
            pictures[mine] = np.roll(glyphs, (dy, dx), axis=(1, 2))[labels[mine]]
    pictures *= rng.uniform(0.6, 1.0, size=(n + kept, 1, 1)).astype(np.float32)
    pictures += rng.normal(0, 0.15, size=pictures.shape).astype(np.float32)
    rows = np.clip(pictures, 0, 1).reshape(n + kept, side * side)
    return Images(
        name="digits-like",
        x_train=rows[:n],
        y_train=labels[:n],
        x_test=rows[n:],
        y_test=labels[n:],
        shape=(side, side),
        classes=tuple(str(digit) for digit in range(10)),
        source=f"digit-like pictures (generated, seed {seed}, {n:,} + {kept:,} of {side}x{side}, values 0-1)",
    )


def _glyphs(side: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.float32]]:
    """Three strokes of a soft pen each, the same for every seed, so that sets of different seeds fit together."""
    rng = np.random.default_rng(20_260_101)
    y, x = np.mgrid[0:side, 0:side] / (side - 1)
    glyphs = np.zeros((10, side, side))
    for glyph in glyphs:
        for _ in range(3):
            (y0, x0), (y1, x1) = rng.uniform(0.2, 0.8, size=(2, 2))
            for t in np.linspace(0, 1, 24):
                near = np.exp(-((y - y0 - t * (y1 - y0)) ** 2 + (x - x0 - t * (x1 - x0)) ** 2) / 0.004)
                np.maximum(glyph, near, out=glyph)
    return glyphs.astype(np.float32)
