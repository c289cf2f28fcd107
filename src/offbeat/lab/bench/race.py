"""`offbeat bench race`: every asynchronous method against its rounds, in worlds where one should win and where not.

Both sides are timed on the simulator's clock: how long until the model at which a leap has ended lies within a target
of the least objective. Both run with the same job, once with their defaults and, on the first set, once with the best
of a few settings each: that takes five times as long. A ratio above 1 says how many times sooner the asynchronous side
is there.

    --job JOB.toml     the data, penalty, labels and seed of this job, instead of the sets below
    --json             `cells`: pair, regime, target, async_s, sync_s, ratio (null where one side did not get there)
    --out FOLDER       the same in rows.json, and a picture
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import msgspec

from offbeat.data.assemble import VerticalData
from offbeat.data.places import find_set
from offbeat.errors import BadJob
from offbeat.families.linear import LinearTraining
from offbeat.families.vertical_data import load_data
from offbeat.jobs.reading import read_job
from offbeat.jobs.runtime import RuntimeEntry, costs_of, resolved
from offbeat.jobs.vertical import DataEntry, Job
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.runtime.simulator import Simulator

PAIRS = (
    ("vfb2-svrg", "vfb-svrg"),
    ("vfb2-saga", "vfb-saga"),
    ("afsvrg-vp", "fsvrg-vp"),
    ("afsaga-vp", "fsaga-vp"),
    ("vfb2-sgd", "vfb-sgd"),
    ("afsgd-vp", "fsgd-vp"),
)
QUICK_PAIRS = PAIRS[:2]
TARGETS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
SLOWER = (1.4, 4.0, 16.0)
PASSES = 60.0
TUNED: tuple[dict[str, Any], ...] = ({}, {"survey_passes": 1.0}, {"batch": 256}, {"batch": 1024, "survey_passes": 1.0})
SETS = ("uci_credit_card", "give_me_some_credit", "news20_ngrams_47k")
GENERATED = ("credit-like@0.2", "known-logistic@0.2")
PARTIES = ("bank", "shop", "telecom", "clinic")
WAITS = ("slower", "round trip")
"""Regimes whose names have one of these are those in which not waiting should pay."""


@dataclass(frozen=True)
class Cell:
    """One target in one world. Seconds are virtual; None: not reached."""

    data: str
    tuned: bool
    pair: str
    regime: str
    target: float
    async_s: float | None
    sync_s: float | None
    ratio: float | None


@dataclass(frozen=True)
class RaceOn:
    """What is raced on: a set's name, its job and rows, and the least objective."""

    title: str
    job: Job
    data: VerticalData
    optimum: float


