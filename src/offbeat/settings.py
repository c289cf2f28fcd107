"""Settings in TOML files: read, checked against their types, changed from the command line, and written back.

    class Runtime(Settings, frozen=True):
        lanes: Annotated[int, Meta(ge=1, le=1024)] = 1

    settings_from({"runtime": {"lanes": 0}}, Job, "job.toml")
    BadJob: job.toml: runtime.lanes must be a whole number between 1 and 1024; got 0.

The types say everything that can be said of one key by itself. They alone are looked at for the message, too.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

from offbeat.errors import BadInput, BadJob
from offbeat.names import did_you_mean

FINITE, LARGEST = sys.float_info.max, 2**63 - 1

Positive = Annotated[float, Meta(gt=0, le=FINITE)]
NotNegative = Annotated[float, Meta(ge=0, le=FINITE)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Unlimited = Annotated[float, Meta(gt=0)]  # may be infinite
Count = Annotated[int, Meta(ge=1, le=LARGEST)]
Natural = Annotated[int, Meta(ge=0, le=LARGEST)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table of a settings file."""


T = TypeVar("T", bound=Settings)


# -- reading ---------------------------------------------------------------------------------------------------------


def read_toml(path: Path, what: str, advice: str, error: type[BadInput] = BadInput) -> dict[str, Any]:
    """A file's plain values, not yet checked."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"), path, error)  # some editors begin a file with a mark
    except FileNotFoundError:
        raise error(f"There is no {what} {path}. {advice}") from None
    except IsADirectoryError:
        raise error(f"{path} is a folder, and a {what} was expected. {advice}") from None
    except UnicodeDecodeError:
        raise error(f"The {what} {path} is not written in UTF-8. Save it anew in that encoding.") from None
    except OSError as problem:
        raise error(f"The {what} {path} cannot be read: {problem}.") from problem


def parse(text: str, where: object, error: type[BadInput] = BadInput) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise error(f"{where} is not valid TOML: its brackets are nested too deeply.") from None
    except ValueError as problem:  # also of a number with thousands of digits
        raise error(f"{where} is not valid TOML: {problem}.{_about_backslashes(text)}") from problem


def _about_backslashes(text: str) -> str:
    """What to do about a path as Windows writes it, where there may be one."""
    found = re.search(r'"[^"\n]*\\', text)
    return " In double quotes a backslash begins a code: write paths with /, or in single quotes." if found else ""


def settings_from(tree: Mapping[str, Any], kind: type[T], where: object, error: type[BadInput] = BadInput) -> T:
    """Plain values as settings; what does not fit is named with its key, what was expected and what came."""
    try:
        return msgspec.convert(dict(tree), kind)
    except msgspec.ValidationError as problem:
        raise error(f"{where}: {_explained(str(problem), tree, kind)}") from problem


def _explained(problem: str, tree: Mapping[str, Any], kind: type[Any]) -> str:
    """msgspec says where; what belongs there is told from the types."""
    what, _, path = problem.partition(" - at `$")
    steps = re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]`]+", path)
    value, type_, names = _followed(steps, tree, inspect.type_info(kind))
    key = ".".join(names).replace(".[", "[")
    field = what.split("`")[1] if what.startswith("Object ") else ""
    if field:
        section = f"under [{key}]" if key else "at the top level"
        if "missing" in what:
            return f"the key '{field}' is missing {section}."
        ours = _USUAL.get(field, field)
        # [[parties]] is not the key `data.parties`
        hint = "" if _is_tables(value[field]) else _elsewhere(ours, kind, type_)
        hint = hint or did_you_mean(field, _keys(type_))
        return f"unknown key '{field}' {section}. {hint}"
    near = did_you_mean(value, _choices(type_)) if isinstance(value, str) and _choices(type_) else ""
    hint = f" {near}" if near.startswith("Did") else ""
    return f"{key} must be {_described(type_)}; got {_shown(value)}.{hint}"


_USUAL = {
    "method": "algorithm",
    "epochs": "passes",
    "batch_size": "batch",
    "learning_rate": "step",
    "lr": "step",
    "alpha": "penalty",
    "lambda": "penalty",
    "l2": "penalty",
    "tolerance": "target",
    "tol": "target",
    "fit_intercept": "intercept",
    "test_size": "test_fraction",
    "random_state": "seed",
    "path": "file",
    "labels": "label",
}
"""Words of other programs, and ours for them."""


def _elsewhere(field: str, kind: type[Any], here: Any) -> str:
    """Where a key belongs that this table does not know; where it does, its right name."""
    if field in _keys(here):
        return f"Did you mean '{field}'?"
    tables = inspect.type_info(kind).fields  # type: ignore[attr-defined]
    if any(one.name == field for one in tables):
        return f"The key '{field}' belongs at the top level: before the first [table]."
    for one in tables:
        inside = one.type.item_type if isinstance(one.type, inspect.ListType) else one.type
        if field in _keys(inside):
            shown = f"[[{one.name}]]" if inside is not one.type else f"[{one.name}]"
            return f"The key '{field}' belongs under {shown}."
    return ""


def _followed(steps: Iterable[str], value: Any, type_: Any) -> tuple[Any, Any, list[str]]:
    """The value and the type at a place, and the names that lead there: a table in a list goes by its own name."""
    names: list[str] = []
    for step in steps:
        if step == "[...]":  # msgspec does not tell which key of a dictionary
            break
        type_ = _inside(type_, step)
        if step.startswith("["):
            value = value[int(step[1:-1])]
            names.append(str(value.get("name", step)) if isinstance(value, Mapping) else step)
        else:
            value = value[step]
            names.append(step)
    return value, type_, names


def _inside(type_: Any, step: str) -> Any:
    for part in _parts(type_):
        if step.startswith("[") and isinstance(part, inspect.ListType | inspect.VarTupleType):
            return part.item_type
        if step.startswith("[") and isinstance(part, inspect.TupleType):
            return part.item_types[int(step[1:-1])]
        if isinstance(part, inspect.StructType):
            return next(field.type for field in part.fields if field.name == step)
    return type_


def _parts(type_: Any) -> Sequence[Any]:
    type_ = type_.type if isinstance(type_, inspect.Metadata) else type_  # a type with a description
    return type_.types if isinstance(type_, inspect.UnionType) else (type_,)


def _keys(type_: Any) -> list[str]:
    return [f.name for part in _parts(type_) if isinstance(part, inspect.StructType) for f in part.fields]


def _choices(type_: Any) -> list[str]:
    return [str(v) for part in _parts(type_) if isinstance(part, inspect.LiteralType) for v in part.values]


def _described(type_: Any) -> str:
    words = [_one(part) for part in _parts(type_) if not isinstance(part, inspect.NoneType)]
    words = list(dict.fromkeys(words))
    return (", or " if len(words) > 2 else " or ").join(words)


_WORDS: dict[type, str] = {
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
    inspect.StructType: "a table",
    inspect.DateTimeType: "a time",
}


def _one(part: Any) -> str:
    if isinstance(part, inspect.FloatType):
        return ("a finite number" if part.le == FINITE else "a number") + _range(part)
    if isinstance(part, inspect.IntType):
        return "a whole number" + _range(part)
    if isinstance(part, inspect.LiteralType):
        return ("one of " if len(part.values) > 1 else "") + ", ".join(f'"{value}"' for value in part.values)
    if isinstance(part, inspect.DictType):
        return f"a table with {_described(part.value_type)} for each name"
    if isinstance(part, inspect.ListType | inspect.VarTupleType):
        return f"a list, each {_described(part.item_type)}"
    if isinstance(part, inspect.TupleType):
        return f"a list of {len(part.item_types)}"
    if isinstance(part, inspect.StrType) and part.pattern:
        return "a name of letters a to z, digits, - and _"  # every pattern of ours is one of names
    return _WORDS.get(type(part), "a value")


def _range(part: Any) -> str:
    least = part.gt if part.gt is not None else part.ge
    most = part.le if part.le is not None else part.lt
    bounded = most is not None and most not in (FINITE, LARGEST)
    if least is None or least == -FINITE:
        return ""
    if bounded:
        return f" above {least:g} and at most {most:g}" if part.gt is not None else f" between {least:g} and {most:g}"
    return f" above {least:g}" if part.gt is not None else f" of {least:g} or more"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# -- settings from the command line ----------------------------------------------------------------------------------


def apply_setting(tree: dict[str, Any], setting: str) -> None:
    """Write one `key=value` into the tree: dots go into tables, `party.bank.file` into the party of that name."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise BadJob(f"--set expects key=value, as in --set runtime.slow.shop=4; got {setting!r}.")
    *path, last = key.strip().split(".")
    place: Any = tree
    for step in path:
        place = _step_into(place, step, key)
    if isinstance(place, list):
        raise BadJob(f"--set {key}: {last!r} is a whole party; name one of its keys, as in {key.strip()}.file=x.csv.")
    place[last] = _value(text)


