"""What mkdocs calls while it builds the site (`make site`): pages from elsewhere, the reference, one look for all."""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))
import contents
import notebooks

import reference
from offbeat.report.palette import CAUTION, GOOD, INK, PAGE, PANEL, QUIET, RULE, SERIES

STYLE = "stylesheets/offbeat.css"
DRAWING = re.compile(r'<p><img [^>]*src="([^"]+\.svg)"[^>]*></p>')


def on_config(config: Any) -> Any:
    config.nav = contents.navigation()
    config.extra_css.append(STYLE)
    return config


def on_files(files: Any, config: Any) -> Any:
    def add(place: str, text: str) -> None:
        files.append(File.generated(config, place, content=text))

    add(STYLE, style())
    for name in contents.PROJECT_PAGES:
        add(contents.place_of(name), contents.page_text(name))
    examples = sorted((contents.REPOSITORY / contents.EXAMPLES).glob("*.py"))
    for path in examples:
        add(contents.place_of(f"{contents.EXAMPLES}/{path.name}"), _example(path))
    add(contents.place_of(contents.EXAMPLES), _list_of_examples(examples))
    results = sorted((contents.REPOSITORY / contents.RESULTS).glob("*.json"))
    add(contents.place_of(contents.RESULTS), _list_of_results(results))
    for path in results:
        add(contents.place_of(f"{contents.RESULTS}/{path.name}"), path.read_text(encoding="utf-8"))
    for path in sorted((contents.DOCS / "notebooks").glob("*.ipynb")):
        add(contents.place_of(f"docs/notebooks/{path.name}"), notebooks.page(path))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    origin = contents.origin_of(page.file.src_uri)
    if origin.startswith((f"{contents.EXAMPLES}/", f"{contents.RESULTS}/", "docs/notebooks/")):
        return markdown  # made here, with links that hold
    if origin == contents.INDEX:
        page.meta["hide"] = ["navigation", "toc"]
    return contents.with_site_links(reference.expanded(markdown), origin)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """A drawing becomes part of the page, so that it follows the page's colours."""
    here = contents.origin_of(page.file.src_uri)
    return DRAWING.sub(lambda found: f'<div class="picture">{_drawing(here, found.group(1))}</div>', html)


def _drawing(page: str, link: str) -> str:
    return contents.page_text(contents.target_of(page, link))


def _example(path: Path) -> str:
    return f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"


def _list_of_examples(paths: list[Path]) -> str:
    lines = ["# Examples", "", "Short scripts, one idea each.", ""]
    for path in paths:
        first = path.read_text(encoding="utf-8").split('"""')[1].strip().splitlines()[0]
        lines.append(f"- [{path.name}]({posixpath.basename(contents.place_of(path.name))}): {first}")
    return "\n".join(lines) + "\n"


def _list_of_results(paths: list[Path]) -> str:
    lines = ["# Kept results", "", "What commands printed, as JSON, for programs.", ""]
    return "\n".join([*lines, *(f"- [{path.name}]({path.name})" for path in paths)]) + "\n"


# -- one look --------------------------------------------------------------------------------------------------------


def style() -> str:
    """The colours of reports and of the console in the theme's words, and what is the site's own."""
    own = (Path(__file__).parent / "site.css").read_text(encoding="utf-8")
    return "".join(_scheme(name, side) for name, side in (("default", "light"), ("slate", "dark"))) + own


def _scheme(name: str, side: str) -> str:
    def tone(colour: Any) -> str:
        return str(getattr(colour, side))

    words = {
        "color-scheme": side,
        "--md-default-bg-color": tone(PAGE),
        "--md-default-fg-color": tone(INK),
        "--md-default-fg-color--light": tone(QUIET),
        "--md-default-fg-color--lighter": tone(RULE),
        "--md-default-fg-color--lightest": tone(RULE),
        "--md-typeset-color": tone(INK),
        "--md-typeset-a-color": tone(SERIES[0]),
        "--md-typeset-table-color": tone(RULE),
        "--md-primary-fg-color": tone(PAGE),
        "--md-primary-bg-color": tone(INK),
        "--md-primary-bg-color--light": tone(QUIET),
        "--md-accent-fg-color": tone(SERIES[1]),
        "--md-code-bg-color": tone(PANEL),
        "--md-code-fg-color": tone(INK),
        "--md-code-hl-comment-color": tone(QUIET),
        "--md-code-hl-string-color": tone(GOOD),
        "--md-code-hl-keyword-color": tone(SERIES[0]),
        "--md-code-hl-number-color": tone(SERIES[3]),
        "--md-code-hl-function-color": tone(SERIES[5]),
        "--md-code-hl-constant-color": tone(SERIES[3]),
        "--md-code-hl-special-color": tone(CAUTION),
        "--md-footer-bg-color": tone(PANEL),
        "--md-footer-bg-color--dark": tone(PANEL),
        "--md-footer-fg-color": tone(INK),
        "--md-footer-fg-color--light": tone(QUIET),
        "--md-footer-fg-color--lighter": tone(QUIET),
        "--offbeat-panel": tone(PANEL),
        "--offbeat-rule": tone(RULE),
        "--offbeat-mark": tone(SERIES[0]),
    }
    chosen = f'[data-md-color-scheme="{name}"]'
    lines = "".join(f"  {key}: {value};\n" for key, value in words.items())
    return f"{chosen}, {chosen}[data-md-color-primary], {chosen}[data-md-color-accent] {{\n{lines}}}\n"