def regimes(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Worlds by name, as changes to [runtime]."""
    found: dict[str, dict[str, Any]] = {"nobody slow": {}}
    for factor in SLOWER:
        found |= {f"{name} {factor:g}x slower": {"slow": {name: factor}} for name in names}
    listens = {"slow": {names[-1]: 4.0}, "serving": "slow"}
    return found | {
        "lognormal jitter": {"jitter": "lognormal"},
        "exponential jitter": {"jitter": "exponential"},
        "20 ms round trip": {"latency_s": 0.01},
        "100 ms round trip": {"latency_s": 0.05},
        "10 Mbit/s": {"bandwidth_mbit_s": 10.0},
        f"{names[-1]} 4x slower, listener too": listens,
    }


def race(options: LabOptions) -> LabResult:
    cells: list[Cell] = []
    for at, (title, job) in enumerate(_jobs(options)):
        data = load_data(job)
        course = RaceOn(title, job, data, _optimum(job, data))
        settings = (False, True) if at == 0 and not options.quick else (False,)
        for pair in QUICK_PAIRS if options.quick else PAIRS:
            cells += _pair_cells(course, pair, settings, options)
    figures = draw_race(cells, options.out / "race") if options.draws else ()
    more = {"cells": [asdict(cell) for cell in cells]}
    return LabResult(_summary(cells), figures=figures, notes=_notes(cells), more=more)


def _jobs(options: LabOptions) -> Iterable[tuple[str, Job]]:
    if options.job is not None:
        job = read_job(options.job)
        if not isinstance(job, Job) or job.embeds:
            raise BadJob(f"{options.job}: bench race takes a job of a linear method; this one is of {job.algorithm}.")
        if job.product_epsilon is not None:
            raise BadJob(
                f"{options.job}: bench race compares methods without noise in the products, and product_epsilon "
                "promises noise. Leave product_epsilon and [products] out in a copy of the job, if all rows may be "
                "in one place for that."
            )
        yield options.job.name, job
        return
    where = str(options.data_dir) if options.data_dir is not None else None
    real = [name for name in SETS if find_set(name.removesuffix("_47k"), options.data_dir) is not None]
    for name in (real[:1] or GENERATED[:1]) if options.quick else [*real, *GENERATED]:
        limit = 3000 if options.quick else None
        entry = DataEntry(set=name, dir=where if name in real else None, parties=list(PARTIES), limit_rows=limit)
        yield name, Job(data=entry, seed=options.seed)


def _optimum(job: Job, data: VerticalData) -> float:
    found = LinearTraining(job, data).setting.optimum(job.seed)
    if found is None:
        raise BadJob(
            "The least objective of this job is not known, so nothing can be timed to it. Use a penalty above 0."
        )
    return found


def _pair_cells(course: RaceOn, pair: tuple[str, str], settings: Sequence[bool], options: LabOptions) -> list[Cell]:
    cells, both = [], " / ".join(pair)
    for regime, world in regimes(course.data.names).items():
        for tuned in settings:
            times = [_best_times(course, name, world, tuned) for name in pair]
            for target, async_s, sync_s in zip(TARGETS, *times, strict=True):
                ratio = sync_s / async_s if async_s and sync_s else None
                cells.append(Cell(course.title, tuned, both, regime, target, async_s, sync_s, ratio))
        shown = [f"{cell.ratio:.2f}" if cell.ratio else "-" for cell in cells[-len(TARGETS) :]]
        options.say(f"{course.title}, {both}, {regime}: {' '.join(shown)}")
    return cells


def _best_times(course: RaceOn, name: str, world: Mapping[str, Any], tuned: bool) -> list[float | None]:
    tries = [_times(course, name, world, keys) for keys in (TUNED if tuned else TUNED[:1])]
    return [min((time for time in times if time is not None), default=None) for times in zip(*tries, strict=True)]


def _times(course: RaceOn, name: str, world: Mapping[str, Any], keys: Mapping[str, Any]) -> list[float | None]:
    """When each target was met, in virtual seconds from the first step on."""
    ends = {"passes": PASSES, "target": min(TARGETS), "optimum": False}
    changes = {"algorithm": name, "runtime": RuntimeEntry(**world), **ends, **keys}
    wanted, optimum = resolved(msgspec.structs.replace(course.job, **changes)), course.optimum
    training = LinearTraining(wanted, course.data, optimum=optimum)
    simulator = Simulator(seed=wanted.seed, costs=costs_of(wanted.runtime), timeline_max=0, digest=False)
    outcome = simulator.run(training.parties)
    leaps = [(time_s, value[1] - optimum) for time_s, _, what, value in outcome.observations if what == "leap"]
    return [next((time_s for time_s, left in leaps if left <= target), None) for target in TARGETS]


def _summary(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """For each set, pair and kind of settings: the worst cell and the geometric means."""
    rows = []
    for key in dict.fromkeys((cell.data, cell.tuned, cell.pair) for cell in cells):
        own = [cell for cell in cells if (cell.data, cell.tuned, cell.pair) == key and cell.ratio is not None]
        if not own:
            continue
        worst = min(own, key=lambda cell: cell.ratio or 0.0)
        waits = [cell for cell in own if any(word in cell.regime for word in WAITS)]
        rows.append(
            {
                "data": key[0],
                "settings": "tuned" if key[1] else "defaults",
                "pair": key[2],
                "cells": len(own),
                "worst": worst.ratio,
                "worst in": f"{worst.regime}, {worst.target:g}",
                "geometric mean": _mean(own),
                "where waiting costs": _mean(waits),
            }
        )
    return rows


def _mean(cells: Sequence[Cell]) -> float | None:
    ratios = [cell.ratio for cell in cells if cell.ratio is not None]
    return geometric_mean(ratios) if ratios else None


KINDS = ("nobody slow", "1.4x", "4x", "16x", "jitter", "20 ms", "100 ms", "10 Mbit/s", "listener")


def draw_race(cells: Sequence[Cell], path: Path) -> tuple[Path, Path]:
    """For each pair, at the defaults: the worst cell and the geometric mean of each kind of regime, over all sets."""
    from offbeat.report.figures import Bars, draw_bars

    charts = []
    for pair in dict.fromkeys(cell.pair for cell in cells):
        own = [cell for cell in cells if cell.pair == pair and not cell.tuned and cell.ratio is not None]
        kinds = [[cell for cell in own if _kind_of(cell.regime) == kind] for kind in KINDS]
        values = {
            "worst": [min((cell.ratio for cell in kind if cell.ratio), default=None) for kind in kinds],
            "mean": [_mean(kind) for kind in kinds],
        }
        charts.append(Bars(pair, "times sooner than rounds", KINDS, values, level=("rounds", 1.0)))
    return draw_bars(charts, path, columns=2)


def _kind_of(regime: str) -> str:
    return next(kind for kind in reversed(KINDS) if f" {kind}" in f" {regime}")


def _notes(cells: Sequence[Cell]) -> list[str]:
    unreached = sum(cell.ratio is None for cell in cells)
    return [
        "A ratio above 1: the asynchronous side is so many times sooner at the target. Virtual seconds, one seed.",
        f"{len(cells)} cells, {unreached} of them reached by one side only or by none.",
        "'where waiting costs': regimes in which somebody is slower or a round trip takes 20 ms or more.",
    ]


ENTRIES = (Entry("race", "Time to a target: every asynchronous method against its rounds, by regime", race),)
