"""How long a party's computations take in the simulator, and on which of its lanes."""

from collections.abc import Callable
from heapq import heappush
from typing import TYPE_CHECKING, Any

from offbeat.party.contract import Compute, Computed
from offbeat.randomness import stream

if TYPE_CHECKING:
    from offbeat.runtime.simulator.loop import World


class Work:
    """The lanes of every party."""

    def __init__(self, world: "World") -> None:
        setting, names = world.setting, world.names
        costs = setting.costs
        self.world, self.work_s = world, costs.work_s
        self.overhead_s, self.per_sample_s = costs.overhead_s, costs.per_sample_s
        self.per_nonzero_s = costs.per_nonzero_s
        self.compute_s = [0.0] * len(names)
        self.slow = [costs.slow.get(name, 1.0) for name in names]
        self.lanes = [[0.0] * max(costs.lanes, 1) for _ in names]
        self.jitter = [costs.jitter.sampler(stream(setting.seed, name, "compute-jitter")) for name in names]
        self.computed = [world.own_posting(i, Computed) for i in range(len(names))]
        self.even = costs.lanes <= 1 and not setting.faults and all(jitter is None for jitter in self.jitter)

    def compute_at_once(self, index: int, effect: Compute) -> None:
        """The short way, where a party has one lane, works evenly, and does not crash."""
        if effect.job is not None:
            self.compute(index, effect)
            return
        duration = self.slow[index] * (
            self.overhead_s + effect.samples * self.per_sample_s + effect.nonzeros * self.per_nonzero_s
        )
        self.compute_s[index] += duration
        world, lane = self.world, self.lanes[index]
        free, now = lane[0], world.now
        done = lane[0] = (free if free > now else now) + duration
        posting = self.computed[index]
        world.order += 1
        heappush(world.heap, (done, world.order, posting.to, posting.code, Computed(effect.ticket, None, duration)))

    def compute(self, index: int, effect: Compute) -> None:
        duration = self.slow[index] * self.work_s(effect.samples, effect.nonzeros)
        jitter = self.jitter[index]
        if jitter is not None:
            duration *= jitter()
        lanes = self.lanes[index]
        lane = lanes.index(min(lanes))
        done = lanes[lane] = max(lanes[lane], self.world.now) + duration
        self.compute_s[index] += duration
        self.begin(done, index, effect.ticket, effect.job, duration)

    def begin(self, done: float, index: int, ticket: int, job: Callable[[], Any] | None, duration: float = 0.0) -> None:
        """A job runs when its time has come."""
        world = self.world
        if world.outages is not None:
            world.outages.later(done, index, lambda: Computed(ticket, job() if job is not None else None, duration))
        elif job is None:
            world.tell(done, index, Computed(ticket, None, duration))
        else:
            world.call(done, lambda: world.deliver(index, Computed(ticket, job(), duration)))

    def forget(self, index: int) -> None:
        """The party was down: its lanes are free from now on."""
        self.lanes[index] = [self.world.now] * len(self.lanes[index])
