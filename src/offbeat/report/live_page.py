"""The live view's page: a frame that is sent once, and parts of it that are made anew whenever the run has moved.

The parts are made here and not in the browser, by the same charts, tables and words that the report is made of; the
page's script only puts them where they belong.
"""

from collections.abc import Mapping, Sequence
from functools import cache

from offbeat.metrics.curves import Axis, CurveRow, Quantity, measured, points
from offbeat.metrics.live import PartyNow
from offbeat.names import counted
from offbeat.report import numbers, wording
from offbeat.report.charts import QUANTITIES, curve_chart, falls_far, legend
from offbeat.report.html import Markup, PageFrame, figures, page_frame, quiet, section, table, tag
from offbeat.report.layout import thin
from offbeat.report.live import Standing, View
from offbeat.report.page import header
from offbeat.report.wording import CHIEFS

PARTIES_SHOWN = 100
LOOKS_SHOWN = 12
AXES: tuple[Axis, ...] = ("time_s", "passes")

STANDINGS: dict[Standing, tuple[str, str, str]] = {
    "waiting": ("Waiting", "caution", "The folder is empty. A run that begins in it will be shown."),
    "preparing": ("Preparing", "going", "The run has begun and nobody has looked at it yet."),
    "running": ("Running", "going", ""),
    "ending": ("Ending", "going", "The last results are being written."),
    "failed": ("Failed", "bad", ""),
    "broken off": ("Broken off", "bad", ""),
    "unreadable": ("Unreadable", "bad", ""),
}
APART = (
    "Each party is a process of its own, into which nobody looks: until the end this page shows how much it has logged"
)
CERTIFIED = {"processes": ", and the certificates as they are computed"}


@cache
def frame() -> PageFrame:
    """The page may run its own script, and ask the server that it came from."""
    return page_frame("page.css", "live.css", "theme.js", "charts.js", "live.js", more="; connect-src 'self'")


def live_page(view: View) -> str:
    """The frame, with its parts as they are now: it says something without its script, too."""
    parts = {name: tag("div", body, id=name) for name, body in parts_of(view).items()}
    return frame().page(
        title_of(view),
        header(
            title_of(view),
            tag("div", parts["standing"], role="status"),
            tag("p", "", id="connection", class_="bad", role="status", hidden=True),
        ),
        tag(
            "main",
            parts["figures"],
            parts["certificate"],
            section("progress", "Progress", parts["charts"], parts["looks"]),
            section("who", "Parties", parts["parties"]),
        ),
        tag("noscript", tag("p", "Without scripts this page stays as it is: load it again to see what came since.")),
    )


def state_of(view: View) -> dict[str, object]:
    """What is sent whenever something has changed: all of it, so that a browser that missed some misses nothing."""
    parts = {name: str(body) for name, body in parts_of(view).items()}
    return {"title": title_of(view), "over": view.over, "news_s": view.news_s, "parts": parts}


def title_of(view: View) -> str:
    if view.record is not None:
        return wording.title(view.record)
    if view.now is None:
        return view.name
    if view.now.runtime == "grpc":  # an organisation's own side
        return f"{view.now.algorithm}, as '{next(iter(view.now.parties), view.name)}' runs it"
    seed = f", seed {view.now.seed}" if view.now.seed is not None else ""
    count = f" with {wording.who(view.now.parties)}" if view.now.parties else ""
    return f"{view.now.algorithm}{count}, {view.now.runtime}{seed}"


def parts_of(view: View) -> dict[str, Markup]:
    return {
        "standing": _standing(view),
        "figures": tag("div", _progress(view), _figures(view)),
        "certificate": _certificate(view),
        "charts": _charts(view),
        "looks": _looks(view),
        "parties": _parties(view),
    }


def _standing(view: View) -> Markup:
    if view.record is not None:
        words, mood = wording.verdict(view.record)
        badge = tag("strong", words, class_=f"badge {mood}")
        link = tag("p", tag("a", "The whole report of this run", href="report"), class_="lead")
        return tag("div", tag("p", badge, " ", view.record.reason, class_="verdict"), link)
    words, feel, usual = STANDINGS[view.standing]
    return tag("p", tag("strong", words, class_=f"badge {feel}"), " ", view.reason or usual, class_="verdict")


