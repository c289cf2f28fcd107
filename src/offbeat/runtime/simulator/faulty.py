"""Messages over links that lose, double, delay and reorder packets, delivered by the code that serves real networks.

At both ends of every link stands a `PacketLink`: it numbers and keeps messages, answers, and repeats what was not
answered, in virtual time and over the same faulty link. What a packet brings lies in the receiver's inbox for a moment,
as behind a real party's other work; when the party has handled it, it is in the log, and only then it is acknowledged
as durable. So a crash loses what was accepted and not yet handled, and the sender must deliver it again.
"""

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from offbeat.message.codec import payload_bytes
from offbeat.party.contract import Broadcast, Message, PartyName, Received, Send
from offbeat.randomness import stream
from offbeat.runtime.delivery import Bounds, Packet, PacketLink, Timing
from offbeat.runtime.simulator.links import Links

if TYPE_CHECKING:
    from offbeat.runtime.simulator.loop import World

BOUNDS = Bounds(packet_frames=64)
LATENCY_LEAST_S = 1e-5


class CarriedMessage:
    """A message between two deliveries: what it is, and when its sender gave it away."""

    __slots__ = ("body", "code", "sent_s", "size")

    def __init__(self, body: Message, size: int, code: int, sent_s: float) -> None:
        self.body, self.size, self.code, self.sent_s = body, size, code, sent_s


def timing_for(latency_s: float) -> Timing:
    """Times to the measure of the links."""
    unit = max(latency_s, LATENCY_LEAST_S)
    return Timing(answer_s=5 * unit, first_s=50 * unit, least_s=12 * unit, most_s=500 * unit)


class FaultyLinks(Links):
    """Every pair of parties, and each party's inbox."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        setting, count = world.setting, len(world.names)
        self.rng, self._turns = stream(setting.seed, "faults"), stream(setting.seed, "turns")
        slowest = max((link.latency_s for link in (self.costs.link, *self.costs.links.values())), default=0.0)
        self._timing, self._latency_s = timing_for(slowest), slowest
        self.lives = [1] * count
        self.ends = [{j: self._new(i, j) for j in range(count) if j != i} for i in range(count)]
        self._inboxes: list[list[tuple[int, int, CarriedMessage]]] = [
            [] for _ in range(count)
        ]  # (sender, number, message)
        self._ready = [[0.0] * count for _ in range(count)]  # when what was offered may leave, by link
        self._armed = [[inf] * count for _ in range(count)]

    def _new(self, index: int, peer: int) -> PacketLink[CarriedMessage]:
        return PacketLink(
            self.world.names[peer], BOUNDS, self._timing, life=self.lives[index], size_of=attrgetter("size")
        )

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, index: int, effect: Send) -> None:
        self._offer(index, effect.to, effect.body, self.departs(index, effect))

    def broadcast(self, index: int, effect: Broadcast) -> None:
        for to in effect.to:
            self._offer(index, to, effect.body, self.world.now)

    def _offer(self, index: int, to: PartyName, body: Message, depart: float) -> None:
        peer = self.world.index[to]
        assert peer != index, f"{to} sends a {type(body).__name__} to itself, which no network carries"
        posting, size = self.measured(index, to, body)
        self.ends[index][peer].offer(CarriedMessage(body, size, posting.code, self.world.now))
        self._ready[index][peer] = max(depart, self._ready[index][peer])
        if self._ready[index][peer] > self.world.now:
            self.world.call(self._ready[index][peer], lambda: self.pump(index, peer))
        else:
            self.pump(index, peer)

    def frame(self, index: int, to: PartyName, body: Message) -> CarriedMessage:
        """A message that is sent again after a restart, as it was."""
        return CarriedMessage(body, payload_bytes(body), self.world.posting(index, to, type(body)).code, self.world.now)

    def pump(self, index: int, peer: int) -> None:
        """Transmit what is to be transmitted now, and come back when there is more to do."""
        now, end, outages = self.world.now, self.ends[index][peer], self.world.outages
        assert outages is not None
        if self._ready[index][peer] > now or index in outages.down:
            return
        while (packet := end.packet(now)) is not None:
            for arrival in self._arrivals(index, peer, packet):
                self.world.call(arrival, lambda packet=packet: self._came(peer, index, packet))  # type: ignore[misc]
        if end.due_s < self._armed[index][peer]:
            self._armed[index][peer] = end.due_s
            self.world.call(end.due_s, lambda due_s=end.due_s: self._due(index, peer, due_s))  # type: ignore[misc]

    def _due(self, index: int, peer: int, due_s: float) -> None:
        if self._armed[index][peer] == due_s:
            self._armed[index][peer] = inf
            self.pump(index, peer)

    def _arrivals(self, index: int, peer: int, packet: Packet[CarriedMessage]) -> list[float]:
        """When a packet arrives, if it does, and how often."""
        sender, to, now = self.world.names[index], self.world.names[peer], self.world.now
        times = [now + self.transit_s(sender, to, sum(frame.size for frame in packet.frames))]
        for fault in self.world.setting.faults:
            times = fault.arrivals(times, now, sender, to, self.rng)
        return times

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _came(self, index: int, sender: int, packet: Packet[CarriedMessage]) -> None:
        outages = self.world.outages
        assert outages is not None
        if index in outages.down:
            return
        inbox = self._inboxes[index]
        if (fresh := self.ends[index][sender].heard(packet, self.world.now)) and not inbox:
            wait_s = self._latency_s * float(self._turns.random())
            outages.call_if_alive(self.world.now + wait_s, index, lambda: self._turn(index))
        inbox += [(sender, number, frame) for number, frame in fresh]
        self.pump(index, sender)

    def _turn(self, index: int) -> None:
        """The party handles what has come; a finished one only acknowledges."""
        world, outages = self.world, self.world.outages
        assert outages is not None
        inbox, self._inboxes[index] = self._inboxes[index], []
        for sender, number, frame in inbox:
            self.rows.note(frame.sent_s, world.now, frame.code)
            event = Received(world.names[sender], frame.body, world.round_trip_s)
            outages.deliver(index, event, number, frame)
        for sender in {sender: None for sender, _, _ in inbox}:
            self.pump(index, sender)

    # -- parties that crash ------------------------------------------------------------------------------------------

    def crash(self, index: int) -> None:
        self._inboxes[index] = []

    def restart(self, index: int) -> None:
        """Both directions with everybody begin anew; what they held is to be restored from the party's log."""
        self.lives[index] += 1
        count = len(self.world.names)
        self.ends[index] = {peer: self._new(index, peer) for peer in range(count) if peer != index}
        self._ready[index], self._armed[index] = [0.0] * count, [inf] * count

    def close(self, index: int) -> None:
        """A party will not come back: nobody calls it any more."""
        for ends in self.ends:
            if index in ends:
                ends[index].close()
