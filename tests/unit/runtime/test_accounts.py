"""What the simulator counts after the loop, beside the obvious way: one message and one event at a time."""

import hashlib
from array import array

import numpy as np
import pytest

from offbeat.message.codec import encode_state, payload_bytes
from offbeat.party.contract import Broadcast, Finish, Message, Received, Send, Started, Wake, Woken
from offbeat.party.linear_options import LinearOptions
from offbeat.runtime.simulator import CostModel, CrashAndRestore, Jitter, Link, Simulator
from offbeat.runtime.simulator import loop as simulator_loop
from offbeat.runtime.simulator.accounts import shape_of
from offbeat.runtime.simulator.faults import Duplicate, MessageLoss
from offbeat.testing.small_problem import build_parties, draw_problem, method_named

LINK = Link(2e-4, 1e6)


class Obvious:
    """A checker that sees every event and every message, and counts at once."""

    def __init__(self, costs):
        self.costs, self.last = costs, {}
        self.sent, self.transit_s, self.until_s, self.timeline = {}, {}, {}, []
        self.listener_free, self.kinds = {}, {}
        self.times, self.codes = array("d"), array("L")
        self.index = {}

    def handled(self, now_s, party, event, effects):
        index = self.index.setdefault(party.name, len(self.index))
        kind = type(event.body) if type(event) is Received else type(event)
        self.times.append(now_s)
        self.codes.append(index << 16 | self.kinds.setdefault(kind, len(self.kinds)))
        for effect in effects:
            if isinstance(effect, Send | Broadcast):
                self._sent(now_s, party.name, effect)

    def _sent(self, now_s, sender, effect):
        receivers = effect.to if isinstance(effect, Broadcast) else (effect.to,)
        size = payload_bytes(effect.body)
        row = self.sent.setdefault(sender, {}).setdefault(type(effect.body).__name__, [0, 0])
        row[0] += len(receivers)
        row[1] += len(receivers) * size
        depart = now_s
        factor = self.costs.serve_factor(sender)
        if isinstance(effect, Send) and factor and effect.samples:
            depart = max(now_s, self.listener_free.get(sender, 0.0))
            depart += factor * self.costs.work_s(effect.samples, effect.nonzeros)
            self.listener_free[sender] = depart
        for receiver in receivers:
            arrival = max(depart + self.costs.link.transit_s(size), self.last.get((sender, receiver), 0.0))
            self.last[sender, receiver] = arrival
            self._on_its_way(depart, arrival, sender, receiver, effect.body)

    def _on_its_way(self, depart, arrival, sender, receiver, body):
        for party in (sender, receiver):
            reached = self.until_s.get(party, 0.0)
            if arrival > reached:
                self.transit_s[party] = self.transit_s.get(party, 0.0) + arrival - max(depart, reached)
                self.until_s[party] = arrival
        self.timeline.append((depart, arrival, sender, receiver, type(body).__name__))

    def ended(self, outcome, parties):
        pass

    def digest(self, parties):
        digest = hashlib.sha256(self.times.tobytes())
        digest.update(self.codes.tobytes())
        for party in parties:
            digest.update(encode_state(party.snapshot()))
        return digest.hexdigest()


CASES = {
    "equal delays": (CostModel(link=Link(2e-4), slow={"party1": 3.0}), ()),
    "narrow links": (CostModel(link=LINK), ()),
    "answers cost": (CostModel(link=LINK, serving="slow", slow={"party0": 2.0}), ()),
    "two lanes": (CostModel(link=Link(2e-4), lanes=2), ()),
    "faults": (CostModel(link=LINK, jitter=Jitter("lognormal")), (MessageLoss(0.1, 0.2), Duplicate(0.1, 0.2))),
    "a crash": (CostModel(link=LINK), (CrashAndRestore("party1", 0.01, 0.03),)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ["afsaga-vp", "vfb2-svrg"])
def test_tallies_timeline_and_digest_are_those_of_the_obvious_way(case, method, monkeypatch):
    monkeypatch.setattr(simulator_loop, "ENTRIES", 500)  # rows are brought into the sums many times
    costs, faults = CASES[case]
    problem = draw_problem(2, parties=4, rows=100)
    options = LinearOptions(method=method_named(method).direction, passes=8.0, batch=16)
    parties = build_parties(method, problem, options, 1)
    watch = Obvious(costs)
    watch.index = {party.name: i for i, party in enumerate(parties)}
    simulator = Simulator(seed=3, costs=costs, faults=faults, checkers=[watch])
    looks = []

    def look(now_s):
        looks.append((simulator.bytes_sent, sum(row[1] for kinds in watch.sent.values() for row in kinds.values())))
        return 0.005

    outcome = simulator.run(parties, look)
    assert len(looks) > 2 and all(told == counted for told, counted in looks)
    assert {name: tally.sent for name, tally in outcome.tallies.items()} == watch.sent
    assert outcome.events == len(watch.times)
    assert outcome.digest == watch.digest(parties)
    if faults:  # how long a message travels is the deliveries' affair
        assert all(left < came for left, came, *_ in outcome.timeline)
        return
    for name, tally in outcome.tallies.items():
        assert tally.transit_s == pytest.approx(watch.transit_s[name], rel=1e-12)
    assert len(outcome.timeline) == min(3000, len(watch.timeline))
    for told, counted in zip(outcome.timeline, watch.timeline, strict=False):
        assert told[:2] == pytest.approx(counted[:2], rel=1e-12)
        assert told[2:] == counted[2:]


class Mixed(Message, frozen=True):
    """Of every shape.

    Reveals: nothing.
    """

    words: np.ndarray
    more: np.ndarray
    names: tuple[str, ...] = ()


class Plain(Message, frozen=True):
    """Numbers.

    Reveals: nothing.
    """

    a: int
    b: float
    c: bool


class One(Message, frozen=True):
    """Numbers and an array.

    Reveals: nothing.
    """

    a: int
    words: np.ndarray


@pytest.mark.parametrize(
    "body", [Plain(1, 2.0, True), One(1, np.zeros(5)), Mixed(np.zeros(2), np.zeros((3, 2), np.float32), ("ab", "c"))]
)
def test_sizes_are_found_quickly_and_right(body):
    fixed, measure = shape_of(type(body))
    assert fixed + (measure(body) if measure is not None else 0) == payload_bytes(body)


class Early:
    """Finishes at once, or speaks on to those who have."""

    def __init__(self, name, others, ends):
        self.name, self.others, self.left = name, others, ends

    def handle(self, event):
        if isinstance(event, Received):
            return []
        self.left -= 1
        said = [Broadcast(self.others, Plain(1, 2.0, True))] if isinstance(event, Woken | Started) else []
        return [*said, Finish("done") if self.left <= 0 else Wake(1e-5)]

    def snapshot(self):
        return {"left": self.left}

    def restore(self, state):
        pass


def test_what_is_said_to_who_has_finished_is_sent_but_not_handled():
    names = ("ana", "bo", "cy")
    parties = [
        Early(name, tuple(n for n in names if n != name), ends) for name, ends in zip(names, (1, 4, 9), strict=True)
    ]
    watch = Obvious(CostModel())
    watch.index = {name: i for i, name in enumerate(names)}
    outcome = Simulator(checkers=[watch]).run(parties)
    assert {name: tally.sent["Plain"] for name, tally in outcome.tallies.items()} == {
        "ana": [2, 48],
        "bo": [8, 192],
        "cy": [18, 432],
    }
    assert (outcome.events, outcome.digest) == (len(watch.times), watch.digest(parties))
