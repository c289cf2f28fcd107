"""Shapley values of held-out scores: they add up, they are the textbook's, and who brings nothing is worth nothing."""

from itertools import permutations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from three_files import trained
from typer.testing import CliRunner

from offbeat import Job, VerticalClassifier, VerticalRegressor, worth
from offbeat.cli import app
from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadInput, BadJob
from offbeat.metrics.record import RunRecord
from offbeat.run.worth import job_for_worth, shapley

ROWS = 3000


def blocks(parties=("bank", "shop", "nothing"), seed=0):
    rng = np.random.default_rng(seed)
    X = {name: rng.normal(size=(ROWS, 2)) for name in parties}
    z = X["bank"] @ [1.5, -0.5] + X["shop"] @ [0.6, 0.0]
    return X, z, z + rng.logistic(size=ROWS) > 0.5


def data(y, task="classification", test=0.4, **more):
    X, _, _ = blocks()
    return vertical_from_arrays(X, y, ["bank"], "none", test, 0, task=task, **more)


def slowly(at, names):
    """The mean over all orders of what each adds when it joins."""
    found = dict.fromkeys(names, 0.0)
    orders = list(permutations(names))
    for order in orders:
        for place, name in enumerate(order):
            before, after = (tuple(one for one in names if one in order[:n]) for n in (place, place + 1))
            found[name] += (at[after] - at[before]) / len(orders)
    return found


@given(st.lists(st.floats(-1e3, 1e3), min_size=16, max_size=16))
def test_values_are_the_mean_over_all_orders(values):
    names = ("a", "b", "c", "d")
    subsets = [tuple(one for place, one in enumerate(names) if bits >> place & 1) for bits in range(16)]
    at = dict(zip(subsets, values, strict=True))
    found = shapley(at, names)
    assert found == pytest.approx(slowly(at, names), abs=1e-9)
    assert sum(found.values()) == pytest.approx(at[names] - at[()], abs=1e-9)


def test_values_add_up_and_a_worthless_party_is_worth_0_within_noise():
    _, _, y = blocks()
    found = worth(data(y), Job())
    assert found.score == "auc" and found.empty == 0.5 and found.rows == 1200
    assert abs(sum(found.values.values()) - (found.joint - found.empty)) <= 1e-12
    assert found.values["bank"] > found.values["shop"] > 4 * found.errors["shop"] > 0
    assert abs(found.values["nothing"]) <= 4 * found.errors["nothing"] + 0.002
    assert len(found.coalitions) == 8 and found.coalitions["nobody"] == 0.5


def test_coalitions_are_scored_by_models_trained_anew():
    _, z, y = blocks()
    mine = data(y)
    found = worth(mine, Job(penalty=1e-2))
    for names in (("bank",), ("bank", "nothing")):
        train, test = (np.hstack([part[name] for name in names]) for part in (mine.train, mine.test))
        model = LogisticRegression(C=1 / (mine.rows * 1e-2), tol=1e-8).fit(train, mine.y_train)
        assert found.coalitions[" + ".join(names)] == pytest.approx(
            roc_auc_score(mine.y_test, model.decision_function(test)), abs=1e-4
        )
    noisy = z + np.random.default_rng(1).normal(size=ROWS)
    number = data(noisy, "regression")
    found = worth(number, Job(penalty=1e-2, task="regression"))
    model = Ridge(alpha=number.rows * 1e-2 / 2).fit(number.train["shop"], number.y_train)
    wrong = np.mean((model.predict(number.test["shop"]) - number.y_test) ** 2)
    empty = np.mean((number.y_train.mean() - number.y_test) ** 2)
    assert found.score == "explained" and found.coalitions["shop"] == pytest.approx(1 - wrong / empty, abs=1e-6)
    assert found.empty == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("task", "keys"),
    [
        ("classification", {"label_dp_epsilon": 3.0}),
        ("classification", {"l1_ratio": 0.5, "penalty": 0.01}),
        ("classification", {"penalty_kind": "none", "class_weight": "balanced"}),
        ("classification", {"intercept": False}),
        ("multiclass", {}),
        ("regression", {"loss": "poisson"}),
    ],
)
def test_every_linear_model_has_values_that_add_up(task, keys):
    _, z, y = blocks()
    labels = {"classification": y, "multiclass": np.digitize(z, [-1, 1]), "regression": np.floor(np.exp(z / 2))}[task]
    told = []
    found = worth(data(labels, task), Job(task=task, **keys), tell=told.append)
    assert abs(sum(found.values.values()) - (found.joint - found.empty)) <= 1e-12
    assert found.values["bank"] > found.values["shop"] > abs(found.values["nothing"])
    assert len(told) == 7


