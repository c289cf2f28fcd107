"""offbeat export: a run's curve and results for other programs."""

import csv
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from offbeat.cli.output import print_json, say
from offbeat.cli.run import RunFolder

if TYPE_CHECKING:
    from offbeat.metrics.record import RunRecord


class Tracker(StrEnum):
    """A program that keeps runs and draws their curves."""

    mlflow = "mlflow"
    tensorboard = "tensorboard"


def export(
    run: RunFolder,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the curve there; - for standard output.")
    ] = None,
    to: Annotated[Tracker | None, typer.Option("--to", help="The tracker that gets the curve and the results.")] = None,
    out: Annotated[Path, typer.Option("--out", help="TensorBoard's folder; the run gets one below it.")] = Path(
        "tensorboard"
    ),
    json: Annotated[bool, typer.Option("--json", help="Curve, metrics and options as one JSON document.")] = False,
) -> None:
    """A finished run for other programs: its looks as a table or JSON, or all of it for a tracker of runs."""
    from offbeat.errors import BadInput
    from offbeat.metrics.record import RunRecord

    record = RunRecord.read(run)
    if [csv_file is not None, to is not None, json].count(True) != 1:
        raise BadInput(
            "expected one way to export: --csv FILE (- for standard output), --json, --to tensorboard or --to mlflow."
        )
    if to is not None:
        _track(run, record, to, out)
    elif json:
        keys = ("algorithm", "seed", "verdict", "objective", "passes", "seconds", "metrics", "options")
        print_json({"run": str(run), **{key: getattr(record, key) for key in keys}, "curve": _rows(record)})
    elif csv_file is not None:
        _table(record, csv_file)


def _rows(record: "RunRecord") -> list[dict[str, Any]]:
    import msgspec

    return [msgspec.to_builtins(row) for row in record.curve]


def _track(run: Path, record: "RunRecord", to: Tracker, out: Path) -> None:
    from offbeat.cli.trackers import to_mlflow, to_tensorboard

    if to is Tracker.tensorboard:
        print(to_tensorboard(run, record, out))
        say(f"look at it with: tensorboard --logdir {out}")
    else:
        print(to_mlflow(run, record))
        say("this is the id of the run in MLflow.")


def _table(record: "RunRecord", csv_file: Path) -> None:
    if str(csv_file) == "-":
        _write(record, sys.stdout)
        return
    with csv_file.open("w", encoding="utf-8", newline="") as file:
        _write(record, file)
    say(f"wrote {len(record.curve)} looks to {csv_file}.")


def _write(record: "RunRecord", file: TextIO) -> None:
    from offbeat.metrics.curves import CurveRow

    writer = csv.DictWriter(file, list(CurveRow.__struct_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(record))
