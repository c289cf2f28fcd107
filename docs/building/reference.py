"""The Python reference, from docstrings: a line `::: NAME` of a page becomes what `offbeat.NAME` says of itself.

A docstring explains parameters in the manner of this house, one a line, with more lines indented below:

    penalty         the strength lambda
    passes, target  end after so many passes, or at the target

or, where there are one or two, in its prose: `name`."""

import inspect
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import offbeat

MARK = re.compile(r"^::: (\w+)$", re.MULTILINE)
ROW = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*)(?:  +)(\S.*)$", re.IGNORECASE)
PAGE = re.compile(r"\(?docs/([\w/-]+\.md)\)?")
OWN_PAGE = {"Job": "Every field is a key of a [job file](job-file.md), which explains them."}
"""Values whose fields have a page of their own."""

Table = dict[str, str]


def expanded(text: str) -> str:
    """The page with every mark replaced."""
    return MARK.sub(lambda match: described(match.group(1)), text)


def described(name: str) -> str:
    """One public name: how it is called, what it is, its parameters, and its methods."""
    thing = getattr(offbeat, name)
    parts = [f"### {name}", _signature(name, thing), _text(thing), OWN_PAGE.get(name, "")]
    parts += [_method(name, method, value) for method, value in methods(thing).items()]
    return "\n\n".join(part for part in parts if part)


def methods(thing: Any) -> dict[str, Any]:
    """The methods and properties of a class that are for users, in the order of the source."""
    if not inspect.isclass(thing) or issubclass(thing, Exception):
        return {}
    found: dict[str, Any] = {}
    for kind in thing.__mro__:
        if kind.__module__.startswith("offbeat"):
            found |= {
                name: value for name, value in vars(kind).items() if name not in found and _is_method(name, value)
            }
    return found


def _is_method(name: str, value: Any) -> bool:
    kinds = (property, classmethod, staticmethod)
    return not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, kinds))


def _method(owner: str, name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"#### {owner}.{name}\n\n{_text(value)}"
    called = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return f"#### {owner}.{name}\n\n{_signature(name, called)}\n\n{_text(called)}"


# -- signatures ------------------------------------------------------------------------------------------------------


def parameters(thing: Any) -> dict[str, inspect.Parameter]:
    """What a caller gives; of a value, its fields."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return {}
    found = inspect.signature(thing).parameters
    return {name: given for name, given in found.items() if name not in ("self", "cls")}


def _signature(name: str, thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return ""
    given = list(parameters(thing).values())
    words = [_parameter(each) for each in given]
    first_named = next((i for i, each in enumerate(given) if each.kind is each.KEYWORD_ONLY), None)
    if first_named is not None:
        words.insert(first_named, "*")
    line = f"{name}({', '.join(words)})"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + ")"
    return f"```python\n{line}\n```"


def _parameter(given: inspect.Parameter) -> str:
    if given.default is given.empty:
        return given.name
    shown = repr(given.default)
    return given.name if "<" in shown or len(shown) > 60 else f"{given.name}={shown}"


# -- docstrings ------------------------------------------------------------------------------------------------------


def _docstring(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    made = is_dataclass(thing) and text.startswith(f"{thing.__name__}(")  # what dataclass writes by itself
    return "" if made else text


def _divided(text: str) -> tuple[str, Table]:
    """A docstring's prose, and its rows. A row goes on while lines are indented."""
    prose: list[str] = []
    rows: Table = {}
    names: list[str] = []
    for line in text.splitlines():
        row = ROW.match(line)
        if row:
            names = row.group(1).split(", ")
            rows |= dict.fromkeys(names, row.group(2))
        elif names and line.startswith("    "):
            rows |= {name: f"{rows[name]} {line.strip()}" for name in names}
        else:
            names = []
            prose.append(line)
    return "\n".join(prose).strip(), rows


def explained(thing: Any) -> tuple[str, Table]:
    """What a docstring says, and the parameters it explains; of a class, those that its bases explain, too."""
    prose, rows = _divided(_docstring(thing))
    for kind in thing.__mro__[1:] if inspect.isclass(thing) else ():
        if kind.__module__.startswith("offbeat"):
            inherited = _divided(_docstring(kind))[1]
            rows |= {name: said for name, said in inherited.items() if name not in rows and name in parameters(thing)}
    return prose, rows


def _text(thing: Any) -> str:
    prose, rows = explained(thing)
    table = ["| Parameter | Meaning |", "|---|---|", *(f"| `{name}` | {_cell(said)} |" for name, said in _joined(rows))]
    return "\n\n".join(part for part in (_linked(prose), "\n".join(table) if rows else "") if part)


def _joined(rows: Table) -> list[tuple[str, str]]:
    """Rows, with names that share one sentence together."""
    found: dict[str, list[str]] = {}
    for name, said in rows.items():
        found.setdefault(said, []).append(name)
    return [("`, `".join(names), said) for said, names in found.items()]


def _cell(said: str) -> str:
    return _linked(said).replace("|", "\\|")


def _linked(text: str) -> str:
    """Pages that a docstring names become links."""
    return PAGE.sub(lambda match: f"([more](../{match.group(1)}))", text)


def unexplained(name: str) -> list[str]:
    """What a public name leaves unsaid: parameters of its own and of its methods, and methods without a docstring."""
    thing = getattr(offbeat, name)
    found = [] if name in OWN_PAGE else _silent(name, thing)
    for method, value in methods(thing).items():
        called: Callable[..., Any] = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        where = f"{name}.{method}"
        found += [where] if not _docstring(called) else []
        found += [] if isinstance(value, property) else _silent(where, called)
    return found


def _silent(where: str, thing: Any) -> list[str]:
    """Parameters that have neither a row of their own nor a place in the prose."""
    prose, rows = explained(thing)
    return [f"{where}: {name}" for name in parameters(thing) if name not in rows and f"`{name}`" not in prose]
