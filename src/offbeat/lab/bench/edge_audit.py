"""`offbeat bench edge-audit`: attack the edges' releases; does any test show more than the accountant admits?

20,000 runs of one release and 1,000 short trainings in each world; with --quick a tenth of that.

The worst neighbouring pair: all rows but one have no gradient, and the one (the canary) pulls the model to one side
with the full clip, or to the other. The attacker is the cloud: it sees every model, every upload and knows all other
rows, and scores by the likelihood ratio. Sound mode must never show more than its accounted epsilon, at any delta;
paper mode does, and so does noise drawn as doubles, whose last bits give the true sum away.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from offbeat.algorithms.mapa import Cloud, Edge, GradientStep, Upload
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.algorithms.mapa.rates import SteadyRate
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.learning.grid import Grid, round_rows
from offbeat.learning.horizontal import EdgeData, HorizontalModel, LinearModel, edge_data, refuse_misfits
from offbeat.party.contract import Effect, Event, Party, Send
from offbeat.privacy.accountant import GaussianRelease, PureRelease, Release, epsilon, replace_one_loss
from offbeat.privacy.audit import epsilon_shown, exponential_norm_score, reachable_as_doubles
from offbeat.privacy.clipping import clipped_sum
from offbeat.privacy.mechanism import NOT_COUNTED, Gaussian, Laplace, Mechanism, PaperNoise, Sampled
from offbeat.privacy.noise import SeededNoise, Stream, gaussian_noise, poisson_sample
from offbeat.runtime.simulator import Simulator
from offbeat.runtime.simulator.checkers import Checker

ROWS, FEATURES, CLIP = 60, 20, 1.0
DELTAS = (1e-5, 0.01, 0.1)  # at larger ones an attack of finitely many runs comes closest to the truth
MODEL = LinearModel("logistic", FEATURES)
DIMENSION = 10  # of the short trainings
PRINTED = "batch-mean (paper)"


@dataclass(frozen=True)
class AttackFinding:
    """One attack. `promised` is the accounted epsilon, in paper mode the paper's own claim."""

    attack: str
    mode: str
    delta: float
    promised: float
    shown: float
    runs: int
    confidence: float
    verdict: str


def worlds() -> tuple[EdgeData, EdgeData, np.ndarray, np.ndarray]:
    """The two neighbouring data sets, the model at which they are attacked, and the canary's direction.

    The model is sure of every ordinary row (its residual vanishes) and wrong by far about the canary, whose gradient is
    cut to the clip: along its row, or against it when the label is the other one and the row is turned round.
    """
    parameters = np.zeros(MODEL.dimension)
    parameters[0] = 1e6
    ordinary = np.zeros((ROWS, FEATURES))
    ordinary[:, 0] = 1.0
    one, two = ordinary.copy(), ordinary.copy()
    one[-1, 0], one[-1, 1] = 1.0, 50.0
    two[-1, 0], two[-1, 1] = 1.0, -50.0
    labels = np.ones(ROWS, dtype=int)
    labels[-1] = 0
    canary = edge_data(one[-1:], labels[-1:])
    return edge_data(one, labels), edge_data(two, labels), parameters, clipped(MODEL, parameters, canary)


def clipped(model: HorizontalModel, parameters: np.ndarray, data: EdgeData) -> np.ndarray:
    """What the rows add to a release: the slow, obvious way."""
    each = [model.gradient_sum(parameters, data, np.array([row])) for row in range(data.rows)]
    return clipped_sum(np.array(each), CLIP)


# -- one release ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    """What is attacked and how: `promised` gives the epsilon at a delta, `score` is the attacker's of one release."""

    name: str
    mechanism: Mechanism
    promised: Callable[[float], float]
    score: Callable[[np.ndarray], float]

    def on_releases(
        self, model: HorizontalModel, parameters: np.ndarray, worlds: Sequence[EdgeData], runs: int, seed: str = ""
    ) -> list[AttackFinding]:
        """Release once in each world, `runs` times over; `seed`: of the noise, if it is not the attack's name."""
        scores = []
        for number, data in enumerate(worlds):
            source = SeededNoise(number, f"audit {seed or self.name}")
            streams = map(source.stream, range(runs))
            released = (self.mechanism.release(model, parameters, data, CLIP, stream)[0] for stream in streams)
            scores.append(np.array([self.score(values) for values in released]))
        return self._findings(scores)

    def on_trainings(self, steps: int, runs: int) -> list[AttackFinding]:
        """The scores of a training are the sums over its releases."""
        return self._findings(
            [
                np.array([sum(map(self.score, one_training(self.mechanism, side, steps, run))) for run in range(runs)])
                for side in (CLIP, -CLIP)
            ]
        )

    def _findings(self, scores: Sequence[np.ndarray]) -> list[AttackFinding]:
        unsound = "as doubles" if isinstance(self.mechanism, Doubles) else PRINTED
        mode = unsound if self.mechanism.cost() is None else "sound"
        found = []
        for delta in DELTAS:
            shown, most = epsilon_shown(scores[0], scores[1], delta), self.promised(delta)
            verdict = "within its promise" if shown.epsilon <= most else "NOT differentially private as promised"
            measured = (shown.epsilon, shown.runs, shown.confidence)
            found.append(AttackFinding(self.name, mode, delta, most, *measured, verdict))
        return found


