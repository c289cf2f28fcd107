"""A horizontal job: everything that the cloud and the edges must agree on, as one TOML file that all of them hold.

    run = "digits"
    algorithm = "steady"            # steady, mapa, audp, asgd, csgd, fedasync, fedbuff
    updates = 1500
    batch = 512
    lag_max = 60

    [model]
    kind = "softmax"                # logistic, hinge, squared-hinge, softmax, digits-network
    features = 784
    classes = 10
    rows = "unit"                   # every row is scaled to one norm by itself: unit, or taken as it is: plain
    row_norm = 4.0                  # that norm; a large one leaves the intercepts a small part of the clip

    [privacy]
    mode = "sound"                  # sound, "batch-mean (paper)", none
    epsilon = 3.0
    delta = 1e-5

`offbeat run` trains the whole of it on one machine over a named data set, or over one [[site]] table with a file for
each site, and reads two tables more: [data] and [runtime]. `offbeat cloud serve` and `offbeat edge serve` have rows and
a network of their own and pass these over.

Clip, step and uploads are chosen by rule where a file leaves them out (`rules.py`): from the model's form, the number
of edges and updates, and the noise that each edge says it adds; never from rows.

Keys that a file leaves out have the defaults of the structs below; an unknown key is refused with the nearest name.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from offbeat.algorithms.mapa import CLOUD
from offbeat.data.sites import check_holds
from offbeat.errors import BadJob
from offbeat.jobs.methods import DEFAULT_HORIZONTAL, family_named, names_of
from offbeat.jobs.runtime import Jitters, RuntimeEntry, resolved
from offbeat.jobs.source import SourceEntry, from_folder
from offbeat.names import check_party_names
from offbeat.privacy.accountant import Adjacency
from offbeat.settings import Count, Fraction, Natural, NotNegative, Positive, Settings, settings_from

Seconds = Annotated[float, Meta(ge=1e-3, le=1e6)]
Few = Annotated[int, Meta(ge=1, le=10_000)]


class ModelEntry(Settings, frozen=True):
    """`side`, `channels` and `seed` describe the digits network, the others a linear model."""

    kind: Literal["logistic", "hinge", "squared-hinge", "softmax", "digits-network"] = "softmax"
    features: Count = 784
    classes: Annotated[int, Meta(ge=2, le=10**6)] = 10
    rows: Literal["unit", "plain"] = "unit"
    row_norm: Positive = 4.0
    side: Annotated[int, Meta(ge=4, le=4096)] = 28
    channels: tuple[Count, Count] = (8, 16)
    seed: Natural = 0


class RateEntry(Settings, frozen=True):
    """`clip` for all; `step` for steady, and for the local steps of fedasync and fedbuff; the rest by algorithm. Clip,
    step and floor are chosen by rule where they are left out."""

    clip: Positive | None = None
    step: Positive | None = None
    adaptive: bool = False
    quantile: Fraction = 0.8
    shrink: Fraction = 0.5
    floor: NotNegative | None = None
    failure: Fraction = 1e-3
    local_steps: Few = 5
    mixing: Fraction = 0.6
    decay: NotNegative = 0.5
    buffer: Few = 10


class ConstantsEntry(Settings, frozen=True):
    """Public bounds. `norm_max` bounds |(row, 1)| and follows from `model.row_norm` for unit rows; each other one is
    derived from it unless given. `lag`: what the steps allow for; later uploads get shorter ones. Left out: the number
    of edges, or as printed in paper mode."""

    norm_max: Positive | None = None
    smoothness: Positive | None = None
    deviation: Positive | None = None
    radius: Positive | None = None
    gap: Positive | None = None
    lag: Natural | None = None


class PrivacyEntry(Settings, frozen=True):
    """`epsilon` may be a table by edge. `uploads` is what the budget must last for, at each edge; left out, each edge's
    part of all updates."""

    mode: Literal["sound", "batch-mean (paper)", "none"] = "sound"
    epsilon: Positive | dict[str, Positive] = 3.0
    delta: Fraction = 1e-5
    adjacency: Adjacency = "replace-one"
    uploads: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    noise: Literal["gaussian", "laplace"] = "gaussian"


class EdgeDataEntry(Settings, frozen=True):
    """`offbeat run`: a named set with test rows of its own, its training rows shared out over the edges. Where there
    are [[site]]s with files: the label, what columns can hold, and which part of each site's rows is for testing."""

    set: str | None = None
    dir: str | None = None
    edges: Count | Annotated[list[str], Meta(min_length=1)] = 5
    split: Literal["iid", "shards", "dirichlet"] = "iid"
    shards_per_edge: Count = 2
    concentration: Positive = 0.5
    limit_rows: Count | None = None
    label: str | None = None
    columns: dict[str, list[float | str]] | None = None
    test_fraction: Annotated[float, Meta(ge=0, lt=1)] = 0.2


SITE_ONLY = ("label", "columns", "test_fraction")
SET_ONLY = ("set", "edges", "split", "shards_per_edge", "concentration", "limit_rows")


class EdgeRuntimeEntry(RuntimeEntry, frozen=True):
    """Edges are sites of their own: they are never all equally fast."""

    kind: Literal["simulator", "threads"] = "simulator"
    jitter: Jitters = "lognormal"


