"""The area under the curve against epsilon, on a few generated rows."""

import pytest

from offbeat.data.synthetic import credit_like
from offbeat.data.vertical import vertical_from_dataset
from offbeat.lab.catalogue import LabOptions
from offbeat.lab.reproduce import product_privacy


@pytest.fixture
def few_rows(monkeypatch):
    data = vertical_from_dataset(credit_like(500, 1), parties=3, labels_at=["bank"])
    monkeypatch.setattr(product_privacy, "_data", lambda name, options: (data, False))
    return data


def test_rows_say_their_epsilon(few_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(product_privacy, "_figure", lambda rows, options: [])
    told = product_privacy.product_privacy(LabOptions(quick=True, out=tmp_path))
    assert "400 rows (generated)" in told.rows[0]["setting"]
    private = [row for row in told.rows if row["epsilon"] is not None]
    assert [(row["set"], row["epsilon"]) for row in private] == [
        (title, epsilon) for title in product_privacy.SETS for epsilon in (1.0, 3.0, 10.0, 1e6)
    ]
    noise = [row["deviation"] for row in private[:4]]
    assert noise == sorted(noise, reverse=True) and noise[0] > 5 * noise[2] > 1.0
    assert all(0.0 < row["ours"] < 1.0 for row in told.rows)


def test_the_choice_sees_training_rows_alone(few_rows, monkeypatch):
    fold = product_privacy.held_out_fold(few_rows, 0)
    assert (fold.rows, fold.test_rows) == (320, 80)
    assert sorted([*fold.ids_train, *fold.ids_test]) == sorted(few_rows.ids_train)
    at = {one: i for i, one in enumerate(few_rows.ids_train)}
    for place, one in enumerate(fold.ids_test):
        assert fold.y_test[place] == few_rows.y_train[at[one]]
        assert (fold.test["bank"][place] == few_rows.train["bank"][at[one]]).all()
    few = (product_privacy.NoisyRounds(1, 0.5, 0.1), product_privacy.NoisyRounds(2, 0.5, 0.1))
    monkeypatch.setattr(product_privacy, "GRID", few)
    areas = {1: 0.6, 2: 0.7}
    monkeypatch.setattr(product_privacy, "_run", lambda data, epsilon, seed, tried: (data.test_rows, tried))
    monkeypatch.setattr(product_privacy, "_area", lambda ran: areas[ran[1].rounds] if ran[0] == 80 else 1 / 0)
    assert product_privacy.chosen(few_rows) == few[1]


@pytest.mark.slow
def test_the_figure_is_drawn(few_rows, tmp_path):
    pytest.importorskip("matplotlib")
    told = product_privacy.product_privacy(LabOptions(quick=True, out=tmp_path))
    assert {path.suffix for path in told.figures} == {".png", ".svg"} and all(path.is_file() for path in told.figures)
