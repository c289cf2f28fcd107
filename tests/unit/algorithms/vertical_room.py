"""Three parties whose links a test looks into, for the linear vertical methods."""

from collections import deque
from dataclasses import replace

from offbeat.algorithms.afsgd_vp import Product
from offbeat.algorithms.vfb2 import Backward
from offbeat.learning.losses import LOGISTIC
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast, Compute, Computed, Received, Send, Started
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import PRODUCTS, ShareAsked, ShareGiven
from offbeat.testing.small_problem import draw_problem

BATCH, ROWS = 8, 64
ANA, BO, CY = "party0", "party1", "party2"


def a_problem(holders=1, sparse=False, parties=3):
    drawn = draw_problem(2, parties=parties, rows=ROWS, sparse=sparse, loss=LOGISTIC, intercept=False)
    return replace(drawn, labels_at=drawn.names[:holders])


class Room:
    """Parties of one paper (its `build`) that have begun; the first questions and answers about products are put aside.
    Each link is first in, first out. `seconds`: what a party says a row takes."""

    def __init__(
        self,
        build,
        method="saga",
        *,
        holders=1,
        lanes=1,
        sparse=False,
        synchronous=False,
        parties=3,
        seconds=None,
        **options,
    ):
        self.made_by, self.problem, self.seconds = build, a_problem(holders, sparse, parties), seconds or {}
        self.make = {"lanes": lanes, "synchronous": synchronous}
        more = {"survey_passes": 1e6, "asynchronous": not synchronous, **options}
        self.options = LinearOptions(method=method, batch=BATCH, passes=1e6, **more)
        self.parties = {party.name: party for party in self.build()}
        self.queue, self.asked, self.sent = deque(), [], []
        self.queue += [(name, Started()) for name in self.parties]
        self.aside = True
        self.run(lambda: False)

    def build(self, only=None):
        problem = self.problem
        return self.made_by(
            problem.blocks(self.options.method),
            problem.problem(),
            self.options,
            labels_at=problem.labels_at,
            seed=1,
            secrets_seed=1,
            only=only,
            **self.make,
        )

    def run(self, until):
        while self.queue and not until():
            name, event = self.queue.popleft()
            self.post(name, self.parties[name].handle(event))

    def post(self, name, effects):
        for effect in effects:
            if isinstance(effect, Send | Broadcast):
                self.sent.append((name, effect.body))
                mail = [(to, Received(name, effect.body)) for to in targets(effect)]
                into = self.asked if self.aside and getattr(effect.body, "kind", -1) == PRODUCTS else self.queue
                into.extend(mail)
            elif isinstance(effect, Compute):
                result = effect.job() if effect.job is not None else None
                spent = self.seconds.get(name, 0.0) * effect.samples
                self.queue.append((name, Computed(effect.ticket, result, spent)))

    def update(self, count):
        """Go on until so many derivatives or products were told in all."""
        self.release()
        self.run(lambda: len(self.told()) >= count)

    def events(self, count):
        """Go on for so many events."""
        self.release()
        left = iter(range(count))
        self.run(lambda: next(left, None) is None)

    def release(self):
        """Nothing is put aside any more."""
        self.aside = False
        self.queue += self.asked
        self.asked = []

    def finish(self):
        """Let everything happen but the next products: answers to questions do not arrive any more."""
        while self.queue:
            name, event = self.queue.popleft()
            if not (isinstance(event, Received) and isinstance(event.body, ShareGiven)):
                self.post(name, self.parties[name].handle(event))

    def told(self):
        """What moves other blocks, with its sender."""
        return [(name, body) for name, body in self.sent if isinstance(body, Backward | Product)]

    def crash(self, name):
        """The party made anew from its snapshot, as it would be read from a disk."""
        state = decode_state(encode_state(self.parties[name].snapshot()))
        (self.parties[name],) = self.build(only=name)
        self.parties[name].restore(state)
        return self.parties[name]


def targets(effect):
    return effect.to if isinstance(effect, Broadcast) else (effect.to,)


def is_question(body):
    return isinstance(body, ShareAsked) and body.kind == PRODUCTS


def question(number):
    return ShareAsked(0, PRODUCTS, 0, number, 0, 0)


def ask(party, number, sender=ANA):
    return party.handle(Received(sender, question(number)))


def tell(party, body, sender=ANA):
    return party.handle(Received(sender, body))


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def bodies(effects, kind):
    return [effect.body for effect in of(effects, Send | Broadcast) if isinstance(effect.body, kind)]


def work(party, effects):
    """Do all work that these effects ask for, and what follows from it."""
    jobs, after = of(effects, Compute), []
    while jobs:
        job = jobs.pop(0)
        more = party.handle(Computed(job.ticket, job.job() if job.job is not None else None))
        jobs += of(more, Compute)
        after += more
    return after
