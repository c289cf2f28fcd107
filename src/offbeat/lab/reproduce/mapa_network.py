"""MAPA's Figures 8 and 9: the network on MNIST with delays that vary, and one parameter at a time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from offbeat.lab.catalogue import LabOptions, LabResult
from offbeat.lab.reproduce.mapa_pieces import (
    ALGORITHMS,
    Row,
    Workshop,
    accounted,
    curves_figure,
    paper_note,
    spread_of,
    trained_enough,
    untrained,
)
from offbeat.lab.reproduce.mapa_runs import BATCH, MapaSetting, broker_is_here

Found = Mapping[str, Mapping[str, Any]]
Panels = list[tuple[str, Found]]

# -- figure 8 -------------------------------------------------------------------------------------------------------


def figure_8(options: LabOptions) -> LabResult:
    """The network on MNIST, 5 to 20 edges: drawn delays, measured ones, and soundly. Quick: 5 edges, as printed."""
    shop = Workshop("mapa-fig8", options)
    counts = (5,) if options.quick else (5, 10, 15, 20)
    updates = 1_500 if options.quick else 10_000
    base = MapaSetting("mnist", "CNN", "asgd", "none", updates=updates, delays="random", seed=options.seed, looks=8)
    rows: list[Row] = []
    printed: Panels = []
    for edges in counts:
        found = {name: shop.train(_printed(base, name, edges)) for name in ALGORITHMS}
        printed.append((f"{edges} edges (paper)", found))
        rows.append(_network_row(f"CNN, MNIST, {edges} edges (paper)", found))
    measured = _measured_rows(shop, base, counts)
    figures = [*curves_figure(printed, shop.path("paper"), 1, "test accuracy")]
    if options.quick:
        return LabResult([*rows, *measured], figures, _figure_8_notes(updates), smaller=f"at most {updates:,} updates")
    sound = _sound_panels(shop, base, counts)
    rows += [_sound_row(title, found) for title, found in sound]
    figures += curves_figure(sound, shop.path("sound"), 1, "test accuracy")
    return LabResult([*rows, *measured], figures, _figure_8_notes(updates))


def _printed(base: MapaSetting, algorithm: str, edges: int) -> MapaSetting:
    mode = "paper" if algorithm in ("mapa", "audp") else "none"
    return replace(base, algorithm=algorithm, mode=mode, edges=1 if algorithm == "csgd" else edges)


def _network_row(title: str, found: Found) -> Row:
    accuracy = {name: result["accuracy"] for name, result in found.items()}
    above = accuracy["mapa"] >= accuracy["audp"] - 0.01
    near = accuracy["mapa"] >= accuracy["csgd"] - 0.03
    judged = "agrees" if above and near else "agrees in part" if above or near else "does not agree"
    return {
        "setting": title,
        "ours": ", ".join(f"{name} {value:.3f}" for name, value in accuracy.items()),
        "published": "MAPA at least AUDP, almost CSGD, above ASGD for many edges",
        "verdict": judged if trained_enough(accuracy["mapa"]) else untrained(accuracy["mapa"]),
    }


def _sound_panels(shop: Workshop, base: MapaSetting, counts: tuple[int, ...]) -> Panels:
    """A total epsilon of 3 for every edge: MAPA's controller and a fixed clip, noise on all coordinates."""
    sound = replace(base, mode="sound", epsilon=3.0, batch=256, updates=600, clip=1.0)
    panels: Panels = []
    for edges in counts:
        found = {
            "mapa": shop.train(replace(sound, algorithm="mapa", edges=edges, count=True)),
            "fixed clip": shop.train(replace(sound, algorithm="fixed", edges=edges, step=5.0 / edges)),
        }
        panels.append((f"{edges} edges, sound, epsilon 3", found))
    return panels


def _sound_row(title: str, found: Found) -> Row:
    return {
        "setting": f"CNN, MNIST, {title}",
        "ours": ", ".join(f"{name} {result['accuracy']:.3f}" for name, result in found.items()),
        "published": "not drawn",
        "verdict": accounted(found.values()),
    }


def _measured_rows(shop: Workshop, base: MapaSetting, counts: tuple[int, ...]) -> list[Row]:
    """The same parties over Mosquitto on this machine: their lags are what they are."""
    if not broker_is_here():
        return [
            {
                "setting": "CNN, MNIST, delays measured over a broker",
                "ours": "not run",
                "published": "measured over Mosquitto",
                "verdict": "not judged: Mosquitto or the extra mqtt is not installed here",
            }
        ]
    updates = 300 if shop.options.quick else 2_000
    rows: list[Row] = []
    for edges in counts:
        printed = _printed(base, "mapa", edges)
        live = shop.train(replace(printed, updates=updates, delays="measured"))
        drawn = shop.train(replace(printed, updates=updates))
        rows.append(
            {
                "setting": f"CNN, MNIST, {edges} edges over Mosquitto, {updates:,} updates (paper)",
                "ours": f"mapa {live['accuracy']:.3f}, lag {live['lag_mean']:.1f} on average and {live['lag_max']} at "
                f"most; simulated {drawn['accuracy']:.3f}, lag {drawn['lag_mean']:.1f} and {drawn['lag_max']}",
                "published": "measured over Mosquitto",
                "verdict": "the simulator predicts it"
                if abs(live["accuracy"] - drawn["accuracy"]) < 0.05
                else "the simulator does not predict it",
                "live": True,
            }
        )
    return rows


