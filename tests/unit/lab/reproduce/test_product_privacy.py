"""The area under the curve against epsilon, on a few generated rows."""

import pytest

from offbeat.data.synthetic import credit_like
from offbeat.data.vertical import vertical_from_dataset
from offbeat.lab.catalogue import LabOptions
from offbeat.lab.reproduce import product_privacy


@pytest.fixture
def few_rows(monkeypatch):
    data = vertical_from_dataset(credit_like(500, 1), parties=3, labels_at=["bank"])
    monkeypatch.setattr(product_privacy, "_data", lambda options: (data, False))


def test_rows_say_their_epsilon(few_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(product_privacy, "_figure", lambda title, rows, exact, options: [])
    told = product_privacy.product_privacy(LabOptions(quick=True, out=tmp_path))
    assert "400 rows (generated)" in told.rows[0]["setting"]
    private = [row for row in told.rows if row["epsilon"] is not None]
    assert [row["epsilon"] for row in private] == [1.0, 3.0, 10.0, 1e6]
    noise = [row["deviation"] for row in private]
    assert noise == sorted(noise, reverse=True) and noise[0] > 5 * noise[2] > 1.0
    assert all(0.0 < row["ours"] < 1.0 for row in told.rows)


@pytest.mark.slow
def test_the_figure_is_drawn(few_rows, tmp_path):
    pytest.importorskip("matplotlib")
    told = product_privacy.product_privacy(LabOptions(quick=True, out=tmp_path))
    assert {path.suffix for path in told.figures} == {".png", ".svg"} and all(path.is_file() for path in told.figures)
