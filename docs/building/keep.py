"""Keep what a reproduction gave: its rows in benchmarks/results, its picture in docs/pictures, the page made anew.

    python docs/building/keep.py out/vafl-fig3          # a full run
    python docs/building/keep.py out/vafl-fig3 --quick

The commit is that of this checkout: run the reproduction and this in the same one, with nothing changed.
"""

import json
import subprocess
import sys
from pathlib import Path
from shutil import copyfile

import figures


def kept(folder: Path, quick: bool, commit: str, to: Path) -> Path:
    """Where the rows of this folder were kept. The picture is that of a full run."""
    told = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    name, drawn = told["name"], [Path(path) for path in told.pop("figures", [])]
    command = f"offbeat reproduce {name}{' --quick' if quick else ''}"
    path = to / "benchmarks" / "results" / f"{name}{'-quick' if quick else ''}.json"
    whole = {"command": command, "commit": commit, "seed": 0, **told}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    picture = next((found for each in drawn if each.suffix == ".png" for found in folder.rglob(each.name)), None)
    if picture is not None and not quick:
        copyfile(picture, to / "docs" / "pictures" / f"figure-{name}.png")
    return path


if __name__ == "__main__":
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    print(kept(Path(sys.argv[1]), "--quick" in sys.argv, head.stdout.strip(), figures.REPOSITORY))
    figures.write()
