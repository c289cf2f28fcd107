"""Whether a reproduction still gives what was kept."""

import json

import pytest

from offbeat.errors import BadInput
from offbeat.lab.catalogue import LabResult
from offbeat.lab.drift import GONE, compared, kept_rows, said


def row(setting, ours, verdict="", **more):
    return {"setting": setting, "ours": ours, "published": "", "verdict": verdict, **more}


def test_rows_of_the_same_setting_are_compared_and_a_smaller_one_is_no_drift():
    kept = {"full": [row("D1, SGD", 2.0), row("D1, SAGA", 1.0)]}
    rows = [row("D1, 2,000 rows, SAGA", 3.0), row("D1, SAGA", 1.01)]
    found = compared(rows, kept, "quick")
    assert [(each["setting"], each["beside"], each["drifted"]) for each in found] == [("D1, SAGA", "full", False)]
    assert said(rows, found)[0].endswith("0 drifted. 1 rows have no kept row with their setting.")


def test_a_quick_row_stands_beside_the_full_and_the_quick_one():
    """A quick result that was kept with today's defect would agree with it; the full one does not."""
    kept = {"full": [row("a", 2.0)], "quick": [row("a", 1.0)]}
    found = compared([row("a", 1.0)], kept, "quick")
    assert [(each["beside"], each["kept"], each["drifted"]) for each in found] == [
        ("full", 2.0, True),
        ("quick", 1.0, False),
    ]
    assert said([row("a", 1.0)], found)[1] == "drifted from the full run: a: kept 2.0, now 1.0"


@pytest.mark.parametrize(
    ("before", "now", "drifted"),
    [
        (2.0, 2.08, False),
        (2.0, 1.8, True),
        (0.91, 0.83, True),
        ("81.92 +- 0.44", "80.00 +- 0.43", False),
        ("MAPA 6,810, ASGD None", "MAPA 6,900, ASGD 7,000", True),  # one more of them got there
        ("MAPA 440, AUDP None", "MAPA None, AUDP 440", True),  # as many, and not the same
        ({"1x": 1.0, "4x": None}, {"4x": 1.0, "1x": None}, True),
        ({"1x": 1.0, "4x": 4.0}, {"4x": 2.0, "1x": 1.0}, True),
        ({"1x": 1.0, "1.4x": 1.2, "4x": 4.0}, {"4x": 3.9, "1x": 1.0}, False),  # a quick run measures fewer
        ({"1x": 1.0}, {"4x": 1.0}, True),  # nothing of the two can be compared
        (None, None, False),
        (None, 1.0, True),
    ],
)
def test_a_row_has_drifted_where_a_number_or_a_word_is_another(before, now, drifted):
    (told,) = compared([row("a", now)], {"full": [row("a", before)]}, "quick")
    assert told["drifted"] is drifted


def test_another_verdict_is_drift_and_its_numbers_are_not():
    kept = {"full": [row("a", 1.0, "agrees"), row("b", 1.0, "spread 0.021: agrees")]}
    found = compared([row("a", 1.01, "does not agree"), row("b", 1.01, "spread 0.029: agrees")], kept, "full")
    assert [each["drifted"] for each in found] == [True, False]


def test_of_a_row_with_measured_delays_the_verdict_alone_is_compared():
    kept = {"full": [row("a", "lag 4.0", "as the simulator predicts")]}
    assert not compared([row("a", "lag 9.0", "as the simulator predicts", live=True)], kept, "full")[0]["drifted"]
    assert compared([row("a", "lag 4.0", "not as it predicts", live=True)], kept, "full")[0]["drifted"]


def test_a_kept_row_of_the_same_kind_of_run_that_is_gone_has_drifted():
    kept = {"full": [row("a", 1.0), row("b", 1.0)], "quick": [row("a", 1.0), row("c", 1.0)]}
    gone = [each for each in compared([row("a", 1.0)], kept, "quick") if each["now"] == GONE]
    assert [(each["setting"], each["drifted"]) for each in gone] == [("c", True)], "b is of full runs alone"


def test_what_is_kept_is_told_by_the_kind_of_run_and_a_missing_folder_is_said(tmp_path):
    (tmp_path / "x-quick.json").write_text(json.dumps({"rows": [row("quick", 1)]}))
    assert kept_rows("x", tmp_path) == {"quick": [row("quick", 1)]} and kept_rows("y", tmp_path) == {}
    (tmp_path / "x.json").write_text(json.dumps({"rows": [row("full", 1)]}))
    assert kept_rows("x", tmp_path) == {"full": [row("full", 1)], "quick": [row("quick", 1)]}
    with pytest.raises(BadInput, match="Name another one with --kept"):
        kept_rows("x", tmp_path / "nowhere")


def test_a_smaller_run_says_so_in_every_setting_and_is_compared_with_its_like_alone():
    full = LabResult([row("a", 2.0)]).told
    quick = LabResult([row("a", 1.0)], smaller="2,000 rows").told
    assert [each["setting"] for each in (*full, *quick)] == ["a", "a (2,000 rows)"]
    assert compared(quick, {"full": full}, "quick") == []
    assert compared(quick, {"full": full, "quick": quick}, "quick")[0]["beside"] == "quick"
