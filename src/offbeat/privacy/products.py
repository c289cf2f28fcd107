"""Private products: what leaves of one row at one party is differentially private over a whole run.

The asker learns, round by round, the sum of all parties' shares x_i w of each row i. A share is bounded and noisy:

    word_i = the nearest whole number to x_i w 2^f, at most `clip_words` in size, plus a discrete Gaussian

and the noise is inside the masked sum, so nobody sees a share with less than everybody's noise (P. Kairouz, Z. Liu and
T. Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation", 2021).

*What one row can change.* A row shows in its own share, and in the weights, which all later shares are made of. Given
all that was told, derivatives are the same numbers whatever the row is, and the weights are a sum of them times rows:

    after t steps     |w - w'| <= t * step * derivative * |x - x'| / rows <= t * shift,
                      shift = 2 * step * derivative / rows

for rows of norm 1 at most, derivatives that the party itself cuts off, and an l2 penalty or none, which only shrinks
the difference. So the words of the round after t steps differ, as one vector, by at most

    (2 clip_words)^2 + rows * (t * shift * 2^f + ROUNDING)^2        in squared length.

These add up over the rounds to `squared`. The noise of those whom the observer does not know has the variance
(parties - 1 - colluders) * variance; all is as private as one Gaussian release with mu^2 = squared / (that - 9).
docs/explanation/private-products.md has the proof.

Nothing leaves that is not in this sum: no probes, no surveys, no certificate; the first products are zero for all rows
and cost nothing.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.errors import BadJob
from offbeat.privacy.accountant import GaussianRelease, gdp_epsilon, gdp_mu
from offbeat.privacy.discrete import SMOOTHING, VARIANCE_LEAST, discrete_gaussian
from offbeat.privacy.ledger import Budget, Ledger
from offbeat.privacy.noise import NoiseSource

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

DERIVATIVE_MOST = 4.0  # of the squared loss, 2 (z - y): what is further off counts as 2 off
STEP_FACTOR = 0.75  # over the number of parties: below 1, rounds without noise get closer whatever the rows
DEVIATION_BITS = 27  # of one party's noise, in words
FRACTION_BITS_LEAST, FRACTION_BITS_MOST = 8, 30
ROOM = 1e-9  # by which a run stays below its budget, so that rounding does not carry its charge above
ROUNDING = 8
"""Words by which rounding to the grid and floating point may widen the difference of two shares: at most 1 for the
grid; a share is computed to some 2^-32 with a million columns at the very worst, and a word is 2^-30 or more."""


@dataclass(frozen=True)
class ProductPlan:
    """What all parties agree on before a run. `steps`: how many are taken; `constant`: whether products are asked for
    once more after the last one, to find the model's constant."""

    epsilon: float
    delta: float
    parties: int
    rows: int
    steps: int
    step: float
    clip: float
    constant: bool = True
    colluders: int = 0
    row_norm: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.colluders <= self.parties - 2:
            raise BadJob(
                f"products.colluders must be between 0 and {self.parties - 2} with {self.parties} parties: those who "
                f"help an observer, less the observer and the one that is protected; got {self.colluders}."
            )
        if self.fraction_bits < FRACTION_BITS_LEAST:
            raise BadJob(
                f"product_epsilon = {self.epsilon:g} over {self.releases} rounds asks for noise of "
                f"{self.deviation:.3g} in products of at most {self.clip:g}: nothing could be learned. Raise "
                "product_epsilon, or lower products.rounds."
            )

    @property
    def releases(self) -> int:
        """Rounds in which words leave that depend on rows."""
        return self.steps if self.constant else self.steps - 1

    @cached_property
    def mu(self) -> float:
        return gdp_mu(self.epsilon, self.delta)

    @property
    def shift(self) -> float:
        """How far one row can move the weights in a step, for rows of norm 1."""
        return 2.0 * self.step * DERIVATIVE_MOST / self.rows

    @property
    def deviation(self) -> float:
        """Of the noise that protects, in products; without the grid."""
        moved = sum(self.rows * (t * self.shift) ** 2 for t in range(1, self.releases + 1))
        return math.sqrt(self.releases * (2.0 * self.clip) ** 2 + moved) / self.mu

    @cached_property
    def fraction_bits(self) -> int:
        """As fine a grid as the noise can be drawn on."""
        if self.releases == 0:
            return FRACTION_BITS_MOST
        own = self.deviation / math.sqrt(self.honest)
        return min(DEVIATION_BITS - math.ceil(math.log2(own)), FRACTION_BITS_MOST)

    @property
    def honest(self) -> int:
        """Whose noise an observer and its helpers do not know."""
        return self.parties - 1 - self.colluders

    @property
    def clip_words(self) -> int:
        return math.floor(Fraction(self.clip) * Fraction(2) ** self.fraction_bits)

    @cached_property
    def squared(self) -> int:
        """By how much one row can change all words of a run, as a squared length; rounded up."""
        shift = Fraction(self.shift) * 2**self.fraction_bits
        changes = (
            (2 * self.clip_words) ** 2 + self.rows * (t * shift + ROUNDING) ** 2 for t in range(1, self.releases + 1)
        )
        return math.ceil(sum(changes, Fraction(0)))

    @cached_property
    def variance(self) -> int:
        """Of each party's own noise, in words."""
        wanted = Fraction(self.squared) / Fraction(self.mu * (1.0 - ROOM)) ** 2 + SMOOTHING
        return max(math.ceil(wanted / self.honest), VARIANCE_LEAST)

    def release(self) -> GaussianRelease:
        """The whole run as one release: the accountant's replace-one shift is 2."""
        return GaussianRelease(2.0 * math.sqrt((self.honest * self.variance - SMOOTHING) / self.squared))

    def statement(self, seeded: bool) -> dict[str, Any]:
        """What a record says of one party."""
        ledger = Ledger(Budget(self.epsilon, self.delta))
        if self.releases:
            ledger.spend(self.release())
        helpers = f", and {self.colluders} more that help it or leave their noise out" if self.colluders else ""
        stated = {key: value for key, value in ledger.statement().items() if not key.startswith("epsilon (")}
        return {
            **stated,
            "releases": self.releases,
            "adjacency": "replace-one row at one party",
            "deviation": math.sqrt(self.parties * self.variance) / 2.0**self.fraction_bits,
            "warning": f"the features of a row, against any one other party{helpers}; labels are not covered",
            "seeded": seeded,
        }

    @property
    def spent(self) -> float:
        """The epsilon of the whole run."""
        return gdp_epsilon(2.0 / self.release().noise_multiplier, self.delta) if self.releases else 0.0


