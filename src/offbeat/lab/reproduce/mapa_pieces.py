"""What MAPA's figures share: pieces trained once and kept, what sound runs spent, and how lines are drawn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offbeat.lab.catalogue import LabOptions
from offbeat.lab.reproduce.mapa_runs import Courses, MapaSetting, train
from offbeat.lab.reproduce.measure import kept_pieces
from offbeat.privacy.mechanism import PAPER_WARNING

ALGORITHMS = ("mapa", "audp", "asgd", "csgd")
EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5)
TOTALS = (0.5, 1.0, 2.0, 4.0, 8.0)
ITERATIONS = {"LR": 15_000, "SVM": 10_000, "CNN": 6_000}  # the print has 25,000 for the network
SOUND_BATCH = 128
TRAINED = 0.7  # the accuracy from which ten digits count as learnt
QUICK_ROWS, QUICK_TEST_ROWS = 12_000, 2_000
TONES = {
    "mapa": 0,
    "audp": 1,
    "asgd": 2,
    "csgd": 3,
    "adaptive clip": 4,
    "fixed clip": 5,
    "mapa by rule": 6,
    "steady by rule": 7,
}

Row = dict[str, Any]
Lines = dict[str, list[tuple[float, float]]]


class Workshop:
    """The pieces of one figure: trained once, kept on disk, reported as they come."""

    def __init__(self, name: str, options: LabOptions, limit_rows: int | None = None) -> None:
        self.name, self.options = name, options
        self.courses = Courses(options.data_dir, limit_rows, None if limit_rows is None else QUICK_TEST_ROWS)
        self.folder = options.out / name
        self.kept = kept_pieces(options, f"{name}/pieces")
        self.limit_rows = limit_rows

    def train(self, setting: MapaSetting) -> dict[str, Any]:
        key = f"{setting.key()} rows={self.limit_rows}"
        known = key in self.kept.pieces
        result: dict[str, Any] = self.kept.get(key, lambda: train(self.courses, setting))
        if not known:
            where = f"{setting.data} {setting.model} {setting.algorithm} ({setting.mode}), {setting.edges} edges"
            self.options.say(f"{self.name}: {where}, epsilon {setting.epsilon:g}: {result['accuracy']:.3f}")
        return result

    def path(self, stem: str) -> Path:
        return self.folder / stem


def soundly(setting: MapaSetting, updates: int, **changes: Any) -> MapaSetting:
    """The same number of rows seen, in larger batches, with a total budget."""
    fewer = max(60, updates * setting.batch // SOUND_BATCH * 2)
    return replace(setting, mode="sound", batch=SOUND_BATCH, updates=fewer, **changes)


def trained_enough(accuracy: float) -> bool:
    return accuracy >= TRAINED


def untrained(accuracy: float) -> str:
    """What is said of a network that the updates did not carry far enough for a comparison."""
    return f"not judged: {accuracy:.2f} is not yet a trained network (below {TRAINED:g})"


def paper_note() -> str:
    return f"Rows marked (paper): {PAPER_WARNING}"


def accounted(results: Iterable[Mapping[str, Any]]) -> str:
    """What the sound runs really spent, under both adjacencies."""
    stated = [result["privacy"] for result in results if result["privacy"]]
    most = {name: max(s[name] for s in stated) for name in ("replace-one", "add-remove")}
    return f"epsilon {most['replace-one']:.3g} replace-one, {most['add-remove']:.3g} add-remove, delta 1e-5"


def spread_of(results: Mapping[float, Mapping[str, Any]]) -> float:
    accuracies = [result["accuracy"] for result in results.values()]
    return float(max(accuracies) - min(accuracies))


def curves_figure(
    panels: Sequence[tuple[str, Mapping[str, Mapping[str, Any]]]], path: Path, column: int, label: str
) -> tuple[Path, Path]:
    from offbeat.report.figures import Curve, Panel, draw_panels

    drawn = []
    for title, results in panels:
        curves = [
            Curve(name, [(row[0], row[column]) for row in result["curve"] if row[column] > 0], tone)
            for tone, (name, result) in enumerate(results.items())
        ]
        drawn.append(Panel(title, "updates", label, curves, log_y=label == "clip"))
    return draw_panels(drawn, path)


def lines_figure(
    panels: Sequence[tuple[str, Lines]], path: Path, x_label: str, log_x: bool = False
) -> tuple[Path, Path]:
    from offbeat.report.figures import Curve, Panel, draw_panels

    drawn = [
        Panel(
            title,
            x_label,
            "test accuracy",
            [Curve(n, p, TONES.get(n, i)) for i, (n, p) in enumerate(lines.items())],
            log_x,
        )
        for title, lines in panels
    ]
    return draw_panels(drawn, path)
