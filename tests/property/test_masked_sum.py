"""Secure sums under any order of events: exact when they come, silent when they do not, no mask twice."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast
from offbeat.party.masked_sum import CURRENT, KeyOffered, MaskedSum, ShareAsked, ShareGiven, SumOptions
from offbeat.privacy.masks import FRACTION_BITS, range_limit, scale_of
from offbeat.randomness import secret_bytes
from offbeat.runtime.simulator.checkers import MasksUsedOnce

ROWS = 12
SCALE = scale_of(FRACTION_BITS)


class Shares:
    """Integers over the fixed-point grid, so that sums are exact; they change whenever the block moves."""

    def __init__(self, seed):
        self.seed, self.moves = seed, 0

    def value(self):
        rng = np.random.default_rng((self.seed, self.moves))
        return rng.integers(-(2**50), 2**50, ROWS) / SCALE

    def version(self):
        return self.moves

    def knows(self, point):
        return point == CURRENT

    def words(self, start, stop, point, mask, at, scale, limit):
        words = np.rint(self.value()[start:stop] * scale).astype(np.int64).view(np.uint64)
        return words if mask is None else words + mask[at : at + len(words)]

    def nonzeros(self, start, stop, point):
        return 1


class Party:
    """Enough of a party for a checker to name it."""

    def __init__(self, name):
        self.name = name


class SumsUnderFaults(RuleBasedStateMachine):
    """Messages are lost, doubled and reordered, parties restored, blocks moved, rosters changed, in any order."""

    @initialize(count=st.integers(3, 5), scheme=st.sampled_from(["pairwise", "two-tree", "tree"]))
    def begin(self, count, scheme):
        self.names = tuple(f"p{i}" for i in range(count))
        self.sources = {name: Shares(i) for i, name in enumerate(self.names)}
        self.options = SumOptions(scheme=scheme, tries_max=3)
        self.sums = {name: self.make(name) for name in self.names}
        self.flight, self.epoch, self.roster = [], 0, self.names
        self.masks = MasksUsedOnce()
        for name in self.names:
            self.post(name, self.sums[name].offer_key())

    def make(self, name):
        secret = secret_bytes(32, 1, name)
        source = self.sources[name]
        return MaskedSum(me=name, roster=self.names, run="r", secret=secret, options=self.options, source=source)

    def post(self, name, effects):
        self.masks.handled(0.0, Party(name), None, effects)
        for effect in effects:
            to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
            self.flight += [(name, peer, effect.body) for peer in to]

    def deliver(self, sender, to, body):
        sums = self.sums[to]
        if isinstance(body, KeyOffered):
            self.post(to, sums.take_key(sender, body))
        elif isinstance(body, ShareAsked):
            self.post(to, sums.answer(sender, body))
        elif isinstance(body, ShareGiven):
            self.check(to, sums.collect(sender, body))
        else:
            effects, done = sums.collect_partial(sender, body)
            self.post(to, effects)
            self.check(to, done)

    def check(self, asker, done):
        """The sum is that of every party's share at the one version it answered from."""
        if done is None:
            return
        total = np.zeros(done.stop - done.start)
        for name in set(self.sums[asker].roster) - {asker}:
            source = Shares(self.sources[name].seed)
            source.moves = done.versions[name]
            total += source.value()[done.start : done.stop]
        assert np.array_equal(done.words.view(np.int64) / SCALE, total)

    @rule(seed=st.integers(0, 10**6), count=st.integers(1, 60), worst=st.floats(0, 0.3))
    def messages(self, seed, count, worst):
        """Some letters, in any order, each of which may be lost or come again."""
        rng = np.random.default_rng(seed)
        for _ in range(min(count, len(self.flight))):
            letter = self.flight.pop(int(rng.integers(len(self.flight))))
            fate = rng.random()
            if fate > 1 - worst:
                self.flight.append(letter)
            if fate >= worst:
                self.deliver(*letter)

    @rule(who=st.integers(0, 4), start=st.integers(0, ROWS - 1), length=st.integers(1, ROWS))
    def ask(self, who, start, length):
        name = self.roster[who % len(self.roster)]
        if len(self.sums[name].open) < 4:
            self.post(name, self.sums[name].ask(start, min(start + length, ROWS), CURRENT, 0))

    @rule(who=st.integers(0, 4))
    def move(self, who):
        self.sources[self.names[who % len(self.names)]].moves += 1

    @rule(who=st.integers(0, 4))
    def patrol(self, who):
        name = self.names[who % len(self.names)]
        self.post(name, self.sums[name].patrol()[0])

    @rule(who=st.integers(0, 4))
    def crash(self, who):
        name = self.names[who % len(self.names)]
        state = decode_state(encode_state(self.sums[name].snapshot()))
        self.sums[name] = self.make(name)
        self.sums[name].restore(state)

    @rule(lost=st.integers(0, 40))
    def change_roster(self, lost):
        """Now and then somebody is lost or comes back: what is in flight then belongs to the old roster."""
        if lost > 4:
            return
        self.epoch += 1
        without = self.names[lost % len(self.names)]
        full = len(self.roster) < len(self.names) or len(self.names) == 3
        self.roster = self.names if full else tuple(name for name in self.names if name != without)
        for name in self.roster:
            self.sums[name].enter_epoch(self.epoch, self.roster)

    @invariant()
    def stays_within_bounds(self):
        if hasattr(self, "flight"):
            del self.flight[:-300]
            assert all(len(sums.open) <= 4 for sums in self.sums.values())


TestSumsUnderFaults = SumsUnderFaults.TestCase
TestSumsUnderFaults.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 16), st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.integers(8, 48))
def test_fixed_point_is_within_half_a_grid_step_per_party(parties, values, bits):
    limit, scale = range_limit(parties, bits), scale_of(bits)
    shares = [np.array(values) * limit * 0.999 for _ in range(parties)]
    words = [np.rint(share * scale).astype(np.int64).view(np.uint64) for share in shares]
    total = np.sum(words, axis=0, dtype=np.uint64).view(np.int64) / scale
    exact = np.sum(shares, axis=0)
    assert np.all(np.abs(total - exact) <= parties * 2.0 ** -(bits + 1) + np.abs(exact) * 2.0**-50)
