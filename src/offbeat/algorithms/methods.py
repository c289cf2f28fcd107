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


LINEAR: dict[str, LinearMethod] = {
    f"{before}{direction}{after}": LinearMethod(paper.build, paper.MESSAGES, direction, rounds, paper is afsgd_vp)
    for before, after, paper, rounds in (
        ("af", "-vp", afsgd_vp, False),
        ("f", "-vp", afsgd_vp, True),
        ("vfb2-", "", vfb2, False),
        ("vfb-", "", vfb2, True),
    )
    for direction in DIRECTIONS
}
