"""Held-out rows on the page: the curves, the table of counts, and what each party is worth."""

import re

import pytest
from report_samples import sample_record

from offbeat.metrics.held_out import HeldOut, Worth
from offbeat.metrics.record import DataRecord
from offbeat.report.page import report_page

TWO = HeldOut(
    rows=40,
    roc=((0.0, 0.0), (0.25, 0.5), (1.0, 1.0)),
    ks=0.25,
    calibration=((0.1, 0.2, 20), (0.6, 0.5, 20)),
    confusion=((15, 5), (8, 12)),
)


def of(held_out, classes=("no", "<yes>"), **more):
    return report_page(sample_record(held_out=held_out, data=DataRecord(classes=classes), **more))


def test_a_run_without_held_out_rows_has_no_such_section():
    page = report_page(sample_record())
    assert 'id="unseen"' not in page and 'id="worth"' not in page


def test_two_classes_have_two_curves_and_a_table():
    page = of(TWO)
    assert "On 40 held-out rows" in page and "AUC 0.7731, KS 0.25" in page
    assert "true positive rate 0.5 at 0.25" in page and "how often it was &lt;yes&gt;" in page
    cells = re.findall(r"<td[^>]*>(?:<span class=\"hit\">)?([\d.]+)", page.partition("Confusion table")[2])[:6]
    assert cells == ["15", "5", "75.0", "8", "12", "60.0"]


def test_the_roc_curve_lies_where_it_belongs():
    """False and true rates of 0 and 1 are the corners of the picture."""
    picture = of(TWO).partition('id="unseen"')[2].partition("</svg>")[0]
    (path,) = re.findall(r'<path d="([^"]+)" class="line"', picture)
    assert path == "M56.0 206.0L133.5 116.0L366.0 26.0"


def test_many_classes_are_told_by_their_mistakes():
    counts = [[0] * 20 for _ in range(20)]
    counts[3][7] = 9
    page = of(HeldOut(rows=9, confusion=tuple(map(tuple, counts))), classes=tuple(f"k{i}" for i in range(20)))
    assert "The most frequent mistakes" in page and re.search(r"k3</th><td[^>]*>k7</td><td[^>]*>9<", page)


def test_numbers_have_medians_and_spans():
    page = of(HeldOut(rows=10, fit=((1.0, 0.5, 1.1, 1.5, 5), (2.0, 1.5, 2.1, 2.5, 5))), classes=())
    assert page.count('class="span"') == 2 and "median of the true numbers 1.1 at 1" in page


def test_worth_is_a_bar_for_each_party_also_below_zero():
    values, errors = {"bank": 0.2, "shop": -0.05}, {"bank": 0.01, "shop": 0.02}
    worth = Worth(
        "auc", 100, 0.65, 0.5, values, errors, {"nobody": 0.5, "bank": 0.71, "shop": 0.44, "bank + shop": 0.65}
    )
    page = of(None, worth=worth).partition('id="worth"')[2]
    assert "0.6500 with all parties, 0.5000 without any column" in page and "+0.2000 ± 0.0100" in page
    bars = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="20"', page)
    left, width = map(float, bars[1])
    assert left < float(bars[0][0]) and left + width == float(bars[0][0])
    assert "bank + shop" in page


def test_the_page_tells_how_rows_are_divided_among_the_classes():
    assert "&lt;yes&gt; is the positive class, no the other. Held-out rows: no 50.0 %, &lt;yes&gt; 50.0 %." in of(TWO)
    assert "the other. Held-out" not in of(None)


def test_the_largest_coefficients_have_bars_with_their_whole_names():
    told = {"bank": {"a column with a long name": 2.0, "age": -1.0}, "edge": {}}
    page = of(TWO, coefficients=told).partition('id="coefficients"')[2]
    assert "speak for the positive class" in page and "<title>a column with a long name</title>" in page
    (zero, width), (left, wide) = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="20"', page)[:2]
    assert float(left) + float(wide) == pytest.approx(float(zero), abs=0.02)
    assert float(width) == pytest.approx(2 * float(wide), abs=0.02)
    assert 'id="coefficients"' not in of(TWO)
