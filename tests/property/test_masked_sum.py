"""Secure sums under any order of events: exact when they come, silent when they do not, no mask twice."""

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from offbeat.learning.blocks import fixed_point
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast
from offbeat.party.masked_sum import KINDS, PRODUCTS, KeyOffered, MaskedSum, ShareAsked, ShareGiven, SumOptions
from offbeat.party.roster import Roster
from offbeat.privacy.masks import FRACTION_BITS, range_limit, scale_of
from offbeat.randomness import secret_bytes

WORDS = 12
SCALE = scale_of(FRACTION_BITS)
SCHEMES = ["pairwise", "two-tree", "tree"]


def share(seed, moves):
    """Integers over the fixed-point grid, so that sums are exact; they change whenever the block moves."""
    return np.random.default_rng((seed, moves)).integers(-(2**50), 2**50, WORDS) / SCALE


class Sums:
    """Parties with links between them that are first in, first out."""

    def __init__(self, count, scheme):
        self.names = self.roster = tuple(f"p{i}" for i in range(count))
        self.options, self.epoch = SumOptions(scheme=scheme, two_party_insecure=True), 0
        self.moves = dict.fromkeys(self.names, 0)
        self.numbers = dict.fromkeys(self.names, 0)
        self.sums = {name: self.make(name) for name in self.names}
        self.links, self.open, self.completed, self.words = {}, set(), 0, {}
        for name in self.names:
            self.post(name, self.sums[name].offer_key())
        self.settle()

    def make(self, name):
        roster, secret = Roster(name, self.names, self.names), secret_bytes(32, 1, name)
        roster.enter(self.epoch, self.roster if name in self.roster else self.names, self.names[0])
        made = MaskedSum(roster=roster, run="r", secret=secret, options=self.options)
        made.stride = WORDS
        return made

    def post(self, name, effects):
        for effect in effects:
            for to in effect.to if isinstance(effect, Broadcast) else (effect.to,):
                self.links.setdefault((name, to), deque()).append(effect.body)
            self.look(name, effect.body)

    def look(self, name, body):
        """Masked words that were ever sent are all different; partial sums go on to the next node as they are."""
        if isinstance(body, ShareGiven) and len(self.roster) > 2:
            for word in body.words.tolist():
                assert self.words.setdefault(word, (name, body.kind, body.survey, body.first)) == (
                    name,
                    body.kind,
                    body.survey,
                    body.first,
                )

    def settle(self):
        while waiting := [link for link, bodies in self.links.items() if bodies]:
            self.deliver(*waiting[0])

    def deliver(self, sender, to):
        body = self.links[sender, to].popleft()
        sums = self.sums[to]
        if isinstance(body, KeyOffered):
            sums.take_key(sender, body)
        elif body.epoch != sums.roster.epoch or to not in self.roster:
            return
        elif isinstance(body, ShareAsked):
            self.answer(to, sender, body)
        elif isinstance(body, ShareGiven):
            self.check(to, sums.collect(sender, body))
        else:
            effects, done = sums.collect_partial(sender, body)
            self.post(to, effects)
            self.check(to, done)

    def answer(self, giver, asker, ask):
        sums, values = self.sums[giver], share(self.names.index(giver), self.moves[giver])

        def encode(mask):
            return fixed_point(values, mask, SCALE, sums.limit, "A share")

        places = 1 if ask.kind == PRODUCTS else WORDS
        key = (ask.kind, ask.survey, ask.first)
        self.post(giver, sums.answer(asker, key, places, encode, WORDS, self.moves[giver]))

    def ask(self, asker, kind):
        number = self.numbers[asker]
        self.numbers[asker] += 1
        first = number if kind == PRODUCTS else number * WORDS
        self.open.add((asker, kind, first))
        self.post(asker, self.sums[asker].ask(kind, kind, first, WORDS, WORDS, 0))

    def check(self, asker, done):
        """The sum is that of every party's share at the one version it answered from."""
        if done is None:
            return
        peers = self.sums[asker].roster.peers
        assert set(done.versions) == set(peers)
        total = sum(share(self.names.index(name), done.versions[name]) for name in peers)
        assert np.array_equal(done.words.view(np.int64) / SCALE, total)
        self.open.remove((asker, done.kind, done.first))
        self.completed += 1

    def crash(self, name):
        state = decode_state(encode_state(self.sums[name].snapshot()))
        self.sums[name] = self.make(name)
        self.sums[name].restore(state)

    def change_roster(self, names):
        """What is in flight then belongs to the old roster."""
        self.epoch, self.roster, self.open = self.epoch + 1, names, set()
        for name in names:
            self.sums[name].roster.enter(self.epoch, names, names[0])
            self.sums[name].enter_epoch()


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), st.sampled_from(SCHEMES), st.integers(0, 5), st.sampled_from(range(len(KINDS))))
def test_masked_sums_add_up(count, scheme, asker, kind):
    sums = Sums(count, scheme)
    sums.ask(sums.names[asker % count], kind)
    sums.settle()
    assert sums.completed == 1 and not sums.open


class SumsUnderRaces(RuleBasedStateMachine):
    """Links race each other, parties are restored, blocks move, rosters change, in any order."""

    @initialize(count=st.integers(3, 6), scheme=st.sampled_from(SCHEMES))
    def begin(self, count, scheme):
        self.world = Sums(count, scheme)

    @rule(seed=st.integers(0, 10**6), count=st.integers(1, 60))
    def messages(self, seed, count):
        rng, world = np.random.default_rng(seed), self.world
        for _ in range(count):
            waiting = [link for link, bodies in world.links.items() if bodies]
            if waiting:
                world.deliver(*waiting[int(rng.integers(len(waiting)))])

    @rule(who=st.integers(0, 5), kind=st.sampled_from(range(len(KINDS))))
    def ask(self, who, kind):
        self.world.ask(self.world.roster[who % len(self.world.roster)], kind)

    @rule(who=st.integers(0, 5))
    def move(self, who):
        self.world.moves[self.world.names[who % len(self.world.names)]] += 1

    @rule(who=st.integers(0, 5))
    def crash(self, who):
        self.world.crash(self.world.roster[who % len(self.world.roster)])

    @rule(lost=st.integers(0, 40))
    def change_roster(self, lost):
        """Now and then somebody is lost or comes back."""
        if lost > 5 or len(self.world.names) == 3:
            return
        names = self.world.names
        full = len(self.world.roster) < len(names)
        self.world.change_roster(names if full else tuple(n for n in names if n != names[lost % len(names)]))

    @invariant()
    def open_questions_are_those_not_yet_summed(self):
        if hasattr(self, "world"):
            opened = {(asker, key[0], key[2]) for asker in self.world.roster for key in self.world.sums[asker].open}
            assert opened == self.world.open

    def teardown(self):
        if hasattr(self, "world"):
            self.world.settle()
            assert not self.world.open, "whatever was asked of this roster is answered in the end"


TestSumsUnderRaces = SumsUnderRaces.TestCase
TestSumsUnderRaces.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 16), st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.integers(8, 48))
def test_fixed_point_is_within_half_a_grid_step_per_party(parties, values, bits):
    limit, scale = range_limit(parties, bits), scale_of(bits)
    shares = [np.array(values) * limit * 0.999 for _ in range(parties)]
    words = [fixed_point(share, None, scale, limit, "A share") for share in shares]
    total = np.sum(words, axis=0, dtype=np.uint64).view(np.int64) / scale
    exact = np.sum(shares, axis=0)
    assert np.all(np.abs(total - exact) <= parties * 2.0 ** -(bits + 1) + np.abs(exact) * 2.0**-50)
