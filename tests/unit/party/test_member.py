"""What every linear party does with events that come early, late or at a bad moment."""

import re

import numpy as np
import pytest

from offbeat.algorithms.afsgd_vp import Product
from offbeat.errors import BadJob, OutOfRange, UnexpectedEvent
from offbeat.learning import central
from offbeat.learning.losses import DEBIASED_LOGISTIC, SQUARED
from offbeat.party.conduct import Alarm, Begin, Begun, Halt
from offbeat.party.contract import Computed, Finish, Message, PeerLost, Received, Send, Started, Wake, Woken
from offbeat.party.masked_sum import ShareAsked, ShareGiven, SumOptions
from offbeat.party.member import SILENCE_MAX, LinearOptions
from offbeat.party.survey import Certified, Go, Mark, Table
from offbeat.runtime.simulator import CrashAndRestore, Simulator
from offbeat.testing.algorithm_checks import LastParties
from offbeat.testing.small_problem import SmallProblem, build_parties, draw_problem, method_named, rebuilder, weights

PROBLEM = draw_problem(5, parties=3, rows=90)


def parties(method, **options):
    chosen = LinearOptions(method=method_named(method).direction, batch=16, **options)
    return {party.name: party for party in build_parties(method, PROBLEM, chosen, 1)}


def received(party, sender, *bodies):
    return [effect for body in bodies for effect in party.handle(Received(sender, body))]


def computed(party, effects):
    return [e for effect in effects if hasattr(effect, "ticket") for e in party.handle(Computed(effect.ticket))]


def asked(effects):
    return [e.body for e in effects if isinstance(getattr(e, "body", None), ShareAsked)]


@pytest.mark.parametrize("method", ["afsvrg-vp", "vfb2-svrg"])
def test_a_survey_that_overtakes_begin_waits_for_it(method):
    name = "party1" if method == "afsvrg-vp" else "party0"
    made = parties(method) if method == "afsvrg-vp" else None
    party = made[name] if made else build_parties(method, PROBLEM, LinearOptions(method="svrg", batch=16), 1)[0]
    party.member.conduct.chair = party.member.survey.chair = "party2"
    effects = received(party, "party2", Mark(0, -1), Go(0))
    survey = party.member.survey
    missing = sorted(survey.chunks - survey.arrived)
    tables = [Table(0, start, np.full(survey._stop_of(start) - start, -0.5), 1.0) for start in missing]
    effects += received(party, "party2", *tables)
    effects += computed(party, effects)
    assert survey.complete and not asked(effects)
    begun = received(party, "party2", Begin(0.5, 16))
    assert Send("party2", Begun()) in begun
    assert len(asked(begun)) == 1


def test_a_product_that_overtakes_begin_is_left_and_fetched_later():
    party = parties("fsaga-vp")["party1"]
    assert received(party, "party0", Product(0, np.zeros(16), 16)) == []


def test_a_share_of_a_round_that_was_not_reached_is_not_sent():
    made = parties("fsaga-vp")
    party = made["party1"]
    keys = [sums.keys.public for sums in (made["party0"].member.sums, made["party2"].member.sums)]
    for sender, key in zip(("party0", "party2"), keys, strict=True):
        party.member.sums._agree(sender, key)
    received(party, "party0", Begin(0.5, 16))
    assert not received(party, "party0", ShareAsked(16, 16, 32, -1, 1, 0, 0))
    (given,) = received(party, "party0", ShareAsked(0, 0, 16, -1, 0, 0, 0))
    assert isinstance(given.body, ShareGiven)


def test_strangers_and_messages_of_another_protocol_are_refused():
    class Other(Message, frozen=True):
        """Not ours.

        Reveals: nothing.
        """

    party = parties("afsaga-vp")["party1"]
    with pytest.raises(UnexpectedEvent, match="no place in this protocol"):
        received(party, "party0", Other())
    with pytest.raises(UnexpectedEvent):
        received(party, "eve", Go(0))


