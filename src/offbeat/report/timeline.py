"""The message timeline: parties as lanes, messages as arrows from the moment they left to the moment they came.

Python draws the first stretch of the run, so that the page says something on paper and without a script; the page's
script then draws whatever stretch, party and kind the reader asks for, from the same list of messages.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.metrics.record import RunRecord, Transit
from offbeat.report import numbers
from offbeat.report.charts import Unit, axis_unit, clipped
from offbeat.report.html import Markup, data_block, quiet, tag
from offbeat.report.layout import Scale
from offbeat.report.palette import SERIES

MESSAGES_KEPT = 5000
LANES_SHOWN = 16
FIRST_VIEW_MESSAGES = 90

WIDTH, LEFT, RIGHT = 1120, 130.0, 1106.0
TOP = 24.0
OVERVIEW_BINS = 160


@dataclass(frozen=True, slots=True)
class Timeline:
    """The messages that the page holds, with names replaced by their places in the two lists."""

    parties: tuple[str, ...]
    kinds: tuple[str, ...]
    messages: tuple[Transit, ...]
    recorded: int

    @property
    def end_s(self) -> float:
        return max((message.received_s or message.sent_s for message in self.messages), default=1.0) or 1.0

    @property
    def first_view_s(self) -> tuple[float, float]:
        """Where the first few dozen messages are under way: few enough to tell apart."""
        first = self.messages[:FIRST_VIEW_MESSAGES]
        end = max((message.received_s or message.sent_s for message in first), default=self.end_s) or self.end_s
        start = min((message.sent_s for message in first), default=0.0)
        return (0.0 if start < end / 4 else start), end

    @property
    def lane_height(self) -> float:
        return 52.0 if len(self.parties) <= 8 else 36.0

    def lane(self, party: str) -> float:
        return TOP + (self.parties.index(party) + 0.5) * self.lane_height

    @property
    def height(self) -> float:
        return TOP + len(self.parties) * self.lane_height + 34

    def tone(self, kind: str) -> int:
        return self.kinds.index(kind) % len(SERIES)

    def stroke(self, kind: str) -> str:
        """The classes of an arrow: its colour, and dashes where a colour is used a second time."""
        again = " again" if self.kinds.index(kind) >= len(SERIES) else ""
        return f"arrow s{self.tone(kind)}{again}"


def timeline_of(record: RunRecord) -> Timeline:
    """What can be shown: the first messages, between the parties that exchanged most of them."""
    seen = record.timeline[:MESSAGES_KEPT]
    busy = Counter(name for message in seen for name in (message.sender, message.receiver))
    shown = {name for name, _ in busy.most_common(LANES_SHOWN)}
    order = [name for name in record.parties if name in shown]
    order += [name for name in busy if name in shown and name not in record.parties]
    messages = tuple(message for message in seen if message.sender in shown and message.receiver in shown)
    kinds = tuple(kind for kind, _ in Counter(message.kind for message in messages).most_common())
    return Timeline(tuple(order), kinds, messages, len(record.timeline))


def timeline_view(record: RunRecord) -> Markup:
    """The whole section's content: controls, overview, lanes, legend, and the data for the script."""
    timeline = timeline_of(record)
    if not timeline.messages:
        return quiet("This run recorded no messages.")
    return tag(
        "div",
        _controls(timeline),
        tag("p", _status(timeline), id="timeline-status", role="status", aria_live="polite", class_="quiet"),
        tag("div", _overview(timeline), _lanes(timeline), class_="scroll timeline", id="timeline-scroll"),
        _kind_legend(timeline),
        quiet(_note(record, timeline)),
        data_block("timeline-data", _data(timeline)),
        id="timeline-view",
    )


