"""The listening side: a stream is let in by its certificate, then by its greeting.

Without a certificate from the roster's authorities, or one of the pinned ones, TLS fails before any of our code runs.
A certificate that is genuine but not pinned is turned away by name. Then protocol version, roster, run and job must
agree; what does not is answered by a sentence that says which, on both sides.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import grpc

from offbeat.errors import BadFrame, BadInput, OffbeatError
from offbeat.runtime.delivery import Bounds
from offbeat.runtime.grpc.channel import Channel
from offbeat.runtime.grpc.identity import Identity, Member, PinnedRoster, short
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

_STREAMS_PER_MEMBER = 16
_SPARE_THREADS = 16
_HELLO_WITHIN_S = 10.0
_ENDED_RUNS = 1000
CONNECT_WITHIN_MS = 3_000
"""gRPC gives a connection, TLS included, this long: a far or busy peer needs more than the shortest back-off."""


class Joinable(Protocol):
    """A run that streams can be attached to: what the server needs to know of a session."""

    job_digest: str
    roster: PinnedRoster  # of those who take part

    def channel(self, peer: str) -> Channel: ...


Unary = Callable[[Member, bytes], bytes]
"""A control call: who asks (always a pinned member), and the request; returns the answer."""


class StreamServer:
    """One listening port for all runs of this party."""

    def __init__(
        self,
        identity: Identity,
        roster: PinnedRoster,
        address: str,
        *,
        bounds: Bounds | None = None,
        control: Mapping[str, Unary] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` each handshake: whoever owns the server may change its `roster` then."""
        self.identity = identity
        self.roster = self._roster_shown = roster
        self.before = before
        self.address = address
        self.bounds = bounds or Bounds()
        self.refused: Counter[str] = Counter()
        self._control = dict(control or {})
        self._runs: dict[str, Joinable] = {}
        self._ended: dict[str, str] = {}
        self._callers: dict[str, set[str]] = {}  # of runs that are not open here
        self._streams: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    def start(self) -> int:
        """Begin to listen; returns the port (of use when the address asked for port 0)."""
        # Enough for every member's streams at once, so that no member can keep another out.
        threads = _STREAMS_PER_MEMBER * len(self.roster.members) + _SPARE_THREADS
        server = grpc.server(
            ThreadPoolExecutor(threads), options=channel_options(self.bounds), maximum_concurrent_rpcs=threads
        )
        methods: dict[str, Any] = {"Join": grpc.stream_stream_rpc_method_handler(self._join)}
        for name, answer in self._control.items():
            methods[name] = grpc.unary_unary_rpc_method_handler(self._unary(answer))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        credentials = grpc.dynamic_ssl_server_credentials(self._shown(), self._at_handshake, True)
        try:
            port: int = server.add_secure_port(self.address, credentials)
        except RuntimeError as problem:
            raise BadInput(
                f"cannot listen at {self.address}: another process uses this port, or the address is not this "
                "machine's. Stop the other one, or change `listen` in party.toml (and the address in every roster)."
            ) from problem
        server.start()
        self._server = server
        return port

    def _shown(self) -> Any:
        """What this party shows, and what it takes from others."""
        pair = (self.identity.key_pem, self.identity.certificate_pem)
        self._roster_shown = self.roster
        return grpc.ssl_server_certificate_configuration([pair], self._roster_shown.roots_pem)

    def _at_handshake(self) -> Any:
        """None: as before. A request over an open connection may have brought the newer roster, too."""
        self.before()
        return self._shown() if self.roster is not self._roster_shown else None

    def stop(self, grace_s: float = 1.0) -> None:
        if self._server is not None:
            self._server.stop(grace_s).wait()

    def serve(self, run: str, session: Joinable) -> None:
        self._runs[run] = session
        self._callers.pop(run, None)

    def called(self, run: str, member: str) -> bool:
        """Whether this member has called for a run that is not open here yet."""
        return member in self._callers.get(run, ())

    def withdraw(self, run: str) -> None:
        """The run is not open here for a while; who calls for it calls again."""
        self._runs.pop(run, None)

    def forget(self, run: str, verdict: str) -> None:
        """The run has ended here; who still calls for it is told how."""
        self._runs.pop(run, None)
        self._ended[run] = verdict
        _keep_few(self._ended)

    # -- who may come in ------------------------------------------------------------------------------------------

    def _member(self, context: Any) -> Member:
        shown = context.auth_context().get("x509_pem_cert", [b""])[0]
        member = self.roster.who(shown) if shown else None
        if member is None:
            names = context.auth_context().get("x509_common_name", [b"nobody"])
            self._note("not on the roster", f"{names[0].decode(errors='replace')} at {context.peer()}")
            reason = f"this certificate is not on the roster of '{self.identity.name}' ({short(self.roster.hash)})"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        assert member is not None
        return member

    def _note(self, why: str, who: str) -> None:
        """Log a refusal, the first of each kind in full and then each time their number doubles."""
        self.refused[why] += 1
        count = self.refused[why]
        if count & (count - 1) == 0:
            log.warning("refused %s: %s (%d so far)", who, why, count)

    def _unary(self, answer: Unary) -> Callable[[bytes, Any], bytes]:
        def call(request: bytes, context: Any) -> bytes:
            member = self._member(context)
            return answer(member, request)

        return call

    def _join(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        member = self._member(context)
        with self._lock:
            self._streams[member.name] += 1
            crowded = self._streams[member.name] > _STREAMS_PER_MEMBER
        try:
            if crowded:
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"'{member.name}' has {_STREAMS_PER_MEMBER} streams open"
                )
            yield from self._stream(member, requests, context)
        finally:
            with self._lock:
                self._streams[member.name] -= 1

    def _stream(self, member: Member, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        late = threading.Timer(_HELLO_WITHIN_S, context.cancel)
        late.daemon = True
        late.start()
        try:
            hello = unpack(next(requests, b""), self.bounds)
        except (BadFrame, grpc.RpcError) as problem:
            self._note("no greeting", f"{member.name}: {problem}")
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a stream begins with a greeting")
            return
        finally:
            late.cancel()
        refusal = self._refusal(member, hello)
        if refusal is not None:
            if refusal.final:  # the others pass by themselves: a phase that begins here a moment later
                self._note("greeting does not agree", f"{member.name}: {refusal.reason}")
            yield pack(refusal)
            return
        assert isinstance(hello, Greeting)
        yield from self._carry(member, hello, requests, context)

    def _refusal(self, member: Member, hello: Any) -> Refusal | None:
        me = self.identity.name
        if not isinstance(hello, Greeting):
            return Refusal("a stream begins with a greeting", True)
        if hello.protocol != PROTOCOL_VERSION:
            return Refusal(
                f"'{me}' runs offbeat {offbeat_version()} with protocol {PROTOCOL_VERSION}, '{hello.name}' runs "
                f"offbeat {hello.offbeat} with protocol {hello.protocol}: install the same version on both sides",
                True,
            )
        if hello.name != member.name:
            return Refusal(f"the certificate belongs to '{member.name}', the greeting says '{hello.name}'", True)
        session = self._runs.get(hello.run)
        if session is None:
            with self._lock:
                self._callers.setdefault(hello.run, set()).add(member.name)
                _keep_few(self._callers)
            return Refusal(f"run '{hello.run}' is not open at '{me}'", False, self._ended.get(hello.run, ""))
        if not session.roster.agrees(hello.pins, hello.roster):
            return Refusal(
                f"the rosters differ about the parties of run '{hello.run}': '{me}' has {short(session.roster.hash)}, "
                f"'{member.name}' has {short(hello.roster)}; compare the files and give both sides the same one",
                True,
            )
        if hello.job != session.job_digest:
            return Refusal(
                f"'{me}' and '{member.name}' disagree about run '{hello.run}': its options or the order of its rows "
                f"have digest {session.job_digest[:16]} here and {hello.job[:16]} there",
                True,
            )
        return None

    def _carry(self, member: Member, hello: Greeting, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            channel = self._runs[hello.run].channel(member.name)
            generation = channel.open(hello.accepted, context.cancel)
        except OffbeatError as problem:
            yield pack(Refusal(str(problem), not isinstance(problem, BadFrame)))
            return
        proof = self.identity.sign(welcome_content(hello, self.identity.name))
        yield pack(Welcome(channel.delivery.accepted, proof))
        threading.Thread(target=read, args=(channel, generation, requests), daemon=True).start()
        try:
            yield from channel.packets(generation)
        finally:
            channel.lost(generation)


def _keep_few(runs: dict[str, Any]) -> None:
    while len(runs) > _ENDED_RUNS:
        del runs[next(iter(runs))]


def read(channel: Channel, generation: int, packets: Iterator[bytes]) -> None:
    """Push a stream's packets into its channel until it ends or breaks the rules."""
    try:
        for raw in packets:
            channel.receive(generation, raw)
    except grpc.RpcError:
        pass  # the stream is gone; the channel will be carried by another
    except BadFrame as problem:
        channel.faults += 1
        log.warning("dropped the stream with %s: %s", channel.peer, problem, extra={"peer": channel.peer})
        channel.abandon()
    except OffbeatError as problem:
        channel.fail(problem)
    finally:
        channel.lost(generation)


def welcome_content(hello: Greeting, listener: str) -> bytes:
    """What a listener signs: it binds the answer to this caller, this run and this greeting."""
    parts = ("offbeat welcome", listener, hello.name, hello.run, hello.roster, hello.nonce.hex())
    return "\n".join(parts).encode()


def channel_options(bounds: Bounds) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", bounds.wire_bytes),
        ("grpc.max_send_message_length", bounds.wire_bytes),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.so_reuseport", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", CONNECT_WITHIN_MS),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]
