"""`python -m offbeat` is the `offbeat` command, for where the script is not on the path."""

from offbeat.cli import main

if __name__ == "__main__":
    main()
