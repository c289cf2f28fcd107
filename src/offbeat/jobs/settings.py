"""Settings read from a TOML file: typed, complete, and with no key that nobody reads."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from offbeat.data.names import did_you_mean
from offbeat.errors import BadInput

T = TypeVar("T")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every section of a settings file."""


def settings_from(text: str, kind: type[T], where: str | Path, error: type[BadInput] = BadInput) -> T:
    """Read TOML into settings; an error names file, key, what was expected and what came."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{where} is not valid TOML: {problem}.") from problem
    return convert(content, kind, where, error)


def convert(content: Any, kind: type[T], where: str | Path, error: type[BadInput] = BadInput) -> T:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as problem:
        raise error(f"{where}: {_in_words(str(problem), kind)}") from problem


_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _in_words(problem: str, kind: type[Any]) -> str:
    """msgspec's message in our manner: the path `$.policy.rows_least` becomes 'policy.rows_least', types are words."""
    what, _, path = problem.partition(" - at `")
    key = path.rstrip("`").removeprefix("$.").removeprefix("$")
    if what.startswith("Object contains unknown field `"):
        return _unknown_key(what.split("`")[1], key, kind)
    pieces = what.split("`")  # every second one is a type
    pieces[1::2] = [_WORDS.get(piece.removesuffix(" | null"), piece) for piece in pieces[1::2]]
    what = "".join(pieces)
    return f"{what[0].lower()}{what[1:]}, at '{key}'." if key else f"{what}."


def _unknown_key(name: str, section: str, kind: type[Any]) -> str:
    for part in filter(None, section.split(".")):
        kind = get_type_hints(kind).get(part, kind)
    where = f"[{section}]" if section else "no section"
    return f"unknown key '{name}' under {where}. {did_you_mean(name, getattr(kind, '__struct_fields__', ()))}"


def toml_text(value: Any) -> str:
    """One value as TOML: for writing settings back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    assert isinstance(value, (list, tuple)), value
    return "[" + ", ".join(toml_text(item) for item in value) + "]"


def settings_text(settings: Settings) -> str:
    """Settings as a TOML document, sections last; what is None is left out."""
    fields = msgspec.structs.asdict(settings)
    lines = [f"{k} = {toml_text(v)}" for k, v in fields.items() if not isinstance(v, Settings) and v is not None]
    for name, section in fields.items():
        if isinstance(section, Settings):
            body = msgspec.structs.asdict(section)
            lines += ["", f"[{name}]", *(f"{k} = {toml_text(v)}" for k, v in body.items() if v is not None)]
    return "\n".join(lines) + "\n"
