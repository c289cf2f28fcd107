"""Parties that crash in the simulator, and come back as over a real network: from their logs.

A party that is to crash is recorded from the start, by the code that records real parties: its events go into a log,
now and then with a checkpoint. A crash loses its inbox, its timers and its running jobs. When it comes back, a fresh
party is fed the checkpoint and the events since, and must ask for the same things as before. Then its jobs and timers
begin again, its deliveries go on from the numbers in the log, and it is told which peers were lost or came back
meanwhile.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from offbeat.message.codec import Codec, decode_state, encode_state
from offbeat.party.contract import Effect, Event, Message, Party, PartyName, PeerBack, PeerLost, Received, Started, Wake
from offbeat.runtime.drive import Drive
from offbeat.runtime.eventlog import AnyRecord, LogMark, Replayed, feed, record_of
from offbeat.runtime.recovery import checkpoint_state, resume
from offbeat.runtime.simulator.faults import Outage, Suspicion
from offbeat.runtime.simulator.faulty import CarriedMessage, FaultyLinks

if TYPE_CHECKING:
    from offbeat.runtime.simulator.loop import World

ACKNOWLEDGED_EVERY = 8  # a log does not tell of every acknowledgement


class Sealed(bytes):
    """An encoded message that still knows its body: nothing travels here."""

    body: Message


class MemoryCodec(Codec):
    """Encodes whatever is sent, for the digest of what a party asked for."""

    def __init__(self) -> None:
        pass

    def encode(self, body: Message) -> bytes:
        sealed = Sealed(encode_state(body))
        sealed.body = body
        return sealed

    def decode(self, frame: Any) -> Message:
        body: Message = frame.body
        return body


class Tapped:
    """A party whose last effects can be read as it gave them."""

    def __init__(self, party: Party) -> None:
        self.party, self.name = party, party.name
        self.effects: Sequence[Effect] = ()
        self.snapshot, self.restore = party.snapshot, party.restore

    def handle(self, event: Event) -> list[Effect]:
        effects = self.party.handle(event)
        self.effects = effects
        return effects


class Recorded:
    """A party with its log and its last checkpoint, in memory."""

    def __init__(self, party: Party, checkpoint_events: int) -> None:
        self._every = checkpoint_events
        self._use(Drive(Tapped(party), MemoryCodec()))
        self._log: list[AnyRecord] = []
        self._checkpoint: bytes | None = None
        self._kept: dict[PartyName, list[Any]] = {}

    def _use(self, drive: Drive) -> None:
        assert isinstance(drive.party, Tapped)
        self.drive, self._tap = drive, drive.party

    def handle(self, event: Event, number: int, frame: Any) -> Sequence[Effect]:
        self._log.append(record_of(event, number, frame))
        self.drive.handle(event)
        return self._tap.effects

    def checkpoint(self, links: dict[PartyName, tuple[int, int, list[CarriedMessage], bytes]]) -> None:
        """After enough events. `links`: the state of each delivery, whose messages stay here as they are."""
        if not self._every or len(self._log) < self._every:
            return
        results = {ticket: job() if job is not None else None for ticket, job in self.drive.jobs.items()}
        self._kept = {peer: kept for peer, (_, _, kept, _) in links.items()}
        numbers = {peer: (sent, durable, [b""] * len(kept)) for peer, (sent, durable, kept, _) in links.items()}
        self._checkpoint = encode_state(checkpoint_state(self.drive, results, numbers, 0))
        self._log.clear()

    def recover(self, party: Party) -> Replayed:
        """What a fresh party comes to by the checkpoint and the log since; it must have asked for the same."""
        into = Replayed(Drive(Tapped(party), MemoryCodec()))
        if self._checkpoint is not None:
            resume(into, decode_state(self._checkpoint))
            into.kept = {peer: [_sealed(frame) for frame in kept] for peer, kept in self._kept.items()}
        mark = LogMark(self.drive.events, self.drive.digest)
        feed(into, enumerate([*self._log, mark]), f"the log of {party.name}")
        self._use(into.drive)
        return into


def _sealed(frame: CarriedMessage) -> Sealed:
    sealed = Sealed()
    sealed.body = frame.body
    return sealed


class Outages:
    """Who is down, who was told, and what it takes to come back."""

    def __init__(self, world: "World", links: FaultyLinks) -> None:
        self.world, self.links = world, links
        self.down: set[int] = set()
        self.gone: set[int] = set()
        self.missed: set[int] = set()  # down for so long that the others were told
        self._incarnations = [0] * len(world.names)
        self._recorded: dict[int, Recorded] = {}

    def plan(self) -> None:
        world = self.world
        for fault in world.setting.faults:
            for planned in fault.plan(world.names, self.links.rng):
                if isinstance(planned, Suspicion):
                    observer = world.index[planned.observer]
                    self.tell(planned.start_s, observer, PeerLost(planned.suspect))
                    self.tell(planned.stop_s, observer, PeerBack(planned.suspect))
                else:
                    self._foresee(planned)

    def _foresee(self, planned: Outage) -> None:
        world, i = self.world, self.world.index[planned.party]
        if i not in self._recorded:
            self._recorded[i] = Recorded(world.parties[i], world.setting.checkpoint_events)
        world.call(planned.start_s, lambda: self._crash(i, planned.stop_s))

    # -- events ------------------------------------------------------------------------------------------------------

    def tell(self, time: float, index: int, event: Event) -> None:
        """An event that is no message. What a party asked for itself dies with it; the rest finds it back again."""
        if isinstance(event, Started | PeerLost | PeerBack):
            self.world.call(time, lambda: self.deliver(index, event))
        else:
            self.later(time, index, lambda: event)

    def later(self, time: float, index: int, make: Callable[[], Event]) -> None:
        self.call_if_alive(time, index, lambda: self.deliver(index, make()))

    def call_if_alive(self, time: float, index: int, action: Callable[[], None]) -> None:
        """At its time, unless the party has crashed meanwhile."""
        incarnation = self._incarnations[index]

        def act() -> None:
            if incarnation == self._incarnations[index]:
                action()

        self.world.call(time, act)

    def deliver(self, index: int, event: Event, number: int = 0, frame: CarriedMessage | None = None) -> None:
        """To a party that is there; into its log first, if it is to crash."""
        recorded, ends = self._recorded.get(index), self.links.ends[index]
        if recorded is None or index in self.world.deaf:
            self.world.deliver(index, event)
        else:
            self.world.deliver(index, event, lambda event: recorded.handle(event, number, frame))
        if isinstance(event, Received):
            ends[self.world.index[event.sender]].logged(number)
        elif isinstance(event, PeerLost):
            ends[self.world.index[event.peer]].peer_lost()
        elif isinstance(event, PeerBack):
            ends[self.world.index[event.peer]].peer_back()
            self.links.pump(index, self.world.index[event.peer])
        if recorded is not None:
            recorded.checkpoint({self.world.names[peer]: end.state() for peer, end in ends.items()})

    # -- down, and back ----------------------------------------------------------------------------------------------

    def _crash(self, index: int, back_s: float) -> None:
        world = self.world
        if index in self.down or world.names[index] in world.finished:
            return
        self._incarnations[index] += 1
        self.down.add(index)
        world.deaf.add(index)
        self.links.crash(index)
        if back_s == inf:
            self.gone.add(index)
            world.unfinished -= 1
        else:
            world.call(back_s, lambda: self._restore(index))
        if back_s - world.now > world.setting.detect_s:
            world.call(world.now + world.setting.detect_s, lambda: self._miss(index))

    def _miss(self, index: int) -> None:
        self.missed.add(index)
        self._tell_others(index, PeerLost(self.world.names[index]))
        if index in self.gone:
            self.links.close(index)

    def _restore(self, index: int) -> None:
        world = self.world
        self.down.discard(index)
        world.deaf.discard(index)
        self.missed.discard(index)
        world.work.forget(index)
        self._rebuild(index)
        drive = self._recorded[index].drive
        if drive.events == 0:
            self.deliver(index, Started())
        thought_lost, missed = set(drive.lost), {world.names[other] for other in self.missed}
        for peer in sorted(missed - thought_lost):  # what it would have been told, had it been there
            self.tell(world.now, index, PeerLost(peer))
        for peer in sorted(thought_lost - missed):
            self.tell(world.now, index, PeerBack(peer))
        self._tell_others(index, PeerBack(world.names[index]))

    def _rebuild(self, index: int) -> None:
        """The party from its log; without a way to make a fresh one, the old object, which is as its log says."""
        world, recorded, ends = self.world, self._recorded[index], self.links.ends[index]
        known = {peer: end.acknowledged // ACKNOWLEDGED_EVERY * ACKNOWLEDGED_EVERY for peer, end in ends.items()}
        if world.setting.rebuild is not None:
            fresh = world.setting.rebuild(world.names[index])
            replayed = recorded.recover(fresh)
            world.parties[index], world.handles[index] = fresh, fresh.handle
            self.links.restart(index)
            self._restore_links(index, replayed, known)
        else:
            states = {peer: end.state() for peer, end in ends.items()}
            self.links.restart(index)
            for peer, (sent, durable, kept, _) in states.items():
                self._restore_link(index, peer, sent, kept, durable)
        drive = recorded.drive
        for ticket, job in list(drive.jobs.items()):
            world.work.begin(world.now + world.work.work_s(0, 0), index, ticket, job)
        for token, after_s in drive.timers:
            world.wake(index, Wake(after_s, token))

    def _restore_links(self, index: int, replayed: Replayed, known: dict[int, int]) -> None:
        for peer, number in known.items():
            name = self.world.names[peer]
            replayed.trim(name, number)
            kept = [self.links.frame(index, name, frame.body) for frame in replayed.kept.get(name, [])]  # type: ignore[attr-defined]
            self._restore_link(index, peer, replayed.sent.get(name, 0), kept, replayed.accepted.get(name, 0))

    def _restore_link(self, index: int, peer: int, sent: int, kept: list[CarriedMessage], accepted: int) -> None:
        end = self.links.ends[index][peer]
        end.restore(sent=sent, kept=kept, accepted=accepted)
        if self.world.names[peer] in self._recorded[index].drive.lost:
            end.peer_lost()
        if peer in self.gone & self.missed:
            end.close()
        self.links.pump(index, peer)

    def _tell_others(self, index: int, event: Event) -> None:
        for other in range(len(self.world.names)):
            if other != index:
                self.tell(self.world.now, other, event)
