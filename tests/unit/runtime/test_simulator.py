"""Virtual time, costs, faults, looks and ends; and that every checker can fail."""

from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest

from offbeat.errors import BadJob, PeerFailed
from offbeat.party.contract import (
    Broadcast,
    Compute,
    Computed,
    Finish,
    Message,
    Observe,
    PeerBack,
    PeerLost,
    Received,
    Send,
    Started,
    Wake,
    Woken,
)
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import SURVEY, ShareGiven
from offbeat.party.survey_messages import TablePart
from offbeat.runtime.simulator import PROFILES, CostModel, CrashAndRestore, Gone, Jitter, Link, Simulator, profile
from offbeat.runtime.simulator.checkers import (
    AppliedOnce,
    CodecFaithful,
    EndsOrSaysWhy,
    LagWithin,
    MasksUsedOnce,
    NothingRawLeaves,
    Violation,
    WithinBounds,
)
from offbeat.runtime.simulator.faults import ClogInTurn, Delay, Duplicate, MessageLoss, Partition, Reorder
from offbeat.testing.linear_checkers import linear_checkers
from offbeat.testing.small_problem import build_parties, draw_problem, method_named


class Note(Message, frozen=True):
    """Something to send.

    Reveals: nothing.
    """

    number: int
    values: np.ndarray = np.empty(0)


@dataclass
class Script:
    """A party that does what its dictionary says for each kind of event, and remembers what came when."""

    name: str
    does: dict = field(default_factory=dict)
    heard: list = field(default_factory=list)

    def handle(self, event):
        self.heard.append(event)
        answer = self.does.get(type(event), [])
        return answer(event) if callable(answer) else list(answer)

    def snapshot(self):
        return {"heard": len(self.heard)}

    def restore(self, state):
        self.heard = [None] * state["heard"]


DONE = [Finish("done")]
PLAIN = CostModel(overhead_s=1.0, per_sample_s=0.1, per_nonzero_s=0.01, link=Link(0.5, 1000.0))


class Clock:
    """When each event was handled."""

    def __init__(self):
        self.at = []

    def handled(self, now_s, party, event, effects):
        self.at.append((round(now_s, 9), party.name, type(event).__name__))

    def ended(self, outcome, parties):
        pass


def times(parties, **setting):
    clock = Clock()
    outcome = Simulator(checkers=[clock], **setting).run(parties)
    return clock.at, outcome


# -- time ------------------------------------------------------------------------------------------------------------


def test_a_message_takes_latency_and_bytes_over_bandwidth():
    ana = Script("ana", {Started: [Send("bo", Note(1, np.zeros(99)))], Received: DONE})
    bo = Script("bo", {Received: [Send("ana", Note(2)), *DONE]})
    at, outcome = times([ana, bo], costs=PLAIN)
    assert at[2:] == [(1.3, "bo", "Received"), (1.808, "ana", "Received")]
    assert outcome.tallies["ana"].sent == {"Note": [1, 800]}
    assert outcome.tallies["bo"].bytes_sent == 8
    assert (outcome.time_s, outcome.stalled) == (pytest.approx(1.808), "")


@pytest.mark.parametrize(
    "costs", [CostModel(), CostModel(link=Link(1e-4, 1e6)), CostModel(link_jitter=Jitter("lognormal"))]
)
def test_a_message_to_nobody_is_not_sent(costs):
    ana = Script("ana", {Started: [Broadcast((), Note(1)), Send("bo", Note(2)), *DONE]})
    bo = Script("bo", {Received: DONE})
    outcome = Simulator(costs=costs).run([ana, bo])
    assert [event.body.number for event in bo.heard if isinstance(event, Received)] == [2]
    assert outcome.tallies["ana"].sent["Note"][0] == 1
    assert not outcome.stalled


