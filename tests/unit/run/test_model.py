"""A finished run scores new rows: everything that is needed lies in its folder, each party's part in its own files."""

import csv
import io

import numpy as np
import pandas as pd
import pytest
from three_files import frames, trained
from typer.testing import CliRunner

import offbeat
from offbeat.cli import app
from offbeat.errors import BadData, BadInput
from offbeat.families.vertical_data import load_data
from offbeat.jobs.reading import job_from
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import write_job, write_result
from offbeat.run.model import model_of

VAFL = {"algorithm": "vafl", "passes": 2.0}
CASES = {
    "auto": {},
    "bins": {"data": {"prepare": "bins"}},
    "unit rows": {"data": {"rows": "party-unit"}},
    "numbers": {"label": "amount", "task": "regression"},
    "vafl": VAFL,
    "vafl numbers": {**VAFL, "label": "amount", "task": "regression"},
    "vafl networks": {**VAFL, "embedding": {"kind": "mlp", "hidden": [8], "width": 4, "optimiser": "adam"}},
}


@pytest.mark.parametrize("case", CASES)
def test_the_test_rows_are_scored_from_their_raw_files_as_in_the_run(tmp_path, case):
    folder, result, data, _ = trained(tmp_path, **CASES[case])
    model = offbeat.load(folder)
    raw = {name: frame.set_index("id").loc[data.ids_test] for name, frame in frames().items()}
    told = model.predict(raw)
    if data.classes is None:
        rmse = float(np.sqrt(np.mean((told - data.y_test) ** 2)))
        assert rmse == pytest.approx(result.record.metrics["test_rmse"], rel=1e-9)
    else:
        assert model.classes == ("bad", "good")
        accuracy = np.mean(told == raw["bank"]["y"].to_numpy())
        assert accuracy == pytest.approx(result.record.metrics["test_accuracy"])
        chances = model.predict_proba(raw)
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        np.testing.assert_array_equal(told == "good", chances[:, 1] >= 0.5)


def test_a_model_fresh_from_its_run_is_the_one_that_is_read_back(tmp_path):
    folder, result, _, job = trained(tmp_path)
    fresh, read = model_of(job, result), offbeat.load(folder)
    new = frames(seed=5, rows=20)
    new["shop"].loc[3, "town"] = "east"
    new["bank"].loc[4, "income"] = np.nan
    np.testing.assert_array_equal(fresh.decision_function(new), read.decision_function(new))


def test_the_command_scores_files_and_tells_of_unseen_categories(tmp_path):
    folder, _, _, _ = trained(tmp_path)
    new = frames(seed=5, rows=20)
    new["shop"].loc[3, "town"] = "east"
    for name, frame in new.items():
        frame.drop(columns=["y", "amount"], errors="ignore").to_csv(tmp_path / f"new-{name}.csv", index=False)
    given = [f"--data={name}={tmp_path}/new-{name}.csv" for name in new]
    done = CliRunner().invoke(app, ["predict", str(folder), *given])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [int(row["id"]) for row in rows] == sorted(new["bank"]["id"])
    expected = offbeat.load(folder).predict_proba({name: frame.sort_values("id") for name, frame in new.items()})
    np.testing.assert_allclose([float(row["probability of good"]) for row in rows], expected[:, 1], rtol=1e-12)
    assert "shop: 1 cell of column 'town' with a category that the training rows never had" in done.stderr
    done = CliRunner().invoke(app, ["predict", str(folder), *given, f"--out={tmp_path}/scores.csv"])
    assert list(csv.DictReader((tmp_path / "scores.csv").open())) == rows


def test_the_record_and_the_report_name_the_positive_class(tmp_path):
    folder, result, _, _ = trained(tmp_path)
    assert result.record.data.classes == ("bad", "good")
    assert "good is the positive class, bad the other." in (folder / "report.html").read_text()


def test_what_is_wrong_with_new_rows_is_said(tmp_path):
    folder, _, _, _ = trained(tmp_path)
    model, new = offbeat.load(folder), frames(seed=5, rows=20)
    wrong = {
        "The columns of party 'telecom' are missing": {"bank": new["bank"], "shop": new["shop"]},
        "'telekom' is no party of this model.*'telecom'": {**new, "telekom": new["telecom"]},
        "party 'shop' lacks the column 'town'": {**new, "shop": new["shop"].rename(columns={"town": "place"})},
        "same number of rows": {**new, "shop": new["shop"].iloc[:5]},
        "column 'calls': numbers were expected": {**new, "telecom": pd.DataFrame({"calls": ["few"] * 20})},
        "Rows come by party": new["bank"],
        "had 2 columns when fitted; came 1": {**new, "shop": np.zeros((20, 1))},
    }
    for said, rows in wrong.items():
        with pytest.raises(BadData, match=said):
            model.predict(rows)
    for arguments, said in (
        (["--data", "bank"], "--data expects PARTY=FILE"),
        ([f"--data=bank={folder}/job.toml", f"--out={folder}/job.toml"], "is one of the files to score"),
        (["--data", "bank=a.csv", "--data", "bank=b.csv"], "'bank' more than once"),
        (["--data", "bank=a.csv", "--id", "7"], "choose one"),
        ([], "--data PARTY=FILE for each party"),
    ):
        done = CliRunner().invoke(app, ["predict", str(folder), *arguments])
        assert done.exit_code == 2 and said in done.stderr
    for path, said in ((tmp_path / "nowhere", "is not there"), (folder / "record.json", "is a file")):
        done = CliRunner().invoke(app, ["predict", str(path), "--data", "bank=a.csv"])
        assert done.exit_code == 2 and said in done.stderr
    with pytest.raises(BadInput):
        offbeat.load(tmp_path / "nowhere")


@pytest.mark.parametrize("word", ["n/a", "?", "", None])
def test_new_rows_may_know_nothing_of_a_column(tmp_path, word):
    folder, _, _, _ = trained(tmp_path)
    model, new = offbeat.load(folder), frames(seed=5, rows=20)
    unknown = {**new, "bank": new["bank"].assign(income=pd.Series([word] * 20, dtype=object))}
    gaps = {**new, "bank": new["bank"].assign(income=np.nan)}
    np.testing.assert_array_equal(model.predict_proba(unknown), model.predict_proba(gaps))


def test_repeated_ids_of_new_rows_are_treated_as_those_of_the_job(tmp_path):
    folder, _, _, _ = trained(tmp_path, data={"duplicates": "keep-first"})
    new = frames(seed=5, rows=20)
    for name, frame in new.items():
        pd.concat([frame, frame.iloc[:3] if name == "shop" else frame.iloc[:0]]).to_csv(tmp_path / f"{name}.csv")
    files = {name: tmp_path / f"{name}.csv" for name in new}
    ids, tables = offbeat.load(folder).files(files)
    assert len(set(ids.tolist())) == 20 and all(len(table) == 20 for table in tables.values())


def test_columns_that_were_shared_out_after_encoding_cannot_be_prepared_by_a_party(tmp_path):
    data = {"set": "credit-like@0.01", "parties": 3, "limit_rows": 200, "split_after_one_hot": True}
    job = job_from({"algorithm": "vfb2-svrg", "passes": 1.0, "optimum": False, "data": data})
    write_job(job, tmp_path)
    write_result(run_experiment(load_data(job), job), tmp_path)
    with pytest.raises(BadData, match="split_after_one_hot"):
        offbeat.load(tmp_path).predict({name: np.zeros((1, 30)) for name in ("bank", "shop", "telecom")})
