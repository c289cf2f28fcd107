"""Inside an actor of the runtime `ray`: one party, and the post to the others.

The party's host (inbox, timers, lanes, log) is that of every real runtime; here messages leave by actor calls that
carry our codec's bytes. What a party has for a peer after a batch of events goes in one call, and few calls are on
their way to a peer at a time. No call waits for anything at the actor that takes it, and an actor takes calls one at a
time, in the order of their caller.
"""

import os
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Any

import msgspec

from offbeat.errors import BadInput, OffbeatError
from offbeat.message.codec import Codec, decode_state, encode_state
from offbeat.party.contract import Finish, Party, PartyName, PeerLost
from offbeat.runtime.checkpoint import write_checkpoint
from offbeat.runtime.contract import Outcome
from offbeat.runtime.drive import Written
from offbeat.runtime.host import HostOptions, Letter, PartyHost
from offbeat.runtime.processes import load_factory
from offbeat.runtime.simulator.costs import CostModel

CALLS_MOST = 32
"""So many calls to one peer may be on their way at a time; then whoever sends to it waits."""
CALL_MESSAGES, CALL_BYTES = 256, 2**20
BATCH_EVENTS = 16
_PATIENCE_S = 0.5


class Sent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message in a batch: when it left, and when it may reach its receiver, on the run's clock."""

    kind: str
    sent_s: float
    due_s: float
    frame: bytes


Batch = list[Sent]
_BATCH: msgspec.msgpack.Decoder[Batch] = msgspec.msgpack.Decoder(Batch)
_ENCODER = msgspec.msgpack.Encoder()


