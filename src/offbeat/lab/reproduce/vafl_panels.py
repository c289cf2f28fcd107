"""One data set under one kind of delays: three variants, with and without noise, beside the centralised result.

Published is a picture and the sentence "two times speed-up in most cases", so a row compares ratios of times, never
seconds. The speed-up is taken at the loss that the synchronous variant has at a quarter, at half and at the end of its
time; the row's figure is the last. All variants share the clients' step, the batch and the looks; the head's step is
the multiple of it that ends at the lower training loss, chosen for each variant by itself.

The metric of every side is the best of its looks, so that nobody is judged where it has overfitted. Centralised is
given twice: after as many passes as the row made, and after three times as many as any of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offbeat.lab.catalogue import LabOptions
from offbeat.lab.reproduce.bar import Bar
from offbeat.lab.reproduce.vafl_central import Look
from offbeat.lab.reproduce.vafl_problems import VaflProblem
from offbeat.lab.reproduce.vafl_runs import PUBLISHED, Delays, VaflRun, VaflTrial, kept, kept_run
from offbeat.privacy.embedding import bought_epsilon

TITLES = {"vafl-sync": "sync", "vafl-tsync": "t-sync", "vafl": "async"}
SPEED_PUBLISHED = "about 2 in most cases"
AGREES = 1.7  # what may still be called about 2
DELTA = 1e-5

TO_ITS_END = 3.0  # how many times the passes of the longest run are given to the centralised model
CENTRAL_LOOKS = 45

Central = Callable[[float, int], list[Look]]
"""Training in one place for so many passes, with so many looks."""


@dataclass(frozen=True)
class PanelCells:
    """The runs of one panel: all variants without noise, those of `noisy` with, and the centralised one. `heads`: the
    head's steps to choose from, as multiples of the clients'."""

    problem: VaflProblem
    trial: VaflTrial
    noisy: Mapping[str, float]
    central: Central
    heads: Sequence[float] = (1.0,)

    @property
    def count(self) -> int:
        return len(TITLES) * len(self.heads) + len(self.noisy) + 1


class VaflPanel:
    """What came of them. `heads`: the multiple that each variant chose."""

    def __init__(
        self,
        problem: VaflProblem,
        delays: Delays,
        runs: Mapping[str, VaflRun],
        central: Sequence[Look],
        heads: Mapping[str, float],
    ) -> None:
        self.problem, self.delays, self.runs, self.central, self.heads = problem, delays, runs, central, heads

    def central_after(self, passes: float) -> float:
        """The best metric of the centralised model within so many passes."""
        return max(metric for done, _, metric in self.central if done <= passes or done == self.central[0][0])

    @property
    def central_best(self) -> float:
        return max(metric for _, _, metric in self.central)

    @property
    def central_loss(self) -> float:
        return min(loss for _, loss, _ in self.central)

    def head_step(self, name: str) -> float:
        """The head's step of the row of this name."""
        variant = next(variant for variant, title in TITLES.items() if title == name.partition(",")[0])
        return self.heads[variant] * self.problem.optimiser.step

    def speed_ups(self, name: str) -> list[float | None]:
        """At the loss of sync after a quarter, half and all of its time."""
        sync = self.runs["sync"]
        found: list[float | None] = []
        for part in (0.25, 0.5, 1.0):
            loss = sync.loss_at(part * sync.looks[-1][0])
            ours, theirs = self.runs[name].time_to(loss), sync.time_to(loss)
            found.append(theirs / ours if ours and theirs else None)
        return found


def run_panels(wanted: Sequence[PanelCells], options: LabOptions) -> list[VaflPanel]:
    """One after another, under one bar; each result is stored as soon as it is there."""
    with Bar(sum(cells.count for cells in wanted), options.say) as bar:
        return [run_panel(cells, options, bar) for cells in wanted]


