"""The scikit-learn side: clone and parameters, any kind of columns and labels, and the pooled model as the measure."""

import pickle

import numpy as np
import pandas as pd
import pyarrow
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from offbeat import PartyColumns, VerticalClassifier, VerticalRegressor, load
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


_REPEATED = 'columns are standardised by all rows alike (prepare = "auto"), and the certificate ends at 1e-6, not 1e-7'
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": _REPEATED,
    "check_sample_weight_equivalence_on_sparse_data": _REPEATED,
}
"""Checks of scikit-learn that fail, and why; three at most."""


@pytest.mark.parametrize("kind", [VerticalClassifier, VerticalRegressor])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(kind):
    told = estimator_checks.check_estimator(
        kind(), on_fail=None, on_skip=None, expected_failed_checks=EXPECTED_FAILURES
    )
    failed = {one["check_name"]: str(one["exception"]) for one in told if one["status"] == "failed"}
    assert failed == {}
    assert sum(one["status"] == "passed" for one in told) >= 50
    assert len(EXPECTED_FAILURES) <= 3


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
    model = VerticalClassifier(penalty=1e-2, target=1e-10, passes=200, intercept=False, prepare="none").fit(
        blocks, label
    )
    best, value = central.optimum(np.hstack(list(blocks.values())), label, LOGISTIC, 1e-2)
    found = np.concatenate([model.coef_[name] for name in WIDTHS])
    assert np.abs(found - best).max() < 1e-4
    pooled = np.hstack(list(blocks.values()))
    reached = central.objective(pooled, label, found, LOGISTIC, L2, 1e-2)
    assert 0 <= reached - value <= model.certificate_.duality_gap + 1e-12
    assert model.record_.verdict == "target"


@pytest.mark.parametrize("algorithm", ["vfb2-svrg", "vfb2-saga", "afsvrg-vp"])
def test_columns_of_very_different_scales_are_no_trouble(algorithm):
    blocks, score, rng = problem()
    label = np.where(score + rng.logistic(size=len(score)) > 0, 1.0, -1.0)
    scaled = {name: table * np.geomspace(1.0, 30.0, table.shape[1]) for name, table in blocks.items()}
    options = {"penalty": 1e-3, "passes": 100, "prepare": "none"}
    model = VerticalClassifier(algorithm, **options).fit(scaled, label)
    assert model.record_.verdict == "target"
    pooled = np.hstack([*scaled.values(), np.ones((len(label), 1))])
    _, value = central.optimum(pooled, label, LOGISTIC, 1e-3, free=1)
    found = np.concatenate([*(model.coef_[name] for name in WIDTHS), [model.intercept_]])
    assert central.objective(pooled, label, found, LOGISTIC, L2, 1e-3, free=1) - value <= 1e-6


def test_it_agrees_with_scikit_learn():
    blocks, score, rng = problem()
    pooled = np.hstack(list(blocks.values()))
    label = score + rng.logistic(size=len(score)) > 0
    theirs = LogisticRegression(C=1 / (len(score) * 1e-3), tol=1e-10, max_iter=1000, fit_intercept=False).fit(
        pooled, label
    )
    ours = VerticalClassifier(penalty=1e-3, target=1e-9, passes=200, intercept=False, prepare="none").fit(blocks, label)
    assert np.abs(theirs.predict_proba(pooled) - ours.predict_proba(blocks)).max() < 1e-4
    assert ours.score(blocks, label) == theirs.score(pooled, label)
    ridge = Ridge(alpha=len(score) * 1e-3 / 2, fit_intercept=False).fit(pooled, score)
    regressor = VerticalRegressor(penalty=1e-3, target=1e-10, passes=200, intercept=False, prepare="none").fit(
        blocks, score
    )
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
    options = {"passes": 300, "target": 1e-13, "penalty": 1e-2, "prepare": "none"}
    plain = VerticalClassifier("fsvrg-vp", **options).fit(blocks, score > 0)
    model = VerticalClassifier("fsvrg-vp", **options).fit(mixed, score > 0)
    assert np.allclose(plain.decision_function(blocks), model.decision_function(mixed), atol=1e-4)
    reordered = {**mixed, "telecom": mixed["telecom"][list("badc")].assign(more=1)}
    np.testing.assert_array_equal(model.predict(reordered), model.predict(mixed))
    with pytest.raises(BadData, match="lacks the column 'b'"):
        model.predict({**mixed, "telecom": mixed["telecom"].rename(columns={"b": "B"})})


