"""What every runtime must do, whatever carries its messages. Use it for yours:

    check_runtime(lambda: MyRuntime(codec=Codec(MESSAGES), ...))

A chain of small parties passes a number round and round; each also works, waits and observes. Nothing here depends
on how long anything takes, so the same check serves virtual time and real networks.
"""

from collections.abc import Callable, Sequence

import numpy as np

from offbeat.party import contract
from offbeat.runtime.contract import Outcome, Runtime

LAPS = 5


class Baton(contract.Message, frozen=True):
    """A number that goes round, and an array to be carried unchanged.

    Reveals: nothing; it is for tests.
    """

    lap: int
    numbers: np.ndarray


class Over(contract.Message, frozen=True):
    """The last lap is run.

    Reveals: nothing; it is for tests.
    """


MESSAGES = (Baton, Over)


class Runner:
    """Takes the baton, works on it, waits a moment, passes it on; the first one counts laps and ends the race."""

    def __init__(self, name: contract.PartyName, roster: tuple[contract.PartyName, ...]) -> None:
        self.name, self.roster = name, roster
        self.lap = self.events = 0
        self.numbers = np.zeros(3)

    def handle(self, event: contract.Event) -> list[contract.Effect]:
        self.events += 1
        match event:
            case contract.Started():
                return self._work(0, np.zeros(3)) if self.name == self.roster[0] else []
            case contract.Received(body=Baton(lap=lap, numbers=numbers)):
                return self._work(lap, numbers) if lap >= self.lap else []
            case contract.Computed(ticket=ticket, result=result):
                assert ticket == self.lap, f"{self.name} asked for ticket {self.lap} and was given {ticket}"
                self.numbers = result
                return [contract.Wake(1e-3, token=self.lap)]
            case contract.Woken(token=token):
                assert token == self.lap, f"{self.name} asked for token {self.lap} and was given {token}"
                return self._pass_on()
            case contract.Received(body=Over()):
                return [contract.Finish("over", "the race is run")]
            case _:
                return []

    def _work(self, lap: int, numbers: np.ndarray) -> list[contract.Effect]:
        self.lap = lap
        return [contract.Compute(lap, samples=1, nonzeros=3, job=lambda: numbers + 1.0)]

    def _pass_on(self) -> list[contract.Effect]:
        following = self.roster[(self.roster.index(self.name) + 1) % len(self.roster)]
        if following != self.roster[0]:
            return [contract.Observe("lap", self.lap), contract.Send(following, Baton(self.lap, self.numbers))]
        if self.lap < LAPS:
            return [contract.Observe("lap", self.lap), contract.Send(following, Baton(self.lap + 1, self.numbers))]
        others = tuple(name for name in self.roster if name != self.name)
        return [
            contract.Observe("total", self.numbers.tolist()),
            contract.Broadcast(others, Over()),
            contract.Finish("over", "the race is run"),
        ]

    def snapshot(self) -> contract.State:
        return {"lap": self.lap, "events": self.events, "numbers": self.numbers.copy()}

    def restore(self, state: contract.State) -> None:
        self.lap, self.events, self.numbers = state["lap"], state["events"], state["numbers"].copy()


def runners(count: int = 3) -> list[contract.Party]:
    roster = tuple(f"runner{i}" for i in range(count))
    return [Runner(name, roster) for name in roster]


def check_runtime(make: Callable[[], Runtime], *, parties: int = 3) -> Outcome:
    """Raise AssertionError where the runtime breaks the contract; give back the outcome of the race."""
    racing = runners(parties)
    outcome = make().run(racing)
    _check_end(outcome, racing)
    _check_observations(outcome, parties)
    _check_tallies(outcome, racing)
    return outcome


def _check_end(outcome: Outcome, racing: Sequence[contract.Party]) -> None:
    assert not outcome.stalled, f"the race did not end: {outcome.stalled}"
    assert outcome.clock in ("virtual", "wall"), outcome.clock
    assert outcome.time_s > 0, "no time has passed"
    verdicts = {name: finish.verdict for name, finish in outcome.finished.items()}
    assert verdicts == {party.name: "over" for party in racing}, verdicts
    assert not outcome.lost, f"nobody was lost, yet {outcome.lost} are said to be"


def _check_observations(outcome: Outcome, parties: int) -> None:
    totals = [value for _, _, name, value in outcome.observations if name == "total"]
    worked = float((LAPS + 1) * parties)
    assert totals == [[worked] * 3], f"every runner adds one on every lap: {worked} expected, {totals} observed"
    laps = [(party, value) for _, party, name, value in outcome.observations if name == "lap"]
    assert len(set(laps)) == len(laps) == (LAPS + 1) * parties - 1, "an observation was lost or doubled"
    assert all(0 <= time <= outcome.time_s + 1e-9 for time, *_ in outcome.observations), "an observation out of time"


def _check_tallies(outcome: Outcome, racing: Sequence[contract.Party]) -> None:
    assert set(outcome.tallies) == {party.name for party in racing}
    sent = sum(tally.sent.get("Baton", [0, 0])[0] for tally in outcome.tallies.values())
    assert sent == (LAPS + 1) * len(racing) - 1, f"{sent} batons were passed"
    for tally in outcome.tallies.values():
        assert all(size >= 32 * count for kind, (count, size) in tally.sent.items() if kind == "Baton"), tally.sent
