"""Test rows that a job lists by their ids."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from offbeat.errors import BadData, BadJob
from offbeat.families.vertical_data import load_data
from offbeat.jobs.reading import job_from, job_text, read_job

IDS = [f"c{k:02d}" for k in range(40)]


def write(folder: Path, more: str = 'test_ids = "held.csv"\n') -> Path:
    rng = np.random.default_rng(0)
    text = "[data]\n" + more
    for name in ("bank", "shop", "telecom"):
        frame = pd.DataFrame({"id": rng.permutation(IDS), "x": rng.normal(size=40)})
        frame.assign(y=np.arange(40) % 2).to_csv(folder / f"{name}.csv", index=False)
        text += f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\nid = "id"\ncolumns = ["x"]\n'
        text += 'label = "y"\n' if name == "bank" else ""
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return folder / "job.toml"


def test_the_rows_that_are_listed_are_held_out(tmp_path: Path) -> None:
    pd.DataFrame({"customer": [*IDS[30:], "c99"]}).to_csv(tmp_path / "held.csv", index=False)
    job = read_job(write(tmp_path))
    data = load_data(job)
    assert sorted(data.ids_test.tolist()) == IDS[30:] and data.rows == 30
    (tmp_path / "again.toml").write_text(job_text(job))
    assert read_job(tmp_path / "again.toml") == job


def test_a_wrong_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"There is no file .*held\.csv"):
        load_data(read_job(write(tmp_path)))
    pd.DataFrame({"customer": [1, 2]}).to_csv(tmp_path / "held.csv", index=False)
    with pytest.raises(BadData, match=r"None of the 2 ids .* is among the 40 joined rows: the list has '1', '2'"):
        load_data(read_job(write(tmp_path)))
    (tmp_path / "held.npz").write_bytes(b"")
    with pytest.raises(BadData, match=r"expected a \.csv"):
        load_data(read_job(write(tmp_path, 'test_ids = "held.npz"\n')))
    pd.DataFrame({"customer": IDS}).to_csv(tmp_path / "held.csv", index=False)
    with pytest.raises(BadData, match="All rows are test rows"):
        load_data(read_job(write(tmp_path)))
    with pytest.raises(BadJob, match=r"data.test_fraction draws them; give one"):
        read_job(write(tmp_path, 'test_ids = "held.csv"\ntest_fraction = 0.3\n'))
    with pytest.raises(BadJob, match="a named set has ids of its own"):
        job_from({"data": {"set": "credit-like", "test_ids": "held.csv"}})
