"""Weights, exposure, counts, amounts and exact zeros, from files and from Python; and what is wrong with them."""

import numpy as np
import pandas as pd
import pytest
from msgspec import to_builtins
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.utils.class_weight import compute_sample_weight

import offbeat
from offbeat.errors import BadData, BadJob
from offbeat.estimators import VerticalClassifier, VerticalRegressor
from offbeat.families.vertical_data import load_data
from offbeat.jobs.reading import job_from
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import write_job, write_result

ROWS = 300
PARTIES = ("bank", "shop", "telecom")


def drawn():
    rng = np.random.default_rng(4)
    blocks = {name: rng.standard_normal((ROWS, 2)) for name in PARTIES}
    score = np.hstack(list(blocks.values())) @ (0.4 * rng.standard_normal(6)) + 0.5
    years = rng.uniform(0.5, 3.0, ROWS)
    return blocks, score, years, rng.poisson(years * np.exp(score)).astype(float), rng


def files(folder, **changes):
    """A job of three files whose bank has claims, years, a weight and a class."""
    blocks, score, years, claims, rng = drawn()
    for name, block in blocks.items():
        frame = pd.DataFrame(block, columns=[f"{name}0", f"{name}1"])
        frame.insert(0, "id", np.arange(ROWS))
        if name == "bank":
            kind = np.where(score > 0.5, "good", "bad")
            frame = frame.assign(claims=claims, years=years, weight=rng.integers(0, 3, ROWS), kind=kind, town="north")
            frame = frame.assign(nothing=0.0, below=-1.0)
        frame.to_csv(folder / f"{name}.csv", index=False)
    bank = {"name": "bank", "file": str(folder / "bank.csv"), "id": "id", "columns": ["bank0", "bank1"]}
    others = [{"name": name, "file": str(folder / f"{name}.csv"), "id": "id"} for name in PARTIES[1:]]
    party = [{**bank, **changes.pop("bank", {})}, *others]
    return job_from({"target": 1e-8, "passes": 200, "optimum": True, "party": party, **changes})


CLAIMS = {"label": "claims", "exposure": "years"}


def test_a_job_of_counts_over_years(tmp_path):
    job = files(tmp_path, loss="poisson", bank=CLAIMS, penalty=1e-3, data={"prepare": "none"})
    data = load_data(job)
    assert data.columns["bank"] == ("bank0", "bank1") and data.task == "regression" and data.exposed
    result = run_experiment(data, job)
    assert result.record.verdict == "target" and result.record.certificate.duality_gap <= 1e-8
    assert abs(result.record.suboptimality) <= 1e-8
    assert set(result.record.metrics) == {"test_deviance", "test_rmse"}
    assert any("which together are the label" in text for text in result.record.warnings)
    pooled = np.hstack([data.train[name] for name in PARTIES])
    theirs = PoissonRegressor(alpha=1e-3, tol=1e-12, max_iter=5000, solver="newton-cholesky")
    theirs.fit(pooled, data.y_train, data.weights_train)
    write_job(job, tmp_path / "run")
    write_result(result, tmp_path / "run")
    rows = {name: pd.read_csv(tmp_path / f"{name}.csv") for name in PARTIES}
    expected = theirs.predict(np.hstack([rows[name][[f"{name}0", f"{name}1"]].to_numpy() for name in PARTIES]))
    np.testing.assert_allclose(offbeat.load(tmp_path / "run").predict(rows), expected, rtol=1e-3)


def test_a_weight_column_and_class_weights_of_a_job(tmp_path):
    plain = load_data(files(tmp_path, bank={"label": "kind"}))
    job = files(tmp_path, bank={"label": "kind", "weight": "weight"}, class_weight="balanced")
    data = load_data(job)
    assert data.weights_train.shape == plain.y_train.shape and not plain.weights_train.size
    result = run_experiment(data, job)
    assert result.record.verdict == "target" and result.record.suboptimality <= 1e-8
    by_class = job_from({**tree(job), "class_weight": {"good": 3.0}})
    assert run_experiment(data, by_class).record.objective != result.record.objective
    assert run_experiment(plain, job_from({**tree(job), "class_weight": {"good": 1.0}})).record.verdict == "target"