def test_a_fitted_estimator_says_what_its_parties_are_worth():
    X, z, y = blocks()
    train, test = ({name: block[part] for name, block in X.items()} for part in (slice(0, 1800), slice(1800, None)))
    labels = np.where(y, "yes", "no")
    model = VerticalClassifier(prepare="none", target=1e-4, class_weight="balanced").fit(train, labels[:1800])
    found = model.worth(train, labels[:1800], test, labels[1800:])
    assert found.joint == pytest.approx(roc_auc_score(y[1800:], model.decision_function(test)), abs=1e-3)
    assert found.values["bank"] > found.values["shop"] > abs(found.values["nothing"])
    score = model.worth(train, labels[:1800], test, labels[1800:], score="accuracy")
    assert score.joint == pytest.approx(model.score(test, labels[1800:]), abs=2e-3)
    chosen = VerticalClassifier(prepare="none", target=1e-3, penalty=[1e-2, 1e-3]).fit(train, labels[:1800])
    told = chosen.worth(train, labels[:1800], test, labels[1800:]).joint
    assert told == pytest.approx(roc_auc_score(y[1800:], chosen.decision_function(test)), abs=1e-3)
    number = VerticalRegressor(prepare="none", target=1e-4).fit(train, z[:1800])
    assert number.worth(train, z[:1800], test, z[1800:]).joint == pytest.approx(1.0, abs=1e-3)


def test_what_cannot_be_told_is_refused():
    _, _, y = blocks()
    X = {f"party{i}": np.random.default_rng(i).normal(size=(60, 1)) for i in range(7)}
    seven = vertical_from_arrays(X, y[:60], "all", "none", 0.2, 0)
    cases = [
        (BadInput, "at most 6 parties", lambda: worth(seven, Job())),
        (BadInput, "held-out rows, and there are none", lambda: worth(data(y, test=0.0), Job())),
        (BadInput, "trains networks", lambda: worth(data(y), Job(algorithm="vafl", penalty_kind="none"))),
        (BadInput, "use one of auc, accuracy, explained", lambda: worth(data(y), Job(), score="rank")),
        (BadInput, "leaves its penalty to be chosen", lambda: worth(data(y), Job(penalty="auto"))),
        (BadInput, "product_epsilon promises", lambda: worth(data(y), Job(algorithm="vfb-sgd", product_epsilon=1.0))),
        (BadJob, "no one best model", lambda: worth(data(y), Job(penalty_kind="nonconvex"))),
    ]
    for kind, words, ask in cases:
        with pytest.raises(kind, match=words):
            ask()


def test_the_command_puts_the_picture_into_the_report(tmp_path):
    folder, _, _, _ = trained(tmp_path)
    done = CliRunner().invoke(app, ["worth", str(folder)])
    assert done.exit_code == 0, done.output
    found = RunRecord.read(folder).worth
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["bank", "shop", "telecom", "all"]
    page = (folder / "report.html").read_text()
    assert "What each party is worth" in page and f"{found.values['shop']:+.4f}" in page
    again = CliRunner().invoke(app, ["worth", str(folder / "job.toml"), "--score", "accuracy", "--json"])
    assert again.exit_code == 0 and '"score": "accuracy"' in again.stdout


def test_an_organisations_side_is_refused_with_the_reason(tmp_path):
    folder, result, _, _ = trained(tmp_path)
    with pytest.raises(BadInput, match="a training for each coalition"):
        job_for_worth(folder, msgspec.structs.replace(result.record, runtime="grpc"))
