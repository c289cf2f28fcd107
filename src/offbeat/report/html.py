"""Markup that cannot be broken by what it shows.

`tag` builds an element. A child or attribute that is a plain string is escaped; only what `tag` itself returned is
taken as markup. So a party named `<script>` is a party with an odd name and nothing more.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from offbeat.metrics.plain import encode_plain
from offbeat.report import palette

_EMPTY_TAGS = frozenset({"meta", "link", "br", "input"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | Markup | Iterable[str]


def escape(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def join(children: Iterable[Child]) -> Markup:
    """Several children after one another."""
    return Markup("".join(escape(child) if isinstance(child, str) else join(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """One element. Attribute names lose a trailing underscore and turn the others into hyphens; None and False are
    left out."""
    given = ((key, value) for key, value in attributes.items() if value is not None and value is not False)
    words = [name, *(_attribute(key, value) for key, value in given)]
    opening = f"<{' '.join(words)}>"
    if name in _EMPTY_TAGS:
        return Markup(opening)
    return Markup(f"{opening}{join(children)}</{name}>")


def _attribute(name: str, value: str | float | bool | None) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return name
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f'{name}="{html.escape(text)}"'


def data_block(identifier: str, value: object) -> Markup:
    """Values for the page's script, as JSON that cannot end its own element."""
    text = encode_plain(value).decode()
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Markup(f'<script type="application/json" id="{html.escape(identifier)}">{safe}</script>')


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Child]],
    caption: str,
    numeric: Sequence[int] = (),
    stacked: bool = False,
) -> Markup:
    """A table with a caption for screen readers; `numeric` columns are set to the right. `stacked`: where it is narrow,
    the cells of a row stand below each other, each behind the name of its column."""
    columns = [
        tag("th", name, scope="col", class_="n" if index in numeric else None) for index, name in enumerate(head)
    ]
    labels = [name if stacked else None for name in head]
    body = [
        tag("tr", *(_cell(index, cell, index in numeric, labels[index]) for index, cell in enumerate(row)))
        for row in rows
    ]
    return tag(
        "div",
        tag("table", tag("caption", caption), tag("thead", tag("tr", *columns)), tag("tbody", *body)),
        class_="scroll stacked" if stacked else "scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def _cell(index: int, cell: Child, numeric: bool, label: str | None) -> Markup:
    if index == 0:
        return tag("th", cell, scope="row")
    one_word = isinstance(cell, str) and len(cell) <= 24 and " " not in cell
    return tag("td", cell, class_="n" if numeric else "w" if one_word else None, data_label=label)


def section(identifier: str, title: str, *children: Child) -> Markup:
    return tag(
        "section",
        tag("h2", title, id=f"{identifier}-title"),
        *children,
        id=identifier,
        aria_labelledby=f"{identifier}-title",
    )


def figures(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Names with their values, in large figures."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_="figures")


def quiet(*remark: Child) -> Markup:
    """A remark; nothing where there is none to make."""
    return tag("p", *remark, class_="quiet") if any(remark) else Markup("")


def figure(caption: Child, *children: Child, class_: str | None = None) -> Markup:
    """A picture, or what stands for one, under its caption."""
    return tag("figure", tag("figcaption", caption), *children, class_=class_)


def listed(lines: Sequence[Child], **attributes: str) -> Markup:
    """Nothing where there are no lines."""
    return tag("ul", *(tag("li", line) for line in lines), **attributes) if lines else Markup("")


def folded(title: str, *children: Child, open_: bool = False) -> Markup:
    return tag("details", tag("summary", title), *children, open=open_)


@dataclass(frozen=True, slots=True)
class PageFrame:
    """What pages of one kind share. `more`: what they may do beside showing themselves; `forms`: where forms go."""

    style: str
    script: str
    more: str
    forms: str

    @property
    def policy(self) -> str:
        """What a page may do: its own style and script are allowed by their hashes, nothing else may be loaded or
        run."""
        return (
            f"default-src 'none'; style-src '{_hash(self.style)}'; script-src '{_hash(self.script)}'; img-src data:; "
            f"base-uri 'none'; form-action {self.forms}{self.more}"
        )

    def page(self, title: str, *body: Child) -> Markup:
        """A whole page, with the policy inside: so it also holds for a page that is read from a file."""
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=self.policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", title),
            tag("link", rel="icon", href="data:,"),
            Markup(f"<style>{self.style}</style>"),
        )
        page = tag("html", head, tag("body", *body, Markup(f"<script>{self.script}</script>")), lang="en")
        return Markup("<!doctype html>\n" + page + "\n")


def page_frame(*names: str, style: str = "", script: str = "", more: str = "", forms: str = "'none'") -> PageFrame:
    """The frame with these styles and scripts of this package, one after another, and then a page's own."""
    content = {name: files("offbeat.report").joinpath(name).read_text(encoding="utf-8") for name in names}
    styles, scripts = ([content[name] for name in names if name.endswith(kind)] for kind in (".css", ".js"))
    whole = "".join([palette.css_variables(), *styles, style])
    return PageFrame(whole, "".join([*scripts, script]), more, forms)


def document(title: str, *body: Child) -> Markup:
    """A whole page that needs nothing but itself."""
    return page_frame("page.css", "theme.js", "charts.js", "page.js").page(title, *body)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
