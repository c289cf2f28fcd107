"""Look over the built site: dead links and anchors, pages that nobody links to, and anything loaded from elsewhere.

python docs/building/check.py site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}
UNLOADED_LINKS = {"canonical", "next", "prev", "alternate", "edit"}


class Page(HTMLParser):
    """The anchors of a page, where it leads, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        for key in ("src", "href"):
            if (tag, key) in LOADED and given.get(key) and given.get("rel") not in UNLOADED_LINKS:
                self.loads.append(given[key])


def problems(site: Path) -> list[str]:
    """Everything that is wrong, a line each."""
    pages = {path.relative_to(site).as_posix(): Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    found, reached = [], {"index.html", "404.html"}
    for name, page in pages.items():
        if name == "404.html":  # its links are absolute: it may be shown anywhere
            continue
        for link in [*page.links, *page.loads]:
            if urlparse(link).scheme or link.startswith("//"):
                found += [f"{name} loads {link}"] if link in page.loads and not link.startswith("data:") else []
                continue
            target, _, anchor = urljoin(f"/{name}", link).lstrip("/").partition("#")
            target = unquote(target.partition("?")[0])
            target = f"{target}index.html" if not target or target.endswith("/") else target
            reached |= {target} if target != name else set()
            if not (site / target).is_file():
                found.append(f"{name} leads to {link}, which is not there")
            elif anchor and anchor not in pages[target].anchors:
                found.append(f"{name} leads to {link}: {target} has no such place")
    return found + [f"nobody leads to {name}" for name in sorted(set(pages) - reached)]


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    print("\n".join(wrong) or "The site is whole: no dead link, no lone page, nothing loaded from elsewhere.")
    sys.exit(bool(wrong))
