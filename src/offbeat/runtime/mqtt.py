"""Edges behind NAT: the same party objects over a real MQTT broker. Needs the extra `mqtt`.

A party is one client of the broker. Its events are handled one at a time on the thread that called `serve`; jobs run
on worker threads; paho's own thread reads and writes the socket. What is written here is at least once (QoS 1) and
made once: an envelope's number rises for ever, so a message that comes twice is recognised.

    crash      before anything is sent, the party's snapshot is on disk: what left is never forgotten
    restart    of the broker: paho connects again, subscriptions and queued messages were kept, parties ask again
    last will  the broker tells the others when a party vanishes (PeerLost) and when it is back (PeerBack)
    bounds     frames, inbox, outgoing queue and messages in flight are limited; what does not fit is dropped and
               counted, and the protocols ask again
"""

import hashlib
import heapq
import queue
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

from offbeat.errors import BadFrame, BadInput, NotInstalled, PeerFailed
from offbeat.message.codec import Codec
from offbeat.message.envelope import Envelope, seal, unseal
from offbeat.party.contract import (
    Compute,
    Computed,
    Event,
    Finish,
    Message,
    Observe,
    Party,
    PartyName,
    PeerBack,
    PeerLost,
    Received,
    Started,
    Wake,
    Woken,
)
from offbeat.runtime.broker import FRAME_BYTES, INFLIGHT_MESSAGES
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint
from offbeat.runtime.contract import Look, Outcome, Tally
from offbeat.runtime.drive import Drive, Step, Written

HERE, LOST = b"here", b"lost"
REMEMBERED = 4096  # numbers kept of each sender, to recognise what comes twice


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
class Bounds:
    """Limits of one client."""

    frame_bytes: int = FRAME_BYTES
    inbox: int = 1000
    outgoing: int = 1000
    inflight: int = INFLIGHT_MESSAGES
    connect_s: float = 60.0
    keepalive_s: int = 15
    linger_s: float = 5.0


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
    """Runs parties over a broker. `folder` keeps snapshots (None: nothing survives a crash).

    `durable`: write the snapshot before every send (an edge, whose ledger must not forget); otherwise every
    `snapshot_s` seconds (a cloud, which may go back a little).
    """

    address: Address
    run_name: str
    messages: tuple[type[Message], ...]
    folder: Path | None = None
    durable: bool = True
    snapshot_s: float = 5.0
    lanes: int = 1
    bounds: Bounds = field(default_factory=Bounds)

    def serve(self, party: Party, look: Look | None = None) -> Outcome:
        """Carry one party until it finishes."""
        return _Seat(self, party, look).run()

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome:
        """Carry several parties of this process, one client and one thread each."""
        outcomes: dict[PartyName, Outcome] = {}
        problems: list[BaseException] = []
        # The broker keeps nothing for a party that has never subscribed, so none begins before all have.
        gate = threading.Barrier(len(parties))

        def work(party: Party, eyes: Look | None) -> None:
            try:
                outcomes[party.name] = _Seat(self, party, eyes, gate).run()
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
        return _joined([outcomes[party.name] for party in parties])


def _joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Several parties' outcomes as one."""
    digest = hashlib.sha256("".join(outcome.digest for outcome in outcomes).encode()).hexdigest()
    return Outcome(
        clock="wall",
        time_s=max(outcome.time_s for outcome in outcomes),
        digest=digest,
        finished={name: finish for outcome in outcomes for name, finish in outcome.finished.items()},
        observations=sorted((row for outcome in outcomes for row in outcome.observations), key=lambda row: row[0]),
        tallies={name: tally for outcome in outcomes for name, tally in outcome.tallies.items()},
        timeline=[row for outcome in outcomes for row in outcome.timeline],
        events=sum(outcome.events for outcome in outcomes),
        stalled="; ".join(outcome.stalled for outcome in outcomes if outcome.stalled),
    )


