"""Edges behind NAT: the same party objects over a real MQTT broker. Needs the extra `mqtt`.

A party is one client of the broker. A host carries it, on the thread that called `serve`; paho's own thread reads and
writes the socket. A broker delivers at least once while its queues hold; deliveries of our own, numbered and
acknowledged from log to log, make that once and in order, whatever the broker forgets.

    crash      events are in the party's log before anything leaves: a party goes on where it was, and what left is
               never forgotten, nor sent again with other contents
    restart    of the broker: paho connects again, and what was not acknowledged is repeated
    last will  the broker tells the others when a party vanishes (PeerLost) and when it is back (PeerBack)
    bounds     frames, inbox, outgoing queue and unacknowledged messages are limited; what the inbox and the queue do
               not take is dropped, counted, and repeated later
    one peer   that takes nothing, or says what cannot be, is lost for this party; the others are served as before
"""

import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from time import time_ns
from typing import Any

from offbeat.errors import BadInput, NotInstalled, PeerFailed, UnexpectedEvent
from offbeat.message.codec import Codec
from offbeat.party.contract import (
    Effect,
    Event,
    Finish,
    Message,
    Party,
    PartyName,
    PeerBack,
    PeerLost,
    Received,
)
from offbeat.runtime import delivery
from offbeat.runtime.broker import FRAME_BYTES, INFLIGHT_MESSAGES
from offbeat.runtime.contract import Look, Outcome, joined
from offbeat.runtime.drive import Written
from offbeat.runtime.host import NO_DELAY, HostOptions, PartyHost
from offbeat.runtime.packets import PacketCarrier
from offbeat.runtime.recovery import carry_over

HERE, LOST, LEFT = b"here", b"lost", b""
FRAME_WRAPPING = 1024
FAREWELL_S = 5.0
TIMING = delivery.Timing(answer_s=0.2, first_s=3.0, least_s=1.0, most_s=30.0)


@dataclass(frozen=True)
class Address:
    """Where the broker is, and who we are to it: the folder that `offbeat mqtt init` wrote for this party."""

    host: str
    port: int
    identity: Path | None = None  # None: a broker on this machine without TLS, for measurements only

    def files(self, name: PartyName) -> tuple[Path, Path, Path]:
        assert self.identity is not None
        found = (self.identity / "authority.crt", self.identity / f"{name}.crt", self.identity / f"{name}.key")
        for path in found:
            if not path.is_file():
                raise BadInput(
                    f"{path} is missing: the identity folder of {name!r} holds authority.crt, {name}.crt and "
                    f"{name}.key. `offbeat mqtt init` writes it."
                )
        return found


@dataclass(frozen=True)
class ClientBounds:
    """Limits of one client."""

    frame_bytes: int = FRAME_BYTES
    inbox: int = 1000
    outgoing: int = 1000
    inflight: int = INFLIGHT_MESSAGES
    window: int = 256  # messages to one peer that are not acknowledged
    connect_s: float = 60.0
    keepalive_s: int = 15
    linger_s: float = 30.0  # a finished party stays so long for peers that lack messages, be they lost or slow

    def of_delivery(self) -> delivery.Bounds:
        kept = {"backlog_frames": 4 * self.window, "backlog_bytes": 8 * self.frame_bytes}
        return delivery.Bounds(frame_bytes=self.frame_bytes, packet_frames=32, window_frames=self.window, **kept)


@dataclass
class Counts:
    """What went wrong and was mended."""

    repeated: int = 0
    dropped_in: int = 0
    dropped_out: int = 0
    refused_frames: int = 0
    connections: int = 0


