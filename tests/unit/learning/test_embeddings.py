"""The numpy side of VAFL: linear embedding, additive head, steps, penalties, the table, the order of rows."""

import numpy as np
import pytest
import scipy.sparse as sp

from offbeat.errors import BadJob
from offbeat.learning.embedding_table import EmbeddingTable, lag_buckets
from offbeat.learning.embeddings import (
    Adam,
    AdditiveHead,
    ClientPenalty,
    Disturbance,
    LinearEmbedding,
    Sgd,
    Weights,
    expected,
)
from offbeat.learning.grid import Grid
from offbeat.learning.row_order import RowOrder

RNG = np.random.default_rng(8)


def grid_of(clip):
    return Grid(clip / 2**20, 2**20)


def slope(function, at, step=1e-6):
    """Central differences, the slow way."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[place] += step
        down[place] -= step
        found[place] = (function(up) - function(down)) / (2 * step)
    return found


@pytest.mark.parametrize("clip", [None, 0.5, 50.0])
def test_linear_gradient_is_the_slope_of_its_pass(clip):
    """On a grid the slope is that of the clipped embedding; rounding has none."""
    x, derivative, noise = RNG.normal(size=(6, 4)), RNG.normal(size=(3, 2)), RNG.normal(size=(3, 2))
    embedding, rows = LinearEmbedding(4, 2, bias=True), np.array([5, 1, 2])
    weight, bias = RNG.normal(size=(2, 4)), RNG.normal(size=2)
    disturbance = Disturbance(noise=noise) if clip is None else Disturbance(grid_of(clip))

    def pulled(weight, bias):
        raw = x[rows] @ weight.T + bias
        norms = np.linalg.norm(raw, axis=1, keepdims=True)
        clipped = raw if clip is None else raw * np.minimum(1.0, grid_of(clip).reach(2) / norms)
        return float(np.sum(clipped * derivative) / 3)

    forward = embedding.forward(Weights({"weight": weight, "bias": bias}, {}), x, rows, disturbance)
    gradient = embedding.gradient(forward, derivative)
    np.testing.assert_allclose(gradient["weight"], slope(lambda w: pulled(w, bias), weight), atol=1e-7)
    np.testing.assert_allclose(gradient["bias"], slope(lambda b: pulled(weight, b), bias), atol=1e-7)


def test_linear_closed_form_norms_are_those_of_single_rows():
    x, derivative, rows = RNG.normal(size=(5, 4)), RNG.normal(size=(4, 2)), np.array([0, 1, 3, 4])
    embedding = LinearEmbedding(4, 2, bias=True)
    weights = Weights({"weight": RNG.normal(size=(2, 4)), "bias": RNG.normal(size=2)}, {})
    total = {"weight": np.zeros((2, 4)), "bias": np.zeros(2)}
    for k, row in enumerate(rows):
        one = embedding.gradient(
            embedding.forward(weights, x, np.array([row]), Disturbance(grid_of(1.0))), derivative[k : k + 1]
        )
        norm = np.sqrt(sum(np.sum(value**2) for value in one.values()))
        for name, value in one.items():
            total[name] += value * min(1.0, 0.6 / norm)
    found = embedding.grid_sum(embedding.forward(weights, x, rows, Disturbance(grid_of(1.0))), derivative, grid_of(0.6))
    for name, value in total.items():
        np.testing.assert_allclose(found[name] * grid_of(0.6).step, value, atol=1e-5)


def test_sparse_rows_give_the_same_numbers():
    dense = RNG.normal(size=(6, 5)) * (RNG.random((6, 5)) < 0.4)
    embedding, rows, derivative = LinearEmbedding(5, 2), np.array([4, 0, 2]), RNG.normal(size=(3, 2))
    weights = Weights({"weight": RNG.normal(size=(2, 5))}, {})
    one = embedding.forward(weights, embedding.place(dense), rows, Disturbance())
    other = embedding.forward(weights, embedding.place(sp.csr_matrix(dense)), rows, Disturbance())
    np.testing.assert_allclose(one.embedding, other.embedding)
    np.testing.assert_allclose(
        embedding.gradient(one, derivative)["weight"], embedding.gradient(other, derivative)["weight"]
    )
    sums = [embedding.grid_sum(forward, derivative, grid_of(0.3))["weight"] for forward in (one, other)]
    assert np.array_equal(*sums)


def test_an_embedding_on_a_grid_is_whole_steps_and_nothing_else():
    embedding, grid = LinearEmbedding(4, 2), grid_of(0.5)
    weights, x, rows = Weights({"weight": RNG.normal(size=(2, 4))}, {}), RNG.normal(size=(6, 4)), np.array([5, 1, 2])
    seen = []

    def draw(whole):
        seen.append(whole)
        return np.full_like(whole, 7)

    forward = embedding.forward(weights, x, rows, Disturbance(grid, draw=draw))
    assert np.array_equal(forward.embedding, (seen[0] + 7) * grid.step)
    assert np.array_equal(forward.noise, np.full((3, 2), 7))
    again = embedding.forward(weights, x, rows, Disturbance(grid, forward.noise))
    assert np.array_equal(again.embedding, forward.embedding)


@pytest.mark.parametrize(("loss", "outputs"), [("softmax", 3), ("logistic", 1), ("squared", 2)])
def test_head_derivative_is_the_slope_of_its_loss(loss, outputs):
    head, parts = AdditiveHead(outputs, loss), [RNG.normal(size=(4, outputs)) for _ in range(2)]
    targets = np.eye(3)[[0, 2, 1, 1]][:, :outputs] if loss == "softmax" else RNG.random((4, outputs))
    weights = Weights({"bias": RNG.normal(size=outputs)}, {})
    result = head.evaluate(weights, parts, targets, [0, 1])
    by_hand = slope(lambda h: head.loss(weights, [h, parts[1]], targets), parts[0])
    np.testing.assert_allclose(result.derivatives[0] / 4, by_hand, atol=1e-8)
    by_hand = slope(lambda b: head.loss(Weights({"bias": b}, {}), parts, targets), weights.trained["bias"])
    np.testing.assert_allclose(result.gradient["bias"], by_hand, atol=1e-8)


def test_the_derivative_gives_the_label_away():
    """Documents the leak: the one negative entry of an additive softmax head's derivative is the label."""
    head = AdditiveHead(4, bias=False)
    labels = RNG.integers(0, 4, 500)
    result = head.evaluate(Weights({}, {}), [3 * RNG.normal(size=(500, 4))], np.eye(4)[labels], [0])
    assert np.all(np.argmin(result.derivatives[0], axis=1) == labels)
    assert np.all((result.derivatives[0] < 0).sum(axis=1) == 1)


