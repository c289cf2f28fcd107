"""Ten classes with names, from each party's own file to scored new rows, with nothing said about the loss."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import offbeat
from offbeat.audit.runs import audit_run
from offbeat.cli import app
from offbeat.data.labels import encode_labels
from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadData, BadJob
from offbeat.estimators import VerticalClassifier
from offbeat.families.vertical_data import load_data
from offbeat.jobs.reading import job_from
from offbeat.run.experiment import run_experiment

NAMES = ["ash", "beech", "birch", "elm", "fir", "larch", "lime", "oak", "pine", "yew"]
PARTIES = ("bank", "shop", "telecom")


def frames(rows=700, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 9))
    scores = 1.5 * X @ np.random.default_rng(99).standard_normal((9, len(NAMES)))
    kind = np.array(NAMES)[(scores + rng.gumbel(size=scores.shape)).argmax(axis=1)]
    found = {name: pd.DataFrame(X[:, 3 * at : 3 * at + 3], columns=[f"{name}{j}" for j in range(3)])
             for at, name in enumerate(PARTIES)}  # fmt: skip
    for frame in found.values():
        frame.insert(0, "id", np.arange(rows))
    return found, kind


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that `offbeat run` made of a job file without a word on task or loss."""
    folder = tmp_path_factory.mktemp("classes")
    found, kind = frames()
    text = 'target = 1e-5\npasses = 120\nalgorithm = "vfb2-saga"\n'
    for name, frame in found.items():
        told = frame.assign(kind=kind) if name == "bank" else frame
        told.sample(frac=1, random_state=len(name)).to_csv(folder / f"{name}.csv", index=False)
        text += f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\nid = "id"\n'
        text += 'label = "kind"\n' if name == "bank" else ""
    (folder / "job.toml").write_text(text)
    answer = CliRunner().invoke(app, ["run", str(folder / "job.toml"), "--out", str(folder / "run")])
    assert answer.exit_code == 0, answer.output
    return folder


def test_a_job_file_learns_ten_classes_by_default(run):
    record = json.loads((run / "run" / "record.json").read_text())
    assert record["verdict"] == "target" and record["certificate"]["duality_gap"] <= 1e-5
    assert record["data"]["task"] == "multiclass" and record["data"]["classes"] == NAMES
    assert record["metrics"]["test_accuracy"] > 0.5 and record["metrics"]["test_log_loss"] < 1.5
    assert record["suboptimality"] <= 1e-5
    assert any("one for each class, of which the one below zero is the label's" in text for text in record["warnings"])
    page = (run / "run" / "report.html").read_text()
    assert "Test log loss" in page and "10 classes: ash" in page


def test_new_rows_are_scored_with_a_probability_for_each_class(run):
    model = offbeat.load(run / "run")
    found, kind = frames(200, seed=1)
    chances = model.predict_proba(found)
    assert chances.shape == (200, 10)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    predicted = model.predict(found)
    assert predicted.tolist() == np.array(NAMES)[chances.argmax(axis=1)].tolist()
    assert np.mean(predicted == kind) > 0.5
    assert model.decision_function(found).shape == (200, 10) and model.intercept.shape == (10,)
    for name, frame in found.items():
        frame.to_csv(run / f"new-{name}.csv", index=False)
    asked = [part for name in PARTIES for part in ("--data", f"{name}={run / f'new-{name}.csv'}")]
    answer = CliRunner().invoke(app, ["predict", str(run / "run"), *asked])
    assert answer.exit_code == 0, answer.output
    rows = list(csv.DictReader(io.StringIO(answer.stdout)))
    assert [row["prediction"] for row in rows] == predicted.tolist()
    assert float(rows[0]["probability of yew"]) == pytest.approx(chances[0, 9])