def halting_chair():
    """A chair that has stepped, certified snapshot 0 and then moved on."""
    chair = parties("afsaga-vp")["party0"]
    member = chair.member
    member.survey.begin()
    member.shares.points[0] = np.full(member.block.width, 0.25)
    member.survey.on_certified("party0", Certified(0, 0.5, 1.0, 1.0, 0))
    member.block.set_weights(np.ones(member.block.width))
    return chair


def test_an_alarm_ends_the_run_with_the_best_model_at_the_chair_too():
    chair = halting_chair()
    (halt,) = received(chair, "party1", Alarm("range", "too large"))
    assert halt.body == Halt("range", "too large", 0)
    assert np.array_equal(weights(chair), np.full(chair.member.block.width, 0.25))


def test_an_alarm_that_reaches_another_than_the_chair_ends_nothing():
    party = parties("afsaga-vp")["party1"]
    assert received(party, "party2", Alarm("range", "too large")) == []
    assert party.member.conduct.halt is None


def test_work_that_comes_back_after_the_halt_moves_nothing():
    chair = halting_chair()
    chair.member.conduct.eta, chair.member.conduct.batch = 0.5, 16
    chair.sampler = chair._new_sampler()
    payload = [0, 16, np.zeros(16, np.uint64), 0, {}]
    ticket = chair.member.pending.add("step", payload, 16, 0).ticket
    chair.member._end("target", "good enough")
    kept = weights(chair)
    assert chair.handle(Computed(ticket)) == []
    assert np.array_equal(weights(chair), kept)


def test_a_loss_with_the_policy_to_stop_keeps_the_best_model_everywhere():
    chair = halting_chair()
    chair.member.conduct.on_loss = "stop"
    effects = chair.handle(PeerLost("party2"))
    assert [e.body.best for e in effects if isinstance(getattr(e, "body", None), Halt)] == [0]
    assert np.array_equal(weights(chair), np.full(chair.member.block.width, 0.25))


@pytest.mark.parametrize(("on_loss", "ends"), [("continue", True), ("stop", True), ("wait", False)])
def test_silence_ends_a_party_that_does_not_wait(on_loss, ends):
    party = parties("afsaga-vp", on_loss=on_loss)["party1"]
    party.handle(Started())
    for _ in range(SILENCE_MAX):
        assert not any(isinstance(effect, Finish) for effect in party.handle(Woken()))
    last = party.handle(Woken())
    assert any(isinstance(effect, Finish) for effect in last) is ends
    assert any(isinstance(effect, Wake) for effect in last) is not ends


@pytest.mark.parametrize("scheme", ["pairwise", "two-tree"])
@pytest.mark.parametrize("lost", ["party0", "party2"])
def test_a_party_that_goes_down_before_it_ever_started_begins_when_it_is_back(scheme, lost):
    options = LinearOptions(method="saga", batch=16, passes=2.0, sums=SumOptions(scheme=scheme), patience_s=0.05)
    last = LastParties()
    outcome = Simulator(
        faults=[CrashAndRestore(lost, 0.0, 0.2)],
        rebuild=rebuilder("afsaga-vp", PROBLEM, options, 1),
        checkers=[last],
        until_s=20.0,
    ).run(build_parties("afsaga-vp", PROBLEM, options, 1))
    assert {finish.verdict for finish in outcome.finished.values()} == {"passes"}


def test_a_run_may_start_from_weights():
    """Elsewhere than at zero SVRG's first table needs sums: the objective of the first survey is that of the start."""
    options = LinearOptions(method="svrg", batch=16, passes=3.0, zero_start=False)
    blocks, rng = PROBLEM.blocks(), np.random.default_rng(0)
    for block in blocks.values():
        block.set_weights(rng.standard_normal(block.width))
    start = PROBLEM.pooled({name: block.weights() for name, block in blocks.items()})
    kind = method_named("vfb2-svrg")
    made = kind.build(blocks, PROBLEM.problem(), options, labels_at=PROBLEM.names[:1], secrets_seed=1)
    Simulator().run(made)
    first = made[0].member.survey.history[0].objective
    expected = central.objective(PROBLEM.X, PROBLEM.y, start, PROBLEM.loss, PROBLEM.penalty, PROBLEM.strength)
    assert first == pytest.approx(expected, rel=1e-9)


