"""One party in one run, over gRPC: events in, effects out, in one thread.

The loop takes what has arrived, writes it to the log, lets the party handle it, and only then lets the effects leave.
Everything else (streams, timers, lanes) puts its news into one inbox. The party's `handle` is never called by two
threads, and never sees any of this.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heappop, heappush
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from offbeat.errors import BadInput, OffbeatError, PeerFailed
from offbeat.message.codec import Codec
from offbeat.party.contract import (
    END,
    Compute,
    Computed,
    Event,
    Finish,
    Message,
    Observe,
    Party,
    PartyName,
    PeerLost,
    Received,
    Started,
    Wake,
    Woken,
)
from offbeat.runtime.contract import Outcome, Tally
from offbeat.runtime.drive import Drive, Step, Written
from offbeat.runtime.eventlog import (
    FORMAT,
    AnyRecord,
    EventLog,
    Header,
    LogAcknowledged,
    LogBack,
    LogComputed,
    LogLost,
    LogMark,
    LogReceived,
    LogStarted,
    LogWoken,
)
from offbeat.runtime.grpc.channel import Channel
from offbeat.runtime.grpc.dialer import Dialer
from offbeat.runtime.grpc.identity import Identity, Member, Roster
from offbeat.runtime.grpc.options import SessionOptions
from offbeat.runtime.grpc.server import Server
from offbeat.runtime.grpc.vigil import REASON, Vigil
from offbeat.runtime.grpc.wire import offbeat_version
from offbeat.runtime.recovery import checkpoint, log_path, recover

Watch = Callable[[float, str, Any], None]
"""Called with (seconds since the start, name, value) for everything the party observes."""

_TICK_S = 0.25
_FAILED = "failed"
_GOODBYE_TEXT = 250


class _Incoming:
    """An inbox item: what to log, and the event once it is the party's turn."""

    __slots__ = ("event", "record")

    def __init__(self, record: AnyRecord, event: Event) -> None:
        self.record, self.event = record, event


