"""Jobs from files and plain values, and back: of any method, resolved once, here.

    job = read_job("job.toml", ["seed=3", "runtime.slow.shop=4"])

An unknown key is refused with the nearest right name, a wrong value with what was expected; a file that a party brings
is looked for beside the job file. What `job_text` writes is the `job.toml` of a run folder; `plain_of` is the same in
its record.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import BadJob
from offbeat.jobs.horizontal import EdgeJob, edge_job_from, without_sites
from offbeat.jobs.methods import DEFAULT_ALGORITHM, DEFAULT_HORIZONTAL, family_named
from offbeat.jobs.vertical import Job, vertical_job_from, without_unused
from offbeat.settings import apply_setting, read_toml, toml_text

AnyJob = Job | EdgeJob


def read_job(path: str | Path, settings: Sequence[str] = ()) -> AnyJob:
    """A job from a file, checked; files that it names become absolute paths.

    path      the job file
    settings  `key=value` texts that replace keys of the file, as `--set` does
    """
    path = Path(path)
    return job_from(read_tree(path, settings), where=str(path), folder=path.resolve().parent)


def read_tree(path: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """A job file's plain values with `key=value` settings on top, not yet checked."""
    tree = read_toml(path, "job file", "Give the path of a .toml file; `offbeat demo` needs none.", BadJob)
    for setting in settings:
        apply_setting(tree, setting)
    return tree


def job_from(tree: Mapping[str, Any], *, where: str = "the job", folder: Path | None = None) -> AnyJob:
    """A job from plain values: checked, and resolved. One that counts edges or lists sites, and names no
    method or one from elsewhere, is horizontal."""
    data = tree.get("data")
    by_rows = "site" in tree or (isinstance(data, Mapping) and "edges" in data)
    algorithm = tree.get("algorithm", DEFAULT_HORIZONTAL if by_rows else DEFAULT_ALGORITHM)
    horizontal = isinstance(algorithm, str) and family_named(algorithm, by_rows=by_rows) == "horizontal"
    _check_tables(tree, where, algorithm, horizontal)
    return edge_job_from(tree, where, folder) if horizontal else vertical_job_from(tree, where, folder)


def _check_tables(tree: Mapping[str, Any], where: str, algorithm: object, horizontal: bool) -> None:
    """A method for rows needs sites, one for columns needs parties; the other word is a choice of the wrong method."""
    if horizontal and "party" in tree:
        raise BadJob(
            f"{where}: {algorithm} is for sites that have different rows, each listed as [[site]]; the job has "
            f'[[party]]. For parties that have different columns choose algorithm = "{DEFAULT_ALGORITHM}", for example.'
        )
    if not horizontal and "site" in tree:
        raise BadJob(
            f"{where}: {algorithm} is for parties that have different columns, each listed as [[party]]; the job has "
            f'[[site]]. For sites that have different rows choose algorithm = "{DEFAULT_HORIZONTAL}", for example.'
        )


def family_name(job: AnyJob) -> str:
    """`linear`, `embedding` or `horizontal`."""
    return family_named(job.algorithm, by_rows=isinstance(job, EdgeJob))


def plain_of(job: AnyJob) -> dict[str, Any]:
    """Every key that says something to the job's method."""
    plain: dict[str, Any] = msgspec.to_builtins(job)
    return without_sites(plain) if isinstance(job, EdgeJob) else without_unused(plain)


def job_text(job: AnyJob) -> str:
    """The job as TOML: simple keys first, then tables, then parties."""
    return toml_text(plain_of(job))
