"""JOB.toml: what the parties are asked to do together.

    name = "credit-default"
    parties = ["bank", "shop", "telecom"]
    labels_at = ["bank"]

    [method]
    algorithm = "vfb2-saga"
    target = 1e-6

Everything else has a default. The job is resolved once, by the initiator, and all parties act on the same text: its
digest is compared on every connection.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from offbeat.errors import BadJob
from offbeat.jobs.elsewhere import is_elsewhere
from offbeat.jobs.methods import DEFAULT_ALGORITHM, family_named, linear_named
from offbeat.jobs.private_products import Delta, Epsilon, ProductsEntry, check_between_organisations
from offbeat.jobs.vertical import IN_FLIGHT_MOST, wanted_delta
from offbeat.learning.losses import DEBIASED_LOGISTIC, Loss, loss_named, softmax
from offbeat.privacy.label_response import EPSILON_MOST
from offbeat.runtime.grpc.identity import NAME_PATTERN
from offbeat.settings import (
    FINITE,
    Count,
    NotNegative,
    Positive,
    Settings,
    parse,
    read_toml,
    settings_from,
    toml_text,
)

CLASSES_MOST = 1000
NUMBERS = ("squared", "huber", "poisson", "gamma")
Width = Annotated[int, Meta(ge=1, le=4096)]  # of a network that a peer proposes: it takes this party's memory


class OrgMethod(Settings, frozen=True):
    """How to learn. What is None is chosen from the data's smoothness."""

    algorithm: str = DEFAULT_ALGORITHM
    passes: Positive = 60.0
    target: Positive | None = 1e-6
    step: Positive | None = None
    batch: Count | None = None
    in_flight: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MOST)] = 2
    secure_sum: Literal["pairwise", "two-tree", "tree"] = "pairwise"
    two_party_insecure: bool = False
    label_dp_epsilon: Annotated[float, Meta(ge=1e-6, le=EPSILON_MOST)] | None = (
        None  # answer the labels at random, once for each epsilon
    )
    product_epsilon: Epsilon | None = None  # noise inside every sum, over the whole run
    product_delta: Delta = 1e-6
    seed: int = 0
    start: Annotated[str, Meta(pattern=r"^([a-z0-9][a-z0-9_-]{0,119})?$")] = ""  # a run whose model all begin with


class OrgModel(Settings, frozen=True):
    """What to learn: a linear model over all columns of all parties."""

    task: Literal["classification", "regression"] = "classification"
    loss: Literal[
        "logistic", "squared-hinge", "ls-svm", "softmax", "squared", "huber", "poisson", "gamma"
    ] = "logistic"  # fmt: skip
    classes: Annotated[int, Meta(ge=2, le=CLASSES_MOST)] | None = None  # of softmax: every party has weights for each
    huber_delta: Positive | None = None
    penalty: Literal["l2", "nonconvex", "none"] = "l2"
    strength: NotNegative = 1e-4
    l1_ratio: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    ordered: bool = False  # parties may have columns that are "rising" or "falling"; then nobody leaps
    intercept: bool = True  # a column of ones at the first label holder


class OrgEmbedding(Settings, frozen=True):
    """VAFL alone: what each party makes of its columns, one number a row; the label holder adds them up.

    With `epsilon` what leaves a party about one record is clipped, noisy and counted: (epsilon, delta) over the run.
    """

    kind: Literal["linear", "mlp", "cnn", "lstm"] = "linear"  # networks need the extra 'deep'
    hidden: Annotated[tuple[Width, ...], Meta(max_length=16)] = (32,)
    channels: Width = 8
    optimiser: Literal["auto", "sgd", "adam"] = "auto"  # auto: sgd for linear ones, adam for networks
    epsilon: Annotated[float, Meta(ge=1e-6, le=1e6)] | None = None  # beyond, nobody can say what it costs
    delta: Annotated[float, Meta(ge=1e-100, lt=1)] = 1e-5
    uploads_max: Count | None = None  # how often one record's number may leave; None: once (linear ones alone)
    clip: Positive = 1.0
    gradient_clip: Positive = 1.0
    covariance_clip: Positive | None = None  # of a row's norm; None: the root of the number of columns


class OrgRows(Settings, frozen=True):
    """Which rows: how ids are matched, and how many are kept for testing. Which ones these are, no job chooses."""

    align: Literal["psi", "import"] = "psi"
    test_fraction: Annotated[float, Meta(ge=0, lt=1)] = 0.2


class OrgNetwork(Settings, frozen=True):
    """What happens when a party is slow or not heard."""

    in_step: bool = True  # VFB2; False: nobody waits for a slow party, and totals tell apart who has moved
    on_loss: Literal["wait", "continue", "stop"] = "wait"
    loss_s: Annotated[float, Meta(ge=1, le=FINITE)] = 15.0  # parties are heard five times as often
    wait_s: Positive = 600.0
    fsync: bool = False  # True: every event is on the disk before it has effects; survives a power cut, and is slower


