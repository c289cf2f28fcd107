"""Each message from one party to another arrives once and in order, perhaps late, until the peer is lost.

No input or output here. Each side numbers what it sends, for the whole run. A number is *accepted* when its message is
in the receiver's inbox, and *durable* when it is in the receiver's log and would survive a crash. The sender keeps a
message until it is durable. So a message may travel several times and reaches the party exactly once.

    Delivery      both directions with one peer, over streams that come and go and keep their order (gRPC)
    PacketLink    the same over a carrier that may lose, double and reorder packets (MQTT, Ray, simulated faults): it
                  repeats what was not answered in time, and learns from the answers how long that is

When a peer is lost, what is kept for it stays bounded by forgetting the oldest messages; when it is back, it gets what
is still kept, in order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar

import msgspec

from offbeat.errors import BadFrame, PeerFailed
from offbeat.party.contract import PartyName
from offbeat.runtime.transcript import HEADS_BEHIND, Chains, Number, Seal, Transcript

Frame = TypeVar("Frame")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one link may hold. Everything that can grow has its limit here."""

    frame_bytes: int = 16 * 2**20  # one message
    packet_bytes: int = 2**20  # messages coalesced into one write (one larger message travels alone)
    packet_frames: int = 512
    window_frames: int = 4096  # written and not yet acknowledged
    window_bytes: int = 64 * 2**20
    backlog_frames: int = 65536  # waiting to be acknowledged, written or not
    backlog_bytes: int = 512 * 2**20

    @property
    def wire_bytes(self) -> int:
        """The largest packet to accept from the network: one full message and its wrapping."""
        return max(self.frame_bytes, self.packet_bytes) + 16 * self.packet_frames + 1024


