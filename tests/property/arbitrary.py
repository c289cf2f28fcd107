"""Messages with any fields, and runs that stop in the middle: what may then reach a party, in whatever order."""

from collections import deque
from functools import cache
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from offbeat.errors import UnexpectedEvent
from offbeat.message.codec import Codec, encode_state
from offbeat.party.contract import (
    Broadcast,
    Compute,
    Computed,
    Finish,
    Observe,
    PeerBack,
    PeerLost,
    Received,
    Send,
    Started,
    Wake,
    Woken,
)


def fitting(fill, kind):
    """The number, or another where an array of this kind cannot hold it."""
    kind = np.dtype(kind)
    if kind.kind == "f":
        return np.inf if kind.itemsize == 4 and fill > 1e30 else fill
    return max(fill, 0 if kind.kind == "u" else -1) if abs(fill) < 2**60 else 7


PARTS_MOST = 40
LARGE = [2**32, 2**40, -(2**40), 2**62, 2**63 - 1, -(2**63)]
SMALL = st.integers(-8, 70) | st.sampled_from(LARGE)
FILLS = st.integers(-1, 5) | st.sampled_from([2**40, np.nan, np.inf, 1e300])
ARRAYS = st.builds(
    lambda kind, length, fill: np.full(length, fitting(fill, kind), kind),
    st.sampled_from(["<f8", "<u8", "<i8", "<f4"]),
    st.sampled_from([0, 1, 4, 15, 16, 30, 60]) | st.tuples(st.integers(0, 4), st.integers(0, 4)),
    FILLS,
)


fields_of = cache(msgspec.structs.fields)
"""Looked up once a type: it reads annotations each time. Strategies are kept, too: a new one is checked at its first
draw, which took most of the time of these tests."""


@cache
def fields(names) -> dict[Any, st.SearchStrategy[Any]]:
    return {
        int: SMALL,
        float: st.floats(),
        bool: st.booleans(),
        str: st.sampled_from(names),
        bytes: st.sampled_from([b"", b"x", bytes(32), bytes(range(32))]),
        np.ndarray: ARRAYS,
        tuple[str, ...]: st.lists(st.sampled_from(names), max_size=5).map(tuple),
        tuple[int, ...]: st.lists(SMALL, max_size=3).map(tuple),
    }


@cache
def bodies(messages, names):
    """Any message of these types."""
    drawn = fields(names)
    return st.one_of([st.builds(kind, *[drawn[field.type] for field in fields_of(kind)]) for kind in messages])


@cache
def anything(messages, names):
    """Events that need not fit to what has happened."""
    peers = st.sampled_from(names)
    return [
        st.builds(Received, peers, bodies(messages, names)),
        st.builds(Computed, st.sampled_from([-1, 0, 10**6])),
        st.builds(PeerLost, peers),
        st.builds(PeerBack, peers),
        st.just(Started(resumed=True)),
    ]


@cache
def woken(tokens):
    return st.builds(Woken, st.sampled_from(sorted(tokens)) | st.integers(-6, 3))


class Letters:
    """Messages as they are in a whole run, sent to the right party; their parts may be put together in new ways."""

    def __init__(self, build, messages):
        self.parts, self.senders = {}, {}
        self.names = tuple(party.name for party in build())
        self.kinds = messages
        self._to = {}
        run = Middle(build, 3000, timers=False)
        for name, events in run.seen.items():
            for event in events:
                if isinstance(event, Received):
                    self._note(name, event)

    def _note(self, name, event):
        self.senders.setdefault(name, {}).setdefault(event.sender, set()).add(type(event.body))
        for field in fields_of(type(event.body)):
            value = getattr(event.body, field.name)
            kept = self.parts.setdefault(field.name, [])
            if len(kept) < PARTS_MOST if field.type is np.ndarray else value not in kept:
                kept.append(value)

    def to(self, name):
        """A message with parts of the right kind, from somebody who sends such ones to this party."""
        if name not in self._to:
            self._to[name] = self._choices(name)
        return self._to[name]

    def _choices(self, name):
        choices = [
            st.builds(Received, st.just(sender), self._body(kind))
            for sender, kinds in self.senders.get(name, {}).items()
            for kind in sorted(kinds, key=lambda kind: kind.__name__)
        ]
        return st.one_of(choices) if choices else st.nothing()

    def _body(self, kind):
        drawn = fields((*self.names, "nobody"))
        return st.builds(kind, *[self._part(field, drawn[field.type]) for field in fields_of(kind)])

    def _part(self, field, anything):
        known = self.parts.get(field.name, [])
        if not known:
            return anything
        near = [value + 1 for value in known[-3:]] if field.type is int else []
        right = st.sampled_from([*known, *near])
        return st.one_of(right, right, right, anything)


@st.composite
def changed(draw, known, names):
    """A message that did arrive, with one field changed or from another sender."""
    event = draw(st.sampled_from(known))
    names_of_fields = [field.name for field in fields_of(type(event.body))]
    at = draw(st.sampled_from([*names_of_fields, "sender"]))
    if at == "sender":
        return Received(draw(st.sampled_from(names)), event.body)
    field = next(field for field in fields_of(type(event.body)) if field.name == at)
    value = draw(_changed_array(getattr(event.body, at)) if field.type is np.ndarray else fields(names)[field.type])
    return Received(event.sender, msgspec.structs.replace(event.body, **{at: value}))


