"""Leaps: the best point of the span, found by the chair alone, and the same for all parties."""

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC, SQUARED, SQUARED_HINGE
from offbeat.learning.penalties import L2, NONCONVEX, NONE
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.leap import MOVES_LEAST, MOVES_MOST, PACE_LEAST, LastArrays, Moves, Pilot, moves_kept
from offbeat.party.problem import Problem

ROWS, WIDTHS = 70, (2, 3, 1)


class Flight:
    """Three blocks and a chair, without messages: sums are sums."""

    def __init__(
        self, loss=LOGISTIC, strength=0.05, *, most=MOVES_MOST, intercept=False, penalty=L2, leaps=True, seed=0
    ):
        rng = self.rng = np.random.default_rng(seed)
        self.X = [rng.standard_normal((ROWS, width)) for width in WIDTHS]
        score = np.hstack(self.X) @ rng.standard_normal(sum(WIDTHS)) + 0.7
        y = np.sign(score + rng.standard_normal(ROWS)) if loss is not SQUARED else score
        self.problem = Problem(ROWS, loss, penalty, strength, y, intercept=intercept)
        self.moves = [Moves(most) for _ in WIDTHS]
        self.pilot = Pilot(self.problem, most, leaps=leaps)
        self.blocks = [np.zeros((1, width + 1)) for width in WIDTHS]

    def step(self, size=0.3):
        """Everybody moves; only the chair's constant does, and only where the model has one."""
        for at, block in enumerate(self.blocks):
            block[:, :-1] += size * self.rng.standard_normal(block[:, :-1].shape)
            block[:, -1] += size * self.rng.standard_normal() * (at == 0) * self.problem.intercept

    def products(self, blocks):
        return sum(X @ block[0, :-1] + block[0, -1] for X, block in zip(self.X, blocks, strict=True))

    def objective(self, blocks):
        weights = np.concatenate([block[0, :-1] for block in blocks])
        loss = float(np.mean(self.problem.loss.value(self.products(blocks), self.problem.labels)))
        return loss + self.problem.strength * self.problem.penalty.value(weights)

    def leap(self):
        points = [block.copy() for block in self.blocks]
        inner = sum(moves.inner_products(point) for moves, point in zip(self.moves, points, strict=True))
        spans = [moves.directions(point) for moves, point in zip(self.moves, points, strict=True)]
        best = self.pilot.find(self.products(points), inner)
        for at, (moves, point) in enumerate(zip(self.moves, points, strict=True)):
            constant = np.full(1, best.constants[0] if at == 0 else 0.0)
            self.blocks[at] = point + moves.land(point, best.coefficients, constant)
        return points, spans, best

    def minimum(self, points, spans):
        """What scipy finds over the same span, the slow and obvious way."""
        count = len(spans[0])

        def value(a):
            moved = [
                p + sum((c * d for c, d in zip(a, span, strict=False)), np.zeros_like(p))
                for p, span in zip(points, spans, strict=True)
            ]
            moved[0] = moved[0].copy()
            moved[0][:, -1] += a[-1] * self.problem.intercept
            return self.objective(moved)

        found = scipy.optimize.minimize(value, np.zeros(count + 1), method="BFGS", options={"gtol": 1e-9})
        return found.fun


@pytest.mark.parametrize("intercept", [False, True], ids=["no constant", "constant"])
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED, SQUARED_HINGE], ids=lambda loss: loss.name)
def test_a_leap_ends_at_the_best_point_of_the_span(loss, intercept):
    flight = Flight(loss, intercept=intercept)
    for count in range(5):
        flight.step()
        points, spans, best = flight.leap()
        assert len(best.coefficients) == len(spans[0]) == count
        here = flight.objective(flight.blocks)
        assert best.objective == pytest.approx(here, rel=1e-11), "what the chair says is where the parties are"
        assert here == pytest.approx(flight.minimum(points, spans), rel=1e-5, abs=1e-9)
        assert here <= flight.objective(points) * (1 + 1e-12)


def test_products_and_derivatives_are_those_of_the_landing():
    flight = Flight(intercept=True)
    for _ in range(4):
        flight.step()
        _, _, best = flight.leap()
        z = flight.products(flight.blocks)
        assert np.allclose(best.products, z, atol=1e-11)
        assert np.allclose(best.derivatives, LOGISTIC.derivative(z, flight.problem.labels), atol=1e-11)
        assert abs(best.derivatives.mean()) < 1e-12, "the constant is at its best"


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.just(0.0) | st.floats(1e-6, 3.0), min_size=1, max_size=12),
    st.sampled_from([LOGISTIC, SQUARED, SQUARED_HINGE]),
    st.sampled_from([(L2, 0.05), (L2, 1e-6), (NONE, 0.0)]),
    st.booleans(),
    st.integers(2, 6),
)
def test_a_leap_never_raises_the_objective(sizes, loss, penalty, intercept, most):
    """Neither above the point that the steps came to nor, while its moves are kept, above the last landing.
    (A move that is mostly noise has a price, so that a landing which used it may be out of reach.)"""
    flight = Flight(loss, penalty[1], penalty=penalty[0], intercept=intercept, most=most)
    landed = np.inf
    for number, size in enumerate(sizes):
        flight.step(size)
        before = flight.objective(flight.blocks)
        flight.leap()
        after = flight.objective(flight.blocks)
        assert after <= before * (1 + 1e-9) + 1e-12
        if number < most:
            assert after <= landed * (1 + 1e-9) + 1e-12
        landed = after


