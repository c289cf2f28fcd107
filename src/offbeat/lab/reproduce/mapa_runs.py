"""One training for MAPA's figures: a model on USPS or MNIST, an algorithm, a way of keeping privacy, so many updates.

A setting becomes a user's job, and its parties are those that `offbeat run` would build. The rows and the looks are of
this module: rows are dealt and labelled as the figures want them, and a look also takes the clip and a gradient's norm.

What the paper leaves open is chosen here once for all figures and said in their notes: rows are pixels in [0, 1] as
they come (paper mode) or scaled to norm 4 (sound mode, so that L, sigma and the clip have public bounds); logistic
regression tells even digits from odd ones; L = 10, delta = 1e-3, theta = 1/2, batch 12, strength 1e-4 as in its section
7.3.2; sigma = 30 for the network, as printed there, and measured at the first model for the others (which is no more
private than the rest of paper mode); R = sqrt(2 f(0) / strength); AUDP clips at the largest gradient norm there can be.

In sound mode L is measured on a public proxy (the other set of digits, at the same size), and the steps allow for the
mean lag, one less than the edges; `by_rule` leaves both to the job.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.algorithms.mapa import MESSAGES, Cloud, Edge
from offbeat.data.dataset import Images
from offbeat.data.load import load_images
from offbeat.errors import BadInput
from offbeat.families.horizontal import build_cloud, build_edge, recipes_of
from offbeat.jobs.horizontal import EdgeJob, edge_job_from
from offbeat.jobs.rules import NETWORK, PAPER, model_of
from offbeat.learning.horizontal import EdgeData, HorizontalModel, LinearModel, edge_data, smoothness_by_power
from offbeat.party.contract import Party
from offbeat.privacy.accountant import ADJACENCIES, epsilon
from offbeat.runtime.broker import find_mosquitto, running_broker
from offbeat.runtime.contract import Look
from offbeat.runtime.simulator import CostModel, Jitter, Simulator

STRENGTH, BATCH, SMOOTHNESS, DEVIATION, FAILURE, SHRINK = 1e-4, 12, 10.0, 30.0, 1e-3, 0.5
DELTA = 1e-5
ROW_NORM = 4.0  # to which sound mode scales every row: the intercept's part of the gradient is then small
NORM_MAX = math.sqrt(ROW_NORM**2 + 1)
NETWORK_CLIP = 10.0  # AUDP's fixed clip for the network, whose gradients have no bound
PIXEL_MEAN, PIXEL_DEVIATION = 0.1307, 0.3081  # MNIST's customary constants, taken as public
PROXY = {"mnist": "usps", "usps": "mnist"}  # what may be looked at in place of the edges' rows
PROXY_ROWS = 1_000
HELD_OUT = 6  # one training row in so many is held out where settings are chosen
LOOK_SHARE = 0.2  # of the mean time between updates, from one look to the next
LOOK_ROWS = 2_000  # test rows of a look at a network; the final figures are over all


@dataclass(frozen=True)
class MapaSetting:
    """One training. `epsilon` is each iteration's in paper mode and the whole run's in sound mode."""

    data: str
    model: str  # LR, SVM or CNN
    algorithm: str  # mapa, audp, asgd, csgd, fixed, adaptive, quiet, fedasync or fedbuff
    mode: str = "paper"  # paper, sound or none
    epsilon: float = 0.1
    edges: int = 5
    updates: int = 1000
    batch: int = BATCH
    clip: float | None = None
    floor: float = 0.0
    quantile: float = 0.5  # of the rows' norms: where an adaptive clip lies, or MAPA's stops shrinking
    step: float = 1.0
    smoothness: float = SMOOTHNESS
    deviation: float | None = None  # None: measured for linear models, 30 for the network
    failure: float = FAILURE
    shrink: float = SHRINK
    delays: str = "cyclic"  # cyclic, random, or measured: over a broker on this machine
    split: str = "parity"  # of the digits into two classes: parity, or halves
    seed: int = 0
    looks: int = 12
    until_loss: float | None = None  # stop where the mean of five looks is below
    norms: bool = False  # whether a look also takes the gradient's norm over the test rows
    held_out: bool = False  # judge by training rows that are held out: the test rows stay unseen
    count: bool = False  # whether MAPA's uploads carry the noisy fraction within the clip
    by_rule: bool = False  # whether clip, floor, L and lag are those that jobs take where nothing is said
    caution: float = 1.0  # times the proxy's L
    local_steps: int = 5  # of fedasync and fedbuff, which share a batch among them
    buffer: int = 10  # uploads of one step of fedbuff

    def key(self) -> str:
        """What is told apart: the first four, and what is not as usual."""
        usual = asdict(MapaSetting(self.data, self.model, self.algorithm, self.mode))
        unusual = {name: value for name, value in asdict(self).items() if value != usual[name]}
        first = f"{self.data} {self.model} {self.algorithm} {self.mode}"
        return " ".join([first, *(f"{name}={value}" for name, value in unusual.items())])


class Courses:
    """The pictures of a run of figures, loaded once; the rows of the last two ways of dealing them are kept."""

    def __init__(self, data_dir: Path | None, limit_rows: int | None = None, limit_test: int | None = None) -> None:
        self.data_dir = data_dir
        self.limit_rows = limit_rows
        self.limit_test = limit_test
        self._images: dict[str, Images] = {}
        self._dealt: dict[tuple[Any, ...], tuple[dict[str, EdgeData], EdgeData]] = {}

    def images(self, name: str) -> Images:
        if name not in self._images:
            self._images[name] = load_images(name, self.data_dir)
        return self._images[name]

    def rows(self, setting: MapaSetting) -> tuple[dict[str, EdgeData], EdgeData]:
        """Every edge's rows, shuffled by the seed and dealt evenly, and the rows to judge by."""
        edges = ["pool"] if setting.algorithm == "csgd" else [f"edge{k + 1}" for k in range(setting.edges)]
        kind = "linear" if setting.model in ("SVM", "softmax") else setting.model
        told = (setting.data, kind, setting.mode == "sound", setting.split, setting.seed, setting.held_out)
        key = (*told, *edges)
        if key not in self._dealt:
            while len(self._dealt) > 1:
                self._dealt.pop(next(iter(self._dealt)))
            self._dealt[key] = self._deal(setting, edges)
        return self._dealt[key]

    def _deal(self, setting: MapaSetting, edges: list[str]) -> tuple[dict[str, EdgeData], EdgeData]:
        images = self.images(setting.data)
        order = np.random.default_rng(setting.seed).permutation(images.y_train.size)[: self.limit_rows]
        judged = (images.x_test[: self.limit_test], images.y_test[: self.limit_test])
        if setting.held_out:
            last = order[-(order.size // HELD_OUT) :]
            order, judged = order[: -last.size], (images.x_train[last], images.y_train[last])
        x, y = _prepared(setting, images.x_train[order], images.y_train[order])
        parts = zip(edges, np.array_split(np.arange(order.size), len(edges)), strict=True)
        return {name: edge_data(x[p], y[p]) for name, p in parts}, edge_data(*_prepared(setting, *judged))

    def proxy(self, setting: MapaSetting) -> EdgeData:
        """Some rows of the other set of digits, brought to this one's size: nobody's secret."""
        images, side = self.images(PROXY.get(setting.data, setting.data)), self.images(setting.data).shape[0]
        chosen = slice(0, PROXY_ROWS)
        pictures = images.x_train[chosen].reshape(-1, *images.shape)
        at = np.arange(side) * images.shape[0] // side
        resized = pictures[:, at][:, :, at].reshape(-1, side * side)
        return edge_data(*_prepared(setting, resized, images.y_train[chosen]))


def _prepared(setting: MapaSetting, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels = y
    if setting.model == "LR":
        labels = (y % 2 == 0 if setting.split == "parity" else y >= 5).astype(np.int64)
    rows = x.astype(np.float32)
    if setting.mode == "sound":
        if setting.model == "CNN":
            rows = (rows - PIXEL_MEAN) / PIXEL_DEVIATION
        else:
            rows = ROW_NORM * rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    return rows, labels


KINDS = {"LR": "logistic", "SVM": "hinge", "softmax": "softmax", "CNN": NETWORK}
STEADY = ("fixed", "adaptive", "quiet")  # one method of jobs: with a step, with a clip that adapts, all by rule
MODES = {"paper": PAPER, "sound": "sound", "none": "none"}


def job_of(setting: MapaSetting, rows: Mapping[str, EdgeData], proxy: EdgeData | None = None) -> EdgeJob:
    """The setting as a user's job: what a job would choose by rule is given, unless the setting is `by_rule`."""
    features = next(iter(rows.values())).features.shape[1]
    updates, batch = setting.updates, setting.batch
    if setting.algorithm in ("fedasync", "fedbuff"):
        batch = max(1, batch // setting.local_steps)
        updates = max(1, updates // setting.buffer) if setting.algorithm == "fedbuff" else updates
    tree: dict[str, Any] = {
        "algorithm": "steady" if setting.algorithm in STEADY else setting.algorithm,
        "updates": updates,
        "batch": batch,
        "lag_max": setting.edges if setting.delays == "cyclic" else 3 * setting.edges,
        "strength": STRENGTH,
        "seed": setting.seed,
        "retry_s": 10.0 if setting.delays == "measured" else 1e6,
        "data": {"edges": list(rows)},
        "model": {"kind": KINDS[setting.model], "features": features, "side": math.isqrt(features)}
        | {"seed": setting.seed},
        "privacy": {"mode": MODES[setting.mode], "epsilon": setting.epsilon, "delta": DELTA},
        "constants": {"norm_max": NORM_MAX if setting.mode == "sound" else _longest(rows)},
    }
    model = model_of(edge_job_from(tree))
    tree["rate"] = _rate(setting, model, tree["constants"]["norm_max"])
    if not setting.by_rule:
        tree["constants"] |= {"lag": tree["lag_max"]} | _constants(setting, model, rows, proxy)
    return edge_job_from(tree)


def _longest(rows: Mapping[str, EdgeData]) -> float:
    return max(float(mine.norms.max()) for mine in rows.values())


def _rate(setting: MapaSetting, model: HorizontalModel, norm_max: float) -> dict[str, Any]:
    """The clip that is given; else none without noise, the printed first one or the widest there can be."""
    rate: dict[str, Any] = {"quantile": setting.quantile, "shrink": setting.shrink, "failure": setting.failure}
    rate |= {"adaptive": setting.algorithm == "adaptive" or setting.count}
    rate |= {"local_steps": setting.local_steps, "buffer": setting.buffer}
    if setting.algorithm not in ("mapa", "audp", "quiet"):
        rate |= {"step": setting.step}
    widest = model.gradient_norm_max(norm_max) if isinstance(model, LinearModel) else NETWORK_CLIP
    usual = {("audp", "paper"): widest, ("audp", "sound"): widest, ("mapa", "sound"): widest}
    usual |= {("fixed", "sound"): 1.0, ("adaptive", "sound"): 1.0}
    clip = setting.clip or usual.get((setting.algorithm, setting.mode))
    if setting.by_rule:
        return rate
    return rate | {"floor": setting.floor} | ({} if clip is None else {"clip": clip})


def _constants(
    setting: MapaSetting, model: HorizontalModel, rows: Mapping[str, EdgeData], proxy: EdgeData | None
) -> dict[str, float]:
    """The printed constants in paper mode. In sound mode L of the proxy's rows and the mean lag, or public bounds."""
    if setting.mode != "sound":
        deviation = setting.deviation or measured_deviation(model, rows)
        return {"smoothness": setting.smoothness, "deviation": deviation}
    network = {} if isinstance(model, LinearModel) else {"deviation": setting.clip or 1.0}
    if proxy is None:
        return network and network | {"smoothness": setting.smoothness}
    smoothness = setting.caution * smoothness_by_power(_smooth(model), model.start(), proxy, 8) + STRENGTH
    return network | {"smoothness": smoothness, "lag": setting.edges - 1}


def _smooth(model: HorizontalModel) -> HorizontalModel:
    """The hinge's curvature is that of its square."""
    if isinstance(model, LinearModel) and model.loss_name == "hinge":
        return LinearModel("squared-hinge", model.features, model.classes)
    return model


def measured_deviation(model: HorizontalModel, rows: Mapping[str, EdgeData]) -> float:
    """Root mean square distance of a row's gradient from the mean, at the first model."""
    if not isinstance(model, LinearModel):
        return DEVIATION
    data, start = next(iter(rows.values())), model.start()
    chosen = np.arange(min(data.rows, 500))
    each = np.array([model.gradient_sum(start, data, chosen[i : i + 1]) for i in range(chosen.size)])
    return float(np.sqrt(((each - each.mean(axis=0)) ** 2).sum(axis=1).mean()))


def parties_of(job: EdgeJob, rows: Mapping[str, EdgeData]) -> tuple[Cloud, list[Edge]]:
    recipes = recipes_of(job, {name: mine.rows for name, mine in rows.items()})
    return build_cloud(job, tuple(rows)), [build_edge(job, name, mine, recipes[name]) for name, mine in rows.items()]


def train(courses: Courses, setting: MapaSetting) -> dict[str, Any]:
    """One training; plain values that can be kept in a file."""
    rows, test = courses.rows(setting)
    measures = setting.mode == "sound" and setting.algorithm in ("mapa", "audp") and not setting.by_rule
    job = job_of(setting, rows, courses.proxy(setting) if measures else None)
    cloud, edges = parties_of(job, rows)
    model = model_of(job)
    eyes = _Eyes(cloud, model, _looked_at(model, test), setting)
    _play(setting, [cloud, *edges], eyes.look)
    if eyes.reached is None:
        eyes.note()
    accuracy, loss = accuracy_and_loss(model, cloud.parameters, test)
    return {
        "accuracy": accuracy,
        "accuracy_averaged": model.accuracy(cloud.averaged, test),
        "loss": loss,
        "curve": eyes.curve,
        "stage": cloud.rule.stage,
        "clip": cloud.rule.clip if math.isfinite(cloud.rule.clip) else None,
        "updates": cloud.version,
        "reached": eyes.reached,
        "lag_mean": sum(lag * count for lag, count in enumerate(cloud.lags)) / max(1, sum(cloud.lags)),
        "lag_max": max((lag for lag, count in enumerate(cloud.lags) if count), default=0),
        "privacy": stated_privacy(edges),
    }


def _play(setting: MapaSetting, parties: list[Party], look: Look) -> None:
    if setting.delays == "measured":
        _play_over_broker(parties, look)
        return
    jitter = Jitter() if setting.delays == "cyclic" else Jitter("lognormal", 0.5)
    Simulator(seed=setting.seed, costs=CostModel(jitter=jitter)).run(parties, look)


def _play_over_broker(parties: list[Party], look: Look) -> None:
    from offbeat.runtime.mqtt import Address, Mqtt

    with running_broker([party.name for party in parties[1:]]) as broker:
        if broker is None:
            raise BadInput("Measured delays need Mosquitto on this machine (Debian: apt-get install mosquitto).")
        address = Address("127.0.0.1", broker.port, broker.identity)
        Mqtt(address, f"figure{time.time_ns()}", MESSAGES).run(parties, look)


def broker_is_here() -> bool:
    return find_mosquitto() is not None and find_spec("paho") is not None


def _looked_at(model: HorizontalModel, test: EdgeData) -> EdgeData:
    if isinstance(model, LinearModel) or test.rows <= LOOK_ROWS:
        return test
    return edge_data(test.features[:LOOK_ROWS], test.labels[:LOOK_ROWS])


def stated_privacy(edges: list[Edge]) -> dict[str, float] | None:
    """The largest epsilon any edge has spent, under both adjacencies; None without a guarantee."""
    worst: dict[str, float] = {}
    for spent in {frozenset(edge.ledger.spent.items()) for edge in edges}:
        for adjacency in ADJACENCIES:
            if spent:
                worst[adjacency] = max(worst.get(adjacency, 0.0), epsilon(dict(spent), DELTA, adjacency))
    return {**worst, "delta": DELTA} if worst else None


class _Eyes:
    """Looks at the cloud every so many updates: [update, accuracy, loss, clip, |gradient|], -1 where not taken."""

    def __init__(self, cloud: Cloud, model: HorizontalModel, test: EdgeData, setting: MapaSetting) -> None:
        self.cloud, self.model, self.test = cloud, model, test
        self.setting = setting
        self.every = max(1, setting.updates // max(1, setting.looks))
        self.next = 0
        self.curve: list[list[float]] = []
        self.reached: int | None = None

    def look(self, time_s: float) -> float | None:
        if self.cloud.version >= self.next:
            self.note()
            self.next = self.cloud.version + self._pace()
            if self._met():
                self.reached = self.cloud.version
                return None
        shortest = 0.02 if self.setting.delays == "measured" else 2e-4
        return max(shortest, LOOK_SHARE * time_s / max(1, self.cloud.version))

    def _pace(self) -> int:
        """Every so many updates; towards a threshold, often at first and then every half per cent."""
        return self.every if self.setting.until_loss is None else max(5, self.cloud.version // 200)

    def _met(self) -> bool:
        if self.setting.until_loss is None or len(self.curve) < 5:
            return False
        return sum(row[2] for row in self.curve[-5:]) / 5 < self.setting.until_loss

    def note(self) -> None:
        x = self.cloud.parameters
        clip = self.cloud.rule.clip
        seen = accuracy_and_loss(self.model, x, self.test)
        norm = gradient_norm(self.model, x, self.test) if self.setting.norms else -1.0
        self.curve.append([float(self.cloud.version), *seen, clip if math.isfinite(clip) else -1.0, norm])


def accuracy_and_loss(model: HorizontalModel, parameters: np.ndarray, rows: EdgeData) -> tuple[float, float]:
    """Both from one pass over the rows where a pass is dear."""
    if isinstance(model, LinearModel):
        return model.accuracy(parameters, rows), model.loss(parameters, rows)
    scores = np.asarray(model.scores(parameters, rows), dtype=np.float64)  # type: ignore[attr-defined]
    right = scores[np.arange(rows.rows), rows.labels]
    entropy = np.logaddexp.reduce(scores, axis=1) - right
    return float((scores.argmax(axis=1) == rows.labels).mean()), float(entropy.mean())


def gradient_norm(model: HorizontalModel, parameters: np.ndarray, rows: EdgeData) -> float:
    """|average gradient| over rows, unclipped."""
    total = model.gradient_sum(parameters, rows, np.arange(rows.rows))
    return float(np.linalg.norm(total)) / rows.rows
