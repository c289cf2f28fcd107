"""The secure sum: exact, the same in any order, refused where it must be, and blind without the last share."""

import itertools

import numpy as np
import pytest
from scipy import stats

from offbeat.errors import BadJob, MaskReuse, OutOfRange, UnexpectedEvent
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast, Send
from offbeat.party.masked_sum import (
    ANSWERS_KEPT,
    CURRENT,
    STRETCH_MAX,
    KeyOffered,
    MaskedSum,
    PartialGiven,
    ShareAsked,
    ShareGiven,
    SumOptions,
)
from offbeat.randomness import secret_bytes

SCHEMES = ("pairwise", "two-tree", "tree")
ROWS = 50


class Shares:
    """A source of fixed numbers; `moved` adds to them, as a block's step would."""

    def __init__(self, values):
        self.values, self.moved = values, 0.0

    def version(self):
        return 3

    def knows(self, point):
        return point == CURRENT

    def words(self, start, stop, point, mask, at, scale, limit):
        if stop > len(self.values):
            raise IndexError(f"no row {stop}")
        values = self.values[start:stop] + self.moved
        if not np.all(np.abs(values) < limit):
            raise OutOfRange("too large")
        words = np.rint(values * scale).astype(np.int64).view(np.uint64)
        return words if mask is None else words + mask[at : at + len(words)]

    def nonzeros(self, start, stop, point):
        return 7


class World:
    """Some sums joined by a queue that a test may look into, cut or shuffle."""

    def __init__(self, count, scheme="pairwise", agree=True, **options):
        rng = np.random.default_rng(count)
        self.names = tuple(f"p{i}" for i in range(count))
        self.values = {name: 10 * rng.standard_normal(ROWS) for name in self.names}
        self.sources = {name: Shares(self.values[name]) for name in self.names}
        self.options = SumOptions(scheme=scheme, **options)
        self.sums = {name: self.make(name) for name in self.names}
        self.queue, self.done = [], []
        if agree:
            for name in self.names:
                self.post(name, self.sums[name].offer_key())
            self.settle()

    def make(self, name, secret_seed=1):
        return MaskedSum(
            me=name,
            roster=self.names,
            run="run",
            secret=secret_bytes(32, secret_seed, name),
            options=self.options,
            source=self.sources[name],
        )

    def post(self, sender, effects):
        for effect in effects:
            to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
            self.queue += [(sender, peer, effect.body) for peer in to]

    def settle(self, order=None):
        while self.queue:
            at = 0 if order is None else int(order.integers(len(self.queue)))
            self.deliver(*self.queue.pop(at))

    def deliver(self, sender, to, body):
        sums = self.sums[to]
        if isinstance(body, KeyOffered):
            self.post(to, sums.take_key(sender, body))
        elif isinstance(body, ShareAsked):
            self.post(to, sums.answer(sender, body))
        elif isinstance(body, ShareGiven):
            self.done += [done for done in [sums.collect(sender, body)] if done]
        else:
            effects, done = sums.collect_partial(sender, body)
            self.post(to, effects)
            self.done += [done] if done else []

    def ask(self, asker, start, stop):
        self.post(asker, self.sums[asker].ask(start, stop, CURRENT, 0))

    def plain(self, asker, start, stop):
        return sum(values[start:stop] for name, values in self.values.items() if name != asker)


def decoded(done, scale=2.0**40):
    return done.words.view(np.int64) / scale


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("count", [3, 4, 5, 9])
def test_every_party_can_ask_and_gets_the_exact_sum_of_the_others(scheme, count):
    world = World(count, scheme)
    for asker in world.names:
        world.ask(asker, 5, 25)
        world.settle()
        done = world.done.pop()
        assert np.abs(decoded(done) - world.plain(asker, 5, 25)).max() <= count * 2.0**-41
        assert done.versions == {name: 3 for name in world.names if name != asker}
        assert not world.sums[asker].open