def test_links_may_differ():
    costs = CostModel(link=Link(0.5), links={("ana", "bo"): Link(2.0)})
    ana = Script("ana", {Started: [Broadcast(("bo", "cy"), Note(1)), *DONE]})
    at, _ = times([ana, Script("bo", {Received: DONE}), Script("cy", {Received: DONE})], costs=costs)
    assert at[3:] == [(0.5, "cy", "Received"), (2.0, "bo", "Received")]


def test_work_takes_its_time_on_the_partys_lanes_and_slow_parties_take_longer():
    ask = [Compute(ticket, 10, 100) for ticket in range(3)]
    finish = {Started: ask, Computed: lambda event: DONE if event.ticket == 2 else []}
    for lanes, slow, ends in [(1, 1.0, [3, 6, 9]), (2, 1.0, [3, 3, 6]), (1, 2.0, [6, 12, 18])]:
        costs = CostModel(1.0, 0.1, 0.01, slow={"ana": slow}, lanes=lanes)
        at, outcome = times([Script("ana", dict(finish))], costs=costs)
        assert [time for time, *_ in at[1:]] == ends
        assert outcome.tallies["ana"].compute_s == 9 * slow


def test_jobs_run_when_their_time_has_come():
    value = [1]
    ana = Script("ana", {Started: [Compute(0, 10, 0, job=lambda: value[0]), Wake(0.5)], Computed: DONE})
    ana.does[Woken] = lambda event: value.__setitem__(0, 2) or []
    Simulator(costs=PLAIN).run([ana])
    assert ana.heard[-1] == Computed(0, 2, 2.0)  # and how long it took


@pytest.mark.parametrize(("serving", "arrives"), [("free", 0.5), ("full", 2.5), ("slow", 6.5)])
def test_who_pays_for_an_answer(serving, arrives):
    costs = CostModel(1.0, 0.1, 0.0, link=Link(0.5), slow={"ana": 3.0}, serving=serving)
    ana = Script("ana", {Started: [Send("bo", Note(1), samples=10), *DONE]})
    at, _ = times([ana, Script("bo", {Received: DONE})], costs=costs)
    assert at[-1] == (arrives, "bo", "Received")


def test_timers_and_ties_are_in_order():
    ana = Script("ana", {Started: [Wake(1.0, 1), Wake(1.0, 2), Wake(0.5, 3)]})
    ana.does[Woken] = lambda event: DONE if event.token == 2 else []
    Simulator().run([ana])
    assert [event.token for event in ana.heard[1:]] == [3, 1, 2]


def test_wrong_costs_are_refused():
    for wrong in (
        lambda: CostModel(serving="maybe"),
        lambda: CostModel(slow={"a": 0.0}),
        lambda: Jitter("wild"),
        lambda: Jitter(cv=float("nan")),
    ):
        with pytest.raises(BadJob):
            wrong()


@pytest.mark.parametrize("kind", ["lognormal", "exponential", "poisson"])
def test_jitter_has_mean_one(kind):
    draw = Jitter(kind).sampler(np.random.default_rng(0))
    assert np.mean([draw() for _ in range(20_000)]) == pytest.approx(1.0, abs=0.03)


def test_the_time_is_split_into_work_messages_and_waiting():
    ana = Script("ana", {Started: [Compute(0, 10, 0)], Computed: [Send("bo", Note(1)), Wake(5.0)], Woken: DONE})
    _, outcome = times([ana, Script("bo", {Received: DONE})], costs=CostModel(1.0, 0.1, 0.0, link=Link(0.5)))
    assert outcome.tallies["ana"].split(outcome.time_s) == pytest.approx((2.0, 0.5, 4.5))


# -- the same again --------------------------------------------------------------------------------------------------


def run(seed, **changes):
    problem = draw_problem(2, parties=3, rows=100)
    options = LinearOptions(method="saga", passes=3.0, batch=16)
    costs = CostModel(jitter=Jitter("lognormal"), link_jitter=Jitter("exponential"))
    simulator = Simulator(seed=seed, costs=costs, **changes)
    return simulator.run(build_parties("afsaga-vp", problem, options, 1))


