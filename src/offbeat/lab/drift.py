"""Whether a reproduction still gives what was kept: its rows beside the kept ones, number by number.

A row's setting says all that its figures hang on; of a row that a quick run makes smaller it says how small. A row is
comparable with kept rows of the very same setting, of full and of quick runs, and with no others: what is smaller by
design is no drift. Runs repeat from their seed, so little is allowed: other libraries and processors round otherwise.

A row has drifted where a number of `ours` is further away than that, where words beside the numbers changed (a target
that was reached is not any more), or where a run of the same kind no longer has it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offbeat.errors import BadInput

WITHIN = 0.05
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
GONE = "no such row"

Row = Mapping[str, Any]
Kept = Mapping[str, Sequence[Row]]
"""The kept rows of one reproduction, by the kind of run: full, quick."""


def kept_rows(name: str, folder: Path) -> Kept:
    """What is kept of a reproduction; a kind of run of which nothing is kept is left out."""
    if not folder.is_dir():
        raise BadInput(f"Kept results are expected in {folder}; there is no such folder. Name another one with --kept.")
    paths = {"full": folder / f"{name}.json", "quick": folder / f"{name}-quick.json"}
    return {kind: json.loads(path.read_text())["rows"] for kind, path in paths.items() if path.is_file()}


def compared(rows: Sequence[Row], kept: Kept, kind: str) -> list[dict[str, Any]]:
    """Both values of every row of this kind of run that is kept with the same setting, and whether it has drifted;
    then the kept rows of this kind that are gone."""
    here = {row["setting"]: row for row in rows}
    both = [
        _told(setting, beside, old["ours"], here[setting]["ours"], _far(old, here[setting]))
        for beside, before in kept.items()
        for old in before
        if (setting := old["setting"]) in here
    ]
    gone = (old for old in kept.get(kind, ()) if old["setting"] not in here)
    return both + [_told(old["setting"], kind, old["ours"], GONE, True) for old in gone]


def _told(setting: str, beside: str, kept: Any, now: Any, drifted: bool) -> dict[str, Any]:
    return {"setting": setting, "beside": beside, "kept": kept, "now": now, "drifted": drifted}


def said(rows: Sequence[Row], found: Sequence[Row]) -> list[str]:
    """The comparison in sentences."""
    alone = {row["setting"] for row in rows} - {each["setting"] for each in found}
    drifted = [each for each in found if each["drifted"]]
    counts = {beside: sum(each["beside"] == beside for each in found) for beside in ("full", "quick")}
    beside = " and ".join(f"{count} beside a kept {kind} run" for kind, count in counts.items())
    return [
        f"Compared: {beside}; {len(drifted)} drifted. {len(alone)} rows have no kept row with their setting.",
        *(f"drifted from the {e['beside']} run: {e['setting']}: kept {e['kept']}, now {e['now']}" for e in drifted),
    ]


def _far(before: Row, now: Row) -> bool:
    """Live rows have measured delays in them, and are as they were where the same is said of them."""
    if _words(before["verdict"]) != _words(now["verdict"]):
        return True
    return not now.get("live") and _apart(before["ours"], now["ours"])


def _apart(before: Any, now: Any) -> bool:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        names = before.keys() & now.keys()  # a quick run may measure fewer
        return not names or any(_apart(before[name], now[name]) for name in names)
    if _words(before) != _words(now):
        return True
    return any(abs(a - b) > WITHIN * max(abs(a), abs(b)) for a, b in zip(_numbers(before), _numbers(now), strict=True))


def _words(value: Any) -> str:
    """What is left without its numbers."""
    return NUMBER.sub("#", str(value))


def _numbers(value: Any) -> list[float]:
    return [float(found.replace(",", "").rstrip(".")) for found in NUMBER.findall(str(value))]
