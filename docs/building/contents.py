"""What the site holds, read from the pages themselves.

docs/index.md is the list of contents: a heading of the second level is a section, and a bullet that begins with a link
is a page of it. docs/decisions/index.md lists the decisions in the same way. The navigation follows from both, so that
a page is added in one place.

A file outside of docs/ that a page links to has a place in the site too:

    ARCHITECTURE.md              project/ARCHITECTURE.md
    examples                     project/examples/index.md, a list; benchmarks/results likewise
    examples/first_fit.py        project/examples/first_fit.md, its text
    benchmarks/results/x.json    project/benchmarks/results/x.json, as it is
    docs/notebooks/x.ipynb       notebooks/x.md, its cells and what they print
"""

import posixpath
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
INDEX = "docs/index.md"
PROJECT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
EXAMPLES = "examples"
RESULTS = "benchmarks/results"
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
BULLET = re.compile(r"^- (?:\d{4} )?\[([^\]]+)\]\(([^)\s]+)\)", re.MULTILINE)

Section = dict[str, "list[str | Section] | str"]


def page_text(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """The page without its fences, whose brackets are no links."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    """The links of a page to other files, with their anchors, and to anchors of its own."""
    return [link for _, link, _ in LINK.findall(without_code(text)) if not re.match(r"[a-z]+:", link)]


def target_of(page: str, link: str) -> str:
    """The file, as a path in the repository, that a link of a page leads to."""
    return (
        posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0])) if link[0] != "#" else page
    )


def place_of(path: str) -> str:
    """Where the site has a file of the repository."""
    if path in ("docs", "."):
        return "index.md"
    place = path.removeprefix("docs/") if path.startswith("docs/") else f"project/{path}"
    if path in (EXAMPLES, RESULTS):
        return f"{place}/index.md"
    return re.sub(r"\.(ipynb|py)$", ".md", place)


def origin_of(place: str) -> str:
    """The file of the repository that a page of the site is made of."""
    if place.startswith("project/"):
        return place.removeprefix("project/")
    return f"docs/{place}"


def with_site_links(text: str, page: str) -> str:
    """The page with links that hold in the site. Fences are left as they are."""
    here = posixpath.dirname(place_of(page))

    def led(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        if re.match(r"[a-z]+:|#", link):
            return match.group()
        _, hash_sign, anchor = link.partition("#")
        place = posixpath.relpath(place_of(target_of(page, link)), here or ".")
        return f"{before}{place}{hash_sign}{anchor}{after}"

    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(led, part) for part in parts)


def navigation() -> list[Section]:
    """The sections of docs/index.md with their pages, as mkdocs wants them."""
    found: list[Section] = [{"Begin": "index.md"}]
    for section in re.split(r"^## ", page_text(INDEX), flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0].strip()
        pages = [_entry(title, target_of(INDEX, link)) for title, link in BULLET.findall(section)]
        if pages:
            found.append({heading: pages})
    return found


def _entry(title: str, path: str) -> Section:
    """A page; or, where the page is the index of a folder, the folder with all that the index lists."""
    if not path.endswith("/index.md"):
        return {title: place_of(path)}
    below = [{name: place_of(target_of(path, link))} for name, link in BULLET.findall(page_text(path))]
    return {title: [place_of(path), *below]}