def run_panel(cells: PanelCells, options: LabOptions, bar: Bar) -> VaflPanel:
    folder, problem, trial = options.out / "panels", cells.problem, cells.trial
    stem = f"{problem.name}-{trial.delays.short}"
    runs: dict[str, VaflRun] = {}
    heads: dict[str, float] = {}
    for variant, title in TITLES.items():
        tried: dict[float, VaflRun] = {}
        for head in cells.heads:
            bar.begin(f"{problem.name}, {trial.delays.name}: {title}, head {head:g}")
            one = replace(trial, variant=variant, head=head)
            tried[head] = kept_run(folder, problem, one, f"{stem}-{variant}-{head:g}-{trial.seed}", told=bar.at)
        heads[variant] = min(tried, key=lambda head: tried[head].final_loss)
        runs[title] = tried[heads[variant]]
    for variant, noise in cells.noisy.items():
        name = f"{TITLES[variant]}, c = {noise:g}"
        bar.begin(f"{problem.name}, {trial.delays.name}: {name}")
        one = replace(trial, variant=variant, noise=noise, head=heads[variant])
        runs[name] = kept_run(folder, problem, one, f"{stem}-{variant}-c{noise:g}-{trial.seed}", told=bar.at)
    bar.begin(f"{problem.name}: centralised")
    return VaflPanel(problem, trial.delays, runs, _central(cells, folder, stem, runs), heads)


def _central(cells: PanelCells, folder: Path, stem: str, runs: Mapping[str, VaflRun]) -> list[Look]:
    problem, passes = cells.problem, TO_ITS_END * max(run.passes for run in runs.values())
    what = {"data": problem.fingerprint(), "source": problem.source, "step": repr(problem.optimiser), "passes": passes}
    stored = kept(folder, f"{stem}-central", what, lambda: {"looks": cells.central(passes, CENTRAL_LOOKS)})
    return [tuple(look) for look in stored["looks"]]


# -- what a reader compares -----------------------------------------------------------------------------------------


def rows_of(panel: VaflPanel) -> list[dict[str, Any]]:
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
                "passes": round(run.passes, 2),
                "head step": panel.head_step(name),
                panel.problem.metric: round(run.best_metric, 4),
                "centralised, equal passes": round(panel.central_after(run.passes), 4),
                "centralised, to its end": round(panel.central_best, 4),
            }
        )
    return rows


def _published(name: str, delays: Delays) -> str:
    if name.startswith("sync"):
        return "1 (the baseline)"
    return SPEED_PUBLISHED if delays is PUBLISHED else "not published"


def _verdict(name: str, panel: VaflPanel, up: float | None) -> str:
    run = panel.runs[name]
    said = [_beside(run.best_metric - panel.central_after(run.passes), "centralised at equal passes")]
    said.append(_beside(run.best_metric - panel.central_best, "centralised to its end"))
    if panel.delays is PUBLISHED and not name.startswith("sync"):
        reached = "agrees" if up is not None and up >= AGREES else "slower than published"
        said.insert(0, reached if up is not None else "does not reach sync's loss")
    if "c = " in name:
        said.append(_about_noise(float(name.rpartition(" ")[2]), run.uploads_max))
    return "; ".join(said)


def _beside(above: float, what: str) -> str:
    points = 100 * above
    return f"within one point of {what}" if abs(points) <= 1 else f"{points:+.1f} points beside {what}"


def _about_noise(c: float, uploads: int) -> str:
    return (
        f"perturbed, no privacy claim: {uploads} uploads a record cost epsilon {bought_epsilon(c, uploads, DELTA):,.0f}"
    )


def figure_of(panels: Sequence[VaflPanel], path: Path, title: str) -> list[Path]:
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
            level = panel.central_loss if column == 1 else panel.central_best
            curves = [_curve(panel, name, column) for name in names]
            drawn.append(
                figures.Panel(
                    panel.problem.name, "virtual time", word, curves, level=("centralised, to its end", level)
                )
            )
    return list(figures.draw_panels(drawn, path, columns=3, title=title))


def _curve(panel: VaflPanel, name: str, column: int) -> Any:
    """Every variant keeps its tone, with noise and without."""
    from offbeat.report import figures

    short = name.partition(",")[0]
    shown = name if "c = " in name and len(panel.runs) == len(TITLES) + 1 else short
    return figures.Curve(
        shown, [(look[0], look[column]) for look in panel.runs[name].looks], list(TITLES.values()).index(short)
    )
