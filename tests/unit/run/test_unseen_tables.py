"""Tables as organisations have them, made up here: a default fit is not refused, and is the pooled model.

The measure is scikit-learn on the pooled columns, prepared by the same parties in the same way.
"""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import roc_auc_score

from offbeat import VerticalClassifier, VerticalRegressor

ROWS, FITTED = 600, 420
PARTIES = {
    "bank": ["income", "age", "since"],
    "shop": ["ort", "tiny", "married", "grade"],
    "telecom": ["huge", "score", "vip", "still", "plan"],
}


def table(seed=0):
    """Every type that a frame can have, raw scales from 1e-6 to 1e9, and gaps; and a score that depends on most."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": 1e3 * rng.lognormal(10, 1, ROWS),
            "age": pd.array(rng.integers(18, 90, ROWS), dtype="Int64"),
            "since": pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 3000, ROWS), unit="D"),
            "ort": rng.choice(["Köln", "北京", "São Paulo", "Ελλάδα", "🙂"], ROWS, p=[0.4, 0.3, 0.15, 0.1, 0.05]),
            "tiny": 1e-6 * rng.normal(size=ROWS),
            "married": rng.random(ROWS) < 0.5,
            "grade": pd.Categorical(rng.choice(list("ABCD"), ROWS), ordered=True),
            "huge": 1e9 * rng.normal(size=ROWS),
            "score": rng.normal(size=ROWS),
            "vip": pd.array(rng.random(ROWS) < 0.1, dtype="boolean"),
            "still": 7.0,
            "plan": pd.array(rng.choice(["x", "y", "z"], ROWS), dtype="string"),
        }
    )
    score = np.log(frame.income / 1e3) - 10 + 5e5 * frame.tiny - frame.huge / 1e9 + (frame.ort == "Köln")
    score = score + (frame.age.astype(float) - 50) / 30 + (frame.since.dt.year - 2018) / 3 + 0.5 * frame.married
    for column, share, gap in (
        ("income", 0.2, np.nan),
        ("age", 0.1, pd.NA),
        ("ort", 0.1, None),
        ("since", 0.05, pd.NaT),
    ):
        frame.loc[rng.random(ROWS) < share, column] = gap
    frame.loc[rng.random(ROWS) < 0.1, ["vip", "plan"]] = pd.NA
    return frame, score.to_numpy(), rng


def cut(frame, rows, parties):
    return {party: frame[columns].iloc[rows] for party, columns in parties.items()}


def prepared(model, rows):
    return np.hstack([np.asarray(one) for one in model.model_.blocks(model.model_.tables(rows)).values()])


FRAME, SCORE, RNG = table()
NOISY = SCORE + RNG.logistic(size=ROWS)
LOGISTIC = LogisticRegression(C=1 / (FITTED * 1e-4), max_iter=20_000, tol=1e-8)
LEAST_SQUARES = Ridge(alpha=FITTED * 1e-4 / 2)
POISSON, GAMMA = (kind(alpha=1e-4, max_iter=5000, tol=1e-8) for kind in (PoissonRegressor, GammaRegressor))
TENTHS = np.digitize(NOISY, np.quantile(NOISY, np.arange(1, 10) / 10))
ONE_EACH = {"bank": ["income"], "shop": ["ort"], "telecom": ["score"]}
CASES = {
    "two classes": (VerticalClassifier(), np.where(NOISY > 0, "ja", "nein"), PARTIES, LOGISTIC),
    "bins": (VerticalClassifier(prepare="bins"), NOISY > 0, PARTIES, LOGISTIC),
    "ten classes": (VerticalClassifier(), TENTHS, PARTIES, LOGISTIC),
    "3 % positive": (VerticalClassifier(), np.quantile(NOISY, 0.97) < NOISY, PARTIES, LOGISTIC),
    "large numbers": (VerticalRegressor(), 5e8 + 1e7 * NOISY, PARTIES, LEAST_SQUARES),
    "small numbers": (VerticalRegressor(), 1e-7 * NOISY, PARTIES, LEAST_SQUARES),
    "counts": (VerticalRegressor(loss="poisson"), RNG.poisson(np.exp(SCORE / 4)), PARTIES, POISSON),
    "amounts": (VerticalRegressor(loss="gamma"), np.exp(SCORE / 4) * RNG.gamma(2, 1, ROWS), PARTIES, GAMMA),
    "one column each": (VerticalClassifier(), NOISY > 0, ONE_EACH, LOGISTIC),
    "a party of constants": (VerticalClassifier(), NOISY > 0, {**ONE_EACH, "shop": ["still"]}, LOGISTIC),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning:offbeat")
def test_a_default_fit_is_the_pooled_model(case):
    model, y, parties, pooled = CASES[case]
    train, test = (cut(FRAME, rows, parties) for rows in (slice(0, FITTED), slice(FITTED, ROWS)))
    model.fit(train, y[:FITTED])
    pooled.fit(prepared(model, train), y[:FITTED])
    assert model.record_.verdict == "target"
    rows = prepared(model, test)
    if isinstance(model, VerticalRegressor):
        assert model.score(test, y[FITTED:]) == pytest.approx(_r2(pooled.predict(rows), y[FITTED:]), abs=2e-3)
        return
    ours, theirs = model.predict_proba(test), pooled.predict_proba(rows)
    if ours.shape[1] == 2:
        positive = y[FITTED:] == model.classes_[1]
        assert roc_auc_score(positive, ours[:, 1]) == pytest.approx(roc_auc_score(positive, theirs[:, 1]), abs=2e-3)
    assert np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1)) > 0.98


def _r2(predicted, y):
    return 1 - np.sum((y - predicted) ** 2) / np.sum((y - y.mean()) ** 2)


def test_parties_that_are_slower_than_the_chair_by_their_columns_are_no_trouble():
    """At some surveys the chair waits for nobody, and its table of derivatives goes to nobody."""
    rng = np.random.default_rng(0)
    widths = {"bank": 6, "shop": 100, "telecom": 13}
    blocks = {name: rng.normal(size=(1050, width)) for name, width in widths.items()}
    label = blocks["bank"][:, 0] + blocks["shop"][:, 0] + rng.logistic(size=1050) > 0
    assert VerticalClassifier().fit(blocks, label).record_.verdict == "target"


def test_numbers_are_learned_in_units_of_their_spread_so_that_a_target_means_the_same_for_all():
    """Bins of columns that say nearly the same: at 1e-6 of a spread of 1,000 nobody would get there."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(900, 1))
    columns = {name: common + 0.1 * rng.normal(size=(900, 3)) for name in ("bank", "shop", "telecom")}
    y = columns["bank"][:, 0] + 0.1 * rng.normal(size=900)
    found = [VerticalRegressor(prepare="bins").fit(columns, scale * y) for scale in (1e-2, 1e3)]
    assert [model.record_.verdict for model in found] == ["target", "target"]
    rows = prepared(found[0], columns)
    for model, scale in zip(found, (1e-2, 1e3), strict=True):
        pooled = Ridge(alpha=900 * 1e-4 / 2).fit(rows, scale * y).predict(rows)
        assert np.abs(model.predict(columns) - pooled).max() < 2e-2 * np.std(scale * y)


