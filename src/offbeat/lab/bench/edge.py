"""`offbeat bench edge`: updates per second over the simulator and over a real broker, for LR and for the network.

Both sides run the same parties on the same generated pictures, without noise calibration, on this machine: the cloud
and the edges in one process, each edge with its own broker client and thread. Over the broker TLS, access rules, QoS 1
and (for the edges' ledgers) a snapshot on disk before every upload are on; a second line shows it without snapshots.
Needs Mosquitto on this machine for the broker's lines; without it they say so.
"""

import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from offbeat.algorithms.mapa import MESSAGES, Cloud, Edge, GradientStep
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.algorithms.mapa.rates import SteadyRate
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.learning.horizontal import HorizontalModel, LinearModel, edge_data
from offbeat.party.contract import Effect, Event, Party
from offbeat.privacy.ledger import Budget
from offbeat.privacy.mechanism import Gaussian
from offbeat.privacy.noise import SystemNoise
from offbeat.runtime.broker import RunningBroker, running_broker
from offbeat.runtime.mqtt import Address, Mqtt
from offbeat.runtime.simulator import Simulator

EDGES, ROWS, SIDE, BATCH = 5, 600, 28, 12
MakeModel = Callable[[], HorizontalModel]
"""A model for each edge: they compute side by side on threads."""


def edge(options: LabOptions) -> LabResult:
    """Medians of repeats; the broker's ratio to the simulator in the same run."""
    repeats = 1 if options.quick else 5
    rows: list[dict[str, Any]] = []
    with running_broker([f"edge{k + 1}" for k in range(EDGES)]) as broker:
        for name, model, updates in _models(options.quick):
            simulated = _rate(lambda m=model, n=updates: _simulate(m, n), repeats)  # type: ignore[misc]
            rows.append(_row(name, "simulator", simulated, simulated))
            options.say(f"edge: {name}, simulator: {simulated:.0f} updates/s")
            for title, durable in (("mosquitto, TLS, QoS 1, snapshots", True), ("mosquitto, TLS, QoS 1", False)):
                if broker is None:
                    rows.append({"model": name, "runtime": title, "updates_per_s": None, "of_simulator": None})
                    continue
                found = _rate(lambda m=model, n=updates, d=durable: _over(broker, m, n, d), repeats)  # type: ignore[misc]
                rows.append(_row(name, title, found, simulated))
                options.say(f"edge: {name}, {title}: {found:.0f} updates/s")
    notes = [
        f"{EDGES} edges, batches of {BATCH}, {SIDE}x{SIDE} pictures; LR has {SIDE * SIDE + 1} parameters.",
        "Everything in one process: the broker's lines share its interpreter lock between the cloud and all edges.",
        "With snapshots the cloud writes one before every model too, which a cloud that serves for real does not.",
    ]
    if broker is None:
        notes.append("No mosquitto was found, so the broker was not measured (Debian: apt-get install mosquitto).")
    return LabResult(rows, notes=notes)


def _row(name: str, runtime: str, rate: float, simulated: float) -> dict[str, Any]:
    measured = {"updates_per_s": round(rate, 1), "of_simulator": round(rate / simulated, 3)}
    return {"model": name, "runtime": runtime, **measured}


def _models(quick: bool) -> list[tuple[str, MakeModel, int]]:
    found: list[tuple[str, MakeModel, int]] = [
        ("LR", lambda: LinearModel("logistic", SIDE * SIDE), 300 if quick else 2_000)
    ]
    if find_spec("torch") is not None:
        found.append(("CNN", _network, 60 if quick else 300))
    return found


def _network() -> HorizontalModel:
    from offbeat.learning.deep_horizontal import digits_model

    return digits_model(SIDE, 0, (8, 16))


def _parties(make: MakeModel, updates: int) -> list[Party]:
    rng = np.random.default_rng(0)
    model = make()
    classes = 2 if isinstance(model, LinearModel) else 10
    noise = Gaussian(1.0, BATCH / ROWS, ROWS)
    recipe = EdgePrivacy(noise, Budget(1e6, 1e-5), ((noise.cost(), 10**9),))
    names = tuple(f"edge{k + 1}" for k in range(EDGES))
    cloud = Cloud(
        model.start(), GradientStep(SteadyRate(0.1, clip=1.0), 1e-4), updates=updates, lag_max=1000, edges=names
    )
    edges = []
    for name in names:
        data = edge_data(rng.random((ROWS, SIDE * SIDE)).astype(np.float32), rng.integers(0, classes, ROWS))
        edges.append(Edge(name, make(), data, recipe, SystemNoise(), retry_s=10.0))
    return [cloud, *edges]


def _rate(run: Callable[[], float], repeats: int) -> float:
    run()  # compile and warm up
    return median(run() for _ in range(repeats))


def _simulate(model: MakeModel, updates: int) -> float:
    parties = _parties(model, updates)
    begin = time.perf_counter()
    Simulator(seed=0).run(parties)
    return updates / (time.perf_counter() - begin)


def _over(broker: RunningBroker, model: MakeModel, updates: int, durable: bool) -> float:
    """From the first update to the last, as the cloud sees it; connecting is not counted."""
    cloud, *edges = _parties(model, updates)
    assert isinstance(cloud, Cloud)
    watched = _TimedCloud(cloud)
    with tempfile.TemporaryDirectory() as folder:
        run = f"bench{time.time_ns()}"
        state = Path(folder) if durable else None
        Mqtt(Address("127.0.0.1", broker.port, broker.identity), run, MESSAGES, state).run([watched, *edges])
    return (updates - 1) / (watched.last - watched.first)


class _TimedCloud:
    """The cloud, with the time of its first and its last update noted."""

    def __init__(self, cloud: Cloud) -> None:
        self.name, self.cloud = cloud.name, cloud
        self.snapshot, self.restore = cloud.snapshot, cloud.restore
        self.first = self.last = 0.0

    def handle(self, event: Event) -> list[Effect]:
        before = self.cloud.version
        effects = self.cloud.handle(event)
        if self.cloud.version > before:
            self.last = time.perf_counter()
            self.first = self.first or self.last
        return effects


ENTRIES = (Entry("edge", "updates per second, simulator and broker, LR and network", edge),)
