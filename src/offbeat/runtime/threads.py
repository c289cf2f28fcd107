"""One machine, real concurrency: the same party objects, one thread each, worker threads for their jobs.

Every message is encoded and decoded as on a network, so that parties share no memory. A party's events are handled
one at a time, in the order of its inbox, and written to its log first: `events/<party>.log` replays bit for bit.
Delays are real: one scheduler thread holds back what a slow link or a slow party would hold back.

    slow           a party that is k times slower waits (k - 1) times the cost model's work for each `Compute`
    link           a message is delivered so much later

Bounds: an inbox holds `inbox_max` messages; what comes beyond that is dropped and counted, and the protocols ask
again. What a party asked for itself (jobs, timers) is never dropped: it is one event for each request of its own.
"""

import hashlib
import heapq
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

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
    PeerLost,
    Received,
    Started,
    Wake,
    Woken,
)
from offbeat.runtime.contract import Look, Outcome, Tally
from offbeat.runtime.drive import Drive, Step, Written
from offbeat.runtime.eventlog import (
    FORMAT,
    AnyRecord,
    EventLog,
    Header,
    LogComputed,
    LogLost,
    LogMark,
    LogReceived,
    LogStarted,
    LogWoken,
)
from offbeat.runtime.recovery import log_path
from offbeat.runtime.simulator.costs import CostModel, Link

FLUSH_EVERY = 256
NO_DELAY = CostModel(link=Link(latency_s=0.0))


class Threads:
    """Runs parties on threads of this process. `folder`: the run folder whose `events/` gets the logs (None: no logs).
    Of `costs` only the slow factors, the work they multiply, the lanes and the link count."""

    def __init__(
        self,
        *,
        messages: Sequence[type[Message]],
        costs: CostModel = NO_DELAY,
        folder: Path | None = None,
        run_name: str = "run",
        inbox_max: int = 10_000,
        timeline_max: int = 3000,
        until_s: float = inf,
        flush_every: int = FLUSH_EVERY,
    ) -> None:
        self.messages, self.costs, self.folder, self.run_name = tuple(messages), costs, folder, run_name
        self.inbox_max, self.timeline_max, self.until_s = inbox_max, timeline_max, until_s
        self.flush_every = flush_every  # events; only a log that outlives its process is worth one write for each
        self.bytes_sent = 0  # payload sent by anyone so far, brought up to date before each look
        self.sent: dict[PartyName, tuple[int, int]] = {}  # the same by party: (messages, payload bytes)

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome:
        return Hall(self, parties, look).run()


class Mail(msgspec.Struct, frozen=True, gc=False):
    """A message on its way between two threads."""

    sender: PartyName
    kind: str
    frame: bytes
    sent_s: float


Item = Mail | Event


class Inbox:
    """What waits for one party: mail up to a bound, the party's own events always."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._items: deque[Item] = deque()
        self._mail = 0
        self._closed = False
        self._news = threading.Condition()

    def put(self, item: Item) -> bool:
        """False when it was not taken: the inbox is closed, or full of mail."""
        is_mail = type(item) is Mail
        with self._news:
            if self._closed or (is_mail and self._mail >= self.most):
                return False
            self._mail += is_mail
            self._items.append(item)
            self._news.notify()
        return True

    def take(self) -> Item | None:
        """The next item, waiting for it; None once the inbox is closed."""
        with self._news:
            while not self._items and not self._closed:
                self._news.wait()
            if self._closed:
                return None
            item = self._items.popleft()
            self._mail -= type(item) is Mail
            return item

    def close(self) -> int:
        """Take nothing more; how many items were left."""
        with self._news:
            left = 0 if self._closed else len(self._items)
            self._closed = True
            self._items.clear()
            self._news.notify_all()
            return left


class Scheduler:
    """One thread that calls things when their time has come."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._news = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="offbeat-scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        with self._news:
            self._order += 1
            heapq.heappush(self._heap, (time_s, self._order, action))
            if self._heap[0][1] == self._order:
                self._news.notify()

    def _work(self) -> None:
        while (action := self._next()) is not None:
            action()

    def _next(self) -> Callable[[], None] | None:
        with self._news:
            while not self._closed:
                wait_s = self._heap[0][0] - self._clock() if self._heap else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._heap)[2]
                self._news.wait(wait_s)
            return None

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()


