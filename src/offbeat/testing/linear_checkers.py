"""The checkers that watch every simulated run of a linear vertical method."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.algorithms.afsgd_vp import Worker
from offbeat.algorithms.vfb2 import OPEN_MOST
from offbeat.party.contract import Effect, Event, Party, Received
from offbeat.party.linear import HELD_MOST
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import PRODUCTS, PartialGiven, ShareGiven
from offbeat.party.survey import CHUNKS_IN_FLIGHT
from offbeat.runtime.simulator.checkers import (
    AppliedOnce,
    Checker,
    CodecFaithful,
    EndsOrSaysWhy,
    LagWithin,
    MasksUsedOnce,
    NothingRawLeaves,
    WithinBounds,
    sent_bodies,
)
from offbeat.testing.small_problem import SmallProblem, method_named, weights

IN_HAND_MOST = 64
"""Work a party may have asked for and not got back, beside its products in flight: chunks of a table, mostly."""


def linear_checkers(method: str, problem: SmallProblem, options: LinearOptions, *, ends: bool = True) -> list[Checker]:
    """All of them, set up for this method, problem and options. `ends`: the run is expected to end by itself."""
    kind = method_named(method)
    hidden = ("ShareGiven", "PartialGiven") if options.sums.scheme != "tree" else ()
    signs = not kind.labels_everywhere and not problem.loss.grows  # ones and minus ones are labels, not coefficients
    watching: list[Checker] = [
        NothingRawLeaves(_secrets(problem), weights=_of_columns, masked=hidden, labels_secret=signs),
        MasksUsedOnce(),
        AppliedOnce(_version, _updates),
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


def _of_columns(party: Party) -> np.ndarray:
    """A party's weights without its constants: those are the product of a row without values, and with several outputs
    there are as many as count as telling."""
    return weights(party).reshape(_linear(party).problem.outputs, -1)[:, :-1].ravel()


def _updates(party: Party, event: Event, effects: Sequence[Effect]) -> Iterable[Any]:
    """What lets a block move: derivatives or products that came or went, shares for an asynchronous worker's own
    product, and each survey once."""
    told = [(party.name, body) for body in sent_bodies(effects)]
    if isinstance(event, Received):
        told.append((event.sender, event.body))
        body = event.body
        if isinstance(party, Worker) and isinstance(body, ShareGiven | PartialGiven) and body.kind == PRODUCTS:
            yield "product", body.epoch, body.first
    for sender, body in told:
        name, fields = type(body).__name__, body.__struct_fields__
        if name in NUMBERED:
            yield sender, name, *(getattr(body, field) for field in ("epoch", NUMBERED[name]) if field in fields)


NUMBERED = {"Backward": "number", "Product": "round", "Mark": "survey"}


def _version(party: Party) -> int:
    return int(_linear(party).block.version)


def _lag(party: Party) -> int:
    return int(_linear(party).lags.most)


def _linear(party: Party) -> Any:
    return party.party  # type: ignore[attr-defined]


def _sizes(party: Party) -> Mapping[str, tuple[float, float]]:
    linear = _linear(party)
    flight = (linear.options.in_flight or 1) + CHUNKS_IN_FLIGHT
    answered = getattr(party, "answered", {})
    return {
        "messages of another roster": (len(linear.held), HELD_MOST),
        "questions that wait for steps": (len(linear.waiting), HELD_MOST),
        "answers without derivatives": (max(map(len, answered.values()), default=0), OPEN_MOST),
        "open sums": (len(linear.sums.open), flight + IN_HAND_MOST),
        "work in hand": (len(linear.works.open), flight + IN_HAND_MOST),
        "points of surveys": (len(linear.survey.points), 4),
        "kept moves": (len(linear.survey.moves.moves), linear.survey.moves.most),
    }
