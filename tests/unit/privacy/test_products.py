"""The plan of private products: exact small numbers, what one row can change, and the noise of a sum."""

from fractions import Fraction
from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms import private_rounds
from offbeat.algorithms.vfb2 import Backward
from offbeat.errors import BadJob, UnexpectedEvent
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LS_SVM
from offbeat.learning.penalties import L2
from offbeat.party.contract import Compute, Computed, Received, Started
from offbeat.party.lifecycle import Begin
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import PROBES, PRODUCTS, SURVEY, KeyOffered, ShareAsked, SumOptions
from offbeat.party.problem import Problem
from offbeat.party.survey_messages import Mark
from offbeat.privacy import products
from offbeat.privacy.accountant import gdp_epsilon, gdp_mu
from offbeat.privacy.noise import SeededNoise
from offbeat.privacy.products import ROUNDING, NoisyShares, ProductPlan

NAMES = ("eve", "ana", "bo")
TERMS = {"epsilon": 1.0, "delta": 1e-6, "parties": 3, "rows": 100, "steps": 3, "step": 0.25, "clip": 0.25}


def plan(**terms):
    return ProductPlan(**{**TERMS, **terms})


def test_one_row_changes_as_many_words_as_it_says():
    found = plan()
    grid = 2**found.fraction_bits
    assert found.releases == 3 and found.clip_words == grid // 4 and found.shift == 0.02
    by_hand = Fraction(0)
    for t in (1, 2, 3):  # its own share from end to end of the clip, and 100 shares by way of the weights
        by_hand += Fraction(2 * grid // 4) ** 2 + 100 * (t * Fraction(0.02) * grid + ROUNDING) ** 2
    assert found.squared == ceil(by_hand)
    assert found.squared / grid**2 == pytest.approx(3 * 0.5**2 + 100 * 0.02**2 * 14, rel=1e-4)


def test_the_noise_of_the_honest_is_just_enough():
    found = plan(colluders=0)
    mu = sqrt(found.squared / (found.honest * found.variance - 9))
    assert found.honest == 2 and mu <= gdp_mu(1.0, 1e-6) and mu == pytest.approx(gdp_mu(1.0, 1e-6), rel=1e-6)
    assert found.spent == pytest.approx(gdp_epsilon(mu, 1e-6)) and found.spent <= 1.0
    stated = found.statement(seeded=True)
    assert stated["epsilon"] <= 1.0 and stated["releases"] == 3 and stated["seeded"]
    helped = plan(colluders=1)
    assert helped.honest == 1 and helped.variance == pytest.approx(
        2 * found.variance * 4 ** (helped.fraction_bits - found.fraction_bits), rel=1e-3
    )


def test_a_plan_without_releases_costs_nothing():
    found = plan(steps=1, constant=False)
    assert found.releases == 0 and found.spent == 0.0 and found.statement(seeded=False)["epsilon"] == 0.0


def test_plans_that_protect_nobody_or_teach_nothing_are_refused():
    with pytest.raises(BadJob, match="between 0 and 1"):
        plan(colluders=2)
    with pytest.raises(BadJob, match="nothing could be learned"):
        plan(epsilon=1e-3, rows=3, steps=1000, clip=1e3, step=10.0)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 50.0), st.integers(2, 9), st.integers(2, 10**6), st.integers(1, 40), st.floats(0.01, 2.0))
def test_every_plan_keeps_its_promise(epsilon, parties, rows, steps, clip):
    found = plan(epsilon=epsilon, parties=parties, rows=rows, steps=steps, clip=clip)
    reference = Fraction(0)
    for t in range(1, found.releases + 1):
        moved = t * Fraction(found.shift) * 2**found.fraction_bits + ROUNDING
        reference += 4 * found.clip_words**2 + rows * moved**2
    assert reference <= found.squared < reference + 1
    assert found.spent <= epsilon and 2**8 <= found.variance < 2**58


