"""offbeat demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.output import Data, Interruption, Json, RunProgress, new_folder, print_json, rows_table, say, speaker

if TYPE_CHECKING:
    from offbeat.lab.demo import Demo, DemoRow
    from offbeat.report.html import Markup
    from offbeat.run.observer import Watch

HEAD = ("method", "target", "async", "sync", "speed-up", "none slow", "AUC", "within")
WITHIN = (
    "AUC: of the asynchronous model, on the test rows. within: its objective is at most so far above the best possible "
    "one; the parties computed this bound without pooling anything."
)
NONE_SLOW = "none slow: the same ratio when nobody is slow; near 1, since the asynchronous run then waits as rounds do."
ONE_SEED = "One seed: differences below some 15 % (with plain stochastic gradients, 40 %) mean nothing."


def demo(
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same digest.")] = 0,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go; a new folder under runs/ by default.")] = None,
    json: Json = False,
) -> None:
    """Credit default, four parties, one slow: three methods, asynchronous against synchronous, in under a minute."""
    from offbeat.lab.demo import PASSES, TARGETS, demo_object, run_demo
    from offbeat.metrics.record import read_records
    from offbeat.report.compare import Comparison, write_comparison

    folder = new_folder(out, "demo")
    interruption = Interruption()
    progress = RunProgress("reading data", PASSES, None, interruption)

    def begun(name: str) -> "Watch":
        progress.begin(name)
        return progress.watch

    with interruption.watching(), progress.shown():
        done = run_demo(seed, data, folder, begun)
    shown = [name for name in done.results if not name.endswith("-even")]
    runs = Comparison(read_records(folder / name for name in shown), targets=TARGETS)
    page = write_comparison(
        runs, folder / "report.html", "Credit default: asynchronous against synchronous", _lead(done), _section(done)
    )
    if json:
        print_json(demo_object(done, folder, page))
    else:
        _tell(done, page)
    raise typer.Exit(1 if interruption.wanted else 0)


def _lead(done: "Demo") -> str:
    from offbeat.lab.demo import SLOW_FACTOR, SLOW_PARTY

    return (
        f"{done.data.source} Four parties; {SLOW_PARTY} is {SLOW_FACTOR:g} times slower than the others. Virtual time, "
        "one seed; every look at the same part of a pass on both sides."
    )


def _tell(done: "Demo", page: Path) -> None:
    from offbeat.lab.demo import SLOW_FACTOR, SLOW_PARTY

    real = "Real data" if done.is_real else "Generated data (the real set was not found; see `offbeat data`)"
    say(f"\n{real}: {done.data.source}")
    say(
        f"{done.data.rows:,} rows to train, {done.data.test_rows:,} to test. Parties: {', '.join(done.data.names)}; "
        f"{SLOW_PARTY} is {SLOW_FACTOR:g} times slower. Times are virtual seconds to the target, pairwise masks on.\n"
    )
    speaker().print(rows_table([dict(zip(HEAD, _cells(row), strict=True)) for row in done.rows], right=HEAD[1:]))
    say(
        f"\n{WITHIN}\n{NONE_SLOW}\n"
        "Answering peers is free, as in the published experiments. Which party is slow matters as much as how slow it "
        "is: where its columns cannot be made up for by the others', the gain is smaller."
    )
    say(ONE_SEED)
    say(f"Digest {done.digest}\nThe comparison, for browsers: {page}")
    typer.echo(str(page))


def _section(done: "Demo") -> "Markup":
    """The table of speed-ups for the page, with the cells that the terminal shows."""
    from offbeat.report.html import quiet, section, table, tag

    rows = [_cells(row) for row in done.rows]
    notes = (f"Times are virtual seconds to the method's target. {NONE_SLOW}", WITHIN, ONE_SEED)
    body = table(HEAD, rows, "Asynchronous against synchronous, by method", numeric=range(1, len(HEAD)))
    told = tag("div", *map(quiet, notes), class_="gap")
    return section("speed-ups", "Speed-ups", body, told)


def _cells(row: "DemoRow") -> list[str]:
    return [
        row.method,
        f"{row.target:.1e}",
        _number(row.async_s, "{:.2f} s"),
        _number(row.sync_s, "{:.2f} s"),
        _number(row.speedup, "{:.2f}x"),
        _number(row.speedup_without_straggler, "{:.2f}x"),
        _number(row.auc, "{:.4f}"),
        _number(row.certificate, "{:.1e}"),
    ]


def _number(value: float | None, shape: str) -> str:
    return shape.format(value) if value is not None else "not met"
