"""offbeat audit, worth, data and doctor."""

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from offbeat.cli.output import Data, Json, print_json, rows_table, say
from offbeat.cli.run import Connect, Trusted
from offbeat.errors import BadInput


def audit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run folder.", show_default=False)],
    verify: Annotated[
        bool, typer.Option(help="Check what the ends of each link have signed; RUN...: folders of one run's parties.")
    ] = False,
    roster: Annotated[
        Path | None, typer.Option(help="With --verify: the certificates that the parties must have.", metavar="FILE")
    ] = None,
    method: Trusted = "",
    connect: Connect = False,
    json: Json = False,
) -> None:
    """Who received what, and what a curious party can work out of it. Of a run between organisations: of this party's
    side, done again from its log. With --verify: whether the run was as the folders of its parties say, and if not, who
    changed what."""
    from offbeat.audit.own_side import audit_own
    from offbeat.audit.runs import audit_run, audit_text, violations_of
    from offbeat.metrics.record import RunRecord
    from offbeat.run.replay import Vouched

    if verify:
        _verify(runs, roster, json)
    if len(runs) > 1 or roster is not None:
        raise BadInput("expected one run folder; several, and --roster, go with --verify.")
    run = runs[0]
    audited = audit_own if RunRecord.read(run).runtime == "grpc" else audit_run
    told = audited(run, Vouched(method, connect))
    if json:
        print_json(told)
    else:
        typer.echo(audit_text(told), nl=False)
    raise typer.Exit(4 if violations_of(told) else 0)


def _verify(runs: list[Path], roster: Path | None, json: bool) -> NoReturn:
    from offbeat.audit.transcripts import CHANGED, HOLDS, verified_text, verify_runs

    told = verify_runs(runs, roster)
    if json:
        print_json(told)
    else:
        typer.echo(verified_text(told), nl=False)
    raise typer.Exit({HOLDS: 0, CHANGED: 4}.get(told["state"], 3))


def worth(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a job file.", show_default=False)],
    score: Annotated[str | None, typer.Option(help="auc, accuracy or explained; as usual for the task.")] = None,
    method: Trusted = "",
    connect: Connect = False,
    json: Json = False,
) -> None:
    """What each party is worth: exact Shapley values of a held-out score, the model trained anew for each coalition of
    parties. The values go into a run folder's record and report."""
    import msgspec

    from offbeat.families.table import family_of
    from offbeat.metrics.record import RunRecord
    from offbeat.run.folder import write_record
    from offbeat.run.replay import Vouched
    from offbeat.run.worth import job_for_worth
    from offbeat.run.worth import worth as computed

    record = RunRecord.read(run) if run.is_dir() else None
    job = job_for_worth(run, record)
    if record is not None:
        Vouched(method, connect).refuse_unknown_job(run, job)
    found = computed(family_of(job).load(job), job, score, say)
    if record is not None:
        page = write_record(msgspec.structs.replace(record, worth=found), run)
        say(f"The picture is in {page}")
    if json:
        print_json({"run": str(run), **msgspec.to_builtins(found)})
        return
    for name, value in found.values.items():
        typer.echo(f"{name}\t{value:+.4f}\t± {found.errors[name]:.4f}")
    typer.echo(f"all\t{found.joint - found.empty:+.4f}\t{found.score} {found.empty:.4f} to {found.joint:.4f}")


def data(data: Data = None, json: Json = False) -> None:
    """The data sets by name: what there is, and where it was found."""
    from dataclasses import asdict

    from rich.console import Console

    from offbeat.data.load import describe_datasets

    rows = [asdict(row) for row in describe_datasets(data)]
    if json:
        print_json({"sets": rows})
        return
    found = [Path(row["where"]) for row in rows if Path(row["where"]).is_absolute()]
    console = Console()
    console.print(rows_table([_narrow(row) for row in rows], whole=("name", "task", "where")))
    for row in rows:
        if row.get("stands_in_for"):
            console.print(f"{row['name']} stands in for {row['stands_in_for']}.", highlight=False)
    for folder in dict.fromkeys(path.parent for path in found):
        say(f"Found in {folder}.")


def _narrow(row: dict[str, Any]) -> dict[str, Any]:
    task = "2 classes" if row["task"] == "classification" else row["task"]
    shown = {**row, "task": task, "where": "found" if Path(row["where"]).is_absolute() else row["where"]}
    shown.pop("stands_in_for", None)
    return shown


def doctor(data: Data = None, json: Json = False) -> None:
    """Is this machine ready, and if not, what would mend it?"""
    from dataclasses import asdict

    from rich.console import Console

    from offbeat.cli.doctor import checks

    found = checks(data)
    wrong = [check for check in found if check.ok is False]
    if json:
        print_json({"ready": not wrong, "checks": [asdict(check) for check in found]})
    else:
        words = {True: "ok", False: "NO", None: "-"}
        Console().print(
            rows_table([{"": words[c.ok], "check": c.name, "found": c.found, "to mend": c.mend or None} for c in found])
        )
    raise typer.Exit(1 if wrong else 0)
