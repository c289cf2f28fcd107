"""Private embeddings: what one record's uploads cost, and the cap that keeps them within a budget.

In VAFL a record is released again and again, by number, to a server that knows which upload held it. So there is no
gain from subsampling, and the cost of one record at one client is a plain Gaussian composition over

    its own embeddings    norm at most `clip`, noise of deviation `noise`:           mu^2 = releases (2 clip / noise)^2
    the client's weights  stepped with its gradient, norm at most `gradient_clip`,
                          noise of deviation `gradient_noise * gradient_clip`:       mu^2 = steps (2 / gradient_noise)^2
    the covariance of     the rows' outer products, norm at most r = `covariance_clip`^2,
    its columns, once     noise of deviation `covariance_noise * r`:                 mu^2 = (2 / covariance_noise)^2

    mu = sqrt(sum of all)          epsilon from mu and delta by the exact curve of Gaussian differential privacy

Embeddings and gradients are rounded to whole steps of a grid, and the noise is a discrete Gaussian (`discrete`), which
costs no more than normal noise of these deviations.
The second line is needed because *other* records' embeddings are computed with weights that this record has moved. The
third is there where a client multiplies its steps with the inverse of its covariance (`whitening`): no message holds
it, but all that leaves is computed with it. It is charged to every record from the start, whether it is used or not.
Adjacency is replace-one: the columns of one record at one client are changed for any others. Not covered: labels,
several records of one person, and statistics that were computed from the data before training (scaling).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob
from offbeat.learning.grid import Grid, Integers
from offbeat.privacy.accountant import GaussianRelease, gaussian_mu, gdp_epsilon, gdp_mu
from offbeat.privacy.discrete import GridNoise

Counts = NDArray[np.int64]

RIDGE = 0.35  # of the largest eigenvalue that the noise alone would have
FLAT = 1e-3  # of the mean eigenvalue that rows as long as the clip can have


@dataclass(frozen=True)
class PrivateEmbedding:
    """One client's mechanism. `uploads_max` is the cap: no record's embedding leaves more often."""

    noise: float
    gradient_noise: float
    uploads_max: int
    clip: float = 1.0
    gradient_clip: float = 1.0
    delta: float = 1e-5
    predictions_max: int = 0  # embeddings of one record that may leave after training; counted from the start
    covariance_noise: float | None = None  # None: no covariance is taken
    covariance_clip: float | None = None  # of a row's norm; None: sqrt(columns), as rows of standardised columns have

    def __post_init__(self) -> None:
        positive = {name: getattr(self, name) for name in ("noise", "gradient_noise", "clip", "gradient_clip")}
        if self.covariance_noise is not None:
            positive |= {"covariance_noise": self.covariance_noise, "covariance_clip": self.covariance_clip or 1.0}
        wrong = [f"{name} = {value}" for name, value in positive.items() if not value > 0]
        if wrong or self.uploads_max < 1 or not 0 < self.delta < 1:
            raise BadJob(
                "A private embedding needs noise, gradient_noise, clip and gradient_clip above 0, uploads_max of at "
                f"least 1 and delta between 0 and 1; got {', '.join(wrong) or self}."
            )

    @cached_property
    def grid_noise(self) -> GridNoise:
        """Of an embedding."""
        return GridNoise.of(self.noise / self.clip)

    @cached_property
    def grid(self) -> Grid:
        """Of an embedding."""
        return self.grid_noise.grid(self.clip)

    @cached_property
    def gradient_grid_noise(self) -> GridNoise:
        return GridNoise.of(self.gradient_noise)

    @cached_property
    def gradient_grid(self) -> Grid:
        return self.gradient_grid_noise.grid(self.gradient_clip)

    @cached_property
    def covariance_grid_noise(self) -> GridNoise:
        assert self.covariance_noise is not None
        return GridNoise.of(self.covariance_noise)

    def covariance_grid(self, columns: int) -> Grid:
        """Of a row's outer product with itself, whose norm is the square of the row's."""
        return self.covariance_grid_noise.grid(columns if self.covariance_clip is None else self.covariance_clip**2)

    def cost(self, releases: int, steps: int) -> dict[GaussianRelease, int]:
        """Of a record with this many released embeddings and this many gradient steps, as a ledger has it."""
        parts = [(self.noise / self.clip, releases), (self.gradient_noise, steps)]
        if self.covariance_noise is not None:
            parts.append((self.covariance_noise, 1))
        found: dict[GaussianRelease, int] = {}
        for multiplier, count in parts:
            release = GaussianRelease(multiplier)
            found[release] = found.get(release, 0) + count
        return found

    def mu(self, releases: int, steps: int) -> float:
        return gaussian_mu(self.cost(releases, steps), "replace-one")

    def epsilon(self, releases: int, steps: int) -> float:
        return gdp_epsilon(self.mu(releases, steps), self.delta)

    @property
    def epsilon_max(self) -> float:
        """What the cap promises, whatever the run does."""
        return self.epsilon(self.uploads_max + self.predictions_max, self.uploads_max)


def calibrate(
    epsilon: float,
    delta: float,
    uploads_max: int,
    *,
    clip: float = 1.0,
    gradient_clip: float = 1.0,
    embedding_share: float = 0.5,
    predictions_max: int = 0,
    covariance_share: float = 0.0,
    covariance_clip: float | None = None,
) -> PrivateEmbedding:
    """The mechanism whose cap costs exactly (epsilon, delta). `embedding_share` of mu^2 goes to the embeddings,
    `covariance_share` to the covariance, and the rest to the gradients; a share of 0: no covariance."""
    gradient_share = 1 - embedding_share - covariance_share
    if not (embedding_share > 0 and covariance_share >= 0 and gradient_share > 0):
        raise BadJob(
            "embedding_share must lie strictly between 0 and 1, covariance_share must not be below 0, and something "
            f"must be left for the gradients; got {embedding_share} and {covariance_share}."
        )
    mu = gdp_mu(epsilon, delta) * (1 - 1e-9)
    return PrivateEmbedding(
        noise=2 * clip * math.sqrt((uploads_max + predictions_max) / embedding_share) / mu,
        gradient_noise=2 * math.sqrt(uploads_max / gradient_share) / mu,
        uploads_max=uploads_max,
        clip=clip,
        gradient_clip=gradient_clip,
        delta=delta,
        predictions_max=predictions_max,
        covariance_noise=2 / (math.sqrt(covariance_share) * mu) if covariance_share > 0 else None,
        covariance_clip=covariance_clip,
    )


def whitening(private: PrivateEmbedding, noisy: Integers, rows: int) -> NDArray[np.float64]:
    """The inverse of the covariance, from the rows' outer products added up with their noise, in steps of the grid.

    A ridge keeps down what is noise: the noise alone, made symmetric, has eigenvalues up to sqrt(2 columns) deviations.
    """
    assert private.covariance_noise is not None
    columns, grid = len(noisy), private.covariance_grid(len(noisy))
    values, vectors = np.linalg.eigh((noisy + noisy.T) * (grid.step / (2 * rows)))
    longest = grid.step * grid.bound
    edge = math.sqrt(2 * columns) * private.covariance_noise * longest / rows
    inverse = 1.0 / (np.maximum(values, 0.0) + RIDGE * edge + FLAT * longest / columns)
    return np.asarray((vectors * inverse) @ vectors.T)


def bought_epsilon(noise: float, uploads: int, delta: float = 1e-5, clip: float = 1.0) -> float:
    """What noise of this deviation alone buys a record that is uploaded so often, were the weights not trained on it.

    This is the charitable reading of the paper's c: the embedding is taken to be clipped, and the way through the
    weights is left out.
    """
    return gdp_epsilon(gaussian_mu({GaussianRelease(noise / clip): uploads}, "replace-one"), delta)


class RecordLedger:
    """Counts, for every record of one client, what left and what moved the weights; never resets.

    Counted when the upload is made, before it is sent. A retry of the same bytes is not counted again.
    """

    def __init__(self, mechanism: PrivateEmbedding, records: int) -> None:
        self.mechanism = mechanism
        self.released: Counts = np.zeros(records, dtype=np.int64)
        self.stepped: Counts = np.zeros(records, dtype=np.int64)

    def open_rows(self, rows: Counts) -> Counts:
        """Those of the rows whose cap is not reached."""
        return np.asarray(rows[self.released[rows] < self.mechanism.uploads_max])

    def spend(self, rows: Counts, *, step: bool) -> None:
        assert len(np.unique(rows)) == len(rows), "a record would leave twice and be counted once"
        assert np.all(self.released[rows] < self.mechanism.uploads_max), "a record was about to pass its cap"
        self.released[rows] += 1
        if step:
            self.stepped[rows] += 1

    def charge_all(self, uploads: int) -> None:
        """After a crash: this many uploads are known to have left and not known what they held."""
        self.released += uploads
        self.stepped += uploads

    def cost(self, record: int) -> dict[GaussianRelease, int]:
        """What was released about one record: for an account over several runs."""
        reserved = self.mechanism.predictions_max
        return self.mechanism.cost(int(self.released[record]) + reserved, int(self.stepped[record]))

    def statement(self) -> dict[str, Any]:
        """Of the record that has spent most: the keys every ledger states, and all that is needed to recompute epsilon:
        mu = 2 sqrt(releases (clip/noise)^2 + steps / gradient_noise^2), and under the root 1 / covariance_noise^2 more
        where a covariance is taken."""
        mechanism = self.mechanism
        releases, steps = self._worst()
        releases += mechanism.predictions_max
        return {
            "releases": releases,
            "steps": steps,
            "epsilon": mechanism.epsilon(releases, steps),
            "delta": mechanism.delta,
            "budget_epsilon": mechanism.epsilon_max,
            "adjacency": "replace-one",
            "unit": "one record's columns at this client",
            "mu": mechanism.mu(releases, steps),
            "releases_most": int(self.released.max(initial=0)),
            "uploads_max": mechanism.uploads_max,
            "predictions_max": mechanism.predictions_max,
            "clip": mechanism.clip,
            "noise": mechanism.noise,
            "gradient_clip": mechanism.gradient_clip,
            "gradient_noise": mechanism.gradient_noise,
            **self._covariance(),
        }

    def _covariance(self) -> dict[str, Any]:
        mechanism = self.mechanism
        if mechanism.covariance_noise is None:
            return {}
        return {
            "covariances": 1,
            "covariance_clip": mechanism.covariance_clip or "sqrt(columns)",
            "covariance_noise": mechanism.covariance_noise,
        }

    def _worst(self) -> tuple[int, int]:
        """The counts of the record that has spent most."""
        mechanism = self.mechanism
        cost = self.released * (mechanism.clip / mechanism.noise) ** 2 + self.stepped / mechanism.gradient_noise**2
        worst = int(np.argmax(cost)) if len(cost) else 0
        return (int(self.released[worst]), int(self.stepped[worst])) if len(cost) else (0, 0)

    def snapshot(self) -> dict[str, Any]:
        return {"released": self.released.copy(), "stepped": self.stepped.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.released = np.array(state["released"], dtype=np.int64)
        self.stepped = np.array(state["stepped"], dtype=np.int64)