class OrgJob(Settings, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    parties: tuple[str, ...]
    labels_at: tuple[str, ...]
    method: OrgMethod = OrgMethod()
    model: OrgModel = OrgModel()
    products: ProductsEntry = ProductsEntry()
    embedding: OrgEmbedding = OrgEmbedding()
    rows: OrgRows = OrgRows()
    network: OrgNetwork = OrgNetwork()

    @property
    def embeds(self) -> bool:
        """Whether this is VAFL: embeddings go to the label holder, nothing is summed under masks while training."""
        return family_named(self.method.algorithm) == "embedding"

    @property
    def private_products(self) -> bool:
        """Whether products are noisy, and nothing else is summed."""
        return self.method.product_epsilon is not None

    @property
    def loss(self) -> Loss:
        """What labels are held against; under label_dp_epsilon these are answers."""
        if self.method.label_dp_epsilon is not None:
            return DEBIASED_LOGISTIC
        model = self.model
        return softmax(model.classes) if model.classes is not None else loss_named(model.loss, model.huber_delta)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def text(self) -> str:
        plain = msgspec.to_builtins(self)
        if not self.private_products:  # these keys say nothing then, and digests are as they were before there were any
            del plain["products"], plain["method"]["product_epsilon"], plain["method"]["product_delta"]
        return toml_text(plain)


def read_job(path: Path) -> OrgJob:
    return job_from(read_toml(path, "job file", "Give the path of a .toml file.", BadJob), path)


def begun_with(job: OrgJob, run: str, where: str | Path) -> OrgJob:
    """The same job, begun with the model of this run."""
    tree = msgspec.to_builtins(job)
    return job_from({**tree, "method": {**tree["method"], "start": run}}, where)


def job_from_text(text: str, where: str | Path = "the job") -> OrgJob:
    return job_from(parse(text, where, BadJob), where)


def job_from(tree: Mapping[str, Any], where: str | Path) -> OrgJob:
    if isinstance(tree.get("party"), list):
        raise BadJob(
            f"{where} is a job for one place, with a [[party]] for each file: `offbeat run` takes it. A job between "
            'organisations names the parties alone, parties = ["bank", "shop"], and each keeps its own file.'
        )
    _refuse_choosing(tree, where)
    job = settings_from(_without_test_seed(tree, where), OrgJob, where, BadJob)
    check_job(job, where)
    return job


def _refuse_choosing(tree: Mapping[str, Any], where: str | Path) -> None:
    """What `offbeat run` and the estimators do, and organisations do not so far."""
    model = tree.get("model")
    strength = model.get("strength") if isinstance(model, Mapping) else None
    if strength == "auto" or isinstance(strength, list):
        raise BadJob(
            f"{where}: model.strength must be one number between organisations, so far; got {strength!r}. Choosing it "
            "takes scores of held-out rows for every strength, and policies count and cap those: `offbeat job path "
            "JOB.toml --strength 1 --strength 0.1 ...` runs a job for each, begun with the one before it, and compares "
            "their test metrics."
        )
    method = tree.get("method")
    if "early_stopping" in tree or (isinstance(method, Mapping) and "early_stopping" in method):
        raise BadJob(
            f"{where}: early_stopping is for runs in one place (`offbeat run`), so far. Between organisations a run "
            "ends by passes, target or request: leave it out."
        )
    if "start" in tree:
        raise BadJob(f"{where}: start belongs under [method], with the name of a run that all parties have kept.")


def _without_test_seed(tree: Mapping[str, Any], where: str | Path) -> Mapping[str, Any]:
    """Jobs of earlier versions chose their test rows; the default stands in the job.toml of every run of theirs."""
    rows = tree.get("rows")
    if not isinstance(rows, Mapping) or "test_seed" not in rows:
        return tree
    if rows["test_seed"] != 0:
        raise BadJob(
            f"{where}: rows.test_seed is gone: which rows are held out follows from the parties' names and their "
            "number, so that no job can choose them. Leave the key out."
        )
    return {**tree, "rows": {key: value for key, value in rows.items() if key != "test_seed"}}


def check_job(job: OrgJob, where: str | Path) -> None:
    """What types alone cannot say."""
    for name in (*job.parties, *job.labels_at):
        if not NAME_PATTERN.fullmatch(name):
            raise BadJob(f"{where}: '{name}' cannot be a party's name.")
    if len(set(job.parties)) != len(job.parties) or len(job.parties) < 2:
        raise BadJob(f"{where}: parties = {list(job.parties)}: expected at least two different names.")
    strangers = [name for name in job.labels_at if name not in job.parties]
    if strangers or not job.labels_at:
        raise BadJob(f"{where}: labels_at = {list(job.labels_at)}: expected one or more of {list(job.parties)}.")
    if family_named(job.method.algorithm) == "horizontal":
        raise BadJob(f"{where}: '{job.method.algorithm}' shares out rows; organisations share out columns.")
    if not is_elsewhere(job.method.algorithm):
        check_method(job, where)
    if len(job.parties) == 2 and not job.method.two_party_insecure:
        raise BadJob(
            f"{where}: with two parties no sum hides one's share from the other. Add a third party, or accept this by "
            "two_party_insecure = true under [method]."
        )
    _check_model(job, where)
    _check_privacy(job, where)
    check_between_organisations(job, where)
    if job.embeds:
        _check_embedding(job, where)
    if job.model.penalty == "none" and job.model.strength > 0:
        raise BadJob(f"{where}: penalty 'none' has no strength; set strength = 0.")


def _check_model(job: OrgJob, where: str | Path) -> None:
    model = job.model
    if (model.task == "regression") != (model.loss in NUMBERS):
        raise BadJob(f"{where}: task '{model.task}' does not go with loss '{model.loss}'.")
    if (model.loss == "softmax") != (model.classes is not None):
        raise BadJob(
            f"{where}: loss = 'softmax' and classes = N go together: every party has weights for each class, and "
            f"only label holders can count them. Got loss '{model.loss}' and classes {model.classes}."
        )
    if (model.loss == "huber") != (model.huber_delta is not None):
        raise BadJob(f"{where}: {wanted_delta(model.loss)}")
    if model.l1_ratio > 0.0 and model.penalty != "l2":
        raise BadJob(f"{where}: l1_ratio mixes absolute values into the penalty 'l2'; the job has '{model.penalty}'.")
    grows = model.loss in ("poisson", "gamma")
    plain = model.penalty == "l2" and model.strength > 0.0 and model.l1_ratio == 0.0
    plain = plain and not job.embeds and job.method.product_epsilon is None
    if model.ordered and (grows or model.classes is not None or not plain):
        raise BadJob(
            f"{where}: ordered = true goes with a linear method, one output, a loss that does not grow, and the "
            "penalty 'l2' with a strength above 0, no l1_ratio and no product_epsilon. Leave it out, or change these."
        )
    if grows and (model.l1_ratio > 0.0 or model.penalty == "nonconvex" or job.method.algorithm.endswith("-sgd")):
        raise BadJob(
            f"{where}: the loss '{model.loss}' grows without bound: it needs the penalty 'l2' or 'none', no l1_ratio, "
            "and a method with svrg or saga."
        )


def check_method(job: OrgJob, where: str | Path) -> None:
    """What the method itself must say. One from elsewhere is imported for that: ask the policy first."""
    if job.embeds or not linear_named(job.method.algorithm).labels_everywhere:
        return
    if set(job.labels_at) != set(job.parties):
        raise BadJob(
            f"{where}: '{job.method.algorithm}' needs the labels at every party; use '{DEFAULT_ALGORITHM}', or list "
            "all under labels_at."
        )


def _check_privacy(job: OrgJob, where: str | Path) -> None:
    if job.method.label_dp_epsilon is None:
        return
    if job.model.loss != "logistic":
        raise BadJob(f"{where}: label_dp_epsilon works with the logistic loss; the job has '{job.model.loss}'.")
    if len(job.labels_at) > 1:
        raise BadJob(
            f"{where}: label_dp_epsilon needs one label holder; labels_at lists {len(job.labels_at)}, and each would "
            "answer the same labels in its own way. Name one of them."
        )


def _check_embedding(job: OrgJob, where: str | Path) -> None:
    if len(job.labels_at) != 1:
        raise BadJob(f"{where}: '{job.method.algorithm}' has one label holder, its server; labels_at lists more.")
    if job.model.loss not in ("logistic", "squared") or job.model.penalty == "nonconvex" or job.model.l1_ratio > 0.0:
        raise BadJob(
            f"{where}: '{job.method.algorithm}' takes the losses 'logistic' and 'squared' and the penalties 'l2' and "
            f"'none'; the job has '{job.model.loss}' and '{job.model.penalty}', l1_ratio = {job.model.l1_ratio:g}."
        )
    if job.method.start:
        raise BadJob(f"{where}: start is for the linear methods; '{job.method.algorithm}' begins anew.")
    if job.embedding.epsilon is not None and job.embedding.uploads_max is None and job.embedding.kind != "linear":
        raise BadJob(
            f"{where}: embedding.epsilon needs embedding.uploads_max for networks, how often one record's number may "
            "leave at most; 5 to 50 leave less noise in each."
        )
    first = job.embedding.kind != "linear" and job.method.algorithm != "vafl-sync"
    if first and job.embedding.epsilon is not None and job.embedding.uploads_max == 1:
        raise BadJob(
            f"{where}: embedding.uploads_max is 1, and a network's first upload of every row is that one: nothing "
            "would be trained. Set it to 2 or more."
        )