def _changed_array(array):
    """The same array with one number changed, twice as long, of another type, or anything else."""

    def with_number(fill):
        other = array.copy()
        other.flat[0] = fitting(fill, array.dtype)
        return other

    shaped = st.sampled_from([np.concatenate([array, array]), array[:0], array[None], array.astype(np.uint8)])
    return (shaped | ARRAYS | FILLS.map(with_number)) if array.size else (shaped | ARRAYS)


class Middle:
    """A run after `steps` events in good order. `timers`: whether timers ring. Then one party gets what it may get."""

    def __init__(self, build, steps, timers):
        self.parties = {party.name: party for party in build()}
        self.queue = deque((name, Started()) for name in self.parties)
        self.seen = {name: [] for name in self.parties}
        self.tokens = {name: {0} for name in self.parties}
        self.timers = timers
        for _ in range(steps):
            if self.queue:
                self.handle(*self.queue.popleft())

    def handle(self, name, event):
        effects = self.parties[name].handle(event)
        self.seen[name].append(event)
        if isinstance(event, Started) and event.resumed:
            self.queue = deque(item for item in self.queue if item[0] != name or not isinstance(item[1], Computed))
        for effect in effects:
            self._act(name, effect)
        return effects

    def _act(self, name, effect):
        if isinstance(effect, Send | Broadcast):
            to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
            self.queue += [(peer, Received(name, effect.body)) for peer in to if peer in self.parties]
        elif isinstance(effect, Compute):
            self.queue.append((name, Computed(effect.ticket, effect.job() if effect.job else None)))
        elif isinstance(effect, Wake):
            self.tokens[name].add(effect.token)
            if self.timers:
                self.queue.append((name, Woken(effect.token)))

    def events(self, name, letters):
        """What may reach the party next: what is on its way (by its place), what has come before, the same changed, and
        anything else."""
        names = (*self.parties, "nobody")
        coming = self.coming(name)
        known = [event for event in (*coming, *self.seen[name]) if not isinstance(event, Started)]
        changeable = [e for e in known if isinstance(e, Received) and fields_of(type(e.body))]
        choices = [*anything(letters.kinds, names), woken(frozenset(self.tokens[name])), *[letters.to(name)] * 3]
        choices += [st.integers(0, len(coming) - 1)] * 2 if coming else []
        choices += [st.sampled_from(known)] if known else []
        choices += [changed(changeable, names)] * 3 if changeable else []
        return st.one_of(choices)

    def coming(self, name):
        return [event for to, event in self.queue if to == name]

    def work(self, name):
        """The places of what the party has asked to be computed."""
        return [place for place, event in enumerate(self.coming(name)) if isinstance(event, Computed)]

    def pop(self, name, place):
        at = [i for i, (to, _) in enumerate(self.queue) if to == name][place]
        event = self.queue[at][1]
        del self.queue[at]
        return event


def written(effects, codec):
    """Effects as values that can be compared."""
    kinds = {
        Send: lambda e: (e.to, codec.encode(e.body)),
        Broadcast: lambda e: (e.to, codec.encode(e.body)),
        Compute: lambda e: (e.ticket, e.samples, e.nonzeros),
        Wake: lambda e: (e.after_s, e.token),
        Observe: lambda e: (e.name, repr(e.value)),
        Finish: lambda e: (e.verdict, e.reason),
    }
    return [(type(effect).__name__, *kinds[type(effect)](effect)) for effect in effects]


def check_refusals(data, build, letters, name, *, timers, after=lambda party, effects: None):
    """A party takes an event, or refuses a message and names its sender. What was refused leaves no trace: a twin that
    never got it does the same from then on. `after` looks at the party and its effects."""
    codec, steps = Codec(letters.kinds), data.draw(st.integers(0, 300))
    one, two = Middle(build, steps, timers), Middle(build, steps, timers)
    party, ended = one.parties[name], False

    def both(event, same):
        before = encode_state(party.snapshot())
        try:
            effects = one.handle(name, event)
        except UnexpectedEvent as refusal:
            assert isinstance(event, Received) and event.sender in str(refusal), refusal
            assert encode_state(party.snapshot()) == before
            return False
        after(party, effects)
        assert written(two.handle(name, same), codec) == written(effects, codec)
        encode_state(party.snapshot())
        return any(isinstance(effect, Finish) for effect in effects)

    for _ in range(data.draw(st.integers(1, 10))):
        event = same = data.draw(one.events(name, letters))
        if isinstance(event, int):
            event, same = one.pop(name, event), two.pop(name, event)
        ended = both(event, same)
        while not ended and one.work(name) and data.draw(st.sampled_from([True, True, False])):
            ended = both(one.pop(name, one.work(name)[0]), two.pop(name, two.work(name)[0]))
        if ended:
            break
    assert encode_state(two.parties[name].snapshot()) == encode_state(party.snapshot())
