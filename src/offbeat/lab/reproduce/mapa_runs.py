"""One training for MAPA's figures: a model on USPS or MNIST, an algorithm, a way of keeping privacy, so many updates.

What the paper leaves open is chosen here once for all figures and said in their notes: rows are pixels in [0, 1] as
they come (paper mode) or scaled to norm 4 (sound mode, so that L, sigma and the clip have public bounds); logistic
regression tells even digits from odd ones; L = 10, delta = 1e-3, theta = 1/2, batch 12, strength 1e-4 as in its section
7.3.2; sigma = 30 for the network, as printed there, and measured at the first model for the others (which is no more
private than the rest of paper mode); R = sqrt(2 f(0) / strength); AUDP clips at the largest gradient norm there can be.

In sound mode L is measured on a public proxy (the other set of digits, at the same size), and the steps allow for the
mean lag, one less than the edges; `bounds="worst"` takes the worst case of both, as the printed formulas want it, and
`bounds="rule"` what a job takes where it says nothing.
"""

import math
import time
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.algorithms.fedbuff import BufferedMean, LocalSteps, Mixing
from offbeat.algorithms.mapa import MESSAGES, Cloud, Rule, parties, stepping
from offbeat.algorithms.mapa.privacy import EdgePrivacy, Paper, Privacy, Sound, Unprotected
from offbeat.algorithms.mapa.rates import (
    AsyncRate,
    CentralRate,
    Constants,
    NoisyRate,
    QuietRate,
    Rate,
    ScoreBound,
    StagedRate,
    SteadyRate,
    first_clip,
)
from offbeat.data.dataset import Images
from offbeat.data.load import load_images
from offbeat.errors import BadInput
from offbeat.jobs.rules import FLATTER
from offbeat.learning.horizontal import EdgeData, HorizontalModel, LinearModel, edge_data, smoothness_by_power
from offbeat.party.contract import Party
from offbeat.privacy.accountant import ADJACENCIES, epsilon
from offbeat.privacy.clipping import AdaptiveClip
from offbeat.runtime.broker import find_mosquitto, running_broker
from offbeat.runtime.contract import Look
from offbeat.runtime.simulator import CostModel, Jitter, Simulator

