"""The methods by name: a plain dictionary.

A family is one file of `offbeat.algorithms` with a `build` and its `MESSAGES`; a method is a family with a direction
(sgd, svrg, saga), either asynchronous or in rounds. To add a method, write its file and add its line here; code
elsewhere may call any builder directly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offbeat.data.names import did_you_mean
from offbeat.errors import BadJob
from offbeat.party.contract import Message, Party

Build = Callable[..., Sequence[Party]]


@dataclass(frozen=True)
class Family:
    """One paper's file: its builder and its message types."""

    build: Build
    messages: tuple[type[Message], ...]


def _afsgd_vp() -> Family:
    from offbeat.algorithms import afsgd_vp

    return Family(afsgd_vp.build, afsgd_vp.MESSAGES)


def _vfb2() -> Family:
    from offbeat.algorithms import vfb2

    return Family(vfb2.build, vfb2.MESSAGES)


@dataclass(frozen=True)
class Method:
    """A linear vertical method. `labels_everywhere`: every party is given the labels."""

    family: Callable[[], Family]
    direction: str
    synchronous: bool
    labels_everywhere: bool
    title: str


def _afsgd(direction: str, title: str, *, rounds: bool = False) -> Method:
    return Method(_afsgd_vp, direction, rounds, True, title)


def _backward(direction: str, title: str, *, rounds: bool = False) -> Method:
    return Method(_vfb2, direction, rounds, False, title)


DEFAULT_ALGORITHM = "vfb2-saga"
"""What a job and the estimators use when nothing is said (docs/decisions/0020-default-method.md)."""

METHODS: dict[str, Method] = {
    "afsgd-vp": _afsgd("sgd", "AFSGD-VP: asynchronous, stochastic gradients; labels everywhere"),
    "afsvrg-vp": _afsgd("svrg", "AFSVRG-VP: the same with snapshots"),
    "afsaga-vp": _afsgd("saga", "AFSAGA-VP: the same with a table of derivatives"),
    "fsgd-vp": _afsgd("sgd", "FSGD-VP: AFSGD-VP in synchronous rounds", rounds=True),
    "fsvrg-vp": _afsgd("svrg", "FSVRG-VP: AFSVRG-VP in synchronous rounds", rounds=True),
    "fsaga-vp": _afsgd("saga", "FSAGA-VP: AFSAGA-VP in synchronous rounds", rounds=True),
    "vfb2-sgd": _backward("sgd", "VFB2-SGD: asynchronous, labels stay with some; derivatives flow back"),
    "vfb2-svrg": _backward("svrg", "VFB2-SVRG: the same with snapshots"),
    "vfb2-saga": _backward("saga", "VFB2-SAGA: the same with a table of derivatives"),
    "vfb-sgd": _backward("sgd", "VFB-SGD: VFB2-SGD in synchronous rounds", rounds=True),
    "vfb-svrg": _backward("svrg", "VFB-SVRG: VFB2-SVRG in synchronous rounds", rounds=True),
    "vfb-saga": _backward("saga", "VFB-SAGA: VFB2-SAGA in synchronous rounds", rounds=True),
}


HORIZONTAL = ("mapa", "audp", "asgd", "csgd", "steady", "fedasync", "fedbuff")
EMBEDDING = ("vafl", "vafl-tsync", "vafl-sync")
ALL_NAMES = (*METHODS, *EMBEDDING, *HORIZONTAL)


def kind_named(name: str) -> str:
    """`linear` (columns shared out, one model), `embedding` (VAFL) or `horizontal` (rows shared out)."""
    if name in METHODS:
        return "linear"
    if name in EMBEDDING:
        return "embedding"
    if name in HORIZONTAL:
        return "horizontal"
    raise BadJob(f"Unknown algorithm {name!r}. {did_you_mean(name, ALL_NAMES)}")


def method_named(name: str) -> Method:
    """The linear vertical method of this name, or a BadJob that says what the name is instead."""
    kind = kind_named(name)
    if kind == "horizontal":
        raise BadJob(
            f"{name!r} is a horizontal method: rows are shared out, not columns. `offbeat run` takes it with a job of "
            "its kind; `offbeat cloud` and `offbeat edge` use a broker."
        )
    if kind == "embedding":
        raise BadJob(
            f"{name!r} trains embeddings under a head. `offbeat run` takes it, and from Python "
            "offbeat.run.embedding_experiment.run_embedding; the linear estimators and tools do not."
        )
    return METHODS[name]


def labels_everywhere(name: str) -> bool:
    """Whether the method of this name gives every party the labels."""
    return kind_named(name) == "linear" and METHODS[name].labels_everywhere
