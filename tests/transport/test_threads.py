"""The threads runtime: the same parties, real concurrency, and logs that replay bit for bit."""

import threading
from functools import partial

import numpy as np
import pytest
from toys import MESSAGES, Counter, expected_folds

from offbeat.algorithms import afsgd_vp, vfb2
from offbeat.errors import BadData, PeerFailed
from offbeat.learning import central
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2
from offbeat.message.codec import Codec
from offbeat.party.contract import Compute, Computed, Finish, Started, Wake, Woken
from offbeat.party.linear_options import LinearOptions
from offbeat.party.survey import Problem
from offbeat.runtime.drive import Written
from offbeat.runtime.recovery import recover
from offbeat.runtime.simulator import CostModel, Link
from offbeat.runtime.threads import ThreadRun, Threads, digest_of

NAMES = ("ana", "bo", "cy")


def counters(total=40):
    return [Counter(name, tuple(n for n in NAMES if n != name), total) for name in NAMES]


def learners(build, *, method="svrg", target=1e-8, **more):
    rng = np.random.default_rng(3)
    features = rng.normal(size=(240, 9)) / 3
    labels = np.where(features @ rng.normal(size=9) + 0.3 * rng.normal(size=240) > 0, 1.0, -1.0)
    blocks = {
        name: make_block(features[:, 3 * i : 3 * i + 3], penalty=L2, strength=1e-2) for i, name in enumerate(NAMES)
    }
    problem = Problem(240, LOGISTIC, L2, 1e-2, labels)
    options = LinearOptions(method=method, passes=200, target=target)
    parties = build(blocks, problem, options, seed=1, secrets_seed=1, **more)
    return parties, features, labels


def test_every_message_arrives_once_and_in_order():
    parties = counters()
    outcome = Threads(messages=MESSAGES).run(parties)
    assert outcome.stalled == "" and outcome.clock == "wall"
    assert {name: finish.verdict for name, finish in outcome.finished.items()} == dict.fromkeys(NAMES, "target")
    expected = expected_folds(NAMES, 40)
    for party in parties:
        assert party.folds == {name: expected[name] for name in party.peers}


@pytest.mark.parametrize("link", [Link(0.0), Link(1e-4), Link(0.0, 1e7)])
def test_a_link_that_takes_time_changes_no_count(link):
    parties = counters(10)
    outcome = Threads(messages=MESSAGES, costs=CostModel(link=link)).run(parties)
    assert outcome.finished.keys() == set(NAMES)
    assert all(count == 10 for party in parties for count in party.heard.values())


@pytest.mark.parametrize(
    ("build", "more", "messages"),
    [
        (afsgd_vp.build, {}, afsgd_vp.MESSAGES),
        (afsgd_vp.build, {"synchronous": True}, afsgd_vp.MESSAGES),
        (vfb2.build, {"labels_at": ("bo",)}, vfb2.MESSAGES),
        (vfb2.build, {"labels_at": ("ana", "cy"), "lanes": 2}, vfb2.MESSAGES),
    ],
    ids=["afsvrg-vp", "fsvrg-vp", "vfb2-svrg", "vfb2-svrg two lanes"],
)
def test_learning_reaches_the_optimum_and_replays_bit_for_bit(build, more, messages, tmp_path):
    parties, features, labels = learners(build, **more)
    costs = CostModel(link=Link(0.0), lanes=more.get("lanes", 1))
    outcome = Threads(messages=messages, costs=costs, folder=tmp_path).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"target"}, outcome
    _, best = central.optimum(features, labels, LOGISTIC, 1e-2)
    found = np.concatenate([party.block.weights()[0, :-1] for party in parties])
    assert 0 <= central.objective(features, labels, found, LOGISTIC, L2, 1e-2) - best <= 1e-8
    replayed = {}
    for party in learners(build, **more)[0]:
        again = recover(party, Codec(messages), tmp_path, from_start=True)
        assert again.marks >= 1
        replayed[party.name] = again.drive.digest
    assert digest_of(replayed) == outcome.digest


def test_a_slow_party_is_charged_what_the_cost_model_says():
    costs = CostModel(overhead_s=1e-5, per_sample_s=0.0, per_nonzero_s=0.0, slow={"bo": 3.0}, link=Link(0.0))
    parties, *_ = learners(afsgd_vp.build, method="saga", target=1e-2)
    outcome = Threads(messages=afsgd_vp.MESSAGES, costs=costs).run(parties)
    works = parties[1].party.lags.count
    assert outcome.tallies["bo"].compute_s >= 2e-5 * works


# -- looking, ending, failing -----------------------------------------------------------------------------------------


def test_a_look_sees_parties_at_rest_and_may_end_the_run():
    parties, *_ = learners(afsgd_vp.build, method="saga", target=None)
    looks = []

    def look(time_s):
        looks.append([party.block.version for party in parties])
        return 0.0 if len(looks) < 5 else None

    runtime = Threads(messages=afsgd_vp.MESSAGES)
    outcome = runtime.run(parties, look)
    assert len(looks) == 5
    assert outcome.stalled == "ended by the observer"
    assert runtime.bytes_sent > 0


class Alone:
    """A party that does what its test says, once it has started."""

    def __init__(self, effects=(), name="ana", then=()):
        self.name, self.effects, self.then = name, list(effects), then
        self.seen = []
        self.before = lambda: None

    def handle(self, event):
        self.before()
        self.seen.append(event)
        if isinstance(event, Started):
            return self.effects
        return self.then(event) if callable(self.then) else list(self.then)

    def snapshot(self):
        return {}

    def restore(self, state):
        pass


def test_when_nothing_is_left_to_happen_it_says_who_had_not_finished():
    outcome = Threads(messages=MESSAGES).run([Alone(), Alone([Finish("passes")], "bo")])
    assert outcome.stalled == "nothing is left to happen, and ana had not finished"


def test_work_without_a_job_comes_back_and_so_does_a_jobs_result():
    party = Alone([Compute(1), Compute(2, job=lambda: "done"), Wake(0.0, 3)])
    party.then = lambda event: [Finish("passes")] if len(party.seen) == 4 else []
    Threads(messages=MESSAGES).run([party])
    assert sorted(party.seen[1:], key=repr) == sorted([Computed(1), Computed(2, "done"), Woken(3)], key=repr)


def _raise(*_):
    raise BadData("this was wrong")


@pytest.mark.parametrize("effects", [[Wake(0.0)], [Compute(1, job=partial(_raise, 1))]], ids=["handler", "job"])
def test_an_error_in_a_thread_reaches_the_caller(effects):
    before = threading.active_count()
    with pytest.raises(BadData, match="this was wrong"):
        Threads(messages=MESSAGES).run([Alone(effects, then=_raise), Alone([Wake(60.0)], "bo")])
    assert threading.active_count() == before


def test_a_limit_of_time_ends_the_run():
    outcome = Threads(messages=MESSAGES, until_s=0.0).run([Alone([Wake(60.0)])])
    assert "limit of 0 seconds" in outcome.stalled


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_party_that_falls_too_far_behind_ends_the_run():
    run = ThreadRun(Threads(messages=MESSAGES, inbox_max=7), [Alone(), Alone(name="bo")], None)
    for _ in range(7):
        run._post("ana", Written(("bo",), b"", "Count", 0))
    with pytest.raises(PeerFailed, match="'bo' is 7 messages behind"):
        run._post("ana", Written(("bo",), b"", "Count", 0))
