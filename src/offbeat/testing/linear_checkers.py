"""The checkers that watch every simulated run of a linear vertical method."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.party import masked_sum
from offbeat.party.contract import Party
from offbeat.party.masked_sum import STRETCH_MAX
from offbeat.party.member import LinearOptions
from offbeat.privacy import masks
from offbeat.runtime.simulator.checkers import (
    AppliedOnce,
    Checker,
    CodecFaithful,
    EndsOrSaysWhy,
    LagWithin,
    MasksUsedOnce,
    NothingRawLeaves,
    WithinBounds,
    updates_named,
)
from offbeat.testing.small_problem import SmallProblem, method_named, update_of, weights

IN_HAND_MOST = 64
"""Work a party may have asked for and not got back, beside its products in flight: chunks of a table, mostly."""


def linear_checkers(method: str, problem: SmallProblem, options: LinearOptions, *, ends: bool = True) -> list[Checker]:
    """All of them, set up for this method, problem and options. `ends`: the run is expected to end by itself."""
    kind = method_named(method)
    own = kind.labels_everywhere and not kind.synchronous
    hidden = ("ShareGiven", "PartialGiven") if options.sums.scheme != "tree" else ()
    watching: list[Checker] = [
        NothingRawLeaves(_secrets(problem), weights=weights, masked=hidden, labels_secret=not kind.labels_everywhere),
        MasksUsedOnce(),
        AppliedOnce(_version, updates_named(*update_of(kind), own_only=own)),
        WithinBounds(_sizes),
        CodecFaithful(kind.messages),
    ]
    if options.lag_max and method.startswith("afs"):
        watching.append(LagWithin(options.lag_max, _lag))
    return [*watching, EndsOrSaysWhy()] if ends else watching


def _secrets(problem: SmallProblem) -> dict[str, np.ndarray]:
    X = problem.dense()
    features = {f"the features of {name}": X[:, columns] for name, columns in problem.columns.items()}
    return features | {"the labels": problem.y}


def _version(party: Party) -> int:
    return int(_member(party).block.version)


def _lag(party: Party) -> int:
    return int(_member(party).lag_max)


def _member(party: Party) -> Any:
    return party.member  # type: ignore[attr-defined]


def _sizes(party: Party) -> Mapping[str, tuple[float, float]]:
    member = _member(party)
    sums = member.sums
    return {
        "kept answers": (max(map(len, sums.answers.values()), default=0), masked_sum.ANSWERS_KEPT),
        "early requests": (len(sums.early), masked_sum.EARLY_KEPT + 1),
        "mask gaps": (max((len(net.gaps) for net in sums.nets.values()), default=0), masks.GAPS_MAX),
        "open sums": (len(sums.open), member.options.in_flight + IN_HAND_MOST),
        "work in hand": (len(member.pending), member.options.in_flight + IN_HAND_MOST),
        "tries of one sum": (
            max((s.tries for s in sums.open.values()), default=0),
            sums.options.tries_max * STRETCH_MAX,
        ),
        "frozen points": (sum(point >= 0 for point in member.shares.points), 2),
    }