# -- figures ---------------------------------------------------------------------------------------------------------


def _progress(view: View) -> Markup:
    if view.now is None:
        return Markup("")
    done, goal, unit = _done(view), view.now.goal, view.now.unit
    text = f"{done:.1f} of at most {numbers.short(goal)} {unit}"
    bar = tag("progress", max=goal, value=min(done, goal), aria_label=f"{unit.capitalize()} done")
    return tag("p", bar, " ", text, " ", tag("span", "", id="news", class_="quiet"), class_="far")


def _done(view: View) -> float:
    assert view.now is not None
    return max([view.now.done, *(row.passes for row in view.curve[-1:])])


def _figures(view: View) -> Markup:
    told = wording.key_figures(view.record) if view.record is not None else _so_far(view)
    return figures(told) if told else tag("p", "")


def _so_far(view: View) -> list[tuple[str, str]]:
    now, last = view.now, {name: _last(view.curve, name) for name in QUANTITIES}
    if now is None or not view.curve:
        return []
    time_s = max(now.time_s, view.curve[-1].time_s)
    found = [("Objective", numbers.short(last["objective"], 6))]
    if last["suboptimality"] is not None:
        found.append(("Sub-optimality", numbers.short(last["suboptimality"], 2)))
    if view.certificate.duality_gap is not None:
        found.append(("At most above the best", numbers.short(view.certificate.duality_gap, 2)))
    elif view.certificate.gradient_norm is not None:
        found.append(("Gradient norm", numbers.short(view.certificate.gradient_norm, 2)))
    if last["test_metric"] is not None:
        found.append(("Score on the test rows", numbers.short(last["test_metric"])))
    found.append((("Virtual" if now.clock == "virtual" else "Wall-clock") + " time", numbers.seconds(time_s)))
    messages = [party.messages for party in now.parties.values() if party.messages is not None]
    if messages:
        found.append(("Messages", numbers.count(sum(messages))))
        found.append(("Sent by all", numbers.size(sum(party.bytes or 0 for party in now.parties.values()))))
    return found


def _last(curve: Sequence[CurveRow], quantity: Quantity) -> float | None:
    found = points(curve, "time_s", quantity)
    return found[-1][1] if found else None


def _certificate(view: View) -> Markup:
    if view.record is not None:
        return tag("p", wording.certificate(view.record), class_="lead")
    if view.now is None:
        return tag("p", "")
    gap, norm = view.certificate.duality_gap, view.certificate.gradient_norm
    when = f" It was there by {numbers.seconds(view.certified_s)}." if view.certified_s is not None else ""
    if gap is not None:
        bound = numbers.short(gap, 2)
        text = f"The last certificate: the objective was within {bound} of the best possible, an upper bound.{when}"
    elif norm is not None:
        text = f"The last certificate: the gradient's norm was {numbers.short(norm, 2)}.{when}"
    else:
        text = "No certificate so far." if view.unit == "passes" else "This method has no certificate."
    return tag("p", text, class_="lead")


# -- curves ----------------------------------------------------------------------------------------------------------


def _charts(view: View) -> Markup:
    """The distance to the optimum where it is known, else the objective, against time and passes; the rest once."""
    known = measured(view.curve, "suboptimality")
    best: tuple[Quantity, ...] = ("suboptimality", "gap") if known else ("objective",)
    drawn = [_chart(view, best, axis, log=known or falls_far([view.curve])) for axis in AXES]
    drawn += [] if known else [_chart(view, ("gap",), "time_s", log=True)]
    drawn += [_chart(view, ("test_metric",), "time_s", log=False)]
    shown = [tag("figure", chart) for chart in drawn if chart]
    if not shown:
        return quiet("No look at the model has been written yet.")
    names = [(QUANTITIES[name], tone) for tone, name in enumerate(best) if measured(view.curve, name)]
    return tag("div", legend(names) if len(names) > 1 else "", tag("div", *shown, class_="three"))


def _called(view: View) -> Mapping[Quantity, str]:
    """The names of what is measured. Which score it is on the test rows, the record says; before, it is a score."""
    metric = wording.test_metric(view.record) if view.record is not None else "score on the test rows"
    return {**QUANTITIES, "test_metric": metric}