@dataclass(frozen=True)
class Mqtt:
    """Runs parties over a broker. `folder` keeps their logs (None: nothing survives a crash).

    `durable`: the log is forced to the disk before anything leaves, and survives a power cut too (an edge, whose ledger
    must not forget); otherwise it survives a crash of the process. Behind a snapshot, written every `snapshot_s`
    seconds, the log is removed.
    """

    address: Address
    run_name: str
    messages: tuple[type[Message], ...]
    folder: Path | None = None
    durable: bool = True
    snapshot_s: float = 5.0
    lanes: int = 1
    bounds: ClientBounds = field(default_factory=ClientBounds)

    def serve(self, party: Party, look: Look | None = None) -> Outcome:
        """Carry one party until it finishes."""
        return MqttRun(self, party, look).run()

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome:
        """Carry several parties of this process, one client and one thread each."""
        outcomes: dict[PartyName, Outcome] = {}
        problems: list[BaseException] = []
        # The broker keeps nothing for a party that has never subscribed, so none begins before all have.
        gate = threading.Barrier(len(parties))

        def work(party: Party, eyes: Look | None) -> None:
            try:
                outcomes[party.name] = MqttRun(self, party, eyes, gate).run()
            except BaseException as problem:
                problems.append(problem)
                gate.abort()

        threads = [
            threading.Thread(target=work, args=(party, look if i == 0 else None), name=f"offbeat-{party.name}")
            for i, party in enumerate(parties)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return joined([outcomes[party.name] for party in parties])

    def host_options(self) -> HostOptions:
        return HostOptions(
            run_name=self.run_name,
            folder=self.folder,
            resume=True,
            base=time_ns(),  # above every number of an earlier life that left no log
            keep_log=False,
            keep_results=True,
            checkpoint_s=self.snapshot_s,
            fsync=self.durable,
            costs=replace(NO_DELAY, lanes=self.lanes),
        )


class ServesOthers:
    """A party whose peers have nothing to do with each other, such as the cloud of many edges: what one of them says
    out of turn is passed over, and the others are served."""

    def __init__(self, inner: Party) -> None:
        self.name, self.inner, self.passed_over = inner.name, inner, 0
        self.snapshot, self.restore = inner.snapshot, inner.restore

    def handle(self, event: Event) -> list[Effect]:
        try:
            return self.inner.handle(event)
        except UnexpectedEvent:
            if not isinstance(event, Received):
                raise
            self.passed_over += 1
            return []


class MqttRun:
    """One party and its client."""

    def __init__(self, setting: Mqtt, party: Party, look: Look | None, gate: threading.Barrier | None = None) -> None:
        self.setting, self.name, self.look, self.gate = setting, party.name, look, gate
        codec, self.counts = Codec(setting.messages), Counts()
        self.carrier = PacketCarrier(
            codec,
            setting.bounds.of_delivery(),
            TIMING,
            self._transmit,
            lambda letter: self.host.receive(letter),
            lambda: self.host.base,
        )
        self.host = PartyHost(
            party, codec, setting.host_options(), self._send, links=self.carrier.links, turn=self._turn
        )
        self.lost: set[PartyName] = set()
        self._statuses: dict[PartyName, bytes] = {}  # the newest word of each peer that waits to be looked at
        self._lock = threading.Lock()
        self._refused: set[PartyName] = set()  # peers that hold what was never sent to them
        self._behind: set[PartyName] = set()  # peers that are lost because they took nothing
        self.connected = threading.Event()
        self.refusal: PeerFailed | None = None
        self.look_due_s = 0.0 if look is not None else inf
        self.client = _client(setting, self.name, self._on_connect, self._on_message)
        self.client.on_subscribe = lambda *_: self.connected.set()

    # -- paho's thread -------------------------------------------------------------------------------------------

    def _topic(self, *words: str) -> str:
        return "/".join(("offbeat", self.setting.run_name, *words))

    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self.refusal = PeerFailed(f"The broker refused {self.name!r}: {reason}.")
            self.host.fail(self.refusal)
            self.connected.set()
            return
        self.counts.connections += 1
        client.subscribe([(self._topic("to", self.name, "+"), 1), (self._topic("status", "+"), 1)])
        client.publish(self._topic("status", self.name), HERE, qos=1, retain=True)

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        """The last word of a topic is who wrote to it, by the broker's access rules."""
        *_, about, who = message.topic.split("/")
        if about == "status":
            self._note_status(who, message.payload)
        elif len(message.payload) > self.setting.bounds.frame_bytes + FRAME_WRAPPING:
            self.counts.refused_frames += 1
        elif len(self.host.inbox) >= self.setting.bounds.inbox:
            self.counts.dropped_in += 1
        else:
            self.host.do(partial(self._heard, who, message.payload))

    def _note_status(self, who: PartyName, word: bytes) -> None:
        """Of each peer the last word counts, and one waits: anybody at the broker may say as many as it likes."""
        if word not in (HERE, LOST, LEFT):
            self.counts.refused_frames += 1
            return
        with self._lock:
            waits = who in self._statuses
            self._statuses[who] = word
        if not waits:
            self.host.do(partial(self._status, who))

    # -- the party's thread --------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        if self.setting.folder is not None:
            carry_over(self.host.party, self.host.codec, self.setting.folder, self.setting.run_name)
        self.host.begin()
        self.lost = set(self.host.drive.lost)
        finished = False
        try:
            self._connect()
            if self.gate is not None:
                self.gate.wait(self.setting.bounds.connect_s)
            self.host.run()
            finished = self.host.drive.finished is not None
            self.host.linger(lambda: self.carrier.settled, self.setting.bounds.linger_s)
        finally:
            self._leave(finished)
        return self._outcome()

    def _connect(self) -> None:
        address, bounds = self.setting.address, self.setting.bounds
        self.client.connect_async(address.host, address.port, bounds.keepalive_s)
        self.client.loop_start()
        if not self.connected.wait(bounds.connect_s) or self.refusal is not None:
            raise self.refusal or PeerFailed(
                f"{self.name!r} could not reach the broker at {address.host}:{address.port} within "
                f"{bounds.connect_s:g} s. Is it running, and does it accept this certificate?"
            )

    def _heard(self, sender: PartyName, payload: bytes) -> None:
        try:
            self.carrier.heard(sender, payload, self.host.now())
        except PeerFailed:  # it holds what our log does not know of: nothing more is said to it
            self._refused.add(sender)
            links = self.carrier.links.items()  # of all at the broker: not everybody talks to this party
            if {peer for peer, link in links if link.accepted or link.unacknowledged} <= self._refused:
                raise  # nobody says otherwise: our state is an old one
            self.carrier.links[sender].close()
            self._lose(sender)
        if sender in self._behind and not self.carrier.links[sender].unacknowledged:
            self._behind.discard(sender)
            self._find(sender)

    def _lose(self, peer: PartyName) -> None:
        if peer not in self.lost:
            self.lost.add(peer)
            self.host.tell(PeerLost(peer))

    def _find(self, peer: PartyName) -> None:
        if peer in self.lost:
            self.lost.discard(peer)
            self.host.tell(PeerBack(peer))

    def _status(self, peer: PartyName) -> None:
        with self._lock:
            payload = self._statuses.pop(peer)
        if peer == self.name:
            return
        if payload == LEFT:
            self.carrier.links[peer].close()
        elif payload == LOST:
            self._lose(peer)
        elif payload == HERE:
            self.carrier.links[peer].open()
            self._find(peer)

    def _send(self, step: Written) -> None:
        for peer in step.to:
            link = self.carrier.links[peer]
            if link.full(len(step.frame)):  # it asks, and takes nothing
                link.peer_lost()
                self._behind.add(peer)
                self._lose(peer)
        self.carrier.send(step)

    def _transmit(self, peer: PartyName, packet: bytes) -> None:
        sent = self.client.publish(self._topic("to", peer, self.name), packet, qos=1)
        self.counts.dropped_out += sent.rc == _QUEUE_FULL

    def _turn(self) -> float:
        """Packets leave; the observer looks when its time has come."""
        now = self.host.now()
        if now >= self.look_due_s and self.look is not None and self.host.drive.finished is None:
            after_s = self.look(now)
            self.look_due_s = inf if after_s is None else now + after_s
            if after_s is None:
                self.host.end(Finish("stopped", "ended by the observer"))
        return min(self.carrier.turn(now), self.look_due_s)

    # -- the end -------------------------------------------------------------------------------------------------

    def _leave(self, finished: bool) -> None:
        """Who has finished, and has that in its log, wants nothing more; who has not may come back, and is lost until
        then."""
        self.host.close()
        status = LEFT if finished else LOST
        farewell = self.client.publish(self._topic("status", self.name), status, qos=1, retain=True)
        try:
            farewell.wait_for_publish(FAREWELL_S)
        except (RuntimeError, ValueError):
            self.counts.dropped_out += 1  # the broker is away: the last will speaks for us
        self.client.disconnect()
        self.client.loop_stop()

    def _outcome(self) -> Outcome:
        outcome = self.host.outcome()
        self.counts.repeated = self.carrier.repeated
        self.counts.refused_frames += self.carrier.refused
        counted = [(outcome.time_s, self.name, f"mqtt_{name}", value) for name, value in vars(self.counts).items()]
        outcome.observations.extend(counted)
        return outcome


_QUEUE_FULL = 15  # paho's MQTT_ERR_QUEUE_SIZE


def client_id(address: Address, run: str, name: PartyName) -> str:
    """The same after a restart, and known only to whoever has the party's key: a broker gives the session, and the
    place on the line, to whoever comes with its id."""
    if address.identity is None:
        return f"offbeat-{run}-{name}"
    key = hashlib.sha256(address.files(name)[2].read_bytes()).digest()
    return f"offbeat-{name}-{hmac.digest(key, f'{run} {name}'.encode(), 'sha256').hex()[:32]}"


def _client(setting: Mqtt, name: PartyName, on_connect: Any, on_message: Any) -> Any:
    """A paho client: durable session, last will, TLS, no delay on small messages, bounded queues."""
    try:
        from paho.mqtt import client as paho
    except ImportError as problem:
        raise NotInstalled(
            "Edges over a broker need paho-mqtt, which is not installed: pip install 'offbeat[mqtt]'."
        ) from problem
    identifier = client_id(setting.address, setting.run_name, name)
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, identifier, clean_session=False, protocol=paho.MQTTv311)
    client.will_set("/".join(("offbeat", setting.run_name, "status", name)), LOST, qos=1, retain=True)
    client.max_queued_messages_set(setting.bounds.outgoing)
    client.max_inflight_messages_set(setting.bounds.inflight)
    client.reconnect_delay_set(min_delay=1, max_delay=4)
    client.on_connect, client.on_message = on_connect, on_message
    client.on_socket_open = _no_delay
    if setting.address.identity is not None:
        client.tls_set_context(_tls(setting.address, name))
    return client


def _tls(address: Address, name: PartyName) -> ssl.SSLContext:
    authority, certificate, key = address.files(name)
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as problem:
        raise BadInput(f"{certificate} and {key} do not belong together or cannot be read: {problem}.") from problem
    return context


def _no_delay(client: Any, userdata: Any, opened: socket.socket) -> None:
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
