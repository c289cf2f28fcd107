"""What the commands share: where text goes, how errors end, progress, and a clean stop.

Progress and commentary go to standard error. Standard output carries what was asked for: one JSON document with
--json, otherwise a path or a page of text.
"""

import csv
import math
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from pathlib import Path
from time import strftime
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from offbeat.errors import BadInput, NotInstalled, OffbeatError
from offbeat.names import visible

if TYPE_CHECKING:
    from rich.table import Table

    from offbeat.run.observer import Progress


Data = Annotated[Path | None, typer.Option("--data", help="Where named data sets lie.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port on this machine; 0: any that is free.")]
Open = Annotated[bool, typer.Option("--open", help="Also open the page in the browser.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")]


UsageError: Any = typer.BadParameter.__base__
"""Of click, or of typer's own copy of it: which one depends on typer's version."""


class Polite(TyperGroup):
    """A group of commands that ends a user's mistake with one paragraph and its exit code, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # a terminal that lacks a letter gets its number
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except OffbeatError as problem:
            raise _ended(str(problem), problem.exit_code) from None
        except UsageError as problem:
            if type(problem).__name__ == "NoArgsIsHelpError":
                raise
            command = (problem.ctx or ctx).command_path
            said = problem.format_message()
            said += "" if said.endswith((".", "?")) else "."
            raise _ended(f"{said} `{command} --help` says what it takes.", BadInput.exit_code) from None
        except KeyboardInterrupt:
            raise _ended("interrupted", 1) from None
        except BrokenPipeError:  # a reader such as `head` has seen enough
            sys.stdout = None
            raise typer.Exit(0) from None
        except OSError as problem:
            raise _ended(_os_sentence(problem), 1 if problem.filename is None else BadInput.exit_code) from None


def _ended(paragraph: str, code: int) -> typer.Exit:
    speaker().print(f"[bold red]offbeat:[/] {escape(visible(paragraph))}", soft_wrap=True, highlight=False)
    return typer.Exit(code)


def _os_sentence(problem: OSError) -> str:
    """A path that cannot be read or written is the user's to mend; anything else is the machine's."""
    if problem.filename is None:
        return f"the operating system refused: {problem}."
    place = Path(os.fsdecode(problem.filename)).parent if isinstance(problem.filename, str | bytes) else Path()
    if isinstance(problem, FileNotFoundError) and not place.is_dir():
        return f"There is no folder {place} for {problem.filename}. Make it, or give another path."
    return (
        f"{problem.filename} cannot be read or written: {problem.strerror}. Give another path, or see that it may "
        "be read and written."
    )


def speaker() -> Console:
    """Standard error, for people."""
    return Console(stderr=True)


def say(sentence: str) -> None:
    speaker().print(escape(visible(sentence)), highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """The one document on standard output; numbers that are not finite become null."""
    from offbeat.metrics.plain import json_text

    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def show(value: object, as_json: bool) -> None:
    if as_json:
        print_json(value)


def group(about: str) -> typer.Typer:
    """Commands under one name."""
    return typer.Typer(no_args_is_help=True, add_completion=False, help=about)


FORMULA = re.compile(r"\s*[=+\-@](?![\d\s().,/eE+-]*$)(?=.*[(|!])", re.DOTALL)


def write_csv(rows: Sequence[Mapping[str, Any]], out: Path | None, head: Sequence[str] = ()) -> None:
    """Rows with the same keys, to a file, or to standard output (None or -)."""
    names = list(head or (rows[0] if rows else ()))
    here = out is None or str(out) == "-"
    with nullcontext(sys.stdout) if here or out is None else out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if names:
            writer.writeheader()
        writer.writerows({name: harmless(value) for name, value in row.items()} for row in rows)


def harmless(value: Any) -> Any:
    """A cell as a spreadsheet may open it: text from a table that would be a formula there begins with an apostrophe.
    What only looks like a number, such as +49 30 or -5, stays as it is."""
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def needs_web(command: str, problem: ImportError, instead: str = "") -> NotInstalled:
    return NotInstalled(
        f"`offbeat {command}` needs starlette and uvicorn, and {problem.name} is not there: pip install "
        f"'offbeat[web]'.{instead}"
    )


def new_folder(out: Path | None, name: str) -> Path:
    """The folder asked for, or a new one under runs/."""
    if out is not None:
        if out.exists() and not out.is_dir():
            raise BadInput(f"--out {out} is a file; expected a folder, or a path where one can be made.")
        _set_aside(out)
        out.mkdir(parents=True, exist_ok=True)
        return out
    folder = _unused(Path("runs") / f"{strftime('%Y%m%d-%H%M%S')}-{name}")
    folder.mkdir(parents=True)
    return folder


def _set_aside(out: Path) -> None:
    """An earlier run in the folder asked for is not written over: it moves to a folder beside it."""
    if (out / "record.json").is_file() or (out / "report.html").is_file():
        kept = out.rename(_unused(out.with_name(f"{out.name}-before")))
        say(f"{out} held an earlier run; it was moved to {kept}.")


def _unused(base: Path) -> Path:
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def rows_table(rows: Sequence[Mapping[str, Any]], whole: Sequence[str] = (), right: Sequence[str] = ()) -> "Table":
    """Rows with the same keys, as a light table. Columns named in `whole` are never broken; numbers, and columns named
    in `right`, are set to the right."""
    from offbeat.report.summary import light_table

    table = light_table()
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        numeric = name in right or all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(
            name.replace("_", " "), justify="right" if numeric else "left", overflow="fold", no_wrap=name in whole
        )
    for row in rows:
        table.add_row(*(escape(_cell(row.get(name))) for name in names))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(_cell, value)) if isinstance(value, list | tuple) else str(value)


# -- a clean stop ----------------------------------------------------------------------------------------------------


class Interruption:
    """Ctrl-C asks the run to end at its next look; a second one breaks off."""

    def __init__(self) -> None:
        self.wanted = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
        say("Stopping at the next look; what was computed is kept. Press Ctrl-C again to break off.")

    @contextmanager
    def watching(self) -> "Iterator[Interruption]":
        try:
            before = signal.signal(signal.SIGINT, self._on_signal)
        except ValueError:  # signals belong to the main thread; elsewhere the caller stops in its own way
            yield self
            return
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)


# -- progress --------------------------------------------------------------------------------------------------------


class RunProgress:
    """A bar over the passes, with the objective, the certificate, the lag, and the time that the target will take."""

    def __init__(self, title: str, passes: float, target: float | None, interruption: Interruption) -> None:
        self.title, self.passes, self.target, self.interruption = title, passes, target, interruption
        self.certificates: list[tuple[float, float]] = []
        self._bar: Any = None
        self._task: Any = None

    @contextmanager
    def shown(self) -> "Iterator[RunProgress]":
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = speaker()
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
        with Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        ) as bar:
            self._bar = bar
            self._task = bar.add_task(self.title, total=self.passes, text="preparing")
            yield self

    def begin(self, title: str) -> None:
        """The next of several runs under one bar."""
        self.certificates.clear()
        if self._bar is not None:
            self._bar.update(self._task, completed=0, description=title, text="")

    def watch(self, now: "Progress") -> bool:
        """One look; False when the run should stop."""
        known = now.certificate
        if known is not None and (not self.certificates or self.certificates[-1][1] != known):
            self.certificates.append((now.time_s, known))
        if self._bar is not None:
            self._bar.update(self._task, completed=min(now.passes, self.passes), text=self._text(now))
        return not self.interruption.wanted

    def _text(self, now: "Progress") -> str:
        left_s = self.seconds_to_target(now.time_s)
        parts = {
            "trying the penalty {:.2g}": now.trying,
            "pass {:.1f}": now.passes if now.lag_mean is not None else None,
            "objective {:.6f}": now.objective,
            "test {:.4f}": now.metric if now.lag_mean is None else None,
            "lag {:.1f}": now.lag_mean,
            "within {:.1e}": now.certificate,
            "target in {:.1f} s": left_s,
        }
        return " · ".join(shape.format(value) for shape, value in parts.items() if value is not None)

    def seconds_to_target(self, now_s: float) -> float | None:
        """The run's seconds until the certificate meets the target, if it goes on falling as it did last."""
        if self.target is None or len(self.certificates) < 2:
            return None
        (before_s, before), (last_s, last) = self.certificates[-2:]
        if not 0 < last < before or last <= self.target or last_s <= before_s:
            return None
        rate = math.log(before / last) / (last_s - before_s)
        return max(0.0, last_s + math.log(last / self.target) / rate - now_s)