STRENGTH, BATCH, SMOOTHNESS, DEVIATION, FAILURE, SHRINK = 1e-4, 12, 10.0, 30.0, 1e-3, 0.5
DELTA = 1e-5
ROW_NORM = 4.0  # to which sound mode scales every row: the intercept's part of the gradient is then small
NORM_MAX = math.sqrt(ROW_NORM**2 + 1)
NETWORK_CLIP = 10.0  # AUDP's fixed clip for the network, whose gradients have no bound
CHANNELS = (8, 16)
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
    bounds: str = "proxy"  # sound mode's L and lag: proxy, worst, or rule: what jobs take where nothing is said
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
        edges = 1 if setting.algorithm == "csgd" else setting.edges
        kind = "linear" if setting.model in ("SVM", "softmax") else setting.model
        key = (setting.data, kind, setting.mode == "sound", setting.split, setting.seed, edges, setting.held_out)
        if key not in self._dealt:
            while len(self._dealt) > 1:
                self._dealt.pop(next(iter(self._dealt)))
            self._dealt[key] = self._deal(setting, edges)
        return self._dealt[key]

    def _deal(self, setting: MapaSetting, edges: int) -> tuple[dict[str, EdgeData], EdgeData]:
        images = self.images(setting.data)
        order = np.random.default_rng(setting.seed).permutation(images.y_train.size)[: self.limit_rows]
        judged = (images.x_test[: self.limit_test], images.y_test[: self.limit_test])
        if setting.held_out:
            last = order[-(order.size // HELD_OUT) :]
            order, judged = order[: -last.size], (images.x_train[last], images.y_train[last])
        x, y = _prepared(setting, images.x_train[order], images.y_train[order])
        parts = np.array_split(np.arange(order.size), edges)
        return {f"edge{k + 1}": edge_data(x[p], y[p]) for k, p in enumerate(parts)}, edge_data(
            *_prepared(setting, *judged)
        )

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


def model_for(setting: MapaSetting, pixels: int) -> HorizontalModel:
    if setting.model == "LR":
        return LinearModel("logistic", pixels)
    if setting.model == "SVM":
        return LinearModel("hinge", pixels, 10)
    if setting.model == "softmax":
        return LinearModel("softmax", pixels, 10)
    from offbeat.learning.deep_horizontal import digits_model

    return digits_model(math.isqrt(pixels), setting.seed, CHANNELS)


def start_loss(model: HorizontalModel) -> float:
    return model.start_loss if isinstance(model, LinearModel) else math.log(10)


def constants_for(
    setting: MapaSetting, model: HorizontalModel, rows: dict[str, EdgeData], proxy: EdgeData | None = None
) -> Constants:
    """The printed constants in paper mode; public ones in sound mode, sharper with a proxy's rows."""
    lag_max = setting.edges if setting.delays == "cyclic" else 3 * setting.edges
    gap = start_loss(model)
    radius = math.sqrt(2 * gap / STRENGTH)
    if setting.mode != "sound":
        deviation = setting.deviation or measured_deviation(model, rows)
        return Constants(setting.smoothness, deviation, radius, gap, lag_max, setting.batch)
    worst = Constants(setting.smoothness, setting.clip or 1.0, radius, gap, lag_max, setting.batch)
    if isinstance(model, LinearModel):
        worst = Constants.from_public(model, norm_max=NORM_MAX, strength=STRENGTH, lag_max=lag_max, batch=setting.batch)
    if setting.bounds == "worst" or proxy is None:
        return worst
    if setting.bounds == "rule":
        return replace(worst, smoothness=worst.smoothness / FLATTER, lag=setting.edges)
    smoothness = setting.caution * smoothness_by_power(_smooth(model), model.start(), proxy, 8) + STRENGTH
    return replace(worst, smoothness=smoothness, lag=setting.edges - 1)


def _smooth(model: HorizontalModel) -> HorizontalModel:
    """The hinge's curvature is that of its square."""
    if isinstance(model, LinearModel) and model.loss_name == "hinge":
        return LinearModel("squared-hinge", model.features, model.classes)
    return model


def measured_deviation(model: HorizontalModel, rows: dict[str, EdgeData]) -> float:
    """Root mean square distance of a row's gradient from the mean, at the first model."""
    if not isinstance(model, LinearModel):
        return DEVIATION
    data, start = next(iter(rows.values())), model.start()
    chosen = np.arange(min(data.rows, 500))
    each = np.array([model.gradient_sum(start, data, chosen[i : i + 1]) for i in range(chosen.size)])
    return float(np.sqrt(((each - each.mean(axis=0)) ** 2).sum(axis=1).mean()))


def build(
    setting: MapaSetting, model: HorizontalModel, rows: dict[str, EdgeData], proxy: EdgeData | None = None
) -> list[Party]:
    constants = constants_for(setting, model, rows, proxy)
    if setting.algorithm in ("fedasync", "fedbuff"):
        return _with_local_steps(setting, model, rows, constants.lag_max)
    common: dict[str, Any] = {"constants": constants, "updates": setting.updates, "seed": setting.seed}
    common["strength"] = STRENGTH
    if setting.algorithm == "csgd":
        return stepping(model, {"pool": next(iter(rows.values()))}, CentralRate(constants), **common)
    common["retry_s"] = 10.0 if setting.delays == "measured" else 1e6
    if setting.algorithm == "asgd":
        return stepping(model, rows, AsyncRate(constants), **common)
    privacy = privacy_for(setting, model)
    return stepping(model, rows, _rate(setting, model, rows, constants, privacy), privacy=privacy, **common)


def _rate(
    setting: MapaSetting, model: HorizontalModel, rows: dict[str, EdgeData], constants: Constants, privacy: Privacy
) -> Rate:
    """Of MAPA and AUDP; else a step of the setting, or (quiet) the one that jobs choose by rule."""
    if setting.algorithm == "audp":
        return NoisyRate(constants, setting.clip or widest_clip(setting, model, rows))
    if setting.algorithm == "mapa":
        first = setting.clip
        if first is None:
            sound = setting.mode == "sound"
            first = widest_clip(setting, model, rows) if sound else first_clip(constants.deviation, setting.failure)
        within = not isinstance(privacy, Paper)
        return StagedRate(constants, first, setting.shrink, setting.floor, within, setting.quantile)
    if setting.algorithm == "quiet":
        bound = ScoreBound(NORM_MAX, model.dimension, setting.updates)
        return QuietRate(bound, setting.clip or usual_clip(model))
    unclipped = math.inf if setting.mode == "none" else 1.0
    adaptive = privacy.adaptive if isinstance(privacy, Sound) else None
    return SteadyRate(setting.step, setting.clip or unclipped, adaptive)


def usual_clip(model: HorizontalModel) -> float:
    """What jobs clip at where nothing is said: half of a row's first gradient."""
    assert isinstance(model, LinearModel)
    return model.first_gradient_norm(NORM_MAX) / 2


def _with_local_steps(
    setting: MapaSetting, model: HorizontalModel, rows: dict[str, EdgeData], lag_max: int
) -> list[Party]:
    local = LocalSteps(setting.local_steps, setting.step, max(1, setting.batch // setting.local_steps), STRENGTH)
    recipes = {name: EdgePrivacy(local) for name in rows}
    rule: Rule
    rule, updates = (
        (Mixing(0.6, 0.5, lag_max), setting.updates)
        if setting.algorithm == "fedasync"
        else (BufferedMean(setting.buffer, 1.0), max(1, setting.updates // setting.buffer))
    )
    return parties(model, rows, rule, recipes, updates=updates, lag_max=lag_max, seed=setting.seed, retry_s=1e6)


def privacy_for(setting: MapaSetting, model: HorizontalModel) -> Privacy:
    if setting.mode == "paper":
        noisy = None if isinstance(model, LinearModel) else int(model.first_layer)  # type: ignore[attr-defined]
        return Paper(setting.epsilon, noisy)
    if setting.mode == "none":
        return Unprotected()
    counted = setting.algorithm == "adaptive" or setting.count
    adaptive = AdaptiveClip(start=setting.clip or 1.0, quantile=setting.quantile) if counted else None
    uploads = math.ceil(setting.updates / setting.edges)
    return Sound(setting.epsilon, uploads, DELTA, adaptive=adaptive)


def widest_clip(setting: MapaSetting, model: HorizontalModel, rows: dict[str, EdgeData]) -> float:
    """The largest norm one row's gradient can have: a public bound for scaled rows, the data's own in paper mode."""
    if not isinstance(model, LinearModel):
        return NETWORK_CLIP
    if setting.mode == "sound":
        return model.gradient_norm_max(NORM_MAX)
    return model.gradient_norm_max(max(float(mine.norms.max()) for mine in rows.values()))


def train(courses: Courses, setting: MapaSetting) -> dict[str, Any]:
    """One training; plain values that can be kept in a file."""
    rows, test = courses.rows(setting)
    pixels = int(test.features.shape[1])
    model = model_for(setting, pixels)
    by_rule = setting.mode == "sound" and setting.algorithm in ("mapa", "audp")
    parties = build(setting, model, rows, courses.proxy(setting) if by_rule else None)
    cloud = parties[0]
    assert isinstance(cloud, Cloud)
    eyes = _Eyes(cloud, model, _looked_at(model, test), setting)
    _play(setting, parties, eyes.look)
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
        "privacy": stated_privacy(parties[1:]),
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


def stated_privacy(edges: list[Party]) -> dict[str, float] | None:
    """The largest epsilon any edge has spent, under both adjacencies; None without a guarantee."""
    worst: dict[str, float] = {}
    for spent in {frozenset(edge.ledger.spent.items()) for edge in edges}:  # type: ignore[attr-defined]
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
