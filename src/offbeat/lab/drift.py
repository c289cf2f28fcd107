"""Whether a reproduction still gives what was kept: its rows beside the kept ones, number by number.

Rows belong together by their `setting`, in which numbers may differ (a quick run has fewer rows, another target); each
row is compared once. A row has drifted where a number of `ours` differs from the kept one by more than a quarter.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offbeat.errors import BadInput

WITHIN = 0.25
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def kept_rows(name: str, folder: Path, quick: bool = False) -> list[Mapping[str, Any]]:
    """The kept result of a reproduction: of a run of the same kind, quick or full, else of the other; nothing where
    there is none."""
    if not folder.is_dir():
        raise BadInput(f"Kept results are expected in {folder}; there is no such folder. Name another one with --kept.")
    names = (f"{name}.json", f"{name}-quick.json")
    for path in (folder / each for each in (reversed(names) if quick else names)):
        if path.is_file() and (rows := json.loads(path.read_text()).get("rows")):
            return list(rows)
    return []


def compared(rows: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each row that has a counterpart: both values, and whether it has drifted."""
    left: dict[str, list[Mapping[str, Any]]] = {}
    for row in kept:
        left.setdefault(_kind(row), []).append(row)
    told = []
    for row in rows:
        same = left.get(_kind(row), [])
        if same:
            before = next((old for old in same if old["setting"] == row["setting"]), same[0])
            same.remove(before)
            told.append(
                {"setting": row["setting"], "kept": before["ours"], "now": row["ours"], "drifted": _far(before, row)}
            )
    return told


def _kind(row: Mapping[str, Any]) -> str:
    return NUMBER.sub("#", str(row["setting"]))


def _far(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    old, new = _shared(before["ours"], now["ours"])
    return len(old) != len(new) or any(abs(a - b) > WITHIN * max(abs(a), abs(b)) for a, b in zip(old, new, strict=True))


def _shared(before: Any, now: Any) -> tuple[list[float], list[float]]:
    """The numbers of both; of several by name those that both have, for a quick run measures fewer."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        names = before.keys() & now.keys()
        before, now = ({name: each[name] for name in names} for each in (before, now))
    return _numbers(before), _numbers(now)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, Mapping):
        return [number for key in sorted(value) for number in _numbers(value[key])]
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int | float):
        return [float(value)]
    return [float(found.replace(",", "").rstrip(".")) for found in NUMBER.findall(str(value)) if found.strip(",")]