def test_a_seed_is_a_run_to_the_byte():
    assert run(1).digest == run(1).digest
    assert run(1).digest != run(2).digest


def test_faults_replay_too():
    faults = profile("swarm", ("party0", "party1", "party2"), np.random.default_rng(3), 0.05)
    assert run(1, faults=faults).digest == run(1, faults=faults).digest


# -- ends ------------------------------------------------------------------------------------------------------------


def test_a_run_in_which_nothing_can_happen_says_who_was_waited_for():
    outcome = Simulator().run([Script("ana"), Script("bo", {Started: DONE})])
    assert outcome.stalled == "nothing is left to happen, and ana had not finished"


def test_limits_of_time_and_events_are_said():
    forever = {Started: [Wake(1.0)], Woken: [Wake(1.0)]}
    assert "limit of 10 virtual seconds" in Simulator(until_s=10).run([Script("ana", forever)]).stalled
    assert "limit of 50 events" in Simulator(events_max=50).run([Script("ana", forever)]).stalled


def test_finishing_twice_ends_nobody_else():
    ana, bo = Script("ana", {Started: DONE + DONE}), Script("bo", {Started: [Wake(1.0)], Woken: DONE})
    outcome = Simulator().run([ana, bo])
    assert set(outcome.finished) == {"ana", "bo"} and not outcome.stalled


def test_whoever_has_finished_hears_nothing_more():
    ana = Script("ana", {Started: [Broadcast(("bo",), Note(1)), *DONE]})
    bo = Script("bo", {Started: DONE})
    Simulator().run([ana, bo])
    assert len(bo.heard) == 1


def test_an_observer_looks_at_its_own_times_and_may_end_the_run():
    looks = []

    def look(now_s):
        looks.append(now_s)
        return 2.0 if len(looks) < 4 else None

    outcome = Simulator().run([Script("ana", {Started: [Wake(1.0)], Woken: [Wake(1.0)]})], look)
    assert looks == [0.0, 2.0, 4.0, 6.0]
    assert outcome.stalled == "ended by the observer"


def test_observations_and_the_timeline_are_kept_up_to_a_bound():
    ana = Script("ana", {Started: [Observe("x", 7), *[Send("bo", Note(i)) for i in range(9)], *DONE]})
    outcome = Simulator(timeline_max=4).run([ana, Script("bo", {Received: DONE})])
    assert outcome.observations == [(0.0, "ana", "x", 7)]
    assert len(outcome.timeline) == 4


def test_two_parties_of_one_name_are_refused():
    with pytest.raises(AssertionError, match="share a name"):
        Simulator().run([Script("ana"), Script("ana")])


# -- faults ----------------------------------------------------------------------------------------------------------


def arrivals(fault, now_s, sender="ana", receiver="bo", seed=0, count=2000):
    rng = np.random.default_rng(seed)
    return [fault.arrivals([now_s + 1.0], now_s, sender, receiver, rng) for _ in range(count)]


def test_each_fault_does_what_it_says_and_heals():
    lost = sum(not times for times in arrivals(MessageLoss(5.0, probability=0.2), 0.0)) / 2000
    doubled = sum(len(times) == 2 for times in arrivals(Duplicate(5.0, probability=0.3), 0.0)) / 2000
    late = np.mean([times[0] - 1.0 for times in arrivals(Delay(5.0, mean_s=0.5), 0.0)])
    held = sum(times[0] > 1.0 for times in arrivals(Reorder(5.0, probability=0.4), 0.0)) / 2000
    assert (lost, doubled, late, held) == pytest.approx((0.2, 0.3, 0.5, 0.4), abs=0.05)
    for fault in (MessageLoss(5.0), Duplicate(5.0), Delay(5.0), Reorder(5.0)):
        assert all(times == [6.0] for times in arrivals(fault, 5.0, count=50))


