"""One run as a self-contained page for browsers: nothing is fetched, everything is escaped, it prints.

It opens with the verdict and what was disclosed, like the page of text, and adds what text cannot show: curves, lags,
where the time went, and the messages themselves.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from offbeat.metrics.curves import Quantity, measured
from offbeat.metrics.plain import json_text
from offbeat.metrics.record import LONG_LISTS, PartyRecord, RunRecord
from offbeat.names import counted
from offbeat.report import numbers, wording
from offbeat.report.card import CARD_FILE, card_text
from offbeat.report.charts import (
    QUANTITIES,
    against_everything,
    curve_chart,
    falls_far,
    lag_rows,
    legend,
    part_legend,
    time_bars,
)
from offbeat.report.held_out import coefficients, tested, worth
from offbeat.report.html import Markup, document, figure, figures, folded, listed, quiet, section, table, tag
from offbeat.report.timeline import timeline_view

REPORT_FILE = "report.html"
PARTIES_DRAWN = 16


def write_report(record: RunRecord, folder: str | Path) -> Path:
    """Write report.html into a run folder, and model_card.md beside it."""
    path, run = Path(folder) / REPORT_FILE, Path(folder).name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report_page(record, run=run), encoding="utf-8")
    (path.parent / CARD_FILE).write_text(card_text(record, run), encoding="utf-8")
    return path


def report_page(record: RunRecord, run: str = "") -> str:
    """The page of one run."""
    return document(
        f"{record.algorithm}: {wording.verdict(record)[0]}",
        header(wording.title(record), _verdict_line(record), _warnings(record)),
        tag(
            "main",
            figures(wording.key_figures(record)),
            tag("p", wording.certificate(record), class_="lead"),
            *tested(record),
            *coefficients(record),
            *worth(record),
            section("disclosed", "What was disclosed, and to whom", _reveals(record), _privacy(record)),
            _promises(record),
            section("progress", "Progress", progress_of_one(record)),
            section("parties", "Parties", _party_charts(record), _party_table(record)),
            section("messages", "Messages", timeline_view(record)),
            section("traffic", "Bytes by kind", _traffic(record)),
            section("record", "Record", _origin(record, run), _json_blocks(record)),
        ),
    )


def header(title: str, *children: Markup) -> Markup:
    """The top of every page: the project's name, a title and a switch between light and dark."""
    return tag(
        "header",
        tag(
            "p",
            tag("span", "Offbeat", class_="mark"),
            tag("button", "light / dark", type="button", id="theme", class_="plain"),
            class_="top",
        ),
        tag("h1", title),
        *children,
    )


def _verdict_line(record: RunRecord) -> Markup:
    words, mood = wording.verdict(record)
    return tag("p", tag("strong", words, class_=f"badge {mood}"), " ", record.reason, class_="verdict")


def _warnings(record: RunRecord) -> Markup:
    if not record.warnings:
        return quiet("No warnings.")
    return listed(record.warnings, class_="warnings", aria_label="Warnings")


def _reveals(record: RunRecord) -> Markup:
    if not record.reveals:
        return tag("p", wording.NOTHING_DISCLOSED)
    head, title = ("Message", "Sent", "Bytes", "Reveals"), "What each kind of message tells to whom"
    return table(head, wording.disclosed(record), title, numeric=(1, 2), stacked=True)


def _privacy(record: RunRecord) -> Markup:
    if not record.privacy:
        return Markup("")
    rows = wording.privacy_rows(record)
    title = "Privacy ledger: what each party released and spent"
    body = table(wording.PRIVACY_HEAD, rows, title, numeric=range(1, 5), stacked=True)
    return tag("div", body if len(rows) <= 40 else folded(f"Privacy ledger of {len(rows)} parties", body), class_="gap")


def _promises(record: RunRecord) -> Markup:
    sentences = wording.promised(record)
    return section("promised", wording.PROMISED, listed(sentences, class_="promises")) if sentences else Markup("")


# -- curves -------------------------------------------------------------------------------------------------------


def progress_of_one(record: RunRecord) -> Markup:
    """The best view first: distance to the optimum with its bound, else the objective; the rest folded away."""
    best = [
        _view(record, ("suboptimality", "gap"), log=True),
        _view(record, ("objective",), log=falls_far([record.curve])),
    ]
    if not measured(record.curve, "suboptimality"):
        best.reverse()
    others = _view(record, ("test_metric",), log=False), _view(record, ("gradient_norm",), log=True)
    drawn = [view for view in (*best, *others) if view]
    if not drawn:
        return quiet("This run recorded no curve.")
    return tag("div", drawn[0], folded("More curves", *drawn[1:]) if drawn[1:] else "")


