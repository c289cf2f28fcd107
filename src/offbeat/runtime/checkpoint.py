"""A party's memory on disk: arrays in a safetensors file, everything else in a JSON file beside it.

    checkpoints/<party>.safetensors   the arrays, readable by anyone with the safetensors library
    checkpoints/<party>.json          the rest of the state, with references into the arrays; written last, by renaming

A checkpoint is there when its JSON file is there: both carry one number, and the older pair is removed only after the
newer one is complete. So a crash while writing leaves the checkpoint before. A digest over both tells what was damaged
later: a model with one bit changed would score, wrongly.
"""

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadData, BadInput

FORMAT = 1


def write_checkpoint(folder: Path, name: str, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint of `name` by this state, safely against a crash at any instant."""
    from safetensors.numpy import save

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    number = int(_content(path)["number"]) + 1 if path.is_file() else 1
    arrays: dict[str, NDArray[Any]] = {}
    tree = _flatten(state, arrays)
    arrays_name = f"{name}.{number % 2}.safetensors"
    saved = save(arrays)
    replace_durably(folder / arrays_name, saved)
    content = {"format": FORMAT, "number": number, "arrays": arrays_name, "digest": _digest(tree, saved), "state": tree}
    replace_durably(path, json.dumps(content).encode())


def read_checkpoint(folder: Path, name: str) -> dict[str, Any] | None:
    """The last complete checkpoint, or None if there is none yet."""
    from safetensors.numpy import load

    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    content = _content(path)
    arrays_path = folder / content["arrays"]
    if not arrays_path.is_file():
        raise _damaged(arrays_path, "it is gone")
    saved = arrays_path.read_bytes()
    if content.get("digest", "") not in ("", _digest(content["state"], saved)):
        raise _damaged(path, f"it, or {arrays_path.name} beside it, is not as it was written")
    state = _unflatten(content["state"], load(saved))
    assert isinstance(state, dict)
    return state


def _content(path: Path) -> dict[str, Any]:
    """What the JSON file says: of this format, and with all its keys."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise BadInput(f"{path} has checkpoint format {content['format']}; this version reads {FORMAT}.")
        return {"number": int(content["number"]), "arrays": str(content["arrays"]), **content}
    except (ValueError, KeyError, TypeError) as problem:
        raise _damaged(path, f"{type(problem).__name__}: {problem}") from problem


def _digest(tree: Any, saved: bytes) -> str:
    """Of the plain part and the arrays; a checkpoint of an earlier version has none."""
    return hashlib.sha256(json.dumps(tree).encode() + saved).hexdigest()


def _damaged(path: Path, why: str) -> BadData:
    return BadData(f"{path} is damaged ({why}). Restore it from a backup.")


def replace_durably(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, force it to the disk, and put it in the place of the old one."""
    unfinished = path.with_name(path.name + ".new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _flatten(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Plain JSON for any state: dictionaries keep their key types, arrays become references."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Mapping):
        return {"pairs": [[_flatten(k, arrays), _flatten(v, arrays)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_flatten(item, arrays) for item in value]}
    if isinstance(value, (list, set, frozenset)):
        return {"list": [_flatten(item, arrays) for item in value]}
    if isinstance(value, (np.ndarray, np.generic)):
        key = f"a{len(arrays)}"
        arrays[key] = np.array(value, order="C")
        return {"array": key}
    raise TypeError(f"a {type(value).__name__} cannot be part of a checkpoint")


def _unflatten(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "pairs":
        return {_unflatten(k, arrays): _unflatten(v, arrays) for k, v in content}
    if kind == "tuple":
        return tuple(_unflatten(item, arrays) for item in content)
    if kind == "list":
        return [_unflatten(item, arrays) for item in content]
    assert kind == "array", kind
    return np.array(arrays[content])  # a copy of its own: the party will write into it