def test_a_partition_cuts_both_ways_for_its_time():
    cut = Partition(5.0, inside=("ana",), start_s=1.0)
    for now_s, sender, receiver, through in [(0.5, "ana", "bo", 1), (2.0, "ana", "bo", 0), (2.0, "bo", "ana", 0)]:
        assert len(arrivals(cut, now_s, sender, receiver, count=1)[0]) == through
    assert len(arrivals(cut, 2.0, "bo", "cy", count=1)[0]) == 1
    assert len(arrivals(cut, 5.0, "ana", "bo", count=1)[0]) == 1


def test_a_clogged_party_gets_everything_at_its_release():
    clog = ClogInTurn(9.0, turns=(("bo", 1.0, 4.0),))
    assert arrivals(clog, 0.5, count=1) == [[4.0]]
    assert arrivals(clog, 4.0, count=1) == [[5.0]]
    assert arrivals(clog, 0.5, receiver="cy", count=1) == [[1.5]]


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_heals(name):
    names = ("ana", "bo", "cy")
    for seed in range(20):
        faults = profile(name, names, np.random.default_rng(seed), 1.0)
        for fault in faults:
            assert arrivals(fault, 1.0, count=3) == [[2.0]] * 3
            assert all(outage.stop_s <= 1.0 for outage in fault.plan(names, np.random.default_rng(0)))


def test_a_crashed_party_comes_back_from_its_log_with_its_timers_its_jobs_and_its_letters():
    """Bo's letter comes while ana is down; she has it when she is back, and what she had asked for begins anew."""
    does = {Started: [Wake(2.0, 7), Compute(3, 0, 0), Send("bo", Note(9))]}
    does[Woken] = DONE
    made = []

    def rebuild(name):
        made.append(Script("ana", does))
        return made[-1]

    bo = Script("bo", {Started: [Wake(1.5)], Woken: [Send("ana", Note(1))], PeerBack: DONE})
    costs = CostModel(2.0, 0.0, 0.0, link=Link(0.01))
    faults = [CrashAndRestore("ana", 1.0, 2.0)]
    clock = Clock()
    Simulator(costs=costs, faults=faults, rebuild=rebuild, detect_s=0.4, checkers=[clock]).run(
        [Script("ana", does), bo]
    )
    assert [type(event).__name__ for event in made[0].heard] == ["Started", "Received", "Computed", "Woken"]
    assert [event.body.number for event in bo.heard if isinstance(event, Received)] == [9], "not said twice"
    assert bo.heard[2:] == [PeerLost("ana"), Woken(), PeerBack("ana")]
    assert [(at, kind) for at, name, kind in clock.at if name == "ana" and kind in ("Computed", "Woken")] == [
        (5.0, "Computed"),
        (5.0, "Woken"),
    ]