def test_extreme_scores_stay_finite():
    assert np.all(np.isfinite(expected("logistic", np.array([[-800.0], [800.0]]))))
    assert np.all(np.isfinite(expected("softmax", np.array([[-800.0, 800.0]]))))


def test_adam_takes_its_first_step_by_the_sign():
    trained = {"w": np.array([1.0, -2.0])}
    rule = Adam(0.1)
    moved, memory = rule.apply(trained, {"w": np.array([5.0, -0.01])}, rule.initial(trained))
    np.testing.assert_allclose(moved["w"], [0.9, -1.9], atol=1e-6)
    assert memory["count"][0] == 1
    np.testing.assert_array_equal(Sgd(0.1).apply(trained, {"w": np.array([1.0, 1.0])}, {})[0]["w"], [0.9, -2.1])


def test_proximal_steps():
    w = {"w": np.array([3.0, -0.05, 0.5])}
    assert ClientPenalty("none").proximal(w, 0.1) is w
    np.testing.assert_allclose(ClientPenalty("l1", 1.0).proximal(w, 0.1)["w"], [2.9, 0.0, 0.4])
    np.testing.assert_allclose(ClientPenalty("l2", 1.0).proximal(w, 0.25)["w"], w["w"] / 1.25)
    np.testing.assert_allclose(ClientPenalty("box", 0.4).proximal(w, 0.1)["w"], [0.4, -0.05, 0.4])
    ball = ClientPenalty("ball", 1.0).proximal({"a": np.array([3.0]), "b": np.array([4.0])}, 0.1)
    np.testing.assert_allclose([ball["a"][0], ball["b"][0]], [0.6, 0.8])
    assert ClientPenalty("l1", 2.0).value(w) == pytest.approx(7.1)
    assert ClientPenalty("l2", 2.0).value(w) == pytest.approx(9.2525)


