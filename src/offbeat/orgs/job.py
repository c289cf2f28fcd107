"""JOB.toml: what the parties are asked to do together.

    name = "credit-default"
    parties = ["bank", "shop", "telecom"]
    labels_at = ["bank"]

    [method]
    algorithm = "vfb2-svrg"
    target = 1e-6

Everything else has a default. The job is resolved once, by the initiator, and all parties act on the same text: its
digest is compared on every connection.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from offbeat.errors import BadJob
from offbeat.methods import method_named
from offbeat.orgs.structs import Settings, settings_from, settings_text
from offbeat.runtime.grpc.identity import NAME_PATTERN

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Method(Settings, frozen=True):
    """How to learn. What is None is chosen from the data's smoothness."""

    algorithm: str = "vfb2-svrg"
    passes: Positive = 60.0
    target: Positive | None = 1e-6
    step: Positive | None = None
    batch: Count | None = None
    in_flight: Count = 2
    secure_sum: Literal["pairwise", "two-tree", "tree"] = "pairwise"
    two_party_insecure: bool = False
    seed: int = 0


class Model(Settings, frozen=True):
    """What to learn: a linear model over all columns of all parties."""

    task: Literal["classification", "regression"] = "classification"
    loss: Literal["logistic", "squared", "squared-hinge"] = "logistic"
    penalty: Literal["l2", "nonconvex", "none"] = "l2"
    strength: Annotated[float, msgspec.Meta(ge=0)] = 1e-4
    intercept: bool = True  # a column of ones at the first label holder


class Rows(Settings, frozen=True):
    """Which rows: how ids are matched, and how many are kept for testing."""

    align: Literal["psi", "import"] = "psi"
    test_fraction: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.2
    test_seed: int = 0


class Network(Settings, frozen=True):
    """What happens when a party is not heard."""

    on_loss: Literal["wait", "continue", "stop"] = "wait"
    loss_s: Positive = 15.0
    wait_s: Positive = 600.0


class Job(Settings, frozen=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    parties: tuple[str, ...]
    labels_at: tuple[str, ...]
    method: Method = Method()
    model: Model = Model()
    rows: Rows = Rows()
    network: Network = Network()

    @property
    def digest(self) -> str:
        return hashlib.sha256(settings_text(self).encode()).hexdigest()

    @property
    def text(self) -> str:
        return settings_text(self)


def read_job(path: Path) -> Job:
    if not path.is_file():
        raise BadJob(f"expected a job file at {path}, found nothing.")
    return job_from_text(path.read_text(encoding="utf-8"), path)


def job_from_text(text: str, where: str | Path = "the job") -> Job:
    job = settings_from(text, Job, where, BadJob)
    check_job(job, where)
    return job


def check_job(job: Job, where: str | Path) -> None:
    """What types alone cannot say."""
    for name in (*job.parties, *job.labels_at):
        if not NAME_PATTERN.fullmatch(name):
            raise BadJob(f"{where}: '{name}' cannot be a party's name.")
    if len(set(job.parties)) != len(job.parties) or len(job.parties) < 2:
        raise BadJob(f"{where}: parties = {list(job.parties)}: expected at least two different names.")
    strangers = [name for name in job.labels_at if name not in job.parties]
    if strangers or not job.labels_at:
        raise BadJob(f"{where}: labels_at = {list(job.labels_at)}: expected one or more of {list(job.parties)}.")
    everywhere = method_named(job.method.algorithm).labels_everywhere
    if everywhere and set(job.labels_at) != set(job.parties):
        raise BadJob(
            f"{where}: '{job.method.algorithm}' needs the labels at every party; use 'vfb2-svrg', or list all under "
            "labels_at."
        )
    if len(job.parties) == 2 and not job.method.two_party_insecure:
        raise BadJob(
            f"{where}: with two parties no sum hides one's share from the other. Add a third party, or accept this by "
            "two_party_insecure = true under [method]."
        )
    if (job.model.task == "regression") != (job.model.loss == "squared"):
        raise BadJob(f"{where}: task '{job.model.task}' does not go with loss '{job.model.loss}'.")
    if job.model.penalty == "none" and job.model.strength > 0:
        raise BadJob(f"{where}: penalty 'none' has no strength; set strength = 0.")
