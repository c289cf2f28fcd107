"""Parties joined by links that a test looks into: each link is first in, first out, and links race each other."""

from collections import deque
from dataclasses import replace

from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast, Compute, Computed, Finish, Observe, Received, Send, Started, Wake, Woken
from offbeat.party.linear_options import LinearOptions
from offbeat.testing.small_problem import build_parties, method_named


class Room:
    """One run, an event at a time. `sample_s`: how long a sample takes, by party; `post` may be told to hold a link."""

    def __init__(self, problem, method="vfb2-svrg", *, seed=1, sample_s=None, start=True, **options):
        options = {"batch": 16, "passes": 6.0, **options}
        kind = method_named(method)
        self.problem, self.method, self.seed, self.sample_s = problem, method, seed, sample_s or {}
        self.options = LinearOptions(method=kind.direction, asynchronous=not kind.synchronous, **options)
        self.parties = {party.name: party for party in build_parties(method, problem, self.options, seed)}
        self.sources = {}  # what is to come, by where it comes from
        self.held = set()  # sources that wait
        self.finished, self.seen, self.events = {}, [], 0
        for name in self.parties if start else ():
            self.put((name, "start"), name, Started())

    def __getitem__(self, name):
        return self.parties[name].party

    @property
    def chair(self):
        return next(made.party for made in self.parties.values() if made.party.roster.is_chair)

    def put(self, source, to, event):
        self.sources.setdefault(source, deque()).append((to, event))

    def post(self, name, effects):
        for effect in effects:
            if isinstance(effect, Send | Broadcast):
                for to in (effect.to,) if isinstance(effect, Send) else effect.to:
                    self.put((name, to), to, Received(name, effect.body))
            elif isinstance(effect, Compute):
                result = effect.job() if effect.job is not None else None
                spent = self.sample_s.get(name, 0.0) * effect.samples
                self.put((name, "work"), name, Computed(effect.ticket, result, spent))
            elif isinstance(effect, Wake):
                self.put((name, "wake", effect.token), name, Woken(effect.token))
            elif isinstance(effect, Observe):
                self.seen.append((name, effect.name, effect.value))
            elif isinstance(effect, Finish):
                self.finished[name] = effect

    def ready(self):
        return [source for source, waiting in self.sources.items() if waiting and source not in self.held]

    def step(self, source):
        name, event = self.sources[source].popleft()
        self.events += 1
        if name not in self.finished:
            self.post(name, self.parties[name].handle(event))

    def tell(self, name, event):
        self.post(name, self.parties[name].handle(event))

    def run(self, rng=None, until=lambda: False, every=None, most=20_000):
        """Until nothing is left to happen, or `until`. Without a generator the sources take turns."""
        turn = 0
        while (ready := self.ready()) and not until() and len(self.finished) < len(self.parties):
            turn += 1
            assert turn < most, "the run does not end"
            self.step(ready[turn % len(ready) if rng is None else int(rng.integers(len(ready)))])
            if every is not None:
                every()
        return self

    def fresh(self, name):
        return build_parties(self.method, self.problem, self.options, self.seed, only=name)[0]

    def restart(self, name):
        """The party is replaced by another object that its snapshot was restored into."""
        frame = encode_state(self.parties[name].snapshot())
        again = self.fresh(name)
        again.restore(decode_state(frame))
        assert encode_state(again.snapshot()) == frame
        self.parties[name] = again

    def certificates(self):
        return [value for _, name, value in self.seen if name == "certificate"]


def labelled(problem, *names):
    return replace(problem, labels_at=names)
