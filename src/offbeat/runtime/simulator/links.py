"""Messages in a calm world: each arrives once, and none overtakes an earlier one of the same sender and receiver.

A message would arrive after the link's latency and the time that its bytes take, times the link's jitter; where an
earlier message of the link is still on its way then, it arrives together with that one. So the parties see what
`Delivery` gives them over a real network, and it costs nothing here.
"""

from heapq import heappush
from typing import TYPE_CHECKING

from offbeat.party.contract import Broadcast, Message, PartyName, Received, Send
from offbeat.randomness import stream
from offbeat.runtime.simulator.accounts import MessageRows, Posting

if TYPE_CHECKING:
    from offbeat.runtime.simulator.loop import World


class Links:
    """What calm and faulty links share: when a message leaves, how long a link takes, and what is written down."""

    def __init__(self, world: "World") -> None:
        setting = world.setting
        costs = setting.costs
        self.world, self.costs, self.rows = world, costs, MessageRows()
        self.serve_s = [0.0] * len(world.names)
        self._listener_free = [0.0] * len(world.names)
        self._serve_factor = [costs.serve_factor(name) for name in world.names]
        self._jitter = costs.link_jitter.sampler(stream(setting.seed, "link-jitter"))

    def departs(self, index: int, effect: Send) -> float:
        """When an answer is ready, where the listener pays for it."""
        factor, now = self._serve_factor[index], self.world.now
        if not factor or not effect.samples:
            return now
        cost = factor * self.costs.work_s(effect.samples, effect.nonzeros)
        self._listener_free[index] = max(now, self._listener_free[index]) + cost
        self.serve_s[index] += cost
        return self._listener_free[index]

    def transit_s(self, sender: PartyName, to: PartyName, size: int) -> float:
        transit_s = self.costs.links.get((sender, to), self.costs.link).transit_s(size)
        return transit_s if self._jitter is None else transit_s * self._jitter()

    def measured(self, index: int, to: PartyName | tuple[PartyName, ...], body: Message) -> tuple[Posting, int]:
        """The posting of a message that is sent, and its size."""
        try:
            posting = self.world.routes[index][to][type(body)]
        except KeyError:
            posting = self.world.posting(index, to, type(body))
        self.rows.sent.append(posting.code)
        if posting.measure is None:
            return posting, posting.fixed
        size = posting.measure(body)
        self.world.accounts.varying[posting.code] += size
        return posting, posting.fixed + size


class CalmLinks(Links):
    """`constant_delay`: every message takes equally long, whoever sends it and whatever it holds."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self._latency_s, self._seconds_per_byte = self.costs.link.latency_s, 1 / self.costs.link.bandwidth_bytes_s
        self._one_delay = not self.costs.links and self._jitter is None  # for messages of one size
        self.constant_delay = self._one_delay and not self._seconds_per_byte and not any(self._serve_factor)
        self._last = [[0.0] * len(world.names) for _ in world.names]  # arrival of the last message, by link

    def send(self, index: int, effect: Send) -> None:
        self._post(index, effect.to, effect.body, self.departs(index, effect))

    def broadcast(self, index: int, effect: Broadcast) -> None:
        if self._one_delay and effect.to:
            self._post(index, effect.to, effect.body, self.world.now)
            return
        for to in effect.to:
            self._post(index, to, effect.body, self.world.now)

    def _post(self, index: int, to: PartyName | tuple[PartyName, ...], body: Message, depart: float) -> None:
        posting, size = self.measured(index, to, body)
        if isinstance(to, str) and not self._one_delay:
            arrival = depart + self.transit_s(self.world.names[index], to, size)
        else:
            arrival = depart + self._latency_s + size * self._seconds_per_byte
        last = self._last[index]
        event = Received(self.world.names[index], body, self.world.round_trip_s)
        for receiver in posting.to:
            if last[receiver] > arrival:
                self._put_in_turn(depart, arrival, posting, event)
                return
        self._put(depart, arrival, posting, event)

    def _put_in_turn(self, depart: float, arrival: float, posting: Posting, event: Received) -> None:
        """To each receiver alone: not before what is on its way to it already."""
        for receiver in posting.to:
            alone = self.world.posting(posting.sender, self.world.names[receiver], posting.kind)
            self._put(depart, max(arrival, self._last[posting.sender][receiver]), alone, event)

    def _put(self, depart: float, arrival: float, posting: Posting, event: Received) -> None:
        last, rows, world = self._last[posting.sender], self.rows, self.world
        for receiver in posting.to:
            last[receiver] = arrival
        rows.departs.append(depart)
        rows.arrivals.append(arrival)
        rows.codes.append(posting.code)
        world.order += 1
        heappush(world.heap, (arrival, world.order, posting.to, posting.code, event))