def _chart(view: View, quantities: Sequence[Quantity], axis: Axis, log: bool) -> Markup:
    called = _called(view)
    shown = {name: called[name] for name in quantities if measured(view.curve, name)}
    if not shown:
        return Markup("")
    aimed = view.now.target if view.now is not None and "objective" not in quantities else None
    return curve_chart(view.curve, axis, shown, log, [aimed] if log and aimed else [], view.unit)


def _looks(view: View) -> Markup:
    """The curve in numbers, the newest look first; what was never measured has no column."""
    if not view.curve:
        return tag("p", "")
    told = [name for name in QUANTITIES if measured(view.curve, name)]
    called = _called(view)
    head = ("Time", view.unit.capitalize(), *(called[name][0].upper() + called[name][1:] for name in told))
    rows = [
        (
            numbers.seconds(row.time_s),
            f"{row.passes:.2f}" if view.unit == "passes" else numbers.count(int(row.passes)),
            *(numbers.short(getattr(row, name), 6 if name == "objective" else 3) for name in told),
        )
        for row in reversed(thin(view.curve, LOOKS_SHOWN))
    ]
    caption = f"{len(rows)} of {numbers.count(view.looks)} looks over the whole run, the newest first"
    damaged = f"Left out: {counted(view.damaged, 'line')} that could not be read." if view.damaged else ""
    return tag(
        "div",
        table(head, rows, caption, numeric=range(1, len(head))),
        quiet(damaged),
        class_="gap",
    )


# -- parties ---------------------------------------------------------------------------------------------------------


def _parties(view: View) -> Markup:
    if view.logged:
        logs = [(name, numbers.size(size)) for name, size in view.logged.items()]
        body = table(("Party", "Event log"), logs, "How much each party has logged", numeric=(1,))
        more = CERTIFIED.get(view.now.runtime, "") if view.now is not None else ""
        return tag("div", tag("p", f"{APART}{more}."), body)
    parties = _who(view)
    if not parties:
        return quiet("Nobody has been looked at yet.")
    shown = dict(list(parties.items())[:PARTIES_SHOWN])
    most = max((party.updates for name, party in parties.items() if name not in CHIEFS), default=0)
    head = ("Party", "Updates", "Against the most", "Lag mean", "Lag max", "Messages", "Sent")
    rows = [(name, *_cells(name, party, most)) for name, party in shown.items()]
    hidden = len(parties) - len(shown)
    note = f"{hidden} more parties are not shown." if hidden else ""
    return tag(
        "div",
        tag("p", _behind(parties)),
        table(head, rows, "What each party has done", numeric=(1, 3, 4, 5, 6), stacked=True),
        quiet(note),
    )


def _who(view: View) -> Mapping[str, PartyNow]:
    if view.record is None:
        return view.now.parties if view.now is not None else {}
    return {
        name: PartyNow(
            party.updates, party.lag_mean, party.lag_max, sum(party.messages_by_kind.values()), party.bytes_sent
        )
        for name, party in view.record.parties.items()
    }


def _cells(name: str, party: PartyNow, most: int) -> tuple[str | Markup, ...]:
    share = party.updates / most if most else 0.0
    meter: str | Markup = numbers.UNKNOWN
    if name not in CHIEFS and most:
        percent = numbers.percent(party.updates, most)
        meter = tag("span", tag("meter", percent, min=0, max=1, value=min(1.0, share)), " ", percent, class_="w")
    return (
        numbers.count(party.updates),
        meter,
        numbers.UNKNOWN if party.lag_mean is None else f"{party.lag_mean:.2f}",
        numbers.UNKNOWN if party.lag_max is None else numbers.count(party.lag_max),
        numbers.UNKNOWN if party.messages is None else numbers.count(party.messages),
        numbers.size(party.bytes),
    )


def _behind(parties: Mapping[str, PartyNow]) -> str:
    """Who did least. Counts alone: parties with different parts in a method need not come out alike."""
    counts = {name: party.updates for name, party in parties.items() if name not in CHIEFS}
    if len(counts) < 2 or not any(counts.values()):
        return "Nobody has updated anything yet." if not any(counts.values()) else ""
    most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    if counts[least] == counts[most]:
        return "All have made as many updates as each other."
    share = numbers.percent(counts[least], counts[most])
    return f"Fewest updates: {least}, {share} of those of {most}, who made most."
