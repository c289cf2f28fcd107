"""offbeat audit, data and doctor."""

from pathlib import Path
from typing import Annotated, Any

import typer

from offbeat.cli.output import print_json, rows_table, say
from offbeat.cli.run import Json, RunFolder, Trusted


def audit(run: RunFolder, method: Trusted = "", json: Json = False) -> None:
    """Who received what, and what a curious party can work out of it."""
    from offbeat.audit.runs import audit_run, audit_text, violations_of

    told = audit_run(run, method)
    if json:
        print_json(told)
    else:
        typer.echo(audit_text(told), nl=False)
    raise typer.Exit(4 if violations_of(told) else 0)


def data(
    data: Annotated[Path | None, typer.Option("--data", help="Where named data sets lie.")] = None, json: Json = False
) -> None:
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


def doctor(
    data: Annotated[Path | None, typer.Option("--data", help="Where named data sets lie.")] = None, json: Json = False
) -> None:
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
