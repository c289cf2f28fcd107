"""offbeat run, report, compare and replay."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from offbeat.cli.output import Data, Interruption, Json, RunProgress, new_folder, print_json, say, speaker
from offbeat.names import counted

if TYPE_CHECKING:
    from offbeat.jobs.reading import AnyJob
    from offbeat.metrics.record import RunRecord

Trusted = Annotated[
    str,
    typer.Option(
        metavar="MODULE:OBJECT",
        help="The run's method where it is no part of offbeat: doing the run again imports its code.",
    ),
]
Connect = Annotated[
    bool, typer.Option("--connect", help="Ask the databases that the run names, with the passwords that it names.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]


def run(
    job: Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.", show_default=False)],
    runtime: Annotated[
        str | None, typer.Option(help="simulator, threads, processes or ray; replaces the job's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Replaces the job's seed.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; a new one under runs/ by default.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replaces one key of the job; dots go into tables."),
    ] = None,
    data: Data = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Begin with the model of this finished run.")
    ] = None,
    optimum: Annotated[bool, typer.Option(help="Also find the pooled optimum, to compare with.")] = True,
    json: Json = False,
) -> None:
    """Train as a job file says, and write a run folder."""
    from offbeat.jobs.reading import read_job
    from offbeat.settings import quoted

    settings = list(set_ or [])
    settings += [f"runtime.kind={runtime}"] if runtime is not None else []
    settings += [f"seed={seed}"] if seed is not None else []
    settings += [f"data.dir={quoted(str(data.resolve()))}"] if data is not None else []
    settings += [f"start={quoted(str(from_.resolve()))}"] if from_ is not None else []
    chosen: Any = read_job(job, settings)
    _check_not_replaced(job, chosen, out)
    if not optimum and hasattr(chosen, "optimum"):
        chosen = msgspec.structs.replace(chosen, optimum=False)
    record, folder = train(chosen, out)
    tell(record, folder, json)
    raise typer.Exit(record.exit_code)


def _check_not_replaced(path: Path, job: "AnyJob", out: Path | None) -> None:
    """A run writes its job into its folder: not over the file that a user wrote. A run that was broken off begins anew
    in its own folder, and a finished one is set aside."""
    from offbeat.errors import BadInput
    from offbeat.jobs.reading import job_text
    from offbeat.jobs.runtime import resolved
    from offbeat.metrics.record import JOB_FILE, RECORD_FILE

    if out is None or (out / RECORD_FILE).exists() or not (out / JOB_FILE).is_file():
        return
    kept = out / JOB_FILE
    if path.samefile(kept) and kept.read_text(encoding="utf-8-sig") != job_text(resolved(job)):
        raise BadInput(
            f"--out {out} is the folder of {path}, and the run would replace that file. Give another folder."
        )


def train(job: "AnyJob", out: Path | None) -> "tuple[RunRecord, Path]":
    """One run under a progress bar, stopped cleanly by Ctrl-C, written to its folder. The folder is made once the data
    is read and found good."""
    from offbeat.run.experiment import run_training
    from offbeat.run.folder import write_job, write_result
    from offbeat.run.parties import training_of

    training = training_of(job)
    named = job.algorithm.replace(":", "-")
    folder = new_folder(out, named if job.seed is None else f"{named}-s{job.seed}")
    write_job(job, folder)
    interruption = Interruption()
    progress = RunProgress(job.algorithm, training.goal, getattr(job, "target", None), interruption)
    with interruption.watching(), progress.shown():
        result = run_training(training, watch=progress.watch, folder=folder)
    write_result(result, folder)
    return result.record, folder


def tell(record: "RunRecord", folder: Path, as_json: bool) -> None:
    from offbeat.report.page import REPORT_FILE
    from offbeat.report.summary import summary

    if as_json:
        print_json(record.to_json_object(folder))
        return
    speaker().print(summary(record, folder))
    say(f"\nThe page for browsers is {folder / REPORT_FILE}")
    if record.exit_code:
        say(f"\noffbeat: the run ended as {record.verdict!r}: {record.reason.rstrip('.')}. What it had is kept.")
    typer.echo(str(folder))


# -- looking at finished runs ----------------------------------------------------------------------------------------


def report(
    run: RunFolder,
    html: Annotated[Path | None, typer.Option(help="Write the page there instead of into the run folder.")] = None,
    json: Json = False,
) -> None:
    """One page of text on a finished run, and report.html anew."""
    from rich.console import Console

    from offbeat.metrics.record import RunRecord
    from offbeat.report.page import report_page, write_report
    from offbeat.report.summary import summary

    record = RunRecord.read(run)
    if html is None:
        page = write_report(record, run)
    else:
        page = html
        page.write_text(report_page(record, run=run.name), encoding="utf-8")
    if json:
        print_json({**record.to_json_object(run), "report": str(page)})
        return
    Console().print(summary(record, run))
    say(f"\nThe page for browsers is {page}")


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two run folders or more.", show_default=False)],
    target: Annotated[float | None, typer.Option(help="Also tell when each run was this near to the optimum.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page for browsers there.")] = None,
    json: Json = False,
) -> None:
    """Several runs side by side, on the same axes."""
    from rich.console import Console

    from offbeat.errors import BadInput
    from offbeat.metrics.record import read_records
    from offbeat.report.compare import Comparison, comparison, write_comparison

    if len(runs) < 2:
        raise BadInput(f"Comparing needs two run folders or more; got {len(runs)}. `offbeat report` shows one.")
    compared = Comparison(read_records(runs), target)
    page = write_comparison(compared, html) if html is not None else None
    if json:
        print_json(_comparison_object(compared, page))
        return
    Console().print(comparison(compared))
    if page is not None:
        say(f"The page for browsers is {page}")


def _comparison_object(compared: Any, page: Path | None) -> dict[str, Any]:
    rows = {
        name: {**record.to_json_object(name), "time_to_target": compared.time_to_target(name)}
        for name, record in compared.records.items()
    }
    told = {"target": compared.target, "caveats": compared.caveats(), "runs": rows}
    return {**told, "report": str(page) if page else None}


def replay(
    run: RunFolder,
    verify: Annotated[
        bool, typer.Option("--verify", help="Every log must lead to its party's end; each is told of by itself.")
    ] = False,
    method: Trusted = "",
    connect: Connect = False,
    data: Annotated[
        Path | None, typer.Option(help="Between organisations: the table as it was, if it has changed.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Between organisations: the private key as it was, if it has changed.")
    ] = None,
    json: Json = False,
) -> None:
    """Do a run again, event by event, and see that everything comes out the same, bit for bit.

    A simulated run is repeated from its seed. A run on threads, processes or ray is repeated from its parties' logs,
    an organisation's side of a run from its own.
    """
    told = _replayed(run, verify, method, connect, data, key)
    if verify and not json:
        for name, count in told.get("events", {}).items():
            say(f"{name}: {counted(count, 'event')}, {told['digests'][name]}")
    if json:
        print_json(told)
    else:
        say(told["sentence"])
    raise typer.Exit(0 if told["same"] else 3)


def _replayed(
    run: Path, verify: bool, method: str, connect: bool, data: Path | None, key: Path | None
) -> dict[str, Any]:
    from offbeat.errors import BadInput
    from offbeat.run.replay import Vouched, replay_run

    vouched = Vouched(method, connect)

    if (run / "state.json").is_file():  # an organisation's own side of a run, in its daemon's folder
        from offbeat.orgs.party_config import home_of
        from offbeat.orgs.replay import replay_own

        return replay_own(home_of(run), run.resolve().name, vouched, verify=verify, data=data, key=key)
    if data is not None or key is not None:
        raise BadInput("--data and --key are for an organisation's own run: HOME/runs/RUN.")
    return replay_run(run, verify=verify, vouched=vouched)
