"""The command line: `offbeat --help` lists it; docs/reference/command-line.md says what each command promises.

Exit codes: 0 done; 2 bad input; 3 a party or peer failed; 4 a bound was refused; 1 anything else.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from offbeat import cli_catalogue, cli_demo, cli_look, cli_run, cli_watch
from offbeat.cli_output import Polite

ELSEWHERE = {
    "keys": ("offbeat.orgs_cli", "keys"),
    "party": ("offbeat.orgs_cli", "party"),
    "job": ("offbeat.orgs_cli", "job"),
    "predict": ("offbeat.orgs_cli", "predict"),
    "edge": ("offbeat.edge_cli", "edge_app"),
    "cloud": ("offbeat.edge_cli", "cloud_app"),
    "mqtt": ("offbeat.edge_cli", "mqtt_app"),
}
"""Commands of other modules, imported when they are called: a Typer app, or a function, by its name there."""


class Root(Polite):
    """Knows the commands that live elsewhere without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name, (module, _) in ELSEWHERE.items() if find_spec(module))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module, attribute = ELSEWHERE.get(cmd_name, ("", ""))
        if not module or find_spec(module) is None:
            return super().get_command(ctx, cmd_name)
        part = getattr(import_module(module), attribute)
        if not isinstance(part, typer.Typer):
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(cmd_name)(part)
            part = alone
        command = typer.main.get_command(part)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="offbeat",
    cls=Root,
    help="Federated learning without a common beat.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

app.command("demo")(cli_demo.demo)
app.command("run")(cli_run.run)
app.command("reproduce")(cli_catalogue.reproduce)
app.command("bench")(cli_catalogue.bench)
app.command("watch")(cli_watch.watch)
app.command("report")(cli_run.report)
app.command("compare")(cli_run.compare)
app.command("replay")(cli_run.replay)
app.command("audit")(cli_look.audit)
app.command("data")(cli_look.data)
app.command("doctor")(cli_look.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        from offbeat.metrics.machine import offbeat_version

        typer.echo(offbeat_version())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning without a common beat."""


def main() -> None:
    """The entry point of the `offbeat` script."""
    app()