def test_raw_scales_are_no_trouble():
    blocks, score, _ = problem(200)
    wide = {**blocks, "bank": 1e7 * blocks["bank"] + 5}
    wide["shop"] = blocks["shop"].copy()
    wide["shop"][3, 0] = 1e13  # "the squared length of a row is ..." was the answer to this
    for prepare in ("auto", "bins"):
        model = VerticalClassifier("fsvrg-vp", prepare=prepare, passes=40, target=None).fit(wide, score > 0)
        assert model.score(wide, score > 0) > 0.9


def test_labels_may_stay_with_one_party():
    blocks, score, _ = problem(150)
    model = VerticalClassifier("vfb2-svrg", labels_at=["shop"], passes=30, target=None).fit(blocks, score > 0)
    assert model.score(blocks, score > 0) > 0.9
    assert "they stay at shop" in " ".join(model.record_.warnings)


def test_what_is_wrong_is_said():
    blocks, score, _ = problem(60)
    label = score > 0
    with pytest.raises(BadData, match="dictionary from party"):
        VerticalClassifier().fit(blocks["bank"][:, 0], label)
    with pytest.raises(BadData, match="the target y is None"):
        VerticalClassifier().fit(blocks, None)
    with pytest.raises(BadJob, match=r"prepare names 'bnak', which is no party.*'bank'"):
        VerticalClassifier(prepare={"bnak": "bins"}).fit(blocks, label)
    with pytest.raises(BadJob, match='how must be one of "auto"'):
        VerticalClassifier(prepare="binned").fit(blocks, label)
    with pytest.raises(BadData, match="Complex data not supported: party 'telecom'"):
        VerticalClassifier().fit({**blocks, "telecom": 1j * blocks["telecom"]}, label)
    with pytest.raises(BadData, match="two classes or more; y has 1: 0"):
        VerticalClassifier().fit(blocks, np.zeros(60, dtype=int))
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
    with pytest.warns(
        ConvergenceWarning, match=r"above the target 1e-12, .* of the objective\. .*raise passes"
    ) as told:
        model = VerticalClassifier("afsgd-vp", passes=1, target=1e-12).fit(blocks, score > 0)
    assert told[0].filename == __file__ and model.record_.reason in str(told[0].message)


@pytest.mark.parametrize("algorithm", ["vfb2-svrg", "vfb2-saga", "afsvrg-vp"])
def test_prices_are_learned_as_they_are(algorithm):
    blocks, score, rng = problem(400)
    price = 2e5 + 5e4 * score / score.std() + 1e4 * rng.normal(size=len(score))
    model = VerticalRegressor(algorithm, passes=100, prepare="none").fit(blocks, price)
    assert model.record_.verdict == "target"
    pooled = np.hstack(list(blocks.values()))
    ridge = Ridge(alpha=len(price) * 1e-4 / 2).fit(pooled, price)
    assert np.abs(ridge.predict(pooled) - model.predict(blocks)).max() < 1e-4 * price.std()
    assert model.score(blocks, price) > 0.9


def test_a_label_beyond_the_range_says_which_fraction_bits_help():
    blocks, score, _ = problem(200)
    far = 1e8 * score
    with pytest.raises(OutOfRange, match=r"fraction_bits to 2[0-9] or less"):  # an l1 penalty has units of its own
        VerticalRegressor(l1_ratio=0.5).fit(blocks, far)
    model = VerticalRegressor(l1_ratio=0.5, fraction_bits=20, target=None).fit(blocks, far)
    assert model.score(blocks, far) > 0.999


def test_a_run_that_got_nowhere_leaves_no_model():
    blocks, score, _ = problem(120)
    raw = {name: 1e4 * block for name, block in blocks.items()}
    model = VerticalClassifier(prepare="none", by_curvature=False)
    with pytest.raises(OutOfRange, match=r"Nothing was learned.*prepare=\"auto\""):
        model.fit(raw, score > 0)
    assert not hasattr(model, "coef_")
    assert VerticalClassifier(prepare="none").fit(raw, score > 0).record_.verdict == "target"
    with pytest.raises(OutOfRange, match="Nothing was learned"):
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