class Session:
    """Takes one party through one run. `server` is shared by all runs of this party; a party without one only dials."""

    def __init__(
        self,
        identity: Identity,
        roster: Roster,
        party: Party,
        message_types: Sequence[type[Message]],
        *,
        run: str,
        server: Server | None,
        peers: Sequence[PartyName] | None = None,
        options: SessionOptions | None = None,
        folder: Path | None = None,
        job_digest: str = "",
        watch: Watch | None = None,
    ) -> None:
        self.identity, self.roster, self.party, self.run_name = identity, roster, party, run
        self.server = server
        self.options = options or SessionOptions()
        self.folder = folder
        self.job_digest = job_digest
        self.codec = Codec(message_types)
        names = peers if peers is not None else roster.names
        self.peers = tuple(name for name in names if name != party.name)
        self.tally = Tally()
        self.resumed_events = 0
        self._watch = watch
        self._inbox: SimpleQueue[_Incoming | None] = SimpleQueue()
        self._timers: list[tuple[float, int, int]] = []
        self._timer_count = 0
        self._results: dict[int, Future[Any]] = {}
        self._failure: OffbeatError | None = None
        self._stop_reason = ""
        self._gone: dict[PartyName, str] = {}
        self._channels = {peer: self._new_channel(peer) for peer in self.peers}
        self._acknowledged = dict.fromkeys(self.peers, 0)
        self._dialers: list[Dialer] = []
        self._drive = Drive(party, self.codec)
        self._log: EventLog | None = None
        self._checkpoint_due = 0.0
        self._marked = 0
        self._started_s = 0.0

    def channel(self, peer: PartyName) -> Channel:
        try:
            return self._channels[peer]
        except KeyError:
            raise PeerFailed(f"'{peer}' has no part in run '{self.run_name}'.") from None

    def stop(self, reason: str) -> None:
        """End the run here, from any thread: the party is not asked."""
        self._stop_reason = reason
        self._inbox.put(None)

    def ask_to_end(self) -> None:
        """From any thread: let the party bring the run to an end by its protocol, if it has a way."""
        self._inbox.put(_Incoming(LogWoken(END), Woken(END)))

    def lose(self, peer: PartyName, how: str) -> None:
        """From any thread: the peer has died, says somebody who knows, and will not come back."""
        self._gone[peer] = how
        self._inbox.put(None)

    def run(self) -> Outcome:
        """Take part until the party finishes, or raise what ended it early."""
        self._started_s = time.monotonic()
        with ThreadPoolExecutor(self.options.lanes, thread_name_prefix="lane") as self._lanes:
            self._recover()
            self._vigil = Vigil(self.options, self._channels, self._drive.lost, self._trouble, self._gone)
            self._connect()
            try:
                self._loop()
            except OffbeatError as problem:
                self._failure = problem
            except Exception as problem:
                self._failure = OffbeatError(f"'{self.party.name}' failed in run '{self.run_name}': {problem!r}")
                self._failure.__cause__ = problem
            self._leave()
        if self._failure is not None:
            raise self._failure
        return self._outcome()

    # -- beginning ------------------------------------------------------------------------------------------------

    def _new_channel(self, peer: PartyName) -> Channel:
        return Channel(
            peer,
            self.codec,
            self.options.bounds,
            self._deliver,
            beat_s=self.options.beat_s,
            notify=lambda: self._inbox.put(None),
        )

    def _recover(self) -> None:
        if self.folder is None:
            return
        path = log_path(self.folder, self.party.name)
        fresh = not path.is_file()
        replayed = recover(self.party, self.codec, self.folder)
        self._drive = replayed.drive
        self._started_s -= self._drive.clock_s  # a resumed run goes on at the time of its last checkpoint
        self.resumed_events = replayed.events
        self._marked = self._drive.events
        self._log = EventLog(path, fsync=self.options.fsync)
        if fresh:
            self._log.append(Header(FORMAT, self.party.name, self.run_name, self.job_digest, offbeat_version()))
        for peer, channel in self._channels.items():
            sent, kept = replayed.sent.get(peer, 0), replayed.kept.get(peer, [])
            channel.link.restore(sent=sent, kept=kept, accepted=replayed.accepted.get(peer, 0))
        for ticket, job in list(self._drive.jobs.items()):
            self._compute(ticket, job)
        for token, after_s in self._drive.timers:
            self._arm(token, after_s)

    def _connect(self) -> None:
        if self.server is not None:
            self.server.serve(self.run_name, self)
        me = self.roster.member(self.party.name)
        for peer, channel in self._channels.items():
            member = self.roster.member(peer)
            if we_dial(me, member):
                dialer = Dialer(
                    self.identity,
                    self.roster,
                    member,
                    channel,
                    run=self.run_name,
                    job_digest=self.job_digest,
                    give_up=self._fail,
                )
                self._dialers.append(dialer)
                dialer.start()
        self._checkpoint_due = time.monotonic() + self.options.checkpoint_s

    # -- the loop -------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        if self._drive.events == 0:
            self._handle([_Incoming(LogStarted(False), Started())])
        tick_due = 0.0
        while self._drive.finished is None and self._failure is None and not self._stop_reason:
            self._handle(self._gather())
            now = time.monotonic()
            if now >= tick_due:
                tick_due = now + _TICK_S
                self._watch_peers()
                if self._log is not None and now >= self._checkpoint_due:
                    self._checkpoint()

    def _gather(self) -> list[_Incoming]:
        """What has arrived, and the timers that are due; waits for the first of either."""
        batch: list[_Incoming] = []
        wait_s = _TICK_S
        if self._timers:
            wait_s = min(wait_s, max(0.0, self._timers[0][0] - time.monotonic()))
        try:
            item = self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait()
            while True:
                if item is not None:
                    batch.append(item)
                if len(batch) >= self.options.batch_events:
                    break
                item = self._inbox.get_nowait()
        except Empty:
            pass
        while self._timers and self._timers[0][0] <= time.monotonic():
            _, _, token = heappop(self._timers)
            batch.append(_Incoming(LogWoken(token), Woken(token)))
        return batch

    def _handle(self, batch: list[_Incoming]) -> None:
        """Log, handle, and then let the effects leave: in this order, or a crash could show what was never logged."""
        if not batch:
            return
        steps: list[Step] = []
        durable: dict[PartyName, int] = {}
        for item in batch:
            if self._log is not None:
                self._log.append(item.record)
            if type(item.record) is LogReceived:
                durable[item.record.sender] = item.record.number
            elif type(item.record) is LogComputed:
                self._results.pop(item.record.ticket, None)
            steps += self._timed(item.event)
        if self._log is not None:
            self._note_progress(self._log)
            self._log.flush()
        for peer, number in durable.items():
            self._channels[peer].logged(number)
        for step in steps:
            self._perform(step)

    def _timed(self, event: Event) -> list[Step]:
        begin = time.perf_counter()
        self._drive.clock_s = time.monotonic() - self._started_s
        steps = self._drive.handle(event)
        spent = time.perf_counter() - begin
        self.tally.events += 1
        if type(event) is Computed:
            self.tally.compute_s += spent
        else:
            self.tally.serve_s += spent
        return steps

    def _note_progress(self, log: EventLog) -> None:
        for peer, channel in self._channels.items():
            acknowledged = channel.link.first_kept - 1
            if acknowledged >= self._acknowledged[peer] + 256:
                self._acknowledged[peer] = acknowledged
                log.append(LogAcknowledged(peer, acknowledged))
        if self._drive.events >= self._marked + self.options.mark_events or self._drive.finished is not None:
            self._marked = self._drive.events
            log.append(LogMark(self._drive.events, self._drive.digest))

    # -- effects --------------------------------------------------------------------------------------------------

    def _perform(self, step: Step) -> None:
        if type(step) is Written:
            for peer in step.to:
                self.channel(peer).send(step.frame)
        elif type(step) is Compute:
            self._compute(step.ticket, step.job)
        elif type(step) is Wake:
            self._arm(step.token, step.after_s)
        elif type(step) is Observe and self._watch is not None:
            self._watch(self._drive.clock_s, step.name, step.value)

    def _compute(self, ticket: int, job: Callable[[], Any] | None) -> None:
        if job is None:
            self._inbox.put(_Incoming(LogComputed(ticket), Computed(ticket)))
            return
        future = self._lanes.submit(self._timed_job, job)
        self._results[ticket] = future
        future.add_done_callback(lambda done: self._computed(ticket, done))

    def _timed_job(self, job: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = job()
        self.tally.compute_s += time.perf_counter() - begin
        return result

    def _computed(self, ticket: int, done: Future[Any]) -> None:
        problem = done.exception()
        if problem is None:
            self._inbox.put(_Incoming(LogComputed(ticket), Computed(ticket, done.result())))
        elif isinstance(problem, OffbeatError):
            self._fail(problem)
        else:
            failure = OffbeatError(f"'{self.party.name}' failed in run '{self.run_name}', computing: {problem!r}")
            failure.__cause__ = problem
            self._fail(failure)

    def _arm(self, token: int, after_s: float) -> None:
        self._timer_count += 1
        heappush(self._timers, (time.monotonic() + after_s, self._timer_count, token))

    def _deliver(self, sender: PartyName, number: int, frame: bytes, body: Message) -> None:
        self._inbox.put(_Incoming(LogReceived(sender, number, frame), Received(sender, body)))

    def _fail(self, problem: OffbeatError) -> None:
        self._failure = self._failure or problem
        self._inbox.put(None)

    # -- peers that fall silent -----------------------------------------------------------------------------------

    def _watch_peers(self) -> None:
        for news in self._vigil.look(quiet=self._inbox.empty()):
            record = LogLost(news.peer) if isinstance(news, PeerLost) else LogBack(news.peer)
            self._handle([_Incoming(record, news)])
        idle = not (self._timers or self._results or self._drive.jobs) and self._inbox.empty()
        if self._drive.finished is None:
            self._drive.finished = self._vigil.verdict(idle)

    def _trouble(self, peer: PartyName) -> str:
        return next((dialer.trouble for dialer in self._dialers if dialer.peer.name == peer), "")

    # -- keeping and ending ---------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        assert self._log is not None and self.folder is not None
        begin = time.monotonic()
        results = dict.fromkeys(self._drive.jobs) | {t: f.result() for t, f in self._results.items()}
        self._log.sync()
        links = {peer: self._link_state(channel) for peer, channel in self._channels.items()}
        checkpoint(self.folder, self._drive, results, links, self._log.size)
        # A checkpoint may cost at most a tenth of the time.
        self._checkpoint_due = time.monotonic() + max(self.options.checkpoint_s, 10 * (time.monotonic() - begin))

    def _link_state(self, channel: Channel) -> tuple[int, int, list[bytes]]:
        link = channel.link
        return link.sent, link.durable, link.kept()

    def _leave(self) -> None:
        """Let the peers have what is still theirs, within bounds, and say goodbye."""
        finish = self._drive.finished
        if finish is None:
            finish = Finish(_FAILED, str(self._failure or self._stop_reason))
        goodbye = f"{finish.verdict}{REASON}{finish.reason}"[:_GOODBYE_TEXT]
        for channel in self._channels.values():
            channel.finish(goodbye)
        hurried = self._failure is not None or bool(self._stop_reason)
        deadline = time.monotonic() + (min(2.0, self.options.linger_s) if hurried else self.options.linger_s)
        away = {*self._drive.lost, *self._gone}
        present = [c for p, c in self._channels.items() if c.met and (p not in away or c.peer_verdict is not None)]
        while time.monotonic() < deadline and not all(channel.over() for channel in present):
            self._forget_arrivals()
        for dialer in self._dialers:
            dialer.stop()
        for channel in self._channels.values():
            channel.close()
        for dialer in self._dialers:
            dialer.join(_TICK_S)
        if self.server is not None:
            self.server.forget(self.run_name, goodbye)
        if self._log is not None:
            self._log.close()

    def _forget_arrivals(self) -> None:
        """A finished party hears nothing, but acknowledges, so that its peers can finish too."""
        try:
            item = self._inbox.get(timeout=_TICK_S)
        except Empty:
            return
        if item is not None and type(item.record) is LogReceived:
            self._channels[item.record.sender].logged(item.record.number)

    def _outcome(self) -> Outcome:
        finish = self._drive.finished
        if finish is None:
            assert self._stop_reason
            finish = Finish("stopped", self._stop_reason)
        self.tally.sent = self._drive.sent
        return Outcome(
            clock="wall",
            time_s=time.monotonic() - self._started_s,
            digest=self._drive.digest.hex(),
            finished={self.party.name: finish},
            observations=[(at_s, self.party.name, name, value) for at_s, name, value in self._drive.observed],
            tallies={self.party.name: self.tally},
            timeline=[],
            events=self._drive.events,
            lost=tuple(sorted(self._drive.lost)),
        )


def we_dial(me: Member, peer: Member) -> bool:
    """One stream per pair: whoever cannot be called, calls; otherwise the later name calls the earlier."""
    if not me.address and not peer.address:
        raise BadInput(
            f"neither '{me.name}' nor '{peer.name}' has an address in the roster, so neither can call the other; give "
            "one of them an address that the other can reach."
        )
    if not peer.address:
        return False
    return not me.address or me.name > peer.name


def own_thread(session: Session, done: Callable[[Outcome | OffbeatError], None]) -> threading.Thread:
    """Run a session beside others; `done` gets its outcome or its error."""

    def body() -> None:
        try:
            done(session.run())
        except OffbeatError as problem:
            done(problem)

    thread = threading.Thread(target=body, name=f"session {session.run_name}", daemon=True)
    thread.start()
    return thread
