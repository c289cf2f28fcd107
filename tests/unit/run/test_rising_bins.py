"""Bins whose weights must rise or fall: the best model of that kind, certified, and a scorecard that shows it."""

import msgspec
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import LinearConstraint, minimize

import offbeat
from offbeat import VerticalClassifier, VerticalRegressor
from offbeat.data.fitting import fit_preparation
from offbeat.data.preparation import Preparation
from offbeat.data.prepare import fitted_from, state_of
from offbeat.errors import BadJob
from offbeat.jobs.organisations import job_from as org_job_from

ROWS, STRENGTH, TARGET = 600, 1e-2, 1e-7
PARTIES = {"bank": ["income", "age"], "shop": ["late"], "telecom": ["calls"]}
ORDERED = {
    "bank": {"how": "bins", "bins": 4, "columns": {"income": "falling", "age": "rising"}},
    "shop": {"how": "bins", "bins": 4, "columns": {"late": "rising"}},
    "telecom": {"how": "bins", "bins": 4},
}
FREE = {"how": "bins", "bins": 4}


def table(seed=0):
    """The chance falls with income, which some lack, rises with late payments, and goes up and down with age."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": rng.lognormal(10, 1, ROWS),
            "age": rng.uniform(18, 90, ROWS),
            "late": rng.uniform(0, 5, ROWS),
            "calls": rng.normal(size=ROWS),
        }
    )
    score = 0.9 * frame["late"] - 1.2 * np.log(frame["income"] / 2e4) + 2 * np.sin(frame["age"] / 12) - 2
    frame.loc[rng.random(ROWS) < 0.1, "income"] = np.nan
    return frame, score.to_numpy() + rng.logistic(size=ROWS)


FRAME, SCORE = table()
Y = SCORE > 0


def fitted(prepare, y=Y, make=VerticalClassifier, **more):
    wanted = {"penalty": STRENGTH, "target": TARGET, "passes": 300.0, **more}
    return make(parties=PARTIES, prepare=prepare, **wanted).fit(FRAME, y)


def weights(model, party, column):
    """Of the column's bins, in their order, without that of missing values."""
    own = model.coefficients_[party]
    return np.array([value for name, value in own.items() if name.startswith(f"{column} ") and "missing" not in name])


def design(model):
    blocks = model.model_.blocks(model.model_.tables({party: FRAME[own] for party, own in PARTIES.items()}))
    return np.hstack([np.asarray(blocks[party]) for party in PARTIES])


