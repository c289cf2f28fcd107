"""One delivery joined to whichever stream carries it at the moment.

Streams come and go; the channel stays for the whole run. Its writer is a generator that gRPC pulls packets from, its
reader is a function that gRPC's bytes are pushed into. Both name the stream they belong to by a generation number: a
stream that was replaced falls silent.
"""

import threading
import time
from collections.abc import Callable, Iterator

from offbeat.errors import BadFrame, OffbeatError
from offbeat.message.codec import Codec
from offbeat.party.contract import Message, PartyName
from offbeat.runtime.delivery import Bounds, Delivery
from offbeat.runtime.grpc.wire import Beat, Bye, Data, pack, unpack
from offbeat.runtime.transcript import Chains, LinkAccount, Seal, Transcript

Deliver = Callable[[PartyName, int, bytes, Message], None]
"""Called with (sender, number, frame, body) for each message that is new to us, in order."""

_ACKNOWLEDGE_AFTER_S = 0.02
_ACKNOWLEDGE_EVERY = 256


class Channel:
    """Thread-safe: the party's thread sends, a stream's writer and reader do the rest."""

    def __init__(
        self,
        peer: PartyName,
        codec: Codec,
        bounds: Bounds,
        deliver: Deliver,
        *,
        beat_s: float,
        notify: Callable[[], None],
        transcript: Transcript | None = None,
        fail: Callable[[OffbeatError], None] = lambda problem: None,
    ) -> None:
        self.peer = peer
        self.delivery: Delivery[bytes] = Delivery(peer, bounds, transcript=transcript)
        self.transcript, self.fail = transcript, fail
        self.beat_s = beat_s
        self.generation = 0
        self.up = False
        self.met = False
        self.heard_s = time.monotonic()
        self.round_trip_s = 0.0
        self.peer_verdict: str | None = None
        self.faults = 0
        self._codec = codec
        self._deliver = deliver
        self._notify = notify
        self._changed = threading.Condition()
        self._abandon: Callable[[], object] | None = None
        self._told_durable = 0
        self._verdict: str | None = None
        self._goodbye_generation = 0
        self._tells_trip = False
        self._goodbye_written = False
        self._in_hand = False  # a seal that gRPC has not taken yet
        self._peer_gone = False
        self._closed = False

    # -- the party's thread ---------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        with self._changed:
            self.delivery.offer(frame)
            self._changed.notify_all()

    def logged(self, number: int) -> None:
        with self._changed:
            waiting = self.delivery.durable > self._told_durable
            self.delivery.logged(number)
            if not waiting or self.delivery.durable - self._told_durable >= _ACKNOWLEDGE_EVERY:
                self._changed.notify_all()

    @property
    def acknowledged(self) -> int:
        return self.delivery.acknowledged

    @property
    def unacknowledged(self) -> int:
        return self.delivery.unacknowledged

    def state(self) -> tuple[int, int, list[bytes], bytes]:
        with self._changed:
            return self.delivery.state()

    def jumped(self, number: int) -> bytes:
        return self.delivery.jumped(number)

    def restore(self, *, sent: int, kept: list[bytes], accepted: int, chains: Chains | None = None) -> None:
        self.delivery.restore(sent=sent, kept=kept, accepted=accepted, chains=chains)

    def peer_lost(self) -> None:
        with self._changed:
            self.delivery.peer_lost()

    def peer_back(self) -> None:
        with self._changed:
            self.delivery.peer_back()

    def finish(self, verdict: str) -> None:
        """Say goodbye as soon as the peer has everything."""
        with self._changed:
            self._verdict = verdict
            self._changed.notify_all()

    def over(self) -> bool:
        """Both sides have said goodbye and signed all messages, or the peer's end of the run is known to be gone."""
        with self._changed:
            both = self.peer_verdict is not None and self._goodbye_written
            return self._peer_gone or (both and self._signed and not self._in_hand)

    def gone(self, verdict: str) -> None:
        """The peer answers that the run has ended there: it takes nothing and sends nothing more."""
        with self._changed:
            self.peer_verdict, self._peer_gone = verdict, True
            self.delivery.close()
            self._changed.notify_all()
        self._notify()

    def silence_s(self) -> float:
        return time.monotonic() - self.heard_s

    def abandon(self) -> None:
        """Drop the present stream, so that a new one can be opened."""
        with self._changed:
            cancel, self._abandon, self.up = self._abandon, None, False
            self.generation += 1
            self._changed.notify_all()
        if cancel is not None:
            cancel()

    def close(self) -> None:
        with self._changed:
            self._closed = True
        if not self.over():  # a stream that both sides have said goodbye on ends by itself
            self.abandon()

    # -- a stream -------------------------------------------------------------------------------------------------

    def open(self, peer_accepted: int, abandon: Callable[[], object], round_trip_s: float = 0.0) -> int:
        """Let a new stream carry the link; the one before, if any, is dropped. Returns the stream's generation.
        `round_trip_s`: how long its greeting took; who has not greeted is told by the other side."""
        with self._changed:
            if self._closed:
                raise BadFrame("this run has ended here")
            self.delivery.opened(peer_accepted)
            self._tells_trip, self.round_trip_s = round_trip_s > 0, round_trip_s
            previous, self._abandon = self._abandon, abandon
            self.generation += 1
            self.up, self.met, self.heard_s = True, True, time.monotonic()
            generation = self.generation
            self._changed.notify_all()
        if previous is not None:
            previous()
        self._notify()
        return generation

    def lost(self, generation: int) -> None:
        """The stream of this generation has ended."""
        with self._changed:
            if generation == self.generation:
                self.up, self._abandon = False, None
                self.generation += 1
                # A peer that has said goodbye and then ends the stream wants nothing more from us.
                self._peer_gone = self._peer_gone or self.peer_verdict is not None
            self._changed.notify_all()
        self._notify()

    def packets(self, generation: int) -> Iterator[bytes]:
        """What to write on the stream, for as long as it is the present one; blocks while there is nothing."""
        while (packet := self._next(generation)) is not None:
            yield packet
            # Asked for the next packet, gRPC has taken the last one out of our hands.
            self._in_hand = False
            if self._goodbye_generation == generation:
                self._goodbye_written = True
                self._notify()

    def _next(self, generation: int) -> bytes | None:
        quiet_until = time.monotonic() + self.beat_s
        with self._changed:
            while generation == self.generation:
                if self._tells_trip:
                    self._tells_trip, self._told_durable = False, self.delivery.durable
                    return pack(Beat(self.delivery.durable, self.round_trip_s))
                taken = self.delivery.take()
                if taken is not None:
                    self._told_durable = self.delivery.durable
                    first, frames = taken
                    oldest, jump = self.delivery.first_kept, self.delivery.jump or None
                    return pack(Data(first, self._told_durable, frames, oldest, jump, self._seal()))
                if self._verdict is not None and not self.delivery.unacknowledged:
                    if self._goodbye_generation != generation:
                        self._goodbye_generation, self._told_durable = generation, self.delivery.durable
                        return pack(Bye(self.delivery.durable, self._verdict, self._seal()))
                    if self.peer_verdict is not None and self.delivery.durable == self._told_durable and self._signed:
                        return None
                left = self._quiet_s(quiet_until)
                if left <= 0:
                    self._told_durable = self.delivery.durable
                    return pack(Beat(self.delivery.durable, seal=self._seal(quiet=time.monotonic() >= quiet_until)))
                self._changed.wait(left)
        return None

    def _quiet_s(self, quiet_until: float) -> float:
        """How long nothing need be said."""
        behind = self.delivery.durable - self._told_durable
        if behind >= _ACKNOWLEDGE_EVERY or self._seal_due:
            return 0.0
        left = quiet_until - time.monotonic()
        return min(left, left - self.beat_s + _ACKNOWLEDGE_AFTER_S) if behind else left

    # -- what both ends sign --------------------------------------------------------------------------------------

    @property
    def _signed(self) -> bool:
        return self.transcript is None or self.transcript.settled

    @property
    def _seal_due(self) -> bool:
        last, durable = self.peer_verdict is not None, self.delivery.durable
        return self.transcript is not None and self.transcript.due(durable, now=False, last=last)

    def accounts(self) -> list[LinkAccount]:
        """What this end tells of both directions."""
        with self._changed:
            return self.transcript.chains.accounts(self.delivery.durable) if self.transcript is not None else []

    def _seal(self, *, quiet: bool = False) -> Seal | None:
        """Of much at once, of anything when it is quiet, and of all at the end."""
        if self.transcript is None:
            return None
        last = self.peer_verdict is not None
        seal = self.transcript.seal(self.delivery.durable, now=quiet, last=last)
        self._in_hand = self._in_hand or seal is not None
        return seal

    def receive(self, generation: int, raw: bytes) -> None:
        """Take one packet off the stream. A packet that breaks the rules raises, and the caller drops the stream."""
        packet = unpack(raw, self.delivery.bounds)
        if isinstance(packet, Data):
            bodies = [self._codec.decode(frame) for frame in packet.frames]
        elif not isinstance(packet, (Beat, Bye)):
            raise BadFrame(f"'{self.peer}' sent a {type(packet).__name__} in the middle of a stream")
        with self._changed:
            if generation != self.generation:
                return
            self.heard_s = time.monotonic()
            self.delivery.acknowledge(packet.durable, packet.seal, done=self._goodbye_generation > 0)
            if isinstance(packet, Bye):
                self.peer_verdict = packet.verdict
            elif isinstance(packet, Beat) and packet.round_trip_s > 0:
                self.round_trip_s = packet.round_trip_s
            fresh = self._new(packet) if isinstance(packet, Data) else []
            # Still under the lock: a second stream must not overtake this one with later messages.
            if isinstance(packet, Data):
                old = len(bodies) - len(fresh)
                for (number, frame), body in zip(fresh, bodies[old:], strict=True):
                    self._deliver(self.peer, number, frame, body)
            self._changed.notify_all()
        if isinstance(packet, Bye) or packet.seal is not None:
            self._notify()

    def _new(self, data: Data) -> list[tuple[int, bytes]]:
        return self.delivery.arrived(data.first, data.frames, data.oldest, data.jump or b"")