def test_labels_at_some_leave_the_other_blocks_at_zero():
    names = PROBLEM.names
    for method in ("afsaga-vp", "fsaga-vp"):
        kind = method_named(method)
        options = LinearOptions(method="saga", batch=16, passes=3.0)
        made = kind.build(
            PROBLEM.blocks(),
            PROBLEM.problem(),
            options,
            synchronous=kind.synchronous,
            labels_at=names[:2],
            secrets_seed=1,
        )
        Simulator().run(made)
        assert [bool(weights(party).any()) for party in made] == [True, True, False]


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "adam"},
        {"passes": 0},
        {"step": -1.0},
        {"in_flight": 0},
        {"batch": 0},
        {"patience_s": 0},
        {"method": "sgd", "by_curvature": True},
    ],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(BadJob):
        LinearOptions(**wrong)


def test_a_label_that_no_product_can_reach_is_refused_before_the_first_step():
    drawn = draw_problem(5, parties=3, rows=90, loss=SQUARED)
    far = SmallProblem(drawn.X, 1e8 * drawn.y, SQUARED, 1e-4, drawn.columns, drawn.penalty)
    made = build_parties("afsaga-vp", far, LinearOptions(method="saga", batch=16), 1)
    outcome = Simulator().run(made)
    ((verdict, reason),) = {(finish.verdict, finish.reason) for finish in outcome.finished.values()}
    assert verdict == "range"
    (bits,) = re.findall(r"Divide the label by 1e\+08, say, or set fraction_bits to (\d+) or less", reason)
    fewer = SumOptions(fraction_bits=int(bits))
    made = build_parties("afsaga-vp", far, LinearOptions(method="saga", batch=16, passes=3.0, sums=fewer), 1)
    assert {finish.verdict for finish in Simulator().run(made).finished.values()} == {"passes"}
    beyond = SmallProblem(drawn.X, 1e15 * drawn.y, SQUARED, 1e-4, drawn.columns, drawn.penalty)
    made = build_parties("afsaga-vp", beyond, LinearOptions(method="saga", batch=16), 1)
    assert all("say." in finish.reason for finish in Simulator().run(made).finished.values())


def test_shares_that_grew_name_the_step_and_the_range():
    party = parties("afsaga-vp")["party1"]
    party.member.block.version = 3
    (alarm,) = [e.body for e in party.member._out_of_range(OutOfRange("")) if isinstance(getattr(e, "body", 0), Alarm)]
    assert alarm.verdict == "diverged"
    assert "smaller step" in alarm.reason and "fraction_bits" in alarm.reason


def test_divergence_under_a_small_epsilon_names_it():
    drawn = draw_problem(5, parties=3, rows=90)
    noisy = SmallProblem(drawn.X, 50.0 * drawn.y, DEBIASED_LOGISTIC, 1e-4, drawn.columns, drawn.penalty)
    chair = build_parties("afsaga-vp", noisy, LinearOptions(method="saga", batch=16), 1)[0].member
    chair.survey.begin()
    chair.judge(Certified(0, 1e9, 1.0, 1.0, 0))
    assert chair.conduct.halt.verdict == "diverged"
    assert "label_dp_epsilon" in chair.conduct.halt.reason and "larger epsilon" in chair.conduct.halt.reason


def test_the_last_pass_reports_the_certificate_of_the_model_that_is_kept():
    member = halting_chair().member
    member.closing = member.final = True
    member.role.passes = lambda: 60.0
    member.survey.on_certified("party0", Certified(1, 0.6, 5.0, 7.0, 0))
    member.judge(Certified(1, 0.6, 5.0, 7.0, 0))
    assert member.conduct.halt.reason == "60 passes were made; the certificate is 1"