def test_steps_that_led_far_uphill_are_taken_back():
    flight = Flight()
    flight.step(0.1)
    flight.leap()
    good = flight.objective(flight.blocks)
    flight.step(1e4)
    assert flight.objective(flight.blocks) > 100 * good
    flight.leap()
    assert flight.objective(flight.blocks) <= good * (1 + 1e-9)


def test_the_pace_falls_with_steps_that_lead_uphill_and_rises_slowly_again():
    flight = Flight()
    flight.pilot.pace_most = 4.0
    flight.step(0.1)
    flight.leap()
    assert flight.pilot.pace == 1.0, "nothing to judge by"
    flight.step(1e3)
    flight.leap()
    assert flight.pilot.pace == 0.5
    flight.leap()
    assert 0.5 < flight.pilot.pace <= 0.75, "below what failed"
    for _ in range(40):
        flight.step(1e3)
        flight.leap()
    assert flight.pilot.pace == PACE_LEAST


def test_where_nothing_leaps_the_blocks_stay_and_the_chair_knows_the_objective():
    for flight in (Flight(leaps=False), Flight(penalty=NONCONVEX, strength=0.1)):
        for _ in range(3):
            flight.step()
            points, _, best = flight.leap()
            assert not best.coefficients.any() and best.constants[0] == 0.0
            assert all(np.array_equal(p, block) for p, block in zip(points, flight.blocks, strict=True))
            assert best.loss == pytest.approx(
                float(np.mean(LOGISTIC.value(flight.products(points), flight.problem.labels))), rel=1e-12
            )


def test_a_leap_over_all_of_the_space_is_the_optimum():
    """As many independent moves as there are weights: nothing is left to gain."""
    flight = Flight()
    for _ in range(1 + 2 * sum(WIDTHS)):
        flight.step()
        flight.leap()
    _, best = central.optimum(np.hstack(flight.X), flight.problem.labels, LOGISTIC, 0.05)
    assert flight.objective(flight.blocks) == pytest.approx(best, rel=1e-7)


def test_inner_products_leave_the_constants_out():
    moves = Moves(5)
    first, second = np.array([[1.0, 2.0, 50.0]]), np.array([[2.0, 0.0, 70.0]])
    assert moves.inner_products(first).tolist() == [5.0]
    moves.land(first, np.zeros(0), np.zeros(1))
    assert moves.inner_products(second).tolist() == [4.0, 2.0, 5.0]  # <w,w>; <w,d>; <d,d> for d = (1,-2)


def test_only_the_last_moves_are_kept():
    moves = Moves(2)
    for at in range(5):
        point = np.full((1, 2), float(at * at))
        moves.land(point, np.zeros(len(moves.directions(point))), np.zeros(1))
    assert [move[0, 0] for move in moves.moves] == [5.0, 7.0]


@pytest.mark.parametrize("most", [1, 3, 14])
def test_the_last_arrays_lie_side_by_side_in_their_order(most):
    kept = LastArrays(most)
    for at in range(50):
        kept.add(np.full(4, float(at)), np.ones(4))
        assert kept.rows[:, 0].tolist() == [float(k - 1) for k in range(max(0, at + 1 - most), at + 1)]
        assert kept.rows.flags.c_contiguous and len(kept.room) <= most + max(most // 4, 1)


def test_how_many_moves_are_kept_follows_from_the_rows():
    assert moves_kept(1000, 1) == MOVES_MOST
    assert moves_kept(10**6, 1) == 8
    assert moves_kept(10**8, 3) == MOVES_LEAST


def test_a_restored_pilot_finds_the_same():
    flight = Flight(intercept=True)
    for _ in range(3):
        flight.step()
        flight.leap()
    again = Flight(intercept=True)
    again.pilot.restore(decode_state(encode_state(flight.pilot.snapshot())))
    for old, new in zip(flight.moves, again.moves, strict=True):
        new.restore(decode_state(encode_state(old.snapshot())))
    flight.step()
    again.blocks = [block.copy() for block in flight.blocks]
    flight.leap()
    again.leap()
    assert all(np.array_equal(a, b) for a, b in zip(flight.blocks, again.blocks, strict=True))
    assert encode_state(again.pilot.snapshot()) == encode_state(flight.pilot.snapshot())
