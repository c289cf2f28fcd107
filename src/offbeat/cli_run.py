"""offbeat run, report, compare and replay."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli_output import Interruption, RunProgress, new_folder, print_json, say, speaker

if TYPE_CHECKING:
    from offbeat.data.assemble import VerticalData
    from offbeat.experiment import Result
    from offbeat.job import Job

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]


def run(
    job: Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.", show_default=False)],
    runtime: Annotated[str | None, typer.Option(help="simulator, threads or processes; replaces the job's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Replaces the job's seed.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; a new one under runs/ by default.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replaces one key of the job; dots go into tables."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where named data sets lie.")] = None,
    optimum: Annotated[bool, typer.Option(help="Also find the pooled optimum, to compare with.")] = True,
    json: Json = False,
) -> None:
    """Train as a job file says, and write a run folder."""
    from offbeat.job import read_job

    settings = list(set_ or [])
    settings += [f"runtime.kind={runtime}"] if runtime is not None else []
    settings += [f"seed={seed}"] if seed is not None else []
    settings += [f"data.dir={_quoted(data)}"] if data is not None else []
    settings += [] if optimum else ["optimum=false"]
    chosen = read_job(job, settings)
    raise typer.Exit(train_and_report(chosen, out, json))


def _quoted(path: Path) -> str:
    import json

    return json.dumps(str(path.resolve()))


def train_and_report(job: "Job", out: Path | None, as_json: bool) -> int:
    """The run with its progress; its folder; its summary. Returns the exit code."""
    from offbeat.job_data import load_data
    from offbeat.methods import method_named

    method_named(job.algorithm)
    data = load_data(job)
    folder = new_folder(out, f"{job.algorithm}-s{job.seed}")
    result = train(job, data, folder)
    tell(result, folder, as_json)
    return result.exit_code


def train(job: "Job", data: "VerticalData", folder: Path) -> "Result":
    """One run under a progress bar, stopped cleanly by Ctrl-C, written to its folder."""
    from offbeat.experiment import run_experiment
    from offbeat.run_folder import write_job, write_result

    write_job(job, folder)
    interruption = Interruption()
    progress = RunProgress(job.algorithm, job.passes, job.target, interruption)
    with interruption.watching(), progress.shown():
        result = run_experiment(data, job, watch=progress.watch, folder=folder)
    write_result(result, data, folder)
    return result


def tell(result: "Result", folder: Path, as_json: bool) -> None:
    from offbeat.report.page import REPORT_FILE
    from offbeat.report.summary import summary

    if as_json:
        print_json(result.record.to_json_object(folder))
        return
    speaker().print(summary(result.record, folder))
    say(f"\nThe page for browsers is {folder / REPORT_FILE}")
    if result.exit_code:
        say(f"\noffbeat: the run ended as {result.record.verdict!r}: {result.record.reason}. What it had is kept.")
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
    return {
        "target": compared.target,
        "caveats": compared.caveats(),
        "runs": rows,
        "report": str(page) if page else None,
    }


def replay(run: RunFolder, json: Json = False) -> None:
    """Do a run again, event by event, and see that everything comes out the same, bit for bit.

    A simulated run is repeated from its seed. A run on threads or processes is repeated from its parties' logs.
    """
    from offbeat.replaying import replay_run

    told = replay_run(run)
    if json:
        print_json(told)
    else:
        say(told["sentence"])
    raise typer.Exit(0 if told["same"] else 3)
