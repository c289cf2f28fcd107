"""MAPA's Figures 7 to 9: many edges, random delays, one parameter at a time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offbeat.reproduce.catalogue import ReproduceOptions, ReproduceResult
from offbeat.reproduce.mapa_pieces import (
    ALGORITHMS,
    QUICK_ROWS,
    SOUND_BATCH,
    Row,
    Workshop,
    accounted,
    curves_figure,
    paper_note,
    spread_of,
)
from offbeat.reproduce.mapa_runs import Setting

# -- figure 7 -------------------------------------------------------------------------------------------------------


def figure_7(options: ReproduceOptions) -> ReproduceResult:
    """Updates until the mean of five looks at the test loss is below a threshold, 10, 100 and 1,000 edges."""
    shop = Workshop("mapa-fig7", options, QUICK_ROWS if options.quick else None)
    counts = (10, 100) if options.quick else (10, 100, 1000)
    sets = ("mnist",) if options.quick else ("usps", "mnist")
    models = ("LR", "SVM") if options.quick else ("LR", "SVM", "CNN")
    cap = 20_000 if options.quick else 100_000
    rows: list[Row] = []
    charts = []
    for data in sets:
        for model in models:
            threshold = _threshold(shop, data, model)
            table = {a: _iterations(shop, data, model, a, counts, threshold, cap) for a in ALGORITHMS}
            charts.append((f"{model}, {data.upper()} (paper): updates to loss {threshold:.3g}", table))
            rows += [_iterations_row(model, data, table, i, edges, cap) for i, edges in enumerate(counts)]
    figures = _iterations_figure(charts, counts, shop.path("updates"))
    sound = _sound_iterations(shop, cap)
    notes = [
        "The threshold matters: at half of CSGD's gain AUDP came first with LR and ten edges.",
        "The print gives no threshold; ours is reached with four fifths of what CSGD gains in 2,000 updates.",
        f"'fail' and None: not within {cap:,} updates. USPS over 1,000 edges leaves 7 rows each, so batches of 7.",
        paper_note(),
    ]
    return ReproduceResult([*rows, sound], figures, notes)


def _threshold(shop: Workshop, data: str, model: str) -> float:
    first = Setting(data, model, "csgd", "none", edges=1, updates=2_000, seed=shop.options.seed)
    curve = shop.train(first)["curve"]
    return float(0.2 * curve[0][2] + 0.8 * curve[-1][2])


def _iterations(
    shop: Workshop, data: str, model: str, algorithm: str, counts: Sequence[int], threshold: float, cap: int
) -> list[int | None]:
    mode = "paper" if algorithm in ("mapa", "audp") else "none"
    base = Setting(data, model, algorithm, mode, updates=cap, seed=shop.options.seed, until_loss=threshold)
    limit = min(cap, 3_000) if model == "CNN" else cap
    return [shop.train(replace(base, edges=edges, updates=limit))["reached"] for edges in counts]


def _iterations_row(
    model: str, data: str, table: Mapping[str, Sequence[int | None]], at: int, edges: int, cap: int
) -> Row:
    mapa, audp, asgd, csgd = (table[name][at] for name in ALGORITHMS)
    if mapa is None and audp is None:
        verdict = f"not judged: neither was there within {cap:,} updates"
        return _iterations_as_row(model, data, edges, (mapa, audp, asgd, csgd), verdict)
    quicker = mapa is not None and (audp is None or mapa < audp)
    late = edges < 100 or (mapa is not None and (asgd is None or mapa < asgd))
    verdict = "agrees" if quicker and late else "agrees in part" if quicker or late else "does not agree"
    return _iterations_as_row(model, data, edges, (mapa, audp, asgd, csgd), verdict)


def _iterations_as_row(model: str, data: str, edges: int, counts: Sequence[int | None], verdict: str) -> Row:
    return {
        "setting": f"{model}, {data.upper()}, {edges} edges (paper)",
        "ours": ", ".join(f"{name.upper()} {count}" for name, count in zip(ALGORITHMS, counts, strict=True)),
        "published": "MAPA far below AUDP (10, 100 edges) and below ASGD (100, 1000)",
        "verdict": verdict,
    }


def _iterations_figure(
    charts: Sequence[tuple[str, Mapping[str, Sequence[int | None]]]], counts: Sequence[int], path: Path
) -> tuple[Path, Path]:
    from offbeat.report.figures import Bars, draw_bars

    drawn = [
        Bars(title, "updates", [f"{edges} edges" for edges in counts], {k: list(v) for k, v in table.items()}, digits=0)
        for title, table in charts
    ]
    return draw_bars(drawn, path)


def _sound_iterations(shop: Workshop, cap: int) -> Row:
    """One sound line: LR on MNIST with ten edges and a total epsilon of 3."""
    threshold = 0.9 * math.log(2)  # a tenth below the first model
    base = Setting(
        "mnist", "LR", "mapa", "sound", 3.0, edges=10, batch=SOUND_BATCH, updates=3_000, until_loss=threshold
    )
    found = {
        name: shop.train(replace(base, algorithm=name, floor=1.0 if name == "mapa" else 0.0, step=0.5, clip=clip))
        for name, clip in (("mapa", None), ("audp", None), ("fixed", 1.5))
    }
    return {
        "setting": "LR, MNIST, 10 edges, sound",
        "ours": ", ".join(f"{name} {result['reached']}" for name, result in found.items()),
        "published": "not drawn",
        "verdict": f"budget for 300 uploads an edge: epsilon 3 replace-one, delta 1e-5; to loss {threshold:.3g}",
    }


# -- figures 8 and 9 ------------------------------------------------------------------------------------------------


UNTRAINED = "not judged: quick runs end long before the network is trained"


def figure_8(options: ReproduceOptions) -> ReproduceResult:
    """The network on MNIST, 5 to 20 edges, random delays."""
    shop = Workshop("mapa-fig8", options, QUICK_ROWS if options.quick else None)
    counts = (5, 20) if options.quick else (5, 10, 15, 20)
    updates = 600 if options.quick else 10_000
    rows: list[Row] = []
    panels = []
    for edges in counts:
        found = {
            name: shop.train(
                Setting(
                    "mnist", "CNN", name, "paper" if name in ("mapa", "audp") else "none", 0.1, edges, updates,
                    delays="random", seed=options.seed,
                )
            )
            for name in ALGORITHMS
        }  # fmt: skip
        panels.append((f"{edges} edges (paper)", found))
        rows.append(_network_row(f"CNN, MNIST, {edges} edges (paper)", found, options.quick))
    sound = shop.train(
        Setting(
            "mnist", "CNN", "fixed", "sound", 3.0, 5, 250 if options.quick else 1_000, 512, clip=1.0, step=2.0,
            delays="random", seed=options.seed,
        )
    )  # fmt: skip
    panels.append((f"5 edges, sound, {accounted([sound])}", {"fixed clip": sound}))
    rows.append(
        {
            "setting": "CNN, MNIST, 5 edges, sound",
            "ours": round(sound["accuracy"], 4),
            "published": "not drawn",
            "verdict": accounted([sound]),
        }
    )
    figures = curves_figure(panels, shop.path("accuracy"), 1, "test accuracy")
    notes = [
        "Delays are drawn in the simulator (lognormal, coefficient of variation 0.5), not measured on a network.",
        f"{updates:,} updates in place of the print's, which are not stated.",
        paper_note(),
    ]
    return ReproduceResult(rows, figures, notes)


def _network_row(title: str, found: Mapping[str, Mapping[str, Any]], quick: bool) -> Row:
    accuracy = {name: result["accuracy"] for name, result in found.items()}
    above = accuracy["mapa"] >= accuracy["audp"] - 0.01
    near = accuracy["mapa"] >= accuracy["csgd"] - 0.03
    return {
        "setting": title,
        "ours": ", ".join(f"{name} {value:.3f}" for name, value in accuracy.items()),
        "published": "MAPA at least AUDP, almost CSGD, above ASGD for many edges",
        "verdict": UNTRAINED
        if quick
        else "agrees"
        if above and near
        else "agrees in part"
        if above
        else "does not agree",
    }


SWEEPS: dict[str, tuple[tuple[str, float], ...]] = {
    "epsilon": (("epsilon", 0.05), ("epsilon", 0.1), ("epsilon", 0.5)),
    "batch": (("batch", 6), ("batch", 12), ("batch", 48)),
    "sigma": (("deviation", 10.0), ("deviation", 30.0), ("deviation", 90.0)),
    "L": (("smoothness", 5.0), ("smoothness", 10.0), ("smoothness", 20.0)),
    "delta": (("failure", 1e-4), ("failure", 1e-3), ("failure", 1e-2)),
    "theta": (("shrink", 0.3), ("shrink", 0.5), ("shrink", 0.8)),
}
PUBLISHED_SWEEPS = {
    "epsilon": "sensitive",
    "batch": "a little, mostly early",
    "sigma": "robust",
    "L": "a little, mostly early",
    "delta": "robust",
    "theta": "sensitive",
}


def figure_9(options: ReproduceOptions) -> ReproduceResult:
    """MAPA's network, one parameter at a time around 0.1, 12, 30, 10, 1e-3, 1/2."""
    shop = Workshop("mapa-fig9", options, QUICK_ROWS if options.quick else None)
    updates = 400 if options.quick else 10_000
    base = Setting("mnist", "CNN", "mapa", "paper", updates=updates, delays="random", seed=options.seed, deviation=30.0)
    rows: list[Row] = []
    panels = []
    for name, values in SWEEPS.items():
        found = {f"{value:g}": shop.train(changed(base, key, value)) for key, value in values}
        panels.append((f"{name} (paper)", found))
        spread = spread_of({float(value): result for value, result in found.items()})
        sensitive = spread > 0.1
        word = "agrees" if sensitive == (PUBLISHED_SWEEPS[name] == "sensitive") else "does not agree"
        rows.append(
            {
                "setting": f"{name} in {', '.join(found)} (paper)",
                "ours": ", ".join(f"{result['accuracy']:.3f}" for result in found.values()),
                "published": PUBLISHED_SWEEPS[name],
                "verdict": UNTRAINED if options.quick else f"spread {spread:.3f}: {word}",
            }
        )
    sound = _sound_sweep(shop)
    rows += sound
    figures = curves_figure(panels, shop.path("sweeps"), 1, "test accuracy")
    notes = [
        f"{updates:,} updates; random delays; sensitive means a spread above 0.1 in final accuracy.",
        paper_note(),
    ]
    return ReproduceResult(rows, figures, notes)


def changed(setting: Setting, key: str, value: float) -> Setting:
    change: dict[str, Any] = {key: int(value) if key == "batch" else value}
    return replace(setting, **change)


def _sound_sweep(shop: Workshop) -> list[Row]:
    """What remains of these parameters in sound mode: the shrinking and the first clip, at one total epsilon."""
    base = Setting(
        "mnist", "softmax", "mapa", "sound", 3.0, updates=500 if shop.options.quick else 1_500, batch=512, floor=0.3
    )  # fmt: skip
    rows = []
    for key, values in (("shrink", (0.3, 0.5, 0.8)), ("clip", (1.0, 4.0, 16.0))):
        found = [shop.train(changed(base, key, value)) for value in values]
        rows.append(
            {
                "setting": f"{key} in {', '.join(f'{value:g}' for value in values)}, softmax, sound",
                "ours": ", ".join(f"{result['accuracy']:.3f}" for result in found),
                "published": "not drawn",
                "verdict": accounted(found),
            }
        )
    return rows
