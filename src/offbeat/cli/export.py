"""offbeat export: a run's curve, results, coefficients or scorecard for other programs."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.output import print_json, say, write_csv
from offbeat.cli.run import Connect, RunFolder
from offbeat.errors import BadInput, OffbeatError

if TYPE_CHECKING:
    from offbeat.metrics.record import RunRecord
    from offbeat.run.model import TrainedModel
    from offbeat.run.scorecard import Scorecard


class Tracker(StrEnum):
    """A program that keeps runs and draws their curves."""

    mlflow = "mlflow"
    tensorboard = "tensorboard"


CoefficientsOption = Annotated[
    Path | None, typer.Option(help="Write every coefficient with its party and name there; - for standard output.")
]
ScorecardOption = Annotated[
    Path | None, typer.Option(help="Write points by bin and party there; - for standard output.")
]
GoodOption = Annotated[
    str | None, typer.Option(help="Scorecard: the class that points count for; the first by default.")
]
OnnxOption = Annotated[
    Path | None, typer.Option(help="Write each party's part as an ONNX graph into this folder, PARTY.onnx.")
]


def export(
    run: RunFolder,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the curve there; - for standard output.")
    ] = None,
    to: Annotated[Tracker | None, typer.Option("--to", help="The tracker that gets the curve and the results.")] = None,
    out: Annotated[Path, typer.Option("--out", help="TensorBoard's folder; the run gets one below it.")] = Path(
        "tensorboard"
    ),
    coefficients: CoefficientsOption = None,
    scorecard: ScorecardOption = None,
    onnx: OnnxOption = None,
    points: Annotated[float, typer.Option(help="Scorecard: points at --odds.")] = 600.0,
    odds: Annotated[float, typer.Option(help="Scorecard: odds for the good class at --points.")] = 50.0,
    double: Annotated[float, typer.Option(help="Scorecard: points that double the odds.")] = 20.0,
    good: GoodOption = None,
    connect: Connect = False,
    json: Annotated[bool, typer.Option("--json", help="Curve, metrics and options as one JSON document.")] = False,
) -> None:
    """A finished run for other programs: its looks as a table or JSON, its coefficients by name, its scorecard, each
    party's part as an ONNX graph, or all of it for a tracker of runs."""
    from offbeat.metrics.curves import CurveRow
    from offbeat.metrics.record import RunRecord

    record = RunRecord.read(run)
    if sum(way is not None for way in (csv_file, coefficients, scorecard, onnx, to)) + json != 1:
        raise BadInput(
            "expected one way to export: --csv, --coefficients or --scorecard FILE (- for standard output), --onnx "
            "FOLDER, --json, --to tensorboard or --to mlflow."
        )
    if to is not None:
        _track(run, record, to, out)
    elif json:
        keys = ("algorithm", "seed", "verdict", "objective", "passes", "seconds", "metrics", "options")
        print_json({"run": str(run), **{key: getattr(record, key) for key in keys}, "curve": _rows(record)})
    elif csv_file is not None:
        _write(list(CurveRow.__struct_fields__), _rows(record), csv_file, "looks")
    elif coefficients is not None:
        _write(["party", "column", "class", "coefficient"], _coefficients(run), coefficients, "coefficients")
    elif onnx is not None:
        _graphs(run, onnx)
    elif scorecard is not None:
        card = _scorecard(run, points=points, odds=odds, double=double, good=good, connect=connect)
        _write(list(card.table()[0]), card.table(), scorecard, "lines")


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


def _graphs(run: Path, folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadInput(
            f"--onnx {folder} is a file; expected a folder, or a path where one can be made: PARTY.onnx each."
        )
    model = _model(run)
    graphs = {party: model.to_onnx(party).SerializeToString() for party in model.names}
    folder.mkdir(parents=True, exist_ok=True)
    for party, graph in graphs.items():
        (folder / f"{party}.onnx").write_bytes(graph)
        say(f"wrote {folder / f'{party}.onnx'}.")


def _coefficients(run: Path) -> list[dict[str, Any]]:
    import numpy as np

    model = _model(run)
    several = model.classes or () if len(model.classes or ()) > 2 else ()
    constant = dict(zip(several, np.ravel(model.intercept).tolist(), strict=True)) if several else model.intercept
    found = [*((party, *one) for party, mine in model.coefficients.items() for one in mine.items())]
    rows = []
    for party, column, values in [*found, ("", "intercept", constant)]:
        for name, value in values.items() if isinstance(values, dict) else [("", values)]:
            rows.append({"party": party, "column": column, "class": name, "coefficient": value})
    return rows


def _scorecard(run: Path, *, good: str | None, connect: bool, **scale: Any) -> "Scorecard":
    """Shares, weights of evidence and stability are counted on the job's own rows, where they are still there."""
    from offbeat.run.scorecard import scorecard_of

    data = None
    if _between_organisations(run):
        from offbeat.orgs.own_part import own_scorecard
        from offbeat.orgs.party_config import home_of

        card = own_scorecard(home_of(run), run.resolve().name, good=good, **scale)
    else:
        model = _model(run)
        wanted = next((one for one in model.classes or () if str(one) == good), good)
        data = _data_of(model, run, connect)
        labels = None if data is None else [(model.classes or ())[int(y > 0)] for y in data.y_train]
        card = scorecard_of(model, None if data is None else data.train, labels, good=wanted, **scale)
    for sentence in card.sentences():
        say(sentence)
    if data is not None and data.test_rows:
        moved = card.stability_of(data.test)
        told = ", ".join(f"{name} {value:.3f}" for mine in moved.values() for name, value in mine.items())
        say(f"Population stability of the held-out rows against the training rows (below 0.1 is stable): {told}.")
    return card


def _between_organisations(run: Path) -> bool:
    from offbeat.metrics.record import RunRecord

    return RunRecord.read(run).runtime == "grpc"


def _model(run: Path) -> "TrainedModel":
    """Of a run between organisations, this party's own part alone."""
    if not _between_organisations(run):
        from offbeat.run.model import load

        return load(run)
    from offbeat.orgs.own_part import own_part
    from offbeat.orgs.party_config import home_of

    return own_part(home_of(run), run.resolve().name)


def _data_of(model: "TrainedModel", run: Path, connect: bool) -> Any:
    """The rows of the run, read anew; None, with a word, where they are no longer what the model was trained on."""
    from offbeat.families.vertical_data import load_data
    from offbeat.run.replay import Vouched

    try:
        Vouched(model.job.algorithm, connect).refuse_unknown_job(run, model.job)
        data = load_data(model.job)
    except OffbeatError as problem:
        say(f"Points alone: the rows of the run cannot be read again. {problem}")
        return None
    if all(list(data.columns.get(name, ())) == list(model.fitted(name).columns) for name in model.names):
        return data
    say("Points alone: the files of the run have changed since, and their bins are no longer the same.")
    return None


def _write(head: Sequence[str], rows: Sequence[dict[str, Any]], path: Path, what: str) -> None:
    write_csv(rows, path, head)
    if str(path) != "-":
        say(f"wrote {len(rows)} {what} to {path}.")
