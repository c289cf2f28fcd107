"""The command line: `offbeat --help` lists it; docs/reference/command-line.md says what each command promises.

Exit codes: 0 done; 2 bad input; 3 a party or peer failed; 4 a bound was refused; 1 anything else.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from offbeat.cli import catalogue, demo, export, look, run, watch
from offbeat.cli.output import Polite

ELSEWHERE = {
    "keys": ("offbeat.cli.orgs", "keys"),
    "party": ("offbeat.cli.orgs", "party"),
    "job": ("offbeat.cli.job_path", "job"),
    "predict": ("offbeat.cli.orgs", "predict"),
    "serve": ("offbeat.cli.serving", "serve"),
    "caller": ("offbeat.cli.serving", "caller"),
    "edge": ("offbeat.cli.edges", "edge_app"),
    "cloud": ("offbeat.cli.edges", "cloud_app"),
    "mqtt": ("offbeat.cli.edges", "mqtt_app"),
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

for command in (
    *(demo.demo, run.run, catalogue.reproduce, catalogue.bench, watch.watch, run.report, run.compare, export.export),
    *(run.replay, look.audit, look.worth, look.data, look.doctor),
):
    app.command()(command)  # by its own name


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
