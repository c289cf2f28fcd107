"""A vertical job: everything that determines a run over columns, as one frozen value that a TOML file spells out.

The types of the fields say what each key may hold (settings.py); `checked` says which keys go together. What each key
means stands in docs/reference/job-file.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from offbeat.data.preparation import Prepare
from offbeat.errors import BadJob
from offbeat.jobs.embedding import EmbeddingEntry, check_embedding
from offbeat.jobs.methods import DEFAULT_ALGORITHM, family_named
from offbeat.jobs.private_products import Delta, Epsilon, ProductsEntry, check_private_products
from offbeat.jobs.runtime import RuntimeEntry, resolved
from offbeat.jobs.source import SourceEntry, from_folder
from offbeat.names import check_party_names, did_you_mean
from offbeat.privacy.label_response import EPSILON_MOST
from offbeat.settings import Count, Natural, NotNegative, Positive, Settings, settings_from

PARTIES_MOST = 1000
IN_FLIGHT_MOST = 1024
FOLDS_MOST = 20
PASSES, SECONDS_TO_TARGET = 60.0, 20.0
PENALTIES = tuple(10.0 ** (-half / 2) for half in range(13))
"""Strengths that penalty = "auto" chooses from, from 1 down to 1e-6."""
SERVER = "server"
"""VAFL's party with the labels and the head; the others are its clients."""


class PartyEntry(SourceEntry, frozen=True):
    """One organisation's file, or its table in a database."""

    label: str | None = None
    columns: list[str] | None = None
    weight: str | None = None
    exposure: str | None = None
    prepare: Prepare | None = None


class DataEntry(Settings, frozen=True):
    """Which data, and how it is prepared."""

    set: str | None = None
    dir: str | None = None
    parties: (
        Annotated[int, Meta(ge=2, le=PARTIES_MOST)] | Annotated[list[str], Meta(min_length=2, max_length=PARTIES_MOST)]
    ) = 4
    split: str | dict[str, list[str]] = "equal"
    split_after_one_hot: bool = False
    preparation: str | None = None
    rows: Literal["as-is", "party-unit", "pooled-unit"] | None = None
    prepare: Prepare | None = None
    duplicates: Literal["refuse", "keep-first"] = "refuse"
    limit_rows: Count | None = None
    test_fraction: Annotated[float, Meta(ge=0, lt=1)] | None = None
    test_ids: str | None = None


class Job(Settings, frozen=True):
    """One run. Keys that are absent from a file have these values; None means: chosen when the run begins."""

    algorithm: str = DEFAULT_ALGORITHM
    seed: Natural = 0
    task: Literal["auto", "classification", "multiclass", "regression"] = "auto"
    loss: Literal[
        "auto", "logistic", "softmax", "squared", "squared_hinge", "ls_svm", "poisson", "gamma", "huber"
    ] = "auto"  # fmt: skip
    huber_delta: Positive | None = None
    penalty: NotNegative | list[Positive] | Literal["auto"] = 1e-4
    penalty_folds: Annotated[int, Meta(ge=1, le=FOLDS_MOST)] = 1
    penalty_kind: Literal["l2", "nonconvex", "none", "l1", "box", "ball"] = "l2"
    l1_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.0
    class_weight: Literal["balanced"] | dict[str, NotNegative] | None = None
    intercept: bool = True
    passes: Positive = PASSES
    seconds: NotNegative | None = None
    target: Positive | None = None
    early_stopping: Positive | None = None
    start: str | None = None
    step: Positive | Literal["auto", "grid"] = "auto"
    batch: Count | Literal["auto"] = "auto"
    batch_least: Count = 64
    in_flight: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MOST)] = 1
    lag_max: Natural = 0
    survey_passes: NotNegative | Literal["auto"] = "auto"
    leap: bool = True
    by_curvature: bool | Literal["auto"] = "auto"
    on_loss: Literal["wait", "stop", "continue"] = "wait"
    labels_at: list[str] | None = None
    label_dp_epsilon: Annotated[float, Meta(ge=1e-6, le=EPSILON_MOST)] | None = None
    product_epsilon: Epsilon | None = None
    product_delta: Delta = 1e-6
    secure_sum: Literal["pairwise", "two-tree", "tree"] = "pairwise"
    two_party_insecure: bool = False
    fraction_bits: Annotated[int, Meta(ge=16, le=60)] | None = None
    optimum: bool = True
    looks_per_pass: Annotated[float, Meta(ge=1e-6, le=256)] = 8.0
    data: DataEntry = DataEntry()
    products: ProductsEntry = ProductsEntry()
    embedding: EmbeddingEntry = EmbeddingEntry()
    runtime: RuntimeEntry = RuntimeEntry()
    party: list[PartyEntry] = []

    @property
    def embeds(self) -> bool:
        """Whether this is VAFL: embeddings under a head."""
        return family_named(self.algorithm) == "embedding"

    @property
    def penalties(self) -> tuple[float, ...]:
        """The strengths to choose from, the strongest first; where it is given, that one."""
        given = self.penalty
        if isinstance(given, float | int):
            return (float(given),)
        return PENALTIES if isinstance(given, str) else tuple(sorted(set(given), reverse=True))

    @property
    def strength(self) -> float:
        """The penalty's strength, or the strongest to choose from."""
        return self.penalties[0]

    @property
    def seconds_least(self) -> float:
        """Passes over few rows cost milliseconds: they go on for some seconds while the target is not met."""
        if self.seconds is not None:
            return self.seconds
        return SECONDS_TO_TARGET if self.target is not None and self.passes == PASSES else 0.0

    @property
    def secret_noise(self) -> bool:
        """Whether noise comes from the operating system, so that nobody can do the run again."""
        return self.embedding.secret_noise


