"""offbeat reproduce and bench: they list what there is, or run one by name."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.output import Data, Json, print_json, rows_table, say, speaker
from offbeat.errors import BadInput

if TYPE_CHECKING:
    from offbeat.lab.catalogue import Kind

Quick = Annotated[bool, typer.Option("--quick", help="A small version that takes seconds to a minute.")]
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
    everything: Annotated[bool, typer.Option("--all", help="All of them, two at a time.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with what is kept, and say what drifted. Alone: all, quick.")
    ] = False,
    kept: Annotated[Path, typer.Option(help="Where kept results lie.")] = Path("benchmarks/results"),
    json: Json = False,
) -> None:
    """Redraw a published table or figure, with the published numbers beside ours."""
    from offbeat.lab.catalogue import catalogue

    if name is not None and everything:
        raise BadInput(f"expected a name or --all; got both ({name} and --all). Leave one of them out.")
    if name is None and not (everything or check):
        _list("reproduce", json)
        return
    quick = quick or (check and name is None and not everything)
    chosen = {"quick": quick, "seed": seed, "data_dir": data, "files": _files(file or [])}
    redrawn = partial(_redrawn, chosen=chosen, kept=kept if check else None, alone=name is not None)
    told = [redrawn(name, out)] if name is not None else _two_at_a_time(redrawn, list(catalogue("reproduce")), out)
    if name is not None:
        _tell(told[0], json)
    elif json:
        print_json({"reproductions": told})
    else:
        for each in told:
            _tell(each, False)
    if check and not _as_kept(told):
        raise typer.Exit(1)


def _as_kept(told: list[dict[str, Any]]) -> bool:
    """Whether every reproduction was compared with something, and nothing has drifted; says which not."""
    apart = [e["name"] for e in told if not e["compared"] or any(row["drifted"] for row in e["compared"])]
    names = f" Not: {', '.join(apart)}." if apart else ""
    say(f"As they were kept: {len(told) - len(apart)} of {len(told)}.{names}")
    return not apart


def _two_at_a_time(redrawn: Callable[..., dict[str, Any]], names: list[str], out: Path | None) -> list[dict[str, Any]]:
    """In two processes for two cores. An interruption ends both at once: what is finished is in their folders."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folders = [None if out is None else out / name for name in names]
    told: list[dict[str, Any]] = []
    try:
        with ProcessPoolExecutor(2, get_context("spawn"), _ends_at_once) as two:
            for each in two.map(redrawn, names, folders):
                told.append(each)
                say(f"{len(told)} of {len(names)} are done.")
    except KeyboardInterrupt:
        say(f"{len(told)} of {len(names)} are done; the same command goes on from there.")
        raise
    return told


def _ends_at_once() -> None:
    """A worker of a pool would take an interruption for the end of one piece, and begin the next. Where interruptions
    are ignored, as under nohup, they stay so."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(1))


def _redrawn(name: str, out: Path | None, chosen: dict[str, Any], kept: Path | None, alone: bool) -> dict[str, Any]:
    """One table or figure, its rows written down; with `kept`, beside what was kept there. Where it is not `alone`, its
    name stands before what it says."""
    told_as = say if alone else lambda sentence: say(f"{name}: {sentence}")
    from offbeat.lab.drift import compared, kept_rows, said

    before = kept_rows(name, kept) if kept is not None else {}
    folder, began, computed = out or _folder(name, anew=kept is not None), perf_counter(), process_time()
    try:
        told = _done("reproduce", name, out=folder, say=told_as, **chosen)
    except KeyboardInterrupt:
        say(f"What is finished lies in {folder}; the same command goes on from there.")
        raise
    told["cpu_s"] = round(process_time() - computed, 1)
    say(f"{name}: {perf_counter() - began:.0f} s, {told['cpu_s']:.0f} s of CPU")
    if kept is not None:
        told["compared"] = compared(told["rows"], before, "quick" if chosen["quick"] else "full")
        told["notes"] += said(told["rows"], told["compared"])
    _write_rows(told, folder)
    return told


def _folder(name: str, anew: bool) -> Path:
    """Where a reproduction's files go. A check measures anew: finished pieces may be of older code."""
    if not anew:
        return Path("out") / name
    folder = Path("out") / "check" / name
    rmtree(folder, ignore_errors=True)
    return folder


def bench(
    name: Annotated[str | None, typer.Argument(help="Which benchmark; without it, the list.")] = None,
    quick: Quick = False,
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the rows there, and figures where there are some.")
    ] = None,
    job: Annotated[Path | None, typer.Option("--job", help="A job file whose data is used (race).")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure ours beside its reference, in one run."""
    from offbeat.metrics.machine import library_versions, this_machine

    if name is None:
        _list("bench", json)
        return
    drawn = {} if out is None else {"out": out, "draws": True}
    told = _done("bench", name, quick=quick, seed=seed, data_dir=data, job=job, say=say, **drawn)
    told |= {"machine": this_machine(), "versions": library_versions()}
    if out is not None:
        _write_rows(told, out)
    _tell(told, json)


def _done(kind: "Kind", name: str, **chosen: Any) -> dict[str, Any]:
    """One piece of the lab, run to its end."""
    from offbeat.lab.catalogue import LabOptions, entry_named

    entry = entry_named(kind, name)
    result = entry.function(LabOptions(**chosen))
    return {
        "name": entry.name,
        "title": entry.title,
        "rows": result.told,
        "figures": [str(path) for path in result.figures],
        "notes": list(result.notes),
        **result.more,
    }


def _files(settings: list[str]) -> dict[str, Path]:
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
