"""The calling side: connect to a peer, greet it, check that it is who the roster says, and come back after a break."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from offbeat.errors import BadFrame, OffbeatError, PeerFailed
from offbeat.runtime.delivery import Bounds
from offbeat.runtime.grpc.channel import Channel
from offbeat.runtime.grpc.identity import Identity, Member, PinnedRoster, tls_name
from offbeat.runtime.grpc.server import channel_options, read, welcome_content
from offbeat.runtime.grpc.wire import (
    PROTOCOL_VERSION,
    SERVICE,
    Greeting,
    Refusal,
    Welcome,
    offbeat_version,
    pack,
    unpack,
)

log = logging.getLogger("offbeat.grpc")

_PAUSE_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_WELCOME_WITHIN_S = 10.0


def open_channel(identity: Identity, roster: PinnedRoster, member: Member, bounds: Bounds) -> Any:
    """A gRPC channel to one member: our certificate shown, theirs asked for by the name it was made for."""
    credentials = grpc.ssl_channel_credentials(roster.roots_pem, identity.key_pem, identity.certificate_pem)
    options = [*channel_options(bounds), ("grpc.ssl_target_name_override", tls_name(member.name))]
    # A pool of its own: a broken connection to this address must not be shared with another run.
    options.append(("grpc.use_local_subchannel_pool", 1))
    return grpc.secure_channel(member.address, credentials, options)


class Dialer:
    """Keeps one channel carried by a stream, from its own thread, until it is told to stop."""

    def __init__(
        self,
        identity: Identity,
        roster: PinnedRoster,
        peer: Member,
        channel: Channel,
        *,
        run: str,
        job_digest: str,
        give_up: Callable[[OffbeatError], None],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` a connection is made anew: whoever owns the session may change its roster then."""
        self.identity = identity
        self.roster = roster
        self.peer = peer
        self.channel = channel
        self.run = run
        self.job_digest = job_digest
        self.trouble = ""
        self._give_up, self._before = give_up, before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_connected, name=f"dial {peer.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def trust(self, roster: PinnedRoster) -> None:
        """Take another roster for the connections to come."""
        self.roster, self.peer = roster, roster.member(self.peer.name)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _keep_connected(self) -> None:
        attempt = 0
        wire = open_channel(self.identity, self.roster, self.peer, self.channel.delivery.bounds)
        try:
            while not self._stop.is_set() and self.channel.peer_verdict is None:
                connected = self._connect(wire)
                attempt = 0 if connected else attempt + 1
                if not connected and attempt > len(_PAUSE_S):
                    # gRPC may sit out a back-off of its own on this connection; a new one tries at once.
                    wire.close()
                    self._before()
                    wire = open_channel(self.identity, self.roster, self.peer, self.channel.delivery.bounds)
                    attempt = 2
                self._stop.wait(_PAUSE_S[min(attempt, len(_PAUSE_S) - 1)])
        except OffbeatError as problem:
            self._give_up(problem)
        finally:
            wire.close()

    def _connect(self, wire: Any) -> bool:
        """Carry the channel by one stream until it ends; True if it was ever up."""
        hello = self._hello()
        accepted = threading.Event()
        state: dict[str, int] = {}

        def packets() -> Iterator[bytes]:
            yield pack(hello)
            accepted.wait(_WELCOME_WITHIN_S)
            if "generation" in state:
                yield from self.channel.packets(state["generation"])

        began_s = time.monotonic()
        call = wire.stream_stream(f"/{SERVICE}/Join")(packets())
        late = threading.Timer(_WELCOME_WITHIN_S, call.cancel)
        late.daemon = True
        late.start()
        try:
            welcome = unpack(next(call), self.channel.delivery.bounds)
            trip_s = min(time.monotonic() - began_s, 60.0)
            late.cancel()
            self._check(hello, welcome)
            assert isinstance(welcome, Welcome)
            state["generation"] = self.channel.open(welcome.accepted, call.cancel, trip_s)
        except (grpc.RpcError, StopIteration) as problem:
            self._complain(problem)
            return False
        except BadFrame as problem:
            self.trouble = str(problem)
            return False
        finally:
            late.cancel()
            accepted.set()
        self.trouble = ""
        read(self.channel, state["generation"], call)
        call.cancel()
        return True

    def _hello(self) -> Greeting:
        accepted = self.channel.delivery.accepted
        nonce = secrets.token_bytes(32)
        name = self.identity.name
        roster, told = self.roster, (PROTOCOL_VERSION, offbeat_version(), self.run, name)
        return Greeting(*told, roster.hash, self.job_digest, accepted, nonce, roster.pins)

    def _check(self, hello: Greeting, welcome: Any) -> None:
        if isinstance(welcome, Refusal):
            if welcome.ended:
                self.channel.gone(welcome.ended)
            if welcome.final:
                raise PeerFailed(f"'{self.peer.name}' refused the connection: {welcome.reason}.")
            raise BadFrame(welcome.reason)
        if not isinstance(welcome, Welcome):
            raise BadFrame(f"'{self.peer.name}' answered a greeting with a {type(welcome).__name__}")
        if not self.peer.signed(welcome_content(hello, self.peer.name), welcome.signature):
            raise PeerFailed(
                f"whoever answers at {self.peer.address} does not hold the key of the certificate that the roster pins "
                f"for '{self.peer.name}'; compare the roster with that party before going on."
            )

    def _complain(self, problem: Exception) -> None:
        code = getattr(problem, "code", lambda: None)()
        detail = getattr(problem, "details", lambda: "the stream ended")()
        if code is grpc.StatusCode.PERMISSION_DENIED:
            raise PeerFailed(f"'{self.peer.name}' refused the connection: {detail}.") from problem
        self.trouble = f"cannot reach '{self.peer.name}' at {self.peer.address}: {detail}"
        log.debug(self.trouble)