def slow_reference(model):
    """Sequential quadratic programming over the pooled columns, with a constraint for each pair of neighbours."""
    X, width = design(model), sum(len(own) for own in model.coefficients_.values())
    pairs, at = [], 0
    for party, signs in (("bank", (-1, 1)), ("shop", (1,)), ("telecom", (0,))):
        for item, sign in zip(model.model_.fitted(party).levels, signs, strict=True):
            for j in range(at, at + item.values.size if sign else at):
                row = np.zeros(width + 1)
                row[[j, j + 1]] = -sign, sign
                pairs.append(row)
            at += item.width
    signs = np.where(Y, 1.0, -1.0)

    def objective(w):
        margin = signs * (X @ w[:-1] + w[-1])
        pull = -signs / (1 + np.exp(margin)) / ROWS
        slope = np.append(X.T @ pull + STRENGTH * w[:-1], pull.sum())
        return np.logaddexp(0, -margin).mean() + STRENGTH * w[:-1] @ w[:-1] / 2, slope

    found = minimize(
        objective,
        np.zeros(width + 1),
        jac=True,
        method="SLSQP",
        constraints=LinearConstraint(np.array(pairs), 0, np.inf),
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x[:-1]


@pytest.fixture(scope="module")
def ordered():
    return fitted(ORDERED)


@pytest.fixture(scope="module")
def free():
    return fitted(FREE)


def test_weights_are_in_order_and_certified(ordered, free):
    assert ordered.record_.verdict == "target" and ordered.record_.certificate.duality_gap <= TARGET
    assert (np.diff(weights(ordered, "bank", "income")) <= 0).all()
    assert (np.diff(weights(ordered, "bank", "age")) >= 0).all()
    assert (np.diff(weights(ordered, "shop", "late")) >= 0).all()
    assert (np.diff(weights(free, "bank", "age")) < 0).any()
    assert ordered.record_.objective > free.record_.objective
    assert "income is missing" in ordered.coefficients_["bank"]


def test_it_is_the_best_model_in_order(ordered):
    ours = np.concatenate([list(own.values()) for own in ordered.coefficients_.values()])
    allowed = np.sqrt(2 * TARGET / STRENGTH)
    assert np.linalg.norm(ours - slow_reference(ordered)) < allowed + 1e-4


def test_where_the_free_model_is_in_order_it_is_the_same(free):
    prepare = {**ORDERED, "bank": {**FREE, "columns": {"income": "falling"}}}
    same = fitted(prepare)
    for party, own in free.coefficients_.items():
        np.testing.assert_allclose(
            list(same.coefficients_[party].values()), list(own.values()), atol=2 * np.sqrt(2 * TARGET / STRENGTH)
        )


def test_the_scorecard_shows_points_in_order(ordered):
    points = [line.points for line in ordered.scorecard().of("bank") if line.bin.startswith("age ")]
    assert points == sorted(points, reverse=True) and len(set(points)) > 1


@pytest.mark.parametrize("algorithm", ["afsvrg-vp", "vfb-saga", "vfb2-sgd"])
def test_every_kind_of_step_keeps_the_order(algorithm):
    model = fitted(ORDERED, algorithm=algorithm, passes=8.0, target=None)
    assert (np.diff(weights(model, "bank", "age")) >= 0).all()
    assert (np.diff(weights(model, "bank", "income")) <= 0).all()


def test_numbers_too_and_what_each_party_is_worth(tmp_path):
    model = fitted(ORDERED, 1e6 * SCORE, VerticalRegressor, target=1e-5)
    assert model.record_.verdict == "target" and (np.diff(weights(model, "bank", "age")) >= 0).all()
    worth = model.worth(FRAME, 1e6 * SCORE, FRAME, 1e6 * SCORE)
    assert sum(worth.values.values()) == pytest.approx(worth.joint - worth.empty, abs=1e-12)
    model.save(tmp_path / "kept")
    assert offbeat.load(tmp_path / "kept").fitted("shop").orders == ((0, 4, 1),)


def test_orders_are_kept_with_the_preparation():
    features = np.column_stack((np.linspace(0, 1, 100), np.linspace(1, 0, 100)))
    features[:5, 1] = np.nan
    prepare = Preparation(how="bins", bins=5, columns={"a": "rising", "b": "falling"})
    one = fit_preparation(features, ("a", "b"), prepare)
    assert one.orders == ((0, 5, 1), (5, 10, -1)) and one.columns[10] == "b is missing"
    assert fitted_from(state_of(one)).orders == one.orders
    plain = fit_preparation(features, ("a", "b"), msgspec.structs.replace(prepare, columns={}))
    np.testing.assert_array_equal(one.apply(features), plain.apply(features))


@pytest.mark.parametrize(
    ("y", "more", "said"),
    [
        (np.digitize(SCORE, [-2, 2]), {}, "one model for each class"),
        (Y, {"l1_ratio": 0.5}, "l1_ratio = 0.5"),
        (Y, {"penalty_kind": "nonconvex"}, "penalty_kind = 'nonconvex'"),
    ],
)
def test_models_that_know_no_order_are_refused(y, more, said):
    with pytest.raises(BadJob, match=said):
        fitted(ORDERED, y, **more)


def test_counts_and_text_are_refused():
    with pytest.raises(BadJob, match="need leaps"):
        fitted(ORDERED, np.exp(SCORE), VerticalRegressor, loss="poisson")
    with pytest.raises(BadJob, match="prepare says \"rising\" for column 'town', which holds text"):
        towns = {"bank": pd.DataFrame({"town": ["Ulm", "Köln"] * 30}), "shop": np.arange(120.0).reshape(60, 2)}
        VerticalClassifier(prepare={"bank": {"columns": {"town": "rising"}}}).fit(towns, [0, 1] * 30)


def test_a_job_between_organisations_has_to_say_so():
    job = {"name": "a", "parties": ["bank", "shop", "phone"], "labels_at": ["bank"], "model": {"ordered": True}}
    assert org_job_from(job, "job").model.ordered
    for wrong in ({"l1_ratio": 0.5}, {"loss": "softmax", "classes": 3}, {"penalty": "none", "strength": 0.0}):
        with pytest.raises(BadJob, match="ordered = true goes with"):
            org_job_from({**job, "model": {"ordered": True, **wrong}}, "job")
