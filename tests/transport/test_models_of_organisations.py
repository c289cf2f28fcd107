"""Models other than two classes and a plain number, over daemons: as the pooled ones, predicted as such, or refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from town import NAMES, ROWS, Town, job, pooled_scores
from typer.testing import CliRunner

from offbeat import VerticalClassifier
from offbeat.cli import app
from offbeat.errors import Refused
from offbeat.jobs.organisations import OrgJob, OrgModel, read_job
from offbeat.learning.scores import class_probabilities
from offbeat.runtime.checkpoint import read_checkpoint

IDS = [f"c{i}" for i in range(40)]
SCORES_AGREE = 1e-3  # |x| sqrt(2 gap / strength) of a gap of 1e-9 at a strength of 0.05, times a few
STRENGTH = 0.05
RISING = 'prepare = { how = "bins", bins = 4, columns = { shop0 = "rising", shop1 = "rising" } }'


def labels(kind: str) -> tuple[list[Any], list[float]]:
    """Of the rows of Town.table, and the exposure or weight of each."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS + 40, 16))
    score, beside = X @ (0.3 * rng.standard_normal(16)), rng.uniform(0.5, 2.0, ROWS + 40)
    drawn: dict[str, Any] = {
        "softmax": np.array(["low", "mid", "high"])[np.digitize(score + rng.logistic(size=len(X)), [-1.0, 1.0])],
        "poisson": rng.poisson(beside * np.exp(score)),
        "gamma": np.exp(score) * rng.gamma(2.0, 0.5, len(X)) + 1e-3,
        "huber": score + 0.3 * rng.standard_t(1, len(X)),
        "logistic": (score + rng.logistic(size=len(X)) > 0).astype(int),
    }
    return drawn[kind].tolist(), beside.tolist()


def prepared(folder: Path, kind: str, beside: str = "") -> Town:
    """A town whose bank has these labels and, if so said, a column of weights or exposure."""
    town, (label, column) = Town(folder), labels(kind)
    table = folder / "bank" / "table.csv"
    head, *lines = table.read_text().splitlines()
    written = [f"{head},years"]
    for line in lines:
        cells = line.split(",")
        at = int(cells[0][1:])
        written.append(",".join([*cells[:-1], str(label[at]), repr(column[at])]))
    table.write_text("\n".join(written) + "\n")
    settings = folder / "shop" / "party.toml"
    if beside == "ordered":
        settings.write_text(settings.read_text().replace('prepare = "auto"', RISING))
        beside = ""
    settings = folder / "bank" / "party.toml"
    told = f'{beside} = "years"' if beside else 'columns = ["bank0", "bank1", "bank2", "bank3"]'
    settings.write_text(settings.read_text().replace("columns = []", f"{told}   "))
    return town.open()


def wanted(**model: Any) -> OrgJob:
    task = "regression" if model.get("loss") in ("poisson", "gamma", "huber") else "classification"
    options = {"task": task, "strength": STRENGTH, **model}
    return msgspec.structs.replace(job(algorithm="vfb2-saga", target=1e-9), model=OrgModel(**options))


CASES = {
    "several classes": ("softmax", "", {"loss": "softmax", "classes": 3}),
    "counts over years": ("poisson", "exposure", {"loss": "poisson"}),
    "weighted amounts": ("gamma", "weight", {"loss": "gamma"}),
    "numbers with outliers": ("huber", "", {"loss": "huber", "huber_delta": 0.4}),
    "points in order": ("logistic", "ordered", {"ordered": True}),
    "weighted elastic net": ("logistic", "weight", {"l1_ratio": 0.3, "strength": 0.1}),
}


