"""The tables of figures in the pages, from the kept results in benchmarks/results.

    python docs/building/figures.py      # rewrites what stands between the marks

A page has marks `<!-- figures: NAME -->` and `<!-- end -->`; between them stands the table of NAME.json, or of
NAME-quick.json where the full run is not kept. A test compares: a result that changes without its page, or a page that
was edited by hand, is noticed.
"""

import json
import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGES = tuple(
    REPOSITORY / "docs" / "explanation" / f"{name}.md"
    for name in ("what-the-papers-say", "asynchronous-against-rounds")
)
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
METHODS = ("SGD", "SVRG", "SAGA")


def rewritten(text: str) -> str:
    """The page with every table made anew."""
    return MARKED.sub(lambda found: f"{found.group(1)}{figures(found.group(2))}{found.group(3)}", text)


def figures(name: str) -> str:
    """One kept result: how it is measured again, at which commit it was, and its rows."""
    found = [each for each in (name, f"{name}-quick") if (RESULTS / f"{each}.json").is_file()]
    if not found:
        return f"\nNo result of `offbeat reproduce {name}` is kept.\n\n"
    kept = json.loads((RESULTS / f"{found[0]}.json").read_text(encoding="utf-8"))
    table, notes = _speed_ups(kept) if "cells" in kept else (_rows(kept["rows"]), kept.get("notes", []))
    told = "\n".join(f"- {note}" for note in notes)
    return "\n" + "\n\n".join(part for part in (_origin(found[0], kept), table, told) if part) + "\n\n"


def _origin(name: str, kept: dict[str, Any]) -> str:
    quick = " --quick" if name.endswith("-quick") else ""
    command = kept.get("command", f"offbeat reproduce {kept.get('name', name)}{quick}")
    parts = [f"`{command}`", f"commit {kept['commit']}" if "commit" in kept else "commit not noted"]
    parts += [kept["state"]] if "state" in kept else []
    return f"{'; '.join(parts)}; [kept result](../../benchmarks/results/{name}.json)."


def _rows(rows: list[dict[str, Any]]) -> str:
    if "worst" in rows[0]:  # of a benchmark, which has nothing in print beside it
        return _table(list(rows[0]), [[number(value) for value in row.values()] for row in rows])
    shown = [[row["setting"], number(row["ours"]), number(row["published"]), row["verdict"]] for row in rows]
    return _table(["Setting", "Ours", "In print", "Verdict"], shown)


def _speed_ups(kept: dict[str, Any]) -> tuple[str, list[str]]:
    """AFSGD-VP's Table 2, whose full run was kept cell by cell; the quick run has what is in print, and the notes."""
    quick = json.loads((RESULTS / "afsgd-table2-quick.json").read_text(encoding="utf-8"))
    shown = []
    for row in quick["rows"]:
        method = next(method for method in METHODS if f", {method}," in row["setting"])
        of_it = f"{row['setting'].split(' ')[0]} {method}"
        cells = [kept["cells"].get(f"{of_it} {slower}") for slower in ("1", "1.4", "4")]
        ratios = ["not measured" if cell is None else f"{cell['ratio']:.2f}" for cell in cells]
        if any(cells):
            shown.append([row["setting"].replace(", 2,000 rows", ""), *ratios, number(row["published"])])
    head = ["Setting", "Nobody slow", "One 1.4x slower", "One 4x slower", "In print"]
    return _table(head, shown), quick["notes"]


def number(value: Any) -> str:
    """A number with three digits that count; words as they are; nothing where a target was not met."""
    if value is None:
        return "not reached"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(page.relative_to(REPOSITORY))