def _view(record: RunRecord, quantities: Sequence[Quantity], log: bool) -> Markup:
    called = {**QUANTITIES, "test_metric": wording.test_metric(record)}
    shown = {quantity: called[quantity] for quantity in quantities if measured(record.curve, quantity)}
    if not shown:
        return Markup("")
    return tag(
        "div",
        legend([(name, tone) for tone, name in enumerate(shown.values())]) if len(shown) > 1 else "",
        against_everything(
            lambda axis: curve_chart(record.curve, axis, shown, log, unit=wording.unit(record)), record.curve
        ),
    )


# -- parties ------------------------------------------------------------------------------------------------------


def drawn_parties(record: RunRecord) -> dict[str, PartyRecord]:
    """All parties, or those that worked longest when there are too many to draw."""
    if len(record.parties) <= PARTIES_DRAWN:
        return record.parties
    longest = sorted(record.parties, key=lambda name: -record.parties[name].compute_s)[:PARTIES_DRAWN]
    return {name: party for name, party in record.parties.items() if name in longest}


def split_rows(record: RunRecord) -> list[tuple[str, tuple[float, float, float], str]]:
    return [
        (name, (party.compute_s, party.communicate_s, party.wait_s), counted(party.updates, "update"))
        for name, party in drawn_parties(record).items()
    ]


def _party_charts(record: RunRecord) -> Markup:
    lags = [
        (name, party.lag_histogram, f"{party.lag_mean:.1f}, max {party.lag_max}")
        for name, party in drawn_parties(record).items()
    ]
    hidden = len(record.parties) - len(lags)
    note = f"Drawn: the {len(lags)} parties that computed longest; {hidden} more are in the table." if hidden else ""
    return tag(
        "div",
        tag(
            "div",
            figure("Where the time went", part_legend(), time_bars(split_rows(record))),
            figure("Lag when an update was applied, and its mean", lag_rows(lags)),
            class_="two",
        ),
        quiet(note),
    )


def _party_table(record: RunRecord) -> Markup:
    head = ("Party", "Updates", "Lag mean", "Lag max", "Sent", "Compute", "Communicate", "Wait", "Dropped", "Retried",
            "Abandoned")  # fmt: skip
    rows = [
        (name, *wording.party_cells(party), *map(numbers.count, (party.dropped, party.retried, party.abandoned)))
        for name, party in record.parties.items()
    ]
    body = table(head, rows, "What each party did", numeric=range(1, len(head)), stacked=len(rows) <= 40)
    return body if len(rows) <= 40 else folded(f"All {len(rows)} parties", body)


# -- traffic and origin -------------------------------------------------------------------------------------------


def _traffic(record: RunRecord) -> Markup:
    sent_bytes, messages = Counter[str](), Counter[str]()
    for party in record.parties.values():
        sent_bytes.update(party.bytes_by_kind)
        messages.update(party.messages_by_kind)
    if not sent_bytes:
        return quiet("This run counted no bytes by kind.")
    rows = [
        (
            kind,
            numbers.count(messages[kind]),
            numbers.size(number),
            numbers.percent(number, sent_bytes.total()),
            numbers.size(number / record.passes) if record.passes else numbers.UNKNOWN,
        )
        for kind, number in sent_bytes.most_common()
    ]
    head = ("Kind", "Messages", "Bytes", "Share", "Bytes per pass")
    whose = "this party" if record.runtime == "grpc" else "all parties"
    return table(head, rows, f"Payload sent by {whose}, by kind of message", numeric=range(1, 5), stacked=True)


def _origin(record: RunRecord, run: str) -> Markup:
    data = record.data
    facts = [
        ("Run", run),
        ("Data", data.source),
        ("Rows", f"{numbers.count(data.rows)} to train, {numbers.count(data.test_rows)} to test"),
        ("Columns", ", ".join(f"{name} {numbers.count(number)}" for name, number in data.columns.items())),
        ("Classes", wording.classes(record)),
        ("Notes", " ".join(data.notes)),
        ("Seed and digest", f"{wording.seed(record)}, {record.digest}"),
        ("Made with", ", ".join([f"offbeat {record.offbeat}", *(f"{k} {v}" for k, v in record.versions.items())])),
        ("Machine", ", ".join(f"{name} {value}" for name, value in record.machine.items())),
    ]
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", text)) for name, text in facts if text), class_="facts")


def _json_blocks(record: RunRecord) -> Markup:
    body = record.to_json_object()
    del body["run"]
    shown = {"Options": body["options"], f"record.json (without {' and '.join(LONG_LISTS)})": body}
    blocks = {title: tag("pre", tag("code", json_text(value)), tabindex="0") for title, value in shown.items()}
    return tag("div", *(folded(title, block) for title, block in blocks.items()))
