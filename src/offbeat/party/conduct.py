"""A sub-machine: how a run begins, who is on the roster, and how it ends.

One party is the *chair*: the first on the roster that holds labels. It sums the parties' smoothness constants,
chooses the step size and the batch, and says `Begin`; it says `Halt` when the target or the last pass is reached, or
when somebody raised an `Alarm`; and it names the roster. When a party is lost, `on_loss` decides:

    wait       go on waiting; nothing is given up
    stop       halt, and keep the best model certified so far
    continue   a new roster epoch without the lost party: its block is frozen out of the sums until it returns

Every message here is acknowledged and sent again until it is; a chair that hears nothing ends anyway after a bounded
number of tries. If the chair itself is lost, the next label holder takes its place. A party may be thought lost and be
alive: it is told how the run ended, and is taken back when the suspicion ends before the run does.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from offbeat.errors import BadJob
from offbeat.party.contract import Broadcast, Effect, Finish, Message, Observe, PartyName, Send
from offbeat.party.expected import expect

LOSS_POLICIES = ("wait", "stop", "continue")
TRIES_MAX = 40
EPOCHS_MAX = 2**28


class Begin(Message, frozen=True):
    """Training may start.

    Reveals: the step size and the smoothness constants of the pooled data that it was chosen from, to every party.
    """

    eta: float
    batch: int
    smoothness: float = 0.0  # 0 where the user chose the step: it is kept as it is
    row_smoothness: float = 0.0


class Begun(Message, frozen=True):
    """Begin has arrived.

    Reveals: progress, to the chair.
    """


class Roster(Message, frozen=True):
    """Who takes part from now on.

    Reveals: who was lost or came back, to every party.
    """

    epoch: int
    names: tuple[str, ...]
    chair: str


class Rostered(Message, frozen=True):
    """The roster has arrived.

    Reveals: progress, to the chair.
    """

    epoch: int


class Alarm(Message, frozen=True):
    """A party cannot go on.

    Reveals: that it cannot, and why in one word, to the chair.
    """

    verdict: str
    reason: str


class Halt(Message, frozen=True):
    """The run ends; keep this snapshot.

    Reveals: the verdict, to every party.
    """

    verdict: str
    reason: str
    best: int


class Halted(Message, frozen=True):
    """Halt has arrived.

    Reveals: progress, to the chair.
    """


MESSAGES = (Begin, Begun, Roster, Rostered, Alarm, Halt, Halted)


_TRIES = ("halt_tries", "roster_tries", "patrols_without_labels")


class Conduct:
    """Both sides, for one party."""

    def __init__(
        self, *, me: PartyName, roster: tuple[PartyName, ...], active: tuple[PartyName, ...], on_loss: str
    ) -> None:
        if on_loss not in LOSS_POLICIES:
            raise BadJob(f"on_loss must be one of {', '.join(LOSS_POLICIES)}; got {on_loss!r}.")
        self.me, self.active, self.on_loss = me, active, on_loss
        self.everybody = roster
        self.epoch, self.roster = 0, roster
        self.chair = next(name for name in roster if name in active)
        self.eta, self.batch, self.smoothness, self.row_smoothness = 0.0, 0, 0.0, 0.0
        self.begun = False
        self.lost: set[PartyName] = set()
        self.unacknowledged: dict[str, set[PartyName]] = {"begin": set(), "roster": set(), "halt": set()}
        self.halt: Halt | None = None
        self.halt_tries = self.roster_tries = self.patrols_without_labels = 0
        self.raised: Alarm | None = None

    @property
    def presides(self) -> bool:
        return self.me == self.chair

    @property
    def peers(self) -> tuple[PartyName, ...]:
        return tuple(name for name in self.roster if name != self.me)

    # -- beginning -----------------------------------------------------------------------------------------------

    def begin(self, eta: float, batch: int, smoothness: float = 0.0, row_smoothness: float = 0.0) -> list[Effect]:
        """The chair: constants are known."""
        self.eta, self.batch, self.begun = eta, batch, True
        self.smoothness, self.row_smoothness = smoothness, row_smoothness
        self.unacknowledged["begin"] = set(self.peers)
        return [Broadcast(self.peers, self._begin()), Observe("step", [eta, batch])]

    def _begin(self) -> Begin:
        return Begin(self.eta, self.batch, self.smoothness, self.row_smoothness)

    def on_begin(self, sender: PartyName, body: Begin) -> tuple[list[Effect], bool]:
        """Acknowledge; the second value says whether this is the first time."""
        expect(0 < body.eta < inf and body.batch > 0, sender, f"a step size of {body.eta} and a batch of {body.batch}")
        first = not self.begun
        if first:
            self.eta, self.batch, self.begun = body.eta, body.batch, True
            self.smoothness, self.row_smoothness = body.smoothness, body.row_smoothness
        return [Send(sender, Begun())], first

    def on_acknowledged(self, what: str, sender: PartyName) -> list[Effect]:
        self.unacknowledged[what].discard(sender)
        if what == "halt" and self.halt is not None and not self.unacknowledged["halt"]:
            return [self._finish(self.halt)]
        return []

    # -- the roster ----------------------------------------------------------------------------------------------

    def on_lost(self, peer: PartyName, best: int) -> tuple[list[Effect], bool]:
        """The runtime gave a peer up. The second value says whether the roster changed."""
        self.lost.add(peer)
        effects: list[Effect] = [Observe("lost", peer)]
        if self.on_loss == "wait" or peer not in self.roster or self.halt is not None:
            return effects, False
        labelled = self._label_holders()
        if not labelled:
            return [*effects, *self._without_labels(peer)], False
        heir = self.chair if self.chair in labelled else labelled[0]
        if heir != self.me:  # it will name itself if it, too, has lost the chair; until then the chair is who it was
            return effects, False
        self.chair = heir
        if self.on_loss == "stop":
            return [*effects, *self.end("peer-lost", f"{peer} was lost and on_loss is 'stop'", best)], False
        return [*effects, *self._name_roster()], True

    def _label_holders(self) -> list[PartyName]:
        return [name for name in self.roster if name in self.active and name not in self.lost]

    def _without_labels(self, peer: PartyName) -> list[Effect]:
        """Nothing can be learned without labels. Whoever may continue gives the last holder time to come back: it may
        be alive, and only its link to this party cut."""
        return [] if self.on_loss == "continue" else [self._gave_up_on_labels(peer)]

    def _gave_up_on_labels(self, peer: PartyName) -> Finish:
        return Finish("peer-lost", f"{peer} was lost, the last party with labels")

    def on_back(self, peer: PartyName) -> tuple[list[Effect], bool]:
        self.lost.discard(peer)
        effects: list[Effect] = [Observe("back", peer)]
        if not self.presides or peer in self.roster or self.halt is not None:
            return effects, False
        return [*effects, *self._name_roster()], True

    def _name_roster(self) -> list[Effect]:
        """A new epoch. Its number is the chair's own: if two parties take the chair at once, one of them yields."""
        self.epoch += 1
        self.epoch += (self.everybody.index(self.me) - self.epoch) % len(self.everybody)
        self.roster = tuple(name for name in self.everybody if name not in self.lost)
        self.unacknowledged["roster"] = set(self.peers)
        self.unacknowledged["begin"] = set(self.peers) if self.begun else set()  # whoever returns may have missed it
        self.roster_tries = 0
        return [
            Broadcast(self.peers, Roster(self.epoch, self.roster, self.chair)),
            Observe("roster", [self.epoch, list(self.roster)]),
        ]

    def on_roster(self, sender: PartyName, body: Roster) -> tuple[list[Effect], bool]:
        """Acknowledge; the second value says whether the roster is news."""
        self._check_roster(sender, body)
        news = body.epoch > self.epoch
        if news:
            self.epoch, self.roster, self.chair = body.epoch, body.names, body.chair
        return [Send(sender, Rostered(body.epoch))] if body.epoch == self.epoch else [], news

    def _check_roster(self, sender: PartyName, body: Roster) -> None:
        ordered = tuple(name for name in self.everybody if name in body.names)
        known = body.names == ordered and self.me in ordered and 0 <= body.epoch < EPOCHS_MAX
        expect(known and sender == body.chair and sender in ordered and sender in self.active, sender, f"{body}")

    # -- ending --------------------------------------------------------------------------------------------------

    def alarm(self, verdict: str, reason: str, best: int) -> list[Effect]:
        """This party cannot go on; it says so until it is heard."""
        if self.presides:
            return self.end(verdict, reason, best)
        self.raised = Alarm(verdict, reason)
        return [Send(self.chair, self.raised)]

    def end(self, verdict: str, reason: str, best: int) -> list[Effect]:
        """The chair: halt everybody, once."""
        if self.halt is not None:
            return []
        self.halt = Halt(verdict, reason, best)
        # Whoever is waited for must hear it; whoever was given up may be alive all the same, and is told once.
        given_up = set() if self.on_loss == "wait" else self.lost
        self.unacknowledged["halt"] = set(self.peers) - given_up
        effects = [*self._halt_roster(self.peers), *self._tell_left_out()]
        return effects if self.unacknowledged["halt"] else [*effects, self._finish(self.halt)]

    def _halt_roster(self, names: Iterable[PartyName]) -> list[Effect]:
        assert self.halt is not None
        return [Broadcast(receivers, self.halt)] if (receivers := tuple(sorted(names))) else []

    def _tell_left_out(self) -> list[Effect]:
        """Whoever is off the roster ends too, with a verdict of its own: its block is no part of the model."""
        assert self.halt is not None
        left_out = tuple(name for name in self.everybody if name not in self.roster)
        reason = f"the others ended without this party, whose block has no part in the model: {self.halt.reason}"
        return [Broadcast(left_out, Halt("peer-lost", reason, -1))] if left_out else []

    def on_halt(self, sender: PartyName, body: Halt) -> list[Effect]:
        self.halt = self.halt or body
        return [Send(sender, Halted()), self._finish(body)]

    def _finish(self, halt: Halt) -> Finish:
        return Finish(halt.verdict, halt.reason)

    def patrol(self, best: int) -> list[Effect]:
        """Say again what was not acknowledged."""
        effects: list[Effect] = []
        if self.halt is not None:
            self.halt_tries += 1
            if self.halt_tries > TRIES_MAX:
                return [self._finish(self.halt)]
            return self._halt_roster(self.unacknowledged["halt"])
        if self.on_loss == "continue":
            self.patrols_without_labels = 0 if self._label_holders() else self.patrols_without_labels + 1
            if self.patrols_without_labels > TRIES_MAX:
                return [self._gave_up_on_labels(self.chair)]
        if self.raised is not None:
            effects.append(Send(self.chair, self.raised))
        if self.presides and self.unacknowledged["roster"]:
            self.roster_tries += 1
            silent = sorted(self.unacknowledged["roster"])
            if self.roster_tries > TRIES_MAX:
                return self.end("peer-lost", f"{', '.join(silent)} did not acknowledge the new roster", best)
            effects.append(Broadcast(tuple(silent), Roster(self.epoch, self.roster, self.chair)))
        if self.presides and self.unacknowledged["begin"]:
            effects.append(Broadcast(tuple(sorted(self.unacknowledged["begin"])), self._begin()))
        return effects

    # -- going on later ------------------------------------------------------------------------------------------

    _PLAIN = ("epoch", "chair", "eta", "batch", "smoothness", "row_smoothness", "begun", *_TRIES)

    def snapshot(self) -> dict[str, Any]:
        halt, raised = self.halt, self.raised
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            "roster": list(self.roster),
            "lost": sorted(self.lost),
            "unacknowledged": {what: sorted(names) for what, names in self.unacknowledged.items()},
            "halt": [halt.verdict, halt.reason, halt.best] if halt is not None else None,
            "raised": [raised.verdict, raised.reason] if raised is not None else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.roster, self.lost = tuple(state["roster"]), set(state["lost"])
        self.unacknowledged = {what: set(names) for what, names in state["unacknowledged"].items()}
        self.halt = Halt(*state["halt"]) if state["halt"] is not None else None
        self.raised = Alarm(*state["raised"]) if state["raised"] is not None else None
