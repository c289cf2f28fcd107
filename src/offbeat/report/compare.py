"""Several runs side by side, on the same axes: a table of text, a figure, and a page for browsers.

What cannot be compared fairly is said before the numbers: different data, different clocks, privacy on one
side, looks taken at different rates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from offbeat.metrics.curves import Quantity, looks_per_pass, measured, points, to_target
from offbeat.metrics.record import RunRecord
from offbeat.report import numbers, wording
from offbeat.report.charts import (
    QUANTITIES,
    ChartLine,
    against_everything,
    falls_far,
    legend,
    line_chart,
    part_legend,
    time_bars,
)
from offbeat.report.html import Child, Markup, document, figure, listed, quiet, section, table, tag
from offbeat.report.page import header, split_rows
from offbeat.report.summary import light_table

Records = Mapping[str, RunRecord]

PROBLEM = ("loss", "penalty", "penalty_kind", "l1_ratio", "class_weight", "intercept", "label_dp_epsilon", "strength")
"""Keys of a job on which its objective depends."""
_RATE_TOLERANCE = 1.5
_RUNS_ABREAST = 5
_PREFERRED: tuple[Quantity, ...] = ("suboptimality", "objective", "gap", "test_metric")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs by name, and the target (of sub-optimality, or of the quantity all runs measured) that they race to.

    `targets` gives some runs a target of their own, where methods that end at different distances are raced in pairs.
    """

    records: Records
    target: float | None = None
    targets: Mapping[str, float] = field(default_factory=dict)

    @property
    def quantity(self) -> Quantity | None:
        """The first of the quantities worth comparing that every run measured."""
        for quantity in _PREFERRED:
            if self.records and all(measured(record.curve, quantity) for record in self.records.values()):
                return quantity
        return None

    @property
    def log(self) -> bool:
        curves = [record.curve for record in self.records.values()]
        return self.quantity in ("suboptimality", "gap") or (self.quantity == "objective" and falls_far(curves))

    @property
    def levels(self) -> list[float]:
        """Every target that some run has, each once."""
        own = (self.targets.get(name, self.target) for name in self.records)
        return sorted({target for target in own if target is not None})

    def time_to_target(self, name: str) -> float | None:
        target = self.targets.get(name, self.target)
        if target is None or self.quantity is None:
            return None
        return to_target(self.records[name].curve, target, self.quantity)

    def caveats(self) -> list[str]:
        """Sentences on everything that makes these runs unequal beyond what they are meant to compare."""
        runs = list(self.records.values())
        found = []
        if len({(run.data.source, run.data.rows) for run in runs}) > 1:
            found.append("These runs did not use the same data: their objectives cannot be compared.")
        found += _other_problems(runs)
        if len({run.clock for run in runs}) > 1:
            found.append("Some times are virtual and some are of a wall clock: they cannot be compared.")
        if len({run.private for run in runs}) > 1:
            found.append("Some of these runs are differentially private and some are not: noise makes part of it.")
        rates = [rate for rate in (looks_per_pass(run.curve) for run in runs) if rate]
        if rates and max(rates) > _RATE_TOLERANCE * min(rates):
            found.append(
                f"These runs were not looked at equally often ({min(rates):.2g} to {max(rates):.2g} looks a pass): "
                "times to a target favour the one looked at more."
            )
        return found


def _other_problems(runs: Sequence[RunRecord]) -> list[str]:
    """A sentence where the runs minimise different things."""
    told = [
        f"{key} {' or '.join(sorted(values))}"
        for key in PROBLEM
        if len(values := {str(run.options[key]) for run in runs if key in run.options}) > 1
    ]
    models = {wording.model_kind(run) for run in runs}
    told += [f"model {' or '.join(sorted(models))}"] if len(models) > 1 else []
    if not told:
        return []
    return [f"These runs minimise different things ({'; '.join(told)}): compare test metrics, not objectives."]


# -- text ---------------------------------------------------------------------------------------------------------


