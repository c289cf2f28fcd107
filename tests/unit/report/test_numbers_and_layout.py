"""Numbers as people read them, and where things go on a chart."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.report import numbers
from offbeat.report.charts import axis_unit, clipped, tick_text
from offbeat.report.layout import (
    Scale,
    linear_scale,
    linear_ticks,
    log_scale,
    log_ticks,
    spread,
    thin,
)
from offbeat.report.palette import DASHES, PAGE, PANEL, QUIET, SERIES


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.431772915, "0.4318"), (9.11e-7, "9.11e-07"), (12.0, "12"), (12.5, "12.5"), (None, "–"),
        (math.nan, "–"), (math.inf, "–"), (0.0, "0"), (-3.0, "-3"), (1e9, "1e+09"),
    ],
)  # fmt: skip
def test_short(value, text):
    assert numbers.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"), (3.5e-4, "350 µs"), (0.0012, "1.2 ms"), (48.25, "48.2 s"), (99.9, "99.9 s"),
        (125.4, "2 min 05 s"), (3599.9, "1 h 00 min"), (11400, "3 h 10 min"), (None, "–"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_seconds(value, text):
    assert numbers.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1152, "1.15 kB"), (999_400, "999 kB"), (999_600, "1 MB"), (31_469_760, "31.5 MB"),
     (2.5e15, "2.5e+03 TB"), (None, "–")],
)  # fmt: skip
def test_size(value, text):
    assert numbers.size(value) == text


def test_count_and_percent():
    assert numbers.count(18412) == "18,412"
    assert numbers.percent(1, 3) == "33.3 %"
    assert numbers.percent(1, 0) == "–"


def test_linear_ticks_are_round():
    assert linear_ticks(0, 48.25) == [0, 10, 20, 30, 40]
    assert linear_ticks(0.42, 0.70) == [0.5, 0.6, 0.7]
    assert linear_ticks(3.0, 3.0) == [3.0]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_linear_ticks_stay_inside_and_are_few(low, length):
    ticks = linear_ticks(low, low + length)
    slack = 1e-6 * max(abs(low), length, 1)
    assert 1 <= len(ticks) <= 11
    assert all(low - slack <= tick <= low + length + slack for tick in ticks)
    assert ticks == sorted(ticks)


def test_log_ticks_are_powers_of_ten():
    assert log_ticks(1e-8, 1.0, wanted=5) == pytest.approx([1e-8, 1e-6, 1e-4, 1e-2, 1.0])
    assert log_ticks(1e-3, 1.0, wanted=5) == pytest.approx([1e-3, 1e-2, 1e-1, 1.0])


def test_scales_put_values_in_place():
    straight = Scale(0.0, 10.0, 100.0, 200.0)
    assert [straight.at(value) for value in (-5, 0, 5, 10, 99)] == [100, 100, 150, 200, 200]
    decades = log_scale([3e-4, 0.5], 200.0, 0.0)
    assert (decades.low, decades.high) == (1e-4, 1.0)
    assert decades.at(1e-2) == pytest.approx(100.0)
    assert decades.at(0.0) == pytest.approx(200.0)
    assert linear_scale([], 0.0, 1.0).low < linear_scale([], 0.0, 1.0).high
    assert log_scale([], 0.0, 1.0).log
    assert linear_scale([2.0, 2.0], 0.0, 1.0).at(2.0) == pytest.approx(0.5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_spread_keeps_order_distance_and_bounds(positions):
    gap = min(0.1, 1 / len(positions))
    placed = spread(positions, gap, 0.0, 1.0)
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    ordered = [placed[index] for index in order]
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in placed)
    assert all(second - first >= gap - 1e-9 for first, second in pairwise(ordered))


def test_spread_leaves_distant_labels_alone():
    assert spread([0.9, 0.1, 0.5], 0.2, 0.0, 1.0) == [0.9, 0.1, 0.5]


def test_thin_keeps_both_ends():
    assert thin(list(range(1000)), 5) == [0, 250, 500, 749, 999]
    assert thin([1, 2], 5) == [1, 2]


def test_axis_units_have_few_digits():
    assert axis_unit("time_s", 48.25).label == "time (s)"
    assert axis_unit("time_s", 0.7).label == "time (ms)"
    assert axis_unit("time_s", 1.8).label == "time (s)"
    assert axis_unit("time_s", 90.0).label == "time (s)"
    assert axis_unit("time_s", 900.0).label == "time (min)"
    assert axis_unit("bytes", 31_469_760).label == "bytes sent (MB)"
    assert axis_unit("passes", 12.5).label == "passes"
    assert axis_unit("bytes", 31_469_760).text(2_000_000) == "2 MB"


def test_small_texts():
    assert tick_text(1e-4, log=True) == "10⁻⁴"
    assert tick_text(0.25, log=False) == "0.25"
    told = [tick_text(value, log=False) for value in (0.0, 25_000.0, 250_000.0, -7.5e6, 1e9, 1e15)]
    assert told == ["0", "25000", "250 k", "-7.5 M", "1000 M", "1e+15"]
    assert clipped("hospital-number-07") == "hospita…ber-07"
    assert len(clipped("hospital-number-07")) == 14
    assert clipped("電話料金の遅延回数") == "電話料金…延回数"
    assert clipped("bank") == "bank"


def contrast(first, second):
    """The contrast ratio of two colours, from 1 to 21, as the web's accessibility guidelines define it."""
    bright, dim = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour):
    parts = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_colour_can_be_read_on_its_page():
    for tone in (*SERIES, QUIET):
        for page in (PAGE, PANEL):
            assert contrast(tone.light, page.light) >= 4.5
            assert contrast(tone.dark, page.dark) >= 4.5
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert len(DASHES) == len(SERIES)