class EdgeJob(Settings, frozen=True):
    """One horizontal run. Without a seed the noise is cryptographic and cannot be replayed."""

    run: str = "edges"
    algorithm: str = DEFAULT_HORIZONTAL
    updates: Annotated[int, Meta(ge=1, le=10**9)] = 1500
    batch: Count = 512
    lag_max: Natural = 60
    strength: NotNegative = 1e-4
    seed: Natural | None = None
    retry_s: Seconds = 2.0
    model: ModelEntry = ModelEntry()
    rate: RateEntry = RateEntry()
    constants: ConstantsEntry = ConstantsEntry()
    privacy: PrivacyEntry = PrivacyEntry()
    data: EdgeDataEntry = EdgeDataEntry()
    runtime: EdgeRuntimeEntry = EdgeRuntimeEntry()
    site: list[SourceEntry] = []

    @property
    def edge_count(self) -> int:
        edges = len(self.site) or self.data.edges
        return edges if isinstance(edges, int) else len(edges)

    @property
    def secret_noise(self) -> bool:
        """Whether noise comes from the operating system, so that nobody can do the run again."""
        return self.seed is None


def edge_job_from(tree: Mapping[str, Any], where: str = "the job", folder: Path | None = None) -> EdgeJob:
    """A job from plain values, checked and resolved; `folder`: what data.dir is relative to."""
    if "start" in tree:
        raise BadJob(
            f"{where}: horizontal runs begin anew, so far: what an edge's budget lasts for is counted from there. "
            "Leave `start` (--from) out."
        )
    job = settings_from(tree, EdgeJob, where, BadJob)
    _check(job, where)
    if folder is not None and job.data.dir is not None:
        job = msgspec.structs.replace(job, data=msgspec.structs.replace(job.data, dir=str(folder / job.data.dir)))
    if folder is not None:
        job = msgspec.structs.replace(job, site=from_folder(job.site, folder))
    if job.site and job.data.columns is not None:
        job = _by_columns(job)
    if job.privacy.uploads is None:
        share = math.ceil(job.updates / job.edge_count)
        job = msgspec.structs.replace(job, privacy=msgspec.structs.replace(job.privacy, uploads=share))
    return resolved(job)


def _by_columns(job: EdgeJob) -> EdgeJob:
    """Rows within what columns can hold are taken as they are, and bounded by how many columns there are."""
    bound = job.constants.norm_max or math.sqrt(len(job.data.columns or ()) + 1)
    constants = msgspec.structs.replace(job.constants, norm_max=bound)
    return msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, rows="plain"), constants=constants)


def sized(job: EdgeJob, features: int, classes: int) -> EdgeJob:
    """The same job for a model of this size, where it follows from the sites' files."""
    return msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, features=features, classes=classes))


def without_sites(plain: dict[str, Any]) -> dict[str, Any]:
    """A job's plain values less what says something of sites with files, where there are none."""
    if plain["site"]:
        return plain
    data = {key: value for key, value in plain["data"].items() if key not in SITE_ONLY}
    return {**{key: value for key, value in plain.items() if key != "site"}, "data": data}


def _check(job: EdgeJob, where: str) -> None:
    """Which keys go together."""
    if family_named(job.algorithm, by_rows=True) != "horizontal":
        known = ", ".join(names_of("horizontal"))
        raise BadJob(f"{where}: {job.algorithm!r} is no horizontal method. Those are {known}.")
    _check_edges(job, where)
    _check_sites(job, where)


def _check_sites(job: EdgeJob, where: str) -> None:
    """What sites with files need, and what says nothing to them."""
    usual = EdgeDataEntry()
    if not job.site:
        for key in SITE_ONLY:
            if getattr(job.data, key) != getattr(usual, key):
                raise BadJob(f"{where}: data.{key} is for sites with files of their own, and there is no [[site]].")
        return
    names = [entry.name for entry in job.site]
    check_party_names(names, where)
    if len({CLOUD, *names}) <= len(names):
        raise BadJob(f"{where}: sites must have names that differ, none of them {CLOUD!r}; got {', '.join(names)}.")
    for entry in job.site:
        entry.check(f"{where}, site {entry.name!r}")
    for key in SET_ONLY:
        if getattr(job.data, key) != getattr(usual, key):
            raise BadJob(f"{where}: data.{key} is for a named set; here the sites bring files of their own.")
    for key in ("features", "classes"):
        if getattr(job.model, key) != getattr(type(job.model)(), key):
            raise BadJob(f"{where}: model.{key} follows from the sites' files. Leave it out.")
    if job.data.label is None:
        raise BadJob(f"{where}: data.label is missing: the column of all sites' files that is to be learned.")
    if job.model.kind == "digits-network":
        raise BadJob(f'{where}: model.kind = "digits-network" is for pictures. Sites with files learn linear models.')
    if job.data.columns is not None:
        check_holds(job.data.columns, f"{where}, data.columns")


def _check_edges(job: EdgeJob, where: str) -> None:
    names, entry = job.data.edges, job.runtime
    if isinstance(names, list):
        check_party_names(names, f"{where}, data.edges")
        if len({CLOUD, *names}) <= len(names):
            raise BadJob(f"{where}: data.edges must be names that differ, none of them {CLOUD!r}; got {names!r}.")
    trip_s = 2 * (entry.latency_s or 0.0)
    if trip_s > job.retry_s:
        raise BadJob(
            f"{where}: with runtime.latency_s = {entry.latency_s:g} an answer takes {trip_s:g} s or more, and after "
            f"retry_s = {job.retry_s:g} everything is sent again. Set retry_s to {math.ceil(trip_s) + 1} or more, or "
            "check the units: latency_s is in seconds."
        )