def comparison(runs: Comparison) -> Group:
    """A column for each run, five to a table, with the caveats above them, as something rich can print."""
    head, rows = _cells(runs)
    tables = [_table(head, rows[start : start + _RUNS_ABREAST]) for start in range(0, len(rows), _RUNS_ABREAST)]
    return Group(*(Text(f"! {caveat}", style="yellow") for caveat in runs.caveats()), *tables)


def _table(head: list[str], rows: list[list[str]]) -> Table:
    body = light_table()
    body.add_column(head[0], no_wrap=True)
    for row in rows:
        body.add_column(Text(row[0]), justify="right", overflow="fold")
    for index, name in enumerate(head[1:], 1):
        body.add_row(name, *(Text(row[index]) for row in rows))
    return body


def _cells(runs: Comparison) -> tuple[list[str], list[list[str]]]:
    metrics = list(dict.fromkeys(name for record in runs.records.values() for name in record.metrics))
    levels = [numbers.short(level) for level in reversed(runs.levels)]
    target = [f"time to {' or '.join(levels)}"] if levels else []
    head = ["run", "method", "verdict", "objective", "bound", *map(wording.metric_name, metrics), "passes", "time",
            *target, "sent", "lag mean", "lag max"]  # fmt: skip
    return head, [_row(runs, name, metrics) for name in runs.records]


def _row(runs: Comparison, name: str, metrics: list[str]) -> list[str]:
    record = runs.records[name]
    parties = record.parties.values()
    applied = sum(party.updates for party in parties)
    lag = sum(party.lag_mean * party.updates for party in parties) / applied if applied else 0.0
    reached = [numbers.seconds(runs.time_to_target(name))] if runs.levels else []
    return [
        name,
        record.algorithm,
        record.verdict,
        numbers.short(record.objective, 6),
        numbers.short(record.bound, 2),
        *(numbers.short(record.metrics.get(metric)) for metric in metrics),
        numbers.short(record.passes, 3),
        numbers.seconds(record.seconds),
        *reached,
        numbers.size(record.bytes_sent),
        f"{lag:.2f}",
        numbers.count(max((party.lag_max for party in parties), default=0)),
    ]


# -- page ---------------------------------------------------------------------------------------------------------


def comparison_page(runs: Comparison, title: str = "Runs compared", lead: str = "", first: Child = "") -> str:
    """Several curves on one axis, the table, and where each run's time went; `first` goes before them."""
    head, rows = _cells(runs)
    return document(
        title,
        header(
            title,
            tag("p", lead, class_="lead") if lead else Markup(""),
            listed(runs.caveats(), class_="warnings"),
        ),
        tag(
            "main",
            first,
            section("runs", "Runs", table(head, rows, "One row per run", numeric=range(3, len(head)))),
            section("progress", "Progress", _curves(runs)),
            section("time", "Where the time went", part_legend(), _splits(runs)),
        ),
    )


def write_comparison(
    runs: Comparison, path: str | Path, title: str = "Runs compared", lead: str = "", first: Child = ""
) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(comparison_page(runs, title, lead, first), encoding="utf-8")
    return path


def _curves(runs: Comparison) -> Markup:
    quantity = runs.quantity
    if quantity is None:
        return quiet("There is no quantity that all of these runs measured.")
    counted = " or ".join(sorted({wording.unit(record) for record in runs.records.values()}))
    return tag(
        "div",
        legend([(name, tone) for tone, name in enumerate(runs.records)]),
        against_everything(
            lambda axis: line_chart(
                [
                    ChartLine(name, points(record.curve, axis, quantity), tone)
                    for tone, (name, record) in enumerate(runs.records.items())
                ],
                axis,
                QUANTITIES[quantity],
                runs.log,
                levels=runs.levels,
                along=counted if axis == "passes" else "",
            )
        ),
    )


def _splits(runs: Comparison) -> Markup:
    """Bars of all runs, two in a row, on one scale."""
    longest = max((sum(split) for run in runs.records.values() for _, split, _ in split_rows(run)), default=1.0)
    bars = [figure(name, time_bars(split_rows(record), longest)) for name, record in runs.records.items()]
    return tag("div", *bars, class_="two")