@pytest.mark.parametrize("name", ["l1", "l2", "box", "ball"])
def test_a_proximal_step_minimises_what_it_should(name):
    penalty, at, step = ClientPenalty(name, 0.7), RNG.normal(size=4), 0.3
    best = penalty.proximal({"w": at}, step)["w"]

    def cost(w):
        inside = {"box": np.abs(w).max() <= 0.7 + 1e-12, "ball": np.linalg.norm(w) <= 0.7 + 1e-12}.get(name, True)
        return step * penalty.value({"w": w}) + 0.5 * np.sum((w - at) ** 2) if inside else np.inf

    for _ in range(200):
        assert cost(best) <= cost(best + 0.05 * RNG.normal(size=4)) + 1e-12


def test_mistakes_are_named():
    with pytest.raises(BadJob, match="Did you mean"):
        AdditiveHead(3, "softmaxx")
    with pytest.raises(BadJob, match="one output"):
        AdditiveHead(3, "logistic")
    with pytest.raises(BadJob, match="penalty of a client"):
        ClientPenalty("l3", 1.0)
    with pytest.raises(BadJob, match="size above 0"):
        ClientPenalty("box")
    with pytest.raises(BadJob, match="sampling"):
        RowOrder(5, 2, "cyclic", RNG)


def test_lag_buckets_double():
    np.testing.assert_array_equal(
        lag_buckets(np.array([0, 1, 2, 3, 4, 7, 8, 1023, 1024])), [0, 1, 2, 2, 3, 3, 4, 10, 11]
    )


def test_table_counts_what_it_lends():
    table = EmbeddingTable(4, [1, 1], AdditiveHead(1, "logistic"))
    rows = np.array([0, 1])
    table.write(0, rows, np.ones((2, 1)), iteration=0)
    table.write(1, np.array([1]), np.ones((1, 1)), iteration=2)
    assert table.note_use(rows, np.ones((2, 2), dtype=bool), iteration=5, bound=4) == (pytest.approx(13 / 3), 5)
    counted = {"lag_mean": 5.0, "lag_max": 5, "lag_histogram": [0, 0, 0, 2], "cold_used": 0, "late_used": 2}
    assert table.lag_summary(0) == counted
    assert table.lag_summary(1)["cold_used"] == 1
    late = table.overdue(np.array([0, 1]), 5, 4)
    assert {client: found.tolist() for client, found in late.items()} == {0: [0, 1], 1: [0]}
    assert table.overdue(np.array([1]), 5, 5) == {}
    assert (table.cold(0), table.cold(1)) == (2, 3)
    np.testing.assert_array_equal(table.mean(0), [1.0])
    other = EmbeddingTable(4, [1, 1], AdditiveHead(1, "logistic"))
    other.restore(table.snapshot())
    assert other.lag_summary(1) == table.lag_summary(1)


def test_shuffled_order_visits_every_row_once_a_pass_and_resumes():
    order = RowOrder(10, 4, "shuffled", np.random.default_rng(3))
    taken = [order.next() for _ in range(3)]
    assert sorted(np.concatenate(taken).tolist()) == list(range(10))
    state = order.snapshot()
    ahead = [order.next().tolist() for _ in range(5)]
    other = RowOrder(10, 4, "shuffled", np.random.default_rng(99))
    other.restore(state)
    assert [other.next().tolist() for _ in range(5)] == ahead


def test_uniform_batches_hold_different_rows():
    order = RowOrder(10, 6, "uniform", np.random.default_rng(3))
    assert all(len(set(order.next().tolist())) == 6 for _ in range(50))
