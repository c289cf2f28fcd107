"""offbeat export: a run's curve and results for other programs."""

import csv
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from offbeat.cli.output import print_json, say
from offbeat.cli.run import RunFolder


def export(
    run: RunFolder,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the curve there; - for standard output.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Curve, metrics and options as one JSON document.")] = False,
) -> None:
    """The looks of a finished run, one a row: time, passes, bytes, and what was measured."""
    import msgspec

    from offbeat.errors import BadInput
    from offbeat.metrics.curves import CurveRow
    from offbeat.metrics.record import RunRecord

    record = RunRecord.read(run)
    rows = [msgspec.to_builtins(row) for row in record.curve]
    if json:
        keys = ("algorithm", "seed", "verdict", "objective", "passes", "seconds", "metrics", "options")
        print_json({"run": str(run), **{key: getattr(record, key) for key in keys}, "curve": rows})
        return
    if csv_file is None:
        raise BadInput("expected where to write: --csv FILE, --csv - for standard output, or --json.")
    head = list(CurveRow.__struct_fields__)
    if str(csv_file) == "-":
        _write(head, rows, sys.stdout)
        return
    with csv_file.open("w", encoding="utf-8", newline="") as file:
        _write(head, rows, file)
    say(f"wrote {len(rows)} looks to {csv_file}.")


def _write(head: list[str], rows: list[dict[str, object]], file: TextIO) -> None:
    writer = csv.DictWriter(file, head, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
