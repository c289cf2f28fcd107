"""Points by bin, weights of evidence, stability, and what each party adds to a prediction."""

import csv
import io

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from three_files import frames, trained
from typer.testing import CliRunner

import offbeat
from offbeat import VerticalClassifier, VerticalRegressor
from offbeat.cli import app
from offbeat.errors import BadData, BadInput
from offbeat.learning.scores import largest_distance
from offbeat.run.scorecard import stability_index, weights_of_evidence

CELLS = {"bank": ["income"], "shop": ["town", "spend"], "telecom": ["calls"]}


def rows(seed=0, count=300):
    found = frames(seed, count)
    return {name: found[name][columns] for name, columns in CELLS.items()}, found["bank"]["y"].to_numpy()


@pytest.fixture(scope="module")
def fitted():
    X, y = rows()
    return VerticalClassifier(prepare={"how": "bins", "bins": 4}, penalty=1e-2, target=1e-4).fit(X, y)


def test_points_add_up_to_the_log_odds(fitted):
    X, _ = rows(seed=3)
    factor = 20 / np.log(2)
    exact = 600 - factor * np.log(50) - factor * fitted.decision_function(X)  # points are for the first class
    fine = fitted.scorecard(digits=9)
    np.testing.assert_allclose(fine.score(X), exact, atol=1e-6)
    card = fitted.scorecard()
    assert all(line.points == round(line.points) for line in card.lines) and card.base == round(card.base)
    assert np.abs(card.score(X) - exact).max() <= card.rounding + 1e-9 < 3.0
    flipped = fitted.scorecard(good="good", points=100, odds=1, double=10, digits=9)
    np.testing.assert_allclose(flipped.score(X), 100 + 10 / np.log(2) * fitted.decision_function(X), atol=1e-6)


def test_a_score_is_added_up_by_hand(fitted):
    X, _ = rows(seed=3, count=5)
    card, row = fitted.scorecard(), {"town": "north", "spend": 99.0, "calls": 99.0, "income": np.nan}
    X = {name: pd.DataFrame({column: [row[column]] for column in frame}) for name, frame in X.items()}
    points = {line.bin: line.points for line in card.lines}
    last = {column: next(name for name in points if name.startswith(f"{column} >=")) for column in ("spend", "calls")}
    by_hand = card.base + points["town=north"] + points[last["spend"]] + points[last["calls"]]
    assert card.score(X) == [by_hand + points["income is missing"]]


def test_counts_and_evidence_are_those_of_a_slow_count(fitted):
    X, y = rows()
    card = fitted.scorecard(X, y)
    for town in ("north", "south", "west"):
        (line,) = [line for line in card.lines if line.bin == f"town={town}"]
        here = (X["shop"]["town"] == town).to_numpy()
        assert (line.rows, line.good, line.bad) == (
            here.sum(),
            (here & (y == "bad")).sum(),
            (here & (y == "good")).sum(),
        )
        share = [(here & (y == one)).sum() / (y == one).sum() for one in ("bad", "good")]
        assert line.weight_of_evidence == pytest.approx(np.log(share[0] / share[1]))
        assert line.information_value == pytest.approx((share[0] - share[1]) * np.log(share[0] / share[1]))
    values = card.information_values()
    assert set(values) == set(CELLS) and values["shop"]["spend"] > values["telecom"]["calls"] > 0
    assert "KS" in str(card) and "base points" in str(card) and card.notes == ()
    assert card.auc == pytest.approx(roc_auc_score(y == "bad", card.score(X)))


def test_a_bin_without_one_class_has_finite_evidence():
    evidence, value = weights_of_evidence(np.array([10.0, 0.0]), np.array([5.0, 5.0]))
    np.testing.assert_allclose(evidence, [np.log(1.0 / 0.5), np.log(0.05 / 0.55)])
    assert np.isfinite(value).all() and (value > 0).all()


def test_the_largest_distance_is_scipys():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 30, 500).astype(float), rng.random(500) < 0.3
    scores[positive] += 4
    assert largest_distance(scores, positive) == pytest.approx(ks_2samp(scores[positive], scores[~positive]).statistic)


def test_stability_is_0_of_the_same_rows_and_grows_with_a_shift(fitted):
    X, _ = rows()
    card = fitted.scorecard(X)
    same = card.stability(X)
    assert all(value == pytest.approx(0.0, abs=1e-12) for mine in same.values() for value in mine.values())
    moved = {**X, "shop": X["shop"].assign(spend=X["shop"]["spend"] + 1.0)}
    found = card.stability(moved)
    assert found["shop"]["spend"] > 0.25 and found["shop"]["town"] == pytest.approx(0.0, abs=1e-12)
    assert found["score"]["score"] > 0.05
    assert stability_index(np.array([0.5, 0.5]), np.array([0.6, 0.4])) == pytest.approx(0.1 * np.log(1.2 / 0.8))
    with pytest.raises(BadInput, match="make the card with rows"):
        fitted.scorecard().stability(X)


def test_protected_labels_are_not_counted_at_others():
    X, y = rows(count=1000)
    model = VerticalClassifier(prepare={"how": "bins", "bins": 3}, label_dp_epsilon=4.0, target=1e-3).fit(X, y)
    card = model.scorecard(X, y)
    assert set(card.information_values()) == {"bank"}
    assert all((line.good is None) == (line.party != "bank") and line.rows is not None for line in card.lines)
    assert "shop, telecom" in card.notes[0] and "label_dp_epsilon = 4" in card.notes[0]