def _step_into(place: Any, step: str, key: str) -> Any:
    if isinstance(place, list):
        for entry in place:
            if isinstance(entry, dict) and entry.get("name") == step:
                return entry
        names = [str(entry.get("name")) for entry in place if isinstance(entry, dict)]
        raise BadJob(f"--set {key}: there is no {key.strip().partition('.')[0]} {step!r}. {did_you_mean(step, names)}")
    inner = place.setdefault(step, {})
    if not isinstance(inner, dict | list):
        raise BadJob(f"--set {key}: {step!r} is a value, not a table.")
    return inner


def _value(text: str) -> Any:
    """The text as TOML would read it; what is not TOML is a string: --set algorithm=afsaga-vp needs no quotes."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


# -- writing ---------------------------------------------------------------------------------------------------------


def toml_text(tree: Mapping[str, Any]) -> str:
    """Plain values as TOML; a table at the top level becomes a section, a list of tables a section for each; what is
    None is left out."""
    sections = {key: value for key, value in tree.items() if isinstance(value, Mapping)}
    several = {key: value for key, value in tree.items() if _is_tables(value)}
    lines = _lines({key: value for key, value in tree.items() if key not in sections and key not in several})
    for name, table in sections.items():
        lines += ["", f"[{name}]", *_lines(table)]
    for name, tables in several.items():
        for table in tables:
            lines += ["", f"[[{name}]]", *_lines(table)]
    return "\n".join(lines) + "\n"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value)


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None]


def toml_value(value: Any) -> str:
    """One value, as it stands behind `=`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # inf and nan are spelled alike in TOML
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return "{" + ", ".join(f"{quoted(key)} = {toml_value(inner)}" for key, inner in value.items()) + "}"


def quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()  # JSON's escapes are TOML's