def _data(timeline: Timeline) -> dict[str, object]:
    party = {name: index for index, name in enumerate(timeline.parties)}
    kind = {name: index for index, name in enumerate(timeline.kinds)}
    return {
        "parties": timeline.parties,
        "kinds": timeline.kinds,
        "end": timeline.end_s,
        "view": timeline.first_view_s,
        "left": LEFT,
        "right": RIGHT,
        "lanes": [timeline.lane(name) for name in timeline.parties],
        "tones": [timeline.tone(name) for name in timeline.kinds],
        "strokes": [timeline.stroke(name) for name in timeline.kinds],
        "messages": [
            [_rounded(row.sent_s), _rounded(row.received_s), party[row.sender], party[row.receiver], kind[row.kind]]
            for row in timeline.messages
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.9g}")


def _controls(timeline: Timeline) -> Markup:
    return tag(
        "div",
        _choice("timeline-party", "Party", "all parties", timeline.parties),
        _choice("timeline-kind", "Kind", "all kinds", timeline.kinds),
        tag(
            "span",
            _button("earlier", "Earlier", "←"),
            _button("later", "Later", "→"),
            _button("closer", "Zoom in", "+"),
            _button("wider", "Zoom out", "\N{MINUS SIGN}"),
            _button("whole", "Show the whole recording", "whole"),
            role="group",
            aria_label="Stretch of time",
        ),
        class_="controls",
        role="group",
        aria_label="Choose what the timeline shows",
    )


def _choice(identifier: str, label: str, everything: str, names: Sequence[str]) -> Markup:
    options = [tag("option", everything, value=""), *(tag("option", name, value=name) for name in names)]
    return tag("label", label, " ", tag("select", *options, id=identifier))


def _button(action: str, label: str, sign: str) -> Markup:
    return tag("button", sign, type="button", data_action=action, aria_label=label, title=label)


def _status(timeline: Timeline) -> str:
    start, end = timeline.first_view_s
    inside = sum(_overlaps(message, start, end) for message in timeline.messages)
    return (
        f"{numbers.count(inside)} of {numbers.count(len(timeline.messages))} messages, "
        f"{numbers.seconds(start)} to {numbers.seconds(end)}"
    )


def _overlaps(message: Transit, start: float, end: float) -> bool:
    return message.sent_s <= end and (message.received_s is None or message.received_s >= start)


def _overview(timeline: Timeline) -> Markup:
    """How many messages left in each moment of the recording, with the stretch in view marked."""
    counts, last_s = [0] * OVERVIEW_BINS, timeline.end_s
    for message in timeline.messages:
        counts[min(OVERVIEW_BINS - 1, int(OVERVIEW_BINS * message.sent_s / last_s))] += 1
    tallest, width = max(counts), (RIGHT - LEFT) / OVERVIEW_BINS
    bars = [
        tag(
            "rect",
            x=LEFT + index * width,
            y=30 - 26 * number / tallest,
            width=width * 0.8,
            height=26 * number / tallest,
        )
        for index, number in enumerate(counts)
        if number
    ]
    start, end = timeline.first_view_s
    across = Scale(0.0, last_s, LEFT, RIGHT)
    window = tag("rect", x=across.at(start), y=1, width=max(3.0, across.at(end) - across.at(start)), height=30,
                 class_="window", id="timeline-window")  # fmt: skip
    return tag(
        "svg",
        tag("title", "Messages over the whole recording; click to move the view"),
        tag("text", "whole recording", x=LEFT - 10, y=22, class_="tick end"),
        tag("g", *bars, class_="density"),
        window,
        viewBox=f"0 0 {WIDTH} 34",
        class_="chart overview",
        id="timeline-overview",
        aria_hidden="true",
    )


def _lanes(timeline: Timeline) -> Markup:
    view = Scale(*timeline.first_view_s, LEFT, RIGHT)
    unit = axis_unit("time_s", view.high)
    lanes = [_lane(timeline, name) for name in timeline.parties]
    arrows = [
        _arrow(timeline, message, view) for message in timeline.messages if _overlaps(message, view.low, view.high)
    ]
    return tag(
        "svg",
        tag("title", "Message timeline"),
        tag("desc", "Arrow keys left and right move, plus and minus zoom, zero shows everything, up and down step "
                    "through the messages in view."),
        _markers(),
        *lanes,
        tag("g", *_ticks(timeline, view, unit), id="timeline-ticks", aria_hidden="true"),
        tag("g", *arrows, id="timeline-arrows"),
        viewBox=f"0 0 {WIDTH} {timeline.height:.0f}",
        class_="chart lanes",
        id="timeline",
        role="application",
        aria_label="Message timeline",
        aria_describedby="timeline-status",
        tabindex="0",
    )  # fmt: skip


def _lane(timeline: Timeline, name: str) -> Markup:
    y = timeline.lane(name)
    return tag(
        "g",
        tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="lane"),
        tag("text", tag("title", name), clipped(name, 16), x=LEFT - 10, y=y + 4, class_="row end"),
        data_lane=name,
    )


