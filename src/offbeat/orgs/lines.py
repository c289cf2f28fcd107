"""Connections to peers that stay open: a call costs its round trip, and no handshake after the first."""

import threading
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from offbeat.errors import PeerFailed
from offbeat.orgs.control import CALL_WITHIN_S, METHOD, Answer, Request, decode_answer, encode, unreachable
from offbeat.orgs.party_config import Home
from offbeat.runtime.delivery import Bounds
from offbeat.runtime.grpc.identity import Identity, Member, PinnedRoster
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
                pinned = PinnedRoster((), member.certificates)  # the only anchors, as in control.PeerCalls
                self._open[where] = open_channel(self._identity, pinned, member, Bounds())
                self.made += 1
            return self._open[where]

    def _hang_up(self, member: Member, wire: Any) -> None:
        with self._lock:
            if self._open.get((member.name, member.address)) is wire:
                del self._open[member.name, member.address]
        wire.close()


class OwnDaemon:
    """Asks in the owner's name; finds a daemon that was started anew. Thread-safe."""

    def __init__(self, home: Home) -> None:
        self._home, self._lines = home, Lines(home.identity())

    def ask(self, request: Request, within_s: float = 60.0) -> Any:
        member = replace(self._home.roster().member(self._home.name), address=self._home.daemon_address())
        return self._lines.call(member, request, within_s)

    def close(self) -> None:
        self._lines.close()