@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_requests_at_once_in_any_order_give_the_same_words(scheme):
    results = []
    for seed in range(4):
        world = World(4, scheme)
        for start, stop in [(0, 20), (7, 8), (30, 50), (0, 20)]:
            world.ask("p1", start, stop)
            world.ask("p3", start, stop)
        world.settle(np.random.default_rng(seed))
        assert len(world.done) == 8
        results.append(sorted((done.first, done.start, done.words.tobytes()) for done in world.done))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_sum_that_misses_a_share_reveals_nothing(missing):
    """Whatever subset has come, the words are uniform: no share, and no partial sum, shows."""
    world = World(4)
    partial = []
    for _ in range(300):
        world.ask("p0", 0, 50)
        while world.queue:
            sender, to, body = world.queue.pop(0)
            if not (isinstance(body, ShareGiven) and sender == f"p{missing + 1}"):
                world.deliver(sender, to, body)
        partial += [wanted.words for wanted in world.sums["p0"].open.values()]
        world.sums["p0"].open.clear()
    assert not world.done
    words = np.concatenate(partial)
    for shift in (0, 56):
        counts = np.bincount((words >> np.uint64(shift) & np.uint64(255)).astype(int), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3


def test_an_unanswered_sum_is_asked_again_and_then_given_up_under_a_burnt_number():
    world = World(3, tries_max=3)
    world.ask("p0", 0, 10)
    world.queue.clear()
    sums = world.sums["p0"]
    assert sums.patrol() == ([], [])  # not late yet
    for _ in range(3):
        effects, given_up = sums.patrol()
        assert not given_up
        assert effects == [Broadcast(("p1", "p2"), ShareAsked(0, 0, 10, CURRENT, 0, 0, 0))]
    effects, (given_up,) = sums.patrol()
    assert (effects, given_up.first, sums.abandoned) == ([], 0, 1)
    world.ask("p0", 0, 10)
    assert world.queue[0][2].first == 10
    assert world.queue[0][2].done == 10
    world.settle()
    assert np.allclose(decoded(world.done[0]), world.plain("p0", 0, 10))


def test_only_those_who_are_missing_are_asked_again():
    world = World(4)
    world.ask("p0", 0, 10)
    world.queue = [entry for entry in world.queue if entry[1] != "p2"]
    world.settle()
    sums = world.sums["p0"]
    sums.patrol()
    (again,), _ = sums.patrol()
    assert again.to == ("p2",)
    world.post("p0", [again])
    world.settle()
    assert np.allclose(decoded(world.done[0]), world.plain("p0", 0, 10))


def test_a_sum_that_is_insisted_on_is_never_given_up():
    world = World(3, tries_max=2)
    world.sums["p0"].ask(0, 10, CURRENT, 0, insist=True)
    for _ in range(20):
        assert world.sums["p0"].patrol()[1] == []
    assert world.sums["p0"].open[0].tries == 2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_request_is_answered_once_and_repeated_with_the_same_bytes(scheme):
    world = World(3, scheme)
    ask = ShareAsked(0, 5, 15, CURRENT, 0, 0, 0)
    first = world.sums["p2"].answer("p0", ask)
    world.sources["p2"].moved = 1.0
    again = world.sums["p2"].answer("p0", ask)
    assert [send.body.words.tobytes() for send in first] == [send.body.words.tobytes() for send in again]
    for other in [ShareAsked(0, 6, 16, CURRENT, 0, 0, 0), ShareAsked(0, 5, 16, CURRENT, 0, 0, 0)]:
        with pytest.raises(MaskReuse, match="twice"):
            world.sums["p2"].answer("p0", other)


def test_requests_that_overlap_in_their_numbers_are_refused():
    world = World(3)
    sums = world.sums["p2"]
    assert sums.answer("p0", ShareAsked(0, 0, 10, CURRENT, 0, 0, 0))
    assert sums.answer("p0", ShareAsked(5, 0, 10, CURRENT, 0, 0, 0)) == []
    assert sums.refused == 1


@pytest.mark.parametrize(("start", "stop", "first"), [(10, 10, 10), (10, 5, 10), (-1, 5, 10), (0, 5, -5)])
def test_a_range_that_is_none_uses_no_mask(start, stop, first):
    world = World(3)
    sums = world.sums["p2"]
    sums.answer("p0", ShareAsked(0, 0, 10, CURRENT, 0, 0, 0))
    assert sums.answer("p0", ShareAsked(first, start, stop, CURRENT, 0, 0, 0)) == []
    assert (sums.refused, sums.nets["p0"].next) == (1, 10)


def test_rows_that_do_not_exist_are_a_typed_error():
    with pytest.raises(UnexpectedEvent, match="rows 40 to 60"):
        World(3).sums["p2"].answer("p0", ShareAsked(0, 40, 60, CURRENT, 0, 0, 0))


def test_closed_requests_are_refused():
    world = World(3)
    sums = world.sums["p2"]
    sums.answer("p0", ShareAsked(0, 0, 10, CURRENT, 0, 0, 0))
    sums.answer("p0", ShareAsked(30, 0, 10, CURRENT, 0, 0, 30))
    assert sums.answer("p0", ShareAsked(10, 0, 10, CURRENT, 0, 0, 10)) == []
    assert sums.answer("p0", ShareAsked(0, 0, 10, CURRENT, 0, 0, 0)) == []
    assert sums.refused == 2


def test_an_answer_that_was_forgotten_is_not_given_again():
    world = World(3)
    sums = world.sums["p2"]
    for first in range(ANSWERS_KEPT + 1):
        assert sums.answer("p0", ShareAsked(first, 0, 1, CURRENT, 0, 0, 0))
    assert len(sums.answers["p0"]) == ANSWERS_KEPT
    world.sources["p2"].moved = 1.0
    assert sums.answer("p0", ShareAsked(0, 0, 1, CURRENT, 0, 0, 0)) == []
    assert sums.refused == 1


def test_the_asker_gives_up_what_its_peers_may_have_forgotten():
    world = World(3)
    sums = world.sums["p0"]
    for _ in range(ANSWERS_KEPT + 1):
        world.ask("p0", 0, 1)
    sums.patrol()
    _, given_up = sums.patrol()
    assert [wanted.first for wanted in given_up] == [0, 1]


def test_a_request_that_is_still_open_keeps_its_answers_alive():
    """Requests may close out of order: what is said to be done is what lies below the lowest that is open."""
    world = World(3)
    sums = world.sums["p0"]
    asks = [sums.ask(0, 10, CURRENT, 0)[0].body for _ in range(3)]
    lowest = sums.open.pop(0)
    sums.open[0] = lowest  # asked for again: now it stands last
    assert sums.ask(0, 10, CURRENT, 0)[0].body.done == 0
    assert [ask.first for ask in asks] == [0, 10, 20]


# -- epochs and rosters ----------------------------------------------------------------------------------------------


def test_a_new_epoch_has_other_masks_and_refuses_the_old():
    world = World(4)
    before = world.sums["p2"].answer("p0", ShareAsked(0, 0, 10, CURRENT, 0, 0, 0))[0].body
    for name in ("p0", "p2", "p3"):
        world.sums[name].enter_epoch(1, ("p0", "p2", "p3"))
    assert world.sums["p2"].answer("p0", ShareAsked(10, 0, 10, CURRENT, 0, 0, 0)) == []
    after = world.sums["p2"].answer("p0", ShareAsked(0, 0, 10, CURRENT, 0, 1, 0))[0].body
    assert not np.any(before.words == after.words)
    assert world.sums["p2"].answer("p1", ShareAsked(0, 0, 10, CURRENT, 0, 1, 0)) == []
    world.ask("p0", 0, 10)
    world.deliver("p2", "p0", ShareGiven(world.sums["p0"].next_first - 10, before.words, 3, 0))
    world.settle()
    expected = world.values["p2"][:10] + world.values["p3"][:10]
    assert np.allclose(decoded(world.done[0]), expected)


def test_open_sums_are_given_up_with_their_epoch():
    world = World(4)
    world.ask("p0", 0, 10)
    dropped = world.sums["p0"].enter_epoch(1, ("p0", "p2", "p3"))
    assert [wanted.first for wanted in dropped] == [0]
    assert world.sums["p0"].next_first == 10
    assert world.sums["p0"].abandoned == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_parties_are_refused_unless_the_user_insists(scheme):
    with pytest.raises(BadJob, match="Two parties cannot hide"):
        World(2, scheme)
    world = World(2, scheme, two_party_insecure=True)
    world.ask("p0", 0, 10)
    world.settle()
    assert np.abs(decoded(world.done[0]) - world.values["p1"][:10]).max() <= 2.0**-41


def test_a_roster_of_two_is_refused_later_too():
    with pytest.raises(BadJob, match="Two parties"):
        World(3).sums["p0"].enter_epoch(1, ("p0", "p1"))


def test_unknown_schemes_are_refused():
    with pytest.raises(BadJob, match="secure_sum"):
        SumOptions(scheme="none")


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_keys_that_are_lost_or_doubled_are_agreed_on_in_the_end(seed):
    rng = np.random.default_rng(seed)
    world = World(4, agree=False)
    for _ in range(30):
        for name in world.names:
            world.post(name, world.sums[name].patrol()[0])
        world.queue = [entry for entry in world.queue for _ in range(rng.integers(3))]
        world.settle(rng)
    assert all(sums.ready for sums in world.sums.values())
    assert world.sums["p0"].offer_key() == []
    world.ask("p0", 0, 10)
    world.settle()
    assert np.allclose(decoded(world.done[0]), world.plain("p0", 0, 10))


def test_requests_that_come_before_the_keys_are_answered_after_them():
    world = World(3, agree=False)
    world.ask("p0", 0, 10)
    world.settle()
    assert not world.done
    for name in world.names:
        world.post(name, world.sums[name].offer_key())
    world.settle()
    assert np.allclose(decoded(world.done[0]), world.plain("p0", 0, 10))


def test_a_key_that_changes_within_a_run_is_refused():
    world = World(3)
    with pytest.raises(UnexpectedEvent, match="another key"):
        world.sums["p0"].take_key("p1", KeyOffered(world.sums["p2"].keys.public, False))


@pytest.mark.parametrize("public", [b"", b"short", bytes(32)])
def test_bytes_that_are_no_key_are_refused(public):
    with pytest.raises(UnexpectedEvent, match="no usable key"):
        World(3, agree=False).sums["p0"].take_key("p1", KeyOffered(public, False))


# -- misbehaving peers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [np.zeros(9, np.uint64), np.zeros(10), np.zeros((2, 5), np.uint64)])
def test_an_answer_of_another_shape_is_a_typed_error(words):
    world = World(3)
    world.ask("p0", 0, 10)
    with pytest.raises(UnexpectedEvent):
        world.sums["p0"].collect("p1", ShareGiven(0, words, 0, 0))


def test_answers_of_strangers_and_second_answers_change_nothing():
    world = World(3)
    world.ask("p0", 0, 10)
    words = np.ones(10, np.uint64)
    sums = world.sums["p0"]
    assert sums.collect("p9", ShareGiven(0, words, 0, 0)) is None
    assert sums.collect("p1", ShareGiven(0, words, 0, 0)) is None
    assert sums.collect("p1", ShareGiven(0, words, 0, 0)) is None
    assert np.array_equal(sums.open[0].words, words)


@pytest.mark.parametrize(
    "given",
    [
        PartialGiven("p0", 0, 5, np.zeros(10, np.uint64), np.zeros(4, np.int64), 0),
        PartialGiven("p0", 0, 0, np.zeros(10, np.uint64), np.zeros(3, np.int64), 0),
    ],
)
def test_partial_sums_of_another_shape_are_a_typed_error(given):
    with pytest.raises(UnexpectedEvent):
        World(4, "two-tree").sums["p1"].collect_partial("p3", given)


def test_partial_sums_for_strangers_are_left_alone():
    given = PartialGiven("p9", 0, 0, np.zeros(10, np.uint64), np.zeros(4, np.int64), 0)
    assert World(4, "two-tree").sums["p1"].collect_partial("p3", given) == ([], None)


def test_a_share_out_of_range_is_not_sent_and_its_mask_is_burnt():
    world = World(3)
    world.sources["p2"].moved = 1e9
    ask = ShareAsked(0, 0, 10, CURRENT, 0, 0, 0)
    with pytest.raises(OutOfRange):
        world.sums["p2"].answer("p0", ask)
    world.sources["p2"].moved = 0.0
    assert world.sums["p2"].answer("p0", ask) == []


# -- going on later --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_restored_sum_goes_on_with_the_same_bytes(scheme):
    for crash_after in itertools.count():
        world = World(4, scheme)
        world.ask("p0", 0, 10)
        world.ask("p3", 20, 30)
        for _ in range(crash_after):
            if world.queue:
                world.deliver(*world.queue.pop(0))
        ended = not world.queue
        kept = world.sums["p2"].answer("p0", ShareAsked(0, 0, 10, CURRENT, 0, 0, 0))
        for name in world.names:
            state = decode_state(encode_state(world.sums[name].snapshot()))
            world.sums[name] = world.make(name)
            world.sums[name].restore(state)
        again = world.sums["p2"].answer("p0", ShareAsked(0, 0, 10, CURRENT, 0, 0, 0))
        assert [s.body.words.tobytes() for s in again] == [s.body.words.tobytes() for s in kept]
        world.post("p2", again)
        world.settle()
        sums = {done.first + 100 * done.start: decoded(done) for done in world.done}
        assert np.allclose(sums[0], world.plain("p0", 0, 10))
        assert np.allclose(sums[2000], world.plain("p3", 20, 30))
        if ended:
            break


def test_a_party_restored_with_another_key_is_refused():
    world = World(3)
    with pytest.raises(BadJob, match="another private key"):
        world.make("p0", secret_seed=2).restore(world.sums["p0"].snapshot())


def test_work_is_said_with_the_answer():
    (send,) = World(3).sums["p2"].answer("p0", ShareAsked(0, 0, 10, CURRENT, 0, 0, 0))
    assert isinstance(send, Send)
    assert (send.samples, send.nonzeros) == (5, 3)  # the product is half of a batch's work


def patrols_until_given_up(sums):
    """How many patrols a sum lives through without an answer, and how often it is asked for meanwhile."""
    sums.ask(0, 5, CURRENT, 0)
    patrols = asked = 0
    while sums.open:
        effects, _ = sums.patrol()
        patrols, asked = patrols + 1, asked + len(effects)
    return patrols, asked


def test_whoever_gives_up_is_more_patient_with_the_next_sum_within_bounds():
    sums = World(3, tries_max=3).sums["p0"]
    waited = [patrols_until_given_up(sums) for _ in range(9)]
    assert [patrols - 2 for patrols, _ in waited] == [3 * min(2**k, STRETCH_MAX) for k in range(9)]
    assert {asked for _, asked in waited} == {3}, "it waits longer; it does not ask more often"


def test_a_sum_that_comes_soon_ends_the_patience():
    world = World(3, tries_max=3)
    sums = world.sums["p0"]
    for _ in range(3):
        patrols_until_given_up(sums)
    assert sums.stretch == 8
    again = world.make("p0")
    again.restore(decode_state(encode_state(sums.snapshot())))
    assert again.stretch == 8
    world.post("p0", sums.ask(0, 5, CURRENT, 0))
    world.settle()
    assert not sums.open and sums.stretch == 1
