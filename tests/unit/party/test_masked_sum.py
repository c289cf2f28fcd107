"""The secure sum: exact, the same in any order, bound to its question, and blind without the last share."""

import itertools

import numpy as np
import pytest
from scipy import stats

from offbeat.errors import BadJob, OutOfRange, UnexpectedEvent
from offbeat.learning.blocks import fixed_point
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast
from offbeat.party.masked_sum import (
    CERTIFICATE,
    EPOCH_STRIDE,
    KINDS,
    POINTS,
    PROBES,
    PRODUCTS,
    SURVEY,
    KeyOffered,
    MaskedSum,
    PartialGiven,
    ShareAsked,
    ShareGiven,
    SumOptions,
)
from offbeat.party.roster import Roster
from offbeat.privacy.masks import range_limit, scale_of
from offbeat.randomness import secret_bytes

SCHEMES = ("pairwise", "two-tree", "tree")
WORDS = 20
SCALE = scale_of(40)


class World:
    """Some sums joined by a queue that a test may look into, cut or shuffle. Everybody's share is fixed."""

    def __init__(self, count, scheme="pairwise", *, active=None, agree=True, run="run", **options):
        self.names = tuple(f"p{i}" for i in range(count))
        self.active = self.names if active is None else active
        self.run, self.options = run, SumOptions(scheme=scheme, **options)
        rng = np.random.default_rng(count)
        self.values = {name: 10 * rng.standard_normal(WORDS) for name in self.names}
        self.sums = {name: self.make(name) for name in self.names}
        self.queue, self.done = [], []
        if agree:
            for name in self.names:
                self.post(name, self.sums[name].offer_key())
            self.settle()

    def make(self, name, secret_seed=1):
        roster = Roster(name, self.names, self.active)
        secret = secret_bytes(32, secret_seed, name)
        made = MaskedSum(roster=roster, run=self.run, secret=secret, options=self.options)
        made.stride = WORDS
        return made

    def post(self, sender, effects):
        for effect in effects:
            to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
            self.queue += [(sender, peer, effect.body) for peer in to]

    def settle(self, order=None):
        while self.queue:
            self.deliver(*self.queue.pop(0 if order is None else int(order.integers(len(self.queue)))))

    def deliver(self, sender, to, body):
        sums = self.sums[to]
        if isinstance(body, KeyOffered):
            sums.take_key(sender, body)
        elif isinstance(body, ShareAsked):
            self.post(to, self.answer(to, sender, (body.kind, body.survey, body.first)))
        elif isinstance(body, ShareGiven):
            self.done += [done for done in [sums.collect(sender, body)] if done]
        else:
            effects, done = sums.collect_partial(sender, body)
            self.post(to, effects)
            self.done += [done] if done else []

    def answer(self, giver, asker, key, values=None):
        """A place of products holds a whole block; elsewhere a place is a number."""
        values = self.values[giver] if values is None else values

        def encode(mask):
            return fixed_point(values, mask, SCALE, self.sums[giver].limit, "A share")

        places = 1 if key[0] == PRODUCTS else len(values)
        return self.sums[giver].answer(asker, key, places, encode, len(values), 3)

    def words(self, giver, asker, key):
        (send,) = self.answer(giver, asker, key)
        return send.body.words

    def ask(self, asker, kind=PRODUCTS, survey=0, first=0):
        self.post(asker, self.sums[asker].ask(kind, survey, first, WORDS, WORDS, 0))

    def plain(self, asker):
        return sum(self.values[name] for name in self.sums[asker].roster.peers)

    def enter(self, epoch, names, who=None):
        for name in who or names:
            self.sums[name].roster.enter(epoch, names, names[0])
            self.sums[name].enter_epoch()


def decoded(done):
    return done.words.view(np.int64) / SCALE


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 9])
def test_every_party_can_ask_and_gets_the_exact_sum_of_the_others(scheme, count):
    world = World(count, scheme, two_party_insecure=True)
    for asker, kind in itertools.product(world.names, range(len(KINDS))):
        world.ask(asker, kind, survey=kind)
        world.settle()
        done = world.done.pop()
        assert np.abs(decoded(done) - world.plain(asker)).max() <= count * 2.0**-41
        assert done.versions == {name: 3 for name in world.names if name != asker}
        assert not world.sums[asker].open


