"""The command line; `offbeat.cli:main` is the `offbeat` script."""

from offbeat.cli.root import app, main

__all__ = ["app", "main"]
