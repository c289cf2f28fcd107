"""`offbeat bench race`: its regimes, its cells and its picture."""

import json
from collections import Counter

import pytest

from offbeat.errors import BadJob
from offbeat.lab.bench import race
from offbeat.lab.catalogue import LabOptions

JOB = """
seed = 1
penalty = 1e-2
[data]
set = "known-logistic"
parties = ["bank", "shop", "telecom"]
limit_rows = 300
"""


def test_each_party_is_slow_in_turn_and_every_regime_has_its_place_in_the_picture():
    found = race.regimes(("bank", "shop", "telecom", "clinic"))
    kinds = Counter(race._kind_of(name) for name in found)
    assert kinds == {"nobody slow": 1, "1.4x": 4, "4x": 4, "16x": 4, "jitter": 2} | dict.fromkeys(race.KINDS[5:], 1)
    assert found["shop 4x slower"] == {"slow": {"shop": 4.0}}
    assert found["clinic 4x slower, listener too"]["serving"] == "slow"


def test_a_job_of_anybodys_is_raced_cell_by_cell(tmp_path, monkeypatch):
    (tmp_path / "job.toml").write_text(JOB)
    worlds = race.regimes(("bank", "shop", "telecom"))
    kept = {name: worlds[name] for name in ("nobody slow", "shop 16x slower")}
    monkeypatch.setattr(race, "regimes", lambda names: kept)
    monkeypatch.setattr(race, "QUICK_PAIRS", race.PAIRS[:4])
    result = race.race(LabOptions(quick=True, job=tmp_path / "job.toml", out=tmp_path, draws=True))
    cells = json.loads(json.dumps(result.more["cells"]))
    assert len(cells) == 4 * 2 * len(race.TARGETS)
    assert {"pair", "regime", "target", "async_s", "sync_s", "ratio"} <= set(cells[0])
    assert all(cell["ratio"] == pytest.approx(cell["sync_s"] / cell["async_s"]) for cell in cells if cell["ratio"])
    calm = [cell["ratio"] for cell in cells if cell["regime"] == "nobody slow" and cell["ratio"]]
    assert calm and min(calm) > 0.98
    assert [path.suffix for path in result.figures] == [".png", ".svg"] and all(
        path.is_file() for path in result.figures
    )


def test_a_job_of_another_kind_is_refused(tmp_path):
    (tmp_path / "job.toml").write_text('algorithm = "vafl"\n' + JOB)
    with pytest.raises(BadJob, match="takes a job of a linear method"):
        race.race(LabOptions(quick=True, job=tmp_path / "job.toml"))


def test_a_job_whose_products_must_be_noisy_is_refused(tmp_path):
    (tmp_path / "job.toml").write_text('algorithm = "vfb-sgd"\nproduct_epsilon = 3.0\n' + JOB)
    with pytest.raises(BadJob, match="without noise in the products, and product_epsilon promises noise"):
        race.race(LabOptions(quick=True, job=tmp_path / "job.toml"))
