"""offbeat serve and offbeat caller: scores over HTTP, and who may ask for them."""

import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from offbeat.cli.orgs import HomeOption
from offbeat.cli.output import Json, group, needs_web, print_json, say, show
from offbeat.cli.watch import announce
from offbeat.errors import BadInput

caller = group("Who may ask a scoring service: names, tokens and limits.")


def serve(
    run: Annotated[str, typer.Argument(help="A finished run of organisations.")],
    home: HomeOption = Path("."),
    host: Annotated[
        str, typer.Option(help="Where to listen; other machines belong behind a proxy with TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8443,
    rows_in_part: Annotated[int, typer.Option(min=1, max=50_000, help="Rows of a batch in one question.")] = 20_000,
    json_lines: Annotated[bool, typer.Option("--log-json", help="Each line of the log as one JSON object.")] = False,
    json: Json = False,
) -> None:
    """Answer for a finished run over HTTP, until Ctrl-C: one id, a list of them, or batches of millions."""
    from offbeat.orgs.control import Status
    from offbeat.orgs.daemon_log import write_log
    from offbeat.orgs.party_config import read_home

    try:
        from offbeat.orgs.service.app import Service
        from offbeat.report.live_server import listening
    except ImportError as problem:
        raise needs_web("serve", problem) from problem
    service = Service(read_home(home), Path(run).name, rows_in_part)
    status = service.daemon.ask(Status(service.run))
    if not (status.phase == "done" or (status.ended and status.kept)):
        raise BadInput(f"run '{service.run}' is '{status.phase}'; only a run that ended well can score.")
    service.batches.hold()
    write_log(sys.stderr, as_json=json_lines, party=service.home.name)
    with listening(port, host) as opened:
        address = "http://{}:{}/".format(*opened.getsockname()[:2])
        if not service.callers.all():
            say(f"Nobody may ask yet: `offbeat caller new NAME --home {home}` makes a token.")
        told = f"Scoring run {service.run} until Ctrl-C. What can be asked is described at:"
        announce(address, told, json, run=service.run)
        _serve_until_stopped(service.app(), opened, grace_s=10)


def _serve_until_stopped(app: Any, opened: socket.socket, grace_s: int) -> None:
    import uvicorn

    from offbeat.report.live_server import QUIETLY

    with suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(app, **QUIETLY, timeout_graceful_shutdown=grace_s)).run(sockets=[opened])


def console(home: Path, port: int, open_: bool, as_json: bool) -> None:
    """`offbeat party console`."""
    import secrets

    from offbeat.orgs.party_config import read_home

    try:
        from offbeat.audit.own_side import audit_own
        from offbeat.audit.runs import audit_text
        from offbeat.orgs.console.app import console_app
        from offbeat.report.live_server import HOST, listening
    except ImportError as problem:
        raise needs_web("party console", problem) from problem
    token = secrets.token_urlsafe(24)
    app = console_app(
        read_home(home), token, lambda folder: audit_text({**audit_own(folder, None), "run": folder.name})
    )
    with listening(port) as opened:
        address = f"http://{HOST}:{opened.getsockname()[1]}/enter?token={token}"
        announce(address, "The console, until Ctrl-C. Whoever has this address decides in your name:", as_json, open_)
        _serve_until_stopped(app, opened, grace_s=5)


@caller.command("new")
def caller_new(
    name: str,
    home: HomeOption = Path("."),
    rows_a_day: Annotated[int, typer.Option(min=0, help="Rows it may ask for in a day (UTC).")] = 10_000,
    calls_a_second: Annotated[float, typer.Option(help="How fast it may call.")] = 20.0,
    json: Json = False,
) -> None:
    """Name a caller and make its token, which is shown once and kept nowhere."""
    from offbeat.orgs.party_config import read_home
    from offbeat.orgs.service.callers import CallersFile

    if calls_a_second <= 0:
        raise BadInput(f"--calls-a-second {calls_a_second:g}: expected more than 0.")
    token = CallersFile(read_home(home).private).new(name, rows_a_day, calls_a_second)
    say(f"'{name}' may ask for {rows_a_day:,} rows a day and call {calls_a_second:g} times a second. Its token:")
    if json:
        print_json({"caller": name, "token": token})
    else:
        typer.echo(token)


@caller.command("list")
def caller_list(home: HomeOption = Path("."), json: Json = False) -> None:
    """The callers, their limits, and what they have left today."""
    from offbeat.orgs.party_config import read_home
    from offbeat.orgs.service.callers import CallersFile, Quotas

    private = read_home(home).private
    quotas = Quotas(private)
    rows = [
        {"caller": one.name, "rows_a_day": one.rows_a_day, "left_today": quotas.left(one),
         "calls_a_second": one.calls_a_second}
        for one in CallersFile(private).all()
    ]  # fmt: skip
    for row in rows:
        say(f"{row['caller']}: {row['left_today']:,} of {row['rows_a_day']:,} rows left today, "
            f"{row['calls_a_second']:g} calls a second")  # fmt: skip
    show(rows, json)


@caller.command("remove")
def caller_remove(name: str, home: HomeOption = Path(".")) -> None:
    """End a caller's token; a service that runs takes notice at once."""
    from offbeat.orgs.party_config import read_home
    from offbeat.orgs.service.callers import CallersFile

    CallersFile(read_home(home).private).remove(name)
    say(f"the token of '{name}' is worth nothing from now on.")
