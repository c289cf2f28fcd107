"""Invariants that are watched while a simulated run goes on. A violation raises at the event that caused it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from offbeat.party.contract import Broadcast, Effect, Event, Party, Send
from offbeat.runtime.contract import Outcome


class Violation(AssertionError):
    """Something that must never happen, happened."""


class Checker(Protocol):
    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None: ...

    def ended(self, outcome: Outcome, parties: Sequence[Party]) -> None: ...


def sent_bodies(effects: Sequence[Effect]) -> list[object]:
    return [effect.body for effect in effects if isinstance(effect, (Send, Broadcast))]


class NothingRawLeaves:
    """No payload holds a party's feature values, weights or unmasked shares, nor (where labels are secret) labels.

    A float payload is compared with every forbidden column vector by value: a run of three or more equal numbers in
    a row is a leak. Masked words are uniform integers and never match.
    """

    def __init__(self, forbidden: dict[str, np.ndarray]) -> None:
        self.forbidden = {
            name: {
                value
                for value in np.asarray(values, dtype=np.float64).ravel().tolist()
                if value not in (0.0, 1.0, -1.0)
            }
            for name, values in forbidden.items()
        }

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        for body in sent_bodies(effects):
            for field in getattr(body, "__struct_fields__", ()):
                value = getattr(body, field)
                if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                    self._compare(now_s, party.name, f"{type(body).__name__}.{field}", value)

    def _compare(self, now_s: float, party: str, where: str, values: np.ndarray) -> None:
        numbers = values.ravel().tolist()
        for name, secret in self.forbidden.items():
            matches = sum(number in secret for number in numbers)
            if matches >= 3:
                raise Violation(f"at {now_s:g} s {party} sent {where} with {matches} values equal to {name}")

    def ended(self, outcome: Outcome, parties: Sequence[Party]) -> None:
        pass


def _telling(values: np.ndarray) -> set[float]:
    """The values that would give their source away: not the zeros and ones that occur anywhere."""
    return set(np.asarray(values, dtype=np.float64).ravel().tolist()) - {0.0, 1.0, -1.0}


class EndsOrSaysWhy:
    """Every party that is not gone finishes with a verdict."""

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        pass

    def ended(self, outcome: Outcome, parties: Sequence[Party]) -> None:
        if outcome.stalled:
            raise Violation(f"the run did not end: {outcome.stalled}")
        mute = [name for name, finish in outcome.finished.items() if not finish.verdict]
        if mute:
            raise Violation(f"{', '.join(mute)} finished without a verdict")
