"""offbeat watch."""

import time
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.output import Json, Open, Port, needs_web, print_json, say
from offbeat.cli.run import RunFolder

POLL_S = 0.1


def watch(
    run: RunFolder,
    port: Port = 0,
    wait: Annotated[float, typer.Option(min=0.0, help="Wait so many seconds for the folder to be made.")] = 0.0,
    open_: Open = False,
    json: Json = False,
) -> None:
    """A page on a run while it goes on, served on this machine until Ctrl-C."""
    from offbeat.report.live import check_folder

    _await(run, wait)
    check_folder(run)
    try:
        from offbeat.report.live_server import HOST, listening, serve
    except ImportError as problem:
        raise needs_web("watch", problem, " Without them `offbeat report` shows a run once it has ended.") from problem
    with listening(port) as opened:
        taken = int(opened.getsockname()[1])
        address = f"http://{HOST}:{taken}/"
        who = "Everybody with an account on this machine can open the page:"
        announce(address, f"Showing {run} until Ctrl-C. {who}", json, open_, host=HOST, port=taken, run=str(run))
        serve(run, opened)


def _await(folder: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    if seconds and not folder.is_dir():
        say(f"Waiting for a run to make {folder}.")
    while not folder.is_dir() and time.monotonic() < until:
        time.sleep(POLL_S)


def announce(address: str, sentence: str, as_json: bool, open_: bool = False, **more: object) -> None:
    """Say where a page is served, and open it if that was asked for, in a thread: a browser for terminals keeps whoever
    opened it waiting."""
    import threading
    import webbrowser

    def opened() -> None:
        if not webbrowser.open(address):
            say(f"No browser was found; open {address} yourself.")

    if as_json:
        print_json({"address": address, **more})
    else:
        say(sentence)
        typer.echo(address)
    if open_:
        threading.Thread(target=opened, name="browser", daemon=True).start()
