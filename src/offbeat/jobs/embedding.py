"""[embedding] of a VAFL job. A key that nothing would look at is refused, as elsewhere."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from offbeat.errors import BadJob
from offbeat.settings import Count, Fraction, NotNegative, Positive, Settings, Unlimited

OWN = "own"
"""A network that its owner wrote, known to the process that trains it alone: see the deep estimators."""
Kind = Literal["linear", "mlp", "cnn", "lstm", "own"]
REPEATABLE = ("processes", "ray")
"""Runtimes that rebuild a lost party from its log, and so must draw its noise again."""


class EmbeddingEntry(Settings, frozen=True):
    """The clients' embeddings, the server's head, and how they train. Tables go by party."""

    kind: Kind | dict[str, Kind] = "linear"
    width: Count = 16
    hidden: tuple[Count, ...] = (64,)
    channels: Count = 16
    shape: list[Count] | dict[str, list[Count]] | None = None
    head: Literal["auto", "additive", "mlp", "own"] = "auto"
    head_hidden: tuple[Count, ...] = (64,)
    optimiser: Literal["auto", "sgd", "adam"] = "auto"  # auto: adam for networks without a step of their own, else sgd
    head_step: Positive | None = None
    t: Count | None = None
    delay_bound: Unlimited = 5.0
    rates: dict[str, Positive] = {}
    initial_upload: bool = True
    device: str | dict[str, str] = "cpu"
    noise: NotNegative = 0.0
    inner_noise: bool = False
    epsilon: Positive | None = None
    delta: Fraction = 1e-5
    uploads_max: Count | None = None
    clip: Positive = 1.0
    gradient_clip: Positive = 1.0
    covariance_clip: Positive | None = None
    secret_noise: bool = False

    @property
    def kinds(self) -> set[str]:
        return set(self.kind.values()) if isinstance(self.kind, dict) else {self.kind}


class Use(NamedTuple):
    """Some keys, whether anything looks at them in this job, and where they belong."""

    keys: tuple[str, ...]
    used: bool
    belongs: str


def check_embedding(job: Any, usual: EmbeddingEntry, where: str) -> None:
    """`usual`: the table with its defaults."""
    entry = job.embedding
    for keys, used, belongs in _uses(job):
        for key in keys:
            if not used and getattr(entry, key) != getattr(usual, key):
                raise BadJob(f"{where}: embedding.{key} says nothing here; it is for {belongs}. Leave it out.")
    if entry.secret_noise:
        check_secret_noise(job.runtime.kind, where)
    if job.penalty_kind in ("box", "ball") and job.penalty == 0:
        raise BadJob(
            f"{where}: with penalty_kind = {job.penalty_kind!r} penalty is its size, and a size of 0 leaves no weight "
            'but zero. Set penalty above 0, or penalty_kind = "none".'
        )


def check_secret_noise(runtime: str, where: str) -> None:
    if runtime in REPEATABLE:
        raise BadJob(
            f"{where}: secret noise cannot be drawn again, and runtime.kind = {runtime!r} rebuilds a lost party from "
            "its log, noise included. Use threads; or organisations, whose noise comes from a secret that each keeps."
        )


def _uses(job: Any) -> Iterator[Use]:
    entry: EmbeddingEntry = job.embedding
    kinds = entry.kinds
    networks = kinds - {"linear"}
    deep_head = entry.head == "mlp" or (entry.head == "auto" and bool(networks))
    private = entry.epsilon is not None
    noisy = private or entry.noise > 0 or job.label_dp_epsilon is not None
    yield Use(("t",), job.algorithm == "vafl-tsync", 'algorithm = "vafl-tsync"')
    own_pace = ("delay_bound", "rates", "initial_upload")
    yield Use(own_pace, job.algorithm != "vafl-sync", "vafl and vafl-tsync, whose clients go at their own pace")
    yield Use(
        ("width", "head_hidden"), deep_head, 'embedding.head = "mlp"; an additive head adds up one number an output'
    )
    yield Use(("hidden",), not kinds.isdisjoint({"mlp", "lstm"}), 'embedding.kind = "mlp" and "lstm"')
    yield Use(("channels",), "cnn" in kinds, 'embedding.kind = "cnn"')
    yield Use(("shape",), not kinds.isdisjoint({"cnn", "lstm", OWN}), 'embedding.kind = "cnn" and "lstm"')
    yield Use(("device",), bool(networks) or deep_head, "networks")
    yield Use(("inner_noise",), bool(networks) and entry.noise > 0, "networks with embedding.noise above 0")
    yield Use(("delta", "uploads_max", "clip", "gradient_clip"), private, "private mode, with embedding.epsilon")
    once = private and entry.uploads_max is None
    yield Use(("covariance_clip",), once, "private mode without embedding.uploads_max")
    yield Use(("secret_noise",), noisy, "runs with embedding.epsilon, embedding.noise or label_dp_epsilon")