class Delivery(Generic[Frame]):
    """Both directions with one peer. Not thread-safe. `base`: messages are numbered from `base` + 1 on. With `in_order`
    a gap means a faulty peer; without, what came too early waits for its turn. `transcript`: what both ends sign."""

    def __init__(
        self,
        peer: PartyName,
        bounds: Bounds,
        *,
        base: int = 0,
        in_order: bool = True,
        size_of: Callable[[Any], int] = len,
        transcript: Transcript | None = None,
    ) -> None:
        self.peer, self.bounds, self.transcript = peer, bounds, transcript
        self.accepted = self.durable = 0
        self.sent = base
        self.resent = self.repeated = self.missed = self.dropped = 0
        self.lost = self.closed = False
        self._in_order, self._size_of = in_order, size_of
        self._kept: deque[tuple[int, Frame]] = deque()  # (size, message) of first_kept, first_kept + 1, ..., sent
        self._kept_bytes = 0
        self._known_durable = 0  # at the peer
        self._cursor = base + 1  # the next number to write
        self.highest_written = base
        self._window_bytes = 0
        self._early: dict[int, tuple[int, Frame]] = {}  # (size, message) that came before an earlier one
        self._inbox: deque[tuple[int, int]] = deque()  # (number, size) of what is accepted and not durable
        self._held_bytes = 0  # of both
        self._leftover = (0, 0)  # frames and bytes of an earlier window, of a peer that has held us for lost
        self._jumps: dict[int, bytes] = {}  # by message that others were left out before: the head behind those

    # -- what we send ----------------------------------------------------------------------------------------------

    @property
    def first_kept(self) -> int:
        return self.sent - len(self._kept) + 1

    @property
    def acknowledged(self) -> int:
        return self.first_kept - 1

    @property
    def unacknowledged(self) -> int:
        return len(self._kept)

    def kept(self) -> list[Frame]:
        return [frame for _, frame in self._kept]

    def state(self) -> tuple[int, int, list[Frame], bytes]:
        past = self.transcript.chains.past(self.durable) if self.transcript is not None else b""
        return self.sent, self.durable, self.kept(), past

    def restore(self, *, sent: int, kept: list[Frame], accepted: int, chains: Chains | None = None) -> None:
        """Go on where a log ended: everything accepted before the crash is durable."""
        self.sent, self.accepted, self.durable = sent, accepted, accepted
        if self.transcript is not None and chains is not None:
            self.transcript.chains = chains
        self._kept = deque((self._size_of(frame), frame) for frame in kept)
        self._kept_bytes = sum(size for size, _ in self._kept)
        self._cursor = self.first_kept
        self.highest_written = self.sent

    def full(self, size: int) -> bool:
        """Whether a message of this size would pass what is kept for a peer that is not lost."""
        much = len(self._kept) >= self.bounds.backlog_frames or self._kept_bytes + size > self.bounds.backlog_bytes
        return much and not self.lost and not self.closed

    def offer(self, frame: Frame) -> int:
        """Take a message to send; its number is returned. Beyond the bounds the peer has failed."""
        size, bounds = self._size_of(frame), self.bounds
        if size > bounds.frame_bytes:
            raise PeerFailed(
                f"a message of {size} bytes to '{self.peer}' is larger than the {bounds.frame_bytes} bytes "
                "that one message may have; use smaller batches or raise `frame_bytes` on both sides."
            )
        if self.full(size):
            raise PeerFailed(
                f"'{self.peer}' is {len(self._kept)} messages ({self._kept_bytes} bytes) behind, which is the bound; "
                "it is too slow for this run or has stopped answering."
            )
        self._kept.append((size, frame))
        self._kept_bytes += size
        self.sent += 1
        if self.transcript is not None:
            self.transcript.chains.sent.add(self.sent, frame)  # type: ignore[arg-type]
        if self.lost or self.closed:
            self._forget_oldest()
        return self.sent

    def peer_lost(self) -> None:
        self.lost = True
        self._forget_oldest()

    def peer_back(self) -> None:
        self.lost = False

    def close(self) -> None:
        """The peer takes nothing more: nothing is kept for it."""
        self.closed = True
        self._forget_oldest()

    def open(self) -> None:
        """The peer takes part again; what was for it meanwhile is gone."""
        self.closed = False

    def _forget_oldest(self) -> None:
        """Of what is for a peer that does not answer only a window is kept, the latest of it."""
        frames, size = (0, 0) if self.closed else (self.bounds.window_frames, self.bounds.window_bytes)
        while self._kept and (len(self._kept) > frames or self._kept_bytes > size):
            self._drop_first()
            self.dropped += 1
            if self.transcript is not None:
                self.transcript.chains.forget(self.first_kept - 1)

    def _drop_first(self) -> None:
        written = self.first_kept < self._cursor
        size, _ = self._kept.popleft()
        self._kept_bytes -= size
        if written:
            self._window_bytes = max(0, self._window_bytes - size)
        self._cursor = max(self._cursor, self.first_kept)

    @property
    def jump(self) -> bytes:
        """The head behind what was forgotten, for a peer that may not have had it; nothing for others."""
        if self.transcript is None or self._known_durable >= self.first_kept - 1:
            return b""
        return self.transcript.chains.sent.at(self.first_kept - 1) or b""

    def opened(self, peer_accepted: int) -> None:
        """A stream is up; the peer holds our messages up to this number (fewer than before if it crashed)."""
        if not self._known_durable <= peer_accepted <= self.sent:
            raise PeerFailed(
                f"'{self.peer}' says it holds our messages up to {peer_accepted}, but we sent {self.sent} and can "
                f"repeat from {self._known_durable + 1}: its run folder and ours do not belong together."
            )
        self.rewind(peer_accepted)
        for number in list(self._early):  # of a packet that was refused: what comes now counts, and nothing of before
            self._held_bytes -= self._early.pop(number)[0]
        if self.transcript is not None:
            self.transcript.again()

    def rewind(self, peer_accepted: int) -> None:
        """Write again what comes after this number."""
        self._cursor = max(peer_accepted + 1, self.first_kept)
        held = self._cursor - self.first_kept
        self._window_bytes = sum(self._kept[i][0] for i in range(held))

    def take(self) -> tuple[int, list[Frame]] | None:
        """(number of the first, messages) to write next, as many as are ready and fit; None if nothing may be."""
        first, at = self._cursor, self._cursor - self.first_kept
        frames: list[Frame] = []
        packet_bytes = 0
        while at < len(self._kept) and at < self.bounds.window_frames and len(frames) < self.bounds.packet_frames:
            size, frame = self._kept[at]
            full = packet_bytes + size > self.bounds.packet_bytes
            blocked = self._window_bytes + size > self.bounds.window_bytes and self._window_bytes > 0
            if (frames and full) or blocked:
                break
            frames.append(frame)
            packet_bytes += size
            self._window_bytes += size
            at += 1
        if not frames:
            return None
        self._cursor += len(frames)
        self.resent += max(0, min(self.highest_written, self._cursor - 1) - first + 1)
        self.highest_written = max(self.highest_written, self._cursor - 1)
        return first, frames

    def acknowledge(self, durable: int, seal: Seal | None = None, *, done: bool = False) -> None:
        """The peer has our messages up to `durable` in its log: forget them. `done`: we have said that no more come."""
        if durable >= max(self._cursor, self.highest_written + 1):
            raise BadFrame(f"'{self.peer}' acknowledged message {durable}, which was never written to it")
        self._known_durable = max(self._known_durable, durable)
        while self._kept and self.first_kept <= durable:
            self._drop_first()
        if self.transcript is not None:
            self.transcript.chains.sent.keep_from(self.first_kept - 1)
            if seal is not None:
                self.transcript.heard(seal, done=done)

    # -- what reaches us -------------------------------------------------------------------------------------------

    def arrived(self, first: int, frames: list[Frame], oldest: int = 0, jump: bytes = b"") -> list[tuple[int, Frame]]:
        """(number, message) of what is new to us and in order now. Before `oldest` nothing will come any more; `jump`:
        the head behind that."""
        if first < 1:
            raise BadFrame(f"'{self.peer}' numbered a message {first}; numbers begin at 1")
        if oldest > self.accepted + 1:
            self._skip_to(oldest, jump)
        if self._in_order and first > self.accepted + 1:
            raise BadFrame(f"'{self.peer}' sent message {first} where {self.accepted + 1} was next")
        window = self.bounds.window_frames
        for number, frame in enumerate(frames, first):
            if number <= self.accepted or number in self._early:
                self._again(number, frame)
            elif number <= self.accepted + window and self._held_frames < window + self._leftover[0]:
                self._hold(number, frame)
            elif self._in_order:
                raise BadFrame(f"'{self.peer}' sent message {number} without waiting for acknowledgements")
        return self._now_in_order()

    def _again(self, number: int, frame: Frame) -> None:
        self.repeated += 1
        if self.transcript is not None and not self.transcript.chains.received.went(number, frame):  # type: ignore[arg-type]
            raise PeerFailed(
                f"'{self.peer}' sent message {number} a second time with other bytes than the first time: its run "
                "folder was changed, or it goes on from another state than it had."
            )

    def _skip_to(self, oldest: int, jump: bytes) -> None:
        """The peer forgot messages while it held us for lost, or began anew."""
        if self.transcript is not None:
            if not jump:
                raise BadFrame(f"'{self.peer}' leaves out messages before {oldest} and does not say what they were")
            if self.accepted + 1 in self._jumps:  # the log has a place for one head before each message
                raise BadFrame(f"'{self.peer}' leaves out messages before {oldest}, and sent none since it last did so")
            self.transcript.chains.received.jump(oldest - 1, jump)
            self._jumps[oldest] = jump
        self.missed += oldest - self.accepted - 1 if self.accepted else 0
        self.accepted = oldest - 1
        for number in [number for number in self._early if number < oldest]:
            self._held_bytes -= self._early.pop(number)[0]
        self._leftover = self._held_frames, self._held_bytes

    @property
    def _held_frames(self) -> int:
        return len(self._inbox) + len(self._early)

    def _hold(self, number: int, frame: Frame) -> None:
        """The peer is held to the window: it waits for our acknowledgements, or it is not one of us."""
        size, bounds = self._size_of(frame), self.bounds
        if size > bounds.frame_bytes:
            raise BadFrame(f"'{self.peer}' sent a message larger than {bounds.frame_bytes} bytes")
        if self._held_bytes + size > bounds.window_bytes + bounds.frame_bytes + self._leftover[1]:
            raise BadFrame(f"'{self.peer}' sent {self._held_bytes} bytes without waiting for acknowledgements")
        self._held_bytes += size
        self._early[number] = size, frame

    def _now_in_order(self) -> list[tuple[int, Frame]]:
        fresh: list[tuple[int, Frame]] = []
        while self.accepted + 1 in self._early:
            self.accepted += 1
            size, frame = self._early.pop(self.accepted)
            if self.transcript is not None:
                self.transcript.chains.received.add(self.accepted, frame)  # type: ignore[arg-type]
            self._inbox.append((self.accepted, size))
            fresh.append((self.accepted, frame))
        return fresh

    def logged(self, number: int) -> None:
        """Messages up to this number are in our log."""
        while self._inbox and self._inbox[0][0] <= number:
            self._held_bytes -= self._inbox.popleft()[1]
        self.durable = max(self.durable, number)
        if self.transcript is not None:
            self.transcript.chains.received.keep_from(number - HEADS_BEHIND)

    def jumped(self, number: int) -> bytes:
        """The head behind the messages that were left out before this one, for the log; nothing if there were none."""
        return self._jumps.pop(number, b"") if self._jumps else b""


