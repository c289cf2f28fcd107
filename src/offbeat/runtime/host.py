"""One party and what it needs under every real runtime: inbox, timers, lanes, log, counts and outcome.

A host takes what has come out of one inbox, writes it to the log, lets the party handle it, and only then lets the
effects leave: so a crash never shows anybody what the log does not hold. A runtime adds two things. It puts what came
into the inbox (`receive`), and it sends (`send`). The party's `handle` is never called by two threads.

    send      called with each message, encoded, and its receivers
    links     numbered messages to and from each peer, where the runtime has them: told what is in the log, rebuilt
              after a crash
    turn      called between two batches of events, and at the time that it asked for last
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any, Protocol

import msgspec

from offbeat.message.codec import Codec
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
from offbeat.runtime.contract import Outcome, Passage, Tally
from offbeat.runtime.drive import Drive, Step, Written
from offbeat.runtime.eventlog import (
    FORMAT,
    EventLog,
    Header,
    LogAcknowledged,
    LogMark,
    LogReceived,
    Replayed,
    record_of,
)
from offbeat.runtime.inbox import Inbox
from offbeat.runtime.recovery import checkpoint, log_path, recover
from offbeat.runtime.simulator.costs import CostModel, Link
from offbeat.runtime.transcript import Chains

ACKNOWLEDGED_EVERY = 256
LINGER_ITEMS, LINGER_S = 256, 0.25
SPEED_MEMORY = 0.05  # how much of a new measurement counts
CHECKPOINT_SHARE = 10  # a checkpoint may cost at most a tenth of the time
NO_DELAY = CostModel(link=Link(latency_s=0.0))

Watch = Callable[[float, str, Any], None]
"""Called with (seconds since the start, name, value) for everything the party observes."""


class Letter(msgspec.Struct, frozen=True, gc=False):
    """A message that has come. `number` counts the sender's messages to this party (0: the host counts them);
    `sent_s` is the time at which it left, on the receiver's clock (below 0: not known)."""

    sender: PartyName
    frame: bytes
    kind: str = ""
    number: int = 0
    sent_s: float = -1.0
    body: Message | None = None


Item = Letter | Event | Callable[[], None]
"""What waits in an inbox: for the party, or something to do on its thread."""


