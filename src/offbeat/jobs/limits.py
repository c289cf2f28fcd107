"""Which numbers a job may have: all finite, and none with which a run could only hang."""

from collections.abc import Iterator, Mapping
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from offbeat.errors import BadJob
from offbeat.privacy.label_response import EPSILON_MOST


class JobPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base of a job's tables."""


class Limit(NamedTuple):
    """What a number may be: from `least` to `most`, or above `least` where it is `open`."""

    least: float
    most: float = inf
    open: bool = False

    def allows(self, value: float) -> bool:
        return (value > self.least if self.open else value >= self.least) and value <= self.most

    def __str__(self) -> str:
        if self.most < inf:
            between = f"{self.least:g} and {self.most:g}"
            return f"above {self.least:g} and at most {self.most:g}" if self.open else f"between {between}"
        if self.open:
            return f"above {self.least:g}"
        return "0 or more" if self.least == 0 else f"at least {self.least:g}"


COUNT, POSITIVE, NOT_NEGATIVE, FRACTION = Limit(1), Limit(0, open=True), Limit(0), Limit(0, 1, open=True)
IN_FLIGHT_MOST = 1024
LIMITS: dict[str, Limit] = {
    "seed": NOT_NEGATIVE,
    # vertical
    "passes": POSITIVE,
    "target": POSITIVE,
    "penalty": NOT_NEGATIVE,
    "in_flight": Limit(1, IN_FLIGHT_MOST),
    "batch_least": COUNT,
    "batch": COUNT,
    "lag": Limit(0, 1e6),
    "lag_max": NOT_NEGATIVE,
    "snapshot_passes": POSITIVE,
    "certify_passes": POSITIVE,
    "looks_per_pass": Limit(1e-6, 256),
    "patience_s": Limit(1e-3, 1e6),
    "fraction_bits": Limit(16, 60),
    "label_dp_epsilon": Limit(1e-6, EPSILON_MOST),
    "embedding.width": COUNT,
    "embedding.channels": COUNT,
    "embedding.t": COUNT,
    "embedding.uploads_max": COUNT,
    "embedding.head_step": POSITIVE,
    "embedding.delay_bound": POSITIVE,
    "embedding.epsilon": POSITIVE,
    "embedding.delta": POSITIVE,
    "embedding.clip": POSITIVE,
    "embedding.gradient_clip": POSITIVE,
    "embedding.noise": NOT_NEGATIVE,
    # horizontal
    "updates": Limit(1, 1e9),
    "strength": NOT_NEGATIVE,
    "retry_s": Limit(1e-3, 1e6),
    "model.features": COUNT,
    "model.classes": Limit(2, 1e6),
    "model.row_norm": POSITIVE,
    "model.side": Limit(4, 4096),
    "model.channels[0]": COUNT,
    "model.channels[1]": COUNT,
    "rate.clip": POSITIVE,
    "rate.step": POSITIVE,
    "rate.shrink": FRACTION,
    "rate.floor": NOT_NEGATIVE,
    "rate.failure": FRACTION,
    "rate.local_steps": Limit(1, 10_000),
    "rate.mixing": FRACTION,
    "rate.decay": NOT_NEGATIVE,
    "rate.buffer": Limit(1, 10_000),
    "constants.norm_max": POSITIVE,
    "constants.smoothness": POSITIVE,
    "constants.deviation": POSITIVE,
    "constants.radius": POSITIVE,
    "constants.gap": POSITIVE,
    "constants.lag": NOT_NEGATIVE,
    "privacy.delta": FRACTION,
    "privacy.uploads": Limit(1, 1e6),
    # both
    "data.limit_rows": COUNT,
    "data.edges": COUNT,
    "data.shards_per_edge": COUNT,
    "data.concentration": POSITIVE,
    "runtime.lanes": Limit(1, 1024),
    "runtime.latency_s": Limit(0, 3600),
    "runtime.bandwidth_mbit_s": Limit(1e-6),
    "runtime.overhead_s": Limit(0, 3600),
    "runtime.per_sample_s": Limit(0, 60),
    "runtime.per_nonzero_s": Limit(0, 60),
    "runtime.jitter_cv": Limit(0, 10),
    "runtime.until_s": POSITIVE,
    "runtime.faults_until_s": POSITIVE,
}
"""By dotted key; beyond these a run does nothing sensible, or does not end. A job has some of them."""
SLOW_MOST = 1000
MAY_BE_INFINITE = ("embedding.delay_bound", "runtime.bandwidth_mbit_s", "runtime.until_s")


def value_of(job: JobPart, key: str) -> Any:
    """The value under a dotted key."""
    place: Any = job
    for step in key.split("."):
        place = getattr(place, step)
    return place


def finite_numbers(job: msgspec.Struct, where: str | Path) -> dict[str, float]:
    """All numbers by their dotted keys, when every one is finite or may be infinite."""
    found = dict(_numbers(job))
    for key, value in found.items():
        if isinstance(value, int):
            if abs(value) >= 2**63:
                raise BadJob(f"{where}: {key} must be a number of 64 bits; the one given is too large.")
        elif isnan(value) or not (isfinite(value) or key in MAY_BE_INFINITE):
            raise BadJob(f"{where}: {key} must be a finite number; got {value}.")
    return found


def check_numbers(job: JobPart, where: str) -> None:
    """Every number is finite, and those with a rule obey it. Rules for keys that this kind of job lacks are skipped."""
    found = finite_numbers(job, where)
    for key, limit in LIMITS.items():
        if key in found and not limit.allows(found[key]):
            raise BadJob(f"{where}: {key} must be {limit}; got {found[key]}.")


def check_slow(slow: Mapping[str, float], where: str) -> None:
    for party, factor in slow.items():
        if not 1 <= factor <= SLOW_MOST:
            raise BadJob(
                f"{where}: runtime.slow.{party} is how many times slower it is, 1 to {SLOW_MOST}; got {factor}."
            )


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """(dotted key, number) for all numbers of a job; those in lists by their places."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            yield from _numbers(getattr(value, field.name), f"{key}.{field.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _numbers(inner, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            yield from _numbers(inner, f"{key}[{at}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value
