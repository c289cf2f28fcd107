"""Inside an actor of the runtime `ray`: one party, and the post to the others.

The party's seat (thread, inbox, lanes, log) and the timers are those of the runtime `threads`; here mail leaves by
actor calls that carry our codec's bytes. What a party has for a peer by the time it has nothing else to do goes in one
call, and few calls are on their way to a peer at a time. No call waits for anything at the actor that takes it, and an
actor takes calls one at a time, in the order of their caller.
"""

import os
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Any

import msgspec

from offbeat.errors import BadInput, OffbeatError
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Finish, Party, PartyName, PeerLost, Started
from offbeat.runtime.checkpoint import write_checkpoint
from offbeat.runtime.contract import Outcome
from offbeat.runtime.processes import load_factory
from offbeat.runtime.simulator.costs import CostModel
from offbeat.runtime.threads import Hall, Inbox, Item, Mail, Seat, Threads

CALLS_MOST = 32
"""So many calls to one peer may be on their way at a time; then whoever sends to it waits."""
CALL_MAILS, CALL_BYTES = 256, 2**20
BUSY_EVENTS = 16
"""A party that always has something to do sends its mail off after so many events."""
_PATIENCE_S = 0.5

Parcel = list[tuple[str, float, bytes]]  # (kind, sent at, frame)
_PARCEL: msgspec.msgpack.Decoder[Parcel] = msgspec.msgpack.Decoder(Parcel)
_ENCODER = msgspec.msgpack.Encoder()


