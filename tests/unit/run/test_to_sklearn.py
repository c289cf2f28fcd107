"""A model as a pipeline of scikit-learn: the same predictions to 1e-9, from one frame or matrix."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.inspection import permutation_importance
from three_files import frames, trained

import offbeat
from offbeat import VerticalClassifier, VerticalRegressor
from offbeat.errors import BadData, BadInput

CELLS = {"bank": ["income"], "shop": ["town", "spend"], "telecom": ["calls"]}


def rows(seed=0):
    found = frames(seed)
    tables = {name: found[name][columns] for name, columns in CELLS.items()}
    return tables, pd.concat(tables.values(), axis=1), found["bank"]["y"].to_numpy(), found["bank"]["amount"].to_numpy()


@pytest.mark.parametrize(
    "keys",
    [{}, {"prepare": "bins"}, {"loss": "softmax"}, {"loss": "squared_hinge"}, {"intercept": False}, {"l1_ratio": 0.5}],
    ids=str,
)
def test_two_classes(keys):
    tables, _, y, _ = rows()
    model = VerticalClassifier(target=1e-3, **keys).fit(tables, y)
    new, together, _, _ = rows(seed=4)
    new["shop"].loc[3, "town"] = together.loc[3, "town"] = "east"
    pipeline = model.to_sklearn()
    np.testing.assert_array_equal(pipeline.predict(together), model.predict(new))
    if keys.get("loss") != "squared_hinge":
        np.testing.assert_allclose(pipeline.predict_proba(together), model.predict_proba(new), atol=1e-9)
    shuffled = together[["spend", "calls", "town", "income"]]
    np.testing.assert_array_equal(pipeline.predict(shuffled), model.predict(new))
    assert len(pipeline[:-1].get_feature_names_out()) == pipeline[-1].coef_.size


def test_several_classes_and_numbers():
    tables, frame, _, amount = rows()
    kind = np.array(["a", "b", "c"])[np.digitize(amount, [-2, 2])]
    model = VerticalClassifier(target=1e-2).fit(tables, kind)
    np.testing.assert_allclose(model.to_sklearn().predict_proba(frame), model.predict_proba(tables), atol=1e-9)
    for labels, loss in ((1e6 * amount, "auto"), (np.floor(np.exp(amount / 4)), "poisson"), (1 + amount**2, "gamma")):
        number = VerticalRegressor(loss=loss, target=1.0, passes=5).fit(tables, labels)
        np.testing.assert_allclose(number.to_sklearn().predict(frame), number.predict(tables), rtol=1e-9)


def test_one_matrix_with_parties_of_any_order_and_unit_rows():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 5)), rng.random(200) < 0.5
    model = VerticalClassifier(parties={"bank": [4, 0], "shop": [2], "telecom": [1, 3]}, target=1e-3).fit(X, y)
    np.testing.assert_allclose(model.to_sklearn().decision_function(X), model.decision_function(X), atol=1e-9)
    unit = VerticalClassifier(parties=3, prepare={"how": "none", "rows": "party-unit"}, target=1e-3).fit(X, y)
    np.testing.assert_allclose(unit.to_sklearn().decision_function(X), unit.decision_function(X), atol=1e-9)
    thin = sp.random(200, 6, 0.4, format="csr", random_state=0)
    sparse = VerticalClassifier(parties=3, target=1e-3).fit(thin, y)
    np.testing.assert_allclose(sparse.to_sklearn().decision_function(thin), sparse.decision_function(thin), atol=1e-9)


def test_the_pipeline_is_a_pipeline():
    tables, frame, y, _ = rows()
    pipeline = VerticalClassifier(prepare="bins", target=1e-3).fit(tables, y).to_sklearn()
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict(frame), pipeline.predict(frame))
    found = permutation_importance(pipeline, frame, y, n_repeats=2, random_state=0)
    assert dict(zip(frame.columns, found.importances_mean, strict=True))["spend"] > 0.02
    refitted = clone(pipeline).fit(frame, y)
    assert refitted.score(frame, y) == pytest.approx(pipeline.score(frame, y), abs=0.1)


def test_a_run_folder_gives_one_too_and_networks_do_not(tmp_path):
    folder, _, _, _ = trained(tmp_path)
    tables, frame, _, _ = rows(seed=2)
    model = offbeat.load(folder)
    np.testing.assert_allclose(model.to_sklearn().predict_proba(frame), model.predict_proba(tables), atol=1e-9)
    with pytest.raises(BadData, match="the columns of all parties"):
        model.to_sklearn().predict(frame.to_numpy()[:, :2])
    (tmp_path / "vafl").mkdir()
    other, _, _, _ = trained(tmp_path / "vafl", algorithm="vafl", passes=1.0)
    with pytest.raises(BadInput, match="linear models"):
        offbeat.load(other).to_sklearn()
