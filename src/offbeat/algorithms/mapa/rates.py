"""How far the cloud steps along a gradient, and how far the edges clip: the rules of section 5.2.

| symbol    | here             | meaning                                                        |
|-----------|------------------|----------------------------------------------------------------|
| L         | smoothness       | Lipschitz constant of the gradient                             |
| sigma     | deviation        | deviation of one row's gradient                                |
| R         | radius           | bound on the distance to the optimum                           |
| f(x1)-f*  | gap              | bound on what there is to gain                                 |
| tau_max   | lag, or lag_max  | the lag that a full step allows for; the largest accepted      |
| b         | batch            | rows of one gradient                                           |
| Delta S   | 2 clip / batch   | sensitivity of an average of rows clipped at `clip` each       |
| Delta_b   | variance         | deviation^2 / batch + E|noise|^2                               |
| theta     | shrink           | by how much a stage lowers the clip                            |

A rate holds the little state it needs, and a snapshot carries that over a crash. All constants must be public
or paid for: a schedule computed from private rows would reveal them (see `Constants.from_public`).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from offbeat.learning.horizontal import LinearModel
from offbeat.party.memory import Memory
from offbeat.privacy.clipping import AdaptiveClip
from offbeat.privacy.mechanism import NOT_COUNTED

SCORE_NOISE = 1.5  # by how much all noise of a run may move a row's score
SCORE_MOVE = 16.0  # by how much one upload may
WITHIN_WEIGHT = 0.1  # of the newest upload in the running fraction of rows within the clip


@dataclass(frozen=True)
class Constants:
    """What the rules need to know about the problem.

    The printed steps allow for `lag_max`, the largest lag there may be. With a smaller `lag` they allow for that, and
    an upload that is later gets a shorter step in proportion (Koloskova, Stich and Jaggi 2022; Mishchenko and others
    2022): then the mean lag decides, which is below the number of edges however slow some of them are.
    """

    smoothness: float
    deviation: float
    radius: float
    gap: float
    lag_max: int
    batch: float
    lag: int | None = None

    @property
    def late(self) -> int:
        """tau_max + 1 of the formulas."""
        return (self.lag_max if self.lag is None else min(self.lag, self.lag_max)) + 1

    @classmethod
    def from_public(
        cls, model: LinearModel, *, norm_max: float, strength: float, lag_max: int, batch: float
    ) -> "Constants":
        """Estimates that look at no row: `norm_max` bounds |(row, 1)| (rows scaled to norm 1 have sqrt 2).

        L from the loss's curvature; sigma from the bound on one row's gradient; R from strength/2 |x*|^2 <= f(0);
        the gap from f* >= 0.
        """
        deviation = model.gradient_norm_max(norm_max)
        if not math.isfinite(deviation):
            deviation = 2 * math.sqrt(model.classes) * norm_max
        return cls(
            smoothness=model.smoothness(norm_max, strength),
            deviation=deviation,
            radius=math.sqrt(2 * model.start_loss / strength),
            gap=model.start_loss,
            lag_max=lag_max,
            batch=batch,
        )


class Rate(Memory, ABC):
    """A step size for each update, a clip for each model that goes out. `adaptive` moves the clip, where it is given;
    `per_clip` is the noisiest edge's E|noise|^2 for a clip of one."""

    clip: float
    stage = 0
    adaptive: AdaptiveClip | None = None
    per_clip = 0.0

    @abstractmethod
    def step(self, update: int) -> float:
        """The step size of update number `update`, counted from 1."""

    def applied(self, fraction_within: float) -> None:
        """An update was applied; its edge said what fraction of rows was within the clip, or NOT_COUNTED."""
        if self.adaptive is not None and fraction_within != NOT_COUNTED:
            self.clip = self.adaptive.next(self.clip, fraction_within)

    def noise(self, per_clip: float) -> None:
        """The noise of the noisiest edge has changed."""
        self.per_clip = per_clip


@dataclass
class SteadyRate(Rate):
    """One step size and, unless `adaptive` moves it, one clip."""

    KEPT = ("clip",)

    size: float
    clip: float = math.inf
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        if self.adaptive is not None:
            self.clip = self.adaptive.start

    def step(self, update: int) -> float:
        return self.size


@dataclass(frozen=True)
class ScoreBound:
    """How long a step may be, from public numbers alone (docs/decisions/0080-steps-from-the-noise.md).

    A score is a row's product with the weights of one class. Noise of deviation s on every coordinate, in so many
    `updates`, moves the score of a row of this `norm` by a deviation of step * s * norm * sqrt(updates): by no more
    than SCORE_NOISE over the whole run. The gradient of one upload moves it by no more than SCORE_MOVE.
    """

    norm: float
    dimension: int
    updates: int

    def step(self, clip: float, per_clip: float) -> float:
        """The longest step for this clip and this E|noise|^2 for a clip of one."""
        noise = math.sqrt(self.updates * per_clip / self.dimension)
        loudest = SCORE_NOISE / noise if noise > 0 else math.inf
        return min(loudest, SCORE_MOVE) / (clip * self.norm)