SET_ONLY = ("set", "dir", "parties", "split", "split_after_one_hot", "preparation", "limit_rows")
"""Keys of [data] that say nothing where the parties bring files."""
LINEAR_ONLY = (
    "target", "loss", "seconds", "lag_max", "survey_passes", "leap", "by_curvature", "on_loss", "secure_sum",
    "two_party_insecure", "fraction_bits", "l1_ratio", "class_weight", "penalty_folds", "huber_delta",
    "product_epsilon",
)  # fmt: skip
"""Keys that say nothing to VAFL."""
RETIRED = {
    "lag": (None, "Steps follow from the lag that is measured: leave it out."),
    "snapshot_passes": (1.0, "Write survey_passes, the passes of steps from one survey to the next."),
    "certify_passes": (3.0, "Every survey gives a certificate: write survey_passes."),
    "patience_s": (1.0, "Messages are repeated below the parties, as often as their link needs: leave it out."),
}
"""Keys of earlier versions: the value that a run folder's job.toml holds by default, and what to write instead."""
PENALTIES_OF = {"linear": ("l2", "nonconvex", "none"), "embedding": ("none", "l1", "l2", "box", "ball")}


def vertical_job_from(tree: Mapping[str, Any], where: str = "the job", folder: Path | None = None) -> Job:
    """A job from plain values, checked and resolved; `folder`: what the files in it are relative to."""
    job = settings_from(without_retired(without_old_keys(tree, where), where), Job, where, BadJob)
    check(job, where)
    return resolved(job if folder is None else _with_absolute_files(job, folder))


