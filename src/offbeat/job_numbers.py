"""Which numbers a job may have: all finite, and none with which a run could only hang."""

from collections.abc import Iterator, Mapping
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import BadJob
from offbeat.privacy.label_response import EPSILON_MOST


class JobPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base of a job's tables."""


AT_LEAST_ONE = (
    "in_flight",
    "batch_least",
    "data.limit_rows",
    "runtime.lanes",
    "embedding.width",
    "embedding.channels",
    "embedding.t",
    "embedding.uploads_max",
)
ABOVE_ZERO = (
    "passes",
    "target",
    "snapshot_passes",
    "certify_passes",
    "patience_s",
    "looks_per_pass",
    "label_dp_epsilon",
    "embedding.head_step",
    "embedding.delay_bound",
    "embedding.epsilon",
    "embedding.delta",
    "embedding.clip",
    "embedding.gradient_clip",
    "runtime.bandwidth_mbit_s",
    "runtime.until_s",
    "runtime.faults_until_s",
)
NOT_NEGATIVE = (
    "seed",
    "penalty",
    "lag",
    "lag_max",
    "embedding.noise",
    "runtime.latency_s",
    "runtime.jitter_cv",
    "runtime.overhead_s",
    "runtime.per_sample_s",
    "runtime.per_nonzero_s",
)
IN_FLIGHT_MOST = 1024
RANGES: dict[str, tuple[float, float]] = {
    "in_flight": (1, IN_FLIGHT_MOST),
    "lag": (0, 1e6),
    "patience_s": (1e-3, 1e6),
    "fraction_bits": (16, 60),
    "looks_per_pass": (1e-6, 256),
    "label_dp_epsilon": (1e-6, EPSILON_MOST),
    "runtime.latency_s": (0, 3600),
    "runtime.bandwidth_mbit_s": (1e-6, float("inf")),
    "runtime.overhead_s": (0, 3600),
    "runtime.per_sample_s": (0, 60),
    "runtime.per_nonzero_s": (0, 60),
    "runtime.jitter_cv": (0, 10),
    "runtime.lanes": (1, 1024),
}
"""From and to; beyond these a run does nothing sensible, or does not end."""
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
    for keys, least, words in ((AT_LEAST_ONE, 1, "at least 1"), (NOT_NEGATIVE, 0, "0 or more")):
        for key in keys:
            if key in found and not found[key] >= least:
                raise BadJob(f"{where}: {key} must be {words}; got {found[key]}.")
    for key in ABOVE_ZERO:
        if key in found and not found[key] > 0:
            raise BadJob(f"{where}: {key} must be above 0; got {found[key]}.")
    for key, (lowest, highest) in RANGES.items():
        if key in found and not lowest <= found[key] <= highest:
            raise BadJob(f"{where}: {key} must be between {lowest:g} and {highest:g}; got {found[key]}.")


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
