"""Any message, at any moment, from anybody: a party takes it, leaves it, or raises one of our own errors."""

from functools import lru_cache

import pytest
from arbitrary import bodies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offbeat.algorithms.methods import LINEAR
from offbeat.errors import OffbeatError
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import (
    Broadcast,
    Compute,
    Computed,
    PeerBack,
    PeerLost,
    Received,
    Send,
    Started,
    Wake,
    Woken,
)
from offbeat.party.linear_options import LinearOptions
from offbeat.testing.small_problem import build_parties, draw_problem, method_named

PROBLEM = draw_problem(1, parties=4, rows=60)
NAMES = (*PROBLEM.names, "nobody")


def events(method):
    peers = st.sampled_from(NAMES)
    return st.one_of(
        st.builds(Received, peers, bodies(method_named(method).messages, NAMES)),
        st.builds(Computed, st.integers(0, 50)),
        st.builds(Woken, st.integers(0, 3)),
        st.builds(PeerLost, peers),
        st.builds(PeerBack, peers),
    )


def build(method, **options):
    chosen = LinearOptions(method=method_named(method).direction, batch=16, passes=8.0, **options)
    return {party.name: party for party in build_parties(method, PROBLEM, chosen, 1)}


@lru_cache(maxsize=64)
def state_after(method, steps):
    """One party's snapshot after so many events of an orderly run."""
    parties = build(method)
    queue = [(name, Started()) for name in parties]
    for _ in range(steps):
        if not queue:
            break
        name, event = queue.pop(0)
        for effect in parties[name].handle(event):
            if isinstance(effect, (Send, Broadcast)):
                to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
                queue += [(peer, Received(name, effect.body)) for peer in to]
            elif isinstance(effect, Compute):
                queue.append((name, Computed(effect.ticket)))
            elif isinstance(effect, Wake) and steps % 2:
                queue.append((name, Woken(effect.token)))
    return {name: encode_state(party.snapshot()) for name, party in parties.items()}


@pytest.mark.parametrize("method", LINEAR)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_anything_is_taken_left_or_refused_with_a_typed_error(method, data):
    name = data.draw(st.sampled_from(PROBLEM.names))
    on_loss = data.draw(st.sampled_from(["wait", "stop", "continue"]))
    party = build(method, on_loss=on_loss)[name]
    party.restore(decode_state(state_after(method, data.draw(st.sampled_from([0, 10, 40, 150, 400, 401])))[name]))
    for event in data.draw(st.lists(events(method), min_size=1, max_size=12)):
        try:
            party.handle(event)
        except OffbeatError:
            break
    encode_state(party.snapshot())
