"""Figures are written twice, repeat to the byte, and leave matplotlib's global state alone."""

import subprocess
import sys

import numpy as np
import pytest

from offbeat.report.figures import Bars, Curve, Panel, draw_bars, draw_panels, draw_pictures, draw_time_split


@pytest.fixture
def panels():
    falling = [(float(x), 10.0 ** (-x)) for x in range(6)]
    slower = [(float(x), 10.0 ** (-x / 2)) for x in range(6)]
    return [
        Panel("credit", "passes", "sub-optimality", [Curve("async", falling, 0), Curve("sync", slower, 1)], log_y=True,
              level=("target", 1e-4)),
        Panel("news", "passes", "objective", [Curve("one", slower, 2, band=(falling, slower))], log_x=True),
    ]  # fmt: skip


def test_the_same_figure_is_the_same_file(panels, tmp_path):
    first = draw_panels(panels, tmp_path / "a", title="t")
    second = draw_panels(panels, tmp_path / "b", title="t")
    assert [path.name for path in first] == ["a.png", "a.svg"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_a_name_with_dots_keeps_them(panels, tmp_path):
    png, svg = draw_panels(panels[:1], tmp_path / "fig-0.25")
    assert (png.name, svg.name) == ("fig-0.25.png", "fig-0.25.svg")


def test_bars_with_a_missing_value(tmp_path):
    chart = Bars("speed-ups", "times", ["1x", "4x"], {"SGD": [1.0, 3.3], "SAGA": [0.84, None]}, level=("equal", 1.0))
    png, _ = draw_bars([chart], tmp_path / "bars")
    assert png.stat().st_size > 5_000


def test_time_split_and_pictures(tmp_path):
    runs = {"async": {"bank": (3.0, 1.0, 0.1)}, "sync": {"bank": (1.0, 1.0, 2.0)}}
    assert draw_time_split(runs, tmp_path / "split")[0].is_file()
    rows = {"before": [np.eye(8), np.eye(8)], "after": [np.zeros((8, 8))]}
    assert draw_pictures(rows, tmp_path / "pictures", captions=["0", "1"])[1].is_file()


def test_drawing_leaves_global_state_alone(tmp_path):
    script = (
        "import sys; import offbeat.report.figures as f; assert 'matplotlib' not in sys.modules; "
        f"f.draw_panels([f.Panel('t', 'x', 'y', [f.Curve('a', [(0, 1), (1, 2)], 0)])], {str(tmp_path / 'p')!r}); "
        "assert 'matplotlib.pyplot' not in sys.modules; "
        "import matplotlib; assert matplotlib.rcParams['axes.grid'] is False"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
