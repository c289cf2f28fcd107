"""The simulator's loop: entries in the total order of (virtual time, order of creation), and nothing else moves.

A party's effects become later entries: a send after the link's transit time, a compute after the cost model's duration
on the party's first free lane, a wake after its seconds. Every random factor comes from a stream named by the seed and
what it is for, so a run is its seed. The digest covers the time, receiver and kind of every event, and the parties'
final states.

    loop.py       this
    work.py       how long computations take
    links.py      messages in a calm world: each arrives once, and none overtakes an earlier one of its link
    faulty.py     messages over links that lose, double, delay and reorder packets, delivered by `runtime/delivery.py`
    outages.py    parties that crash, and come back from their logs
    accounts.py   what the messages come to, counted after the loop
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import repeat
from math import inf
from typing import Any

import numpy as np

from offbeat.party.contract import (
    Broadcast,
    Compute,
    Event,
    Finish,
    Message,
    Observe,
    Party,
    PartyName,
    Received,
    Send,
    Started,
    Wake,
    Woken,
)
from offbeat.runtime.contract import Look, Outcome, Tally
from offbeat.runtime.simulator.accounts import Accounts, Posting, Postings, Trace
from offbeat.runtime.simulator.checkers import Checker
from offbeat.runtime.simulator.costs import CostModel
from offbeat.runtime.simulator.faults import Fault
from offbeat.runtime.simulator.faulty import FaultyLinks
from offbeat.runtime.simulator.links import CalmLinks
from offbeat.runtime.simulator.outages import Outages
from offbeat.runtime.simulator.work import Work

ENTRIES = 1 << 16  # handled before their rows are brought into the sums

Entry = tuple[float, int, tuple[int, ...], int, Any]
Rebuild = Callable[[PartyName], Party]


@dataclass(kw_only=True)
class Simulator:
    """Runs parties in virtual time.

    seed               decides jitter and faults
    costs              what work and messages take
    faults             what breaks the network and the parties on purpose
    checkers           watch every message and event, and raise on a violation
    rebuild            makes a fresh party, which a crashed one's log is fed to; None: the old object goes on
    checkpoint_events  a rebuilt party begins at a snapshot, taken whenever so many events were handled; 0: at the start
    until_s            end after so many virtual seconds
    events_max         end after so many events: something goes round in circles
    detect_s           after how long a party that is down is held for lost
    timeline_max       how many messages are kept for the timeline
    digest             whether events and effects are digested, for replay
    """

    seed: int = 0
    costs: CostModel = field(default_factory=CostModel)
    faults: Sequence[Fault] = ()
    checkers: Sequence[Checker] = ()
    rebuild: Rebuild | None = None
    checkpoint_events: int = 0
    until_s: float = inf
    events_max: int = 200_000_000
    detect_s: float = 1.0
    timeline_max: int = 3000
    digest: bool = True
    world: "World | None" = field(default=None, init=False, repr=False)  # of the run under way, or of the last one

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome:
        """Carry messages between `parties` until all have finished, or nothing can happen any more. `look` is called
        with the time, and says after how many seconds it is to be called again, or None to end the run."""
        self.world = World(self, parties, look)
        return self.world.run()

    @property
    def sent(self) -> dict[PartyName, tuple[int, int]]:
        """By party, so far: (messages, payload bytes). Counted when somebody asks: most looks do not."""
        return {} if self.world is None else self.world.sent()

    @property
    def bytes_sent(self) -> int:
        """Payload sent by anyone so far."""
        return sum(size for _, size in self.sent.values())


class World:
    """One run: the parties, what is to come, and what was seen.

    Entries are (time, order, receivers, code of the posting, event). A *posting* is one kind of message from one sender
    to the same receivers; its code is all that is written down of a message while the loop runs (`accounts.py`).
    What the parties ask for lies on a heap; where every message takes equally long, messages arrive in the order in
    which they were sent, and a queue serves them (`wire`) without sorting. An entry without receivers is something to
    call.
    """

    def __init__(self, setting: Simulator, parties: Sequence[Party], look: Look | None) -> None:
        self.setting, self.look = setting, look
        self.parties = list(parties)
        self.names = [party.name for party in parties]
        assert len(set(self.names)) == len(self.names), f"two parties share a name: {self.names}"
        self.index = {name: i for i, name in enumerate(self.names)}
        self.handles = [party.handle for party in self.parties]
        self.now, self.order, self.events = 0.0, 0, 0
        self.heap: list[Entry] = []
        self.wire: deque[Entry] = deque()
        self.latency_s = setting.costs.link.latency_s
        self.round_trip_s = 2.0 * self.latency_s
        self.postings, self.trace = Postings(), Trace(keep=setting.digest)
        self.accounts = Accounts(self.names, self.postings, setting.timeline_max)
        self.routes: list[dict[PartyName | tuple[PartyName, ...], dict[type, Posting]]] = [{} for _ in parties]
        self.own: list[dict[type, Posting]] = [{} for _ in parties]  # of events that are no messages
        self.deaf: set[int] = set()  # down, or finished
        self.unfinished = len(self.parties)
        self.finished: dict[PartyName, Finish] = {}
        self.observations: list[tuple[float, PartyName, str, Any]] = []
        self.stalled, self.out_of_time = "", False
        self.work = Work(self)
        self.links: FaultyLinks | CalmLinks = FaultyLinks(self) if setting.faults else CalmLinks(self)
        self.outages = Outages(self, self.links) if isinstance(self.links, FaultyLinks) else None
        at_once = isinstance(self.links, CalmLinks) and self.links.constant_delay
        self.constant_delay = at_once
        self.act: dict[type, Callable[[int, Any], None]] = {
            Send: self._send_at_once if at_once else self.links.send,
            Broadcast: self._send_at_once if at_once else self.links.broadcast,
            Compute: self.work.compute_at_once if self.work.even else self.work.compute,
            Wake: self.wake,
            Observe: self._observe,
            Finish: self._finish,
        }

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        if self.outages is not None:
            self.outages.plan()
        for i in range(len(self.parties)):
            self.tell(0.0, i, Started())
        if self.look is not None:
            self.call(0.0, self._take_look)
        while (self.heap or self.wire) and self.unfinished > 0 and not self.stalled:
            if self.events > self.setting.events_max:
                self.stalled = _stopped(f"{self.setting.events_max} events")
                break
            left = (self.setting.events_max - self.events) // len(self.parties) + 1
            self._play(min(ENTRIES, left))
            self._bring_up_to_date()
        return self._outcome()

    def _play(self, entries: int) -> None:
        """Handle so many entries, in the order of (time, creation)."""
        heap, wire, handles, act = self.heap, self.wire, self.handles, self.act
        until_s, checkers, deaf = self.setting.until_s, self.setting.checkers, self.deaf
        time_of, code_of = self.trace.times.append, self.trace.codes.append
        for _ in repeat(None, entries):
            if wire and not (heap and heap[0] < wire[0]):
                now, _, to, code, event = wire.popleft()
            elif heap:
                now, _, to, code, event = heappop(heap)
            else:
                return
            if now > until_s:
                self.stalled, self.out_of_time = _stopped(f"{until_s:g} virtual seconds"), True
                return
            self.now = now
            if not to:
                event()
                if self.stalled or not self.unfinished:
                    return
                continue
            time_of(now)
            code_of(code)
            if deaf:
                to = self._hearing(to)
            for index in to:
                effects = handles[index](event)
                if checkers:
                    self._check(index, event, effects)
                if effects:
                    for effect in effects:
                        act[type(effect)](index, effect)
            if not self.unfinished:
                return

    def _hearing(self, to: tuple[int, ...]) -> tuple[int, ...]:
        row = self.trace.rows + len(self.trace.times) - 1
        self.trace.unheard += [(row, index) for index in to if index in self.deaf]
        return tuple([index for index in to if index not in self.deaf])

    def _bring_up_to_date(self) -> None:
        """Rows become sums. Where every message takes equally long, what was handled tells what was sent."""
        times, codes = self.trace.take()
        each = np.array([len(posting.to) for posting in self.postings.all], np.int64)
        self.events += int(each[codes].sum())
        if self.constant_delay:
            self.accounts.count(codes)
            self.accounts.add(times - self.latency_s, times, codes)
        else:
            self.accounts.take(self.links.rows)

    # -- for the parts of the world --------------------------------------------------------------------------------

    def call(self, time: float, action: Callable[[], None]) -> None:
        self.order += 1
        heappush(self.heap, (time, self.order, (), 0, action))

    def tell(self, time: float, index: int, event: Event) -> None:
        """Let an event that is no message reach a party at its time."""
        if self.outages is not None:
            self.outages.tell(time, index, event)
            return
        posting = self.own_posting(index, type(event))
        self.order += 1
        heappush(self.heap, (time, self.order, posting.to, posting.code, event))

    def deliver(self, index: int, event: Event, handle: Callable[[Event], Sequence[Any]] | None = None) -> None:
        """Now, beside the order of entries: what came over a faulty link, or a job's result."""
        if index in self.deaf:
            return
        kind = type(event.body) if type(event) is Received else type(event)
        self.trace.times.append(self.now)
        self.trace.codes.append(self.own_posting(index, kind).code)
        effects = (handle or self.handles[index])(event)
        self._check(index, event, effects)
        for effect in effects:
            self.act[type(effect)](index, effect)

    def own_posting(self, index: int, kind: type) -> Posting:
        posting = self.own[index].get(kind)
        if posting is None:
            posting = self.own[index][kind] = self.postings.event(index, kind)
            self.accounts.varying.append(0)
        return posting

    def posting(self, index: int, to: PartyName | tuple[PartyName, ...], kind: type[Message]) -> Posting:
        """Of a message of this kind from one party to others."""
        route = self.routes[index].setdefault(to, {})
        posting = route.get(kind)
        if posting is None:
            names = (to,) if isinstance(to, str) else to
            posting = route[kind] = self.postings.message(index, tuple([self.index[name] for name in names]), kind)
            self.accounts.varying.append(0)
        return posting

    # -- effects -------------------------------------------------------------------------------------------------

    def _send_at_once(self, index: int, effect: Send | Broadcast) -> None:
        """The short way, where every message takes equally long."""
        if not effect.to:  # to nobody, as when all others are too slow to be waited for
            return
        body = effect.body
        try:
            posting = self.routes[index][effect.to][type(body)]
        except KeyError:
            posting = self.posting(index, effect.to, type(body))
        if posting.measure is not None:
            self.accounts.varying[posting.code] += posting.measure(body)
        self.order += 1
        event = Received(self.names[index], body, self.round_trip_s)
        self.wire.append((self.now + self.latency_s, self.order, posting.to, posting.code, event))

    def wake(self, index: int, effect: Wake) -> None:
        self.tell(self.now + effect.after_s, index, Woken(effect.token))

    def _observe(self, index: int, effect: Observe) -> None:
        self.observations.append((self.now, self.names[index], effect.name, effect.value))

    def _finish(self, index: int, effect: Finish) -> None:
        if self.names[index] in self.finished:
            return
        self.finished[self.names[index]] = effect
        self.deaf.add(index)
        self.unfinished -= 1

    # -- looking and checking --------------------------------------------------------------------------------------

    def _take_look(self) -> None:
        assert self.look is not None
        after = self.look(self.now)
        if after is None:
            self.stalled = "ended by the observer"
        elif self.heap or self.wire:
            self.call(self.now + after, self._take_look)

    def sent(self) -> dict[PartyName, tuple[int, int]]:
        self._bring_up_to_date()
        rows = [kinds.values() for kinds in self.accounts.sent([entry[3] for entry in self.wire])]
        sent = [(sum(n for n, _ in kinds), sum(size for _, size in kinds)) for kinds in rows]
        return dict(zip(self.names, sent, strict=True))

    def _check(self, index: int, event: Event, effects: Sequence[Any]) -> None:
        for checker in self.setting.checkers:
            checker.handled(self.now, self.parties[index], event, effects)

    # -- the end -------------------------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        gone = self.outages.gone if self.outages is not None else set()
        waiting = [n for i, n in enumerate(self.names) if n not in self.finished and i not in gone]
        if waiting and not self.stalled:
            self.stalled = f"nothing is left to happen, and {', '.join(waiting)} had not finished"
        outcome = Outcome(
            clock="virtual",
            time_s=self.now,
            digest=self.trace.digest(self.postings, self.parties) if self.setting.digest else "",
            finished=self.finished,
            observations=self.observations,
            tallies=self._tallies(),
            timeline=self.accounts.timeline,
            events=self.events - len(self.trace.unheard),
            lost=tuple(self.names[i] for i in sorted(gone)),
            stalled=self.stalled,
            out_of_time=self.out_of_time,
        )
        for checker in self.setting.checkers:
            checker.ended(outcome, self.parties)
        return outcome

    def _tallies(self) -> dict[PartyName, Tally]:
        """With what is still on its way."""
        arrivals = np.array([entry[0] for entry in self.wire], np.float64)
        codes = np.array([entry[3] for entry in self.wire], np.int64)
        self.accounts.count(codes)
        self.accounts.add(arrivals - self.latency_s, arrivals, codes)
        self.wire.clear()
        tallies = [
            Tally(compute_s=compute_s, serve_s=serve_s, transit_s=transit_s, sent=sent)
            for compute_s, serve_s, transit_s, sent in zip(
                self.work.compute_s, self.links.serve_s, self.accounts.transit_s, self.accounts.sent(), strict=True
            )
        ]
        return dict(zip(self.names, tallies, strict=True))


def _stopped(limit: str) -> str:
    return f"stopped at the limit of {limit} before every party had finished"
