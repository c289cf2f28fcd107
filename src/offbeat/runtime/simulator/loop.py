"""The simulator's loop: one heap of (time, order, receiver, event), and nothing else moves.

Entries are handled in the total order of (virtual time, order of creation). A party's effects become later entries:
a send after the link's transit time, a compute after the cost model's duration on the party's first free lane, a
wake after its seconds. Every random factor comes from a stream named by the seed and what it is for, so a run is
its seed. The digest covers the time, receiver and kind of every event, and the parties' final states.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import repeat
from math import inf
from typing import Any

import numpy as np

from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import (
    Broadcast,
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Message,
    Observe,
    Party,
    PartyName,
    PeerBack,
    PeerLost,
    Received,
    Send,
    Started,
    Wake,
    Woken,
)
from offbeat.randomness import stream
from offbeat.runtime.contract import Look, Outcome, Tally
from offbeat.runtime.simulator.accounts import Accounts, Posting, Postings, Trace
from offbeat.runtime.simulator.checkers import Checker
from offbeat.runtime.simulator.costs import CostModel
from offbeat.runtime.simulator.faults import Fault, Suspicion

ENTRIES = 1 << 16  # handled before their rows are brought into the sums

Entry = tuple[float, int, tuple[int, ...], int, Any]
Rebuild = Callable[[PartyName], Party]


class Simulator:
    """Runs parties in virtual time.

    `faults` break the network and the parties on purpose; `checkers` watch every message and event and raise on a
    violation; `rebuild` makes a fresh party to be restored after a crash (without it the old object is restored).
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        costs: CostModel | None = None,
        faults: Sequence[Fault] = (),
        checkers: Sequence[Checker] = (),
        rebuild: Rebuild | None = None,
        until_s: float = inf,
        events_max: int = 200_000_000,
        detect_s: float = 1.0,
        timeline_max: int = 3000,
        digest: bool = True,
    ) -> None:
        self.seed = seed
        self.costs = costs or CostModel()
        self.faults = tuple(faults)
        self.checkers = tuple(checkers)
        self.rebuild = rebuild
        self.until_s = until_s
        self.events_max = events_max
        self.detect_s = detect_s
        self.timeline_max = timeline_max
        self.digest = digest
        self.bytes_sent = 0  # payload sent by anyone so far, brought up to date before each look
        self.sent: dict[PartyName, tuple[int, int]] = {}  # the same by party: (messages, payload bytes)

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome:
        return _World(self, parties, look).run()