class Post:
    """What waits for the peers, and takes it to them when it is asked to: a call costs much, whatever it carries."""

    def __init__(self, me: PartyName, peers: Mapping[PartyName, Any], left: Callable[[int], None]) -> None:
        self._me, self._peers, self._left = me, dict(peers), left
        self._waiting: dict[PartyName, deque[Mail]] = {peer: deque() for peer in peers}
        self._calls: dict[PartyName, list[Any]] = {peer: [] for peer in peers}
        self._sent = dict.fromkeys(peers, 0)
        self._lock = threading.RLock()
        self._closed = False

    @property
    def sent(self) -> int:
        """Messages handed over for the peers that are still there."""
        return sum(list(self._sent.values()))

    def put(self, peer: PartyName, mail: Mail) -> None:
        """What is for a lost peer is dropped."""
        with self._lock:
            if peer in self._waiting and not self._closed:
                self._waiting[peer].append(mail)
                return
        self._left(1)

    def put_now(self, peer: PartyName, mail: Mail) -> None:
        self.put(peer, mail)
        self.flush()

    def flush(self) -> None:
        """Everything that waits leaves; waits in turn for a peer that has not taken what it was sent."""
        with self._lock:
            for peer in [peer for peer, mail in self._waiting.items() if mail]:
                while self._waiting.get(peer) and self._may_call(peer):
                    self._call(peer, _some(self._waiting[peer]))

    def forget(self, peer: PartyName) -> None:
        with self._lock:
            dropped = len(self._waiting.pop(peer, ()))
            self._sent.pop(peer, None)
        self._left(dropped)

    def close(self) -> None:
        self._closed = True

    def _may_call(self, peer: PartyName) -> bool:
        """Looking which calls were taken costs as much as a call: done once for many, when there are many."""
        import ray

        while len(self._calls[peer]) >= CALLS_MOST and not self._closed:
            _, self._calls[peer] = ray.wait(self._calls[peer], num_returns=CALLS_MOST // 2, timeout=_PATIENCE_S)
        return not self._closed

    def _call(self, peer: PartyName, parcel: Parcel) -> None:
        first = self._sent[peer] + 1
        self._sent[peer] += len(parcel)
        self._calls[peer].append(self._peers[peer].receive.remote(self._me, first, _ENCODER.encode(parcel)))
        self._left(len(parcel))


class Tray(Inbox):
    """An inbox that sends the party's mail off before the party waits for more, and now and then while it is busy."""

    def __init__(self, most: int, flush: Callable[[], None]) -> None:
        super().__init__(most)
        self._flush, self._taken = flush, 0

    def take(self) -> Item | None:
        self._taken += 1
        if not self._items or self._taken % BUSY_EVENTS == 0:
            self._flush()
        return super().take()


def _some(waiting: deque[Mail]) -> Parcel:
    """As many messages as one call takes; at least one."""
    parcel: Parcel = []
    size = 0
    while waiting and len(parcel) < CALL_MAILS and (not parcel or size + len(waiting[0].frame) <= CALL_BYTES):
        mail = waiting.popleft()
        size += len(mail.frame)
        parcel.append((mail.kind, mail.sent_s, mail.frame))
    return parcel


class Room(Hall):
    """A hall with one seat. It ends when it is told to: that nothing moves here does not mean that nothing comes."""

    def __init__(self, setting: Threads, party: Party, peers: Mapping[PartyName, Any]) -> None:
        super().__init__(setting, [party], None)
        self.seat = self.seats[party.name]
        self.office = Post(party.name, peers, self.settled)
        self.seat.inbox = Tray(setting.inbox_max, self.office.flush)
        self.numbers = dict.fromkeys(peers, 0)  # of the last message that each peer's calls brought
        self.missing, self.ended_s = 0, inf
        self.deliver(self.seat, Started(), 0.0)  # before any mail

    def run(self) -> Outcome:
        self.scheduler.start()
        self.seat.thread.start()
        self._over.wait()
        self.office.close()  # before the seat, which may be waiting in it
        self._close()
        if self.problem is not None:
            raise self.problem
        return self._outcome()

    def stop(self) -> None:
        self._over.set()

    def news(self) -> dict[str, int]:
        with self._state:
            still = self._open
        return {"open": still, "sent": self.office.sent, "taken": sum(self.numbers.values())}

    def post(self, name: PartyName, mail: Mail, due_s: float) -> None:
        if name == self.seat.name:
            super().post(name, mail, due_s)
            return
        self.expected()
        if due_s > 0:
            self.scheduler.at(due_s, partial(self.office.put_now, name, mail))
        else:
            self.office.put(name, mail)

    def settled(self, count: int = 1) -> None:
        with self._state:
            self._open -= count

    def left(self, seat: Seat, finish: Finish) -> None:
        self.office.flush()
        self.ended_s = self.now()  # the driver will notice a little later
        self.finished[seat.name] = finish
        self.settled(seat.inbox.close())

    def arrive(self, sender: PartyName, first: int, parcel: Parcel) -> None:
        """What a peer's call brought. A call that failed on its way leaves a gap, which the protocols close."""
        last = self.numbers.get(sender)
        if last is None:  # held for lost: what it still had to say is not heard
            return
        self.missing += max(0, first - last - 1)
        self.numbers[sender] = max(last, first + len(parcel) - 1)
        for kind, sent_s, frame in parcel[max(0, last + 1 - first) :]:
            self.deliver(self.seat, Mail(sender, kind, frame, sent_s), 0.0)

    def lose(self, peer: PartyName) -> None:
        if self.numbers.pop(peer, None) is not None:
            self.office.forget(peer)
            self.deliver(self.seat, PeerLost(peer), 0.0)


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
        setting = Threads(
            messages=messages,
            costs=msgspec.msgpack.decode(told["costs"], type=CostModel),
            folder=self.folder,
            run_name=told["run"],
            timeline_max=told["timeline_max"],
            flush_every=1,  # the log must tell what this party had done when its process dies
        )
        self.room = Room(setting, self.party, peers)

    def go(self, began_s: float) -> None:
        """Begin; `began_s` is the run's zero on the clock on the wall, the only one that nodes share."""
        self.room.begin = monotonic() - (time() - began_s)
        self.thread = threading.Thread(target=self._run, name="offbeat-room", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self.room.run()
        except OffbeatError as problem:
            self.failure = str(problem)
        except BaseException as problem:
            self.failure = self._explained(problem)

    def _explained(self, problem: BaseException) -> str:
        place = self.folder / "ray"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{self.name}.log").write_text("".join(traceback.format_exception(problem)), encoding="utf-8")
        return f"{problem!r}; see {place / f'{self.name}.log'}"

    def receive(self, sender: PartyName, first: int, parcel: bytes) -> None:
        self.room.arrive(sender, first, _PARCEL.decode(parcel))

    def lose(self, peer: PartyName) -> None:
        self.room.lose(peer)

    def news(self) -> bytes:
        return encode_state(
            {"error": self.failure, "finished": self.name in self.room.finished, **self.room.news()},
        )

    def end(self) -> bytes:
        """End here if the party has not ended by itself, leave its state in the folder, and tell the rest."""
        self.room.stop()
        self.thread.join()
        if self.outcome is None:
            return encode_state({"error": self.failure})
        write_checkpoint(self.folder / "final", self.name, self.party.snapshot())
        finish, tally = self.outcome.finished.get(self.name, Finish("", "")), self.outcome.tallies[self.name]
        observations = [(at_s, what, value) for at_s, _, what, value in self.outcome.observations]
        if self.room.missing:
            observations.append((self.outcome.time_s, "alarm", f"{self.room.missing} messages were lost on their way"))
        return encode_state(
            {
                "verdict": finish.verdict,
                "reason": finish.reason,
                "digest": self.room.seat.drive.digest.hex(),
                "events": self.outcome.events,
                "time_s": min(self.room.ended_s, self.outcome.time_s),
                "lost": sorted(self.room.seat.drive.lost),
                "observations": observations,
                "timeline": self.outcome.timeline,
                "sent": tally.sent,
                "compute_s": tally.compute_s,
                "serve_s": tally.serve_s,
                "transit_s": tally.transit_s,
            }
        )
