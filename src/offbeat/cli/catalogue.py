"""offbeat reproduce and bench: they list what there is, or run one by name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.output import print_json, rows_table, say, speaker
from offbeat.cli.run import Json

if TYPE_CHECKING:
    from offbeat.lab.catalogue import Kind

Quick = Annotated[bool, typer.Option("--quick", help="A small version that takes seconds to a minute.")]
Data = Annotated[Path | None, typer.Option("--data", help="Where named data sets lie.")]
Seed = Annotated[int, typer.Option(help="The first seed.")]


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which table or figure; without it, the list.")] = None,
    quick: Quick = False,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="Where rows and figures go; out/NAME by default.")] = None,
    file: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="SETTING=PATH", help="Your own LIBSVM file in place of a stand-in."),
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Redraw a published table or figure, with the published numbers beside ours."""
    if name is None:
        _list("reproduce", json)
        return
    folder = out or Path("out") / name
    try:
        told = _done("reproduce", name, quick=quick, seed=seed, data_dir=data, out=folder, files=_files(file or []))
    except KeyboardInterrupt:
        say(f"What is finished lies in {folder}; the same command goes on from there.")
        raise
    _write_rows(told, folder)
    _tell(told, json)


def bench(
    name: Annotated[str | None, typer.Argument(help="Which benchmark; without it, the list.")] = None,
    quick: Quick = False,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="Also write the rows there.")] = None,
    job: Annotated[Path | None, typer.Option("--job", help="A job file whose data is used (race).")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure ours beside its reference, in one run."""
    from offbeat.metrics.machine import library_versions, this_machine

    if name is None:
        _list("bench", json)
        return
    told = _done("bench", name, quick=quick, seed=seed, data_dir=data, job=job)
    told |= {"machine": this_machine(), "versions": library_versions()}
    if out is not None:
        _write_rows(told, out)
    _tell(told, json)


def _done(kind: "Kind", name: str, **chosen: Any) -> dict[str, Any]:
    """One piece of the lab, run to its end."""
    from offbeat.lab.catalogue import LabOptions, entry_named

    entry = entry_named(kind, name)
    result = entry.function(LabOptions(say=say, **chosen))
    return {
        "name": entry.name,
        "title": entry.title,
        "rows": [dict(row) for row in result.rows],
        "figures": [str(path) for path in result.figures],
        "notes": list(result.notes),
        **result.more,
    }


def _files(settings: list[str]) -> dict[str, Path]:
    from offbeat.errors import BadInput

    files = {}
    for setting in settings:
        name, equals, path = setting.partition("=")
        if not equals:
            raise BadInput(f"--file expects SETTING=PATH, as in --file url=url.svm.xz; got {setting!r}.")
        if not Path(path).is_file():
            raise BadInput(f"--file {setting}: there is no file {path}.")
        files[name] = Path(path)
    return files


def _write_rows(told: dict[str, Any], folder: Path) -> None:
    from offbeat.metrics.plain import json_text, replace_file

    replace_file(folder / "rows.json", f"{json_text(told)}\n".encode())


def _list(kind: "Kind", as_json: bool) -> None:
    from rich.console import Console

    from offbeat.lab.catalogue import catalogue

    rows = [{"name": entry.name, "title": entry.title} for entry in catalogue(kind).values()]
    if as_json:
        print_json({"benchmarks" if kind == "bench" else "reproductions": rows})
    else:
        Console().print(rows_table(rows))


def _tell(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    speaker().print(told["title"], style="bold", highlight=False)
    speaker().print(rows_table(told["rows"]))
    for note in told["notes"]:
        say(note)
    for figure in told["figures"]:
        typer.echo(figure)
