"""The simulator's loop: one heap of (time, order, receiver, event), and nothing else moves.

Entries are handled in the total order of (virtual time, order of creation). A party's effects become later entries:
a send after the link's transit time, a compute after the cost model's duration on the party's first free lane, a
wake after its seconds. Every random factor comes from a stream named by the seed and what it is for, so a run is
its seed. The digest covers the time, receiver and kind of every event, and the parties' final states.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

import msgspec

from offbeat.message.codec import decode_state, encode_state, payload_bytes
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
from offbeat.runtime.simulator.checkers import Checker
from offbeat.runtime.simulator.costs import CostModel
from offbeat.runtime.simulator.faults import Fault, Suspicion

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


class _Later(msgspec.Struct, frozen=True, gc=False):
    """Something a party asked for that dies with it: a timer, or a job, which runs when its virtual time has come."""

    incarnation: int
    event: Any
    job: Callable[[], Any] | None = None


class _World:
    """One run: the parties, the heap, and what was seen."""

    def __init__(self, setting: Simulator, parties: Sequence[Party], look: Look | None) -> None:
        self.setting, self.look = setting, look
        self.parties = list(parties)
        self.names = [party.name for party in parties]
        assert len(set(self.names)) == len(self.names), f"two parties share a name: {self.names}"
        self.index = {name: i for i, name in enumerate(self.names)}
        self.index_tuples: dict[tuple[PartyName, ...], tuple[int, ...]] = {}
        count, costs = len(parties), setting.costs
        self.handles = [party.handle for party in self.parties]
        self.now, self.order, self.events = 0.0, 0, 0
        self.heap: list[tuple[float, int, Any, Any]] = []
        self.tallies = [Tally() for _ in parties]
        self.sent: list[dict[type, list[int]]] = [{} for _ in parties]  # kind -> [messages, payload bytes]
        self.transit_s, self.transit_until = [0.0] * count, [0.0] * count
        self.timeline_left = setting.timeline_max
        self.latency_s, self.seconds_per_byte = costs.link.latency_s, 1 / costs.link.bandwidth_bytes_s
        self.work_s = costs.work_s
        self.lanes = [[0.0] * max(costs.lanes, 1) for _ in parties]
        self.listener_free = [0.0] * count
        self.slow = [costs.slow.get(name, 1.0) for name in self.names]
        self.serve_factor = [costs.serve_factor(name) for name in self.names]
        self.compute_jitter = [costs.jitter.sampler(stream(setting.seed, n, "compute-jitter")) for n in self.names]
        self.link_jitter = costs.link_jitter.sampler(stream(setting.seed, "link-jitter"))
        self.fault_rng = stream(setting.seed, "faults")
        self.one_delay_for_all = not (costs.links or setting.faults or self.link_jitter)
        self.incarnations = [0] * count
        self.deaf = [False] * count  # down, or finished
        self.down = [False] * count
        self.unfinished = count
        self.gone: set[int] = set()
        self.missed: set[int] = set()  # down for so long that the others were told
        self.memories: dict[int, tuple[bytes, set[int]]] = {}  # a snapshot, and whom it held for lost
        self.finished: dict[PartyName, Finish] = {}
        self.observations: list[tuple[float, PartyName, str, Any]] = []
        self.timeline: list[tuple[float, float, PartyName, PartyName, str]] = []
        self.trace_times, self.trace_codes = array("d"), array("L")
        self.kinds: dict[type, int] = {}
        self.stalled, self.out_of_time = "", False
        self.act: dict[type, Callable[[int, Any], None]] = {
            Send: self._send,
            Broadcast: self._broadcast,
            Compute: self._compute,
            Wake: self._wake,
            Observe: self._observe,
            Finish: self._finish,
        }

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self._plan_outages()
        for i in range(len(self.parties)):
            self._at(0.0, i, Started())
        if self.look is not None:
            self._at(0.0, -1, self._take_look)
        heap, until_s, events_max = self.heap, self.setting.until_s, self.setting.events_max
        deliver = self._deliver
        while heap and self.unfinished > 0:
            time, _, to, event = heappop(heap)
            if time > until_s or self.events > events_max:
                limit = f"{until_s:g} virtual seconds" if time > until_s else f"{events_max} events"
                self.stalled = f"stopped at the limit of {limit} before every party had finished"
                self.out_of_time = time > until_s
                break
            self.now = time
            if type(to) is tuple:
                for index in to:
                    deliver(index, event)
            elif to >= 0:
                deliver(to, event)
            else:
                event()
        return self._outcome()

    def _deliver(self, index: int, event: Any) -> None:
        if self.deaf[index]:
            return
        if type(event) is _Later:
            if event.incarnation != self.incarnations[index]:
                return
            event = event.event if event.job is None else Computed(event.event.ticket, event.job())
        self.events += 1
        if self.setting.digest:
            self._trace(index, event)
        effects = self.handles[index](event)
        if self.setting.checkers:
            self._check(index, event, effects)
        if effects:
            act = self.act
            for effect in effects:
                act[type(effect)](index, effect)

    def _trace(self, index: int, event: Event) -> None:
        kind = type(event.body) if type(event) is Received else type(event)
        code = self.kinds.setdefault(kind, len(self.kinds))
        self.trace_times.append(self.now)
        self.trace_codes.append(index << 16 | code)

    def _at(self, time: float, to: Any, event: Any) -> None:
        self.order += 1
        heappush(self.heap, (time, self.order, to, event))

    # -- effects -------------------------------------------------------------------------------------------------

    def _send(self, index: int, effect: Send) -> None:
        depart, body = self.now, effect.body
        factor = self.serve_factor[index]
        if factor and effect.samples:
            cost = factor * self.work_s(effect.samples, effect.nonzeros)
            depart = max(depart, self.listener_free[index]) + cost
            self.listener_free[index] = depart
            self.tallies[index].serve_s += cost
        size = self._count(index, body, 1)
        to = self.index[effect.to]
        event = Received(self.names[index], body)
        if not self.one_delay_for_all:
            self._carry(index, to, event, size, depart)
            return
        arrival = depart + self.latency_s + size * self.seconds_per_byte
        self._note_transit(index, to, depart, arrival, body)
        self.order += 1
        heappush(self.heap, (arrival, self.order, to, event))

    def _broadcast(self, index: int, effect: Broadcast) -> None:
        body = effect.body
        size = self._count(index, body, len(effect.to))
        event = Received(self.names[index], body)
        receivers = self._indices(effect.to)
        if not self.one_delay_for_all:
            for to in receivers:
                self._carry(index, to, event, size, self.now)
            return
        arrival = self.now + self.latency_s + size * self.seconds_per_byte
        for to in receivers:
            self._note_transit(index, to, self.now, arrival, body)
        self._at(arrival, receivers, event)

    def _indices(self, names: tuple[PartyName, ...]) -> tuple[int, ...]:
        """Parties broadcast to the same few sets of peers again and again."""
        known = self.index_tuples.get(names)
        if known is None:
            known = self.index_tuples[names] = tuple([self.index[name] for name in names])
        return known

    def _carry(self, sender: int, to: int, event: Received, size: int, depart: float) -> None:
        costs = self.setting.costs
        link = costs.links.get((self.names[sender], self.names[to]), costs.link)
        transit = link.transit_s(size)
        if self.link_jitter is not None:
            transit *= self.link_jitter()
        times = [depart + transit]
        for fault in self.setting.faults:
            times = fault.arrivals(times, depart, self.names[sender], self.names[to], self.fault_rng)
        for time in times:
            self._note_transit(sender, to, depart, time, event.body)
            self._at(time, to, event)

    def _count(self, index: int, body: Message, receivers: int) -> int:
        size = payload_bytes(body)
        row = self.sent[index].get(type(body))
        if row is None:
            row = self.sent[index][type(body)] = [0, 0]
        row[0] += receivers
        row[1] += receivers * size
        return size

    def _note_transit(self, sender: int, to: int, depart: float, arrival: float, body: Message) -> None:
        """Time in which something was under way from or to a party, each moment counted once."""
        until = self.transit_until
        for party in (sender, to):
            reached = until[party]
            if arrival > reached:
                self.transit_s[party] += arrival - (depart if depart > reached else reached)
                until[party] = arrival
        if self.timeline_left:
            self.timeline_left -= 1
            self.timeline.append((depart, arrival, self.names[sender], self.names[to], type(body).__name__))

    def _compute(self, index: int, effect: Compute) -> None:
        duration = self.slow[index] * self.work_s(effect.samples, effect.nonzeros)
        jitter = self.compute_jitter[index]
        if jitter is not None:
            duration *= jitter()
        lanes = self.lanes[index]
        lane = lanes.index(min(lanes)) if len(lanes) > 1 else 0
        free = lanes[lane]
        done = lanes[lane] = (free if free > self.now else self.now) + duration
        self.tallies[index].compute_s += duration
        self._at(done, index, _Later(self.incarnations[index], Computed(effect.ticket), effect.job))

    def _wake(self, index: int, effect: Wake) -> None:
        self._at(self.now + effect.after_s, index, _Later(self.incarnations[index], Woken(effect.token)))

    def _observe(self, index: int, effect: Observe) -> None:
        self.observations.append((self.now, self.names[index], effect.name, effect.value))

    def _finish(self, index: int, effect: Finish) -> None:
        if self.names[index] in self.finished:
            return
        self.finished[self.names[index]] = effect
        self.deaf[index] = True
        self.unfinished -= 1

    # -- looking, checking, breaking -----------------------------------------------------------------------------

    def _take_look(self) -> None:
        assert self.look is not None
        sent = [(sum(n for n, _ in kinds.values()), sum(size for _, size in kinds.values())) for kinds in self.sent]
        self.setting.sent = dict(zip(self.names, sent, strict=True))
        self.setting.bytes_sent = sum(size for _, size in sent)
        after = self.look(self.now)
        if after is None:
            self.stalled = "ended by the observer"
            self.heap.clear()
        elif self.heap:
            self._at(self.now + after, -1, self._take_look)

    def _check(self, index: int, event: Event, effects: Sequence[Effect]) -> None:
        for checker in self.setting.checkers:
            checker.handled(self.now, self.parties[index], event, effects)

    def _plan_outages(self) -> None:
        for fault in self.setting.faults:
            for planned in fault.plan(self.names, self.fault_rng):
                if isinstance(planned, Suspicion):
                    observer = self.index[planned.observer]
                    self._at(planned.start_s, observer, PeerLost(planned.suspect))
                    self._at(planned.stop_s, observer, PeerBack(planned.suspect))
                    continue
                i = self.index[planned.party]
                self._at(planned.start_s, -1, lambda i=i, end=planned.stop_s: self._crash(i, end))

    def _crash(self, index: int, back_s: float) -> None:
        name = self.names[index]
        if self.down[index] or name in self.finished:
            return
        self.memories[index] = encode_state(self.parties[index].snapshot()), set(self.missed)
        self.incarnations[index] += 1
        self.down[index] = self.deaf[index] = True
        if back_s == inf:
            self.gone.add(index)
            self.unfinished -= 1
        else:
            self._at(back_s, -1, lambda: self._restore(index))
        if back_s - self.now > self.setting.detect_s:
            self._at(self.now + self.setting.detect_s, -1, lambda: self._miss(index))

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
        self.down[index] = self.deaf[index] = False
        self.missed.discard(index)
        self._deliver(index, Started(resumed=True))
        for other in sorted(self.missed - thought_lost):  # what it would have been told, had it been there
            self._at(self.now, index, PeerLost(self.names[other]))
        for other in sorted(thought_lost - self.missed):
            self._at(self.now, index, PeerBack(self.names[other]))
        self._tell_others(index, PeerBack(name))

    def _tell_others(self, index: int, event: Event) -> None:
        for other in range(len(self.parties)):
            if other != index:
                self._at(self.now, other, event)

    # -- the end -------------------------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        waiting = [n for i, n in enumerate(self.names) if n not in self.finished and i not in self.gone]
        if waiting and not self.stalled:
            self.stalled = f"nothing is left to happen, and {', '.join(waiting)} had not finished"
        outcome = Outcome(
            clock="virtual",
            time_s=self.now,
            digest=self._digest() if self.setting.digest else "",
            finished=self.finished,
            observations=self.observations,
            tallies=self._tallies(),
            timeline=self.timeline,
            events=self.events,
            lost=tuple(self.names[i] for i in sorted(self.gone)),
            stalled=self.stalled,
            out_of_time=self.out_of_time,
        )
        for checker in self.setting.checkers:
            checker.ended(outcome, self.parties)
        return outcome

    def _tallies(self) -> dict[PartyName, Tally]:
        for i, tally in enumerate(self.tallies):
            tally.transit_s = self.transit_s[i]
            tally.sent = {kind.__name__: row for kind, row in self.sent[i].items()}
        return dict(zip(self.names, self.tallies, strict=True))

    def _digest(self) -> str:
        digest = hashlib.sha256(self.trace_times.tobytes())
        digest.update(self.trace_codes.tobytes())
        for party in self.parties:
            digest.update(encode_state(party.snapshot()))
        return digest.hexdigest()
