"""MAPA beside what is run today: FedAsync and FedBuff, the same parties, rows, delays and number of uploads.

An upload costs the same bytes and rows everywhere: one gradient of a batch, or five local steps on a fifth of it each.
Steps are chosen on training rows held out, where a method has no rule of its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from offbeat.lab.catalogue import LabOptions, LabResult
from offbeat.lab.reproduce.mapa_pieces import Row, Workshop, accounted, paper_note
from offbeat.lab.reproduce.mapa_runs import MapaSetting
from offbeat.lab.reproduce.mapa_sound import NOT_COUNTED, choose

EDGES, BATCH, UPLOADS = 20, 100, 2_000
STEPS = (0.03, 0.1, 0.3, 1.0)
Found = Mapping[str, Mapping[str, Any]]


def beside_today(options: LabOptions) -> LabResult:
    """Softmax on MNIST, twenty edges, random delays: accuracy after so many uploads. Quick: what chooses no step."""
    shop = Workshop("mapa-today", options)
    settings = _settings(shop)
    found = {name: shop.train(setting) for name, setting in settings.items()}
    rows = [_row(name, settings[name], found[name]) for name in settings]
    notes = [
        f"{UPLOADS:,} uploads over {EDGES} edges, {BATCH} rows each; FedBuff steps after every 10 of them.",
        "FedAsync and FedBuff add no noise: an upload is as revealing as the gradients it sums up. Rows marked sound "
        "have a total epsilon of 3 for every edge.",
        NOT_COUNTED,
        paper_note(),
    ]
    return LabResult(rows, _figure(shop, settings, found), notes)


def _settings(shop: Workshop) -> dict[str, MapaSetting]:
    base = MapaSetting(
        "mnist", "softmax", "asgd", "none", edges=EDGES, updates=UPLOADS, batch=BATCH, delays="random",
        seed=shop.options.seed,
    )  # fmt: skip
    sound = replace(base, mode="sound", epsilon=3.0)
    ruled = {"MAPA (paper)": replace(base, algorithm="mapa", mode="paper")}
    ruled |= {"MAPA, sound": replace(sound, algorithm="mapa", count=True)}
    if shop.options.quick:
        return {"ASGD, its own step": base, **ruled}
    plain = {
        name: choose(shop, [replace(base, algorithm=algorithm, step=step) for step in STEPS]).setting
        for name, algorithm in (("plain steps", "fixed"), ("FedAsync", "fedasync"), ("FedBuff", "fedbuff"))
    }
    private = choose(shop, [replace(sound, algorithm="fixed", clip=2.0, step=step) for step in STEPS]).setting
    return {"ASGD, its own step": base, **plain, **ruled, "fixed clip, sound": private}


def _row(name: str, setting: MapaSetting, result: Mapping[str, Any]) -> Row:
    chosen = f", step {setting.step:g}" if setting.algorithm in ("fixed", "fedasync", "fedbuff") else ""
    if result["privacy"]:
        verdict = accounted([result])
    else:
        verdict = "not differentially private"
    return {
        "setting": f"softmax, MNIST, {EDGES} edges, {name}{chosen}",
        "ours": f"{result['accuracy']:.4f} (averaged {result['accuracy_averaged']:.4f}), lag {result['lag_mean']:.1f}",
        "published": "not compared",
        "verdict": verdict,
    }


def _figure(shop: Workshop, settings: Mapping[str, MapaSetting], found: Found) -> tuple[Path, Path]:
    from offbeat.report.figures import Curve, Panel, draw_panels

    curves = []
    for tone, (name, result) in enumerate(found.items()):
        each = settings[name].buffer if settings[name].algorithm == "fedbuff" else 1
        curves.append(Curve(name, [(each * row[0], row[1]) for row in result["curve"]], tone))
    private = [curve for curve in curves if "sound" in curve.name]
    plain = [curve for curve in curves if "sound" not in curve.name]
    panels = [
        Panel("No noise, or as printed", "uploads", "test accuracy", plain),
        Panel("Sound, epsilon 3", "uploads", "test accuracy", private),
    ]
    return draw_panels(panels, shop.path("accuracy"))
