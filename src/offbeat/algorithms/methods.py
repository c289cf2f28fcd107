"""The linear vertical methods by name: a plain dictionary.

A paper is one file of this package with a `build` and its `MESSAGES`; a method is a paper with a direction (sgd, svrg,
saga), either asynchronous or in rounds. Code elsewhere may make a `LinearMethod` of its own builder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from offbeat.algorithms import afsgd_vp, vfb2
from offbeat.learning.blocks import DIRECTIONS
from offbeat.party.contract import Message, Party


@dataclass(frozen=True)
class LinearMethod:
    """`labels_everywhere`: every party is given the labels; else derivatives flow back from those who have them."""

    family: ClassVar[str] = "linear"

    build: Callable[..., Sequence[Party]]
    messages: tuple[type[Message], ...]
    direction: str
    synchronous: bool
    labels_everywhere: bool


def _everywhere(direction: str, *, rounds: bool) -> LinearMethod:
    return LinearMethod(afsgd_vp.build, afsgd_vp.MESSAGES, direction, rounds, True)


def _backward(direction: str, *, rounds: bool) -> LinearMethod:
    return LinearMethod(vfb2.build, vfb2.MESSAGES, direction, rounds, False)


LINEAR: dict[str, LinearMethod] = {
    **{f"af{direction}-vp": _everywhere(direction, rounds=False) for direction in DIRECTIONS},
    **{f"f{direction}-vp": _everywhere(direction, rounds=True) for direction in DIRECTIONS},
    **{f"vfb2-{direction}": _backward(direction, rounds=False) for direction in DIRECTIONS},
    **{f"vfb-{direction}": _backward(direction, rounds=True) for direction in DIRECTIONS},
}