class Ledger(Script):
    """Counts what it hears, and answers each with the count so far; ends at the last."""

    def __init__(self, name, last, peer="bo"):
        super().__init__(name)
        self.last, self.peer, self.count = last, peer, 0

    def handle(self, event):
        if not isinstance(event, Received):
            return []
        self.count += 1
        ends = DONE if self.count == self.last else []
        return [Send(self.peer, Note(1000 * event.body.number + self.count)), *ends]

    def snapshot(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


def tick_sender(total):
    """Says 1, 2, 3, ... one each millisecond, and ends when it has heard as many answers."""
    bo = Script("bo")
    bo.said = bo.answers = 0

    def said(event):
        bo.said += 1
        return [Send("ana", Note(bo.said)), *([Wake(1e-3)] if bo.said < total else [])]

    def answered(event):
        bo.answers += 1
        return DONE if bo.answers == total else []

    bo.does = {Started: said, Woken: said, Received: answered}
    return bo


@pytest.mark.parametrize("checkpoint_events", [0, 1, 7, 1000])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_breaks_every_message_is_handled_once_and_in_order(checkpoint_events, seed):
    """Losses, doubles, late ones, and three crashes; the log goes on from the start, from just now, or from earlier."""
    faults = [
        MessageLoss(0.15, 0.3),
        Duplicate(0.15, 0.3),
        Reorder(0.15, 0.4, spread_s=0.01),
        *(CrashAndRestore("ana", at_s, 0.01) for at_s in (0.02, 0.05, 0.0501, 0.08)),
    ]
    total, bo = 60, tick_sender(60)
    outcome = Simulator(
        seed=seed,
        faults=faults,
        rebuild=lambda name: Ledger(name, total),
        checkpoint_events=checkpoint_events,
        detect_s=0.005,
        until_s=60.0,
    ).run([Ledger("ana", total), bo])
    assert not outcome.stalled, outcome.stalled
    heard = [event.body.number for event in bo.heard if isinstance(event, Received)]
    assert heard == [1001 * i for i in range(1, total + 1)]
    assert (outcome.tallies["bo"].sent, outcome.tallies["ana"].sent) == ({"Note": [60, 480]}, {"Note": [60, 480]})


def test_a_party_whose_log_leads_elsewhere_is_seen():
    faults = [CrashAndRestore("ana", 0.01, 0.01)]
    with pytest.raises(PeerFailed, match="the log of ana gave other effects"):
        Simulator(faults=faults, rebuild=lambda name: Ledger(name, 99, peer="cy")).run(
            [Ledger("ana", 60), tick_sender(60), Script("cy")]
        )


def test_a_party_may_finish_right_after_its_last_word_over_links_that_lose_most():
    ana = Script("ana", {Started: [*(Send("bo", Note(i)) for i in range(9)), *DONE]})
    bo = Script("bo")
    bo.does[Received] = lambda event: DONE if event.body.number == 8 else []
    outcome = Simulator(seed=1, faults=[MessageLoss(10.0, 0.8)], until_s=10.0).run([ana, bo])
    assert not outcome.stalled
    assert [event.body.number for event in bo.heard[1:]] == list(range(9))


def test_when_all_is_delivered_a_faulty_world_comes_to_rest():
    ana = Script("ana", {Started: [Send("bo", Note(1))]})
    outcome = Simulator(faults=[MessageLoss(0.1, 0.5)]).run([ana, Script("bo")])
    assert outcome.stalled == "nothing is left to happen, and ana, bo had not finished"


def test_no_message_overtakes_an_earlier_one_of_its_link():
    """The first is large, the second small: over a narrow link they arrive together, in order. Cy is not held up."""
    ana = Script("ana", {Started: [Send("bo", Note(1, np.zeros(99))), Broadcast(("bo", "cy"), Note(2)), *DONE]})
    bo, cy = Script("bo"), Script("cy", {Received: DONE})
    bo.does[Received] = lambda event: DONE if event.body.number == 2 else []
    at, _ = times([ana, bo, cy], costs=PLAIN)
    assert at[3:] == [(0.508, "cy", "Received"), (1.3, "bo", "Received"), (1.3, "bo", "Received")]
    assert [event.body.number for event in bo.heard[1:]] == [1, 2]


def test_a_short_outage_is_not_noticed_as_a_loss():
    bo = Script("bo", {Started: [Wake(3.0)], Woken: DONE})
    ana = Script("ana", {Started: [Wake(2.0)], Woken: DONE})
    Simulator(faults=[CrashAndRestore("ana", 1.0, 0.5)], detect_s=1.0).run([ana, bo])
    assert PeerLost("ana") not in bo.heard


def test_a_party_that_is_gone_is_not_waited_for():
    bo = Script("bo", {PeerLost: DONE})
    outcome = Simulator(faults=[Gone("ana", 1.0)], detect_s=0.25).run([Script("ana"), bo])
    assert (outcome.lost, outcome.time_s, outcome.stalled) == (("ana",), 1.25, "")


def test_a_restored_party_hears_what_became_of_its_peers_meanwhile():
    """While cy was down, ana was lost and bo, lost before, came back: cy is told both."""
    cy = Script("cy", {Started: lambda event: [Wake(9.0)], Woken: DONE})
    quiet = {Started: [Wake(20.0)], Woken: DONE}
    faults = [CrashAndRestore("bo", 1.0, 3.0), CrashAndRestore("cy", 2.0, 4.0), Gone("ana", 3.0)]
    Simulator(faults=faults, detect_s=0.5).run([Script("ana", dict(quiet)), Script("bo", dict(quiet)), cy])
    assert cy.heard[1:] == [PeerLost("bo"), PeerLost("ana"), PeerBack("bo"), Woken()]


# -- checkers must be able to fail -----------------------------------------------------------------------------------

PROBLEM = draw_problem(7, parties=3, rows=120, sparse=False)


def broken_run(method, spoil, *, checkers=None, **options):
    """A run in which the last party's `handle` is wrapped by `spoil(party, event, effects) -> effects`."""
    chosen = LinearOptions(method=method_named(method).direction, passes=4.0, batch=16, **options)
    parties = build_parties(method, PROBLEM, chosen, 1)
    victim = parties[-1]
    handle = victim.handle
    victim.handle = lambda event: spoil(victim, event, handle(event))
    watching = linear_checkers(method, PROBLEM, chosen) if checkers is None else checkers
    return Simulator(seed=1, checkers=watching, until_s=30.0).run(parties)


def replaced(effects, kind, change):
    return [
        Send(effect.to, change(effect.body), effect.samples, effect.nonzeros)
        if isinstance(effect, Send) and isinstance(effect.body, kind)
        else effect
        for effect in effects
    ]


def test_the_same_run_unspoilt_passes_every_checker():
    for method in ("afsaga-vp", "vfb2-saga"):
        assert not broken_run(method, lambda party, event, effects: effects).stalled


def test_an_unmasked_share_is_seen():
    def spoil(party, event, effects):
        def bare(body):
            words = party.block.answer(0, len(body.words), None, None, 0, 2.0**40, 1e6)
            return msgspec.structs.replace(body, words=words)

        return replaced(effects, ShareGiven, bare) if party.block.version else effects

    with pytest.raises(Violation, match="not masked"):
        broken_run("afsaga-vp", spoil)


@pytest.mark.parametrize("secret", ["features", "weights"])
def test_raw_features_and_weights_are_seen(secret):
    def spoil(party, event, effects):
        raw = PROBLEM.X[:9, 0].copy() if secret == "features" else party.block.weights()[0]
        told = TablePart(0, 0, 0, np.concatenate((np.zeros(3), raw)))
        return [*effects, Send("party0", told)] if party.block.version == 3 else effects

    with pytest.raises(Violation, match=secret):
        broken_run("afsaga-vp", spoil)


def test_raw_labels_are_seen_where_they_are_secret():
    watch = NothingRawLeaves({}, labels_secret=True)
    told = [Send("bo", Note(1, np.array([1.0, -1.0, -1.0, 1.0])))]
    with pytest.raises(Violation, match="labels"):
        watch.handled(0.0, Script("ana"), Started(), told)
    NothingRawLeaves({}).handled(0.0, Script("ana"), Started(), told)
    real = NothingRawLeaves({"the labels": np.array([1.5, 2.5, 3.5])})
    with pytest.raises(Violation, match="the labels"):
        real.handled(0.0, Script("ana"), Started(), [Send("bo", Note(1, np.array([3.5, 1.5, 2.5])))])


def test_other_bytes_for_one_request_are_seen():
    def spoil(party, event, effects):
        return [
            *effects,
            *replaced(
                [e for e in effects if isinstance(e, Send) and isinstance(e.body, ShareGiven)],
                ShareGiven,
                lambda body: msgspec.structs.replace(body, words=body.words + np.uint64(1)),
            ),
        ]

    with pytest.raises(Violation, match="other bytes"):
        broken_run("afsaga-vp", spoil)


def test_mask_words_used_twice_are_seen():
    watch, words = MasksUsedOnce(), np.arange(10, dtype=np.uint64)

    def gives(to, first, *, epoch=0, survey=1):
        body = ShareGiven(epoch, SURVEY, survey, first, words, 0, 0.0)
        watch.handled(0.0, Script("ana"), Started(), [Send(to, body)])

    for first in (0, 0, 20, 10):  # the same bytes again are no harm
        gives("bo", first)
    gives("cy", 5)
    gives("bo", 5, epoch=1)
    gives("bo", 5, survey=2)
    for first in (5, 15, 29):
        with pytest.raises(Violation, match="twice"):
            gives("bo", first)


@pytest.mark.parametrize("method", ["afsaga-vp", "vfb2-saga", "fsaga-vp"])
def test_an_update_applied_twice_is_seen(method):
    def spoil(party, event, effects):
        if isinstance(event, Computed) and party.block.version:
            party.block.step(0, 16, np.zeros(16), 0.1)
        return effects

    with pytest.raises(Violation, match="distinct updates"):
        broken_run(method, spoil)


def _numbers(event):
    return [event.body.number] if isinstance(event, Received) else []


def test_a_party_that_forgets_its_steps_is_seen():
    watch = AppliedOnce(lambda party: party.version, lambda party, event, effects: _numbers(event))
    ana = Script("ana")
    for number, version in [(1, 1), (2, 2)]:
        ana.version = version
        watch.handled(0.0, ana, Received("bo", Note(number)), [])
    ana.version = 1
    with pytest.raises(Violation, match="went back"):
        watch.handled(0.0, ana, Started(), [])


def test_a_product_older_than_the_bound_is_seen():
    def spoil(party, event, effects):
        if isinstance(event, Computed):
            party.party.lags.add(9)
        return effects

    with pytest.raises(Violation, match="9 versions old; the bound is 8"):
        broken_run("afsaga-vp", spoil, lag_max=8)


def test_the_declared_bound_is_kept():
    worst = LagWithin(10**9, lambda party: party.party.lags.most)
    broken_run("afsaga-vp", lambda party, event, effects: effects, checkers=[worst], in_flight=4)
    outcome = broken_run("afsaga-vp", lambda party, event, effects: effects, in_flight=4, lag_max=2)
    assert not outcome.stalled


def test_a_buffer_without_bound_is_seen():
    def spoil(party, event, effects):
        if party.block.version == 3:
            party.party.waiting += [("party0", None)] * 5000
        return effects

    with pytest.raises(Violation, match="questions that wait"):
        broken_run("afsaga-vp", spoil)
    spent = WithinBounds(lambda party: {"epsilon": (1.2, 1.0)})
    with pytest.raises(Violation, match="of epsilon; the bound is 1"):
        spent.handled(0.0, Script("ana"), Started(), [])


def test_a_message_outside_the_list_is_seen():
    with pytest.raises(TypeError, match="not one of the listed"):
        CodecFaithful([TablePart]).handled(0.0, Script("ana"), Started(), [Send("bo", Note(1))])


def test_a_message_that_does_not_come_back_is_seen():
    class Told(Message, frozen=True):
        """A number that is announced as text.

        Reveals: nothing.
        """

        text: str

    with pytest.raises(Exception, match="Expected `str`"):
        CodecFaithful([Told]).handled(0.0, Script("ana"), Started(), [Send("bo", Told(5))])


def test_a_run_that_does_not_end_or_does_not_say_how_is_seen():
    with pytest.raises(Violation, match="did not end"):
        Simulator(checkers=[EndsOrSaysWhy()]).run([Script("ana")])
    with pytest.raises(Violation, match="without a verdict"):
        Simulator(checkers=[EndsOrSaysWhy()]).run([Script("ana", {Started: [Finish("")]})])


def test_a_party_that_stops_answering_is_seen():
    def spoil(party, event, effects):
        return [e for e in effects if not (isinstance(e, Send) and isinstance(e.body, ShareGiven))]

    with pytest.raises(Violation, match="did not end"):
        broken_run("afsaga-vp", spoil)


def test_a_poisson_factor_without_variation_is_one():
    assert Jitter("poisson", cv=0.0).sampler(np.random.default_rng(0)) is None
