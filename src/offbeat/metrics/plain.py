"""Plain values as JSON, for files and for people's programs. A number that is not finite is written as null."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np


def encode_plain(value: object) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(value, enc_hook=_plain)


def json_text(value: object) -> str:
    """The same on several lines, for a file or a screen."""
    return msgspec.json.format(encode_plain(value), indent=2).decode()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file as a whole: whoever reads it meanwhile finds the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _plain(value: object) -> object:
    """What msgspec does not know by itself: numpy's numbers, paths, and mappings that are no dictionaries."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"plain values only can be written as JSON, not a {type(value).__name__}")
