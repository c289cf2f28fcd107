"""What the simulator's loop costs beside what parties do: nanoseconds per event of parties that do nothing.

    python benchmarks/simulator_loop.py [updates]

Eight hollow parties play the messages of one VFB2 update again and again: the first asks the others for shares, they
answer, it computes, sends the derivative to all, and everybody computes. That is 29 events an update. Bodies are made
once, so a party's own work is a dictionary lookup; the same calls without a simulator are measured beside it.
"""

import sys
from time import process_time_ns

import numpy as np

from offbeat.party.contract import Broadcast, Compute, Computed, Finish, Message, Received, Send, Started
from offbeat.runtime.simulator import CostModel, Link, Simulator

PARTIES, ROWS = 8, 64
NAMES = tuple(f"party{i}" for i in range(PARTIES))


class Ask(Message, frozen=True, gc=False):
    """A request.

    Reveals: nothing; it is for measuring.
    """

    first: int
    start: int
    stop: int
    epoch: int


class Share(Message, frozen=True, gc=False):
    """An answer.

    Reveals: nothing; it is for measuring.
    """

    first: int
    words: np.ndarray
    version: int
    epoch: int


class Derivative(Message, frozen=True, gc=False):
    """What all step by.

    Reveals: nothing; it is for measuring.
    """

    number: int
    start: int
    values: np.ndarray
    version: int


class Asker:
    def __init__(self, updates: int) -> None:
        self.name, self.left, self.missing = NAMES[0], updates, 0
        self.work = [Compute(1, ROWS, ROWS * 10)]
        self.ask = Broadcast(NAMES[1:], Ask(0, 0, ROWS, 0))
        self.both = [Broadcast(NAMES[1:], Derivative(0, 0, np.zeros(ROWS), 0)), self.ask]
        self.none: list = []

    def handle(self, event):
        kind = type(event)
        if kind is Received:
            self.missing -= 1
            return self.work if self.missing == 0 else self.none
        if kind is Computed:
            self.left -= 1
            self.missing = PARTIES - 1
            return self.both if self.left else [self.both[0], Finish("done")]
        self.missing = PARTIES - 1
        return [self.ask]

    def snapshot(self):
        return {}

    def restore(self, state):
        pass


class Answerer:
    def __init__(self, name: str, updates: int) -> None:
        self.name, self.left = name, updates
        self.none: list = []
        share = [Send(NAMES[0], Share(0, np.zeros(ROWS, np.uint64), 0, 0), ROWS, ROWS * 10)]
        self.answers = {Ask: share, Derivative: [Compute(1, ROWS, ROWS * 10)]}

    def handle(self, event):
        if type(event) is Received:
            return self.answers[type(event.body)]
        if type(event) is Computed:
            self.left -= 1
            return self.none if self.left else [Finish("done")]
        return self.none

    def snapshot(self):
        return {}

    def restore(self, state):
        pass


def hollow(updates):
    return [Asker(updates), *(Answerer(name, updates) for name in NAMES[1:])]


def bare(updates):
    """The same calls of `handle` in a loop, with events that are made anew as the simulator makes them."""
    asker, *others = hollow(updates)
    asker.handle(Started())
    ask, share, told = asker.ask.body, others[0].answers[Ask][0].body, asker.both[0].body
    for _ in range(updates):
        asked, derived = Received(NAMES[0], ask), Received(NAMES[0], told)
        for other in others:
            other.handle(asked)
        for other in others:
            asker.handle(Received(other.name, share))
        asker.handle(Computed(1))
        for other in others:
            other.handle(derived)
        for other in others:
            other.handle(Computed(1))
    return updates * (4 * (PARTIES - 1) + 1)


def nanoseconds(what, *arguments):
    """The best of nine, per event, of this process alone."""
    best = float("inf")
    for _ in range(9):
        begin = process_time_ns()
        events = what(*arguments)
        best = min(best, (process_time_ns() - begin) / events)
    return best


def simulated(updates, **setting):
    outcome = Simulator(**setting).run(hollow(updates))
    assert not outcome.stalled, outcome.stalled
    return outcome.events


def main(updates: int = 3000) -> None:
    calls = nanoseconds(bare, updates)
    print(f"{'the parties alone':<44} {calls:6.0f} ns an event")
    slow = CostModel(slow={NAMES[2]: 4.0})
    narrow = CostModel(link=Link(1e-4, 1e7))
    for label, setting in [
        ("simulator", {}),
        ("simulator, no digest", {"digest": False}),
        ("simulator, one slow party", {"costs": slow}),
        ("simulator, narrow links", {"costs": narrow}),
    ]:
        total = nanoseconds(lambda setting=setting: simulated(updates, **setting))
        print(f"{label:<44} {total:6.0f} ns an event, {total - calls:6.0f} of them the loop's")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
