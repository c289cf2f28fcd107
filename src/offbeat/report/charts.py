"""Charts as inline SVG: lines, lag histograms and time bars.

A chart is an image with a name and a description for those who do not see it. Its colours are classes (`s0` to
`s7`) that the page's style sheet gives a light and a dark tone. Line charts carry a mark per look, which the page's
script turns into a read-out under the pointer or the arrow keys.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from unicodedata import east_asian_width

from offbeat.metrics.curves import Axis, CurveRow, Quantity, points
from offbeat.metrics.lag import bucket_label
from offbeat.report import numbers
from offbeat.report.html import Markup, tag
from offbeat.report.layout import Scale, linear_scale, log_scale, thin
from offbeat.report.palette import SERIES

POINTS_DRAWN = 160
FAR = 20.0
FEW_POINTS = 12  # so few looks are drawn as dots too: a single one would be no line

_WIDTH, _HEIGHT = 380, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 366.0, 26.0, 206.0
_DIGIT = 7.0  # about as wide as one is

_AXES: dict[Axis, tuple[str, tuple[tuple[float, str], ...]]] = {
    "time_s": ("time", ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"))),
    "passes": ("passes", ((1.0, ""),)),
    "bytes": ("bytes sent", ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))),
}

QUANTITIES: dict[Quantity, str] = {
    "suboptimality": "sub-optimality",
    "gap": "certified bound",
    "objective": "objective",
    "gradient_norm": "gradient norm",
    "test_metric": "test metric",
}


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line: its name, its (x, y) points and the colour it has on every chart of the page."""

    name: str
    points: Sequence[tuple[float, float]]
    tone: int = 0


def falls_far(curves: Iterable[Iterable[CurveRow]]) -> bool:
    """An objective that falls to a small part of its start would be an L on a linear axis."""
    values = [value for curve in curves for _, value in points(curve, "time_s", "objective")]
    return bool(values) and min(values) > 0 and max(values) > FAR * min(values)


@dataclass(frozen=True, slots=True)
class Unit:
    """What an axis is called and by how much its values are divided before they are written."""

    name: str
    divisor: float
    symbol: str

    @property
    def label(self) -> str:
        return f"{self.name} ({self.symbol})" if self.symbol else self.name

    def text(self, value: float) -> str:
        return f"{value / self.divisor:.4g} {self.symbol}".strip()


def axis_unit(axis: Axis, largest: float) -> Unit:
    """The unit in which an axis reaching to `largest` has the fewest digits."""
    name, units = _AXES[axis]
    fitting = [(divisor, symbol) for divisor, symbol in units if largest >= divisor * (2 if divisor == 60 else 1)]
    divisor, symbol = fitting[-1] if fitting else units[0]
    return Unit(name, divisor, symbol)


