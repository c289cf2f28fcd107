"""Weights in order: the nearest point beside scipy's, and the certificate beside a solver that knows the constraint."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC, SQUARED
from offbeat.learning.orders import from_rises, in_order, least_rises, put_in_order, slope_by_rises
from offbeat.learning.penalties import ORDERED

ORDERS = ((0, 4, 1), (5, 9, -1))
OWN = replace(ORDERED, orders=ORDERS)
number = st.floats(-100, 100, allow_subnormal=False)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(number, st.floats(0.01, 100)), min_size=1, max_size=12))
def test_the_nearest_rising_values_are_scipys(cells) -> None:
    values, factors = (np.array(column) for column in zip(*cells, strict=True))
    for sign in (1, -1):
        found = values.copy()
        put_in_order(found, [(0, len(values), sign)], factors)
        expected = isotonic_regression(values, weights=factors, increasing=sign > 0).x
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_what_is_outside_of_the_orders_stays() -> None:
    values = np.array([3.0, 1.0, 2.0, 2.0, 7.0, 1.0, 2.0, 0.0, 0.0, -1.0])
    np.testing.assert_array_equal(in_order(values, ORDERS), [2, 2, 2, 2, 7, 1.5, 1.5, 0, 0, -1])
    np.testing.assert_array_equal(in_order(in_order(values, ORDERS), ORDERS), in_order(values, ORDERS))


def test_rises_give_every_point_in_order_and_its_slope() -> None:
    rng = np.random.default_rng(0)
    rises, slope = np.maximum(rng.normal(size=10), least_rises(10, ORDERS)), rng.normal(size=10)
    weights = from_rises(rises, ORDERS)
    np.testing.assert_array_equal(in_order(weights, ORDERS), weights)
    assert slope @ weights == pytest.approx(slope_by_rises(slope, ORDERS) @ rises)


@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED])
def test_the_slack_bounds_the_distance_to_the_best_point_in_order(loss) -> None:
    rng = np.random.default_rng(1)
    X, strength = rng.normal(size=(200, 10)), 0.01
    y = np.where(X @ rng.normal(size=10) + rng.logistic(size=200) > 0, 1.0, -1.0)
    best = central.descend(X, y, np.zeros(10), loss, OWN, strength, orders=ORDERS)
    least = central.objective(X, y, best, loss, OWN, strength)

    def slack(w):
        return OWN.slack(w, X.T @ loss.derivative(X @ w, y) / 200, strength)

    assert slack(best) < 1e-8
    for _ in range(20):
        w = in_order(rng.normal(size=10), ORDERS)
        assert slack(w) >= central.objective(X, y, w, loss, OWN, strength) - least - 1e-12
    mean = X.T @ loss.derivative(X @ best, y) / 200
    assert np.abs(OWN.slope(best, mean, strength)).max() < 1e-5
    assert np.abs(mean + strength * best).max() > 1e-3  # without the orders it is not the best point
