"""The scikit-learn side: clone and parameters, any kind of columns and labels, and the pooled model as the measure."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.utils import estimator_checks

from offbeat import PartyColumns, VerticalClassifier, VerticalRegressor
from offbeat.errors import BadData, BadInput, BadJob, OutOfRange
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


@pytest.mark.parametrize("algorithm", ["vfb2-svrg", "vfb2-saga", "afsvrg-vp"])
def test_prices_are_learned_as_they_are(algorithm):
    """A squared gradient near 1e10 is far outside of what one fixed-point word holds."""
    blocks, score, rng = problem(400)
    price = 2e5 + 5e4 * score / score.std() + 1e4 * rng.normal(size=len(score))
    model = VerticalRegressor(algorithm, passes=100).fit(blocks, price)
    assert model.record_.verdict == "target"
    pooled = np.hstack([*blocks.values(), np.ones((len(price), 1))])
    ridge = Ridge(alpha=len(price) * 1e-4 / 2, fit_intercept=False).fit(pooled, price)
    assert np.abs(ridge.predict(pooled) - model.predict(blocks)).max() < 0.1
    assert model.score(blocks, price) > 0.9


def test_a_label_beyond_the_range_says_which_fraction_bits_help():
    blocks, score, _ = problem(200)
    far = 1e8 * score
    with pytest.raises(OutOfRange, match=r"fraction_bits to 2[0-9] or less"):
        VerticalRegressor().fit(blocks, far)
    model = VerticalRegressor(fraction_bits=20, target=None).fit(blocks, far)
    assert model.score(blocks, far) > 0.999


def test_a_run_that_got_nowhere_leaves_no_model():
    blocks, score, _ = problem(120)
    raw = {name: 1e4 * block for name, block in blocks.items()}
    model = VerticalClassifier()
    with pytest.raises(OutOfRange, match=r"squared length of a row.*standardise"):
        model.fit(raw, score > 0)
    assert not hasattr(model, "coef_")
    with pytest.raises(BadJob, match=r"diverged.*smaller step"):
        VerticalRegressor("fsgd-vp", step=50.0).fit(blocks, score)


def test_parameters_may_come_from_numpy():
    blocks, score, _ = problem(80)
    plain = VerticalClassifier(penalty=0.1, passes=3.0, batch=16, in_flight=2, labels_at=["shop"], target=None)
    grid = VerticalClassifier(
        penalty=np.logspace(-3, -1, 3)[-1],
        passes=np.int64(3),
        batch=np.int32(16),
        in_flight=np.int64(2),
        intercept=np.bool_(True),
        labels_at=np.array(["shop"]),
        slow={"bank": np.float32(1.0)},
        target=None,
    )
    expected = plain.set_params(slow={"bank": 1.0}).fit(blocks, score > 0).decision_function(blocks)
    assert np.array_equal(grid.fit(blocks, score > 0).decision_function(blocks), expected)


@pytest.mark.parametrize("empty", [np.nan, None, np.inf])
@pytest.mark.parametrize("kind", [VerticalClassifier, VerticalRegressor])
def test_a_row_without_a_label_is_refused(kind, empty):
    blocks, score, _ = problem(60)
    label = np.where(score > 0, 1.0, 2.0).astype(float if empty is not None else object)
    label[[3, 7]] = empty
    with pytest.raises(BadData, match=r"row 4 .*2 such rows"):
        kind().fit(blocks, label)
    with pytest.raises(BadData, match="label in every row"):
        kind().fit(blocks, np.where(score > 0, np.nan, 1.0))


def test_indexes_that_disagree_are_a_warning(recwarn):
    blocks, score, _ = problem(60)
    frames = {name: pd.DataFrame(block) for name, block in blocks.items()}
    label = pd.Series(score > 0)
    model = VerticalClassifier("fsaga-vp", passes=2, target=None).fit(frames, label)
    model.predict(frames)
    assert not [w for w in recwarn if "indexes differ" in str(w.message)]
    shuffled = {**frames, "shop": frames["shop"].iloc[::-1]}
    with pytest.warns(UserWarning, match="bank and shop are matched by position.* row 1 is 0 in one and 59 in the"):
        model.fit(shuffled, label)
    with pytest.warns(UserWarning, match="bank and y are matched by position"):
        model.fit(frames, label.iloc[::-1])
    with pytest.warns(UserWarning, match="bank and shop") as caught:
        model.predict(shuffled)
    assert caught[0].filename == __file__


def test_names_of_parties_and_columns_are_checked():
    blocks, score, _ = problem(60)
    with pytest.raises(BadData, match=r"named by text.*got 1"):
        VerticalClassifier().fit(dict(enumerate(blocks.values(), 1)), score > 0)
    with pytest.raises(BadData, match="empty dictionary"):
        VerticalClassifier().fit({}, score > 0)
    twice = pd.DataFrame(blocks["bank"], columns=["a", "b", "a"])
    with pytest.raises(BadData, match="party 'bank' has more than one column 'a'"):
        VerticalClassifier().fit({**blocks, "bank": twice}, score > 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"slow": {"shopp": 2.0}}, "slow names 'shopp'.*Did you mean 'shop'"),
        ({"labels_at": []}, "At least one party must hold the labels"),
        ({"labels_at": ["shopp"]}, "'shopp', which is no party"),
        ({"runtime": "processes"}, 'runtime must be "simulator" or "threads"'),
        ({"algorithm": "vafl"}, "trains embeddings"),
    ],
)
def test_parameters_are_held_against_the_parties(wrong, said):
    blocks, score, _ = problem(60)
    with pytest.raises(BadJob, match=said):
        VerticalClassifier(**wrong).fit(blocks, score > 0)


def test_advice_can_be_followed_in_python():
    blocks, score, _ = problem(60)
    model = VerticalClassifier("fsaga-vp", passes=2, target=None).fit(blocks, score > 0)
    holed = {**blocks, "bank": np.where(blocks["bank"] > 2, np.nan, blocks["bank"])}
    for use in (model.predict, lambda X: clone(model).fit(X, score > 0)):
        with pytest.raises(BadData, match=r"empty cell.*fill empty cells first") as refused:
            use(holed)
        assert "missing =" not in str(refused.value)
    with pytest.raises(BadData, match="VerticalRegressor"):
        VerticalClassifier().fit(blocks, score)
    with pytest.raises(BadData, match="X must be a dictionary"):
        model.predict(blocks["bank"])
    dated = pd.DataFrame(blocks["bank"]).assign(day=pd.Timestamp("2020-01-01"))
    with pytest.raises(BadData, match="Leave it out"):
        model.fit({**blocks, "bank": dated}, score > 0)


def test_scikit_learn_cuts_party_columns_by_rows():
    blocks, score, _ = problem(120)
    label = score > 0
    mixed = {
        "bank": blocks["bank"].tolist(),
        "shop": scipy.sparse.csr_matrix(blocks["shop"]),
        "telecom": pd.DataFrame(blocks["telecom"], columns=list("abcd")),
    }
    X = PartyColumns(mixed)
    assert X.shape == (120, 9) and list(X) == list(WIDTHS) and len(X) == 3
    model = VerticalClassifier("fsvrg-vp", passes=8, target=None)
    assert cross_val_score(model, X, label, cv=3).min() > 0.85
    train, test, train_label, test_label = train_test_split(X, label, random_state=0)
    assert list(train["telecom"].columns) == list("abcd")
    search = GridSearchCV(model, {"penalty": np.logspace(-3, 0, 2)}, cv=2).fit(train, train_label)
    assert search.best_params_ == {"penalty": 1e-3}
    assert search.score(test, test_label) > 0.85
    odd = X[np.arange(120) % 2 == 1]
    assert np.array_equal(odd["bank"], blocks["bank"][1::2])
    assert np.allclose(model.fit(odd, label[1::2]).predict(odd), model.predict(dict(odd)))


def test_party_columns_of_different_lengths_are_refused():
    blocks, _, _ = problem(60)
    with pytest.raises(BadData, match="same number of rows"):
        PartyColumns({**blocks, "shop": blocks["shop"][:50]})
    with pytest.raises(BadData, match="dictionary"):
        PartyColumns(blocks["bank"])
