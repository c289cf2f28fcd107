"""The command line; `offbeat.__main__:main` is the `offbeat` script."""

from offbeat.cli.root import app, main

__all__ = ["app", "main"]
