"""The whole contract between a party and the world that carries it.

A party is a function from (its state, an event) to (its state, effects). It never sees a clock, a socket, a
thread, a file, a logger or a global random state; whatever it needs arrives as an event or through its
constructor, and whatever it wants done leaves as an effect. So the same object runs in the simulator, on threads
and over a network; a run is its seed plus its order of events; and recovery after a crash is `restore` followed by
the events that came later.

    Event   Started · Received · Computed · Woken · PeerLost · PeerBack
    Effect  Send · Broadcast · Compute · Wake · Observe · Finish

One party's events are handled one at a time, in the order its runtime delivers them. While a `Compute` is under
way the party goes on answering: that is the papers' listener thread.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

PartyName = str

State = Mapping[str, Any]
"""A party's memory as plain values: numbers, strings, bytes, numpy arrays, and lists or dictionaries of these."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """Base of everything that crosses the contract. Arrays inside are written once, before the value is made."""


class Message(Value, frozen=True, gc=False, tag=True, array_like=True):
    """The body of a send.

    Every message type says in its docstring what it *Reveals* and to whom; the run record counts them by type.
    Fields are integers, floats, strings, booleans, bytes, numpy arrays, or tuples of these: what the codec carries.
    A subclass is written `class ShareAsked(Message, frozen=True): ...`; its name is its tag on the wire.
    """


# -- events: what reaches a party ---------------------------------------------------------------------------------


class Started(Value, frozen=True, gc=False):
    """The party may begin. `resumed`: it was restored from a snapshot; its timers and its work are gone."""

    resumed: bool = False


class Received(Value, frozen=True, gc=False):
    """A message arrived: perhaps late, but once, and after all earlier ones of the same sender. `round_trip_s`: about
    how long a short message to the sender and its answer take (0: not known)."""

    sender: PartyName
    body: Message
    round_trip_s: float = 0.0


class Computed(Value, frozen=True, gc=False):
    """The work asked for under `ticket` is done: what its job returned (None where there was no job), and about how
    long such work takes here (0: not known)."""

    ticket: int
    result: Any = None
    seconds: float = 0.0


class Woken(Value, frozen=True, gc=False):
    """The time asked for by a `Wake` with this token has gone by; `END`: the owner asks the party to bring the run to
    its end. Whoever does not know that token passes it over."""

    token: int = 0


END = -1
"""No party asks for a `Wake` with this token."""


class PeerLost(Value, frozen=True, gc=False):
    """The runtime gave up on a peer: it will not answer until a `PeerBack`."""

    peer: PartyName


class PeerBack(Value, frozen=True, gc=False):
    """A peer that was lost answers again."""

    peer: PartyName


Event = Started | Received | Computed | Woken | PeerLost | PeerBack


# -- effects: what a party asks for -------------------------------------------------------------------------------


class Send(Value, frozen=True, gc=False):
    """Send `body` to one peer. `samples` and `nonzeros` say how much arithmetic the answer took, so that a cost
    model can charge the listener for serving it."""

    to: PartyName
    body: Message
    samples: int = 0
    nonzeros: int = 0


class Broadcast(Value, frozen=True, gc=False):
    """Send one body to several peers; a runtime encodes it once."""

    to: tuple[PartyName, ...]
    body: Message


class Compute(Value, frozen=True, gc=False):
    """Spend one of the party's lanes on some work, and return `Computed(ticket, job())`. A lane does one work at a
    time; a party has as many as its runtime gives it, mostly one.

    `job` is a pure function of values already read; it may run on another thread and must not touch the party.
    Without a job the work is only charged for, and the party does it itself when `Computed` arrives: in place,
    on its own thread, which is the fast way when there is one lane.
    """

    ticket: int
    samples: int = 0
    nonzeros: int = 0
    job: Callable[[], Any] | None = None


class Wake(Value, frozen=True, gc=False):
    """Deliver `Woken(token)` after so many seconds, virtual or real."""

    after_s: float
    token: int = 0


class Observe(Value, frozen=True, gc=False):
    """Tell the run record something: a number, or a frozen value of the `metrics` vocabulary."""

    name: str
    value: Any


class Finish(Value, frozen=True, gc=False):
    """This party is done. `verdict` is one word for programs (`verdicts.py` has them all), `reason` one sentence for
    people."""

    verdict: str
    reason: str = ""


Effect = Send | Broadcast | Compute | Wake | Observe | Finish


@runtime_checkable
class Party(Protocol):
    """What a runtime drives."""

    name: PartyName

    def handle(self, event: Event) -> list[Effect]:
        """Take one event, change state, say what should happen next."""
        ...

    def snapshot(self) -> State:
        """Everything needed to go on later; shares no array with the living party."""
        ...

    def restore(self, state: State) -> None:
        """Become the party that took this snapshot. The constructor's arguments must be the same."""
        ...
