"""Rows at several sites from Python: the same run as the job's, private where it says so, and clear refusals."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from offbeat import HorizontalClassifier
from offbeat.errors import BadData, BadInput, BadJob
from offbeat.families.horizontal import HorizontalTraining

RANGES = {"age": (0, 120), "income": (0, 150_000), "calls": (0, 20)}
FAST = {"seed": 0, "updates": 200, "batch": 64}


def table(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"age": rng.uniform(18, 90, rows), "income": rng.lognormal(10, 0.5, rows), "calls": rng.poisson(3, rows)}
    )
    score = (frame.age - 50) / 20 - (frame.income / 22_000 - 1) + 0.3 * frame.calls - 1
    frame["site"] = rng.choice(["north", "south", "west"], rows)
    return frame, np.where(score + 0.5 * rng.logistic(size=rows) > 0, "late", "fine")


def by_site(frame, y):
    sites = ("north", "south", "west")
    rows = {site: frame[frame.site == site].drop(columns="site") for site in sites}
    return rows, {site: y[(frame.site == site).to_numpy()] for site in sites}


def test_a_column_that_names_the_site_is_the_same_as_a_table_for_each():
    frame, y = table()
    one = HorizontalClassifier("site", ranges=RANGES, **FAST).fit(frame, y)
    each = HorizontalClassifier(ranges=RANGES, **FAST).fit(*by_site(frame, y))
    assert one.sites_ == each.sites_ == ("north", "south", "west")
    np.testing.assert_array_equal(one.coef_, each.coef_)
    assert one.record_.digest == each.record_.digest
    np.testing.assert_array_equal(one.predict(frame), each.predict(frame.drop(columns="site")))


def test_without_noise_it_comes_near_to_the_pooled_model():
    frame, y = table()
    model = HorizontalClassifier("site", ranges=RANGES, **{**FAST, "updates": 800}).fit(frame, y)
    low, high = np.array(list(RANGES.values()), dtype=float).T
    pooled = 2 * (frame[list(RANGES)] - low) / (high - low) - 1
    best = LogisticRegression(C=1 / (len(y) * 1e-4), max_iter=5000).fit(pooled, y).score(pooled, y)
    assert model.score(frame, y) > best - 0.02
    assert list(model.classes_) == ["fine", "late"]
    assert np.allclose(model.predict_proba(frame).sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.decision_function(frame) > 0, model.predict(frame) == "late")


def test_the_run_is_that_of_the_job():
    frame, y = table(200)
    model = HorizontalClassifier("site", ranges=RANGES, **FAST).fit(frame, y)
    assert model.job_.algorithm == "steady"
    assert model.job_.data.edges == ["north", "south", "west"]
    assert model.n_iter_ == model.job_.updates == 200
    from offbeat.data.horizontal import HorizontalData
    from offbeat.run.experiment import run_training

    rows, labels = by_site(frame, y)
    low, high = np.array(list(RANGES.values()), dtype=float).T
    scaled = {site: (rows[site].to_numpy() - (low + high) / 2) * (2 / (high - low)) for site in rows}
    edges = {site: (scaled[site].clip(-1, 1), (labels[site] == "late").astype(float)) for site in rows}
    data = HorizontalData(edges, np.empty((0, 3)), np.empty(0), "multiclass", ("fine", "late"), "by hand")
    assert run_training(HorizontalTraining(model.job_, data)).record.digest == model.record_.digest


def test_an_epsilon_is_kept_at_each_site_and_told():
    frame, y = table()
    epsilon = {"north": 1.0, "south": 2.0, "west": 4.0}
    model = HorizontalClassifier("site", epsilon=epsilon, ranges=RANGES, **FAST).fit(frame, y)
    for site, most in epsilon.items():
        assert 0.9 * most < model.privacy_[site]["epsilon"] <= most
    assert "differentially private" in model.record_.promises[0]
    quiet = HorizontalClassifier("site", ranges=RANGES, **FAST).fit(frame, y)
    assert np.abs(model.coef_ - quiet.coef_).max() > 0.0


def test_without_a_seed_nobody_can_draw_the_noise_again():
    frame, y = table(200)
    options = {**FAST, "seed": None, "updates": 30}
    first, second = (HorizontalClassifier("site", epsilon=1.0, ranges=RANGES, **options).fit(frame, y) for _ in "ab")
    assert np.abs(first.coef_ - second.coef_).max() > 0.0


def test_several_classes_and_rows_shared_out_at_random():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 4))
    kind = rows[:, :3].argmax(axis=1)
    model = HorizontalClassifier(3, **FAST).fit(rows, kind)
    assert model.coef_.shape == (3, 4)
    assert model.score(rows, kind) > 0.85
    assert model.predict_proba(rows).shape == (300, 3)
    hinge = HorizontalClassifier(3, kind="hinge", **FAST).fit(rows, kind)
    assert hinge.score(rows, kind) > 0.7
    with pytest.raises(BadJob, match="Probabilities need the kind logistic or softmax"):
        hinge.predict_proba(rows)


def test_it_is_saved_loaded_and_cloned(tmp_path):
    frame, y = table(200)
    model = HorizontalClassifier("site", ranges=RANGES, **FAST).fit(frame, y)
    back = HorizontalClassifier.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(back.predict_proba(frame), model.predict_proba(frame))
    assert back.sites_ == model.sites_
    with pytest.raises(BadInput, match="is there already"):
        model.save(tmp_path / "model")
    with pytest.raises(NotFittedError):
        clone(model).predict(frame)


def test_a_sparse_matrix_is_as_good_as_a_dense_one():
    rows = np.random.default_rng(0).poisson(0.7, (120, 4)).astype(float)
    kind = (rows[:, 0] > rows[:, 1]).astype(int)
    dense, sparse = (HorizontalClassifier(2, **FAST).fit(x, kind) for x in (rows, csr_array(rows)))
    np.testing.assert_array_equal(sparse.coef_, dense.coef_)
    np.testing.assert_array_equal(sparse.predict(csr_array(rows)), dense.predict(rows))


def test_a_model_that_an_earlier_version_saved_is_loaded(tmp_path):
    frame, y = table(200)
    model = HorizontalClassifier("site", ranges=RANGES, **FAST).fit(frame, y)
    place = model.save(tmp_path / "model")
    for file in place.glob("**/*preparation*"):
        file.unlink()
    kept = json.loads((place / "estimator.json").read_text())
    (place / "estimator.json").write_text(json.dumps({**kept, "columns": list(RANGES)}))
    np.testing.assert_array_equal(HorizontalClassifier.load(place).predict(frame), model.predict(frame))


def test_columns_are_found_by_name_and_raw_scales_are_warned_of():
    frame, y = table(200)
    model = HorizontalClassifier("site", ranges=RANGES, **FAST).fit(frame, y)
    np.testing.assert_array_equal(model.predict(frame[["calls", "income", "age"]]), model.predict(frame))
    with pytest.warns(UserWarning, match="'income' is about .* times as large as most"):
        HorizontalClassifier("site", **FAST).fit(frame, y)


@pytest.mark.parametrize(
    ("options", "change", "said"),
    [
        ({"sites": 0}, {}, "sites must be a number of sites, 1 or more"),
        ({"sites": 2.5}, {}, "sites must be a number of sites"),
        ({"sites": "place"}, {}, "no column 'place' to tell each row's site"),
        ({"sites": 500}, {}, "500 edges cannot share"),
        ({"epsilon": -1.0}, {}, "privacy.epsilon must be a finite number above 0"),
        ({"epsilon": {"north": 1.0}}, {}, "south"),
        ({"epsilon": 1.0, "algorithm": "fedbuff"}, {}, "fedbuff adds no noise"),
        ({"delta": 2.0, "epsilon": 1.0}, {}, "privacy.delta must be a number above 0 and at most 1"),
        ({"algorithm": "vafl"}, {}, "is no horizontal method"),
        ({"kind": "linear"}, {}, "kind must be one of auto, logistic"),
        ({"updates": 0}, {}, "updates must be a whole number"),
        ({"batch": "big"}, {}, "batch must be a whole number"),
        ({"ranges": {"age": (0, 120)}}, {}, "ranges has no pair for column 'income'"),
        ({"ranges": [(0, 1)]}, {}, "ranges has 1 pair, and the rows have 3 columns"),
        ({"ranges": {**RANGES, "age": (120, 0)}}, {}, "ranges of column 'age' must be"),
        ({"ranges": {**RANGES, "age": 120}}, {}, "ranges of column 'age' must be"),
        ({"ranges": {**RANGES, "age": ("low", "high")}}, {}, "ranges of column 'age' must be"),
        ({}, {"age": np.nan}, "column 'age', row 1: expected a value, came an empty cell .* fill gaps by a rule"),
        ({}, {"age": np.inf}, "column 'age', row 1: expected a finite number"),
        ({}, {"age": "old"}, "column 'age' holds text"),
        ({}, {"site": None}, "must name a site in every row"),
        ({"slow": {"east": 2.0}}, {}, "runtime.slow names 'east'"),
        ({"runtime": "processes"}, {}, "runtime.kind must be one of"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_said(options, change, said):
    frame, y = table(90)
    frame = frame.assign(**{name: frame[name].astype(object) for name in change})
    for name, value in change.items():
        if isinstance(value, str):
            frame[name] = value
        else:
            frame.loc[frame.index[frame.site == "north"][0], name] = value
    given = {"sites": "site", "ranges": RANGES, **FAST, **options}
    frame = frame if isinstance(given["sites"], str) else frame.drop(columns="site")
    with pytest.raises((BadJob, BadData), match=said):
        HorizontalClassifier(**given).fit(frame, y)


def test_tables_by_site_must_go_together():
    frame, y = table(90)
    rows, labels = by_site(frame, y)
    model = HorizontalClassifier(ranges=RANGES, **FAST)
    for wrong, said in (
        (y, "X comes by site .north, south, west., so y must too"),
        ({"north": labels["north"]}, "got labels of north"),
        ({**labels, "west": labels["west"][:-1]}, "Site 'west' has .* rows and labels of shape"),
    ):
        with pytest.raises(BadData, match=said):
            model.fit(rows, wrong)
    with pytest.raises(BadData, match="Site 'west': all sites bring the same columns, and 'age' is in one of"):
        model.fit({**rows, "west": rows["west"].drop(columns="age")}, labels)
    with pytest.raises(BadData, match="X has 90 rows, and y has 89 labels"):
        HorizontalClassifier("site").fit(frame, y[:-1])
    with pytest.raises(BadData, match=r"^X lacks the column 'age'"):
        model.fit(rows, labels).predict(frame.rename(columns={"age": "years"}).drop(columns="site"))
