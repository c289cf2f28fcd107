"""A sub-machine: how a run begins, who is on the roster, and how it ends.

The chair hears `Ready` from everybody, measures how steep the problem is, and says `Begin`; it says `Halt` when the
target or the last pass is reached, or when somebody raised an `Alarm`; and it names the roster. When a party is lost,
`on_loss` decides, at every party by its own job:

    wait       go on waiting; nothing is given up, and no second roster is accepted
    stop       the chair halts, and the best model certified so far is kept
    continue   a new roster epoch without the lost party: its block is frozen out of the sums until it returns

If the chair itself is lost, the next label holder takes its place. A party may be thought lost and be alive: it is told
how the run ended, and is taken back when the suspicion ends before the run does.
"""

from math import inf

from offbeat.errors import BadJob
from offbeat.party.contract import Broadcast, Effect, Finish, Message, Observe, PartyName, Send
from offbeat.party.expected import expect
from offbeat.party.memory import Memory
from offbeat.party.roster import Roster

LOSS_POLICIES = ("wait", "stop", "continue")
LABELS_LOST_S = 60.0
"""Whoever may continue gives the last label holder so long to come back: it may be alive, and only its link cut."""


class Ready(Message, frozen=True):
    """This party knows everybody's key.

    Reveals: progress, to the chair.
    """


class Begin(Message, frozen=True):
    """Training may start.

    Reveals: the step size and the smoothness constants of the pooled data that it was chosen from, to every party.
    """

    epoch: int
    eta: float
    batch: int
    smoothness: float  # 0 where the user chose the step: it is kept as it is
    row_smoothness: float
    spacing: float  # how many passes of steps lie between two surveys


class RosterNamed(Message, frozen=True):
    """Who takes part from now on.

    Reveals: who was lost or came back, to every party.
    """

    epoch: int
    names: tuple[str, ...]
    chair: str


class Alarm(Message, frozen=True):
    """A party cannot go on.

    Reveals: that it cannot, and why in one sentence, to the chair.
    """

    verdict: str
    reason: str


class Halt(Message, frozen=True):
    """The run ends; keep this survey's model.

    Reveals: the verdict, to every party.
    """

    verdict: str
    reason: str
    best: int


MESSAGES = (Ready, Begin, RosterNamed, Alarm, Halt)