class Post:
    """What waits for the peers, and takes it to them when it is asked to: a call costs much, whatever it carries."""

    def __init__(self, me: PartyName, peers: Mapping[PartyName, Any]) -> None:
        self._me, self._peers = me, dict(peers)
        self._waiting: dict[PartyName, deque[Sent]] = {peer: deque() for peer in peers}
        self._calls: dict[PartyName, list[Any]] = {peer: [] for peer in peers}
        self._sent = dict.fromkeys(peers, 0)
        self._lock = threading.RLock()
        self._closed = False

    @property
    def sent(self) -> int:
        """Messages handed over for the peers that are still there."""
        return sum(list(self._sent.values()))

    def put(self, peer: PartyName, message: Sent) -> None:
        """What is for a lost peer is dropped."""
        with self._lock:
            if peer in self._waiting and not self._closed:
                self._waiting[peer].append(message)

    def flush(self) -> None:
        """Everything that waits leaves; waits in turn for a peer that has not taken what it was sent."""
        with self._lock:
            for peer in [peer for peer, waiting in self._waiting.items() if waiting]:
                while self._waiting.get(peer) and self._may_call(peer):
                    self._call(peer, _some(self._waiting[peer]))

    def forget(self, peer: PartyName) -> None:
        with self._lock:
            self._waiting.pop(peer, None)
            self._sent.pop(peer, None)

    def close(self) -> None:
        self._closed = True

    def _may_call(self, peer: PartyName) -> bool:
        """Looking which calls were taken costs as much as a call: done once for many, when there are many."""
        import ray

        while len(self._calls[peer]) >= CALLS_MOST and not self._closed:
            _, self._calls[peer] = ray.wait(self._calls[peer], num_returns=CALLS_MOST // 2, timeout=_PATIENCE_S)
        return not self._closed

    def _call(self, peer: PartyName, batch: Batch) -> None:
        first = self._sent[peer] + 1
        self._sent[peer] += len(batch)
        self._calls[peer].append(self._peers[peer].receive.remote(self._me, first, _ENCODER.encode(batch)))


def _some(waiting: deque[Sent]) -> Batch:
    """As many messages as one call takes; at least one."""
    batch: Batch = []
    size = 0
    while waiting and len(batch) < CALL_MESSAGES and (not batch or size + len(waiting[0].frame) <= CALL_BYTES):
        size += len(waiting[0].frame)
        batch.append(waiting.popleft())
    return batch


class ActorRun:
    """One party in its actor. It ends when it is told to: that nothing moves here does not mean that nothing comes."""

    def __init__(self, host_options: HostOptions, party: Party, codec: Codec, peers: Mapping[PartyName, Any]) -> None:
        self.office = Post(party.name, peers)
        self.host = PartyHost(party, codec, host_options, self._post, turn=self._flush)
        self.numbers = dict.fromkeys(peers, 0)  # of the last message that each peer's calls brought
        self.missing, self.ended_s = 0, inf
        self._over = threading.Event()
        self.host.begin()  # before any message

    def run(self) -> Outcome:
        try:
            self.host.run()
            self.office.flush()
            if self.host.drive.finished is not None:
                self.ended_s = self.host.now()  # the driver will notice a little later
            self.host.inbox.close()
            self._over.wait()
        finally:
            self.host.close()
        return self.host.outcome()

    def stop(self) -> None:
        self.office.close()  # before the host, which may be waiting in it
        self.host.inbox.close()
        self._over.set()

    def news(self) -> dict[str, Any]:
        still = self.host.inbox.open
        ended = self.ended_s < inf
        return {"finished": ended, "open": still, "sent": self.office.sent, "taken": sum(self.numbers.values())}

    def _post(self, step: Written) -> None:
        now = self.host.now()
        transit_s = self.host.options.costs.link.transit_s(step.payload_bytes)
        message = Sent(step.kind, now, now + transit_s if transit_s > 0 else 0.0, step.frame)
        for peer in step.to:
            self.office.put(peer, message)

    def _flush(self) -> float:
        self.office.flush()
        return inf

    def arrive(self, sender: PartyName, first: int, batch: Batch) -> None:
        """What a peer's call brought. A call that failed on its way leaves a gap, which the protocols close."""
        last = self.numbers.get(sender)
        if last is None:  # held for lost: what it still had to say is not heard
            return
        self.missing += max(0, first - last - 1)
        self.numbers[sender] = max(last, first + len(batch) - 1)
        for sent in batch[max(0, last + 1 - first) :]:
            self.host.receive(Letter(sender, sent.frame, sent.kind, sent_s=sent.sent_s), sent.due_s)

    def lose(self, peer: PartyName) -> None:
        if self.numbers.pop(peer, None) is not None:
            self.office.forget(peer)
            self.host.tell(PeerLost(peer))


class PartyActor:
    """What Ray makes an actor of. Bytes and plain values go in and out, the peers' handles excepted."""

    def __init__(self) -> None:
        self.failure = ""
        self.outcome: Outcome | None = None

    def build(self, child: bytes, peers: dict[PartyName, Any]) -> bytes:
        """Builds the party from the job, here, so that its data does not travel."""
        told = decode_state(child)
        self.name, self.folder = told["party"], Path(told["folder"])
        try:
            self._build(told, peers)
        except OffbeatError as problem:
            return encode_state({"error": str(problem)})
        except Exception as problem:
            return encode_state({"error": self._explained(problem)})
        return encode_state({"pid": os.getpid(), "node": socket.gethostname()})

    def _build(self, told: Mapping[str, Any], peers: Mapping[PartyName, Any]) -> None:
        if not self.folder.is_dir():
            raise BadInput(
                f"the node {socket.gethostname()} has no folder {self.folder}: every node must see the run folder "
                "under the same path, for the parties' logs. Put it on storage that they share, with --out DIR."
            )
        sys.path += [place for place in told["path"] if place not in sys.path]  # for factories that are not installed
        self.party, messages = load_factory(told["factory"])(told["spec"], self.name)
        if told["torch_threads"] and "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(told["torch_threads"])  # the last bits of a product depend on it
        options = HostOptions(
            run_name=told["run"],
            folder=self.folder,
            batch_events=BATCH_EVENTS,
            costs=msgspec.msgpack.decode(told["costs"], type=CostModel),
            timeline_most=told["timeline_max"],
        )
        self.actor_run = ActorRun(options, self.party, Codec(messages), peers)

    def go(self, began_s: float) -> None:
        """Begin; `began_s` is the run's zero on the clock on the wall, the only one that nodes share."""
        self.actor_run.host.began_s = monotonic() - (time() - began_s)
        self.thread = threading.Thread(target=self._run, name="offbeat-run", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self.actor_run.run()
        except OffbeatError as problem:
            self.failure = str(problem)
        except BaseException as problem:
            self.failure = self._explained(problem)

    def _explained(self, problem: BaseException) -> str:
        place = self.folder / "ray"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{self.name}.log").write_text("".join(traceback.format_exception(problem)), encoding="utf-8")
        return f"{problem!r}; see {place / f'{self.name}.log'}"

    def receive(self, sender: PartyName, first: int, batch: bytes) -> None:
        self.actor_run.arrive(sender, first, _BATCH.decode(batch))

    def lose(self, peer: PartyName) -> None:
        self.actor_run.lose(peer)

    def news(self) -> bytes:
        return encode_state({"error": self.failure, **self.actor_run.news()})

    def end(self) -> bytes:
        """End here if the party has not ended by itself, leave its state in the folder, and tell the rest."""
        self.actor_run.stop()
        self.thread.join()
        if self.outcome is None:
            return encode_state({"error": self.failure})
        write_checkpoint(self.folder / "final", self.name, self.party.snapshot())
        finish, tally = self.outcome.finished.get(self.name, Finish("", "")), self.outcome.tallies[self.name]
        observations = [(at_s, what, value) for at_s, _, what, value in self.outcome.observations]
        if missing := self.actor_run.missing:
            observations.append((self.outcome.time_s, "alarm", f"{missing} messages were lost on their way"))
        return encode_state(
            {
                "verdict": finish.verdict,
                "reason": finish.reason,
                "digest": self.actor_run.host.drive.digest.hex(),
                "events": self.outcome.events,
                "time_s": min(self.actor_run.ended_s, self.outcome.time_s),
                "lost": sorted(self.actor_run.host.drive.lost),
                "observations": observations,
                "timeline": self.outcome.timeline,
                "sent": tally.sent,
                "compute_s": tally.compute_s,
                "serve_s": tally.serve_s,
                "transit_s": tally.transit_s,
            }
        )
