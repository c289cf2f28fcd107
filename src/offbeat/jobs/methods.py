"""Every method by name, in one table: what a job's `algorithm` says. A method is a value; its family is one of three.

    linear        columns shared out, one linear model          algorithms/methods.py
    embedding     columns shared out, embeddings under a head   VAFL
    horizontal    rows shared out over edges under a cloud      MAPA and others

A job may also name a `LinearMethod` or a `HorizontalMethod` of its own, as `module:object` (jobs/elsewhere.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offbeat.algorithms.methods import LINEAR, LinearMethod
from offbeat.errors import BadJob
from offbeat.jobs import rules
from offbeat.jobs.elsewhere import import_object, is_elsewhere
from offbeat.names import did_you_mean

if TYPE_CHECKING:
    from offbeat.algorithms.mapa import Rule
    from offbeat.jobs.horizontal import EdgeJob


@dataclass(frozen=True)
class EmbeddingMethod:
    """A variant of VAFL, which knows itself by its name."""

    family: ClassVar[str] = "embedding"


@dataclass(frozen=True)
class HorizontalMethod:
    """`rule`: how the cloud applies uploads. `private`: edges may add noise. `local_steps`: they upload the way that
    some steps of their own went. `pooled`: all rows lie at one place, to compare with."""

    family: ClassVar[str] = "horizontal"

    rule: Callable[["EdgeJob"], "Rule"]
    private: bool = False
    local_steps: bool = False
    pooled: bool = False


Method = LinearMethod | EmbeddingMethod | HorizontalMethod

DEFAULT_ALGORITHM = "vfb2-saga"
"""What a job and the estimators use when nothing is said (docs/decisions/0020-default-method.md)."""

DEFAULT_HORIZONTAL = "steady"
"""What a job whose [data] counts edges uses (docs/decisions/0080-steps-from-the-noise.md)."""

METHODS: dict[str, Method] = {
    **LINEAR,
    "vafl": EmbeddingMethod(),
    "vafl-tsync": EmbeddingMethod(),
    "vafl-sync": EmbeddingMethod(),
    "mapa": HorizontalMethod(rules.staged, private=True),
    "audp": HorizontalMethod(rules.noisy, private=True),
    "asgd": HorizontalMethod(rules.asynchronous),
    "csgd": HorizontalMethod(rules.central, pooled=True),
    "steady": HorizontalMethod(rules.steady, private=True),
    "fedasync": HorizontalMethod(rules.mixing, local_steps=True),
    "fedbuff": HorizontalMethod(rules.buffered, local_steps=True),
}


def method_named(name: str) -> Method:
    """The method of this name; code of `module:object` is imported."""
    if not isinstance(name, str):
        raise BadJob(f"algorithm must be the name of a method, as in {DEFAULT_ALGORITHM!r}; got {name!r}.")
    if is_elsewhere(name):
        return _from_elsewhere(name)
    if name not in METHODS:
        raise BadJob(f"Unknown algorithm {name!r}. {did_you_mean(name, METHODS)}")
    return METHODS[name]


def _from_elsewhere(name: str) -> LinearMethod | HorizontalMethod:
    found = import_object(name)
    if not isinstance(found, LinearMethod | HorizontalMethod):
        raise BadJob(
            f"algorithm = {name!r}: expected a LinearMethod or a HorizontalMethod, found {type(found).__name__}. "
            "docs/how-to/add-an-algorithm.md shows how to make one."
        )
    return found


def family_named(name: str, *, by_rows: bool = False) -> str:
    """`linear`, `embedding` or `horizontal`. Nothing is imported: of `module:object` the job tells, whose data is
    shared out `by_rows` or by columns."""
    if is_elsewhere(name):
        return "horizontal" if by_rows else "linear"
    return method_named(name).family


def names_of(family: str) -> tuple[str, ...]:
    return tuple(name for name, method in METHODS.items() if method.family == family)


def linear_named(name: str) -> LinearMethod:
    """The linear method of this name, or a BadJob that says what the name is instead."""
    method = method_named(name)
    if not isinstance(method, LinearMethod):
        what = "trains embeddings under a head" if method.family == "embedding" else "shares out rows, not columns"
        what += " (its jobs say `edges` under [data])" if is_elsewhere(name) else ""
        raise BadJob(
            f"{name!r} {what}; a linear method is expected here. `offbeat run` takes it with a job of its kind."
        )
    return method


def horizontal_named(name: str) -> HorizontalMethod:
    method = method_named(name)
    if not isinstance(method, HorizontalMethod):
        raise BadJob(f"{name!r} is no horizontal method. Those are {', '.join(names_of('horizontal'))}.")
    return method


def labels_everywhere(name: str) -> bool:
    """Whether the method of this name gives every party the labels."""
    method = method_named(name)
    return isinstance(method, LinearMethod) and method.labels_everywhere
