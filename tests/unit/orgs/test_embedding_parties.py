"""VAFL's parties as organisations run them: two under one roof, and rows that are watched."""

import numpy as np
import pytest

from offbeat.algorithms.vafl.messages import Ask, Refresh, Upload
from offbeat.message.codec import decode_state, encode_state
from offbeat.orgs.guards import BatchNamed, GuardedEmbedding, WatchedRows
from offbeat.orgs.train_embedding import CombinedParty
from offbeat.party.contract import (
    Broadcast,
    Compute,
    Computed,
    Finish,
    Observe,
    Received,
    Send,
    Started,
    Wake,
    Woken,
)

ROWS = np.array([2, 0])
TOKENS = [bytes([i]) * 16 for i in range(4)]


class Script:
    """A party that answers each kind of event with given effects, and remembers what it heard."""

    def __init__(self, name, **effects):
        self.name, self.effects, self.heard = name, effects, []

    def handle(self, event):
        self.heard.append(event)
        return list(self.effects.get(type(event).__name__, []))

    def snapshot(self):
        return {"heard": len(self.heard)}

    def restore(self, state):
        self.heard = [None] * state["heard"]


def house(**client):
    server = Script(
        "bank",
        Started=[Broadcast(("own", "shop"), Refresh(1, ROWS)), Wake(1.0, -2), Compute(5)],
        Computed=[Finish("passes", "made")],
    )
    own = Script("own", **{"Received": [Send("bank", Refresh(2, ROWS)), Wake(2.0, -1), Compute(5)], **client})
    return CombinedParty([server, own]), server, own


def test_what_is_said_at_home_stays_at_home_and_the_rest_leaves():
    both, server, own = house()
    effects = both.handle(Started())
    assert Broadcast(("shop",), Refresh(1, ROWS)) in effects
    assert [type(e) for e in own.heard] == [Started, Received] and own.heard[1].sender == "bank"
    assert [type(e) for e in server.heard] == [Started, Received] and server.heard[1].sender == "own"
    assert not any(isinstance(e, Send) for e in effects)


def test_tickets_and_tokens_find_their_way_back():
    both, server, own = house()
    effects = both.handle(Started())
    tickets = [e.ticket for e in effects if isinstance(e, Compute)]
    tokens = [e.token for e in effects if isinstance(e, Wake)]
    assert len(set(tickets)) == len(set(tokens)) == 2
    for ticket in tickets:
        both.handle(Computed(ticket))
    for token in tokens:
        both.handle(Woken(token))
    assert server.heard[2:] == [Computed(5), Woken(-2)] and own.heard[2:] == [Computed(5), Woken(-1)]


def test_the_house_ends_when_its_first_member_does():
    both, _, _ = house(Started=[Finish("peer-lost", "nobody answers")])
    assert not any(isinstance(e, Finish) for e in both.handle(Started()))
    assert both.handle(Computed(0)) == [Finish("passes", "made")]


def test_a_house_goes_on_from_its_snapshot():
    both, _, _ = house()
    both.handle(Started())
    again, server, own = house()
    again.restore(decode_state(encode_state(both.snapshot())))
    assert (len(server.heard), len(own.heard)) == (2, 2)


# -- rows ------------------------------------------------------------------------------------------------------------


def upload(release):
    return Upload(release, 0, -1, True, ROWS, np.zeros((2, 1)))


def guarded(cap=0, tokens=TOKENS, **effects):
    rows = WatchedRows("shop", tokens, reserve=lambda needed: 0 if cap and needed > cap else needed, cap=cap)
    return GuardedEmbedding(Script("shop", **effects), rows)


def test_rows_are_named_before_they_travel_and_compared_when_they_arrive():
    named, sent = guarded(Started=[Send("bank", upload(1))]).handle(Started())
    assert isinstance(named.body, BatchNamed) and named.to == ("bank",) and sent.body.release == 1
    bank = guarded()
    assert bank.handle(Received("shop", named.body)) == [] and bank.handle(Received("shop", sent.body)) == []
    misjoined = guarded(tokens=TOKENS[::-1])
    misjoined.handle(Received("shop", named.body))
    assert [type(e) for e in misjoined.handle(Received("shop", sent.body))] == [Observe, Finish]


@pytest.mark.parametrize("rows", [ROWS, np.array([9]), np.array([-1])])
def test_rows_without_a_name_or_outside_the_table_end_the_run(rows):
    (_, finish) = guarded().handle(Received("bank", Ask(1, False, rows)))
    assert finish.verdict == "misaligned" and not guarded().inner.heard


def test_a_row_leaves_no_oftener_than_its_owner_allows_and_repeats_do_not_count():
    party = guarded(cap=2, Woken=[Send("bank", upload(7))])
    for _ in range(5):
        assert len(party.handle(Woken())) == 2
    assert party.rows.asked.tolist() == [1, 0, 1, 0]
    party.inner.effects["Woken"] = [Send("bank", upload(8)), Send("bank", upload(9))]
    *_, noted, finish = party.handle(Woken())
    assert isinstance(noted, Observe) and finish.verdict == "row-cap" and "row_cap" in finish.reason
    again = guarded(cap=2)
    again.restore(decode_state(encode_state(party.snapshot())))
    assert again.rows.asked.tolist() == party.rows.asked.tolist()
