"""How an edge turns its rows into one released gradient, and what that costs.

Sound (the default): every row's gradient is clipped on its own and rounded to whole steps of a public grid, and noise
in whole steps covers every released coordinate. What leaves is whole numbers times a public scale; no other bits.

| mechanism | rows of a release            | noise on the sum, in steps                     | cost            |
|-----------|------------------------------|------------------------------------------------|-----------------|
| Gaussian  | each by its own secret coin  | discrete Gaussian, deviation multiplier * clip | GaussianRelease |
| Laplace   | the same (Poisson sampling)  | discrete Laplace, scale 2 clip sqrt(d)/epsilon | PureRelease     |

The sum is divided by the *expected* number of rows, a public constant: the true number stays secret.

For comparison only: `PaperNoise`, MAPA's clip and noise as printed, is not differentially private; `NoNoise` adds none.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from offbeat.errors import BadJob
from offbeat.learning.grid import BOUND_MOST, Grid
from offbeat.learning.horizontal import EdgeData, HorizontalModel
from offbeat.privacy.accountant import GaussianRelease, PureRelease, Release
from offbeat.privacy.clipping import AdaptiveClip, clip_average
from offbeat.privacy.discrete import SCALE_MOST, GridNoise, discrete_laplace
from offbeat.privacy.noise import Stream, exponential_norm_noise, fixed_size_sample, poisson_sample

Vector = npt.NDArray[np.float64]

NOT_PRIVATE = "not differentially private"
PAPER_WARNING = (
    'clipping="batch-mean (paper)": not differentially private. The clipped average lets one record change it by up to '
    "the batch size times the stated sensitivity, and a uniform direction times an exponential norm is not a private "
    "law beyond one dimension; this mode only redraws the published figures."
)
NO_NOISE_WARNING = "no noise: not differentially private; every gradient goes to the cloud as it is."

NOT_COUNTED = -1.0  # in place of the fraction of rows within the clip, where it was not asked for


class Mechanism(Protocol):
    """A frozen recipe for one release."""

    @property
    def batch(self) -> float:
        """Expected rows of a release."""
        ...

    @property
    def warning(self) -> str:
        """What it does not guarantee; empty when it is private."""
        ...

    def cost(self) -> Release | None:
        """The entry for the ledger; None for a release that carries no guarantee."""
        ...

    def noise_per_clip(self, dimension: int) -> float:
        """E|noise|^2 of a released gradient, for a clip of one."""
        ...

    def release(
        self, model: HorizontalModel, parameters: Vector, data: EdgeData, clip: float, stream: Stream
    ) -> tuple[Vector, float]:
        """One released gradient, and the released fraction of rows within the clip (or NOT_COUNTED)."""
        ...


class Sampled:
    """Each row takes part with the same probability."""

    rate: float
    rows: int

    @property
    def batch(self) -> float:
        return self.rate * self.rows


@dataclass(frozen=True)
class Gaussian(Sampled):
    """Per-row clipping, Poisson sampling, discrete Gaussian noise; with `count` also a noisy count of rows within the
    clip, for an adaptive clip.

    The count is one more coordinate of each row's vector: +weight for a row within the clip, -weight for another. So
    what one row adds has a squared norm of at most bound^2 + weight^2, and the noise is made for that.
    """

    multiplier: float
    rate: float
    rows: int
    count: AdaptiveClip | None = None
    warning = ""

    def cost(self) -> Release:
        return GaussianRelease(self.multiplier, self.rate)

    @cached_property
    def noise(self) -> GridNoise:
        """Made for rows whose vectors have a squared norm of `noise.squared` steps at most."""
        return GridNoise.of(self.multiplier)

    @cached_property
    def weight(self) -> int:
        """Of the count, in steps."""
        share = 0.0 if self.count is None else self.count.share(self.multiplier)
        return int(math.sqrt(share * self.noise.squared))

    @cached_property
    def bound(self) -> int:
        """Steps in a clip."""
        return math.isqrt(self.noise.squared - self.weight**2)

    def noise_per_clip(self, dimension: int) -> float:
        refuse_coarse(self.bound, dimension)
        return dimension * self.noise.variance / (self.bound * self.batch) ** 2

    def release(
        self, model: HorizontalModel, parameters: Vector, data: EdgeData, clip: float, stream: Stream
    ) -> tuple[Vector, float]:
        rows = poisson_sample(stream, data.rows, self.rate)
        grid = Grid(clip / self.bound, self.bound)
        total, within = model.grid_sum(parameters, data, rows, grid)
        total += self.noise.draw(stream, total.size)
        released = np.asarray(total * (grid.step / self.batch), dtype=np.float64)
        if self.count is None:
            return released, NOT_COUNTED
        counted = self.weight * (2 * within - rows.size) + int(self.noise.draw(stream, 1)[0])
        return released, min(max(counted / (2 * self.weight * self.batch) + 0.5, 0.0), 1.0)


@dataclass(frozen=True)
class Laplace(Sampled):
    """Per-row clipping, Poisson sampling and discrete Laplace noise: pure epsilon for replacing one row.

    Replacing a row whose vector has at most the norm `bound` changes the sum's absolute values by at most
    2 bound sqrt(d) together, in whole numbers.
    """

    epsilon: float
    rate: float
    rows: int
    bound = BOUND_MOST
    warning = ""

    def cost(self) -> Release:
        return PureRelease(self.epsilon, self.rate)

    def scale(self, dimension: int) -> int:
        """Of the noise, in steps."""
        most = 2 * math.isqrt(dimension * self.bound**2)
        return math.ceil(most / Fraction(self.epsilon))

    def noise_per_clip(self, dimension: int) -> float:
        refuse_coarse(self.bound, dimension)
        if self.scale(dimension) > SCALE_MOST:
            raise BadJob(
                f"Noise for a pure epsilon of {self.epsilon:g} a release on {dimension} coordinates is too large to be "
                "drawn. Use gaussian noise, or a larger epsilon."
            )
        return 2 * dimension * (self.scale(dimension) / (self.bound * self.batch)) ** 2

    def release(
        self, model: HorizontalModel, parameters: Vector, data: EdgeData, clip: float, stream: Stream
    ) -> tuple[Vector, float]:
        rows = poisson_sample(stream, data.rows, self.rate)
        grid = Grid(clip / self.bound, self.bound)
        total, _ = model.grid_sum(parameters, data, rows, grid)
        total += discrete_laplace(stream, total.size, self.scale(total.size))
        return np.asarray(total * (grid.step / self.batch), dtype=np.float64), NOT_COUNTED


def refuse_coarse(bound: int, dimension: int) -> None:
    """Refuse noise so large that the grid which can carry it is too coarse for a row's vector."""
    if Grid(1.0, bound).reach(dimension) <= 0.5 * bound:
        raise BadJob(
            f"The noise is so much larger than the clip that only {bound} steps are left for a vector of {dimension} "
            "coordinates, and rounding would take most of it. Nothing could be learned: raise epsilon, or ask for "
            "fewer releases."
        )


