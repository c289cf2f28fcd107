"""A party that holds labels and nothing else takes part, in training and with new rows."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from offbeat.cli.root import app
from offbeat.data.table import STAND_IN, read_table
from offbeat.errors import BadData

ROWS = 80


def write(folder: Path, algorithm: str) -> Path:
    rng = np.random.default_rng(1)
    x, ids = rng.normal(size=(ROWS, 4)), np.arange(ROWS) + 7
    pd.DataFrame({"id": ids, "y": np.where(x[:, 0] > 0, "yes", "no")}).to_csv(folder / "court.csv", index=False)
    text = f'algorithm = "{algorithm}"\npasses = 3\noptimum = false\n'
    text += '[[party]]\nname = "court"\nfile = "court.csv"\nid = "id"\nlabel = "y"\n'
    for at, name in enumerate(("bank", "shop")):
        pd.DataFrame(x[:, 2 * at : 2 * at + 2], columns=["a", "b"]).assign(id=ids).to_csv(folder / f"{name}.csv")
        text += f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\nid = "id"\n'
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return folder / "job.toml"


@pytest.mark.parametrize("algorithm", ["vfb2-saga", "vafl"])
def test_labels_alone_are_enough(tmp_path: Path, algorithm: str) -> None:
    done = CliRunner().invoke(app, ["run", str(write(tmp_path, algorithm)), "--out", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["metrics"]["test_auc"] > 0.8
    pd.read_csv(tmp_path / "court.csv")[["id"]].to_csv(tmp_path / "new.csv", index=False)
    data = [f"court={tmp_path / 'new.csv'}", *(f"{name}={tmp_path / name}.csv" for name in ("bank", "shop"))]
    pairs = [part for one in data for part in ("--data", one)]
    told = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), *pairs, "--json"])
    assert told.exit_code == 0, told.output
    assert len(json.loads(told.stdout)["rows"]) == ROWS


def test_ids_alone_are_not(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("id,y\n1,0\n2,1\n")
    assert read_table(tmp_path / "ids.csv", "id", "y").columns == (STAND_IN,)
    (tmp_path / "ids.csv").write_text("id\n1\n2\n")
    with pytest.raises(BadData, match="has no feature column"):
        read_table(tmp_path / "ids.csv", "id")