class _Seat:
    """One party and its client."""

    def __init__(self, setting: Mqtt, party: Party, look: Look | None, gate: threading.Barrier | None = None) -> None:
        self.setting, self.party, self.name, self.look, self.gate = setting, party, party.name, look, gate
        self.codec = Codec(setting.messages)
        self.drive = Drive(party, self.codec)
        self.inbox: queue.Queue[tuple[str, bytes]] = queue.Queue(setting.bounds.inbox)
        self.own: queue.Queue[Event] = queue.Queue()  # one for each job asked for
        self.news = threading.Event()
        self.timers: list[tuple[float, int, int]] = []
        self.order = 0
        self.jobs = ThreadPoolExecutor(setting.lanes, thread_name_prefix=f"offbeat-{self.name}-lane")
        self.problem: BaseException | None = None
        self.sequence = time_ns()  # above every number of an earlier life
        self.heard: dict[PartyName, OrderedDict[int, None]] = {}
        self.lost: set[PartyName] = set()
        self.counts = Counts()
        self.tally = Tally()
        self.begin = monotonic()
        self.snapshot_due = 0.0
        self.observations: list[tuple[float, PartyName, str, Any]] = []
        self.connected = threading.Event()
        self.client = _client(setting, self.name, self._on_connect, self._on_message)
        self.client.on_subscribe = self._on_subscribe
        self.act: dict[type, Callable[[Any], None]] = {
            Written: self._post,
            Compute: self._compute,
            Wake: self._wake,
            Observe: self._observe,
            Finish: lambda step: None,
        }

    def now(self) -> float:
        return monotonic() - self.begin

    # -- paho's thread -------------------------------------------------------------------------------------------

    def _topic(self, *words: str) -> str:
        return "/".join(("offbeat", self.setting.run_name, *words))

    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self.problem = PeerFailed(f"The broker refused {self.name!r}: {reason}.")
            self.news.set()
            self.connected.set()
            return
        self.counts.connections += 1
        client.subscribe([(self._topic("to", self.name, "+"), 1), (self._topic("status", "+"), 1)])
        client.publish(self._topic("status", self.name), HERE, qos=1, retain=True)

    def _on_subscribe(self, client: Any, userdata: Any, mid: Any, reasons: Any, properties: Any) -> None:
        self.connected.set()

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        try:
            self.inbox.put_nowait((message.topic, message.payload))
        except queue.Full:
            self.counts.dropped_in += 1
        self.news.set()

    # -- the party's thread --------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        resumed = self._restore()
        self._connect()
        try:
            if self.gate is not None:
                self.gate.wait(self.setting.bounds.connect_s)
            self._handle(Started(resumed))
            while self.drive.finished is None:
                self._turn()
        finally:
            self._close()
        return self._outcome()

    def _restore(self) -> bool:
        if self.setting.folder is None:
            return False
        state = read_checkpoint(self.setting.folder / "checkpoints", self.name)
        if state is None:
            return False
        self.party.restore(state["party"])
        return True

    def _connect(self) -> None:
        self.client.connect_async(self.setting.address.host, self.setting.address.port, self.setting.bounds.keepalive_s)
        self.client.loop_start()
        if not self.connected.wait(self.setting.bounds.connect_s) or self.problem is not None:
            self._stop_client()
            address = self.setting.address
            raise self.problem or PeerFailed(
                f"{self.name!r} could not reach the broker at {address.host}:{address.port} within "
                f"{self.setting.bounds.connect_s:g} s. Is it running, and does it accept this certificate?"
            )

    def _turn(self) -> None:
        """Handle whatever there is, or wait for the next thing."""
        if self.problem is not None:
            raise self.problem
        event = self._next_event()
        if event is not None:
            self._handle(event)
            return
        self.news.wait(self._wait_s())
        self.news.clear()
        self._take_look()

    def _next_event(self) -> Event | None:
        if not self.own.empty():
            return self.own.get_nowait()
        if self.timers and self.timers[0][0] <= self.now():
            return Woken(heapq.heappop(self.timers)[2])
        while not self.inbox.empty():
            event = self._open(*self.inbox.get_nowait())
            if event is not None:
                return event
        return None

    def _wait_s(self) -> float:
        """Until the next timer; at most a second, so that a look and a fault are never far."""
        if not (self.own.empty() and self.inbox.empty()):
            return 0.0
        next_timer = self.timers[0][0] - self.now() if self.timers else 1.0
        return min(max(next_timer, 0.0), 1.0 if self.look is None else 0.1)

    def _open(self, topic: str, payload: bytes) -> Event | None:
        """A message as an event; None for what is not for us, broken, or here for the second time."""
        words = topic.split("/")
        if len(words) == 4 and words[2] == "status":
            return self._status(words[3], payload)
        if len(words) != 5 or len(payload) > self.setting.bounds.frame_bytes:
            self.counts.refused_frames += 1
            return None
        try:
            envelope = unseal(payload)
            body = self.codec.decode(envelope.body)
        except BadFrame:
            self.counts.refused_frames += 1
            return None
        sender = words[4]
        if (envelope.sender, envelope.receiver, envelope.run) != (sender, self.name, self.setting.run_name):
            self.counts.refused_frames += 1
            return None
        if self._heard_before(sender, envelope.sequence):
            self.counts.repeated += 1
            return None
        return Received(sender, body)

    def _heard_before(self, sender: PartyName, sequence: int) -> bool:
        numbers = self.heard.setdefault(sender, OrderedDict())
        if sequence in numbers:
            return True
        numbers[sequence] = None
        if len(numbers) > REMEMBERED:
            numbers.popitem(last=False)
        return False

    def _status(self, peer: PartyName, payload: bytes) -> Event | None:
        if peer == self.name:
            return None
        if payload == LOST and peer not in self.lost:
            self.lost.add(peer)
            return PeerLost(peer)
        if payload == HERE and peer in self.lost:
            self.lost.discard(peer)
            return PeerBack(peer)
        return None

    def _handle(self, event: Event) -> None:
        steps = self.drive.handle(event)
        self.tally.events += 1
        self._keep(steps)
        for step in steps:
            self.act[type(step)](step)

    def _keep(self, steps: Sequence[Step]) -> None:
        """The snapshot goes to disk before what it accounts for leaves."""
        if self.setting.folder is None:
            return
        sends = self.setting.durable and any(type(step) is Written for step in steps)
        if sends or self.now() >= self.snapshot_due or self.drive.finished is not None:
            write_checkpoint(self.setting.folder / "checkpoints", self.name, {"party": self.party.snapshot()})
            self.snapshot_due = self.now() + self.setting.snapshot_s

    # -- effects -------------------------------------------------------------------------------------------------

    def _post(self, step: Written) -> None:
        row = self.tally.sent.setdefault(step.kind, [0, 0])
        row[0] += len(step.to)
        row[1] += len(step.to) * step.payload_bytes
        for receiver in step.to:
            self.sequence += 1
            frame = seal(Envelope(self.setting.run_name, self.name, receiver, self.sequence, step.frame))
            if len(frame) > self.setting.bounds.frame_bytes:
                raise PeerFailed(
                    f"a {step.kind} of {len(frame)} bytes to {receiver!r} is larger than the "
                    f"{self.setting.bounds.frame_bytes} bytes that one message may have; raise `frame_bytes` here "
                    "and in the broker's configuration, or use a smaller model."
                )
            sent = self.client.publish(self._topic("to", receiver, self.name), frame, qos=1)
            self.counts.dropped_out += sent.rc == _QUEUE_FULL

    def _compute(self, step: Compute) -> None:
        if step.job is None:
            self.own.put(Computed(step.ticket))
            return
        self.jobs.submit(self._timed, step.job).add_done_callback(partial(self._job_done, step.ticket))

    def _timed(self, job: Callable[[], Any]) -> tuple[Any, float]:
        begin = monotonic()
        return job(), monotonic() - begin

    def _job_done(self, ticket: int, future: "Future[tuple[Any, float]]") -> None:
        if future.cancelled():
            return
        problem = future.exception()
        if problem is not None:
            self.problem = problem
        else:
            result, spent_s = future.result()
            self.tally.compute_s += spent_s
            self.own.put(Computed(ticket, result))
        self.news.set()

    def _wake(self, step: Wake) -> None:
        self.order += 1
        heapq.heappush(self.timers, (self.now() + step.after_s, self.order, step.token))

    def _observe(self, step: Observe) -> None:
        self.observations.append((self.now(), self.name, step.name, step.value))

    def _take_look(self) -> None:
        if self.look is not None and self.look(self.now()) is None:
            self.drive.finished = Finish("stopped", "ended by the observer")

    # -- the end -------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        self.jobs.shutdown(wait=True, cancel_futures=True)
        farewell = self.client.publish(self._topic("status", self.name), b"", qos=1, retain=True)
        try:
            farewell.wait_for_publish(self.setting.bounds.linger_s)
        except (RuntimeError, ValueError):
            self.counts.dropped_out += 1  # the broker is away: the last will speaks for us
        self._stop_client()

    def _stop_client(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _outcome(self) -> Outcome:
        assert self.drive.finished is not None
        for name, value in vars(self.counts).items():
            self.observations.append((self.now(), self.name, f"mqtt_{name}", value))
        return Outcome(
            clock="wall",
            time_s=self.now(),
            digest=self.drive.digest.hex(),
            finished={self.name: self.drive.finished},
            observations=self.observations,
            tallies={self.name: self.tally},
            timeline=[],
            events=self.drive.events,
            lost=tuple(sorted(self.lost)),
        )


_QUEUE_FULL = 15  # paho's MQTT_ERR_QUEUE_SIZE


def _client(setting: Mqtt, name: PartyName, on_connect: Any, on_message: Any) -> Any:
    """A paho client: durable session, last will, TLS, no delay on small messages, bounded queues."""
    try:
        from paho.mqtt import client as paho
    except ImportError as problem:
        raise NotInstalled(
            "Edges over a broker need paho-mqtt, which is not installed: pip install 'offbeat[mqtt]'."
        ) from problem
    identifier = f"offbeat-{setting.run_name}-{name}"
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
