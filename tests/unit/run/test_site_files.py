"""Horizontal jobs over sites with files of their own: training, scoring, and what is said of wrong ones."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import offbeat
from offbeat.cli.root import app
from offbeat.data.sites import public_preparation
from offbeat.errors import BadData, BadInput, BadJob
from offbeat.families.horizontal import load_edges
from offbeat.jobs.horizontal import EdgeJob
from offbeat.jobs.reading import job_from, job_text, read_job

SITES = ("oslo", "porto", "turin")
JOB = """
seed = 3
updates = 200
batch = 64
[model]
kind = "logistic"
[privacy]
mode = "none"
[data]
label = "again"
columns = { age = [0, 120], visits = [0, 30], sex = ["f", "m"] }
"""


def patients(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"patient": [f"p{seed}-{k}" for k in range(rows)], "age": rng.integers(18, 95, rows)})
    frame["visits"], frame["sex"] = rng.poisson(4, rows), rng.choice(["f", "m"], rows)
    risk = (frame["age"] - 55) / 10 + frame["visits"] - 4 + 2.0 * (frame["sex"] == "m") - 1
    return frame.assign(again=np.where(risk + rng.logistic(size=rows) > 0, "yes", "no"))


def write(folder: Path, job: str = JOB, **changed: pd.DataFrame) -> Path:
    text = job
    for k, site in enumerate(SITES):
        changed.get(site, patients(200 + 50 * k, k)).to_csv(folder / f"{site}.csv", index=False)
        text += f'[[site]]\nname = "{site}"\nfile = "{site}.csv"\nid = "patient"\n'
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return folder / "job.toml"


def test_a_run_over_files_scores_new_rows(tmp_path: Path) -> None:
    job, out = write(tmp_path), tmp_path / "run"
    done = CliRunner().invoke(app, ["run", str(job), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["metrics"]["test_accuracy"] > 0.75
    fresh = patients(300, 9)
    fresh[["sex", "visits", "patient", "age"]].to_csv(tmp_path / "new.csv", index=False)  # another order, no label
    told = CliRunner().invoke(app, ["predict", str(out), "--data", f"oslo={tmp_path / 'new.csv'}", "--json"])
    assert told.exit_code == 0, told.output
    rows = pd.DataFrame(json.loads(told.stdout)["rows"])
    assert rows.columns.tolist() == ["site", "id", "prediction", "probability of no", "probability of yes"]
    assert rows["id"].tolist() == fresh["patient"].tolist()
    assert (rows["prediction"] == fresh["again"]).mean() > 0.75
    told = CliRunner().invoke(app, ["predict", str(out), "--data", f"turin={tmp_path / 'new.csv'}", "--json"])
    assert [row["id"] for row in json.loads(told.stdout)["rows"]] == fresh["patient"].tolist(), "a site that is new"
    model = offbeat.load_sites(out)
    assert model.predict(fresh).tolist() == rows["prediction"].tolist()
    np.testing.assert_allclose(model.predict_proba(fresh)[:, 1], rows["probability of yes"], atol=1e-12)
    with pytest.raises(BadData, match="lacks the column 'visits'"):
        model.predict(fresh.drop(columns="visits"))
    with pytest.raises(BadInput, match=r"offbeat\.load_sites"):
        offbeat.load(out)
    parts = CliRunner().invoke(app, ["predict", str(out), "--data", f"oslo={tmp_path / 'new.csv'}", "--parts"])
    assert parts.exit_code == 2
    replayed = CliRunner().invoke(app, ["replay", str(out), "--json"])
    assert json.loads(replayed.stdout)["same"]


def test_rows_and_labels_are_laid_out_as_the_job_says(tmp_path: Path) -> None:
    job = read_job(write(tmp_path))
    assert isinstance(job, EdgeJob) and job.algorithm == "steady" and job.edge_count == 3
    assert job.constants.norm_max == 2.0 and job.model.rows == "plain"
    data = load_edges(job)
    assert data.names == SITES and data.classes == ("no", "yes")
    assert data.fitted.columns == ("age", "visits", "sex=f", "sex=m")
    assert sum(data.rows.values()) + data.y_test.size == 200 + 250 + 300
    for rows, labels in data.edges.values():
        assert np.linalg.norm(rows, axis=1).max() <= 3**0.5 and set(labels) == {0.0, 1.0}
    again = tmp_path / "again.toml"
    again.write_text(job_text(job), encoding="utf-8")
    assert read_job(again) == job


def test_preparation_follows_from_what_was_said_alone() -> None:
    fitted = public_preparation({"age": [0, 100], "sex": ["m", "f"]})
    rows = np.array([[0.0, 0.0], [50.0, 1.0], [400.0, 1.0]])
    np.testing.assert_array_equal(fitted.apply(rows), [[-1, 1, 0], [0, 0, 1], [1, 0, 1]])


def test_a_site_may_bring_a_table_of_a_database(tmp_path: Path) -> None:
    job = write(tmp_path)
    with sqlite3.connect(tmp_path / "oslo.db") as connection:
        pd.read_csv(tmp_path / "oslo.csv").to_sql("patients", connection, index=False)
    text = job.read_text().replace('file = "oslo.csv"', 'table = "sqlite:///oslo.db?table=patients"')
    by_file = load_edges(read_job(job))
    job.write_text(text)
    by_table = load_edges(read_job(job))
    assert by_table.rows == by_file.rows
    ours, theirs = (np.column_stack(one.edges["oslo"]) for one in (by_table, by_file))
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))


def test_without_ranges_rows_are_scaled_and_large_columns_are_told_of(tmp_path: Path) -> None:
    job = write(
        tmp_path,
        JOB.replace(JOB[JOB.index("columns") :], ""),
        **{s: patients(100, k).drop(columns="sex").assign(income=5e4 + k) for k, s in enumerate(SITES)},
    )
    data = load_edges(read_job(job))
    assert data.fitted.columns == ("age", "visits", "income")
    assert "Column 'income' is about" in data.notes[0] and "data.columns" in data.notes[0]


# -- wrong input -----------------------------------------------------------------------------------------------------

SITE = [{"name": "oslo", "file": "oslo.csv"}, {"name": "porto", "file": "porto.csv"}]


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"site": SITE}, "data.label is missing"),
        ({"site": SITE, "data": {"label": "y", "set": "mnist"}}, "data.set is for a named set"),
        ({"site": SITE, "data": {"label": "y", "edges": 3}}, "data.edges is for a named set"),
        ({"data": {"label": "y", "edges": 3}}, r"data.label is for sites.*no \[\[site\]\]"),
        ({"site": [SITE[0], SITE[0]], "data": {"label": "y"}}, "names that differ"),
        ({"site": [{"name": "cloud", "file": "a.csv"}], "data": {"label": "y"}}, "none of them 'cloud'"),
        ({"site": [{"name": "oslo"}], "data": {"label": "y"}}, "site 'oslo': expected `file`"),
        ({"site": SITE, "data": {"label": "y", "columns": {}}}, "data.columns is empty"),
        (
            {"site": SITE, "data": {"label": "y", "columns": {"age": [120, 0]}}},
            "'age' must have the least and the most",
        ),
        ({"site": SITE, "data": {"label": "y", "columns": {"age": [1, "x"]}}}, "'age' must have the least"),
        ({"site": SITE, "data": {"label": "y", "columns": {"sex": ["f", "f"]}}}, "'sex' must have the least"),
        ({"site": SITE, "data": {"label": "y"}, "model": {"kind": "digits-network"}}, "is for pictures"),
        (
            {"site": SITE, "data": {"label": "y"}, "model": {"features": 3}},
            "model.features follows from the sites' files",
        ),
        ({"site": SITE, "data": {"label": "y"}, "algorithm": "vfb2-saga"}, "unknown key 'site'|site"),
        ({"site": [{"name": "oslo", "fil": "x"}], "data": {"label": "y"}}, "file"),
    ],
)
def test_a_wrong_job_is_refused(tree: dict[str, Any], said: str) -> None:
    with pytest.raises(BadJob, match=said) as told:
        job_from(tree)
    assert "\n" not in str(told.value).strip()


def changed(**columns: Any) -> pd.DataFrame:
    return patients(100, 1).assign(**columns)


@pytest.mark.parametrize(
    ("porto", "said"),
    [
        (changed(age=np.where(np.arange(100) == 4, np.nan, 40)), "Site 'porto', column 'age', row 5: .*empty cell"),
        (changed(sex="x"), "Site 'porto': 100 cells of column 'sex' with a category that data.columns does not list"),
        (changed(age="old"), "Site 'porto': .*'age': numbers were expected"),
        (changed(again=1), "labels are of two kinds"),
        (changed(again=[None, *["no"] * 99]), "row 1 has no label"),
        (patients(100, 1).drop(columns="age"), "has no feature column 'age'"),
        (patients(100, 1).drop(columns="again"), "has no label column 'again'"),
        (patients(100, 1).drop(columns="patient"), "has no id column 'patient'"),
        (changed(patient="same"), "stands in 100 rows"),
        (changed(again=[f"maybe {k}" for k in range(100)]), "Classification needs classes"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, porto: pd.DataFrame, said: str) -> None:
    with pytest.raises(BadData, match=said) as told:
        load_edges(read_job(write(tmp_path, porto=porto)))
    assert "\n" not in str(told.value)


def test_sites_without_the_same_columns_are_refused(tmp_path: Path) -> None:
    job = write(tmp_path, JOB.replace(JOB[JOB.index("columns") :], ""), porto=changed(more=1.0))
    with pytest.raises(BadData, match=r"'more' is in one of oslo.csv and porto.csv only"):
        load_edges(read_job(job))


def test_a_slow_site_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match=r"runtime.slow names 'osl'.*oslo"):
        load_edges(read_job(write(tmp_path), ["runtime.slow.osl=4"]))
