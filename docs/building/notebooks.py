"""Notebooks without a notebook server: cells in order, in one namespace, with what each prints."""

import ast
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """A cell, and what it printed when it was run."""

    kind: str
    source: str
    output: str = ""


def read(path: Path) -> list[Cell]:
    """The cells of a notebook, less what was kept of an earlier run."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def run(path: Path) -> list[Cell]:
    """The cells with their outputs. The value of a cell's last expression is printed, as notebooks do."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [
        cell._replace(output=_run(cell.source, names, path)) if cell.kind == "code" else cell for cell in read(path)
    ]


def _run(source: str, names: dict[str, Any], path: Path) -> str:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, str(path), "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(path), "eval"), names)  # noqa: S307 (our own notebook)
            if value is not None:
                print(value)
    return printed.getvalue().rstrip()


def page(path: Path) -> str:
    """A notebook as a page of the site, run while the site is built."""
    parts = [f"*A notebook: [{path.name}]({path.name}). What its cells print was printed when this site was built.*"]
    for cell in run(path):
        if cell.kind == "markdown":
            parts.append(cell.source)
        else:
            parts.append(f"```python\n{cell.source}\n```")
            if cell.output:
                parts.append(f"```text\n{cell.output}\n```")
    return "\n\n".join([*parts[1:2], parts[0], *parts[2:]]) + "\n"
