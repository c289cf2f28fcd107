"""A job: everything that determines a run, as one frozen value that a TOML file spells out.

    job = read_job("job.toml", ["seed=3", "runtime.slow.shop=4"])

Reading checks every key (an unknown one is refused with the nearest right name) and every type; a file that a party
brings is looked for beside the job file. `toml_of` writes a job back with every key that has a value, which is the
`job.toml` of a run folder. What each key means stands in docs/reference/job-file.md.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from offbeat.data.names import check_party_names, did_you_mean
from offbeat.errors import BadJob
from offbeat.jobs.embedding import check_embedding
from offbeat.jobs.limits import JobPart, check_numbers, check_slow, value_of
from offbeat.jobs.methods import DEFAULT_ALGORITHM, EMBEDDING, kind_named
from offbeat.runtime.simulator import PROFILES


class PartyEntry(JobPart, frozen=True, kw_only=True):
    """One organisation's file."""

    name: str
    file: str
    id: str | None = None
    label: str | None = None
    columns: list[str] | None = None
    one_hot: list[str] = []


class DataEntry(JobPart, frozen=True, kw_only=True):
    """Which data, and how it is prepared."""

    set: str | None = None
    dir: str | None = None
    parties: int | list[str] = 4
    split: str | dict[str, list[str]] = "equal"
    split_after_one_hot: bool = False
    preparation: str | None = None
    rows: str | None = None
    standardise: str = "auto"
    missing: str = "refuse"
    duplicates: str = "refuse"
    limit_rows: int | None = None
    test_fraction: float | None = None


class RuntimeEntry(JobPart, frozen=True, kw_only=True):
    """Where the parties run, and what the simulated or slowed-down world is like."""

    kind: str = "simulator"
    slow: dict[str, float] = {}
    serving: str = "free"
    latency_s: float | None = None
    bandwidth_mbit_s: float = inf
    jitter: str = "none"
    link_jitter: str = "none"
    jitter_cv: float = 0.5
    lanes: int = 1
    overhead_s: float = 1e-4
    per_sample_s: float = 1e-5
    per_nonzero_s: float = 5e-7
    faults: str = "calm"
    faults_until_s: float = 1.0
    until_s: float = inf


class EmbeddingEntry(JobPart, frozen=True, kw_only=True):
    """VAFL: the clients' embeddings, the server's head, and how they train. Tables go by party."""

    kind: str | dict[str, str] = "linear"
    width: int = 16
    hidden: tuple[int, ...] = (64,)
    channels: int = 16
    shape: list[int] | dict[str, list[int]] | None = None
    head: str = "auto"
    head_hidden: tuple[int, ...] = (64,)
    optimiser: str = "sgd"
    head_step: float | None = None
    t: int | None = None
    delay_bound: float = 5.0
    rates: dict[str, float] = {}
    initial_upload: bool = True
    device: str | dict[str, str] = "cpu"
    noise: float = 0.0
    inner_noise: bool = False
    epsilon: float | None = None
    delta: float = 1e-5
    uploads_max: int | None = None
    clip: float = 1.0
    gradient_clip: float = 1.0
    secret_noise: bool = False


class Job(JobPart, frozen=True, kw_only=True):
    """One run. Keys that are absent from a file have these values; None means: chosen when the run begins."""

    algorithm: str = DEFAULT_ALGORITHM
    seed: int = 0
    task: str = "auto"
    loss: str = "auto"
    penalty: float = 1e-4
    penalty_kind: str = "l2"
    intercept: bool = True
    passes: float = 60.0
    target: float | None = None
    step: float | str = "auto"
    batch: int | str = "auto"
    batch_least: int = 64
    in_flight: int = 1
    lag: float | None = None
    lag_max: int = 0
    snapshot_passes: float = 1.0
    certify_passes: float = 3.0
    by_curvature: bool = False
    patience_s: float = 1.0
    on_loss: str = "wait"
    labels_at: list[str] | None = None
    label_dp_epsilon: float | None = None
    secure_sum: str = "pairwise"
    two_party_insecure: bool = False
    fraction_bits: int | None = None
    optimum: bool = True
    looks_per_pass: float = 8.0
    data: DataEntry = DataEntry()
    embedding: EmbeddingEntry = EmbeddingEntry()
    runtime: RuntimeEntry = RuntimeEntry()
    party: list[PartyEntry] = []