@pytest.mark.parametrize("case", CASES)
def test_daemons_train_and_predict_what_one_place_does(case: str, tmp_path: Path) -> None:
    kind, beside, model = CASES[case]
    town = prepared(tmp_path, kind, beside)
    try:
        asked = wanted(**model)
        run = town.submit(asked)
        for name in NAMES:
            assert town.ended(name, run).verdict == "target", town.ended(name, run)
        expected = pooled_scores(town, run, asked)
        theirs = np.array([expected[one] for one in IDS])
        bank, shop = (VerticalClassifier.connect(tmp_path / name, run) for name in ("bank", "shop"))
        answers = {"poisson": np.exp, "gamma": np.exp}.get(kind, np.asarray)(theirs)
        np.testing.assert_allclose(bank.decision_function(IDS), answers, atol=SCORES_AGREE * np.abs(answers).max())
        metrics = town.ended("bank", run).metrics
        if kind == "softmax":
            np.testing.assert_allclose(bank.predict_proba(IDS), class_probabilities(theirs), atol=SCORES_AGREE)
            assert set(bank.predict(IDS)) <= {"high", "low", "mid"}
            assert set(shop.predict(IDS)) <= {0, 1, 2}
            assert metrics.keys() == {"test_accuracy", "test_log_loss"}
        elif kind == "logistic":
            assert set(bank.predict(IDS)) <= {0, 1}
        else:
            np.testing.assert_array_equal(shop.predict(IDS), shop.decision_function(IDS))
            assert ("test_deviance" in metrics) == (kind != "huber")
        if beside == "ordered":
            weights = read_checkpoint(tmp_path / "shop" / "private" / run, "model")["weights"]
            assert (np.diff(weights[:4]) >= 0).all() and (np.diff(weights[4:8]) >= 0).all()
        record = (tmp_path / "shop" / "runs" / run / "record.json").read_text()
        assert "Labels are disclosed" in record
    finally:
        town.close()


def test_a_job_begins_with_the_model_of_a_run_that_all_have_kept(tmp_path: Path) -> None:
    town = prepared(tmp_path, "logistic")
    try:
        first = town.submit(wanted())
        cold = town.ended("bank", first)
        assert {town.ended(name, first).verdict for name in town.daemons} == {"target"}
        again = wanted()
        again = msgspec.structs.replace(again, method=msgspec.structs.replace(again.method, start=first))
        warm = town.ended("bank", town.submit(again))
        assert warm.verdict == "target"
        assert warm.progress["passes"] < cold.progress["passes"]
        assert warm.progress["objective"] == pytest.approx(cold.progress["objective"], abs=1e-8)
        unknown = msgspec.structs.replace(again.method, start="credit-of-nobody")
        with pytest.raises(Refused, match=r"begins with the model of run 'credit-of-nobody', of which .* has kept no"):
            town.submit(msgspec.structs.replace(again, method=unknown))
    finally:
        town.close()


def test_a_path_of_strengths_is_walked_by_runs_and_judged_by_joint_scores(tmp_path: Path) -> None:
    town = prepared(tmp_path, "poisson", "exposure")
    file = tmp_path / "job.toml"
    file.write_text(wanted(loss="poisson").text)

    def path(name: str, *strengths: str) -> Any:
        options = [part for one in strengths for part in ("--strength", one)]
        return CliRunner().invoke(app, ["job", "path", str(file), "--home", str(tmp_path / name), "--json", *options])

    try:
        told = path("bank", "0.03", "1000", "0.3")
        assert told.exit_code == 0, told.output
        found = json.loads(told.stdout)
        assert [one["strength"] for one in found["tried"]] == [1000.0, 0.3, 0.03] and found["by"] == "test_deviance"
        assert found["best"] == min(found["tried"], key=lambda one: one["test_deviance"])
        assert found["best"]["strength"] != 1000.0
        begun = [read_job(tmp_path / "shop" / "runs" / one["run"] / "job.toml") for one in found["tried"]]
        assert [job.method.start for job in begun] == ["", *(one["run"] for one in found["tried"][:-1])]
        assert "two or more different strengths above 0" in path("bank", "1").stderr
    finally:
        town.close()


def test_as_many_classes_as_the_job_says(tmp_path: Path) -> None:
    town = prepared(tmp_path, "softmax")
    try:
        run = town.submit(wanted(loss="softmax", classes=5))
        status = town.ended("bank", run)
        assert status.verdict == "failed"
        assert "classes = 5" in status.reason and "has 3" in status.reason
    finally:
        town.close()
