"""What is left of an ended run, as pages: its model card, and the audit of this party's side."""

import re
from collections.abc import Iterable
from itertools import groupby

from offbeat.report.html import Markup, document, tag
from offbeat.report.page import header

Line = tuple[str, str]
"""A line of text with the element that it becomes: h2, li or p."""


def card_page(text: str) -> str:
    """A model card, which is Markdown of headings, lists and paragraphs alone."""
    title, *lines = (re.sub(r"\\(.)", r"\1", line) for line in text.splitlines() if line.strip())
    marks = {"##": "h2", "-": "li"}
    kinds = [(marks.get(line.partition(" ")[0], "p"), line) for line in lines]
    return _page(
        title.removeprefix("# "), [(kind, line if kind == "p" else line.partition(" ")[2]) for kind, line in kinds]
    )


def audit_page(text: str) -> str:
    """An audit: headings, with indented lines below them."""
    title, *lines = (line for line in text.splitlines() if line.strip())
    return _page(title, [("li", line.strip()) if line.startswith(" ") else ("h2", line) for line in lines])


def _page(title: str, lines: Iterable[Line]) -> str:
    body: list[Markup] = []
    for kind, group in groupby(lines, key=lambda line: line[0]):
        made = [tag(kind, text) for _, text in group]
        body += [tag("ul", *made)] if kind == "li" else made
    return document(title, header(title), tag("main", *body))