def without_old_keys(tree: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Job files say `prepare` now. Over a named set the keys before it said nothing, and run folders have them;
    elsewhere they are refused with what to write instead."""
    data, parties = tree.get("data", {}), tree.get("party", [])
    if not isinstance(data, Mapping) or not isinstance(parties, list):
        return tree
    old = {key: data[key] for key in ("standardise", "missing") if key in data}
    one_hot = {str(p.get("name")): p["one_hot"] for p in parties if isinstance(p, Mapping) and "one_hot" in p}
    if not old and not one_hot:
        return tree
    if not parties and not one_hot and old.get("standardise", "auto") == "auto" and old.get("missing") != "median":
        return {**tree, "data": {key: value for key, value in data.items() if key not in old}}
    raise BadJob(f"{where}: {instead_of_old_keys(old.get('standardise'), old.get('missing'), one_hot)}")


def instead_of_old_keys(standardise: Any, missing: Any, one_hot: Mapping[str, Any]) -> str:
    """What to write for `standardise`, `missing` and `one_hot`, which `prepare` has replaced."""
    strict = "none" if standardise in ("none", False) else "scaled"
    how = "auto" if missing == "median" else strict
    lines = [f'prepare = "{how}" under [data]']
    for party, columns in one_hot.items():
        listed = ", ".join(f'"{c}" = "category"' for c in columns) if isinstance(columns, list | tuple) else ""
        if listed:
            lines.append(f'for {party}: prepare = {{ how = "{how}", columns = {{ {listed} }} }}')
    return (
        "the keys `standardise`, `missing` and `one_hot` are gone; `prepare` says it all. To have the same as before, "
        f'write {"; ".join(lines)}. Without any of it columns are prepared by "auto", which takes text and missing '
        "values as they are."
    )


def without_retired(tree: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The same less keys that earlier versions wrote with the value that meant: as usual; others are refused."""
    for key, (usual, instead) in RETIRED.items():
        if key in tree and tree[key] != usual:
            raise BadJob(f"{where}: {key} is no longer known. {instead}")
    plain = tree.get("by_curvature") is False and family_named(str(tree.get("algorithm", ""))) == "embedding"
    unused = {*RETIRED, *(["by_curvature"] if plain else [])}  # VAFL's run folders used to have it
    return {key: value for key, value in tree.items() if key not in unused}


def _with_absolute_files(job: Job, folder: Path) -> Job:
    entries = from_folder(job.party, folder)
    data = job.data
    for key in ("dir", "test_ids"):
        if getattr(data, key) is not None:
            data = msgspec.structs.replace(data, **{key: str(folder / getattr(data, key))})
    start = None if job.start is None else str(folder / job.start)
    return msgspec.structs.replace(job, party=entries, data=data, start=start)


def without_unused(plain: dict[str, Any]) -> dict[str, Any]:
    """A job's plain values less those tables and keys that say nothing to it."""
    if family_named(plain["algorithm"]) != "embedding":
        del plain["embedding"]
    if plain["product_epsilon"] is None:
        del plain["products"], plain["product_delta"]
    if not plain["party"]:
        del plain["party"]
    else:
        plain["data"] = {key: value for key, value in plain["data"].items() if key not in SET_ONLY}
    return plain


# -- checks ----------------------------------------------------------------------------------------------------------


def check(job: Job, where: str = "the job") -> None:
    """Which keys go together."""
    if job.step == "grid" and job.runtime.kind != "simulator":
        raise BadJob(
            f'{where}: step = "grid" tries many short runs, which only the simulator does; got {job.runtime.kind}.'
        )
    _check_parties(job, where)
    _check_set_only(job, where)
    _check_family(job, where)
    _check_choosing(job, where)
    check_private_products(job, where)


def _check_choosing(job: Job, where: str) -> None:
    """What does not go with choosing a penalty, or an end, by held-out rows."""
    several = not isinstance(job.penalty, float | int)
    if job.penalty == []:
        raise BadJob(f'{where}: penalty is an empty list. List the strengths to choose from, or write "auto".')
    if several and job.embeds:
        raise BadJob(
            f"{where}: penalty = {_spelled(job.penalty)} is chosen for linear methods. {job.algorithm} trains "
            "networks, whose penalty is one number: give one, and compare runs by `offbeat compare`."
        )
    if several and (job.penalty_kind == "none" or job.step == "grid" or job.runtime.kind != "simulator"):
        raise BadJob(
            f"{where}: penalty = {_spelled(job.penalty)} walks from the strongest to the weakest by one fit after the "
            'other, in the simulator. That goes without penalty_kind = "none", step = "grid" and other runtimes; got '
            f"penalty_kind = {job.penalty_kind!r}, step = {job.step!r}, runtime.kind = {job.runtime.kind!r}. Choose "
            "the penalty first, and then write the number."
        )
    if not several and job.penalty_folds != 1:
        raise BadJob(f'{where}: penalty_folds says how penalty = "auto" or a list is chosen from; penalty is a number.')
    if job.label_dp_epsilon is not None and (several or job.early_stopping is not None):
        key = "penalty" if several else "early_stopping"
        raise BadJob(
            f"{where}: {key} would follow from the true labels of held-out rows, and label_dp_epsilon says that "
            f"nothing may. Give {'penalty a number' if several else 'passes or a target'} instead."
        )


def _spelled(penalty: object) -> str:
    return '"auto"' if penalty == "auto" else "[...]"


def _check_parties(job: Job, where: str) -> None:
    names = [entry.name for entry in job.party]
    check_party_names(names, where)
    for entry in job.party:
        entry.check(f"{where}, party {entry.name!r}")
    if isinstance(job.data.parties, list):
        check_party_names(job.data.parties, f"{where}, data.parties")
    if len(set(names)) < len(names):
        raise BadJob(f"{where}: two parties have the same name; came {', '.join(names)}.")
    if job.party and job.data.set is not None:
        raise BadJob(f"{where} names both a data set ({job.data.set}) and parties with files of their own; choose one.")
    if names:
        check_slow(job, names, where)
        _check_known("labels_at", job.labels_at or (), names, where)


def check_slow(job: Job, parties: Sequence[str], where: str) -> None:
    _check_known("runtime.slow", list(job.runtime.slow), [*parties, SERVER] if job.embeds else parties, where)


def _check_known(key: str, named: Sequence[str], known: Sequence[str], where: str) -> None:
    for name in named:
        if name not in known:
            raise BadJob(f"{where}: {key} names {name!r}, which is no party. {did_you_mean(name, known)}")


def _check_set_only(job: Job, where: str) -> None:
    """Keys of a named set say nothing about files. `dir` may come from --data, which is given for any job."""
    usual = DataEntry()
    if job.data.test_ids is not None and (not job.party or job.data.test_fraction is not None):
        other = (
            "a named set has ids of its own" if not job.party else "data.test_fraction draws them; give one of the two"
        )
        raise BadJob(f"{where}: data.test_ids lists the test rows of parties with files, and {other}.")
    for key in SET_ONLY:
        if job.party and key != "dir" and getattr(job.data, key) != getattr(usual, key):
            raise BadJob(
                f"{where}: data.{key} is for a named set; here the parties bring files of their own. Leave it out."
            )


def wanted_delta(loss: str) -> str:
    """What to write where a loss and huber_delta do not go together."""
    if loss == "huber":
        return (
            'loss = "huber" needs huber_delta: how far from its label, in the units of the label, a prediction counts '
            "by the square; errors beyond count by their size. 1.35 times the usual error is common."
        )
    return f'huber_delta is for loss = "huber"; the loss is {loss!r}. Leave one of the two out.'


def _check_family(job: Job, where: str) -> None:
    """A key that the method would not look at is refused rather than passed over."""
    family = family_named(job.algorithm)
    if family == "horizontal":
        raise BadJob(f"{where}: {job.algorithm} is a horizontal method, and its jobs have other keys.")
    usual = Job(algorithm=job.algorithm)
    for key in LINEAR_ONLY if family == "embedding" else ("embedding",):
        if getattr(job, key) != getattr(usual, key):
            known_by = "the linear methods" if family == "embedding" else "vafl, vafl-tsync and vafl-sync"
            raise BadJob(f"{where}: {job.algorithm} has no use for {key}, which is for {known_by}. Leave it out.")
    if job.penalty_kind not in PENALTIES_OF[family]:
        raise BadJob(f"{where}: with {job.algorithm} penalty_kind is one of {', '.join(PENALTIES_OF[family])}.")
    if family == "embedding":
        for entry in job.party:
            if entry.weight is not None or entry.exposure is not None:
                raise BadJob(
                    f"{where}: {job.algorithm} knows no weights of rows and no exposure, and {entry.name} names a "
                    "column of them. Use a linear method, such as vfb2-saga, or leave the key out."
                )
        check_embedding(job, usual.embedding, where)
    elif (job.loss == "huber") != (job.huber_delta is not None):
        raise BadJob(f"{where}: {wanted_delta(job.loss)}")
    elif job.l1_ratio > 0.0 and job.penalty_kind != "l2":
        raise BadJob(
            f'{where}: l1_ratio mixes absolute values into the penalty "l2"; penalty_kind is {job.penalty_kind!r}. '
            "Leave one of the two out."
        )
