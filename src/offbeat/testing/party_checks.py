"""What every party must do, whatever its method. Use it for yours:

    check_party(lambda: my_method.build(...))

It runs the parties in a calm simulation, again and again, and asks:

- are all effects the contract's, and do they go to parties that exist;
- does a snapshot pass through the codec, and stay as it was while the party goes on;
- does a party made anew and restored from that snapshot have the same snapshot;
- does a run in which parties are replaced that way, at points drawn from a seed, end in the same state, bit for bit;
- is what was sent never written to afterwards, by its sender or by a receiver.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np

from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast, Effect, Event, Message, Party, PartyName, Send, State
from offbeat.randomness import stream
from offbeat.runtime.contract import Outcome
from offbeat.runtime.simulator import CostModel, Simulator

Build = Callable[[], Sequence[Party]]
EFFECTS = get_args(Effect)
DEFAULT_COSTS = CostModel()


def check_party(build: Build, *, restarts: int = 6, seed: int = 0, costs: CostModel = DEFAULT_COSTS) -> Outcome:
    """Raise AssertionError where the contract is broken; give back the outcome of the undisturbed run.

    `build` must give equal parties each time: seed everything, keys included."""
    plain = _run(build, [], costs)
    rng = stream(seed, "restarts")
    points = sorted({int(point) for point in rng.integers(0, max(plain.events, 1), restarts)})
    again = _run(build, points, costs)
    assert again.digest == plain.digest, (
        f"The run ended in another state when parties were replaced by restored ones after events {points}: something "
        "that matters is missing from a snapshot, or is not put back."
    )
    return plain


def _run(build: Build, points: Sequence[int], costs: CostModel) -> Outcome:
    parties = list(build())
    names = [party.name for party in parties]
    watched = _Watch(names, points, build)
    return Simulator(costs=costs).run([_CheckedParty(party, watched) for party in parties])


class _Watch:
    """What the watched parties of one run share: how many events there were, and where to restart."""

    def __init__(self, names: Sequence[PartyName], points: Sequence[int], build: Build) -> None:
        self.names, self.points, self.build = set(names), set(points), build
        self.events = 0

    def fresh(self, name: PartyName) -> Party:
        return next(party for party in self.build() if party.name == name)


class _CheckedParty:
    """A party behind glass."""

    def __init__(self, party: Party, watch: _Watch) -> None:
        self.name, self._party, self._watch = party.name, party, watch
        assert isinstance(party, Party), f"{party!r} lacks a name, handle, snapshot or restore"

    def handle(self, event: Event) -> list[Effect]:
        watch = self._watch
        if watch.events in watch.points:
            self._restart(event)
        watch.events += 1
        effects = self._party.handle(event)
        for effect in effects:
            self._check(effect)
        return effects

    def _restart(self, event: Event) -> None:
        kept = self._party.snapshot()
        before = encode_state(kept)
        fresh = self._watch.fresh(self.name)
        fresh.restore(decode_state(before))
        assert encode_state(fresh.snapshot()) == before, f"{self.name} has another snapshot after restoring its own"
        self._party.handle(event)
        assert encode_state(kept) == before, f"a snapshot of {self.name} changed when the party went on"
        self._party = fresh

    def _check(self, effect: Effect) -> None:
        assert type(effect) in EFFECTS, f"{self.name} returned {effect!r}, which is no effect"
        if isinstance(effect, (Send, Broadcast)):
            to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
            assert set(to) <= self._watch.names, f"{self.name} sent {type(effect.body).__name__} to {to}"
            assert isinstance(effect.body, Message), f"{self.name} sent {effect.body!r}, which is no message"
            _freeze(effect.body)

    def snapshot(self) -> State:
        return self._party.snapshot()

    def restore(self, state: State) -> None:
        self._party.restore(state)


def _freeze(body: Message) -> None:
    """Whoever writes to an array that has been sent gets an error there and then."""
    values: list[Any] = [getattr(body, field) for field in body.__struct_fields__]
    for value in values:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