class Seat:
    """One party, its thread, its inbox, its lanes and its log."""

    def __init__(self, hall: "Hall", party: Party) -> None:
        setting = hall.setting
        self.hall, self.name = hall, party.name
        self.drive = Drive(party, hall.codec)
        self.inbox = Inbox(setting.inbox_max)
        self.busy = threading.Lock()  # held while the party handles an event, so that a look sees a party at rest
        self.tally = Tally()
        self.dropped = 0
        self.slow = setting.costs.slow.get(party.name, 1.0)
        self.lane_free = [0.0] * max(setting.costs.lanes, 1)
        self.lanes = ThreadPoolExecutor(len(self.lane_free), thread_name_prefix=f"offbeat-{party.name}-lane")
        self.numbers: dict[PartyName, int] = {}
        self.transit_until = 0.0
        self.log = self._open_log(setting)
        self.thread = threading.Thread(target=self._work, name=f"offbeat-{party.name}", daemon=True)
        self.act: dict[type, Callable[[Any], None]] = {
            Written: self._post,
            Compute: self._compute,
            Wake: self._wake,
            Observe: self._observe,
            Finish: lambda step: None,
        }

    def _open_log(self, setting: Threads) -> EventLog | None:
        if setting.folder is None:
            return None
        path = log_path(setting.folder, self.name)
        path.unlink(missing_ok=True)
        log = EventLog(path)
        log.append(Header(FORMAT, self.name, setting.run_name, "", version("offbeat")))
        return log

    # -- the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self.drive.finished is None and (item := self.inbox.take()) is not None:
                for step in self._handle(item):
                    self.act[type(step)](step)
                self.hall.settled()
        except BaseException as problem:  # carried to the caller's thread, whatever it is
            self.hall.fail(problem)
            return
        if self.drive.finished is not None:
            self.hall.left(self, self.drive.finished)

    def _handle(self, item: Item) -> list[Step]:
        event, record = self._event(item)
        if self.log is not None:
            self.log.append(record)
            if self.drive.events % self.hall.setting.flush_every == 0:
                self.log.flush()
        with self.busy:
            begin = monotonic()
            steps = self.drive.handle(event)
            if type(event) is Computed:
                self.tally.compute_s += monotonic() - begin
        self.tally.events += 1
        return steps

    def _event(self, item: Item) -> tuple[Event, AnyRecord]:
        if type(item) is Mail:
            self._note_arrival(item)
            number = self.numbers[item.sender] = self.numbers.get(item.sender, 0) + 1
            body = self.hall.codec.decode(item.frame)
            return Received(item.sender, body), LogReceived(item.sender, number, item.frame)
        if type(item) is Computed:
            return item, LogComputed(item.ticket)
        if type(item) is Woken:
            return item, LogWoken(item.token)
        if type(item) is PeerLost:  # never between threads, which live and die together
            return item, LogLost(item.peer)
        assert type(item) is Started, item
        return item, LogStarted(item.resumed)

    def _note_arrival(self, mail: Mail) -> None:
        now = self.hall.now()
        self.tally.transit_s += max(0.0, now - max(mail.sent_s, self.transit_until))
        self.transit_until = max(self.transit_until, now)
        if len(self.hall.timeline) < self.hall.setting.timeline_max:
            self.hall.timeline.append((mail.sent_s, now, mail.sender, self.name, mail.kind))

    # -- effects -------------------------------------------------------------------------------------------------

    def _post(self, step: Written) -> None:
        row = self.tally.sent.setdefault(step.kind, [0, 0])
        row[0] += len(step.to)
        row[1] += len(step.to) * step.payload_bytes
        now = self.hall.now()
        mail = Mail(self.name, step.kind, step.frame, now)
        transit_s = self.hall.setting.costs.link.transit_s(step.payload_bytes)
        for name in step.to:
            self.hall.post(name, mail, now + transit_s if transit_s > 0 else 0.0)

    def _compute(self, step: Compute) -> None:
        extra_s = (self.slow - 1.0) * self.hall.setting.costs.work_s(step.samples, step.nonzeros)
        now = self.hall.now()
        lane = self.lane_free.index(min(self.lane_free))
        due_s = max(now, self.lane_free[lane]) + extra_s
        self.lane_free[lane] = due_s
        self.tally.compute_s += extra_s
        if step.job is None:
            self.hall.deliver(self, Computed(step.ticket), due_s if extra_s > 0 else 0.0)
            return
        self.hall.expected()
        future = self.lanes.submit(self._timed, step.job)
        future.add_done_callback(partial(self._job_done, step.ticket, due_s if extra_s > 0 else 0.0))

    def _timed(self, job: Callable[[], Any]) -> tuple[Any, float]:
        begin = monotonic()
        return job(), monotonic() - begin

    def _job_done(self, ticket: int, due_s: float, future: "Future[tuple[Any, float]]") -> None:
        if not future.cancelled():
            problem = future.exception()
            if problem is not None:
                self.hall.fail(problem)
            else:
                result, spent_s = future.result()
                self.tally.compute_s += spent_s
                self.hall.deliver(self, Computed(ticket, result), due_s)
        self.hall.settled()

    def _wake(self, step: Wake) -> None:
        self.hall.deliver(self, Woken(step.token), self.hall.now() + step.after_s)

    def _observe(self, step: Observe) -> None:
        self.hall.observations.append((self.hall.now(), self.name, step.name, step.value))

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """After the thread has ended: the log gets the digest that a replay must reach."""
        self.lanes.shutdown(wait=True, cancel_futures=True)
        if self.log is not None:
            self.log.append(LogMark(self.drive.events, self.drive.digest))
            self.log.close()