@dataclass(frozen=True)
class PaperNoise:
    """MAPA as printed: the batch's average clipped at `clip`, an exponential norm of scale 2 clip/(batch epsilon).

    `noisy` limits the noise to the first so many coordinates, as the paper does for its network (first layer only).
    """

    epsilon: float
    batch: float
    noisy: int | None = None
    warning = PAPER_WARNING

    def cost(self) -> None:
        return None

    def noise_per_clip(self, dimension: int) -> float:
        return 2 * (2 / (self.batch * self.epsilon)) ** 2

    def release(
        self, model: HorizontalModel, parameters: Vector, data: EdgeData, clip: float, stream: Stream
    ) -> tuple[Vector, float]:
        rows = fixed_size_sample(stream, data.rows, int(self.batch))
        clipped = clip_average(model.gradient_sum(parameters, data, rows) / rows.size, clip)
        size = clipped.size if self.noisy is None else self.noisy
        clipped[:size] += exponential_norm_noise(stream, size, 2 * clip / (self.batch * self.epsilon))
        return clipped, NOT_COUNTED


@dataclass(frozen=True)
class NoNoise:
    """The plain average over a batch without replacement, nothing clipped."""

    batch: float
    warning = NO_NOISE_WARNING

    def cost(self) -> None:
        return None

    def noise_per_clip(self, dimension: int) -> float:
        return 0.0

    def release(
        self, model: HorizontalModel, parameters: Vector, data: EdgeData, clip: float, stream: Stream
    ) -> tuple[Vector, float]:
        rows = fixed_size_sample(stream, data.rows, int(self.batch))
        return model.gradient_sum(parameters, data, rows) / rows.size, NOT_COUNTED
