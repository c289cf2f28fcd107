"""How long things take in the simulator's virtual seconds.

A step over a batch costs `overhead_s + samples * per_sample_s + nonzeros * per_nonzero_s`, times the party's
slowness, times the jitter. A message takes `latency_s + bytes / bandwidth_bytes_s`, times the link's jitter.

`serving` says who pays for answering a peer's request for a share:
    "free"  nobody, as in the published experiments, where only the updating thread is delayed;
    "full"  the party's listener, at full speed;
    "slow"  the party's listener, as slow as the party: the whole machine is slow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt

import numpy as np

from offbeat.errors import BadJob
from offbeat.party.contract import PartyName

SERVING = ("free", "full", "slow")
JITTERS = ("none", "lognormal", "exponential", "poisson")
POISSON_CV_LEAST = 1e-6  # so many tiny delays that their number is no longer counted exactly


@dataclass(frozen=True)
class Jitter:
    """A random factor of mean one on a duration. "poisson": a number of equal delays, often none."""

    kind: str = "none"
    cv: float = 0.5  # coefficient of variation, for "lognormal" and "poisson"

    def __post_init__(self) -> None:
        if self.kind not in JITTERS:
            raise BadJob(f"jitter must be one of {', '.join(JITTERS)}; got {self.kind!r}.")
        if not 0 <= self.cv < inf:
            raise BadJob(f"jitter_cv must be a finite number, 0 or more; got {self.cv}.")

    def sampler(self, rng: np.random.Generator) -> Callable[[], float] | None:
        """A source of factors, or None where every factor is one."""
        if self.kind == "none" or (self.kind == "poisson" and self.cv < POISSON_CV_LEAST):
            return None
        if self.kind == "exponential":
            return rng.standard_exponential
        if self.kind == "poisson":
            return lambda: self.cv**2 * float(rng.poisson(self.cv**-2))
        spread = sqrt(log(1 + self.cv**2))
        return lambda: exp(spread * rng.standard_normal() - spread**2 / 2)


@dataclass(frozen=True)
class Link:
    """One direction between two parties."""

    latency_s: float = 1e-4
    bandwidth_bytes_s: float = float("inf")

    def transit_s(self, size: int) -> float:
        return self.latency_s + size / self.bandwidth_bytes_s


@dataclass(frozen=True)
class CostModel:
    """Durations for every party and link. Defaults: a batch of 64 takes about 1.3 ms, a message 0.1 ms."""

    overhead_s: float = 1e-4
    per_sample_s: float = 1e-5
    per_nonzero_s: float = 5e-7
    link: Link = Link()
    links: Mapping[tuple[PartyName, PartyName], Link] = field(default_factory=dict)
    slow: Mapping[PartyName, float] = field(default_factory=dict)
    serving: str = "free"
    jitter: Jitter = Jitter()
    link_jitter: Jitter = Jitter()
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.serving not in SERVING:
            raise BadJob(f"serving must be one of {', '.join(SERVING)}; got {self.serving!r}.")
        for party, factor in self.slow.items():
            if not factor > 0:
                raise BadJob(f"slow.{party} must be a factor above 0 (4.0 means four times slower); got {factor}.")

    def work_s(self, samples: int, nonzeros: int) -> float:
        """Work at a party of ordinary speed."""
        return self.overhead_s + samples * self.per_sample_s + nonzeros * self.per_nonzero_s

    def serve_factor(self, party: PartyName) -> float:
        if self.serving == "free":
            return 0.0
        return self.slow.get(party, 1.0) if self.serving == "slow" else 1.0