class Hall:
    """One run: the seats, the scheduler, and what was seen.

    `_open` counts everything that may still cause an event: items in inboxes, actions of the scheduler, running jobs,
    and the event being handled. When it falls to zero, nothing can happen any more."""

    def __init__(self, setting: Threads, parties: Sequence[Party], look: Look | None) -> None:
        self.setting, self.look = setting, look
        self.codec = Codec(setting.messages)
        self.begin = monotonic()
        self.scheduler = Scheduler(self.now)
        self.seats = {party.name: Seat(self, party) for party in parties}
        assert len(self.seats) == len(parties), "two parties share a name"
        self.observations: list[tuple[float, PartyName, str, Any]] = []
        self.timeline: list[tuple[float, float, PartyName, PartyName, str]] = []
        self.finished: dict[PartyName, Finish] = {}
        self.stalled, self.out_of_time = "", False
        self.problem: BaseException | None = None
        self._open = 0
        self._state = threading.Lock()
        self._over = threading.Event()

    def now(self) -> float:
        return monotonic() - self.begin

    # -- called by the seats -------------------------------------------------------------------------------------

    def post(self, name: PartyName, mail: Mail, due_s: float) -> None:
        self.deliver(self.seats[name], mail, due_s)

    def deliver(self, seat: Seat, item: Item, due_s: float) -> None:
        """Now (0), or when the scheduler's time has come."""
        self.expected()
        if due_s > 0:
            self.scheduler.at(due_s, lambda: self._put(seat, item))
        else:
            self._put(seat, item)

    def _put(self, seat: Seat, item: Item) -> None:
        if not seat.inbox.put(item):
            seat.dropped += seat.name not in self.finished
            self.settled()

    def expected(self) -> None:
        with self._state:
            self._open += 1

    def settled(self, count: int = 1) -> None:
        with self._state:
            self._open -= count
            nothing_left = self._open == 0
        if nothing_left:
            self._over.set()

    def left(self, seat: Seat, finish: Finish) -> None:
        with self._state:
            self.finished[seat.name] = finish
            everybody = len(self.finished) == len(self.seats)
        self.settled(seat.inbox.close())
        if everybody:
            self._over.set()

    def fail(self, problem: BaseException) -> None:
        with self._state:
            self.problem = self.problem or problem
        self._over.set()

    # -- the caller's thread -------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self.scheduler.start()
        for seat in self.seats.values():
            self.deliver(seat, Started(), 0.0)
        for seat in self.seats.values():
            seat.thread.start()
        try:
            self._watch()
        finally:
            self._close()
        if self.problem is not None:
            raise self.problem
        return self._outcome()

    def _watch(self) -> None:
        """Wait for the end, and look now and then."""
        next_look_s = 0.0 if self.look is not None else inf
        while not self._over.wait(self._patience(next_look_s)):
            if self.now() >= self.setting.until_s:
                self.stalled, self.out_of_time = f"stopped at the limit of {self.setting.until_s:g} seconds", True
                return
            if self.look is not None and self.now() >= next_look_s:
                after_s = self._look()
                if after_s is None:
                    self.stalled = "ended by the observer"
                    return
                next_look_s = self.now() + after_s

    def _patience(self, next_look_s: float) -> float | None:
        until_s = min(next_look_s, self.setting.until_s)
        return None if until_s == inf else max(0.0, until_s - self.now())

    def _look(self) -> float | None:
        """Between two events of every party: their states are whole, and stand still meanwhile."""
        assert self.look is not None
        with ExitStack() as held:
            for seat in self.seats.values():
                held.enter_context(seat.busy)
            tallies = {name: seat.tally for name, seat in self.seats.items()}
            counts = {name: sum(count for count, _ in tally.sent.values()) for name, tally in tallies.items()}
            self.setting.sent = {name: (counts[name], tally.bytes_sent) for name, tally in tallies.items()}
            self.setting.bytes_sent = sum(size for _, size in self.setting.sent.values())
            return self.look(self.now())

    def _close(self) -> None:
        for seat in self.seats.values():
            seat.inbox.close()
        for seat in self.seats.values():
            seat.thread.join()
        self.scheduler.close()
        for seat in self.seats.values():
            seat.close()

    def _outcome(self) -> Outcome:
        waiting = [name for name in self.seats if name not in self.finished]
        if waiting and not self.stalled:
            self.stalled = f"nothing is left to happen, and {', '.join(waiting)} had not finished"
        for seat in self.seats.values():
            if seat.dropped:
                text = f"{seat.dropped} messages were dropped: its inbox was full"
                self.observations.append((self.now(), seat.name, "alarm", text))
        return Outcome(
            clock="wall",
            time_s=self.now(),
            digest=digest_of({name: seat.drive.digest for name, seat in self.seats.items()}),
            finished=self.finished,
            observations=self.observations,
            tallies={name: seat.tally for name, seat in self.seats.items()},
            timeline=self.timeline,
            events=sum(seat.drive.events for seat in self.seats.values()),
            stalled=self.stalled,
            out_of_time=self.out_of_time,
        )


def digest_of(digests: dict[PartyName, bytes]) -> str:
    """One digest for a run: over what every party asked for, in the order it did."""
    joined = hashlib.sha256()
    for name, digest in digests.items():
        joined.update(name.encode() + b"\0" + digest)
    return joined.hexdigest()