def _figure_8_notes(updates: int) -> list[str]:
    return [
        "Curves: delays are drawn in the simulator (lognormal, coefficient of variation 0.5). The rows over Mosquitto "
        "have measured ones: a broker on this machine, TLS, every edge with its own client and thread. Theirs was the "
        "internet; a lag counts versions, and is near the number of edges less one in all three.",
        f"{updates:,} updates in place of the print's, which are not stated.",
        "Sound panels: batches of 256, noise on every coordinate; the network's L is measured on public digits; the "
        "fixed clip is 1 and its step 5 over the number of edges.",
        "Looks at the network take 2,000 test rows; the rows' figures are over all of them.",
        paper_note(),
    ]


# -- figure 9 -------------------------------------------------------------------------------------------------------

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
SOUND_SWEEPS: dict[str, tuple[tuple[str, float], ...]] = {
    "total epsilon": (("epsilon", 0.5), ("epsilon", 3.0), ("epsilon", 8.0)),
    "batch": (("batch", 128), ("batch", 256), ("batch", 512)),
    "first clip (sigma, delta)": (("clip", 1.0), ("clip", 4.0), ("clip", 16.0)),
    "L, times the proxy's": (("caution", 0.5), ("caution", 1.0), ("caution", 2.0)),
    "theta": (("shrink", 0.3), ("shrink", 0.5), ("shrink", 0.8)),
}


def figure_9(options: LabOptions) -> LabResult:
    """MAPA's network, one parameter at a time around 0.1, 12, 30, 10, 1e-3, 1/2; then what is left of them soundly.
    Quick: theta, soundly; a training of the network takes a minute."""
    shop = Workshop("mapa-fig9", options)
    linear = MapaSetting(
        "mnist", "softmax", "mapa", "sound", 3.0, updates=1_500, batch=512, count=True, delays="random",
        seed=options.seed,
    )  # fmt: skip
    wanted = {"theta": SOUND_SWEEPS["theta"]} if options.quick else SOUND_SWEEPS
    sound = _swept(shop, linear, wanted, ", sound")
    rows = [_sound_sweep_row(title, found) for title, found in sound]
    figures = [*curves_figure(sound, shop.path("sound"), 1, "test accuracy")]
    if not options.quick:
        base = replace(linear, model="CNN", mode="paper", epsilon=0.1, updates=10_000, batch=BATCH, count=False)
        printed = _swept(shop, replace(base, deviation=30.0, looks=8), SWEEPS, " (paper)")
        rows = [*(_sweep_row(name, found) for name, (_, found) in zip(SWEEPS, printed, strict=True)), *rows]
        figures = [*curves_figure(printed, shop.path("paper"), 1, "test accuracy"), *figures]
    notes = [
        "10,000 updates; random delays; sensitive means a spread above 0.1 in final accuracy.",
        "The print finds a larger reduction ratio worse, because steps get shorter: a smaller theta, as here.",
        "Sound sweeps train the linear ten-way model at a total epsilon of 3. There sigma and delta have no part but "
        "to set the first clip, which is swept in their place; L is measured on public digits and then scaled.",
        paper_note(),
    ]
    return LabResult(rows, figures, notes)


def _swept(
    shop: Workshop, base: MapaSetting, sweeps: Mapping[str, tuple[tuple[str, float], ...]], title: str
) -> Panels:
    return [
        (f"{name}{title}", {f"{v:g}": shop.train(changed(base, key, v)) for key, v in values})
        for name, values in sweeps.items()
    ]


def changed(setting: MapaSetting, key: str, value: float) -> MapaSetting:
    change: dict[str, Any] = {key: int(value) if key == "batch" else value}
    return replace(setting, **change)


def _sweep_row(name: str, found: Found) -> Row:
    spread = spread_of({float(value): result for value, result in found.items()})
    word = "agrees" if (spread > 0.1) == (PUBLISHED_SWEEPS[name] == "sensitive") else "does not agree"
    return {
        "setting": f"{name} in {', '.join(found)} (paper)",
        "ours": ", ".join(f"{result['accuracy']:.3f}" for result in found.values()),
        "published": PUBLISHED_SWEEPS[name],
        "verdict": f"spread {spread:.3f}: {word}",
    }


def _sound_sweep_row(title: str, found: Found) -> Row:
    return {
        "setting": f"{title}: {', '.join(found)}",
        "ours": ", ".join(f"{result['accuracy']:.3f}" for result in found.values()),
        "published": "not drawn",
        "verdict": f"softmax, at most {accounted(found.values())}",
    }
