"""Invariants that are watched while a simulated run goes on. A violation raises at the event that caused it.

| Checker             | What it never lets pass                                                                       |
|---------------------|-----------------------------------------------------------------------------------------------|
| `NothingRawLeaves`  | a payload with features, secret labels, weights, or words that were not masked                |
| `MasksUsedOnce`     | one request answered with two different sets of bytes; two requests that share mask words     |
| `AppliedOnce`       | a block that moved more often than distinct updates reached it                                |
| `LagWithin`         | a product older than the declared bound that was used nevertheless                            |
| `WithinBounds`      | a buffer, retry count or budget beyond its bound                                              |
| `CodecFaithful`     | a message that the codec does not return as it was given                                      |
| `EndsOrSaysWhy`     | a run that neither ends nor says what it waits for                                            |
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.message.codec import Codec
from offbeat.party.contract import Broadcast, Effect, Event, Message, Party, PartyName, Send
from offbeat.runtime.contract import Outcome


class Violation(AssertionError):
    """Something that must never happen, happened."""


class Checker:
    """Is told of every event and of the end. Most have nothing to say about one of the two."""

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        pass

    def ended(self, outcome: Outcome, parties: Sequence[Party]) -> None:
        pass


def sent_bodies(effects: Sequence[Effect]) -> list[Message]:
    return [effect.body for effect in effects if isinstance(effect, (Send, Broadcast))]


def _arrays(body: Message) -> Iterable[tuple[str, np.ndarray]]:
    for field in body.__struct_fields__:
        value = getattr(body, field)
        if isinstance(value, np.ndarray):
            yield field, value


# -- what leaves -----------------------------------------------------------------------------------------------------

TELLING_AT_LEAST = 3
MASKED_WORDS_AT_LEAST = 2.0**50


class NothingRawLeaves(Checker):
    """No payload holds a party's features, its weights or its unmasked shares, nor (where labels are secret) labels.

    Float payloads are compared with the forbidden numbers by value: three that occur in one payload are a leak, but
    for zeros and ones, which occur anywhere. An array of ones and minus ones alone is taken for labels. Masked words
    are uniform over 2^64, so that hardly one in 2^13 is as small as a fixed-point number: a payload whose words are
    mostly small was not masked. `weights` reads a party's weights as they are.
    """

    def __init__(
        self,
        forbidden: Mapping[str, np.ndarray],
        *,
        weights: Callable[[Party], np.ndarray] | None = None,
        masked: Iterable[str] = (),
        labels_secret: bool = False,
    ) -> None:
        self.forbidden = {name: _telling(values) for name, values in forbidden.items()}
        self.weights = weights
        self.masked = frozenset(masked)
        self.labels_secret = labels_secret

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        for body in sent_bodies(effects):
            kind = type(body).__name__
            for field, values in _arrays(body):
                where = f"at {now_s:g} s {party.name} sent {kind}.{field}"
                if values.dtype.kind == "f":
                    self._compare(where, party, values)
                elif values.dtype == np.uint64 and kind in self.masked:
                    _check_masked(where, values)

    def _compare(self, where: str, party: Party, values: np.ndarray) -> None:
        numbers = set(values.ravel().tolist())
        for name, secret in self.forbidden.items():
            _refuse_matches(where, numbers & secret, name)
        if self.weights is not None:
            _refuse_matches(where, numbers & _telling(self.weights(party)), f"the weights of {party.name}")
        if self.labels_secret and values.size >= TELLING_AT_LEAST and numbers <= {-1.0, 1.0}:
            raise Violation(f"{where}, which is nothing but ones and minus ones: labels")


def _telling(values: np.ndarray) -> set[float]:
    """The values that would give their source away: not the zeros and ones that occur anywhere."""
    return set(np.asarray(values, dtype=np.float64).ravel().tolist()) - {0.0, 1.0, -1.0}


def _refuse_matches(where: str, matches: set[float], name: str) -> None:
    if len(matches) >= TELLING_AT_LEAST:
        raise Violation(f"{where} with {len(matches)} values equal to {name}")


def _check_masked(where: str, words: np.ndarray) -> None:
    small = int(np.count_nonzero(np.abs(words.view(np.int64).astype(np.float64)) < MASKED_WORDS_AT_LEAST))
    if small >= TELLING_AT_LEAST and small * 2 > words.size:
        raise Violation(f"{where} with {small} of {words.size} words in the range of plain shares: not masked")


MASK_STREAM = ("epoch", "kind", "survey", "asker", "tree")
"""What tells one stream of mask words from another, beside giver and receiver."""


class MasksUsedOnce(Checker):
    """A request is answered with one set of bytes for ever, and no two requests share a word of a mask stream."""

    def __init__(self) -> None:
        self.answers: dict[tuple[Any, ...], int] = {}
        self.taken: dict[tuple[Any, ...], list[tuple[int, int]]] = {}

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            kind, body = type(effect.body).__name__, effect.body
            if kind in ("ShareGiven", "PartialGiven"):
                names = [name for name in MASK_STREAM if name in body.__struct_fields__]
                self._given(now_s, (party.name, effect.to, *(getattr(body, name) for name in names)), body)

    def _given(self, now_s: float, stream: tuple[Any, ...], body: Any) -> None:
        first, words = body.first, body.words
        told = hash(words.tobytes())
        before = self.answers.setdefault((*stream, first), told)
        if before != told:
            raise Violation(f"at {now_s:g} s {stream[0]} answered request {first} of {stream[1]} with other bytes")
        by_row = getattr(body, "survey", 0) > 0 and len(words) > 0  # elsewhere a number stands for a whole answer
        self._claim(now_s, stream, first, first + (len(words) if by_row else 1))

    def _claim(self, now_s: float, stream: tuple[Any, ...], first: int, stop: int) -> None:
        taken = self.taken.setdefault(stream, [])
        at = bisect_left(taken, (first, stop))
        if at < len(taken) and taken[at] == (first, stop):
            return
        if (at > 0 and taken[at - 1][1] > first) or (at < len(taken) and taken[at][0] < stop):
            raise Violation(f"at {now_s:g} s {stream[0]} used mask words {first} to {stop} for {stream[1]} twice")
        insort(taken, (first, stop))


# -- what is done ----------------------------------------------------------------------------------------------------


class AppliedOnce(Checker):
    """A block moves at most once for each distinct update that reached its party.

    `version` reads how often a party's block has moved; `updates` names the updates an event or its effects bring.
    """

    def __init__(
        self, version: Callable[[Party], int], updates: Callable[[Party, Event, Sequence[Effect]], Iterable[Any]]
    ) -> None:
        self.version, self.updates = version, updates
        self.known: dict[PartyName, set[Any]] = {}
        self.moved: dict[PartyName, int] = {}

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        known = self.known.setdefault(party.name, set())
        known.update(self.updates(party, event, effects))
        moved, before = self.version(party), self.moved.get(party.name, 0)
        self.moved[party.name] = moved
        if moved > len(known):
            raise Violation(f"at {now_s:g} s {party.name} has stepped {moved} times for {len(known)} distinct updates")
        if moved < before:
            raise Violation(f"at {now_s:g} s {party.name} went back from version {before} to {moved}")


class LagWithin(Checker):
    """No product older than `bound` versions is used. `lag` reads the largest lag a party has used so far."""

    def __init__(self, bound: int, lag: Callable[[Party], int]) -> None:
        self.bound, self.lag = bound, lag

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        lag = self.lag(party)
        if lag > self.bound:
            raise Violation(f"at {now_s:g} s {party.name} used a product {lag} versions old; the bound is {self.bound}")


class WithinBounds(Checker):
    """Buffers, counts and budgets stay within their bounds. `sizes` reads name -> (size, bound)."""

    def __init__(self, sizes: Callable[[Party], Mapping[str, tuple[float, float]]]) -> None:
        self.sizes = sizes

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        for name, (size, bound) in self.sizes(party).items():
            if size > bound:
                raise Violation(f"at {now_s:g} s {party.name} holds {size:g} of {name}; the bound is {bound:g}")


class CodecFaithful(Checker):
    """What is sent is one of the listed messages, and its bytes give back the same message."""

    def __init__(self, messages: Iterable[type[Message]]) -> None:
        self.codec = Codec(messages)

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        for body in sent_bodies(effects):
            frame = self.codec.encode(body)
            if self.codec.encode(self.codec.decode(frame)) != frame:
                raise Violation(f"at {now_s:g} s {party.name} sent {type(body).__name__}, which the codec changes")


class EndsOrSaysWhy(Checker):
    """Every party that is not gone finishes with a verdict."""

    def ended(self, outcome: Outcome, parties: Sequence[Party]) -> None:
        if outcome.stalled:
            raise Violation(f"the run did not end: {outcome.stalled}")
        mute = [name for name, finish in outcome.finished.items() if not finish.verdict]
        if mute:
            raise Violation(f"{', '.join(mute)} finished without a verdict")
