"""Figures for paper and slides: one style for every redrawn table and figure, saved as PNG and SVG.

Colours and strokes are those of the pages; lines are labelled where they end, so that no legend has to be decoded.
Matplotlib is imported when something is drawn, its global state is left alone, and the same input gives the same
file.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat.report.layout import spread
from offbeat.report.palette import DASHES, INK, QUIET, RULE, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST_TICKS = 8
Points = Sequence[tuple[float, float]]

_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Liberation Sans", "Arial", "DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": QUIET.light,
    "axes.labelcolor": QUIET.light,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE.light,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "text.color": INK.light,
    "xtick.color": QUIET.light,
    "ytick.color": QUIET.light,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "ytick.minor.size": 0,
    "svg.fonttype": "path",
    "svg.hashsalt": "offbeat",
    "figure.dpi": 100,
    "savefig.dpi": 200,
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a panel. `band` is a second pair of lines, for example the range over seeds."""

    name: str
    points: Points
    tone: int
    band: tuple[Points, Points] | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes with its lines. `level` draws a target across it."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    level: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars: `groups` names the places along the axis, `values` one bar in each place by name.

    A value of None is a bar that could not be measured; the word 'fail' stands in its place.
    """

    title: str
    y_label: str
    groups: Sequence[str]
    values: Mapping[str, Sequence[float | None]]
    level: tuple[str, float] | None = None
    digits: int = 2


def draw_panels(panels: Sequence[Panel], path: str | Path, columns: int = 3, title: str = "") -> tuple[Path, Path]:
    """Several panels side by side, in rows of `columns`."""
    with _style():
        figure, axes = _axes(len(panels), columns, 3.7, 2.75, title)
        for place, panel in zip(axes, panels, strict=True):
            _draw_panel(place, panel)
        return _save(figure, path)


def draw_bars(charts: Sequence[Bars], path: str | Path, columns: int = 2, title: str = "") -> tuple[Path, Path]:
    """Grouped bars with their values written on them."""
    with _style():
        widest = max((len(chart.groups) * len(chart.values) for chart in charts), default=1)
        figure, axes = _axes(len(charts), columns, max(4.4, 1.6 + 0.36 * widest), 2.9, title)
        for place, chart in zip(axes, charts, strict=True):
            _draw_bars(place, chart)
        return _save(figure, path)


def draw_time_split(
    runs: Mapping[str, Mapping[str, tuple[float, float, float]]], path: str | Path, title: str = "", unit: str = "s"
) -> tuple[Path, Path]:
    """Compute, communicate and wait of each party, one panel per run, all on one time axis (AFSGD-VP's Figure 7)."""
    with _style():
        rows = max((len(parties) for parties in runs.values()), default=1)
        figure, axes = _axes(len(runs), len(runs), 4.2, 0.9 + 0.32 * rows, title)
        longest = max((sum(split) for parties in runs.values() for split in parties.values()), default=1.0)
        for index, (place, (name, parties)) in enumerate(zip(axes, runs.items(), strict=True)):
            _draw_split(place, name, parties, longest, unit, keyed=index == 0)
        return _save(figure, path)


def draw_pictures(
    pictures: Mapping[str, Sequence["NDArray[Any]"]], path: str | Path, captions: Sequence[str] = (), title: str = ""
) -> tuple[Path, Path]:
    """Rows of small grey pictures, each row under its name, each column under its caption."""
    with _style():
        columns = max((len(row) for row in pictures.values()), default=1)
        figure = _figure(1.5 + 1.0 * columns, 0.5 + 1.1 * len(pictures), title)
        grid = figure.subplots(len(pictures), columns, squeeze=False)
        for places, (name, row) in zip(grid, pictures.items(), strict=True):
            for column, place in enumerate(places):
                _draw_picture(place, row[column] if column < len(row) else None)
                if place is grid[0][column] and column < len(captions):
                    place.set_title(captions[column], fontsize=9, fontweight="normal", loc="center")
            places[0].text(-0.15, 0.5, name, transform=places[0].transAxes, ha="right", va="center")
        return _save(figure, path)


# -- parts --------------------------------------------------------------------------------------------------------


def _style() -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def _figure(width: float, height: float, title: str) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    return figure


def _axes(number: int, columns: int, width: float, height: float, title: str) -> tuple["Figure", list["Axes"]]:
    columns = max(1, min(columns, number))
    rows = -(-number // columns)
    figure = _figure(width * columns, height * rows + (0.35 if title else 0.0), title)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in places[number:]:
        empty.set_visible(False)
    return figure, places[:number]


def _draw_panel(place: "Axes", panel: Panel) -> None:
    if panel.log_x:
        place.set_xscale("log")
    if panel.log_y:
        place.set_yscale("log")
    for curve in panel.curves:
        _draw_curve(place, curve, panel)
    if panel.level:
        name, value = panel.level
        place.axhline(value, color=QUIET.light, linewidth=0.9, linestyle=(0, (4, 3)))
        place.annotate(name, (0, value), (3, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
                       color=QUIET.light, fontsize=8)  # fmt: skip
    if panel.log_x:
        _plain_ticks(place, [x for curve in panel.curves for x, _ in curve.points if x > 0])
    place.set_title(panel.title, pad=20)
    place.set_xlabel(panel.x_label, loc="right")
    _label_above(place, panel.y_label)
    _label_ends(place, panel)


def _plain_ticks(place: "Axes", xs: Sequence[float]) -> None:
    """On a logarithmic axis that spans little, the points themselves are the ticks, in plain numbers."""
    points = sorted(set(xs))
    if not points or len(points) > MOST_TICKS or points[-1] > 1000 * points[0]:
        return
    place.set_xticks(points, [f"{x:g}" for x in points])
    place.set_xticks([], minor=True)


def _draw_curve(place: "Axes", curve: Curve, panel: Panel) -> None:
    drawable = [(x, y) for x, y in curve.points if (y > 0 or not panel.log_y) and (x > 0 or not panel.log_x)]
    colour = SERIES[curve.tone % len(SERIES)].light
    place.plot([x for x, _ in drawable], [y for _, y in drawable], color=colour, linestyle=_dash(curve.tone))
    if curve.band:
        low, high = curve.band
        place.fill_between(
            [x for x, _ in low], [y for _, y in low], [y for _, y in high], color=colour, alpha=0.15, linewidth=0
        )


def _dash(tone: int) -> str | tuple[float, tuple[float, ...]]:
    parts = tuple(float(part) * 0.5 for part in DASHES[tone % len(DASHES)].split())
    return (0.0, parts) if parts else "-"


def _label_above(place: "Axes", text: str) -> None:
    place.text(0, 1.03, text, transform=place.transAxes, color=QUIET.light, fontsize=9, va="bottom")


def _label_ends(place: "Axes", panel: Panel) -> None:
    """Names at the right ends of their lines, moved apart where they would touch."""
    to_axes = place.transData + place.transAxes.inverted()
    place.autoscale_view()
    ended = [curve for curve in panel.curves if curve.points]
    ends = [to_axes.transform(curve.points[-1]) for curve in ended]
    heights = spread([float(min(1.0, max(0.0, y))) for _, y in ends], 0.085, 0.0, 1.0)
    for curve, (end, _), y in zip(ended, ends, heights, strict=True):
        inside = end < 0.8
        place.text(
            end + 0.02 if inside else 1.02, y, curve.name, transform=place.transAxes, va="center", fontsize=8.5,
            color=SERIES[curve.tone % len(SERIES)].light,
        )  # fmt: skip


def _draw_bars(place: "Axes", chart: Bars) -> None:
    width = 0.8 / max(len(chart.values), 1)
    for tone, (name, values) in enumerate(chart.values.items()):
        colour = SERIES[tone % len(SERIES)].light
        for group, value in enumerate(values):
            x = group - 0.4 + (tone + 0.5) * width
            place.bar(x, value or 0.0, width * 0.9, color=colour, label=name if group == 0 else None)
            text = "fail" if value is None else f"{value:.{chart.digits}f}"
            place.annotate(text, (x, value or 0.0), (0, 2), textcoords="offset points", ha="center", fontsize=7.5)
    if chart.level:
        name, height = chart.level
        place.axhline(height, color=QUIET.light, linewidth=0.9, linestyle=(0, (4, 3)))
        place.annotate(name, (1, height), (3, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                       color=QUIET.light, fontsize=8, va="center")  # fmt: skip
    place.set_xticks(range(len(chart.groups)), chart.groups)
    place.tick_params(axis="x", length=0)
    place.set_title(chart.title, pad=20)
    _label_above(place, chart.y_label)
    if len(chart.values) > 1:
        place.legend(frameon=False, fontsize=8.5, ncols=len(chart.values), loc="lower right", bbox_to_anchor=(1, 1.0),
                     borderaxespad=0, handlelength=1)  # fmt: skip


def _draw_split(
    place: "Axes", name: str, parties: Mapping[str, tuple[float, float, float]], longest: float, unit: str, keyed: bool
) -> None:
    colours = (SERIES[0].light, SERIES[1].light, RULE.light)
    start = [0.0] * len(parties)
    for part, (word, colour) in enumerate(zip(("compute", "communicate", "wait"), colours, strict=True)):
        lengths = [split[part] for split in parties.values()]
        place.barh(list(parties), lengths, 0.66, left=start, color=colour, label=word)
        start = [before + length for before, length in zip(start, lengths, strict=True)]
    place.set_xlim(0, longest * 1.02)
    place.invert_yaxis()
    place.grid(visible=False)
    place.tick_params(axis="y", length=0, labelcolor=INK.light)
    place.set_title(name, pad=20)
    place.set_xlabel(f"time ({unit})", loc="right")
    if keyed:
        place.legend(frameon=False, fontsize=8.5, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0,
                     handlelength=1)  # fmt: skip


def _draw_picture(place: "Axes", picture: "NDArray[Any] | None") -> None:
    place.axis("off")
    if picture is not None:
        place.imshow(picture, cmap="gray_r", interpolation="nearest")


def _save(figure: "Figure", path: str | Path) -> tuple[Path, Path]:
    """Write the figure beside each other as PNG and SVG, without a date in either."""
    stem = Path(path)
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    figure.savefig(png, metadata={"Software": "offbeat"})
    figure.savefig(svg, metadata={"Date": None, "Creator": "offbeat"})
    return png, svg