def test_what_has_no_scorecard_is_told(fitted):
    X, y = rows()
    cases = [
        (VerticalClassifier(target=1e-2), y, "'income' of bank is a number"),
        (VerticalRegressor(prepare="bins", target=1e-1), (y == "good") * 1.0, "two classes"),
        (VerticalClassifier(prepare="bins", loss="squared_hinge", target=1e-2), y, "logistic loss"),
    ]
    for model, labels, words in cases:
        with pytest.raises(BadInput, match=words):
            model.fit(X, labels).scorecard()
    for wrong, words in [({"good": "fair"}, "no class"), ({"odds": 0}, "above 0")]:
        with pytest.raises(BadInput, match=words):
            fitted.scorecard(**wrong)
    with pytest.raises(BadData, match="one label"):
        fitted.scorecard(X, y[:-1])
    with pytest.raises(BadData, match="y holds"):
        fitted.scorecard(X, np.where(y == "good", "fine", y))


# -- parts by party ----------------------------------------------------------------------------------------------------


def test_parts_add_up_and_are_0_on_average(fitted):
    X, y = rows()
    told = fitted.explain(X)
    np.testing.assert_allclose(told.total, fitted.decision_function(X), atol=1e-9)
    assert set(told.parts) == set(CELLS)
    for part in told.parts.values():
        assert part.mean() == pytest.approx(0.0, abs=1e-9)
    number = VerticalRegressor(target=1e-2).fit(X, 1000.0 + 3e6 * (y == "good"))
    np.testing.assert_allclose(number.explain(X).total, number.predict(X), rtol=1e-9)
    assert number.explain(X).base == pytest.approx(1000.0 + 3e6 * (y == "good").mean(), rel=1e-3)


def test_parts_of_several_classes_add_up():
    X, _ = rows()
    kind = np.array(["a", "b", "c"])[np.digitize(X["shop"]["spend"], [-0.5, 0.5])]
    model = VerticalClassifier(target=1e-2).fit(X, kind)
    told = model.explain(X)
    assert told.parts["shop"].shape == (300, 3)
    np.testing.assert_allclose(told.total, model.decision_function(X), atol=1e-9)
    assert set(model.coefficients_["shop"]["spend"]) == {"a", "b", "c"}


def test_networks_have_no_parts_that_add_up(tmp_path):
    folder, _, _, _ = trained(tmp_path, algorithm="vafl", passes=1.0)
    model = offbeat.load(folder)
    for ask in (lambda: model.coefficients, lambda: model.explain({})):
        with pytest.raises(BadInput, match="linear models, whose parts add up"):
            ask()


# -- the command -------------------------------------------------------------------------------------------------------


def exported(folder, *options):
    done = CliRunner().invoke(app, ["export", str(folder), *options])
    assert done.exit_code == 0, done.output
    return list(csv.DictReader(io.StringIO(done.stdout))), done.stderr


def test_the_command_writes_points_and_coefficients(tmp_path):
    folder, _, data, _ = trained(tmp_path, data={"prepare": "bins"})
    lines, told = exported(folder, "--scorecard", "-", "--points", "500", "--good", "good")
    model = offbeat.load(folder)
    card = model.scorecard(good="good", points=500)
    assert [float(line["points"]) for line in lines] == [card.base, *(line.points for line in card.lines)]
    counted = [line for line in lines if line["column"] == "calls"]
    assert sum(int(line["rows"]) for line in counted) == data.rows == 240
    assert "KS" in told and "Population stability of the held-out rows" in told
    found, _ = exported(folder, "--coefficients", "-")
    assert {(row["party"], row["column"]): float(row["coefficient"]) for row in found} == {
        **{(party, name): value for party, mine in model.coefficients.items() for name, value in mine.items()},
        ("", "intercept"): model.intercept,
    }


def test_the_command_gives_points_alone_where_the_files_are_gone(tmp_path):
    folder, _, _, _ = trained(tmp_path, data={"prepare": "bins"})
    (tmp_path / "shop.csv").unlink()
    lines, told = exported(folder, "--scorecard", "-")
    assert all(line["rows"] == "" for line in lines) and "Points alone: the rows of the run cannot be read" in told


def test_the_files_have_changed(tmp_path):
    folder, _, _, _ = trained(tmp_path, data={"prepare": "bins"})
    changed = pd.read_csv(tmp_path / "telecom.csv")
    changed.assign(calls=changed["calls"] * 2 + 1).to_csv(tmp_path / "telecom.csv", index=False)
    _, told = exported(folder, "--scorecard", "-")
    assert "the files of the run have changed since" in told


def test_the_command_tells_the_parts_of_every_row(tmp_path):
    folder, _, _, _ = trained(tmp_path)
    new = frames(seed=5, rows=20)
    for name, frame in new.items():
        frame.drop(columns=["y", "amount"], errors="ignore").to_csv(tmp_path / f"new-{name}.csv", index=False)
    given = [f"--data={name}={tmp_path}/new-{name}.csv" for name in new]
    done = CliRunner().invoke(app, ["predict", str(folder), *given, "--parts"])
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    total = [sum(float(row[name]) for name in ("base", *(f"part of {party}" for party in new))) for row in rows]
    expected = offbeat.load(folder).decision_function({name: frame.sort_values("id") for name, frame in new.items()})
    np.testing.assert_allclose(total, expected, atol=1e-9)