class NumberedLink(Protocol):
    """Numbered messages to and from one peer, as far as a host must know of them."""

    @property
    def acknowledged(self) -> int:
        """The peer will not ask for our messages up to this number again."""
        ...

    @property
    def round_trip_s(self) -> float:
        """About how long a short message to the peer and its answer take; 0: not known."""
        ...

    def logged(self, number: int) -> None:
        """The peer's messages up to this number are in our log."""
        ...

    def state(self) -> tuple[int, int, list[bytes], bytes]:
        """How many were sent, up to which number the peer's are in our log, what we must be able to repeat, and what a
        checkpoint keeps of its chains (see transcript.py), nothing where there are none."""
        ...

    def jumped(self, number: int) -> bytes:
        """The head behind the messages that were left out before this one; nothing if there were none."""
        ...

    def restore(self, *, sent: int, kept: list[bytes], accepted: int, chains: Chains | None = None) -> None: ...

    def peer_lost(self) -> None: ...

    def peer_back(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HostOptions:
    """`folder` is the run folder whose `events/` gets the log (None: no log, and nothing survives a crash)."""

    run_name: str = "run"
    job_digest: str = ""
    folder: Path | None = None
    resume: bool = False  # go on where the folder's log ends; otherwise the log begins anew
    base: int = 0  # a log that begins numbers messages from `base` + 1 on
    keep_log: bool = True  # False: what lies behind a checkpoint is removed
    keep_results: bool = False  # of jobs, in the log: they could not be done again with the same result
    batch_events: int = 32  # events handled before their effects leave together
    flush_events: int = 1  # events after which the log is written to its file, before the effects leave
    mark_events: int = 1000
    checkpoint_s: float = inf
    fsync: bool = False  # True: survive a power cut, not only a crash of the process
    costs: CostModel = NO_DELAY  # slow factors, the work that they multiply, and lanes
    timeline_most: int = 0


class PartyHost:
    """Drives one party on the thread that calls `run`."""

    def __init__(
        self,
        party: Party,
        codec: Codec,
        options: HostOptions,
        send: Callable[[Written], None],
        *,
        links: Mapping[PartyName, NumberedLink] | None = None,
        turn: Callable[[], float] = lambda: inf,
        idle: Callable[[], None] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.party, self.name, self.codec, self.options = party, party.name, codec, options
        self.drive = Drive(party, codec)
        self.inbox: Inbox[Item] = Inbox(self.now, idle)
        self.busy = threading.Lock()  # held while the party handles an event: who holds it sees a party at rest
        self.tally = Tally()
        self.timeline: list[Passage] = []
        self.began_s = time.monotonic()
        self.resumed_events = 0
        self.stopped = ""
        self.log: EventLog | None = None
        self._send, self._turn, self._watch = send, turn, watch
        self._links = links if links is not None else {}
        self._problem: BaseException | None = None
        self._slow = options.costs.slow.get(party.name, 1.0)
        self._lane_free = [0.0] * max(options.costs.lanes, 1)
        self._lanes = ThreadPoolExecutor(len(self._lane_free), thread_name_prefix=f"{party.name} lane")
        self._results: dict[int, Future[Any]] = {}
        self._samples: dict[int, int] = {}  # of the work under way
        self._sample_s = 0.0  # what work takes for a row, of late
        self._accepted: dict[PartyName, int] = {}
        self._acknowledged: dict[PartyName, int] = {}
        self._due_s: dict[PartyName, float] = {}
        self._transit_until_s = 0.0
        self.base, self._segment, self._carried = options.base, 0, False
        self._marked = self._flushed = 0
        self._checkpoint_due_s = self._turn_due_s = inf
        self._act: dict[type, Callable[[Any], None]] = {
            Written: send,
            Compute: self._compute,
            Wake: self._wake,
            Observe: self._observe,
            Finish: lambda step: None,
        }

    def now(self) -> float:
        return time.monotonic() - self.began_s

    # -- from any thread ------------------------------------------------------------------------------------------

    def receive(self, letter: Letter, due_s: float = 0.0) -> None:
        """Something came, to be handled now or at its time; no message overtakes an earlier one of its sender."""
        if due_s > 0:
            due_s = self._due_s[letter.sender] = max(due_s, self._due_s.get(letter.sender, 0.0))
        self.inbox.put(letter, due_s)

    def do(self, action: Callable[[], None]) -> None:
        """Something to do on the party's thread, between two events."""
        self.inbox.put(action)

    def tell(self, event: Event) -> None:
        """An event that is no message: a peer is lost, or the owner wants the run to end."""
        self.inbox.put(event)

    def stop(self, reason: str) -> None:
        """End here; the party is not asked."""
        self.stopped = reason
        self.inbox.wake()

    def fail(self, problem: BaseException) -> None:
        """End here with an error, which `run` raises."""
        self._problem = self._problem or problem
        self.inbox.wake()

    # -- the party's thread ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Open the log; rebuild from it what was open when it ended, or begin with `Started`."""
        if self.options.folder is not None:
            self._open_log(self.options.folder)
            self._checkpoint_due_s = self.now() + self.options.checkpoint_s
        if self.drive.events == 0:
            self.inbox.put(Started(resumed=self._carried))

    def run(self) -> None:
        """Until the party has finished, or the run is ended here."""
        try:
            self._loop()
        except BaseException as problem:
            self._problem = problem
            raise

    def _loop(self) -> None:
        while self.drive.finished is None and not self.stopped and not self.inbox.closed:
            items = self.inbox.take(self.options.batch_events, min(self._turn_due_s, self._checkpoint_due_s))
            if self._problem is not None:
                raise self._problem
            if batch := self._for_the_party(items):
                self.handle(batch)
            self._turn_due_s = self._turn()
            self.inbox.settle(len(items))
            if self.now() >= self._checkpoint_due_s:
                self._checkpoint()

    def _for_the_party(self, items: list[Item]) -> list[Letter | Event]:
        """Do what is to be done; the rest is for the party."""
        batch: list[Letter | Event] = []
        for item in items:
            if callable(item):
                item()
            else:
                batch.append(item)
        return batch

    def handle(self, batch: list[Letter | Event]) -> None:
        """Log, handle, and then let the effects leave, in this order."""
        steps: list[Step] = []
        logged: dict[PartyName, int] = {}
        for item in batch:
            number, frame, jump = 0, b"", b""
            if isinstance(item, Letter):
                frame = item.frame
                number = logged[item.sender] = self._number(item)
                jump = self._jumped(item)
                body = item.body or self.codec.decode(frame)
                event: Event = Received(item.sender, body, self._round_trip_s(item.sender))
            else:
                event = item
            if self.log is not None:
                self.log.append(record_of(event, number, frame, jump=jump, results=self.options.keep_results))
            steps += self._timed(event)
        if self.log is not None:
            self._note_progress(self.log)
        for peer in self._links.keys() & logged.keys():
            self._links[peer].logged(logged[peer])
        for step in steps:
            self._act[type(step)](step)

    def _round_trip_s(self, peer: PartyName) -> float:
        """As measured, or what the emulated link takes."""
        link = self._links.get(peer)
        return link.round_trip_s if link is not None else 2.0 * self.options.costs.link.latency_s

    def _jumped(self, letter: Letter) -> bytes:
        link = self._links.get(letter.sender)
        return link.jumped(letter.number) if link is not None else b""

    def _number(self, letter: Letter) -> int:
        number = letter.number or self._accepted.get(letter.sender, 0) + 1
        self._accepted[letter.sender] = number
        if letter.sent_s >= 0:
            now = self.now()
            self.tally.transit_s += max(0.0, now - max(letter.sent_s, self._transit_until_s))
            self._transit_until_s = max(self._transit_until_s, now)
            if len(self.timeline) < self.options.timeline_most:
                self.timeline.append((letter.sent_s, now, letter.sender, self.name, letter.kind))
        return number

    def _timed(self, event: Event) -> list[Step]:
        with self.busy:
            begin = time.monotonic()
            self.drive.clock_s = begin - self.began_s
            steps = self.drive.handle(event)
            spent_s = time.monotonic() - begin
        self.tally.events += 1
        if type(event) is Computed:
            self._results.pop(event.ticket, None)
            self.tally.compute_s += spent_s
            self._learn_speed(self._samples.pop(event.ticket, 0), spent_s)
        else:
            self.tally.serve_s += spent_s
            if type(event) is PeerLost and event.peer in self._links:
                self._links[event.peer].peer_lost()
            elif type(event) is PeerBack and event.peer in self._links:
                self._links[event.peer].peer_back()
        return steps

    def _learn_speed(self, samples: int, spent_s: float) -> None:
        """Work without a job is done while its end is handled. How long it took tells how long the next will take."""
        if samples:
            before = self._sample_s
            self._sample_s += (spent_s / samples - before) * (SPEED_MEMORY if before else 1.0)

    # -- effects --------------------------------------------------------------------------------------------------

    def _compute(self, step: Compute) -> None:
        """On the first free lane. A party that is k times slower waits (k - 1) times the cost model's work longer."""
        extra_s = (self._slow - 1.0) * self.options.costs.work_s(step.samples, step.nonzeros)
        due_s = 0.0
        if extra_s > 0:
            lane = self._lane_free.index(min(self._lane_free))
            due_s = self._lane_free[lane] = max(self.now(), self._lane_free[lane]) + extra_s
            self.tally.compute_s += extra_s
        self._samples[step.ticket] = step.samples
        self._begin_work(step.ticket, step.job, due_s, step.samples * self._sample_s + extra_s)

    def _begin_work(self, ticket: int, job: Callable[[], Any] | None, due_s: float = 0.0, seconds: float = 0.0) -> None:
        if job is None:
            self.inbox.put(Computed(ticket, None, seconds), due_s)
            return
        self.inbox.expect()
        future = self._results[ticket] = self._lanes.submit(self._timed_job, job)
        future.add_done_callback(lambda done: self._work_done(ticket, done, due_s))

    def _timed_job(self, job: Callable[[], Any]) -> Any:
        begin = time.monotonic()
        result = job()
        self.tally.compute_s += time.monotonic() - begin
        return result

    def _work_done(self, ticket: int, done: Future[Any], due_s: float) -> None:
        if not done.cancelled():
            problem = done.exception()
            if problem is not None:
                self.fail(problem)
            else:
                self.inbox.put(Computed(ticket, done.result()), due_s)
        self.inbox.settle()

    def _wake(self, step: Wake) -> None:
        self.inbox.put(Woken(step.token), self.now() + step.after_s)

    def _observe(self, step: Observe) -> None:
        if self._watch is not None:
            self._watch(self.drive.clock_s, step.name, step.value)

    # -- log and checkpoints --------------------------------------------------------------------------------------

    def _open_log(self, folder: Path) -> None:
        if self.options.resume:
            self._recover(recover(self.party, self.codec, folder))
        else:
            log_path(folder, self.name).unlink(missing_ok=True)
        self.log = self._new_log(folder)

    def _new_log(self, folder: Path) -> EventLog:
        path, options = log_path(folder, self.name, self._segment), self.options
        fresh = not path.is_file()
        log = EventLog(path, fsync=options.fsync)
        if fresh:
            header = Header(FORMAT, self.name, options.run_name, options.job_digest, version("offbeat"), self.base)
            log.append(header)
        return log

    def _recover(self, replayed: Replayed) -> None:
        self.drive = replayed.drive
        self.began_s -= self.drive.clock_s  # a resumed run goes on at the time of its last checkpoint
        self.resumed_events = replayed.events
        self.base = replayed.base or self.base
        self._segment, self._carried = replayed.segment, replayed.carried
        self._marked = self._flushed = self.drive.events
        for peer in {**dict.fromkeys(self._links), **replayed.sent, **replayed.accepted}:
            link, sent, kept = self._links[peer], replayed.sent.get(peer, self.base), replayed.kept.get(peer, [])
            if self.drive.events:
                accepted, chains = replayed.accepted.get(peer, 0), replayed.chains_with(peer)
                link.restore(sent=sent, kept=kept, accepted=accepted, chains=chains)
            if peer in self.drive.lost:
                link.peer_lost()
        for ticket, job in list(self.drive.jobs.items()):
            self._begin_work(ticket, job)
        for token, after_s in self.drive.timers:
            self._wake(Wake(after_s, token))

    def _note_progress(self, log: EventLog) -> None:
        for peer, link in self._links.items():
            if link.acknowledged >= self._acknowledged.get(peer, 0) + ACKNOWLEDGED_EVERY:
                self._acknowledged[peer] = link.acknowledged
                log.append(LogAcknowledged(peer, link.acknowledged))
        events = self.drive.events
        if events >= self._marked + self.options.mark_events:
            self._mark(log)
        if events >= self._flushed + self.options.flush_events or self.drive.finished is not None:
            self._flushed = events
            log.flush()

    def _mark(self, log: EventLog) -> None:
        self._marked = self.drive.events
        log.append(LogMark(self.drive.events, self.drive.digest))

    def _checkpoint(self) -> None:
        assert self.log is not None and self.options.folder is not None
        begin_s = self.now()
        results: dict[int, Any] = {}
        if self.drive.finished is None:
            results = dict.fromkeys(self.drive.jobs) | {ticket: done.result() for ticket, done in self._results.items()}
        self.log.sync()
        links = {peer: link.state() for peer, link in self._links.items()}
        if self.options.keep_log:
            checkpoint(self.options.folder, self.drive, results, links, self.log.size, self._segment)
        else:
            self._begin_segment(self.options.folder, results, links)
        spent_s = self.now() - begin_s
        self._checkpoint_due_s = self.now() + max(self.options.checkpoint_s, CHECKPOINT_SHARE * spent_s)

    def _begin_segment(self, folder: Path, results: Mapping[int, Any], links: Mapping[PartyName, Any]) -> None:
        """A log that begins at this checkpoint; the one before it goes when the checkpoint is on disk."""
        old = self.log
        assert old is not None
        self._segment += 1
        log_path(folder, self.name, self._segment).unlink(missing_ok=True)
        new = self._new_log(folder)
        new.sync()
        if not checkpoint(folder, self.drive, results, links, new.size, self._segment):
            self._segment -= 1
            old, new = new, old
        self.log = new
        old.close()
        old.path.unlink()

    # -- the end --------------------------------------------------------------------------------------------------

    def linger(self, over: Callable[[], bool], patience_s: float) -> None:
        """A finished party hears nothing more, but acknowledges what comes, so that its peers can finish too."""
        until_s = self.now() + patience_s
        while self.now() < until_s and not over():
            items = self.inbox.take(LINGER_ITEMS, min(self._turn(), self.now() + LINGER_S))
            letters = [item for item in self._for_the_party(items) if isinstance(item, Letter)]
            for letter in letters:
                if self.log is not None:
                    jump = self._jumped(letter)
                    self.log.append(LogReceived(letter.sender, letter.number, letter.frame, jump=jump))
            if self.log is not None:
                self.log.flush()
            for letter in letters:
                self._links[letter.sender].logged(letter.number)
            self.inbox.settle(len(items))

    def end(self, finish: Finish) -> None:
        """The runtime ends the run for a party that has not ended by itself."""
        self.drive.finished = self.drive.finished or finish

    @property
    def at_rest(self) -> bool:
        """Nothing is left here that could move the party."""
        return self.inbox.open == 0

    def close(self) -> None:
        """After `run`: the log gets the digest that a replay must reach, unless the party broke off in an event."""
        self.inbox.close()
        self._lanes.shutdown(wait=True, cancel_futures=True)
        if self.log is not None:
            if self.drive.finished is not None and self._problem is None and not self.options.keep_log:
                self._checkpoint()  # whoever takes up this party's memory later need not have the same options
            if self._problem is None:
                self._mark(self.log)
            self.log.close()

    def outcome(self) -> Outcome:
        return self.drive.outcome(self.now(), self.tally, self.timeline)