def test_frames_are_aligned_by_their_indexes(recwarn):
    blocks, score, _ = problem(60)
    frames = {name: pd.DataFrame(block) for name, block in blocks.items()}
    label = pd.Series(score > 0)
    model = VerticalClassifier("fsaga-vp", passes=2, target=None).fit(frames, label)
    expected = model.decision_function(frames)
    shuffled = {**frames, "shop": frames["shop"].iloc[::-1]}
    np.testing.assert_array_equal(model.decision_function(shuffled), expected)
    np.testing.assert_array_equal(model.fit(shuffled, label.iloc[::-1]).decision_function(frames), expected)
    assert not [w for w in recwarn if "indexes differ" in str(w.message)]
    other = {**frames, "shop": frames["shop"].set_index(np.arange(60) + 7)}
    with pytest.warns(
        UserWarning, match=r"bank and shop are matched by position.* row 1 is 0 in one and 7 in t"
    ) as told:
        model.predict(other)
    assert told[0].filename == __file__


def test_labels_without_an_index_beside_frames_in_different_orders_are_doubtful():
    blocks, score, _ = problem(60)
    frames = {name: pd.DataFrame(block) for name, block in blocks.items()}
    shuffled = {**frames, "shop": frames["shop"].iloc[::-1]}
    model = VerticalClassifier("fsaga-vp", passes=2, target=None)
    with pytest.warns(UserWarning, match=r"order of bank.*the labels y\) is taken"):
        model.fit(shuffled, np.asarray(score > 0))


def test_tables_without_an_index_are_matched_by_position(recwarn):
    """Those of pyarrow, say: only pandas numbers their rows."""
    blocks, score, _ = problem(60)
    label = pd.Series(score > 0).sample(frac=1, random_state=0)
    tables = {name: pyarrow.table(pd.DataFrame(block[label.index])) for name, block in blocks.items()}
    ours = VerticalClassifier(passes=2, target=None).fit(tables, label)
    expected = VerticalClassifier(passes=2, target=None).fit(
        {name: block[label.index] for name, block in blocks.items()}, label.to_numpy()
    )
    np.testing.assert_array_equal(ours.decision_function(tables), expected.decision_function(blocks)[label.index])
    assert not [w for w in recwarn if "indexes differ" in str(w.message)]


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
    strict = VerticalClassifier("fsaga-vp", passes=2, target=None, prepare="scaled").fit(blocks, score > 0)
    holed = {**blocks, "bank": np.where(blocks["bank"] > 2, np.nan, blocks["bank"])}
    for use in (strict.predict, lambda X: clone(strict).fit(X, score > 0)):
        with pytest.raises(BadData, match=r"empty cell.*prepare = \"auto\""):
            use(holed)
    assert clone(strict).set_params(prepare="auto").fit(holed, score > 0).predict(holed).shape == (60,)
    with pytest.raises(BadData, match="VerticalRegressor"):
        VerticalClassifier().fit(blocks, score)
    with pytest.raises(BadData, match="must come as it was fitted: a dictionary"):
        strict.predict(np.hstack(list(blocks.values())))


def mixed_frame(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": rng.lognormal(8, 1, rows),
            "town": rng.choice(["north", "south", "west"], rows),
            "member": rng.random(rows) < 0.5,
            "spend": rng.normal(size=rows),
        }
    )
    score = np.log(frame["income"]) - 8 + 2 * (frame["town"] == "north") + frame["spend"] - 0.5
    frame.loc[rng.random(rows) < 0.1, "income"] = np.nan
    return frame, np.where(score + rng.logistic(size=rows) > 0, "yes", "no")


PARTIES = {"bank": ["income"], "shop": ["town", "member"], "telecom": ["spend"]}


def test_one_frame_with_parties_is_the_same_as_a_frame_each():
    frame, label = mixed_frame()
    options = {"passes": 10, "target": None}
    one = VerticalClassifier(parties=PARTIES, **options).fit(frame, label)
    each = VerticalClassifier(**options).fit({name: frame[mine] for name, mine in PARTIES.items()}, label)
    np.testing.assert_array_equal(one.decision_function(frame), each.decision_function(dict(_cut(frame))))
    assert one.parties_ == each.parties_ == ("bank", "shop", "telecom")
    assert list(one.feature_names_in_) == ["income", "town", "member", "spend"] and one.n_features_in_ == 4
    assert list(one.coefficients_["shop"]) == ["town=north", "town=south", "town=west", "member=False", "member=True"]
    assert one.coefficients_["telecom"]["spend"] == one.coef_["telecom"][0] > 0.3
    by_position = VerticalClassifier(parties={"bank": [0], "shop": [1, 2], "telecom": [3]}, **options).fit(frame, label)
    np.testing.assert_array_equal(by_position.decision_function(frame), one.decision_function(frame))
    np.testing.assert_allclose(np.exp(one.predict_log_proba(frame)), one.predict_proba(frame))
    with pytest.raises(BadData, match=r"1 column of the table has no party: spend. Name a party"):
        VerticalClassifier(parties={"bank": ["income"], "shop": ["town", "member"]}).fit(frame, label)