@dataclass
class QuietRate(Rate):
    """One clip, or an `adaptive` one, and the longest step that the noise allows."""

    KEPT = ("clip", "per_clip")

    bound: ScoreBound
    clip: float
    adaptive: AdaptiveClip | None = None
    per_clip: float = 0.0

    def step(self, update: int) -> float:
        return self.bound.step(self.clip, self.per_clip)


@dataclass
class CentralRate(Rate):
    """CSGD: 1/gamma = L + sqrt(t+1) sigma/(R sqrt b)."""

    constants: Constants
    clip: float = math.inf

    def step(self, update: int) -> float:
        known = self.constants
        sampling = known.deviation / (known.radius * math.sqrt(known.batch))
        return 1 / (self._first() + math.sqrt(update + 1) * sampling)

    def _first(self) -> float:
        return self.constants.smoothness


@dataclass
class AsyncRate(CentralRate):
    """ASGD: 1/gamma = L (tau_max+1)^2 + sqrt(t+1) sigma/(R sqrt b)."""

    def _first(self) -> float:
        return self.constants.smoothness * self.constants.late**2


@dataclass
class NoisyRate(Rate):
    """AUDP: 1/gamma = L (tau_max+1) + sqrt(Delta_b+1) sqrt t; `log_free` has L ((tau_max+1)^2 + 1) in front."""

    KEPT = ("per_clip",)

    constants: Constants
    clip: float
    log_free: bool = False
    per_clip: float = 0.0

    def step(self, update: int) -> float:
        late = self.constants.late
        first = self.constants.smoothness * (late**2 + 1 if self.log_free else late)
        return 1 / (first + math.sqrt(self.variance + 1) * math.sqrt(update))

    @property
    def variance(self) -> float:
        return self.constants.deviation**2 / self.constants.batch + self.per_clip * self.clip**2


@dataclass
class StagedRate(Rate):
    """MAPA: stages of constant step 1/(2 P L (tau_max+1)); at the end of each the clip shrinks by theta.

        P   = max{1, 8 Delta_b / ((tau_max+1) batch^2 DeltaS^2 theta^2)},    batch^2 DeltaS^2 = 4 clip^2
        T_s = 4 P^2 L (tau_max+1)^2 gap / Delta_b, rounded up, at least 1

    The clip never goes below `floor`: under the typical norm of one row's gradient clipping is a bias, not a saving.
    Nor does it shrink once fewer than a `quantile` of the rows are within it, where the uploads carry that (noisy)
    fraction.
    With `deviation_within_clip` sigma is min(deviation, clip), which per-row clipping gives for nothing.
    """

    KEPT = ("clip", "stage", "left", "per_clip", "within")

    constants: Constants
    clip: float
    shrink: float = 0.5
    floor: float = 0.0
    deviation_within_clip: bool = True
    quantile: float = 0.5
    per_clip: float = 0.0
    stage: int = 0
    left: int = field(default=-1)
    within: float = NOT_COUNTED  # of the rows, averaged over the stage's last uploads

    def step(self, update: int) -> float:
        return 1 / (2 * self.caution * self.constants.smoothness * self.constants.late)

    @property
    def variance(self) -> float:
        deviation = self.constants.deviation
        if self.deviation_within_clip:
            deviation = min(deviation, self.clip)
        return deviation**2 / self.constants.batch + self.per_clip * self.clip**2

    @property
    def caution(self) -> float:
        """P."""
        late = self.constants.late
        return max(1.0, 2 * self.variance / (late * self.clip**2 * self.shrink**2))

    @property
    def length(self) -> int:
        """T_s of the present stage."""
        late = self.constants.late
        updates = 4 * self.caution**2 * self.constants.smoothness * late**2 * self.constants.gap / self.variance
        return max(1, math.ceil(updates))

    def applied(self, fraction_within: float) -> None:
        self._note(fraction_within)
        if self.left < 0:
            self.left = self.length
        self.left -= 1
        at_quantile = self.within != NOT_COUNTED and self.within < self.quantile
        if self.left <= 0 and self.clip > self.floor and not at_quantile:
            self.clip = max(self.shrink * self.clip, self.floor)
            self.stage += 1
            self.left = self.length
            self.within = NOT_COUNTED

    def _note(self, fraction_within: float) -> None:
        if fraction_within == NOT_COUNTED:
            return
        weight = 1.0 if self.within == NOT_COUNTED else WITHIN_WEIGHT
        self.within = (1 - weight) * self.within + weight * fraction_within

    def noise(self, per_clip: float) -> None:
        super().noise(per_clip)
        if self.left >= 0:
            self.left = min(self.left, self.length)


def first_clip(deviation: float, failure: float) -> float:
    """Eq. 12 solved, as a clip: DeltaS = 2 sigma / (b sqrt(1 - sqrt(1-delta))) and clip = b DeltaS / 2.

    A guess at a large enough beginning, nothing more: the theorem behind it does not give delta-privacy.
    """
    return deviation / math.sqrt(1 - math.sqrt(1 - failure))