class NoisyShares:
    """One party's shares under a plan. Counts how many were cut off."""

    def __init__(self, plan: ProductPlan, source: NoiseSource) -> None:
        self.plan, self.source = plan, source
        self.cut = self.given = 0

    def words(self, round_: int, share: Floats) -> Words:
        """The words of this round's share, with this party's noise; each round is drawn once."""
        most = self.plan.clip_words
        whole = np.rint(share * 2.0**self.plan.fraction_bits)
        self.given += len(whole)
        self.cut += int(np.count_nonzero(np.abs(whole) > most))
        bounded = np.clip(whole, -most, most).astype(np.int64)
        stream = self.source.stream(round_, sha256(bounded.tobytes()).digest())
        return (bounded + discrete_gaussian(stream, len(bounded), self.plan.variance)).view(np.uint64)

    def snapshot(self) -> list[int]:
        return [self.cut, self.given]

    def restore(self, state: list[int]) -> None:
        self.cut, self.given = state


def release_within(epsilon: float, delta: float) -> GaussianRelease:
    """What a run with this budget releases at most, whatever its rows and rounds."""
    return GaussianRelease(2.0 / (gdp_mu(epsilon, delta) * (1.0 - ROOM / 2.0)))


def row_bound(plan: ProductPlan, width: int) -> float:
    """The norm to which a party of so many columns cuts its rows: as given, or that of columns with a spread of 1."""
    return math.sqrt(max(width, 1)) if plan.row_norm is None else plan.row_norm
