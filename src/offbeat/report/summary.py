"""One run as one page of text.

The order is the order of a careful reader's questions: did it work; what did it tell to whom, what is promised, and
what should worry me; how good is the result, provably; how good is it on unseen rows; who did how much.
"""

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from offbeat.metrics.record import RunRecord
from offbeat.report import numbers, wording

NAME_WIDTH = 8  # names up to this long stay whole on a narrow terminal
PARTIES_LISTED = 24
_WORDY = ("reveals", "remark", "adjacency")

_STYLES = {"good": "bold green", "caution": "bold yellow", "bad": "bold red"}


def summary(record: RunRecord, run: str | Path = "") -> Group:
    """The page as something rich can print, on a terminal of any width."""
    return Group(
        _headline(record),
        *_disclosed(record),
        *_privacy(record),
        *_promises(record),
        *_warnings(record),
        _section("Certificate", Text(wording.certificate(record))),
        _section("Result", _result(record)),
        _section("Parties", _parties(record)),
        *_losses(record),
        *_origin(record, run),
    )


def _section(name: str, body: RenderableType) -> Group:
    return Group(Text(f"\n{name}", style="bold"), Padding(body, (0, 0, 0, 2)))


def _headline(record: RunRecord) -> Text:
    words, mood = wording.verdict(record)
    return Text.assemble((words, _STYLES[mood]), "  ", (wording.title(record), "bold"), "\n", record.reason)


def _disclosed(record: RunRecord) -> list[RenderableType]:
    if not record.reveals:
        return [_section("Disclosed", Text(wording.NOTHING_DISCLOSED))]
    table = _table("message", "sent", "bytes", "reveals")
    for row in wording.disclosed(record):
        table.add_row(*map(Text, row))
    return [_section("Disclosed, and to whom", table)]


def _privacy(record: RunRecord) -> list[RenderableType]:
    if not record.privacy:
        return []
    table = _table(*(name.lower() for name in wording.PRIVACY_HEAD))
    for row in wording.privacy_rows(record)[:PARTIES_LISTED]:
        table.add_row(*map(Text, row))
    hidden = len(record.privacy) - PARTIES_LISTED
    more = [Text(f"and {hidden} more, in record.json")] if hidden > 0 else []
    return [_section("Privacy ledger", Group(table, *more))]


def _promises(record: RunRecord) -> list[RenderableType]:
    sentences = wording.promised(record)
    return [_section(wording.PROMISED, Text("\n".join(sentences)))] if sentences else []


def _warnings(record: RunRecord) -> list[RenderableType]:
    if not record.warnings:
        return []
    lines = Table.grid(padding=(0, 1))
    for warning in record.warnings:
        lines.add_row(Text("!", style="bold yellow"), Text(warning))
    return [_section("Warnings", lines)]


def _result(record: RunRecord) -> Table:
    grid = Table.grid(padding=(0, 3))
    for name, value in wording.key_figures(record):
        grid.add_row(Text(name), Text(value, style="bold"))
    return grid


def _parties(record: RunRecord) -> RenderableType:
    table = _table("party", "updates", "lag", "lag max", "sent", "compute", "network", "wait")
    table.columns[0].min_width = min(NAME_WIDTH, max(map(len, record.parties), default=0))
    for name, party in list(record.parties.items())[:PARTIES_LISTED]:
        table.add_row(Text(name), *wording.party_cells(party, numbers.short_seconds))
    hidden = len(record.parties) - PARTIES_LISTED
    return Group(table, Text(f"and {hidden} more, in record.json")) if hidden > 0 else table


def _losses(record: RunRecord) -> list[RenderableType]:
    sentences = wording.losses(record)
    return [Padding(Text("; ".join(sentences[:PARTIES_LISTED]) + "."), (0, 0, 0, 2))] if sentences else []


def _origin(record: RunRecord, run: str | Path) -> list[RenderableType]:
    data = record.data
    size = f"{numbers.count(data.rows)} rows to train, {numbers.count(data.test_rows)} to test."
    lines = [f"{data.source} {size}" if data.source else size, wording.classes(record), *data.notes]
    lines = [line for line in (*lines, f"Digest {record.digest}.") if line]
    if str(run):
        lines.append(f"Kept in {run}.")
    return [_section("Data and run", Text("\n".join(lines)))]


def light_table() -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim", padding=(0, 1))


def _table(first: str, *columns: str) -> Table:
    """A light table: the first column and a column of sentences to the left, numbers to the right."""
    table = light_table()
    table.add_column(first, overflow="fold")
    for name in columns:
        wordy = name in _WORDY
        table.add_column(name, justify="left" if wordy else "right", no_wrap=not wordy)
    return table
