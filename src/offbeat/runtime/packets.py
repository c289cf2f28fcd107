"""One party's deliveries to all its peers, over a carrier of packets. Everything here is done on the party's thread.

A runtime adds `transmit`, which gives bytes to the carrier, and calls `heard` with what the carrier brought. The
carrier may lose, double and reorder. What comes broken, or breaks the rules, is counted and otherwise as if lost.
"""

import time
from collections.abc import Callable
from math import inf

import msgspec

from offbeat.errors import BadFrame
from offbeat.message.codec import Codec
from offbeat.party.contract import PartyName
from offbeat.runtime.delivery import Bounds, Packet, PacketLink, Timing
from offbeat.runtime.drive import Written
from offbeat.runtime.host import Letter

_DECODER: msgspec.msgpack.Decoder[Packet[bytes]] = msgspec.msgpack.Decoder(Packet[bytes])
_ENCODER = msgspec.msgpack.Encoder()


class PacketLinks(dict[PartyName, PacketLink[bytes]]):
    """A link for whoever is spoken to, or speaks; made when it is first needed."""

    def __init__(self, make: Callable[[PartyName], PacketLink[bytes]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, peer: PartyName) -> PacketLink[bytes]:
        self[peer] = self._make(peer)
        return self[peer]


class PacketCarrier:
    """`receive` takes what is new; `base` gives the number above which messages are numbered (see `Delivery`)."""

    def __init__(
        self,
        codec: Codec,
        bounds: Bounds,
        timing: Timing,
        transmit: Callable[[PartyName, bytes], None],
        receive: Callable[[Letter], None],
        base: Callable[[], int] = lambda: 0,
    ) -> None:
        self.refused = 0
        self._codec, self._transmit, self._receive = codec, transmit, receive
        life = time.time_ns()
        self.links = PacketLinks(lambda peer: PacketLink(peer, bounds, timing, life=life, base=base()))

    def send(self, step: Written) -> None:
        for peer in step.to:
            self.links[peer].offer(step.frame)

    def heard(self, peer: PartyName, raw: bytes, now_s: float, sent_s: float = -1.0) -> None:
        """Something came from a peer. A message that does not decode is refused, and with it all that came along."""
        try:
            packet = _DECODER.decode(raw)
            for frame in packet.frames:
                self._codec.decode(frame)
            fresh = self.links[peer].heard(packet, now_s)
        except (BadFrame, msgspec.MsgspecError):
            self.refused += 1
            return
        for number, frame in fresh:
            body = self._codec.decode(frame)
            self._receive(Letter(peer, frame, type(body).__name__, number, sent_s, body))

    def turn(self, now_s: float) -> float:
        """Transmit all that is to be transmitted now; when there is more to do."""
        for peer, link in list(self.links.items()):
            while (packet := link.packet(now_s)) is not None:
                self._transmit(peer, _ENCODER.encode(packet))
        return min((link.due_s for link in self.links.values()), default=inf)

    @property
    def settled(self) -> bool:
        """Every peer has all that was sent to it, or takes nothing more."""
        return all(link.settled for link in self.links.values())

    @property
    def repeated(self) -> int:
        return sum(link.repeated for link in self.links.values())
