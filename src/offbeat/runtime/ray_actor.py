"""Inside an actor of the runtime `ray`: one party, and its calls to the others.

The party's host (inbox, timers, lanes, log) is that of every real runtime, and so are the deliveries; here their
packets travel by actor calls. What a party has for a peer after a batch of events goes in one call, and few calls are
on their way to a peer at a time. No call waits for anything at the actor that takes it. A call that fails while both
actors live is repeated like any packet that was lost.
"""

import os
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Any

import msgspec

from offbeat.errors import BadInput, OffbeatError
from offbeat.message.codec import Codec, decode_state, encode_state, payload_bytes
from offbeat.party.contract import Party, PartyName, PeerLost
from offbeat.runtime.checkpoint import write_checkpoint
from offbeat.runtime.contract import Outcome
from offbeat.runtime.delivery import Bounds, Timing
from offbeat.runtime.host import HostOptions, Letter, PartyHost
from offbeat.runtime.packets import PacketCarrier
from offbeat.runtime.processes import End, load_factory
from offbeat.runtime.simulator.costs import CostModel

CALLS_MOST = 32
"""So many calls to one peer may be on their way at a time; then whoever sends to it waits."""
BOUNDS = Bounds(packet_frames=256)  # messages and bytes in one call
TIMING = Timing(answer_s=0.1, first_s=5.0, least_s=2.0, most_s=30.0)
BATCH_EVENTS = 16
_PATIENCE_S = 0.5


class ActorRun:
    """One party in its actor. It ends when it is told to: that nothing moves here does not mean that nothing comes."""

    def __init__(self, host_options: HostOptions, party: Party, codec: Codec, peers: Mapping[PartyName, Any]) -> None:
        self.carrier = PacketCarrier(codec, BOUNDS, TIMING, self._transmit, self._take)
        self.host = PartyHost(party, codec, host_options, self.carrier.send, links=self.carrier.links, turn=self._leave)
        self.ended_s = inf
        self._peers = dict(peers)  # without those that are lost
        self._links = {peer: self.carrier.links[peer] for peer in peers}
        self._calls: dict[PartyName, list[Any]] = {peer: [] for peer in peers}
        self._over = threading.Event()
        self.host.begin()  # before any message

    def run(self) -> Outcome:
        try:
            self.host.run()
            if self.host.drive.finished is not None:
                self.ended_s = self.host.now()  # the driver will notice a little later
            self.host.linger(self._over.is_set, inf)
        finally:
            self.host.close()
        return self.host.outcome()

    # -- from the actor's thread ---------------------------------------------------------------------------------

    def arrive(self, sender: PartyName, sent_s: float, packet: bytes) -> None:
        self.host.do(partial(self._heard, sender, sent_s, packet))

    def lose(self, peer: PartyName) -> None:
        self.host.do(partial(self._lose, peer))

    def stop(self) -> None:
        self._over.set()  # before the host, which may be waiting for a peer
        self.host.inbox.close()

    def news(self) -> dict[str, Any]:
        ended = self.ended_s < inf
        with_peers = [self._links[peer] for peer in list(self._peers)]
        return {
            "finished": ended,
            "open": 0 if ended else self.host.inbox.open,
            "sent": sum(link.sent for link in with_peers),
            "taken": sum(link.accepted for link in with_peers),
        }

    # -- the party's thread --------------------------------------------------------------------------------------

    def _heard(self, sender: PartyName, sent_s: float, packet: bytes) -> None:
        if sender in self._peers:  # what a lost one still had to say is not heard
            self.carrier.heard(sender, packet, self.host.now(), sent_s)

    def _take(self, letter: Letter) -> None:
        """Where a link is to be slow, the message waits here for its time."""
        assert letter.body is not None
        transit_s = self.host.options.costs.link.transit_s(payload_bytes(letter.body))
        self.host.receive(letter, letter.sent_s + transit_s if transit_s > 0 else 0.0)

    def _lose(self, peer: PartyName) -> None:
        if self._peers.pop(peer, None) is not None:
            self.carrier.links[peer].close()
            self.host.tell(PeerLost(peer))

    def _leave(self) -> float:
        """A call costs much, whatever it carries: what a batch of events had for a peer leaves in one."""
        return self.carrier.turn(self.host.now())

    def _transmit(self, peer: PartyName, packet: bytes) -> None:
        if len(self._calls[peer]) >= CALLS_MOST:
            self._wait_for(peer)
        self._calls[peer].append(self._peers[peer].receive.remote(self.host.name, self.host.now(), packet))

    def _wait_for(self, peer: PartyName) -> None:
        """Looking which calls were taken costs as much as a call: done once for many, when there are many."""
        import ray

        while len(self._calls[peer]) >= CALLS_MOST and not self._over.is_set():
            _, self._calls[peer] = ray.wait(self._calls[peer], num_returns=CALLS_MOST // 2, timeout=_PATIENCE_S)


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

    def receive(self, sender: PartyName, sent_s: float, packet: bytes) -> None:
        self.actor_run.arrive(sender, sent_s, packet)

    def lose(self, peer: PartyName) -> None:
        self.actor_run.lose(peer)

    def news(self) -> bytes:
        return encode_state({"error": self.failure, **self.actor_run.news()})

    def end(self) -> bytes:
        """End here if the party has not ended by itself, leave its state in the folder, and tell the rest."""
        self.actor_run.stop()
        self.thread.join()
        if self.outcome is None:
            return encode_state(End(error=self.failure))
        write_checkpoint(self.folder / "final", self.name, self.party.snapshot())
        time_s = min(self.actor_run.ended_s, self.outcome.time_s)
        return encode_state(End(replace(self.outcome, time_s=time_s)))
