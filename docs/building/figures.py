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

from offbeat.lab.drift import compared

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGES = tuple(
    REPOSITORY / "docs" / "explanation" / f"{name}.md"
    for name in ("what-the-papers-say", "asynchronous-against-rounds")
)
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rewritten(text: str) -> str:
    """The page with every table made anew."""
    return MARKED.sub(lambda found: f"{found.group(1)}{figures(found.group(2))}{found.group(3)}", text)


def figures(name: str) -> str:
    """One kept result: how it is measured again, at which commit it was, and its rows."""
    found = [each for each in (name, f"{name}-quick") if (RESULTS / f"{each}.json").is_file()]
    if not found:
        return f"\nNo result of `offbeat reproduce {name}` is kept.\n\n"
    kept = json.loads((RESULTS / f"{found[0]}.json").read_text(encoding="utf-8"))
    told = "\n".join(f"- {note}" for note in kept.get("notes", []))
    parts = (_origin(found[0], kept), _rows(kept["rows"]), _since(found, kept["rows"]), _picture(name), told)
    return "\n" + "\n\n".join(part for part in parts if part) + "\n\n"


def _origin(name: str, kept: dict[str, Any]) -> str:
    quick = " --quick" if name.endswith("-quick") else ""
    command = kept.get("command", f"offbeat reproduce {kept.get('name', name)}{quick}")
    parts = [f"`{command}`", f"commit {kept['commit']}" if "commit" in kept else "commit not noted"]
    parts += [kept["state"]] if "state" in kept else []
    return f"{'; '.join(parts)}; [kept result](../../benchmarks/results/{name}.json)."


def _since(found: list[str], rows: list[dict[str, Any]]) -> str:
    """The rows that a later quick run repeats, and that have drifted: the kept full run is of older code."""
    if len(found) < 2:
        return ""
    quick = json.loads((RESULTS / f"{found[1]}.json").read_text(encoding="utf-8"))
    drifted = {each["setting"] for each in compared(quick["rows"], {"full": rows}, "quick") if each["drifted"]}
    if not drifted:
        return ""
    told = f"**Drifted since.** These rows differ at commit {quick['commit']} (`--quick` repeats them):"
    return f"{told}\n\n{_rows([row for row in quick['rows'] if row['setting'] in drifted])}"


def _rows(rows: list[dict[str, Any]]) -> str:
    if "worst" in rows[0]:  # of a benchmark, which has nothing in print beside it
        return _table(list(rows[0]), [[number(value) for value in row.values()] for row in rows])
    several = isinstance(rows[0]["ours"], dict)
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["ours"])) if several else []
    shown = [[row["setting"], *_ours(row, kinds), number(row["published"]), row["verdict"]] for row in rows]
    return _table(["Setting", *(kinds or ["Ours"]), "In print", "Verdict"], shown)


def _ours(row: dict[str, Any], kinds: list[str]) -> list[str]:
    """One cell, or one for each kind of figure; a kind that a row does not have leaves its cell empty."""
    return [number(row["ours"].get(kind, "")) for kind in kinds] if kinds else [number(row["ours"])]


def _picture(name: str) -> str:
    there = (REPOSITORY / "docs" / "pictures" / f"figure-{name}.png").is_file()
    return f"![{name}, as `offbeat reproduce` draws it](../pictures/figure-{name}.png)" if there else ""


def number(value: Any) -> str:
    """A number with three digits that count; words as they are; nothing where a target was not met."""
    if value is None:
        return "not reached"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def write() -> None:
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(page.relative_to(REPOSITORY))


if __name__ == "__main__":
    write()