SERVER = "server"
"""VAFL's party with the labels and the head; the others are its clients."""
SET_ONLY = ("set", "dir", "parties", "split", "split_after_one_hot", "preparation", "limit_rows")
"""Keys of [data] that say nothing where the parties bring files."""
PARTIES_MOST = 1000
TRIPS_MOST = 10
"""Times patience_s. A question is asked twelve times before it is given up."""
MESSAGE_ROWS = 1024
"""Rows of which a party tells at a time, a number of 64 bits for each."""
LINEAR_ONLY = (
    "target",
    "loss",
    "lag",
    "lag_max",
    "snapshot_passes",
    "certify_passes",
    "by_curvature",
    "patience_s",
    "on_loss",
    "secure_sum",
    "two_party_insecure",
    "fraction_bits",
)
"""Keys that say nothing to VAFL."""
PENALTIES_OF = {"linear": ("l2", "nonconvex", "none"), "embedding": ("none", "l1", "l2", "box", "ball")}
RUNTIMES = ("simulator", "threads", "processes", "ray")
JITTERS = ("none", "lognormal", "exponential", "poisson")
PLAIN_CHOICES: dict[str, tuple[str, ...]] = {
    "task": ("auto", "classification", "multiclass", "regression"),
    "loss": ("auto", "logistic", "squared", "squared_hinge", "ls_svm"),
    "penalty_kind": ("l2", "nonconvex", "none", "l1", "box", "ball"),
    "on_loss": ("wait", "stop", "continue"),
    "secure_sum": ("pairwise", "two-tree", "tree"),
    "embedding.head": ("auto", "additive", "mlp"),
    "embedding.optimiser": ("sgd", "adam"),
    "runtime.kind": RUNTIMES,
    "runtime.serving": ("free", "full", "slow"),
    "runtime.jitter": JITTERS,
    "runtime.link_jitter": JITTERS,
    "runtime.faults": PROFILES,
    "data.standardise": ("auto", "none", "numeric", "all"),
    "data.missing": ("refuse", "median"),
    "data.duplicates": ("refuse", "keep-first"),
}


# -- reading ---------------------------------------------------------------------------------------------------------


def read_job(path: str | Path, settings: Sequence[str] = ()) -> Job:
    """A job file with `key=value` settings on top; files in it become absolute paths."""
    path = Path(path)
    return job_from(read_tree(path, settings), where=str(path), folder=path.resolve().parent)