def accounted(release: Release, times: int = 1) -> Callable[[float], float]:
    return lambda delta: epsilon({release: times}, delta)


def gaussian_release(multiplier: float, rate: float, runs: int) -> list[AttackFinding]:
    one, two, parameters, canary = worlds()
    direction = canary / np.linalg.norm(canary)
    name = f"one Gaussian release, multiplier {multiplier:g}, rate {rate:g}"
    promised = accounted(GaussianRelease(multiplier, rate))
    attack = Attack(name, Gaussian(multiplier, rate, ROWS), promised, lambda r: float(r @ direction))
    return attack.on_releases(MODEL, parameters, (one, two), runs)


def laplace_release(per_release: float, rate: float, runs: int) -> list[AttackFinding]:
    """In one dimension: in many the noise of the others hides the canary's and an attack shows far less."""
    model, worlds = Canaries(1), [canary_rows(side, 1) for side in (CLIP, -CLIP)]
    name = f"one Laplace release, epsilon {per_release:g}, rate {rate:g}, 1 coordinate"
    promised = accounted(PureRelease(per_release, rate))
    attack = Attack(name, Laplace(per_release, rate, ROWS), promised, lambda r: float(r[0]))
    return attack.on_releases(model, model.start(), worlds, runs, "laplace")


def paper_release(per_release: float, runs: int) -> list[AttackFinding]:
    """The whole edge is one batch, as when an edge holds few rows."""
    one, two, parameters, _ = worlds()
    everything = np.arange(ROWS)
    truths = []
    for data in (one, two):
        average = MODEL.gradient_sum(parameters, data, everything) / ROWS
        truths.append(average / max(1.0, float(np.linalg.norm(average)) / CLIP))
    scale = 2 * CLIP / (ROWS * per_release)
    attack = Attack(
        f"one release as printed, epsilon {per_release:g}, {MODEL.dimension} coordinates",
        PaperNoise(per_release, ROWS),
        lambda delta: per_release,
        lambda r: exponential_norm_score(r, truths[0], truths[1], scale),
    )
    return attack.on_releases(MODEL, parameters, (one, two), runs)


# -- the last bits ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doubles(Sampled):
    """Clipping, sampling and noise of a sound release, all in floating point: what the attack on last bits breaks."""

    multiplier: float
    rate: float
    rows: int
    warning = "noise drawn as doubles: not differentially private"

    def cost(self) -> None:
        return None

    def noise_per_clip(self, dimension: int) -> float:
        return dimension * (self.multiplier / self.batch) ** 2

    def release(
        self, model: HorizontalModel, parameters: np.ndarray, data: EdgeData, clip: float, stream: Stream
    ) -> tuple[np.ndarray, float]:
        rows = poisson_sample(stream, data.rows, self.rate)
        chosen = edge_data(data.features[rows], data.labels[rows])
        noise = gaussian_noise(stream, model.dimension, self.multiplier * clip)
        return (clipped(model, parameters, chosen) + noise) / self.batch, NOT_COUNTED


def last_bits(mechanism: Gaussian | Doubles, name: str, runs: int) -> list[AttackFinding]:
    """One dense row is another; the attacker knows both tables and counts the coordinates whose last bits fit each."""
    model, random = LinearModel("logistic", 200), np.random.default_rng(0)
    table, labels = random.random((ROWS, 200)), random.integers(0, 2, ROWS)
    other = table.copy()
    other[0] = other[0, ::-1]
    worlds = [edge_data(rows, labels) for rows in (table, other)]
    sums = [clipped(model, model.start(), data) for data in worlds]
    deviation = mechanism.multiplier * CLIP

    def score(released: np.ndarray) -> float:
        fits = [float(reachable_as_doubles(released, value, deviation, mechanism.batch).mean()) for value in sums]
        return fits[0] - fits[1]

    promised = accounted(GaussianRelease(mechanism.multiplier, mechanism.rate))
    attack = Attack(f"last bits of {name}", mechanism, promised, score)
    return attack.on_releases(model, model.start(), worlds, runs, f"last bits {name}")


# -- a short training -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Canaries:
    """A model whose row's gradient is the row itself, whatever the parameters: the worst case at every step."""

    dimension: int = DIMENSION

    def start(self) -> np.ndarray:
        return np.zeros(self.dimension)

    def check(self, data: EdgeData) -> None:
        refuse_misfits(data, self.dimension, data.classes)

    def gradient_sum(self, parameters: np.ndarray, data: EdgeData, rows: np.ndarray) -> np.ndarray:
        summed: np.ndarray = np.asarray(data.features[rows], dtype=np.float64).sum(axis=0)
        return summed

    def grid_sum(self, parameters: np.ndarray, data: EdgeData, rows: np.ndarray, grid: Grid) -> tuple[np.ndarray, int]:
        chosen = np.asarray(data.features[rows], dtype=np.float64)
        within = np.linalg.norm(chosen, axis=1) <= grid.reach(self.dimension)
        return round_rows(chosen, grid).sum(axis=0), int(within.sum())

    def loss(self, parameters: np.ndarray, data: EdgeData) -> float:
        return float((np.asarray(data.features) @ parameters).mean())

    def accuracy(self, parameters: np.ndarray, data: EdgeData) -> float:
        return 0.0