class Lifecycle(Memory):
    """Both sides, for one party."""

    KEPT = ("eta", "batch", "smoothness", "row_smoothness", "spacing", "begun", "halted", "kept", "lost", "ready")

    def __init__(self, roster: Roster, on_loss: str) -> None:
        if on_loss not in LOSS_POLICIES:
            raise BadJob(f"on_loss must be one of {', '.join(LOSS_POLICIES)}; got {on_loss!r}.")
        self.roster, self.on_loss = roster, on_loss
        self.eta, self.batch, self.smoothness, self.row_smoothness, self.spacing = 0.0, 0, 0.0, 0.0, 1.0
        self.begun = False
        self.ready: set[PartyName] = set()  # the chair: who has said so
        self.lost: set[PartyName] = set()
        self.halted = False
        self.kept = 0  # the survey whose model is kept, once the run has ended

    # -- beginning -----------------------------------------------------------------------------------------------

    @property
    def all_ready(self) -> bool:
        return self.ready.issuperset(self.roster.peers)

    def begin(self, chosen: Begin) -> list[Effect]:
        """The chair: constants are known."""
        self._take(chosen)
        return [Broadcast(self.roster.peers, chosen), Observe("step", [chosen.eta, chosen.batch])]

    def on_begin(self, sender: PartyName, body: Begin) -> bool:
        """Whether this is the first time."""
        expect(sender == self.roster.chair, sender, "the word to begin, which is the chair's")
        expect(0 < body.eta < inf and body.batch > 0, sender, f"a step size of {body.eta} and a batch of {body.batch}")
        if self.begun:
            return False
        self._take(body)
        return True

    def _take(self, chosen: Begin) -> None:
        self.eta, self.batch, self.begun = chosen.eta, chosen.batch, True
        self.smoothness, self.row_smoothness, self.spacing = chosen.smoothness, chosen.row_smoothness, chosen.spacing

    def _begin(self) -> Begin:
        constants = (self.smoothness, self.row_smoothness, self.spacing)
        return Begin(self.roster.epoch, self.eta, self.batch, *constants)

    # -- the roster ----------------------------------------------------------------------------------------------

    def on_lost(self, peer: PartyName) -> tuple[bool, str]:
        """The runtime gave a peer up. (This party names a new roster, why this party ends the run if it does.)"""
        if peer not in self.roster.everybody or peer == self.roster.me:
            return False, ""
        self.lost.add(peer)
        if self.on_loss == "wait" or peer not in self.roster.names or self.halted:
            return False, ""
        labelled = self._label_holders()
        if not labelled:
            return False, "" if self.on_loss == "continue" else f"{peer} was lost, the last party with labels"
        heir = self.roster.chair if self.roster.chair in labelled else labelled[0]
        if heir != self.roster.me:  # it will name itself if it, too, has lost the chair
            return False, ""
        if self.on_loss == "stop":
            self.roster.enter(self.roster.epoch, self.roster.names, self.roster.me)
            return False, f"{peer} was lost and on_loss is 'stop'"
        return True, ""

    def _label_holders(self) -> list[PartyName]:
        return [name for name in self.roster.labelled if name not in self.lost]

    @property
    def without_labels(self) -> bool:
        return self.on_loss == "continue" and not self._label_holders()

    def on_back(self, peer: PartyName) -> bool:
        """A lost peer answers again; whether this party names a new roster."""
        self.lost.discard(peer)
        left_out = peer in self.roster.everybody and peer not in self.roster.names
        return self.roster.is_chair and left_out and not self.halted

    def name_roster(self) -> list[Effect]:
        """A new epoch. Its number is the chair's own: if two parties take the chair at once, one of them yields."""
        everybody, me = self.roster.everybody, self.roster.me
        epoch = self.roster.epoch + 1
        epoch += (everybody.index(me) - epoch) % len(everybody)
        self.roster.enter(epoch, tuple(name for name in everybody if name not in self.lost), me)
        named = RosterNamed(epoch, self.roster.names, me)
        effects: list[Effect] = [
            Broadcast(self.roster.peers, named),
            Observe("roster", [epoch, list(self.roster.names)]),
        ]
        if self.begun:  # whoever returns may have missed it
            effects.append(Broadcast(self.roster.peers, self._begin()))
        return effects

    def on_roster(self, sender: PartyName, body: RosterNamed) -> bool:
        """Whether the roster is news. Epochs only rise."""
        everybody = self.roster.everybody
        self.roster.check(sender, body.epoch, body.names)
        own = body.epoch % len(everybody) == everybody.index(sender)
        expect(sender == body.chair and sender in self.roster.active and own, sender, f"the roster {body}")
        expect(
            self.on_loss == "continue",
            sender,
            f"a roster without somebody, although on_loss is {self.on_loss!r} in this party's job",
        )
        if body.epoch <= self.roster.epoch:
            return False
        self.roster.enter(body.epoch, body.names, body.chair)
        return True

    # -- ending --------------------------------------------------------------------------------------------------

    def end(self, verdict: str, reason: str, best: int) -> list[Effect]:
        """The chair: halt everybody, once. Whoever is off the roster ends too, with a verdict of its own: its block is
        no part of the model."""
        if self.halted:
            return []
        effects: list[Effect] = []
        if self.roster.peers:
            effects.append(Broadcast(self.roster.peers, Halt(verdict, reason, best)))
        left_out = tuple(name for name in self.roster.everybody if name not in self.roster.names)
        if left_out:
            alone = f"the others ended without this party, whose block has no part in the model: {reason}"
            effects.append(Broadcast(left_out, Halt("peer-lost", alone, -1)))
        return [*effects, *self.over(verdict, reason, best)]

    def over(self, verdict: str, reason: str, best: int) -> list[Effect]:
        """This party's part ends."""
        self.halted, self.kept = True, best
        return [Finish(verdict, reason)]

    def alarm(self, verdict: str, reason: str) -> list[Effect]:
        """A party that is not the chair cannot go on."""
        return [Send(self.roster.chair, Alarm(verdict, reason))]
