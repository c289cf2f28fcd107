"""How far a long reproduction is: a bar on a terminal, a line for each part elsewhere."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


class Bar:
    """Use as a context. `begin` names the next part of a known number of them, `at` says how much of it is done."""

    def __init__(self, parts: int, say: Callable[[str], None]) -> None:
        self.parts, self.say = parts, say
        self.begun = 0
        self.shown: Any = None
        self.task: Any = None

    def __enter__(self) -> "Bar":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn(), TimeRemainingColumn())
            words = TextColumn("{task.description}")
            self.shown = Progress(words, *columns, console=Console(stderr=True), transient=True)
            self.task = self.shown.add_task("", total=self.parts)
            self.shown.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown is not None:
            self.shown.stop()

    def begin(self, name: str) -> None:
        self.begun += 1
        if self.shown is None:
            self.say(f"{self.begun} of {self.parts}: {name}")
        else:
            self.shown.update(self.task, completed=self.begun - 1, description=name)

    def at(self, share: float) -> None:
        """Of the part that was begun last, from 0 to 1."""
        if self.shown is not None:
            self.shown.update(self.task, completed=self.begun - 1 + min(share, 1.0))
