"""The site without building it: links, lone pages, the reference, the glossary, and one look for all."""

import re
import sys
from pathlib import Path

import pytest

import offbeat
from offbeat.report import palette

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
sys.path.insert(0, str(DOCS / "building"))
import check  # noqa: E402 (they lie beside the pages)
import contents  # noqa: E402

import reference  # noqa: E402

PAGES = sorted(path.relative_to(REPOSITORY).as_posix() for path in [*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")])


# -- links and pages -------------------------------------------------------------------------------------------------


def anchors(page):
    """The places of a page that a link may name, after the manner of Markdown's own headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", contents.without_code(contents.page_text(page)), re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        found.add(re.sub(r"[\s-]+", "-", words))
    return found


def dead_links(page):
    for link in contents.links(contents.page_text(page)):
        target, anchor = contents.target_of(page, link), link.partition("#")[2]
        if not (REPOSITORY / target).exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert list(dead_links(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_what_the_site_has(page):
    """Pages, pictures, examples and results; source files are named, not linked."""
    led = {contents.target_of(page, link) for link in contents.links(contents.page_text(page))}
    assert [path for path in sorted(led) if path.startswith(("src/", "tests/")) and path.endswith(".py")] == []


def test_a_link_that_leads_nowhere_is_noticed(monkeypatch):
    text = "[a](x.md) [b](index.md#nowhere) [c](https://example.org) [d](index.md#learn)\n```\n[e](y.md)\n```\n"
    real = contents.page_text
    monkeypatch.setattr(contents, "page_text", lambda page: text if page == "docs/made.md" else real(page))
    assert list(dead_links("docs/made.md")) == ["x.md", "index.md#nowhere"]


def places(entries):
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from [below] if isinstance(below, str) else places(below)


def test_the_lists_of_contents_lead_to_every_page_once():
    listed = list(places(contents.navigation()))
    assert sorted(set(listed)) == sorted(listed)
    wanted = {contents.place_of(page) for page in PAGES if page.startswith("docs/")}
    wanted |= {contents.place_of(f"docs/notebooks/{path.name}") for path in (DOCS / "notebooks").glob("*.ipynb")}
    assert sorted(wanted - set(listed)) == [], "add a line to docs/index.md, or to docs/decisions/index.md"


def test_the_site_has_the_sections_that_readers_look_for():
    assert [next(iter(section)) for section in contents.navigation()] == [
        "Begin", "Learn", "Do", "Look up", "Understand", "The project",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "link", "in_the_site"),
    [
        ("docs/index.md", "how-to/console.md", "how-to/console.md"),
        ("docs/index.md", "../ARCHITECTURE.md", "project/ARCHITECTURE.md"),
        ("docs/index.md", "../examples", "project/examples/index.md"),
        ("docs/index.md", "../benchmarks/results", "project/benchmarks/results/index.md"),
        ("docs/index.md", "notebooks/first-fit.ipynb", "notebooks/first-fit.md"),
        ("docs/how-to/console.md", "../../examples/first_fit.py", "../project/examples/first_fit.md"),
        ("docs/how-to/console.md", "../../benchmarks/results/serve.json", "../project/benchmarks/results/serve.json"),
        ("ARCHITECTURE.md", "docs/index.md#learn", "../index.md#learn"),
        ("docs/index.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("docs/index.md", "#learn", "#learn"),
    ],
)
def test_links_out_of_the_pages_hold_in_the_site(page, link, in_the_site):
    fence = "```\n[a](../x.py)\n```"
    assert contents.with_site_links(f"[a]({link})\n{fence}", page) == f"[a]({in_the_site})\n{fence}"
    if not re.match(r"[a-z]+:", link):
        assert contents.origin_of(contents.place_of(page)) == page


def test_the_built_site_is_looked_over(tmp_path):
    (tmp_path / "index.html").write_text('<a href="a.html#here">a</a><img src="p.png"><a href="https://x.org">x</a>')
    (tmp_path / "a.html").write_text('<p id="here"></p>')
    (tmp_path / "p.png").write_text("")
    assert check.problems(tmp_path) == []
    (tmp_path / "a.html").write_text('<script src="https://x.org/a.js"></script><a href="gone.html">g</a>')
    (tmp_path / "lone.html").write_text("")
    assert check.problems(tmp_path) == [
        "a.html leads to gone.html, which is not there",
        "a.html loads https://x.org/a.js",
        "index.html leads to a.html#here: a.html has no such place",
        "nobody leads to lone.html",
    ]


# -- the reference and the glossary ----------------------------------------------------------------------------------


def test_the_reference_has_every_public_name_once():
    named = reference.MARK.findall(contents.page_text("docs/reference/python.md"))
    assert sorted(named) == sorted(offbeat.__all__)


@pytest.mark.parametrize("name", offbeat.__all__)
def test_every_parameter_is_explained(name):
    assert reference.unexplained(name) == []
    assert reference.described(name).startswith(f"### {name}\n")


def add(left: int, right: int = 2, *, note: str = "") -> int:
    """The sum.

    left, right  numbers,
                 of any size
    note         `a|b`; see docs/reference/glossary.md
    """
    return left + right


def test_a_docstring_becomes_a_table():
    assert reference._divided(reference._docstring(add)) == (
        "The sum.",
        {
            "left": "numbers, of any size",
            "right": "numbers, of any size",
            "note": "`a|b`; see docs/reference/glossary.md",
        },
    )
    assert reference._signature("add", add) == "```python\nadd(left, right=2, *, note='')\n```"
    assert reference._text(add).splitlines()[-2:] == [
        "| `left`, `right` | numbers, of any size |",
        "| `note` | `a\\|b`; see ([more](../reference/glossary.md)) |",
    ]


class Base:
    """A base.

    left   one
    right  two
    """


class Derived(Base):
    """Derived.

    right  another
    """

    def __init__(self, left, right):
        pass


def test_a_class_need_not_say_again_what_its_base_says(monkeypatch):
    monkeypatch.setattr(Base, "__module__", "offbeat.made_up")
    assert reference.explained(Derived) == ("Derived.", {"right": "another", "left": "one"})


TERMS = (
    "Product", "Block", "Chair", "Survey", "Lag", "Certificate", "Share", "Mask", "Leap", "Roster", "Label holder",
    "Derivative", "Direction", "Version", "Pass", "Release", "Epoch", "Dominator", "Ledger", "Policy", "Run folder",
    "Look", "Lane", "Frozen point",
)  # fmt: skip


def test_the_glossary_defines_every_term_once():
    terms = re.findall(r"^- \*\*([^*]+)\*\*: \S", contents.page_text("docs/reference/glossary.md"), re.MULTILINE)
    assert sorted(set(terms)) == sorted(terms)
    assert set(TERMS) <= set(terms)


# -- one look --------------------------------------------------------------------------------------------------------


def test_the_picture_has_the_colours_of_the_reports():
    known = {colour for tone in (*palette._NAMED.values(), *palette.SERIES) for colour in tone}
    drawn = set(re.findall(r"#[0-9a-f]{6}", contents.page_text("docs/pictures/idea.svg")))
    assert drawn and drawn <= known