def test_noise_of_a_sum_has_its_variance_and_lies_on_the_grid():
    found, count = plan(), 40_000
    shares = [NoisyShares(found, SeededNoise(7, name)) for name in NAMES]
    total = sum((one.words(1, np.full(count, 0.125)) for one in shares), np.zeros(count, np.uint64)).view(np.int64)
    noise = total - 3 * 2 ** (found.fraction_bits - 3)
    wanted = 3 * found.variance
    assert abs(noise.astype(float).var() / wanted - 1.0) < 6 * sqrt(2 / count)
    assert abs(noise.astype(float).mean()) < 6 * sqrt(wanted / count)
    assert np.bincount(noise & 7, minlength=8).min() > count / 8 * 0.9, "all last digits come alike"


def test_shares_are_cut_off_and_counted(monkeypatch):
    monkeypatch.setattr(products, "discrete_gaussian", lambda stream, count, variance: np.zeros(count, np.int64))
    shares = NoisyShares(plan(), SeededNoise(0, "ana"))
    words = shares.words(1, np.array([0.0, 0.25, 0.26, -9.0])).view(np.int64)
    most = shares.plan.clip_words
    assert words.tolist() == [0, most, most, -most] and (shares.cut, shares.given) == (2, 4)


# -- a party, whatever it is told ------------------------------------------------------------------------------------


def party_of(rows, found, name="ana", strength=0.01):
    """One party that has begun, with these rows."""
    blocks = {other: make_block(rows, penalty=L2, strength=strength, method="sgd") for other in NAMES}
    problem = Problem(len(rows), LS_SVM, L2, strength, np.ones(len(rows)), intercept=True)
    options = LinearOptions(
        method="sgd", asynchronous=False, products=found, sums=SumOptions(fraction_bits=found.fraction_bits)
    )
    made = private_rounds.build(blocks, problem, options, labels_at=("eve",), secrets_seed=3)
    party = next(one for one in made if one.name == name)
    party.handle(Started())
    for other in made:
        if other is not party:
            party.handle(Received(other.name, KeyOffered(other.party.sums.keys.public)))
    party.handle(Received("eve", Begin(0, found.step, len(rows), 0.0, 0.0, 9.0)))
    return party


def step(party, number, theta):
    for effect in party.handle(Received("eve", Backward(0, number, theta, 0, -1, 0))):
        if isinstance(effect, Compute):
            party.handle(Computed(effect.ticket, None))


def in_a_ball(rng, rows, width):
    found = rng.normal(size=(rows, width))
    return found / np.maximum(np.linalg.norm(found, axis=1), 1.0)[:, None]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 6))
def test_one_row_never_changes_more_than_the_plan_says(seed, rows, steps):
    """Whatever derivatives come, the words of two tables that differ by one row are as near as `squared` says."""
    rng = np.random.default_rng(seed)
    found = plan(rows=rows, steps=steps, row_norm=1.0, clip=float(rng.uniform(0.05, 1.0)))
    table = in_a_ball(rng, rows, 3)
    other = table.copy()
    other[0] = -table[0] if seed % 2 else in_a_ball(rng, 1, 3)[0]
    pair = [party_of(table, found), party_of(other, found)]
    told = [rng.choice([-9.0, 4.0, 9.0], size=rows) * rng.uniform(size=rows) ** (seed % 3) for _ in range(steps)]
    assert changed_by(pair, found, told) <= found.squared


def changed_by(pair, found, told):
    """The squared length by which the words of two tables differ over a run, before noise."""
    grid, most, changed = 2.0**found.fraction_bits, found.clip_words, 0.0
    for number, theta in enumerate(told):
        for party in pair:
            step(party, number, theta)
        words = [np.clip(np.rint(party._share() * grid), -most, most) for party in pair]
        changed += float(np.sum((words[0] - words[1]) ** 2))
    return changed