def test_sparse_columns_of_any_size_are_learned_from():
    rng = np.random.default_rng(0)
    stored = scipy.sparse.random(800, 60, density=0.05, format="csr", random_state=0)
    y = stored.sign() @ rng.normal(size=60) + rng.logistic(scale=0.3, size=800) > 0
    found = []
    for scale in (1e-5, 1e5):
        columns = {"bank": scale * stored[:, :30], "shop": scale * stored[:, 30:], "telecom": rng.normal(size=(800, 1))}
        model = VerticalClassifier().fit(columns, y)
        assert model.record_.verdict == "target"
        found.append(roc_auc_score(y, model.predict_proba(columns)[:, 1]))
    assert min(found) > 0.8 and found[0] == pytest.approx(found[1], abs=5e-3)


@pytest.mark.parametrize("kind", [VerticalClassifier, VerticalRegressor])
@pytest.mark.parametrize(("penalty", "told"), [(1e-2, False), (1e6, True)])
def test_a_model_that_says_the_same_of_every_row_is_told_of(kind, penalty, told):
    columns = cut(FRAME, slice(0, FITTED), PARTIES)
    y = FRAME["age"].to_numpy(float)[:FITTED] > 50
    model = kind(penalty=penalty).fit(columns, y if kind is VerticalClassifier else y * 1.0)
    assert any("all rows nearly the same score" in warning for warning in model.record_.warnings) == told


@pytest.mark.parametrize(("unit", "told"), [(1.0, False), (1e6, True)])
def test_counts_that_the_penalty_outweighs_are_told_of(unit, told):
    years = RNG.uniform(0.2, 1.0, FITTED)
    model = VerticalRegressor(loss="poisson").fit(
        cut(FRAME, slice(0, FITTED), PARTIES), RNG.poisson(years), exposure=unit * years
    )
    assert any("outweighs them: coefficients are drawn to 0" in note for note in model.record_.data.notes) == told
