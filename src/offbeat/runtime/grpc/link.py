"""The messages between us and one peer: numbered, kept until acknowledged, delivered once. No input or output here.

Each side numbers what it sends 1, 2, 3, ... for the whole run, whatever streams come and go. A number is *accepted*
when its message is in the receiver's inbox, and *durable* when it is in the receiver's log and would survive a crash.
The sender keeps a message until it is durable; a new stream starts after the last accepted one. So a message may
cross the wire several times and reaches the party exactly once, in order.
"""

from collections import deque

from offbeat.errors import BadFrame, PeerFailed
from offbeat.party.contract import PartyName
from offbeat.runtime.grpc.wire import Bounds, Data


class Link:
    """Both directions with one peer. Not thread-safe: its channel holds a lock around it."""

    def __init__(self, peer: PartyName, bounds: Bounds) -> None:
        self.peer = peer
        self.bounds = bounds
        self.accepted = 0
        self.durable = 0
        self.sent = 0
        self.resent = 0
        self.repeated = 0
        self._kept: deque[bytes] = deque()  # messages first_kept, first_kept + 1, ..., sent
        self._kept_bytes = 0
        self._cursor = 1  # the next number to write on the present stream
        self._highest_written = 0
        self._window_bytes = 0
        self._inbox: deque[int] = deque()  # sizes of the messages durable + 1, ..., accepted
        self._inbox_bytes = 0

    @property
    def first_kept(self) -> int:
        return self.sent - len(self._kept) + 1

    @property
    def unacknowledged(self) -> int:
        return len(self._kept)

    @property
    def unacknowledged_bytes(self) -> int:
        return self._kept_bytes

    def kept(self) -> list[bytes]:
        return list(self._kept)

    def restore(self, *, sent: int, kept: list[bytes], accepted: int) -> None:
        """Go on where a log ended: everything accepted before the crash is durable."""
        self.sent, self.accepted, self.durable = sent, accepted, accepted
        self._kept = deque(kept)
        self._kept_bytes = sum(len(frame) for frame in kept)
        self._cursor = self.first_kept
        self._highest_written = self.sent

    def offer(self, frame: bytes) -> int:
        """Take a message to send; its number is returned. Beyond the bounds the peer counts as lost."""
        if len(frame) > self.bounds.frame_bytes:
            raise PeerFailed(
                f"a message of {len(frame)} bytes to '{self.peer}' is larger than the {self.bounds.frame_bytes} bytes "
                "that one message may have; use smaller batches or raise `frame_bytes` on both sides."
            )
        if len(self._kept) >= self.bounds.backlog_frames or self._kept_bytes + len(frame) > self.bounds.backlog_bytes:
            raise PeerFailed(
                f"'{self.peer}' is {len(self._kept)} messages ({self._kept_bytes} bytes) behind, which is the bound; "
                "it is too slow for this run or has stopped answering."
            )
        self._kept.append(frame)
        self._kept_bytes += len(frame)
        self.sent += 1
        return self.sent

    def opened(self, peer_accepted: int) -> None:
        """A stream is up; the peer holds our messages up to this number (fewer than before if it crashed)."""
        if not self.first_kept - 1 <= peer_accepted <= self.sent:
            raise PeerFailed(
                f"'{self.peer}' says it holds our messages up to {peer_accepted}, but we sent {self.sent} and can "
                f"repeat from {self.first_kept}: its run folder and ours do not belong together."
            )
        self._cursor = peer_accepted + 1
        held = peer_accepted - self.first_kept + 1
        self._window_bytes = sum(len(self._kept[i]) for i in range(held))

    def take(self) -> Data | None:
        """The next packet to write, as many messages as are ready and fit; None if nothing may be written now."""
        first, at = self._cursor, self._cursor - self.first_kept
        frames: list[bytes] = []
        size = 0
        while at < len(self._kept) and at < self.bounds.window_frames and len(frames) < self.bounds.packet_frames:
            frame = self._kept[at]
            full = size + len(frame) > self.bounds.packet_bytes
            blocked = self._window_bytes + len(frame) > self.bounds.window_bytes and self._window_bytes > 0
            if (frames and full) or blocked:
                break
            frames.append(frame)
            size += len(frame)
            self._window_bytes += len(frame)
            at += 1
        if not frames:
            return None
        self._cursor += len(frames)
        self.resent += max(0, min(self._highest_written, self._cursor - 1) - first + 1)
        self._highest_written = max(self._highest_written, self._cursor - 1)
        return Data(first, self.durable, frames)

    def acknowledged(self, durable: int) -> None:
        """The peer has our messages up to `durable` in its log: forget them."""
        if durable >= max(self._cursor, self._highest_written + 1):
            raise BadFrame(f"'{self.peer}' acknowledged message {durable}, which was never written to it")
        while self._kept and self.first_kept <= durable:
            frame = self._kept.popleft()
            self._kept_bytes -= len(frame)
            self._window_bytes = max(0, self._window_bytes - len(frame))
        self._cursor = max(self._cursor, self.first_kept)

    def arrived(self, data: Data) -> list[tuple[int, bytes]]:
        """The messages of a packet that are new to us, with their numbers. A gap means a faulty peer."""
        if data.first > self.accepted + 1:
            raise BadFrame(f"'{self.peer}' sent message {data.first} where {self.accepted + 1} was next")
        if data.first < 1:
            raise BadFrame(f"'{self.peer}' numbered a message {data.first}; numbers begin at 1")
        old = self.accepted + 1 - data.first
        self.repeated += min(old, len(data.frames))
        fresh = [(data.first + i, frame) for i, frame in enumerate(data.frames) if i >= old]
        self._admit([len(frame) for _, frame in fresh])
        self.accepted += len(fresh)
        return fresh

    def _admit(self, sizes: list[int]) -> None:
        """Hold the peer to the window: it waits for our acknowledgements, or it is not one of us."""
        if any(size > self.bounds.frame_bytes for size in sizes):
            raise BadFrame(f"'{self.peer}' sent a message larger than {self.bounds.frame_bytes} bytes")
        frames, size = len(self._inbox) + len(sizes), self._inbox_bytes + sum(sizes)
        if frames > self.bounds.window_frames or size > self.bounds.window_bytes + self.bounds.frame_bytes:
            raise BadFrame(f"'{self.peer}' sent {frames} messages ({size} bytes) without waiting for acknowledgements")
        self._inbox.extend(sizes)
        self._inbox_bytes = size

    def logged(self, number: int) -> None:
        """Messages up to this number are in our log."""
        while self.durable < number:
            self._inbox_bytes -= self._inbox.popleft()
            self.durable += 1
