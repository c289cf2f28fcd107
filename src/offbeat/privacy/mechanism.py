"""How an edge turns its rows into one released gradient, and what that costs.

Sound (the default): every row's gradient is clipped on its own, and noise covers every released coordinate.

| mechanism | rows of a release                        | noise on the sum             | cost of one release     |
|-----------|------------------------------------------|------------------------------|-------------------------|
| Gaussian  | Poisson: each row by its own secret coin | N(0, (multiplier * clip)^2)  | GaussianRelease         |
| KNorm     | Poisson                                  | K-norm, scale 2 clip/epsilon | PureRelease             |

The sum is divided by the *expected* number of rows, a public constant: the true number stays secret.

For comparison only: `PaperNoise`, MAPA's clip and noise as printed, is not differentially private; `NoNoise` adds none.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from offbeat.learning.horizontal import EdgeData, HorizontalModel
from offbeat.privacy.accountant import GaussianRelease, PureRelease, Release
from offbeat.privacy.clipping import AdaptiveClip, clip_average
from offbeat.privacy.noise import (
    Stream,
    exponential_norm_noise,
    fixed_size_sample,
    gaussian_noise,
    knorm_noise,
    poisson_sample,
)

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


@dataclass(frozen=True)
class Gaussian:
    """Per-row clipping, Poisson sampling, normal noise; with `count` also the noisy count for an adaptive clip."""

    multiplier: float
    rate: float
    rows: int
    count: AdaptiveClip | None = None
    warning = ""

    @property
    def batch(self) -> float:
        return self.rate * self.rows

    def cost(self) -> Release:
        return GaussianRelease(self.multiplier, self.rate)

    @property
    def gradient_multiplier(self) -> float:
        return self.multiplier if self.count is None else self.count.gradient_multiplier(self.multiplier)

    def noise_per_clip(self, dimension: int) -> float:
        return dimension * (self.gradient_multiplier / self.batch) ** 2

    def release(
        self, model: HorizontalModel, parameters: Vector, data: EdgeData, clip: float, stream: Stream
    ) -> tuple[Vector, float]:
        rows = poisson_sample(stream, data.rows, self.rate)
        total, below = model.clipped_sum(parameters, data, rows, clip)
        total += gaussian_noise(stream, total.size, self.gradient_multiplier * clip)
        if self.count is None:
            return total / self.batch, NOT_COUNTED
        shifted = below - rows.size / 2 + self.count.deviation(self.multiplier) * float(stream.normal(1)[0])
        return total / self.batch, min(max(shifted / self.batch + 0.5, 0.0), 1.0)


@dataclass(frozen=True)
class KNorm:
    """Per-row clipping, Poisson sampling and K-norm noise: pure epsilon for replacing one row."""

    epsilon: float
    rate: float
    rows: int
    warning = ""

    @property
    def batch(self) -> float:
        return self.rate * self.rows

    def cost(self) -> Release:
        return PureRelease(self.epsilon, self.rate)

    def noise_per_clip(self, dimension: int) -> float:
        return dimension * (dimension + 1) * (2 / (self.batch * self.epsilon)) ** 2

    def release(
        self, model: HorizontalModel, parameters: Vector, data: EdgeData, clip: float, stream: Stream
    ) -> tuple[Vector, float]:
        rows = poisson_sample(stream, data.rows, self.rate)
        total, _ = model.clipped_sum(parameters, data, rows, clip)
        total += knorm_noise(stream, total.size, 2 * clip / self.epsilon)
        return total / self.batch, NOT_COUNTED


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
        total, _ = model.clipped_sum(parameters, data, rows, np.inf)
        clipped = clip_average(total / rows.size, clip)
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
        total, _ = model.clipped_sum(parameters, data, rows, np.inf)
        return total / rows.size, NOT_COUNTED
