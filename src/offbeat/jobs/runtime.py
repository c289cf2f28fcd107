"""[runtime]: where the parties of a job run, and what the simulated or slowed-down world is like."""

from math import inf
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from offbeat.runtime.simulator.costs import CostModel, Jitter, Link
from offbeat.settings import Positive, Settings, Unlimited

SIMULATED_LATENCY_S = 1e-4

Delay = Annotated[float, Meta(ge=0, le=3600)]
Work = Annotated[float, Meta(ge=0, le=60)]
Slower = Annotated[float, Meta(ge=1, le=1000)]
Jitters = Literal["none", "lognormal", "exponential", "poisson"]
Faults = Literal["calm", "delay", "loss", "duplicate", "reorder", "partition", "crash", "clog", "swarm", "suspicion"]


class RuntimeEntry(Settings, frozen=True):
    """`slow`: how many times slower a party is. Without a latency it is chosen by the kind."""

    kind: Literal["simulator", "threads", "processes", "ray"] = "simulator"
    slow: dict[str, Slower] = {}
    serving: Literal["free", "full", "slow"] = "free"
    latency_s: Delay | None = None
    bandwidth_mbit_s: Annotated[float, Meta(ge=1e-6)] = inf
    jitter: Jitters = "none"
    link_jitter: Jitters = "none"
    jitter_cv: Annotated[float, Meta(ge=0, le=10)] = 0.5
    lanes: Annotated[int, Meta(ge=1, le=1024)] = 1
    overhead_s: Delay = 1e-4
    per_sample_s: Work = 1e-5
    per_nonzero_s: Work = 5e-7
    faults: Faults = "calm"
    faults_until_s: Positive = 1.0
    until_s: Unlimited = inf


J = TypeVar("J", bound=Any)


def resolved(job: J) -> J:
    """A job with what its runtime decides filled in: a simulated network has latency, threads have none. A job that is
    resolved stays as it is."""
    entry: RuntimeEntry = job.runtime
    if entry.latency_s is not None:
        return job
    latency_s = SIMULATED_LATENCY_S if entry.kind == "simulator" else 0.0
    return msgspec.structs.replace(job, runtime=msgspec.structs.replace(entry, latency_s=latency_s))


def costs_of(entry: RuntimeEntry) -> CostModel:
    """What things cost in the simulated (or slowed-down) world of a resolved job."""
    assert entry.latency_s is not None, "a job is resolved before it is run"
    return CostModel(
        overhead_s=entry.overhead_s,
        per_sample_s=entry.per_sample_s,
        per_nonzero_s=entry.per_nonzero_s,
        link=Link(entry.latency_s, entry.bandwidth_mbit_s * 1e6 / 8),
        slow=dict(entry.slow),
        serving=entry.serving,
        jitter=Jitter(entry.jitter, entry.jitter_cv),
        link_jitter=Jitter(entry.link_jitter, entry.jitter_cv),
        lanes=entry.lanes,
    )


SLOWED_DOWN = (
    "kind", "slow", "latency_s", "bandwidth_mbit_s", "lanes", "overhead_s", "per_sample_s", "per_nonzero_s", "until_s",
)  # fmt: skip
KNOWN_TO = {"threads": SLOWED_DOWN, "ray": SLOWED_DOWN, "processes": ("kind", "latency_s")}


def ignored_by(entry: RuntimeEntry) -> list[str]:
    """Keys of [runtime] that were set to something and that the runtime of this kind does not know."""
    if entry.kind == "simulator":
        return []
    usual = RuntimeEntry()
    unknown = [key for key in entry.__struct_fields__ if key not in KNOWN_TO[entry.kind]]
    ignored = [f"runtime.{key}" for key in unknown if getattr(entry, key) != getattr(usual, key)]
    return [*ignored, *(["runtime.latency_s"] if entry.kind == "processes" and entry.latency_s else [])]