def _markers() -> Markup:
    heads = [
        tag(
            "marker",
            tag("path", d="M0 0L7 3L0 6z", class_=f"head s{tone}"),
            id=f"head{tone}", viewBox="0 0 7 6", refX=6.5, refY=3, markerWidth=7, markerHeight=6, orient="auto",
            markerUnits="userSpaceOnUse",
        )
        for tone in range(len(SERIES))
    ]  # fmt: skip
    return tag("defs", *heads)


def _ticks(timeline: Timeline, view: Scale, unit: Unit) -> list[Markup]:
    in_units = Scale(view.low / unit.divisor, view.high / unit.divisor, view.start, view.end)
    base = timeline.height - 30
    parts = [tag("text", unit.label, x=RIGHT, y=base + 28, class_="name end")]
    for value in in_units.ticks(8):
        x = in_units.at(value)
        parts.append(tag("line", x1=x, x2=x, y1=TOP - 8, y2=base, class_="rule"))
        parts.append(tag("text", f"{value:g}", x=x, y=base + 14, class_="tick middle"))
    return parts


def _arrow(timeline: Timeline, message: Transit, view: Scale) -> Markup:
    tone = timeline.tone(message.kind)
    x1, y1, y2 = view.at(message.sent_s), timeline.lane(message.sender), timeline.lane(message.receiver)
    if message.received_s is None:
        end = (y1 + y2) / 2
        path, head = f"M{x1:.1f} {y1:.1f}V{end:.1f}m-3.5 -3.5l7 7m0 -7l-7 7", None
    else:
        path, head = f"M{x1:.1f} {y1:.1f}L{view.at(message.received_s):.1f} {y2:.1f}", f"url(#head{tone})"
    return tag("path", d=path, class_=timeline.stroke(message.kind), marker_end=head)


def _kind_legend(timeline: Timeline) -> Markup:
    counts = Counter(message.kind for message in timeline.messages)
    entries = [
        tag(
            "li",
            tag("svg", tag("path", d="M1 6H24", class_=timeline.stroke(kind),
                           marker_end=f"url(#head{timeline.tone(kind)})"),
                viewBox="0 0 30 12", class_="swatch", aria_hidden="true"),
            f"{kind} ({numbers.count(counts[kind])})",
        )
        for kind in timeline.kinds
    ]  # fmt: skip
    return tag("ul", *entries, class_="legend")


def _note(record: RunRecord, timeline: Timeline) -> str:
    parts = []
    if timeline.recorded > len(timeline.messages):
        parts.append(
            f"The page holds {numbers.count(len(timeline.messages))} of {numbers.count(timeline.recorded)} recorded "
            f"messages."
        )
    if len(timeline.parties) < len(record.parties):
        parts.append(
            f"Lanes are drawn for the {len(timeline.parties)} busiest of {numbers.count(len(record.parties))} parties."
        )
    if any(message.received_s is None for message in timeline.messages):
        parts.append("A cross marks a message that was lost.")
    parts.append("Keys in the timeline: ← → move, + − zoom, 0 everything, ↑ ↓ step through messages.")
    return " ".join(parts)