@pytest.mark.parametrize("rows, steps", [(30, 1), (30, 4), (200, 6)])
def test_the_way_through_the_weights_is_as_long_as_the_plan_says(rows, steps):
    """All rows point the same way, and one is turned round. It alone is told of: its own share stays, and those of all
    others move as far as they can, which is nearly all that the plan allows for."""
    found = plan(rows=rows, steps=steps, row_norm=1.0, clip=steps / rows)
    table = np.tile([1.0, 0.0, 0.0], (rows, 1))
    turned = table.copy()
    turned[0] = -table[0]
    told = [np.where(np.arange(rows) == 0, -1e6, 0.0)] * steps
    pair = [party_of(each, found, strength=0.0) for each in (table, turned)]
    assert 0.5 * found.squared < changed_by(pair, found, told) <= found.squared


@pytest.mark.parametrize("clip", [0.05, 0.25])
def test_a_rows_own_share_goes_from_end_to_end_of_the_clip(clip):
    """The derivatives of all other rows make the weights long, and the row itself is turned round."""
    rows, steps = 2000, 4
    found = plan(rows=rows, steps=steps, row_norm=1.0, clip=clip)
    table = np.tile([1.0, 0.0, 0.0], (rows, 1))
    turned = table.copy()
    turned[0] = -table[0]
    told = [np.where(np.arange(rows) == 0, 0.0, -1e6)] * steps
    pair = [party_of(each, found, strength=0.0) for each in (table, turned)]
    own = steps * (2 * found.clip_words) ** 2
    assert own <= changed_by(pair, found, told) <= found.squared


def test_a_party_answers_what_the_plan_has_and_nothing_else():
    rng = np.random.default_rng(1)
    party = party_of(in_a_ball(rng, 10, 3), plan(rows=10, row_norm=1.0))
    asked = [ShareAsked(0, PRODUCTS, 0, 0, 0, 0), ShareAsked(0, PRODUCTS, 0, 1, 0, 0)]
    for early in asked:  # all products are zero, or the step is not taken
        with pytest.raises(UnexpectedEvent, match="eve"):
            party.handle(Received("eve", early))
    for number in range(3):
        step(party, number, np.ones(10))
        (given,) = party.handle(Received("eve", ShareAsked(0, PRODUCTS, 0, number + 1, 0, 0)))
        assert given.body.words.shape == (10,)
        for again in (number + 1, number, number + 2):
            with pytest.raises(UnexpectedEvent, match="which the plan does not have"):
                party.handle(Received("eve", ShareAsked(0, PRODUCTS, 0, again, 0, 0)))
    for kind in (SURVEY, PROBES):
        with pytest.raises(UnexpectedEvent):
            party.handle(Received("eve", ShareAsked(0, kind, 0, 0, 10, 0)))
    with pytest.raises(UnexpectedEvent, match="no place"):
        party.handle(Received("eve", Mark(0, 1, 0, 0)))
    with pytest.raises(UnexpectedEvent):
        party.handle(Received("eve", Backward(0, 3, np.ones(10), 0, -1, 0)))


def test_derivatives_that_are_no_numbers_and_rows_that_are_too_long_are_refused():
    found = plan(rows=10, row_norm=1.0)
    party = party_of(in_a_ball(np.random.default_rng(1), 10, 3), found)
    with pytest.raises(UnexpectedEvent, match="no finite numbers"):
        step(party, 0, np.full(10, np.nan))
    with pytest.raises(AssertionError, match="cut to their norm"):
        party_of(np.full((10, 3), 2.0), found)


def test_a_party_goes_on_where_it_was():
    found, table = plan(rows=10, row_norm=1.0), in_a_ball(np.random.default_rng(1), 10, 3)
    party, other = party_of(table, found), party_of(table, found)
    step(party, 0, np.linspace(-9.0, 9.0, 10))
    other.restore(party.snapshot())
    asked = Received("eve", ShareAsked(0, PRODUCTS, 0, 1, 0, 0))
    (one,), (two,) = party.handle(asked), other.handle(asked)
    assert np.array_equal(one.body.words, two.body.words)
    other.restore(party.snapshot())
    with pytest.raises(UnexpectedEvent):
        other.handle(asked)