@dataclass(frozen=True, slots=True)
class Plane:
    """What lines are drawn on: where values go along both axes, and what the axes are called."""

    across: Scale
    upwards: Scale
    unit: Unit
    quantity: str

    def drawn(self, series: Sequence[ChartLine], marks: Sequence[Markup]) -> Markup:
        return tag(
            "svg",
            tag("title", f"{self.quantity} against {self.unit.name}"),
            tag("desc", _described(series, self.unit)),
            self._grid(),
            *marks,
            *map(self._line, series),
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
            class_="chart lines",
            role="img",
            tabindex="0",
        )

    def _grid(self) -> Markup:
        across, upwards, unit = self.across, self.upwards, self.unit
        parts = [tag("text", self.quantity + (", log scale" if upwards.log else ""), x=8.0, y=13.0, class_="name")]
        for value in upwards.ticks():
            y = upwards.at(value)
            parts.append(tag("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="rule"))
            parts.append(tag("text", tick_text(value, upwards.log), x=_LEFT - 6, y=y + 4, class_="tick end"))
        in_units = Scale(across.low / unit.divisor, across.high / unit.divisor, across.start, across.end)
        for value in in_units.ticks():
            x = in_units.at(value)
            parts.append(tag("line", x1=x, x2=x, y1=_BOTTOM, y2=_BOTTOM + 4, class_="axis"))
            text = f"{value:g}"
            fits = x + _DIGIT * len(text) / 2 <= _WIDTH
            parts.append(tag("text", text, x=x, y=_BOTTOM + 17, class_="tick middle" if fits else "tick end"))
        parts.append(tag("line", x1=_LEFT, x2=_RIGHT, y1=_BOTTOM, y2=_BOTTOM, class_="axis"))
        parts.append(tag("text", unit.label, x=_RIGHT, y=_BOTTOM + 36, class_="name end"))
        return tag("g", *parts, aria_hidden="true")

    def _line(self, line: ChartLine) -> Markup:
        tone = line.tone % len(SERIES)
        places = [(self.across.at(x), self.upwards.at(y)) for x, y in line.points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) if places else ""
        marks = [
            tag("circle", cx=px, cy=py, r=3.2, data_label=f"{line.name} {numbers.short(y, 3)} at {self.unit.text(x)}")
            for (px, py), (x, y) in zip(places, line.points, strict=True)
        ]
        return tag(
            "g",
            tag("path", d=path, class_="line"),
            tag("g", *marks, class_="marks few" if len(places) <= FEW_POINTS else "marks"),
            class_=f"s{tone}",
        )


def line_chart(
    series: Sequence[ChartLine],
    axis: Axis,
    quantity: str,
    log: bool,
    levels: Sequence[float] = (),
    along: str = "",
    level_name: str = "target",
) -> Markup:
    """Some quantity against time, passes or bytes; each of `levels` draws a target across. `along`: another name for
    what is counted along the axis."""
    drawn = [_cut(line, log) for line in series]
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points] + [*levels]
    unit = axis_unit(axis, max(xs, default=1.0))
    unit = replace(unit, name=along) if along else unit
    across = linear_scale(xs, _LEFT, _RIGHT, from_zero=True)
    upwards = log_scale(ys, _BOTTOM, _TOP) if log else linear_scale(ys, _BOTTOM, _TOP)
    marks = [_level(level, upwards, level_name) for level in levels]
    return Plane(across, upwards, unit, quantity).drawn(drawn, marks)


def curve_chart(
    rows: Sequence[CurveRow],
    axis: Axis,
    called: Mapping[Quantity, str],
    log: bool,
    levels: Sequence[float] = (),
    unit: str = "passes",
) -> Markup:
    """What a run's looks have measured of some quantities, which are `called` so; `unit`: what its passes count."""
    lines = [
        ChartLine(name, points(rows, axis, quantity), tone) for tone, (quantity, name) in enumerate(called.items())
    ]
    return line_chart(lines, axis, " and ".join(called.values()), log, levels, unit if axis == "passes" else "")


def against_diagonal(
    line: ChartLine,
    along: str,
    quantity: str,
    spans: Sequence[tuple[float, float, float]] = (),
    within: tuple[float, float] | None = None,
) -> Markup:
    """One line beside the diagonal on which both axes agree. `spans` are vertical strokes (x, low, high); `within`:
    what both axes hold, if not just what is drawn."""
    xs, ys = [x for x, _ in line.points], [y for _, y in line.points] + [y for span in spans for y in span[1:]]
    across = Scale(*within, _LEFT, _RIGHT) if within else linear_scale(xs, _LEFT, _RIGHT)
    upwards = Scale(*within, _BOTTOM, _TOP) if within else linear_scale(ys, _BOTTOM, _TOP)
    low, high = max(across.low, upwards.low), min(across.high, upwards.high)
    ends = {"x1": across.at(low), "x2": across.at(high), "y1": upwards.at(low), "y2": upwards.at(high)}
    marks = [tag("line", **ends, class_="level")] if high > low else []
    for x, least, most in spans:
        place = across.at(x)
        marks.append(tag("line", x1=place, x2=place, y1=upwards.at(least), y2=upwards.at(most), class_="span"))
    return Plane(across, upwards, Unit(along, 1.0, ""), quantity).drawn([line], marks)


def _cut(line: ChartLine, log: bool) -> ChartLine:
    """What can be drawn: on a logarithmic axis positive values only, and no more points than the eye can use."""
    return ChartLine(line.name, thin([(x, y) for x, y in line.points if not log or y > 0], POINTS_DRAWN), line.tone)


def _described(series: Sequence[ChartLine], unit: Unit) -> str:
    return " ".join(
        f"{line.name}: from {numbers.short(line.points[0][1], 3)} at {unit.text(line.points[0][0])} "
        f"to {numbers.short(line.points[-1][1], 3)} at {unit.text(line.points[-1][0])}."
        for line in series
        if line.points
    )


def _level(value: float, upwards: Scale, name: str) -> Markup:
    y = upwards.at(value)
    return tag(
        "g",
        tag("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="level"),
        tag("text", name, x=_RIGHT - 4, y=y - 4, class_="tick end"),
    )


def tick_text(value: float, log: bool) -> str:
    """A tick's value, large ones in thousands or millions; powers of ten as 10⁻⁴ on a logarithmic axis."""
    if not log:
        for size, unit in ((1e6, " M"), (1e3, " k")):
            if max(size, 1e5) <= abs(value) < 1e12:
                return f"{value / size:g}{unit}"
        return f"{value:g}"
    power = f"{value:e}".partition("e")[2]
    return "10" + str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def legend(names: Sequence[tuple[str, int]]) -> Markup:
    """Names beside a sample of their stroke, shared by all charts of a row."""
    return tag("ul", *(tag("li", _stroke_sample(tone), name) for name, tone in names), class_="legend")


def _stroke_sample(tone: int) -> Markup:
    stroke = tag("line", x1=1, x2=29, y1=5, y2=5, class_="line")
    return tag(
        "svg",
        tag("g", stroke, class_=f"s{tone % len(SERIES)}"),
        viewBox="0 0 30 10",
        class_="swatch",
        aria_hidden="true",
    )


# -- bars: one row per party --------------------------------------------------------------------------------------

_BAR_WIDTH, _BAR_LEFT, _BAR_RIGHT = 560, 118.0, 470.0
_LETTER = 6.6  # about as wide as one of a note, a tick or the text inside a bar is
TIME_PARTS = ("compute", "communicate", "wait")


def time_bars(rows: Sequence[tuple[str, tuple[float, float, float], str]], longest: float = 0.0) -> Markup:
    """(party, (compute, communicate, wait), note at the end of its bar), as in AFSGD-VP's Figure 7.

    Charts that share `longest` share their scale.
    """
    longest = longest or max((sum(split) for _, split, _ in rows), default=0.0)
    across = Scale(0.0, longest or 1.0, _BAR_LEFT, _BAR_RIGHT)
    height = 30.0
    bars = [_time_bar(row, 8 + index * height, across) for index, row in enumerate(rows)]
    return _bar_chart(
        "Compute, communicate and wait by party",
        "; ".join(f"{name}: {_split_text(split)}" for name, split, _ in rows),
        bars,
        8 + height * len(rows) + 4,
        max([_BAR_WIDTH, *(across.at(sum(split)) + _note_width(note) for _, split, note in rows)]),
    )


def _note_width(note: str) -> float:
    """What a note at the end of a row takes, with the space before it."""
    return 12 + _LETTER * len(note)


def _split_text(split: tuple[float, float, float]) -> str:
    return ", ".join(f"{part} {numbers.seconds(value)}" for part, value in zip(TIME_PARTS, split, strict=True))


def _time_bar(row: tuple[str, tuple[float, float, float], str], y: float, across: Scale) -> Markup:
    name, split, note = row
    pieces, start = [], 0.0
    for part, value in zip(TIME_PARTS, split, strict=True):
        left, right = across.at(start), across.at(start + value)
        start += value
        if right - left < 0.3:
            continue
        hint = tag("title", f"{name}: {part} {numbers.seconds(value)}")
        pieces.append(tag("rect", hint, x=left, y=y, width=right - left, height=20, class_=f"part {part}"))
        text = numbers.seconds(value)
        if right - left > _LETTER * len(text) + 6:
            pieces.append(tag("text", text, x=(left + right) / 2, y=y + 14, class_=f"inside middle {part}"))
    label = tag("text", clipped(name), x=_BAR_LEFT - 8, y=y + 14, class_="row end")
    return tag("g", label, *pieces, tag("text", note, x=across.at(start) + 8, y=y + 14, class_="tick"))


def lag_rows(rows: Sequence[tuple[str, Sequence[int], str]]) -> Markup:
    """(party, counts by bucket, note): each party's lags as a row of columns, in shares of its own updates."""
    buckets = max((len(counts) for _, counts, _ in rows), default=1) or 1
    width = (_BAR_RIGHT - _BAR_LEFT) / buckets
    height = 46.0 if len(rows) <= 8 else 30.0
    drawn = [_lag_row(row, 10 + index * height, width, height - 14) for index, row in enumerate(rows)]
    bottom = 10 + height * len(rows)
    labels = [bucket_label(bucket) for bucket in range(buckets)]
    every = max(1, math.ceil((_LETTER * max(map(len, labels)) + 6) / width))
    ticks = [
        tag("text", label, x=_BAR_LEFT + (bucket + 0.5) * width, y=bottom + 8, class_="tick middle")
        for bucket, label in enumerate(labels)
        if bucket % every == 0
    ]
    name = tag("text", "lag, in versions", x=_BAR_RIGHT, y=bottom + 26, class_="name end")
    described = "; ".join(f"{name}: {note}" for name, _, note in rows)
    wide = max([_BAR_WIDTH, *(_BAR_RIGHT + _note_width(note) for _, _, note in rows)])
    return _bar_chart("Lag by party", described, [*drawn, *ticks, name], bottom + 34, wide)


def _lag_row(row: tuple[str, Sequence[int], str], y: float, width: float, height: float) -> Markup:
    name, counts, note = row
    total, tallest, base = sum(counts), max(counts, default=0), y + height + 4
    columns = [
        tag(
            "rect",
            tag(
                "title",
                f"{name}: lag {bucket_label(bucket)}, {numbers.percent(number, total)} of {numbers.count(total)}",
            ),
            x=_BAR_LEFT + bucket * width + 2,
            y=base - height * number / tallest,
            width=width - 4,
            height=height * number / tallest,
            class_="part compute",
        )
        for bucket, number in enumerate(counts)
        if number
    ]
    rule = tag("line", x1=_BAR_LEFT, x2=_BAR_RIGHT, y1=base, y2=base, class_="axis")
    label = tag("text", clipped(name), x=_BAR_LEFT - 8, y=base - 4, class_="row end")
    return tag("g", label, *columns, rule, tag("text", note, x=_BAR_RIGHT + 8, y=base - 4, class_="tick"))


def _bar_chart(title: str, described: str, parts: Sequence[Markup], height: float, width: float) -> Markup:
    """`width`: nothing may hang out of the picture, as the longest row's note."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", described),
        *parts,
        viewBox=f"0 0 {math.ceil(width)} {height:.0f}",
        class_="chart bars",
        role="img",
    )


_VALUE_LEFT, _VALUE_RIGHT = 108.0, 254.0


def value_bars(rows: Sequence[tuple[str, float, float, str]], title: str) -> Markup:
    """(name, value, its standard error, note): bars from 0, to the left where they are below it."""
    ends = [end for _, value, error, _ in rows for end in (0.0, value - error, value + error)]
    across = Scale(min(ends), max(ends) if max(ends) > min(ends) else 1.0, _VALUE_LEFT, _VALUE_RIGHT)
    height, zero = 30.0, across.at(0.0)
    drawn = [_value_bar(row, 8 + index * height, across) for index, row in enumerate(rows)]
    bottom = 8 + height * len(rows)
    described = "; ".join(f"{name}: {note}" for name, _, _, note in rows)
    axis = tag("line", x1=zero, x2=zero, y1=4, y2=bottom, class_="axis")
    return _bar_chart(title, described, [*drawn, axis], bottom + 4, _WIDTH)


def _value_bar(row: tuple[str, float, float, str], y: float, across: Scale) -> Markup:
    name, value, error, note = row
    left, right = sorted((across.at(0.0), across.at(value)))
    low, high = across.at(value - error), across.at(value + error)
    return tag(
        "g",
        tag("title", name),
        tag("text", clipped(name, 12), x=_VALUE_LEFT - 8, y=y + 14, class_="row end"),
        tag("rect", x=left, y=y, width=right - left, height=20, class_="part compute"),
        tag("line", x1=low, x2=high, y1=y + 10, y2=y + 10, class_="whisker"),
        tag("text", note, x=max(right, high) + 8, y=y + 14, class_="tick"),
    )


def part_legend() -> Markup:
    boxes = [
        tag("li", tag("svg", tag("rect", x=1, y=1, width=12, height=10, class_=f"part {part}"), viewBox="0 0 14 12",
                      class_="swatch box", aria_hidden="true"), part)
        for part in TIME_PARTS
    ]  # fmt: skip
    return tag("ul", *boxes, class_="legend")


def clipped(name: str, letters: int = 14) -> str:
    """A name that fits beside a bar, shortened in the middle: names of many parties often differ in their ends. Signs
    of East Asia are twice as wide as letters."""
    if sum(east_asian_width(sign) in "WF" for sign in name) * 2 > len(name):
        letters = letters // 2 + 1
    if len(name) <= letters:
        return name
    tail = (letters - 1) // 2
    return f"{name[: letters - 1 - tail]}…{name[-tail:]}"


Draw = Callable[[Axis], Markup]


def against_everything(draw: Draw, rows: Sequence[CurveRow] = ()) -> Markup:
    """The same chart against time, passes and bytes, side by side. Of looks that do not know when bytes were sent, all
    have the same: against those nothing can be drawn."""
    axes: tuple[Axis, ...] = ("time_s", "passes", "bytes")
    axes = axes if len(rows) < 2 or len({row.bytes for row in rows}) > 1 else axes[:2]
    return tag("div", *(tag("figure", draw(axis)) for axis in axes), class_="three")
