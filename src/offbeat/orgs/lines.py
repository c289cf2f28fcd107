"""Calls to daemons: over connections that stay open, where a call costs its round trip and no handshake, or once."""

import threading
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from offbeat.errors import PeerFailed
from offbeat.orgs.control import CALL_WITHIN_S, METHOD, Answer, Request, decode_answer, encode
from offbeat.orgs.party_config import Home
from offbeat.runtime.delivery import Bounds
from offbeat.runtime.grpc.identity import Identity, Member, PinnedRoster, out_of_time
from offbeat.runtime.grpc.wire import SERVICE


class LineBroken(PeerFailed):
    """The connection is gone; the next call makes another."""


class Lines:
    """One connection to each member's address, made when it is first needed and anew after it failed. Thread-safe."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._open: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self.made = 0  # connections; this and what follows is told in metrics
        self.calls: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def call(self, member: Member, request: Request, within_s: float = CALL_WITHIN_S) -> Answer:
        """One request, one answer; raises what the other side raised, or `PeerFailed`."""
        import grpc

        wire, begin_s = self._line(member), time.perf_counter()
        try:
            raw = wire.unary_unary(f"/{SERVICE}/{METHOD}")(encode(request), timeout=within_s)
        except grpc.RpcError as problem:
            self._hang_up(member, wire)
            broken = problem.code() is grpc.StatusCode.UNAVAILABLE
            raise (LineBroken if broken else PeerFailed)(unreachable(member, problem)) from problem
        with self._lock:
            self.calls[member.name] += 1
            self.seconds[member.name] += time.perf_counter() - begin_s
        return decode_answer(raw)

    def close(self) -> None:
        with self._lock:
            for wire in self._open.values():
                wire.close()
            self._open.clear()

    def _line(self, member: Member) -> Any:
        from offbeat.runtime.grpc.dialer import open_channel

        with self._lock:
            where = (member.name, member.address)
            if where not in self._open:
                # The pinned certificates are the only anchors: whoever else an authority has signed, or a member could
                # sign, is not this member.
                pinned = PinnedRoster((), member.certificates)
                self._open[where] = open_channel(self._identity, pinned, member, Bounds())
                self.made += 1
            return self._open[where]

    def _hang_up(self, member: Member, wire: Any) -> None:
        with self._lock:
            if self._open.get((member.name, member.address)) is wire:
                del self._open[member.name, member.address]
        wire.close()


@dataclass(frozen=True)
class PeerCalls:
    """Calls to members of a roster, each over a connection of its own."""

    identity: Identity
    roster: PinnedRoster

    def call(self, peer: str, request: Request, timeout_s: float = CALL_WITHIN_S) -> Answer:
        """One request, one answer; raises what the other side raised, or `PeerFailed` if it cannot be reached."""
        member = self.roster.member(peer)
        if not member.address:
            raise PeerFailed(f"'{peer}' has no address in the roster and can only be waited for.")
        with closing(Lines(self.identity)) as lines:
            return lines.call(member, request, timeout_s)


class OwnDaemon:
    """Asks in the owner's name; finds a daemon that was started anew. `address`: where it is, if not where it was
    started last. Thread-safe."""

    def __init__(self, home: Home, address: str = "") -> None:
        self._home, self._address, self._lines = home, address, Lines(home.identity())

    def ask(self, request: Request, within_s: float = 60.0) -> Any:
        address = self._address or self._home.daemon_address()
        member = replace(self._home.roster().member(self._home.name), address=address)
        return self._lines.call(member, request, within_s)

    def close(self) -> None:
        self._lines.close()


def unreachable(member: Member, problem: Any) -> str:
    code, detail = problem.code(), str(problem.details())
    if code.name == "PERMISSION_DENIED":
        return f"'{member.name}' refused us: {detail}."
    if code.name == "DEADLINE_EXCEEDED":
        return f"'{member.name}' at {member.address} did not answer in time; is its daemon busy or stopped?"
    if trouble := out_of_time(member.certificate_pem):
        return f"'{member.name}' cannot be reached at {member.address}: its certificate {trouble}"
    for sign, meaning in _SIGNS.items():
        if sign in detail:
            return f"'{member.name}' cannot be reached at {member.address}: {meaning}"
    return f"'{member.name}' cannot be reached at {member.address} ({detail}). {_RUNNING}"


_RUNNING = "Is `offbeat party serve` running there, is the port open, and does its roster hold our certificate?"
_PINNED = "`offbeat keys show` lists what is pinned; compare it with that party, by telephone."
_SIGNS = {
    "Connection refused": "nothing listens there. Is `offbeat party serve` running, and is the address in the roster "
    "its own?",
    "certificate has expired": "its certificate has expired. It makes a new one, and everybody trusts that "
    "(docs/how-to/rotating-keys.md).",
    "CERTIFICATE_VERIFY_FAILED": "whoever listens there does not show the certificate that our roster pins for it. "
    + _PINNED,
    "Hostname Verification": "another party listens there than the one our roster names. Is the address right? "
    + _PINNED,
    "WRONG_VERSION_NUMBER": "whatever listens there does not speak TLS. Is the port right?",
    "Socket closed": "it closed the connection. Either its daemon ended meanwhile, or it refuses our certificate: its "
    "roster holds none of us or an older one (then it must `offbeat keys trust` ours), or ours is not valid by its "
    "clock (`offbeat party check`).",
    "name not found": "there is no host of this name. Is the address in the roster right?",
    "Domain name": "there is no host of this name. Is the address in the roster right?",
}
"""What gRPC says, and what it means for the people at both ends."""