def _cut(frame):
    return {name: frame[mine] for name, mine in PARTIES.items()}


def test_it_goes_through_scikit_learns_tools():
    frame, label = mixed_frame()
    model = VerticalClassifier(parties=PARTIES, passes=20, target=None, prepare={"bank": "bins"})
    search = GridSearchCV(model, {"penalty": [1e-3, 1.0]}, cv=2, scoring="neg_log_loss").fit(frame, label)
    assert search.best_params_ == {"penalty": 1e-3}
    worth = permutation_importance(model.fit(frame, label), frame, label, n_repeats=2, random_state=0)
    assert worth.importances_mean.shape == (4,) and worth.importances_mean[1] > worth.importances_mean[2]
    calibrated = CalibratedClassifierCV(model, cv=2).fit(frame, label)
    assert calibrated.predict_proba(frame).shape == (200, 2)
    numbers = frame[["income", "spend"]].fillna(0).assign(more=np.arange(200.0) ** 0.5)
    piped = make_pipeline(StandardScaler(), VerticalClassifier(passes=5, target=None)).fit(numbers, label)
    assert piped.score(numbers, label) > 0.6


@pytest.mark.parametrize("labels", [("no", "yes"), (False, True), (3, 7)])
def test_a_fitted_model_is_saved_and_loaded_without_pickle_and_with_it(labels, tmp_path):
    frame, label = mixed_frame()
    label = np.array(labels)[(label == "yes").astype(int)]
    model = VerticalClassifier(parties=PARTIES, passes=5, target=None, slow={"shop": 2.0}).fit(frame, label)
    new, _ = mixed_frame(seed=3)
    new.loc[0, "town"] = "east"
    for twin in (VerticalClassifier.load(model.save(tmp_path / "model")), pickle.loads(pickle.dumps(model))):
        assert twin.get_params() == model.get_params()
        np.testing.assert_array_equal(twin.decision_function(new), model.decision_function(new))
        np.testing.assert_array_equal(twin.predict(new), model.predict(new))
        assert twin.predict(new).dtype == label.dtype
        assert twin.certificate_ == model.certificate_
        assert list(twin.feature_names_in_) == list(frame.columns)
    assert list(load(tmp_path / "model").classes) == list(labels)
    with pytest.raises(BadInput, match="there already"):
        model.save(tmp_path / "model")
    with pytest.raises(BadInput, match=r"holds a VerticalClassifier; load it with VerticalClassifier\.load"):
        VerticalRegressor.load(tmp_path / "model")
    with pytest.raises(BadInput, match=r"estimator\.json is not there"):
        VerticalClassifier.load(tmp_path)


def test_verbose_tells_of_the_progress(capsys):
    blocks, score, _ = problem(60)
    VerticalClassifier("fsaga-vp", passes=4, target=None, verbose=True).fit(blocks, score > 0)
    told = capsys.readouterr().err.splitlines()
    assert len(told) >= 3 and "of 4 passes: objective" in told[-1]
    assert repr(PartyColumns(blocks)) == "PartyColumns(60 rows; columns of bank: 3, shop: 2, telecom: 4)"


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


def test_several_labels_are_several_fits_of_scikit_learns():
    X = np.random.default_rng(3).normal(size=(90, 4))
    Y = np.column_stack((X[:, 0] + X[:, 1] > 0, X[:, 2] - X[:, 3] > 0.2))
    model = MultiOutputClassifier(VerticalClassifier(parties={"bank": [0, 1], "shop": [2], "phone": [3]}, target=1e-3))
    chances = model.fit(X, Y).predict_proba(X)
    assert [one.shape for one in chances] == [(90, 2), (90, 2)]
    assert (model.predict(X) == Y).mean() > 0.9