# -- over a carrier that loses packets -----------------------------------------------------------------------------


class Packet(msgspec.Struct, Generic[Frame], frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Messages `first`, `first` + 1, ... and what the sender holds of the receiver's. `life` rises with every start
    of the sender: one that has crashed may hold fewer than it said before."""

    oldest: Number  # before this number nothing will come again
    first: Number
    frames: list[Frame]
    life: Number
    accepted: Number
    durable: Number


@dataclass(frozen=True, slots=True)
class Timing:
    """When to answer and when to ask again, in seconds."""

    answer_s: float = 0.05  # an acknowledgement waits so long for a message that it can travel with
    first_s: float = 1.0  # until the first repetition, as long as no round trip was measured
    least_s: float = 0.2
    most_s: float = 10.0


class RoundTrips:
    """How long to wait before a message is repeated: round trips as measured, smoothed, with room for their spread,
    and twice as long after each repetition (Jacobson 1988, Karn and Partridge 1987)."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._mean_s, self._spread_s, self._factor = 0.0, timing.first_s / 4, 1.0

    def measured(self, seconds: float) -> None:
        if not self._mean_s:
            self._mean_s, self._spread_s = seconds, seconds / 2
        else:
            self._spread_s += (abs(seconds - self._mean_s) - self._spread_s) / 4
            self._mean_s += (seconds - self._mean_s) / 8
        self._factor = 1.0

    def missed(self) -> None:
        self._factor = min(2 * self._factor, 1024.0)

    @property
    def mean_s(self) -> float:
        """0 as long as none was measured."""
        return self._mean_s

    @property
    def timeout_s(self) -> float:
        usual_s = max(self._timing.least_s, self._mean_s + 4 * self._spread_s)
        return min(self._timing.most_s, usual_s * self._factor)


class PacketLink(Delivery[Frame]):
    """A delivery with the timers that a carrier of packets needs. After `offer`, `heard`, `logged` and at `due_s`,
    transmit what `packet` gives until it gives nothing."""

    def __init__(
        self,
        peer: PartyName,
        bounds: Bounds,
        timing: Timing,
        *,
        life: int,
        base: int = 0,
        size_of: Callable[[Any], int] = len,
    ) -> None:
        super().__init__(peer, bounds, base=base, in_order=False, size_of=size_of)
        self.life, self.timing = life, timing
        self._trips = RoundTrips(timing)
        self._peer_life = self._peer_accepted = 0
        self._resend_s = self._answer_s = inf
        self._timed: tuple[int, float] | None = None  # (number, when it was first written)
        self._told_durable = 0
        self._restored = False

    @property
    def round_trip_s(self) -> float:
        return self._trips.mean_s

    @property
    def due_s(self) -> float:
        return inf if self.closed else min(self._resend_s, self._answer_s)

    @property
    def settled(self) -> bool:
        """The peer has all that was sent to it, or takes nothing more."""
        return self.closed or not self.unacknowledged

    def restore(self, *, sent: int, kept: list[Frame], accepted: int, chains: Chains | None = None) -> None:
        """The peer must hear that we have lost what was not in our log."""
        super().restore(sent=sent, kept=kept, accepted=accepted, chains=chains)
        self._answer_s, self._restored = 0.0, True

    def peer_back(self) -> None:
        """What is kept is written again at once."""
        super().peer_back()
        self._write_again()

    # -- packets ---------------------------------------------------------------------------------------------------

    def packet(self, now_s: float) -> Packet[Frame] | None:
        """What to transmit now, if anything."""
        if self.closed:
            return None
        if now_s >= self._resend_s:
            self._trips.missed()
            self._write_again()
        highest, taken = self.highest_written, self.take()
        if taken is not None:
            self._written(highest, now_s)
        elif not self._must_answer(now_s):
            return None
        first, frames = taken or (self.sent + 1, [])
        self._answer_s, self._told_durable = inf, self.durable
        return Packet(self.first_kept, first, frames, self.life, self.accepted, self.durable)

    def _write_again(self) -> None:
        """Write again what the peer does not hold. Where it holds all, and its log lags or its answer was lost, that is
        the last message: a repeated message is answered."""
        self.rewind(min(self._peer_accepted, self.sent - 1))
        self._timed, self._resend_s = None, inf

    def _written(self, highest_before: int, now_s: float) -> None:
        if self._timed is None and self.highest_written > highest_before:
            self._timed = (self.highest_written, now_s)
        if self._resend_s == inf:
            self._resend_s = now_s + self._trips.timeout_s

    def _must_answer(self, now_s: float) -> bool:
        behind = self.durable - self._told_durable
        if behind and self._answer_s == inf:
            self._answer_s = now_s + self.timing.answer_s
        return now_s >= self._answer_s or behind >= self.bounds.window_frames // 2

    def heard(self, packet: Packet[Frame], now_s: float) -> list[tuple[int, Frame]]:
        """(number, message) of what is new to us and in order now; nothing of a packet that breaks the rules."""
        self._acknowledged(packet, now_s)
        if packet.frames:
            self._answer_s = min(self._answer_s, now_s + self.timing.answer_s)
        return self.arrived(packet.first, packet.frames, packet.oldest)

    def _refuse(self, accepted: int) -> None:
        peer = self.peer
        if not self._restored:
            raise BadFrame(f"'{peer}' says it holds message {accepted}, which was never sent to it")
        raise PeerFailed(
            f"'{peer}' holds our messages up to {accepted}, but our log tells of {self.sent}: our state is "
            "older than what we have sent. Going on would send other messages under the same numbers."
        )

    def _acknowledged(self, packet: Packet[Frame], now_s: float) -> None:
        if packet.accepted > self.sent:
            self._refuse(packet.accepted)
        if packet.durable > packet.accepted:
            raise BadFrame(f"'{self.peer}' says its log holds message {packet.durable}, which it has not got")
        before = self._peer_accepted
        if packet.life > self._peer_life:
            if self._peer_life:  # it was started again, and has lost what was not in its log
                self.rewind(packet.accepted)
                self._timed = None
            self._peer_life, self._peer_accepted = packet.life, packet.accepted
        elif packet.life == self._peer_life:
            self._peer_accepted = max(before, packet.accepted)
        self.acknowledge(packet.durable)
        if self._timed is not None and self._peer_accepted >= self._timed[0]:
            self._trips.measured(now_s - self._timed[1])
            self._timed = None
        if not self.unacknowledged:
            self._resend_s = inf
        elif self._peer_accepted > before:
            self._resend_s = now_s + self._trips.timeout_s