def tree(job):
    plain = to_builtins(job)
    return {key: plain[key] for key in ("algorithm", "target", "passes", "party", "optimum")}


VAFL = {"algorithm": "vafl", "target": None}
WRONG = {
    "negative weights": ({"bank": {"label": "kind", "weight": "below"}}, "row 1 has -1, which is negative"),
    "zero weights": ({"bank": {"label": "kind", "weight": "nothing"}}, "are all zero, so no row counts"),
    "text as weights": ({"bank": {"label": "kind", "weight": "town"}}, "must hold numbers; it holds text"),
    "no such weight": ({"bank": {"label": "kind", "weight": "wieght"}}, "no feature column 'wieght'.*'weight'"),
    "zero exposure": ({"loss": "poisson", "bank": {**CLAIMS, "exposure": "nothing"}}, "are all zero|is 0"),
    "exposure of classes": ({"bank": {"label": "kind", "exposure": "years"}}, "the labels are classes"),
    "exposure of squares": ({"loss": "squared", "bank": CLAIMS}, "An exposure is for counts and amounts"),
    "negative counts": ({"loss": "poisson", "bank": {"label": "below"}}, "needs labels of 0 or more; 300 of 300"),
    "no counts": ({"loss": "poisson", "bank": {"label": "nothing"}}, "All labels of the training rows are 0"),
    "amounts of 0": ({"loss": "gamma", "bank": {"label": "claims"}}, "needs labels of above 0"),
    "text as counts": ({"loss": "poisson", "bank": {"label": "kind"}}, "Regression needs numbers as labels"),
    "counts as classes": (
        {"loss": "poisson", "task": "classification", "bank": {"label": "kind"}},
        "is for numbers, and here classes are predicted",
    ),
    "class weights of numbers": (
        {"loss": "poisson", "bank": {"label": "claims"}, "class_weight": "balanced"},
        "class_weight is for classes",
    ),
    "no such class": ({"bank": {"label": "kind"}, "class_weight": {"god": 2.0}}, "'god', which is no class.*'good'"),
    "no class counts": ({"bank": {"label": "kind"}, "class_weight": {"good": 0, "bad": 0}}, "class a weight of 0"),
    "sgd of counts": ({"loss": "poisson", "bank": {"label": "claims"}, "algorithm": "vfb2-sgd"}, "run away"),
    "zeros of counts": ({"loss": "poisson", "bank": {"label": "claims"}, "l1_ratio": 0.5}, "l2 or none, so far"),
    "private counts": ({"loss": "poisson", "bank": {"label": "claims"}, "label_dp_epsilon": 1.0}, "the logistic loss"),
    "the lasso": ({"bank": {"label": "kind"}, "l1_ratio": 1.0}, "without one no certificate"),
    "two penalties": ({"bank": {"label": "kind"}, "l1_ratio": 0.5, "penalty_kind": "nonconvex"}, "l1_ratio mixes"),
    "weights of VAFL": ({"bank": {"label": "kind", "weight": "weight"}, **VAFL}, "knows no weights"),
    "a ratio for VAFL": ({"bank": {"label": "kind"}, "l1_ratio": 0.1, **VAFL}, "no use for l1_ratio"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_paragraph(case, tmp_path):
    changes, words = WRONG[case]
    with pytest.raises((BadData, BadJob), match=f"(?s){words}") as told:
        job = files(tmp_path, **{**changes, "bank": dict(changes["bank"])})
        run_experiment(load_data(job), job)
    assert "\n" not in str(told.value)


def test_weights_at_a_party_without_labels_are_refused(tmp_path):
    job = files(tmp_path, bank={"label": "kind"})
    party = [{"name": e.name, "file": e.file, "id": e.id, "label": e.label, "columns": e.columns} for e in job.party]
    party[1]["weight"] = "shop1"
    bad = job_from({"party": [{k: v for k, v in one.items() if v is not None} for one in party]})
    with pytest.raises(BadData, match=r"must be|is negative|belong to the party that holds the labels"):
        load_data(bad)


# -- estimators --------------------------------------------------------------------------------------------------------


def test_sample_weight_and_class_weight_are_those_of_scikit_learn():
    blocks, score, _, _, rng = drawn()
    pooled, weights = np.hstack(list(blocks.values())), rng.integers(0, 4, ROWS).astype(float)
    y = np.where(score + rng.logistic(size=ROWS) > 1.0, "yes", "no")
    terms = {"penalty": 1e-2, "target": 1e-9, "passes": 300, "prepare": "none"}
    for by_class in (None, "balanced", {"yes": 3.0, "no": 1.0}):
        model = VerticalClassifier(class_weight=by_class, **terms).fit(blocks, y, sample_weight=weights)
        total = (weights * compute_sample_weight(by_class, y)).sum()
        theirs = LogisticRegression(C=1 / (total * 1e-2), tol=1e-12, max_iter=5000)
        theirs.fit(pooled, y, weights * compute_sample_weight(by_class, y))
        np.testing.assert_allclose(model.predict_proba(blocks), theirs.predict_proba(pooled), atol=1e-4)


def test_sample_weight_follows_an_index():
    blocks, score, _, _, rng = drawn()
    weights, y = pd.Series(rng.uniform(0, 2, ROWS)), pd.Series(score > 0.5)
    frames = {name: pd.DataFrame(block).add_prefix(name) for name, block in blocks.items()}
    model = VerticalClassifier(passes=5, target=None)
    expected = model.fit(frames, y, sample_weight=weights).intercept_
    mixed = weights.sample(frac=1, random_state=0)
    assert model.fit(frames, y, sample_weight=mixed).intercept_ == expected
    order = y.sample(frac=1, random_state=1).index
    assert model.fit(frames, y.loc[order], sample_weight=weights.loc[order].to_numpy()).intercept_ == expected


def test_a_regressor_of_counts_predicts_rates():
    blocks, _, years, claims, _ = drawn()
    pooled = np.hstack(list(blocks.values()))
    model = VerticalRegressor(loss="poisson", penalty=1e-3, target=1e-9, prepare="none")
    model.fit(blocks, claims, exposure=years)
    theirs = PoissonRegressor(alpha=1e-3, tol=1e-12, max_iter=5000, solver="newton-cholesky")
    theirs.fit(pooled, claims / years, years)
    np.testing.assert_allclose(model.predict(blocks), theirs.predict(pooled), rtol=1e-4)
    mean = np.average(claims / years, weights=years)
    assert np.average(model.predict(blocks), weights=years) == pytest.approx(mean, rel=1e-4)


def test_an_elastic_net_leaves_columns_out():
    blocks, score, _, _, rng = drawn()
    noise = rng.standard_normal((ROWS, 5))
    model = VerticalClassifier(l1_ratio=0.9, penalty=0.05).fit({**blocks, "extra": noise}, score > 0.5)
    assert (model.coef_["extra"] == 0.0).sum() >= 4 and model.certificate_.duality_gap <= 1e-6


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(5), "one number for each of the 300 rows; came an array of shape"),
        (np.full(ROWS, -1.0), "row 1 has -1, which is negative"),
        (np.zeros(ROWS), "all zero"),
        (np.full(ROWS, np.nan), "must be finite numbers; row 1 has nan"),
        (["many"] * ROWS, "must be numbers, one for each of the 300 rows"),
    ],
)
def test_wrong_weights_are_said(weights, words):
    blocks, score, *_ = drawn()
    with pytest.raises(BadData, match=words):
        VerticalClassifier().fit(blocks, score > 0.5, sample_weight=weights)


def test_what_does_not_go_together_in_python_is_said():
    blocks, score, years, *_ = drawn()
    with pytest.raises(BadJob, match="class_weight is for classes"):
        VerticalRegressor(class_weight="balanced").fit(blocks, score)
    with pytest.raises(BadJob, match='class_weight must be "balanced", or a dictionary'):
        VerticalClassifier(class_weight="even").fit(blocks, score > 0.5)
    with pytest.raises(BadJob, match="An exposure is for counts"):
        VerticalRegressor().fit(blocks, score, exposure=years)
    with pytest.raises(BadData, match="needs labels of 0 or more"):
        VerticalRegressor(loss="poisson").fit(blocks, score - 5.0)