def test_the_audit_reads_the_labels_from_the_derivatives_of_the_classes(run):
    told = audit_run(run / "run")
    assert told["masks"]["violations"] == []
    read = {row["party"]: row["right"] for row in told["attacks"] if row["attack"] == "labels"}
    assert read == {"shop": 1.0, "telecom": 1.0}
    pairs = [row["pairs"] for row in told["attacks"] if row["attack"] == "products" and row["party"] == "bank"]
    assert 0 < pairs[0] < 560 * 120


def small(**keys):
    return job_from({"passes": 2.0, "optimum": False, "data": {"set": "digits-like", "limit_rows": 200}, **keys})


def test_a_named_set_of_ten_classes():
    job = small()
    result = run_experiment(load_data(job), job)
    assert len(result.record.data.classes) == 10
    parts = [part.arrays for part in result.models.values()]
    assert all(part["weights"].shape[0] == 10 and part["intercept"].shape == (10,) for part in parts)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge"])
def test_a_loss_of_one_product_is_refused_for_ten_classes(loss):
    job = small(loss=loss)
    with pytest.raises(BadJob, match=f'The loss {loss} is for one product a row, and there are 10.*loss = "softmax"'):
        run_experiment(load_data(job), job)


def test_what_softmax_cannot_do_is_said():
    job = small(label_dp_epsilon=2.0)
    with pytest.raises(BadJob, match=r"works with the logistic loss, so with two classes.*Got the loss softmax"):
        run_experiment(load_data(job), job)
    with pytest.raises(BadData, match="Between organisations a model has two classes"):
        encode_labels(np.array(["a", "b", "c"]), "classification", "the label of bank.csv")
    with pytest.raises(BadJob, match="softmax is for classes"):
        found, _ = frames(60)
        job = job_from({"loss": "softmax", "task": "regression", "optimum": False})
        data = vertical_from_arrays(
            {name: frame.drop(columns="id") for name, frame in found.items()}, np.arange(60.0), task="regression"
        )
        run_experiment(data, job)


def estimator_blocks(rows=500, seed=0):
    found, kind = frames(rows, seed)
    return {name: frame.drop(columns="id") for name, frame in found.items()}, kind


@pytest.mark.parametrize("algorithm", ["vfb2-saga", "afsvrg-vp"])
def test_the_estimator_has_the_manners_and_the_coefficients_of_scikit_learn(algorithm, tmp_path):
    blocks, kind = estimator_blocks()
    model = VerticalClassifier(algorithm, penalty=1e-2, target=1e-8, passes=200, prepare="none").fit(blocks, kind)
    pooled = np.hstack([block.to_numpy() for block in blocks.values()])
    theirs = LogisticRegression(C=1 / (len(kind) * 1e-2), tol=1e-10, max_iter=5000).fit(pooled, kind)
    assert model.classes_.tolist() == theirs.classes_.tolist() == NAMES
    mine = np.hstack([model.coef_[name] for name in model.parties_])
    assert np.linalg.norm(mine - theirs.coef_) <= 1e-4 * np.linalg.norm(theirs.coef_)
    np.testing.assert_allclose(model.predict_proba(blocks), theirs.predict_proba(pooled), atol=1e-4)
    assert model.decision_function(blocks).shape == (500, 10)
    assert model.coefficients_["shop"]["shop1"]["oak"] == model.coef_["shop"][7, 1]
    again = VerticalClassifier.load(model.save(tmp_path / "kept"))
    np.testing.assert_array_equal(again.predict(blocks), model.predict(blocks))


def test_two_classes_by_softmax_are_those_of_logistic():
    blocks, kind = estimator_blocks(300)
    two = kind < "fir"
    by = {
        loss: VerticalClassifier(loss=loss, penalty=strength, target=1e-9, passes=200).fit(blocks, two)
        for loss, strength in (("softmax", 2e-2), ("logistic", 1e-2))
    }
    expected = by["logistic"].predict_proba(blocks)
    np.testing.assert_allclose(by["softmax"].predict_proba(blocks), expected, atol=1e-4)
