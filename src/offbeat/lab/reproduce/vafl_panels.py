"""One data set under one kind of delays: three variants, with and without noise, beside the centralised result.

Published is a picture and the sentence "two times speed-up in most cases", so a row compares ratios of times, never
seconds. The speed-up is taken at the loss that the synchronous variant has at a quarter, at half and at the end of its
time; the row's figure is the last. All variants share the step, the batch and the looks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offbeat.lab.catalogue import LabOptions
from offbeat.lab.reproduce.bar import Bar
from offbeat.lab.reproduce.vafl_problems import Problem
from offbeat.lab.reproduce.vafl_runs import PUBLISHED, Delays, Run, Trial, kept, kept_run
from offbeat.privacy.embedding import bought_epsilon

TITLES = {"vafl-sync": "sync", "vafl-tsync": "t-sync", "vafl": "async"}
SPEED_PUBLISHED = "about 2 in most cases"
AGREES = 1.7  # what may still be called about 2
DELTA = 1e-5

Central = Callable[[float], tuple[float, float]]
"""(loss, metric) of training in one place for so many passes."""


@dataclass(frozen=True)
class Cells:
    """The runs of one panel: all variants without noise, those of `noisy` with, and the centralised one."""

    problem: Problem
    trial: Trial
    noisy: Mapping[str, float]
    central: Central

    @property
    def count(self) -> int:
        return len(TITLES) + len(self.noisy) + 1


class Panel:
    """What came of them."""

    def __init__(self, problem: Problem, delays: Delays, runs: Mapping[str, Run], central: tuple[float, float]) -> None:
        self.problem, self.delays, self.runs = problem, delays, runs
        self.central_loss, self.central_metric = central

    def speed_ups(self, name: str) -> list[float | None]:
        """At the loss of sync after a quarter, half and all of its time."""
        sync = self.runs["sync"]
        found: list[float | None] = []
        for part in (0.25, 0.5, 1.0):
            loss = sync.loss_at(part * sync.looks[-1][0])
            ours, theirs = self.runs[name].time_to(loss), sync.time_to(loss)
            found.append(theirs / ours if ours and theirs else None)
        return found


def run_panels(wanted: Sequence[Cells], options: LabOptions) -> list[Panel]:
    """One after another, under one bar; each result is stored as soon as it is there."""
    with Bar(sum(cells.count for cells in wanted), options.say) as bar:
        return [run_panel(cells, options, bar) for cells in wanted]


def run_panel(cells: Cells, options: LabOptions, bar: Bar) -> Panel:
    folder, problem, trial = options.out / "panels", cells.problem, cells.trial
    stem = f"{problem.name}-{trial.delays.jitter}-{trial.delays.slowest:g}"
    runs: dict[str, Run] = {}
    for variant, noise in [*((variant, 0.0) for variant in TITLES), *cells.noisy.items()]:
        name = TITLES[variant] if noise == 0 else f"{TITLES[variant]}, c = {noise:g}"
        bar.begin(f"{problem.name}, {trial.delays.name}: {name}")
        one = replace(trial, variant=variant, noise=noise)
        runs[name] = kept_run(folder, problem, one, f"{stem}-{variant}-{noise:g}-{trial.seed}", told=bar.at)
    bar.begin(f"{problem.name}: centralised")
    passes = max(run.passes for run in runs.values())
    what = {"data": problem.fingerprint(), "source": problem.source, "step": repr(problem.optimiser), "passes": passes}
    stored = kept(folder, f"{stem}-central", what, lambda: _pair(cells.central(passes)))
    return Panel(problem, trial.delays, runs, (stored["loss"], stored["metric"]))


def _pair(judged: tuple[float, float]) -> dict[str, float]:
    return {"loss": judged[0], "metric": judged[1]}


# -- what a reader compares -----------------------------------------------------------------------------------------


def rows_of(panel: Panel) -> list[dict[str, Any]]:
    """Passes, lags and all looks are in the files of `panels`."""
    rows = []
    for name, run in panel.runs.items():
        ups = panel.speed_ups(name)
        rows.append(
            {
                "setting": f"{panel.problem.name}, {panel.delays.name}: {name}",
                "ours": None if ups[-1] is None else round(ups[-1], 2),
                "published": _published(name, panel.delays),
                "verdict": _verdict(name, panel, ups[-1]),
                "at quarter, half": ", ".join("-" if up is None else f"{up:.2f}" for up in ups[:2]),
                "loss": round(run.final_loss, 4),
                panel.problem.metric: round(run.final_metric, 4),
                f"centralised {panel.problem.metric}": round(panel.central_metric, 4),
            }
        )
    return rows


def _published(name: str, delays: Delays) -> str:
    if name.startswith("sync"):
        return "1 (the baseline)"
    return SPEED_PUBLISHED if delays is PUBLISHED else "not published"


def _verdict(name: str, panel: Panel, up: float | None) -> str:
    run = panel.runs[name]
    above = 100 * (run.final_metric - panel.central_metric)
    side = "above" if above > 0 else "below"
    said = ["within one point of centralised" if abs(above) <= 1 else f"{abs(above):.1f} points {side} centralised"]
    if panel.delays is PUBLISHED and not name.startswith("sync"):
        reached = "agrees" if up is not None and up >= AGREES else "slower than published"
        said.insert(0, reached if up is not None else "does not reach sync's loss")
    if "c = " in name:
        said.append(_about_noise(float(name.rpartition(" ")[2]), run.uploads_max))
    return "; ".join(said)


def _about_noise(c: float, uploads: int) -> str:
    return (
        f"perturbed, no privacy claim: {uploads} uploads a record cost epsilon {bought_epsilon(c, uploads, DELTA):,.0f}"
    )


def figure_of(panels: Sequence[Panel], path: Path, title: str) -> list[Path]:
    """Training loss and test metric against virtual time without noise, and the loss with noise: three axes each."""
    from offbeat.report import figures

    drawn = []
    for panel in panels:
        plain = [name for name in panel.runs if "c = " not in name]
        noisy = [name for name in panel.runs if "c = " in name]
        wanted = [(1, "training loss", plain), (2, f"test {panel.problem.metric}", plain)]
        if noisy:
            c = noisy[0].rpartition(", ")[2]
            wanted.append((1, f"training loss, with noise of {c}", [*noisy, *plain[: len(noisy) % 3]]))
        for column, word, names in wanted:
            level = panel.central_loss if column == 1 else panel.central_metric
            curves = [_curve(panel, name, column) for name in names]
            drawn.append(figures.Panel(panel.problem.name, "virtual time", word, curves, level=("centralised", level)))
    return list(figures.draw_panels(drawn, path, columns=3, title=title))


def _curve(panel: Panel, name: str, column: int) -> Any:
    """Every variant keeps its tone, with noise and without."""
    from offbeat.report import figures

    short = name.partition(",")[0]
    shown = name if "c = " in name and len(panel.runs) == len(TITLES) + 1 else short
    return figures.Curve(
        shown, [(look[0], look[column]) for look in panel.runs[name].looks], list(TITLES.values()).index(short)
    )
