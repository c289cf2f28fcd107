"""Who takes part in a run, as one party knows it. Every part of a party reads it here."""

from collections.abc import Mapping
from typing import Any

from offbeat.party.contract import PartyName
from offbeat.party.expected import expect

EPOCHS_MAX = 2**28


class Roster:
    """`everybody` is whom the run began with, `active` those of them with labels; `names` is who takes part now.

    The chair is a party with labels: it begins the run, names the roster, asks how good the model is, and ends the run.
    An epoch is the time between two rosters.
    """

    def __init__(self, me: PartyName, everybody: tuple[PartyName, ...], active: tuple[PartyName, ...]) -> None:
        self.me, self.everybody, self.active = me, everybody, active
        self.enter(0, everybody, next(name for name in everybody if name in active))

    def enter(self, epoch: int, names: tuple[PartyName, ...], chair: PartyName) -> None:
        self.epoch, self.names, self.chair = epoch, names, chair
        self.peers = tuple(name for name in names if name != self.me)
        self.labelled = tuple(name for name in names if name in self.active)
        self.is_chair = chair == self.me

    def check(self, sender: PartyName, epoch: int, names: tuple[PartyName, ...]) -> None:
        """Refuse a roster that a peer names, in training and in prediction, unless it has this party, the sender and
        others of the run, in the run's order and each once."""
        ordered = tuple(name for name in self.everybody if name in names)
        known = names == ordered and self.me in names and sender in names and 0 <= epoch < EPOCHS_MAX
        expect(known, sender, f"the roster {list(names)} of epoch {epoch}")

    @property
    def holds_labels(self) -> bool:
        return self.me in self.active

    def snapshot(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "names": list(self.names), "chair": self.chair}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.enter(state["epoch"], tuple(state["names"]), state["chair"])