def read_tree(path: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """A job file's plain values with `key=value` settings on top, not yet checked."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadJob(
            f"There is no job file {path}. Give the path of a .toml file; `offbeat demo` needs none."
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise BadJob(f"The job file {path} cannot be read: {problem}.") from problem
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise BadJob(f"{path} is not valid TOML: {problem}.") from problem
    for setting in settings:
        apply_setting(tree, setting)
    return tree


def job_from(tree: Mapping[str, Any], *, where: str = "the job", folder: Path | None = None) -> Job:
    """A job from plain values, checked."""
    check_keys(tree, Job, where)
    try:
        job = msgspec.convert(dict(tree), Job)
    except msgspec.ValidationError as problem:
        raise BadJob(f"{where}: {readable(str(problem))}.") from problem
    if folder is not None:
        job = _with_absolute_files(job, folder)
    return checked(job, where)


def check_keys(tree: Mapping[str, Any], kind: type[JobPart], where: str) -> None:
    """Refuse a key that the struct does not have; tables are looked into."""
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in tree.items():
        if key not in known:
            raise BadJob(f"{where} has an unknown key {key!r}. {did_you_mean(key, known)}")
        inner = known[key]
        if isinstance(inner, type) and issubclass(inner, JobPart) and isinstance(value, Mapping):
            check_keys(value, inner, f"{where}, [{key}]")
        elif key == "party" and isinstance(value, list):
            for number, entry in enumerate(value, 1):
                if isinstance(entry, Mapping):
                    name = entry.get("name", f"number {number}")
                    check_keys(entry, PartyEntry, f"{where}, [[party]] {name}")


def readable(problem: str) -> str:
    """msgspec's sentence with TOML's names: `$.runtime.lanes` is the key `runtime.lanes`."""
    return problem.replace("`$.", "key `").replace("`$`", "the job")


def _with_absolute_files(job: Job, folder: Path) -> Job:
    entries = [msgspec.structs.replace(entry, file=str(folder / entry.file)) for entry in job.party]
    data = job.data
    if data.dir is not None:
        data = msgspec.structs.replace(data, dir=str(folder / data.dir))
    return msgspec.structs.replace(job, party=entries, data=data)


# -- settings from the command line --------------------------------------------------------------------------------


def apply_setting(tree: dict[str, Any], setting: str) -> None:
    """Write one `key=value` into the tree: dots go into tables, `party.bank.file` into the party of that name."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise BadJob(f"--set expects key=value, as in --set runtime.slow.shop=4; got {setting!r}.")
    *path, last = key.strip().split(".")
    place: Any = tree
    for step in path:
        place = _step_into(place, step, key)
    if isinstance(place, list):
        raise BadJob(f"--set {key}: {last!r} is a whole party; name one of its keys, as in {key.strip()}.file=x.csv.")
    place[last] = _value(text)


def _step_into(place: Any, step: str, key: str) -> Any:
    if isinstance(place, list):
        for entry in place:
            if isinstance(entry, dict) and entry.get("name") == step:
                return entry
        names = [str(entry.get("name")) for entry in place if isinstance(entry, dict)]
        raise BadJob(f"--set {key}: there is no party {step!r}. {did_you_mean(step, names)}")
    inner = place.setdefault(step, {})
    if not isinstance(inner, dict | list):
        raise BadJob(f"--set {key}: {step!r} is a value, not a table.")
    return inner


def _value(text: str) -> Any:
    """The text as TOML would read it; what is not TOML is a string: --set algorithm=afsaga-vp needs no quotes."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


# -- checks ----------------------------------------------------------------------------------------------------------


def checked(job: Job, where: str = "the job") -> Job:
    """The job itself, when nothing is wrong with it."""
    for key, choices in PLAIN_CHOICES.items():
        value = value_of(job, key)
        if value not in choices:
            raise BadJob(f"{where}: {key} must be one of {', '.join(choices)}; got {value!r}. {_near(value, choices)}")
    check_numbers(job, where)
    check_slow(job.runtime.slow, where)
    _check_step(job, where)
    _check_parties(job, where)
    _check_set_only(job, where)
    _check_family(job, where)
    _check_patience(job, where)
    return job


def _near(value: object, choices: Sequence[str]) -> str:
    hint = did_you_mean(str(value), choices)
    return hint if hint.startswith("Did") else ""


def _check_step(job: Job, where: str) -> None:
    if isinstance(job.step, str) and job.step not in ("auto", "grid"):
        raise BadJob(f'{where}: step must be a number, "auto" or "grid"; got {job.step!r}.')
    if isinstance(job.step, float | int) and not job.step > 0:
        raise BadJob(f"{where}: step must be above 0; got {job.step}.")
    if job.step == "grid" and job.runtime.kind != "simulator":
        raise BadJob(
            f'{where}: step = "grid" tries many short runs, which only the simulator does; got {job.runtime.kind}.'
        )
    if isinstance(job.batch, str) and job.batch != "auto":
        raise BadJob(f'{where}: batch must be a whole number or "auto"; got {job.batch!r}.')
    if isinstance(job.batch, int) and job.batch < 1:
        raise BadJob(f"{where}: batch must be at least 1; got {job.batch}.")


def _check_parties(job: Job, where: str) -> None:
    names = [entry.name for entry in job.party]
    check_party_names(names, where)
    if len(set(names)) < len(names):
        raise BadJob(f"{where}: two parties have the same name; came {', '.join(names)}.")
    if job.party and job.data.set is not None:
        raise BadJob(f"{where} names both a data set ({job.data.set}) and parties with files of their own; choose one.")
    if not names:
        return
    known = [*names, SERVER] if job.algorithm in EMBEDDING else names
    for key, wanted in (("labels_at", job.labels_at or ()), ("runtime.slow", job.runtime.slow)):
        for name in wanted:
            if name not in known:
                raise BadJob(f"{where}: {key} names {name!r}, which is no party. {did_you_mean(name, names)}")


def _check_set_only(job: Job, where: str) -> None:
    """Keys of a named set say nothing about files. `dir` may come from --data, which is given for any job."""
    usual = DataEntry()
    for key in SET_ONLY:
        if job.party and key != "dir" and getattr(job.data, key) != getattr(usual, key):
            raise BadJob(
                f"{where}: data.{key} is for a named set; here the parties bring files of their own. Leave it out."
            )
    parties = job.data.parties
    if isinstance(parties, list):
        check_party_names(parties, f"{where}, data.parties")
    if not 2 <= (len(parties) if isinstance(parties, list) else parties) <= PARTIES_MOST:
        raise BadJob(
            f"{where}: data.parties must be a number from 2 to {PARTIES_MOST}, or so many names; got {parties!r}."
        )


def _check_patience(job: Job, where: str) -> None:
    """Sums whose answers outlast all tries are given up and asked for anew, more patiently each time: a waste."""
    entry = job.runtime
    if kind_named(job.algorithm) != "linear" or entry.kind == "processes":
        return
    rows = max(MESSAGE_ROWS, job.batch if isinstance(job.batch, int) else job.batch_least)
    slowest = max((1.0, *entry.slow.values())) if entry.serving == "slow" else 1.0
    serving = 0.0 if entry.serving == "free" else entry.overhead_s * slowest
    trip_s = 2 * (entry.latency_s or 0.0) + 64 * rows / (1e6 * entry.bandwidth_mbit_s) + serving
    if trip_s > TRIPS_MOST * job.patience_s:
        raise BadJob(
            f"{where}: a question and its answer take about {trip_s:.3g} s with this latency_s, bandwidth_mbit_s and "
            f"serving under [runtime], far longer than patience_s = {job.patience_s:g} allows for: questions would "
            f"be given up again and again. Set patience_s to {math.ceil(trip_s)} or more, or check the units: "
            "latency_s is in seconds."
        )


def _check_family(job: Job, where: str) -> None:
    """A key that the method would not look at is refused rather than passed over."""
    kind = kind_named(job.algorithm)
    if kind == "horizontal":
        raise BadJob(
            f"{where}: {job.algorithm} is a horizontal method, and its jobs have other keys: read them with "
            "offbeat.jobs.horizontal.read_edge_job, or give the file to `offbeat run`."
        )
    usual = Job(algorithm=job.algorithm)
    unknown = LINEAR_ONLY if kind == "embedding" else ("embedding",)
    for key in unknown:
        if value_of(job, key) != value_of(usual, key):
            known_by = "the linear methods" if kind == "embedding" else "vafl, vafl-tsync and vafl-sync"
            raise BadJob(f"{where}: {job.algorithm} has no use for {key}, which is for {known_by}. Leave it out.")
    if job.penalty_kind not in PENALTIES_OF[kind]:
        raise BadJob(f"{where}: with {job.algorithm} penalty_kind is one of {', '.join(PENALTIES_OF[kind])}.")
    if kind == "embedding":
        check_embedding(job, usual.embedding, where)
    if kind == "linear" and job.task == "multiclass":
        raise BadJob(f'{where}: {job.algorithm} knows two classes, or numbers. For more classes: algorithm = "vafl".')


# -- writing ---------------------------------------------------------------------------------------------------------


def toml_of(job: Job) -> str:
    """The job with every key that has a value, as TOML: simple keys first, then tables, then parties."""
    plain: dict[str, Any] = msgspec.to_builtins(job)
    if job.algorithm not in EMBEDDING:
        del plain["embedding"]
    if not job.party:
        del plain["party"]
    else:
        plain["data"] = {key: value for key, value in plain["data"].items() if key not in SET_ONLY}
    return toml_of_tree(plain)


def toml_of_tree(plain: Mapping[str, Any]) -> str:
    """Plain values as TOML; a table at the top level becomes a section, a list of tables a section for each."""
    sections = {key: value for key, value in plain.items() if isinstance(value, Mapping)}
    several = {key: value for key, value in plain.items() if _is_tables(value)}
    lines = _lines({key: value for key, value in plain.items() if key not in sections and key not in several})
    for name, table in sections.items():
        lines += ["", f"[{name}]", *_lines(table)]
    for name, tables in several.items():
        for table in tables:
            lines += ["", f"[[{name}]]", *_lines(table)]
    return "\n".join(lines) + "\n"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value)


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_literal(value)}" for key, value in table.items() if value is not None]


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)  # inf and nan are spelled alike in TOML
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "{" + ", ".join(f"{_quoted(key)} = {_literal(inner)}" for key, inner in value.items()) + "}"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()  # JSON's escapes are TOML's
