"""Whether a reproduction still gives what was kept."""

import json

import pytest

from offbeat.errors import BadInput
from offbeat.lab.drift import compared, kept_rows


def row(setting, ours):
    return {"setting": setting, "ours": ours, "published": "", "verdict": ""}


def test_rows_belong_together_by_their_setting_whatever_its_numbers():
    kept = [row("D1, 30,000 rows, SGD to 6.2e-04", 2.0), row("D1, 30,000 rows, SAGA to 1e-3", 1.0)]
    told = compared([row("D1, 2,000 rows, SAGA to 2e-3", 1.1), row("D9, SAGA", 1.0)], kept)
    assert [(each["kept"], each["now"], each["drifted"]) for each in told] == [(1.0, 1.1, False)]


@pytest.mark.parametrize(
    ("before", "now", "drifted"),
    [
        (2.0, 2.4, False),
        (2.0, 1.4, True),
        ("81.92 +- 0.44", "80.00 +- 0.40", False),
        ("MAPA 6,810, ASGD None", "MAPA 6,900, ASGD 7,000", True),  # one more of them got there
        ({"1x": 1.0, "4x": 4.0}, {"4x": 2.0, "1x": 1.0}, True),
        ({"1x": 1.0, "1.4x": 1.2, "4x": 4.0}, {"4x": 3.5, "1x": 1.0}, False),  # a quick run measures fewer
        (None, None, False),
    ],
)
def test_a_row_has_drifted_where_a_number_is_a_quarter_away(before, now, drifted):
    (told,) = compared([row("a", now)], [row("a", before)])
    assert told["drifted"] is drifted


def test_two_rows_of_one_kind_are_compared_each_with_its_own():
    kept = [row("q=3", 3.0), row("q=8", 8.0)]
    told = compared([row("q=8", 8.1), row("q=3", 3.1)], kept)
    assert [each["kept"] for each in told] == [8.0, 3.0]


def test_the_full_result_comes_before_the_quick_one_and_a_missing_folder_is_said(tmp_path):
    (tmp_path / "x-quick.json").write_text(json.dumps({"rows": [row("quick", 1)]}))
    assert kept_rows("x", tmp_path) == [row("quick", 1)] and kept_rows("y", tmp_path) == []
    (tmp_path / "x.json").write_text(json.dumps({"rows": [row("full", 1)]}))
    assert kept_rows("x", tmp_path) == [row("full", 1)]
    assert kept_rows("x", tmp_path, quick=True) == [row("quick", 1)], "like beside like"
    with pytest.raises(BadInput, match="Name another one with --kept"):
        kept_rows("x", tmp_path / "nowhere")
