"""The scikit-learn side: clone and parameters, any kind of columns and labels, and the pooled model as the measure."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils import estimator_checks

from offbeat import VerticalClassifier, VerticalRegressor
from offbeat.errors import BadData, BadInput, BadJob
from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2

WIDTHS = {"bank": 3, "shop": 2, "telecom": 4}


def problem(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    blocks = {name: rng.normal(size=(rows, width)) for name, width in WIDTHS.items()}
    pooled = np.hstack(list(blocks.values()))
    return blocks, pooled @ rng.normal(size=pooled.shape[1]), rng


@pytest.mark.parametrize("kind", [VerticalClassifier, VerticalRegressor])
@pytest.mark.parametrize(
    "check",
    [
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
        "check_no_attributes_set_in_init",
    ],
)
def test_scikit_learns_own_checks(kind, check):
    getattr(estimator_checks, check)(kind.__name__, kind())


def test_a_clone_has_the_parameters_and_nothing_fitted():
    blocks, score, _ = problem()
    model = VerticalClassifier("afsaga-vp", penalty=0.01, slow={"shop": 2.0}).fit(blocks, score > 0)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert not hasattr(twin, "coef_")
    with pytest.raises(NotFittedError):
        twin.predict(blocks)


def test_the_model_is_the_pooled_one():
    blocks, score, rng = problem()
    label = np.where(score + rng.logistic(size=len(score)) > 0, 1.0, -1.0)
    model = VerticalClassifier(penalty=1e-2, target=1e-10, passes=200, intercept=False).fit(blocks, label)
    best, value = central.optimum(np.hstack(list(blocks.values())), label, LOGISTIC, 1e-2)
    found = np.concatenate([model.coef_[name] for name in WIDTHS])
    assert np.abs(found - best).max() < 1e-4
    pooled = np.hstack(list(blocks.values()))
    reached = central.objective(pooled, label, found, LOGISTIC, L2, 1e-2)
    assert 0 <= reached - value <= model.certificate_.duality_gap + 1e-12
    assert model.record_.verdict == "target"


@pytest.mark.parametrize("algorithm", ["vfb2-svrg", "vfb2-saga", "afsvrg-vp"])
def test_by_curvature_columns_of_very_different_scales_are_no_trouble(algorithm):
    blocks, score, rng = problem()
    label = np.where(score + rng.logistic(size=len(score)) > 0, 1.0, -1.0)
    scaled = {name: table * np.geomspace(1.0, 30.0, table.shape[1]) for name, table in blocks.items()}
    options = {"penalty": 1e-3, "passes": 100}
    plain = VerticalClassifier(algorithm, target=None, **options).fit(scaled, label)
    model = VerticalClassifier(algorithm, by_curvature=True, **options).fit(scaled, label)
    assert model.record_.verdict == "target"
    assert plain.certificate_.duality_gap > 1e-3
    pooled = np.hstack([*scaled.values(), np.ones((len(label), 1))])
    _, value = central.optimum(pooled, label, LOGISTIC, 1e-3)
    found = np.concatenate([*(model.coef_[name] for name in WIDTHS), [model.intercept_]])
    assert central.objective(pooled, label, found, LOGISTIC, L2, 1e-3) - value <= 1e-6


def test_it_agrees_with_scikit_learn():
    blocks, score, rng = problem()
    pooled = np.hstack(list(blocks.values()))
    label = score + rng.logistic(size=len(score)) > 0
    theirs = LogisticRegression(C=1 / (len(score) * 1e-3), tol=1e-10, max_iter=1000, fit_intercept=False).fit(
        pooled, label
    )
    ours = VerticalClassifier(penalty=1e-3, target=1e-9, passes=200, intercept=False).fit(blocks, label)
    assert np.abs(theirs.predict_proba(pooled) - ours.predict_proba(blocks)).max() < 1e-4
    assert ours.score(blocks, label) == theirs.score(pooled, label)
    ridge = Ridge(alpha=len(score) * 1e-3 / 2, fit_intercept=False).fit(pooled, score)
    regressor = VerticalRegressor(penalty=1e-3, target=1e-10, passes=200, intercept=False).fit(blocks, score)
    assert np.abs(ridge.predict(pooled) - regressor.predict(blocks)).max() < 1e-3
    assert regressor.score(blocks, score) > 0.999


@pytest.mark.parametrize(
    "classes", [("no", "yes"), (0, 1), (-1.0, 1.0), (False, True), (3, 7)], ids=lambda pair: type(pair[0]).__name__
)
def test_classes_of_any_type_come_back(classes):
    blocks, score, _ = problem(120)
    label = np.array(classes)[(score > 0).astype(int)]
    model = VerticalClassifier("fsaga-vp", passes=5, target=None).fit(blocks, label)
    assert list(model.classes_) == sorted(classes)
    assert set(model.predict(blocks)) <= set(classes)
    assert model.predict(blocks).dtype == label.dtype
    assert model.score(blocks, label) > 0.8


def test_arrays_sparse_matrices_and_data_frames_mix():
    blocks, score, _ = problem(120)
    mixed = {
        "bank": blocks["bank"].tolist(),
        "shop": scipy.sparse.csr_matrix(blocks["shop"]),
        "telecom": pd.DataFrame(blocks["telecom"], columns=list("abcd")),
    }
    plain = VerticalClassifier("fsvrg-vp", passes=5, target=None).fit(blocks, score > 0)
    model = VerticalClassifier("fsvrg-vp", passes=5, target=None).fit(mixed, score > 0)
    assert np.allclose(plain.decision_function(blocks), model.decision_function(mixed), atol=1e-8)
    renamed = {**mixed, "telecom": mixed["telecom"][list("badc")]}
    with pytest.raises(BadData, match="same columns in the same order"):
        model.predict(renamed)


def test_standardising_is_undone_by_nobody_and_learned_from_training_rows():
    blocks, score, _ = problem(200)
    wide = {**blocks, "bank": 1000 * blocks["bank"] + 5}
    model = VerticalClassifier("fsvrg-vp", standardise="all", passes=40, target=None).fit(wide, score > 0)
    assert model.score(wide, score > 0) > 0.95


def test_labels_may_stay_with_one_party():
    blocks, score, _ = problem(150)
    model = VerticalClassifier("vfb2-svrg", labels_at=["shop"], passes=30, target=None).fit(blocks, score > 0)
    assert model.score(blocks, score > 0) > 0.9
    assert "they stay at shop" in " ".join(model.record_.warnings)


def test_what_is_wrong_is_said():
    blocks, score, _ = problem(60)
    label = score > 0
    with pytest.raises(BadData, match="dictionary from party"):
        VerticalClassifier().fit(blocks["bank"], label)
    with pytest.raises(BadData, match="two classes"):
        VerticalClassifier().fit(blocks, np.arange(60) % 3)
    with pytest.raises(BadData, match="same number of rows"):
        VerticalClassifier().fit({**blocks, "shop": blocks["shop"][:50]}, label)
    with pytest.raises(BadJob, match="'afsvrg-vp'"):
        VerticalClassifier("afsvgr-vp").fit(blocks, label)
    with pytest.raises(BadJob, match="passes"):
        VerticalClassifier(passes=-1).fit(blocks, label)
    with pytest.raises(BadInput, match="labels_at"):
        VerticalClassifier("afsvrg-vp", labels_at=["bank"]).fit(blocks, label)
    model = VerticalClassifier("fsaga-vp", passes=2, target=None).fit(blocks, label)
    with pytest.raises(BadData, match="'telecom' are missing"):
        model.predict({"bank": blocks["bank"], "shop": blocks["shop"]})
    with pytest.raises(BadData, match="no party of this model"):
        model.predict({**blocks, "shopp": blocks["shop"]})
    with pytest.raises(BadData, match="3 columns when fitted"):
        model.predict({**blocks, "bank": blocks["shop"]})
    hinge = VerticalClassifier("fsaga-vp", passes=2, target=None, loss="squared_hinge").fit(blocks, label)
    with pytest.raises(BadJob, match="logistic"):
        hinge.predict_proba(blocks)


def test_a_target_that_was_missed_is_a_warning():
    blocks, score, _ = problem(60)
    with pytest.warns(ConvergenceWarning, match="above the target"):
        VerticalClassifier("afsgd-vp", passes=1, target=1e-12).fit(blocks, score > 0)
