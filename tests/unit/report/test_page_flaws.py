"""Flaws that readers of the pages met: text that hangs out, ticks over each other, times that are rounding errors."""

import re
from itertools import pairwise

import pytest
from report_samples import plain_text, sample_party, sample_record

from offbeat.metrics.curves import CurveRow
from offbeat.report import numbers, wording
from offbeat.report.charts import lag_rows, time_bars
from offbeat.report.compare import Comparison, comparison_page
from offbeat.report.live import View
from offbeat.report.live_page import live_page
from offbeat.report.page import progress_of_one
from offbeat.report.summary import summary

LETTER = 6.2


def texts(svg):
    """(x, class, text) of every text of a chart, and the width of its picture."""
    width = float(re.search(r'viewBox="0 0 (\d+)', svg)[1])
    found = re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="([^"]*)">([^<]*)</text>', svg)
    return width, [(float(x), kind, text) for x, kind, text in found]


def test_notes_at_the_end_of_bars_are_inside_the_picture():
    for svg in (
        time_bars([("bank", (9.0, 0.5, 0.5), "15,446 updates"), ("shop", (1.0, 0.0, 0.0), "1 update")]),
        lag_rows([("bank", [10, 20, 30], "12,345.6, max 343,434")]),
    ):
        width, found = texts(svg)
        assert found
        for x, kind, text in found:
            end = x + (0 if "end" in kind else LETTER * len(text) / (2 if "middle" in kind else 1))
            assert end <= width, text


def test_a_time_inside_a_bar_fits_into_it():
    svg = time_bars([("bank", (309.0, 3000.0, 300.0), "x")])
    inside = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*class="part (\w+)"', svg)
    written = re.findall(r'class="inside middle (\w+)">([^<]*)<', svg)
    widths = {part: float(width) for _, width, part in inside}
    assert written
    for part, text in written:
        assert LETTER * len(text) <= widths[part]


@pytest.mark.parametrize("buckets", [1, 4, 9, 14, 20])
def test_ticks_of_lags_do_not_cover_each_other(buckets):
    _, found = texts(lag_rows([("bank", [1] * buckets, "1.0, max 2")]))
    ticks = sorted((x, text) for x, kind, text in found if kind == "tick middle")
    assert ticks
    for (left, one), (right, two) in pairwise(ticks):
        assert left + LETTER * len(one) / 2 < right - LETTER * len(two) / 2


def test_what_is_left_of_a_difference_of_times_is_nothing():
    assert numbers.seconds(2.8e-14) == "0 s"
    assert numbers.seconds(-1e-16) == "0 s"
    assert numbers.seconds(2e-9) == "0.002 µs"


def test_a_server_is_told_apart_from_the_parties():
    assert wording.who(["a", "b", "c", "d", "e", "f", "server"]) == "6 parties and a server"
    assert wording.who(["a", "b", "cloud"]) == "2 parties and a cloud"
    assert wording.who(["bank", "shop"]) == "2 parties"


def test_the_last_column_is_whole_beside_long_names():
    names = ("a_party_with_a_very_long_name", "another_party_with_a_long_name")
    record = sample_record(parties={name: sample_party(name) for name in names})
    text = plain_text(summary(record), width=80)
    (head,) = [line for line in text.splitlines() if "updates" in line and "wait" in line]
    assert head.rstrip().endswith("wait") and all(len(line) <= 80 for line in text.splitlines())
    assert "…" not in text


def test_an_objective_that_falls_far_is_drawn_on_a_logarithmic_axis():
    def drawn(values):
        curve = [CurveRow(float(i), float(i), i, value) for i, value in enumerate(values)]
        record = sample_record(curve=curve)
        pages = {
            str(progress_of_one(record)),
            str(live_page(View("run", "running", curve=curve))),
            comparison_page(Comparison({"one": record, "two": record})),
        }
        (scale,) = {"objective, log scale" in page for page in pages}
        return "objective, log scale" if scale else ""

    assert "objective, log scale" in drawn([2.0, 0.1, 0.01])
    assert "objective, log scale" not in drawn([2.0, 1.5, 1.2])
    assert "objective, log scale" not in drawn([2.0, 0.5, -0.1])


def test_the_score_on_test_rows_is_called_by_its_name():
    curve = [CurveRow(float(i), float(i), i, 1.0, test_metric=0.5 + i / 10) for i in range(3)]
    page = str(progress_of_one(sample_record(curve=curve)))
    assert "test AUC" in page and "test metric" not in page
    assert wording.test_metric(sample_record(metrics={"train_rmse": 1.0, "test_rmse": 2.0})) == "test RMSE"
    assert wording.test_metric(sample_record(metrics={})) == "test metric"


def test_looks_that_do_not_know_their_bytes_are_not_drawn_against_bytes():
    rows = [CurveRow(time_s=float(i), passes=float(i), bytes=7, objective=1.0 / (i + 1)) for i in range(3)]
    told = progress_of_one(sample_record(curve=rows))
    assert told.count("<svg") == 2 and "bytes" not in told
    known = [CurveRow(time_s=float(i), passes=float(i), bytes=7 * i, objective=1.0 / (i + 1)) for i in range(3)]
    assert "objective against bytes sent" in progress_of_one(sample_record(curve=known))
