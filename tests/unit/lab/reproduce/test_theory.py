"""Rates of the theorems: the line through points, and the whole at its quick size."""

import numpy as np
import pytest

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Vafl
from offbeat.lab.catalogue import LabOptions, entry_named
from offbeat.lab.reproduce.measure import fitted
from offbeat.lab.reproduce.theory import visits
from offbeat.lab.reproduce.theory_mapa import Pool, _constant_step, _falling_steps, _sensitivity, running_means
from offbeat.lab.reproduce.theory_vafl import _networks, squared_gradient
from offbeat.learning.horizontal import LinearModel, edge_data


def test_a_straight_line_is_one():
    slope, fit = fitted([(float(x), 3.0 - 0.5 * x) for x in range(10)])
    assert slope == pytest.approx(-0.5) and fit == pytest.approx(1.0)
    _, bent = fitted([(float(x), float((x - 5) ** 2)) for x in range(11)])
    assert bent < 0.1


def test_epochs_are_counted_from_the_order_of_updates():
    assert visits("abab") == (2, 2, 1)
    assert visits("aaabab") == (2, 4, 3)  # K(0) is aaab, of which three are a's; then ab
    assert visits("aab") == (1, 3, 2)
    assert visits("aaba") == (1, 3, 2)  # the last a begins an epoch that has no end


def test_the_gradient_of_networks_is_that_of_the_objective():
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    features = {"ana": rng.normal(size=(12, 3)), "bo": rng.normal(size=(12, 2))}
    targets = (rng.random((12, 1)) > 0.5).astype(float)
    embeddings, head = _networks(features, 0)
    server, clients = vafl.build(features, targets, embeddings, head, Vafl(batch=4), seed=0)
    squares = 0.0
    for mine in (server, *clients):
        for tensor in mine.weights.trained.values():
            flat = tensor.detach().view(-1)
            for i in range(flat.numel()):
                ends = []
                for move in (1e-2, -2e-2):
                    flat[i] += move
                    ends.append(vafl.objective(server, clients))
                flat[i] += 1e-2
                squares += ((ends[0] - ends[1]) / 2e-2) ** 2
    assert squared_gradient(server, clients) == pytest.approx(squares, rel=1e-3)


def test_a_mean_over_all_models_weighs_looks_by_what_lies_between_them():
    """The first look stood for as many models as each later one, and a bound that holds was said to fail."""
    values = {1: 9.0, 5: 5.0, 9: 1.0}
    between = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    found = running_means(list(values), list(values.values()))
    assert [t for t, _ in found] == [1.0, 5.0, 9.0]
    for t, mean in found:
        whole = between[: int(t)]
        rest = (whole[0] - whole[-1]) / 2  # a line's trapezoid against the sum of its places
        assert mean == pytest.approx((sum(whole) + rest) / t)


@pytest.fixture
def pool() -> Pool:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    model = LinearModel("logistic", 4, 2)
    best = np.zeros(model.dimension)
    rows = edge_data(x.astype(np.float32), (x[:, 0] > 0).astype(np.int64))
    empty = Pool(model, rows, best, 0.0)
    for _ in range(3000):
        best = best - empty.gradient(best)
    return Pool(model, rows, best, empty.objective(best))


def test_mapas_theorems_are_judged_by_their_bounds(pool, tmp_path):
    options = LabOptions(quick=True, out=tmp_path)
    assert np.linalg.norm(pool.gradient(pool.best)) < 1e-6
    judged = [row["verdict"] for piece in (_falling_steps, _constant_step) for row in piece(pool, options)]
    assert all(verdict.startswith("holds") for verdict in judged)
    assert [row["ours"] for row in _sensitivity(pool, options)] == [0.0, 0.0]
    far = Pool(pool.model, pool.rows, pool.best, pool.least - 10.0)  # a gap that cannot close is above the bound
    assert not _falling_steps(far, options)[0]["verdict"].startswith("holds")


@pytest.mark.slow
def test_the_rates_are_seen_and_the_largest_step_falls_with_the_lag(tmp_path):
    rows = entry_named("reproduce", "theory").function(LabOptions(quick=True, out=tmp_path)).rows
    told = {row["setting"]: row for row in rows}
    rates = [row["verdict"] for setting, row in told.items() if "log of the gap" in setting]
    assert rates == ["linear, as seen; not what the proof yields"] * 4
    steps = [row["ours"] for setting, row in told.items() if setting.startswith("vfb2-svrg, ")]
    assert steps == sorted(steps, reverse=True) and steps[0] >= 4 * steps[-1]