@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_questions_at_once_in_any_order_give_the_same_words(scheme):
    results = []
    for seed in range(4):
        world = World(4, scheme)
        for number in range(4):
            world.ask("p1", PRODUCTS, 0, number)
            world.ask("p3", SURVEY, 7, number * WORDS)
        world.settle(np.random.default_rng(seed))
        assert len(world.done) == 8
        results.append(sorted((done.kind, done.first, done.words.tobytes()) for done in world.done))
    assert all(result == results[0] for result in results)


def uniform(words):
    for shift in (0, 20, 40, 56):
        counts = np.bincount((words >> np.uint64(shift) & np.uint64(255)).astype(int), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3, shift


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_sum_that_misses_a_share_reveals_nothing(missing):
    """Whatever subset has come, the words are uniform: no share, and no partial sum, shows."""
    world = World(4)
    partial = []
    for number in range(600):
        world.ask("p0", PRODUCTS, 0, number)
        while world.queue:
            sender, to, body = world.queue.pop(0)
            if not (isinstance(body, ShareGiven) and sender == f"p{missing + 1}"):
                world.deliver(sender, to, body)
        partial += [wanted.words for wanted in world.sums["p0"].open.values()]
        world.sums["p0"].open.clear()
    assert not world.done
    uniform(np.concatenate(partial))


def test_the_words_of_one_party_are_uniform():
    world = World(3)
    uniform(np.concatenate([world.words("p1", "p0", (PRODUCTS, 0, number)) for number in range(600)]))


# -- one mask, one question ------------------------------------------------------------------------------------------


STREAMS = [
    {},
    {"kind": SURVEY},
    {"kind": POINTS},
    {"kind": CERTIFICATE},
    {"kind": PROBES},
    {"survey": 8},
    {"asker": "p3"},
    {"first": 20},
    {"epoch": 4},
    {"names": ("p0", "p1", "p2", "p3"), "epoch": 0},
    {"run": "another"},
    {"stride": 8, "kind": PRODUCTS, "survey": 0},
]


def stream_of(changes, giver):
    """The words of one party for a question that differs in one thing from the others."""
    asked = {"kind": SURVEY, "survey": 7, "first": 0, "asker": "p0", "epoch": 0, "run": "run", "stride": WORDS}
    asked |= {"names": ("p0", "p1", "p2", "p3", "p4"), "kind": PRODUCTS if changes == {} else asked["kind"], **changes}
    world = World(5, run=asked["run"])
    world.enter(asked["epoch"], asked["names"], (giver,))
    world.sums[giver].stride = asked["stride"]
    return world.sums[giver].mask(asked["asker"], asked["kind"], asked["survey"], asked["first"], 8, 8)


def test_the_masks_of_any_two_questions_have_nothing_in_common():
    words = [stream_of(changes, "p1") for changes in STREAMS]
    assert len(np.unique(np.concatenate(words))) == 8 * len(STREAMS)
    differences = [(one - other).tolist() for one, other in itertools.combinations(words, 2)]
    assert all(len(set(difference)) == 8 for difference in differences), "not shifted by a constant either"


@pytest.mark.parametrize("changes", STREAMS[2:], ids=lambda changes: next(iter(changes)))
def test_parties_that_are_asked_differently_give_words_that_do_not_cancel(changes):
    """p1 is asked one thing, the others another: what the asker adds up is not near the sum of any shares."""
    others = [stream_of({"kind": SURVEY}, giver) for giver in ("p2", "p3", "p4") if giver != changes.get("asker")]
    total = (stream_of(changes, "p1") + sum(others)).view(np.int64) / SCALE
    assert np.abs(total).max() > 1e4
    same = [stream_of({"kind": SURVEY}, giver) for giver in ("p1", "p2", "p3", "p4")]
    assert not sum(same).any(), "asked alike they cancel"


@pytest.mark.parametrize("scheme", ["pairwise", "two-tree"])
@pytest.mark.parametrize("key", [(PRODUCTS, 0, 5), (SURVEY, 7, 0), (POINTS, 7, 0), (CERTIFICATE, 7, 0), (PROBES, 0, 0)])
def test_a_question_is_answered_once(scheme, key):
    world = World(4, scheme)
    world.answer("p2", "p0", key)
    with pytest.raises(UnexpectedEvent, match=r"p0 asked .* again"):
        world.answer("p2", "p0", key)
    assert world.answer("p2", "p0", (*key[:2], 40)) is not None


@pytest.mark.parametrize("scheme", ["pairwise", "two-tree"])
def test_rows_that_overlap_are_answered_once(scheme):
    world = World(4, scheme)
    world.answer("p2", "p0", (SURVEY, 7, 0))
    with pytest.raises(UnexpectedEvent, match="second time"):
        world.answer("p2", "p0", (SURVEY, 7, WORDS - 1))
    assert world.answer("p2", "p0", (SURVEY, 7, WORDS)) is not None


def test_a_refusal_is_counted_and_uses_nothing():
    world = World(3)
    world.answer("p2", "p0", (PRODUCTS, 0, 0))
    with pytest.raises(UnexpectedEvent):
        world.answer("p2", "p0", (PRODUCTS, 0, 0))
    assert world.sums["p2"].refused == 1
    assert world.sums["p2"].nets["p0", PRODUCTS].used.next == 1


def test_masks_of_surveys_that_are_over_are_forgotten_where_there_are_trees():
    world = World(4, "two-tree")
    for survey in (1, 2, 3):
        world.answer("p2", "p0", (SURVEY, survey, 0))
    world.answer("p2", "p0", (PRODUCTS, 0, 0))
    world.sums["p2"].forget_surveys_below(3)
    nets = world.sums["p2"].trees.nets
    assert set(nets) == {("p0", SURVEY, 3), ("p0", PRODUCTS, 0)}, "those that belong to no survey stay"


def test_pairwise_masks_of_surveys_lie_apart_in_one_stream():
    sums = World(4).sums["p2"]
    masks = [sums.mask("p0", SURVEY, survey, 0, WORDS, WORDS) for survey in (1, 2, EPOCH_STRIDE - 1)]
    assert len({*np.concatenate(masks).tolist()}) == 3 * WORDS
    assert set(sums.nets) == {("p0", SURVEY)}
    with pytest.raises(UnexpectedEvent, match="second time"):
        sums.mask("p0", SURVEY, 2, 0, WORDS, WORDS)


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
@pytest.mark.parametrize(
    ("asker", "asks"),
    [
        ("p0", {PRODUCTS, SURVEY, POINTS, CERTIFICATE, PROBES}),
        ("p1", {PRODUCTS}),
        ("p2", set()),
        ("p4", set()),
        ("eve", set()),
    ],
    ids=["the chair", "another label holder", "without labels", "lost", "a stranger"],
)
def test_who_may_ask_what(kind, asker, asks):
    world = World(5, active=("p0", "p1", "p4"))
    world.enter(5, ("p0", "p1", "p2", "p3"))
    assert world.sums["p3"].may_ask(asker, kind) == (kind in asks)


# -- epochs and rosters ----------------------------------------------------------------------------------------------


def test_a_new_epoch_voids_every_question_and_sums_those_who_are_left():
    world = World(4)
    world.ask("p0")
    world.enter(4, ("p0", "p2", "p3"))
    world.queue.clear()
    assert not world.sums["p0"].open and not world.sums["p2"].nets
    world.ask("p0")
    assert {to for _, to, _ in world.queue} == {"p2", "p3"}
    assert all(body.epoch == 4 for _, _, body in world.queue)
    world.settle()
    assert np.allclose(decoded(world.done[0]), world.values["p2"] + world.values["p3"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_parties_are_refused_unless_the_user_insists(scheme):
    with pytest.raises(BadJob, match="Two parties cannot hide"):
        World(2, scheme)
    world = World(2, scheme, two_party_insecure=True)
    world.ask("p0")
    world.settle()
    assert np.abs(decoded(world.done[0]) - world.values["p1"]).max() <= 2.0**-41


def test_a_roster_of_two_is_refused_later_too():
    with pytest.raises(BadJob, match="Two parties"):
        World(3).enter(3, ("p0", "p1"))


def test_unknown_schemes_are_refused():
    with pytest.raises(BadJob, match="secure_sum"):
        SumOptions(scheme="none")


# -- keys ------------------------------------------------------------------------------------------------------------


def test_a_sum_is_ready_when_every_key_is_known():
    world = World(3, agree=False)
    sums = world.sums["p0"]
    assert not sums.ready
    sums.take_key("p1", KeyOffered(world.sums["p1"].keys.public))
    assert not sums.ready
    sums.take_key("p2", KeyOffered(world.sums["p2"].keys.public))
    assert sums.ready and World(3, "tree", agree=False).sums["p0"].ready


def test_the_same_key_again_changes_nothing_and_another_is_refused():
    world = World(3)
    sums, before = world.sums["p0"], dict(world.sums["p0"].keys.publics)
    sums.take_key("p1", KeyOffered(world.sums["p1"].keys.public))
    assert sums.keys.publics == before
    with pytest.raises(UnexpectedEvent, match="p1 sent another key"):
        sums.take_key("p1", KeyOffered(world.sums["p2"].keys.public))


@pytest.mark.parametrize("public", [b"", b"short", bytes(32)])
def test_bytes_that_are_no_key_are_refused(public):
    with pytest.raises(UnexpectedEvent, match="no usable key"):
        World(3, agree=False).sums["p0"].take_key("p1", KeyOffered(public))


def test_the_coin_is_the_same_for_all_and_depends_on_every_key_and_the_run():
    world = World(4)
    (coin,) = {sums.joint_coin() for sums in world.sums.values()}
    assert coin != World(4, run="another").sums["p0"].joint_coin()
    for changed in world.names:
        sums = world.make("p0", secret_seed=2 if changed == "p0" else 1)
        for name in world.names[1:]:
            sums.take_key(name, KeyOffered(world.make(name, secret_seed=2 if name == changed else 1).keys.public))
        assert sums.joint_coin() != coin


# -- misbehaving peers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [np.zeros(9, np.uint64), np.zeros(WORDS), np.zeros((2, 10), np.uint64)])
def test_an_answer_of_another_shape_is_a_typed_error(words):
    world = World(3)
    world.ask("p0")
    with pytest.raises(UnexpectedEvent, match="p1 sent its answer"):
        world.sums["p0"].collect("p1", ShareGiven(0, PRODUCTS, 0, 0, words, 0, 0.0))


@pytest.mark.parametrize(
    ("sender", "key"),
    [("p9", (PRODUCTS, 0, 0)), ("p1", (PRODUCTS, 0, 1)), ("p1", (SURVEY, 0, 0)), ("p1", (PRODUCTS, 1, 0))],
    ids=["a stranger", "another number", "another kind", "another survey"],
)
def test_answers_to_what_was_not_asked_are_a_typed_error(sender, key):
    world = World(3)
    world.ask("p0")
    with pytest.raises(UnexpectedEvent, match=f"{sender} answered a question that was not asked"):
        world.sums["p0"].collect(sender, ShareGiven(0, *key, np.ones(WORDS, np.uint64), 0, 0.0))


def test_a_second_answer_is_a_typed_error_and_changes_nothing():
    world = World(3)
    world.ask("p0")
    given = ShareGiven(0, PRODUCTS, 0, 0, np.ones(WORDS, np.uint64), 0, 0.0)
    assert world.sums["p0"].collect("p1", given) is None
    with pytest.raises(UnexpectedEvent, match="twice"):
        world.sums["p0"].collect("p1", given)
    assert np.array_equal(world.sums["p0"].open[PRODUCTS, 0, 0].words, given.words)


def partial(asker="p0", tree=0, words=None, versions=None):
    words = np.zeros(WORDS, np.uint64) if words is None else words
    versions = np.zeros(4, np.int64) if versions is None else versions
    return PartialGiven(0, asker, PRODUCTS, 0, 0, tree, words, versions)


@pytest.mark.parametrize(
    "given",
    [
        partial(tree=5),
        partial(tree=-1),
        partial(asker="p9"),
        partial(words=np.zeros((2, 2), np.uint64)),
        partial(words=np.zeros(WORDS)),
        partial(versions=np.zeros(3, np.int64)),
    ],
    ids=["no tree", "below all trees", "for a stranger", "a table", "floats", "of another roster"],
)
def test_partial_sums_that_make_no_sense_are_a_typed_error(given):
    with pytest.raises(UnexpectedEvent, match="p3 sent"):
        World(4, "two-tree").sums["p1"].collect_partial("p3", given)


def test_a_child_cannot_add_twice_and_nobody_else_can_add():
    world = World(4, "two-tree")
    world.sums["p1"].collect_partial("p3", partial())
    with pytest.raises(UnexpectedEvent, match="p3 sent a second sum"):
        world.sums["p1"].collect_partial("p3", partial())
    with pytest.raises(UnexpectedEvent, match="p0 sent a second sum"):
        world.sums["p1"].collect_partial("p0", partial(asker="p2"))


def test_a_share_out_of_range_is_not_sent_and_no_other_is_after_it():
    world = World(3)
    with pytest.raises(OutOfRange):
        world.answer("p2", "p0", (PRODUCTS, 0, 0), np.full(WORDS, range_limit(3)))
    sums = world.sums["p2"]
    for number in (0, 1):  # whether another one fits is not told
        assert sums.answer("p0", (PRODUCTS, 0, number), 1, lambda mask: mask, WORDS, 0) == []
    state, other = sums.snapshot(), World(3).sums["p2"]
    other.restore(state)
    assert other.over


# -- how old a product is --------------------------------------------------------------------------------------------


def test_the_lag_is_that_of_the_oldest_part():
    sums = World(3).sums["p0"]
    sums.seen = {"p1": 9, "p2": 4}
    assert sums.lag(2, {"p1": 9, "p2": 4}) == 2
    assert sums.lag(2, {"p1": 4, "p2": 4}) == 4
    assert sums.lag(0, {"p3": 4}) == 0


# -- going on later --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_restored_sum_goes_on_as_if_nothing_had_been(scheme):
    for crash_after in itertools.count():
        world = World(4, scheme)
        world.ask("p0", SURVEY, 3)
        world.ask("p3", PRODUCTS, 0, 5)
        for _ in range(crash_after):
            if world.queue:
                world.deliver(*world.queue.pop(0))
        ended = not world.queue
        for name in world.names:
            frame = encode_state(world.sums[name].snapshot())
            world.sums[name] = world.make(name)
            world.sums[name].restore(decode_state(frame))
            assert encode_state(world.sums[name].snapshot()) == frame
        world.settle()
        sums = {done.kind: decoded(done) for done in world.done}
        assert np.allclose(sums[SURVEY], world.plain("p0"))
        assert np.allclose(sums[PRODUCTS], world.plain("p3"))
        if scheme != "tree":
            with pytest.raises(UnexpectedEvent, match="again"):
                world.answer("p2", "p0", (SURVEY, 3, 0))
        if ended:
            break


def test_a_snapshot_does_not_change_with_what_arrives_later():
    world = World(3)
    world.ask("p0")
    state = world.sums["p0"].snapshot()
    frame = encode_state(state)
    world.settle()
    assert world.done and encode_state(state) == frame


def test_a_party_restored_with_another_key_is_refused():
    world = World(3)
    with pytest.raises(BadJob, match="another private key"):
        world.make("p0", secret_seed=2).restore(world.sums["p0"].snapshot())