class _World:
    """One run: the parties, what is to come, and what was seen.

    Entries are (time, order, receivers, code of the posting, event). What the parties ask for lies on a heap; where
    every message takes equally long, messages arrive in the order in which they were sent, and a queue serves them
    (`wire`) without sorting. An entry without receivers is something to call.
    """

    def __init__(self, setting: Simulator, parties: Sequence[Party], look: Look | None) -> None:
        self.setting, self.look = setting, look
        self.parties = list(parties)
        self.names = [party.name for party in parties]
        assert len(set(self.names)) == len(self.names), f"two parties share a name: {self.names}"
        self.index = {name: i for i, name in enumerate(self.names)}
        count, costs = len(parties), setting.costs
        self.handles = [party.handle for party in self.parties]
        self.now, self.order, self.events = 0.0, 0, 0
        self.heap: list[Entry] = []
        self.wire: deque[Entry] = deque()
        self.postings, self.trace = Postings(), Trace(keep=setting.digest)
        self.accounts = Accounts(self.names, self.postings, setting.timeline_max)
        self.routes: list[dict[PartyName | tuple[PartyName, ...], dict[type, Posting]]] = [{} for _ in parties]
        self.own: list[dict[type, Posting]] = [{} for _ in parties]
        self.departs: list[
            float
        ] = []  # of messages that take their own time: when they left, arrived, and what they are
        self.arrivals: list[float] = []
        self.codes: list[int] = []
        self.sent_codes: list[int] = []  # what was sent, lost or doubled on its way or not
        self.tallies = [Tally() for _ in parties]
        self.latency_s, self.seconds_per_byte = costs.link.latency_s, 1 / costs.link.bandwidth_bytes_s
        self.work_s = costs.work_s
        self.overhead_s, self.per_sample_s, self.per_nonzero_s = (
            costs.overhead_s,
            costs.per_sample_s,
            costs.per_nonzero_s,
        )
        self.compute_s = [0.0] * count
        self.lanes = [[0.0] * max(costs.lanes, 1) for _ in parties]
        self.listener_free = [0.0] * count
        self.slow = [costs.slow.get(name, 1.0) for name in self.names]
        self.serve_factor = [costs.serve_factor(name) for name in self.names]
        self.compute_jitter = [costs.jitter.sampler(stream(setting.seed, n, "compute-jitter")) for n in self.names]
        self.link_jitter = costs.link_jitter.sampler(stream(setting.seed, "link-jitter"))
        self.fault_rng = stream(setting.seed, "faults")
        self.one_delay_for_all = not (costs.links or setting.faults or self.link_jitter)
        self.constant_delay = self.one_delay_for_all and not self.seconds_per_byte and not any(self.serve_factor)
        self.incarnations = [0] * count
        self.deaf: set[int] = set()  # down, or finished
        self.down = [False] * count
        self.unfinished = count
        self.gone: set[int] = set()
        self.missed: set[int] = set()  # down for so long that the others were told
        self.memories: dict[int, tuple[bytes, set[int]]] = {}  # a snapshot, and whom it held for lost
        self.finished: dict[PartyName, Finish] = {}
        self.observations: list[tuple[float, PartyName, str, Any]] = []
        self.stalled, self.out_of_time = "", False
        self.computed = [self._own(i, Computed) for i in range(count)]
        even = costs.lanes <= 1 and not setting.faults and all(jitter is None for jitter in self.compute_jitter)
        self.act: dict[type, Callable[[int, Any], None]] = {
            Send: self._send_at_once if self.constant_delay else self._send,
            Broadcast: self._broadcast_at_once if self.constant_delay else self._broadcast,
            Compute: self._compute_at_once if even else self._compute,
            Wake: self._wake,
            Observe: self._observe,
            Finish: self._finish,
        }

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self._plan_outages()
        for i in range(len(self.parties)):
            self._tell(0.0, i, Started())
        if self.look is not None:
            self._call(0.0, self._take_look)
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
            return
        self.accounts.count(np.array(self.sent_codes, np.int64))
        self.accounts.add(np.array(self.departs), np.array(self.arrivals), np.array(self.codes, np.int64))
        for column in (self.departs, self.arrivals, self.codes, self.sent_codes):
            column.clear()

    def _deliver(self, index: int, event: Event) -> None:
        """At once, beside the order of entries: a job's result, or a party that is back."""
        self.trace.times.append(self.now)
        self.trace.codes.append(self._own(index, type(event)).code)
        effects = self.handles[index](event)
        self._check(index, event, effects)
        for effect in effects:
            self.act[type(effect)](index, effect)

    def _call(self, time: float, action: Callable[[], None]) -> None:
        self.order += 1
        heappush(self.heap, (time, self.order, (), 0, action))

    def _tell(self, time: float, index: int, event: Event) -> None:
        """An event that is no message, such as the loss of a peer: it comes whatever happened to the party."""
        posting = self._own(index, type(event))
        self.order += 1
        heappush(self.heap, (time, self.order, posting.to, posting.code, event))

    def _own(self, index: int, kind: type) -> Posting:
        posting = self.own[index].get(kind)
        if posting is None:
            posting = self.own[index][kind] = self.postings.event(index, kind)
            self.accounts.varying.append(0)
        return posting

    # -- effects -------------------------------------------------------------------------------------------------

    def _send_at_once(self, index: int, effect: Send) -> None:
        """The short way, where every message takes equally long."""
        body = effect.body
        try:
            posting = self.routes[index][effect.to][type(body)]
        except KeyError:
            posting = self._posting(index, effect.to, type(body))
        if posting.measure is not None:
            self.accounts.varying[posting.code] += posting.measure(body)
        self.order += 1
        event = Received(self.names[index], body)
        self.wire.append((self.now + self.latency_s, self.order, posting.to, posting.code, event))

    _broadcast_at_once: Callable[[int, Broadcast], None] = _send_at_once  # type: ignore[assignment]

    def _posting(self, index: int, to: PartyName | tuple[PartyName, ...], kind: type[Message]) -> Posting:
        names = (to,) if isinstance(to, str) else to
        route = self.routes[index].setdefault(to, {})
        posting = route[kind] = self.postings.message(index, tuple([self.index[name] for name in names]), kind)
        self.accounts.varying.append(0)
        return posting

    def _measured(self, index: int, to: PartyName | tuple[PartyName, ...], body: Message) -> tuple[Posting, int]:
        posting = self.routes[index].get(to, {}).get(type(body)) or self._posting(index, to, type(body))
        size = posting.size(body)
        self.accounts.varying[posting.code] += size - posting.fixed
        return posting, size

    def _send(self, index: int, effect: Send) -> None:
        depart = self.now
        factor = self.serve_factor[index]
        if factor and effect.samples:
            cost = factor * self.work_s(effect.samples, effect.nonzeros)
            depart = max(depart, self.listener_free[index]) + cost
            self.listener_free[index] = depart
            self.tallies[index].serve_s += cost
        self._post(index, effect.to, effect.body, depart)

    def _broadcast(self, index: int, effect: Broadcast) -> None:
        if self.one_delay_for_all:
            self._post(index, effect.to, effect.body, self.now)
            return
        for to in effect.to:
            self._post(index, to, effect.body, self.now)

    def _post(self, index: int, to: PartyName | tuple[PartyName, ...], body: Message, depart: float) -> None:
        posting, size = self._measured(index, to, body)
        event = Received(self.names[index], body)
        if self.one_delay_for_all:
            arrivals = [depart + self.latency_s + size * self.seconds_per_byte]
        else:
            assert isinstance(to, str)
            arrivals = self._carried(self.names[index], to, size, depart)
        self.sent_codes.append(posting.code)
        for arrival in arrivals:
            self.departs.append(depart)
            self.arrivals.append(arrival)
            self.codes.append(posting.code)
            self.order += 1
            heappush(self.heap, (arrival, self.order, posting.to, posting.code, event))

    def _carried(self, sender: PartyName, to: PartyName, size: int, depart: float) -> list[float]:
        """When a message arrives over a link of its own, if it does, and how often."""
        costs = self.setting.costs
        transit = costs.links.get((sender, to), costs.link).transit_s(size)
        if self.link_jitter is not None:
            transit *= self.link_jitter()
        times = [depart + transit]
        for fault in self.setting.faults:
            times = fault.arrivals(times, depart, sender, to, self.fault_rng)
        return times

    def _compute_at_once(self, index: int, effect: Compute) -> None:
        """The short way, where a party has one lane, works evenly, and does not crash."""
        if effect.job is not None:
            self._compute(index, effect)
            return
        per_sample_s, per_nonzero_s = self.per_sample_s, self.per_nonzero_s
        duration = self.slow[index] * (
            self.overhead_s + effect.samples * per_sample_s + effect.nonzeros * per_nonzero_s
        )
        self.compute_s[index] += duration
        now, lane = self.now, self.lanes[index]
        free = lane[0]
        done = lane[0] = (free if free > now else now) + duration
        posting = self.computed[index]
        self.order += 1
        heappush(self.heap, (done, self.order, posting.to, posting.code, Computed(effect.ticket)))

    def _compute(self, index: int, effect: Compute) -> None:
        duration = self.slow[index] * self.work_s(effect.samples, effect.nonzeros)
        jitter = self.compute_jitter[index]
        if jitter is not None:
            duration *= jitter()
        lanes = self.lanes[index]
        lane = lanes.index(min(lanes))
        done = lanes[lane] = max(lanes[lane], self.now) + duration
        self.compute_s[index] += duration
        if effect.job is None and not self.setting.faults:
            self._tell(done, index, Computed(effect.ticket))
        else:
            self._later(done, index, lambda: Computed(effect.ticket, effect.job() if effect.job is not None else None))

    def _wake(self, index: int, effect: Wake) -> None:
        time = self.now + effect.after_s
        if self.setting.faults:
            self._later(time, index, lambda: Woken(effect.token))
        else:
            self._tell(time, index, Woken(effect.token))

    def _later(self, time: float, index: int, make: Callable[[], Event]) -> None:
        """Something a party asked for that dies with it: a timer, or a job, which runs when its time has come."""
        incarnation = self.incarnations[index]

        def come() -> None:
            if incarnation == self.incarnations[index] and index not in self.deaf:
                self._deliver(index, make())

        self._call(time, come)

    def _observe(self, index: int, effect: Observe) -> None:
        self.observations.append((self.now, self.names[index], effect.name, effect.value))

    def _finish(self, index: int, effect: Finish) -> None:
        if self.names[index] in self.finished:
            return
        self.finished[self.names[index]] = effect
        self.deaf.add(index)
        self.unfinished -= 1

    # -- looking, checking, breaking -----------------------------------------------------------------------------

    def _take_look(self) -> None:
        assert self.look is not None
        self._bring_up_to_date()
        rows = [kinds.values() for kinds in self.accounts.sent([entry[3] for entry in self.wire])]
        sent = [(sum(n for n, _ in kinds), sum(size for _, size in kinds)) for kinds in rows]
        self.setting.sent = dict(zip(self.names, sent, strict=True))
        self.setting.bytes_sent = sum(size for _, size in sent)
        after = self.look(self.now)
        if after is None:
            self.stalled = "ended by the observer"
        elif self.heap or self.wire:
            self._call(self.now + after, self._take_look)

    def _check(self, index: int, event: Event, effects: Sequence[Effect]) -> None:
        for checker in self.setting.checkers:
            checker.handled(self.now, self.parties[index], event, effects)

    def _plan_outages(self) -> None:
        for fault in self.setting.faults:
            for planned in fault.plan(self.names, self.fault_rng):
                if isinstance(planned, Suspicion):
                    observer = self.index[planned.observer]
                    self._tell(planned.start_s, observer, PeerLost(planned.suspect))
                    self._tell(planned.stop_s, observer, PeerBack(planned.suspect))
                    continue
                i = self.index[planned.party]
                self._call(planned.start_s, lambda i=i, end=planned.stop_s: self._crash(i, end))  # type: ignore[misc]

    def _crash(self, index: int, back_s: float) -> None:
        name = self.names[index]
        if self.down[index] or name in self.finished:
            return
        self.memories[index] = encode_state(self.parties[index].snapshot()), set(self.missed)
        self.incarnations[index] += 1
        self.down[index] = True
        self.deaf.add(index)
        if back_s == inf:
            self.gone.add(index)
            self.unfinished -= 1
        else:
            self._call(back_s, lambda: self._restore(index))
        if back_s - self.now > self.setting.detect_s:
            self._call(self.now + self.setting.detect_s, lambda: self._miss(index))

    def _miss(self, index: int) -> None:
        self.missed.add(index)
        self._tell_others(index, PeerLost(self.names[index]))

    def _restore(self, index: int) -> None:
        name, rebuild = self.names[index], self.setting.rebuild
        if rebuild is not None:
            self.parties[index] = rebuild(name)
            self.handles[index] = self.parties[index].handle
        memory, thought_lost = self.memories.pop(index)
        self.parties[index].restore(decode_state(memory))
        self.lanes[index] = [self.now] * len(self.lanes[index])
        self.down[index] = False
        self.deaf.discard(index)
        self.missed.discard(index)
        self._deliver(index, Started(resumed=True))
        for other in sorted(self.missed - thought_lost):  # what it would have been told, had it been there
            self._tell(self.now, index, PeerLost(self.names[other]))
        for other in sorted(thought_lost - self.missed):
            self._tell(self.now, index, PeerBack(self.names[other]))
        self._tell_others(index, PeerBack(name))

    def _tell_others(self, index: int, event: Event) -> None:
        for other in range(len(self.parties)):
            if other != index:
                self._tell(self.now, other, event)

    # -- the end -------------------------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        waiting = [n for i, n in enumerate(self.names) if n not in self.finished and i not in self.gone]
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
            lost=tuple(self.names[i] for i in sorted(self.gone)),
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
        self.accounts.into(self.tallies)
        for tally, compute_s in zip(self.tallies, self.compute_s, strict=True):
            tally.compute_s = compute_s
        return dict(zip(self.names, self.tallies, strict=True))


def _stopped(limit: str) -> str:
    return f"stopped at the limit of {limit} before every party had finished"
