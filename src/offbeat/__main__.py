"""The `offbeat` command, also as `python -m offbeat`. Ctrl-C may come while the command is still being imported."""

import sys


def main() -> None:
    try:
        from offbeat.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit("offbeat: interrupted")


if __name__ == "__main__":
    main()