class _Uploads(Checker):
    """A checker that keeps what the cloud is sent."""

    def __init__(self) -> None:
        self.gradients: list[np.ndarray] = []

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.body, Upload):
                self.gradients.append(effect.body.gradient)


def canary_rows(side: float, dimension: int = DIMENSION) -> EdgeData:
    features = np.zeros((ROWS, dimension))
    features[-1, 0] = side
    return edge_data(features, np.zeros(ROWS, dtype=int))


def one_training(mechanism: Mechanism, side: float, steps: int, seed: int) -> list[np.ndarray]:
    """Cloud and edge in the simulator; the uploads in order."""
    model = Canaries()
    cloud = Cloud(model.start(), GradientStep(SteadyRate(0.1, clip=CLIP), 0.0), updates=steps, lag_max=1, edges=("e",))
    noise = SeededNoise(seed, f"training {side:g}")
    edge = Edge("e", model, canary_rows(side), EdgePrivacy(mechanism), noise)
    seen = _Uploads()
    Simulator(seed=0, checkers=(seen,)).run([cloud, edge])
    return seen.gradients


def gaussian_training(multiplier: float, rate: float, steps: int, runs: int) -> list[AttackFinding]:
    mechanism = Gaussian(multiplier, rate, ROWS)

    def score(gradient: np.ndarray) -> float:
        return float(replace_one_loss(np.array(gradient[0] * mechanism.batch / CLIP), multiplier, rate))

    name = f"{steps} Gaussian releases, multiplier {multiplier:g}, rate {rate:g}"
    promised = accounted(GaussianRelease(multiplier, rate), steps)
    return Attack(name, mechanism, promised, score).on_trainings(steps, runs)


def paper_training(per_release: float, steps: int, runs: int) -> list[AttackFinding]:
    one = np.zeros(DIMENSION)
    one[0] = CLIP / ROWS
    scale = 2 * CLIP / (ROWS * per_release)
    name = f"{steps} releases as printed, epsilon {per_release:g} each, {DIMENSION} coordinates"
    promised, mechanism = steps * per_release, PaperNoise(per_release, ROWS)
    attack = Attack(name, mechanism, lambda delta: promised, lambda g: exponential_norm_score(g, one, -one, scale))
    return attack.on_trainings(steps, runs)


def edge_audit(options: LabOptions) -> LabResult:
    """All attacks."""
    releases, trainings = (2_000, 100) if options.quick else (20_000, 1_000)
    attacks: list[Callable[[], list[AttackFinding]]] = [
        lambda: gaussian_release(2.0, 1.0, releases),
        lambda: gaussian_release(1.0, 0.2, releases),
        lambda: gaussian_release(0.6, 0.5, releases),
        lambda: laplace_release(1.0, 1.0, releases),
        lambda: laplace_release(3.0, 0.3, releases),
        lambda: last_bits(Gaussian(20.0, 1.0, ROWS), "one Gaussian release, multiplier 20", releases // 10),
        lambda: last_bits(Doubles(20.0, 1.0, ROWS), "the same with noise drawn as doubles", releases // 10),
        lambda: paper_release(0.1, releases),
        lambda: paper_release(1.0, releases),
        lambda: gaussian_training(1.0, 0.2, 20, trainings),
        lambda: gaussian_training(2.0, 0.5, 20, trainings),
        lambda: gaussian_training(6.0, 1.0, 20, trainings),
        lambda: paper_training(0.1, 10, trainings),
    ]
    findings = []
    for finding in (finding for attack in attacks for finding in attack()):
        findings.append(finding)
        options.say(_line(finding))
    kept = "as expected" if as_expected(findings) else "NOT as expected: look at the verdicts"
    notes = [f"Sound mode within its epsilon everywhere, paper mode and noise drawn as doubles beyond theirs: {kept}."]
    return LabResult([asdict(finding) for finding in findings], notes=notes)


def as_expected(findings: Sequence[AttackFinding]) -> bool:
    """Sound mode never shows more than its promise; every attack on the others does, at some delta."""
    sound = all(finding.shown <= finding.promised for finding in findings if finding.mode == "sound")
    printed = {finding.attack for finding in findings if finding.mode != "sound"}
    broken = {finding.attack for finding in findings if finding.mode != "sound" and finding.shown > finding.promised}
    return sound and printed == broken


def _line(finding: AttackFinding) -> str:
    epsilons = f"promised {finding.promised:6.3f}  shown {finding.shown:6.3f}"
    return f"{finding.mode:18} {finding.attack:60} delta {finding.delta:<7g} {epsilons}"


ENTRIES = (Entry("edge-audit", "attacks on the edges' releases, sound and as printed", edge_audit),)
