"""Per-row gradients of a network against one backward pass for each row."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra `deep` is not installed")

from offbeat.errors import BadData, BadJob  # noqa: E402
from offbeat.learning.deep_horizontal import DeepModel, digits_model  # noqa: E402
from offbeat.learning.grid import Grid  # noqa: E402
from offbeat.learning.horizontal import LinearModel, edge_data, smoothness_by_power  # noqa: E402
from offbeat.privacy.clipping import clipped_sum  # noqa: E402

RNG = np.random.default_rng(0)
DATA = edge_data(RNG.standard_normal((40, 64)).astype(np.float32), RNG.integers(0, 10, 40))
SMALL = DeepModel(
    torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(108, 10)),
    (1, 8, 8),
    chunk_rows=7,
)


def grid_of(clip):
    return Grid(clip / 2**20, 2**20)


def row_gradients(model, parameters, data, rows):
    found = []
    for row in rows:
        named = {name: value.clone().requires_grad_() for name, value in model._named(parameters).items()}
        scores = torch.func.functional_call(model.module, named, (model._inputs(data, np.array([row])),))
        loss = torch.nn.functional.cross_entropy(scores, model._labels(data, np.array([row])))
        gradients = torch.autograd.grad(loss, list(named.values()))
        found.append(torch.cat([g.ravel() for g in gradients]).numpy())
    return np.array(found, dtype=np.float64)


@pytest.mark.parametrize("clip", [0.5, 3.0])
def test_sums_equal_one_backward_pass_per_row(clip):
    rows = np.arange(0, 40, 2)
    gradients = row_gradients(SMALL, SMALL.start(), DATA, rows)
    assert np.allclose(SMALL.gradient_sum(SMALL.start(), DATA, rows), gradients.sum(axis=0), atol=1e-4)
    grid = grid_of(clip)
    found, within = SMALL.grid_sum(SMALL.start(), DATA, rows, grid)
    assert np.allclose(found * grid.step, clipped_sum(gradients, clip), atol=1e-3)
    assert within == (np.linalg.norm(gradients, axis=1) <= clip).sum()


@pytest.mark.parametrize("model", [SMALL, digits_model(16, seed=0)], ids=["small", "digits"])
def test_what_a_row_adds_depends_on_no_other_row(model):
    """Privacy rests on it: whoever else is in the batch, in whatever order, a row adds the same whole numbers."""
    grid, rng = grid_of(1.0), np.random.default_rng(3)
    columns = 64 if model is SMALL else 256
    data = edge_data(rng.standard_normal((40, columns)).astype(np.float32), rng.integers(0, 10, 40))
    alone = [model.grid_sum(model.start(), data, np.array([row]), grid)[0] for row in range(40)]
    for size in (1, 6, 7, 8, 13, 33, 40):
        rows = rng.permutation(40)[:size]
        together, _ = model.grid_sum(model.start(), data, rows, grid)
        assert np.array_equal(together, np.sum([alone[row] for row in rows], axis=0))


def test_a_linear_module_agrees_with_the_compiled_model():
    plain = DeepModel(torch.nn.Linear(64, 10), (64,))
    linear = LinearModel("softmax", 64, 10)
    weights = RNG.standard_normal((10, 65))
    deep_order = np.concatenate([weights[:, :-1].ravel(), weights[:, -1]])
    one, within_one = plain.grid_sum(deep_order, DATA, np.arange(40), grid_of(2.0))
    two, within_two = linear.grid_sum(weights.ravel(), DATA, np.arange(40), grid_of(2.0))
    two = two.reshape(10, 65)
    assert np.allclose(one / 2**20, np.concatenate([two[:, :-1].ravel(), two[:, -1]]) / 2**20, atol=1e-4)
    assert within_one == within_two
    assert plain.loss(deep_order, DATA) == pytest.approx(linear.loss(weights.ravel(), DATA), abs=1e-5)
    assert plain.accuracy(deep_order, DATA) == linear.accuracy(weights.ravel(), DATA)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_a_poisoned_network_releases_nothing_unbounded(poison):
    parameters = SMALL.start()
    parameters[0] = poison
    total, _ = SMALL.grid_sum(parameters, DATA, np.arange(40), grid_of(1.0))
    assert np.linalg.norm(total) <= 40 * 2**20


def test_an_empty_batch_is_all_noise():
    total, within = SMALL.grid_sum(SMALL.start(), DATA, np.array([], dtype=np.int64), grid_of(1.0))
    assert not total.any() and within == 0


@pytest.mark.parametrize("side", [16, 28])
def test_the_papers_network(side):
    model = digits_model(side, seed=0)
    assert np.array_equal(model.start(), digits_model(side, seed=0).start())
    assert not np.array_equal(model.start(), digits_model(side, seed=1).start())
    kernel = 25 if side == 28 else 9
    assert model.first_layer == 16 * kernel + 16
    data = edge_data(RNG.random((5, side * side)).astype(np.float32), np.arange(5))
    assert model.scores(model.start(), data).shape == (5, 10)


def test_power_iteration_finds_the_curvature_of_a_linear_model():
    model = DeepModel(torch.nn.Linear(64, 10), (64,))
    found = smoothness_by_power(model, model.start(), DATA)
    assert 0 < found <= LinearModel("softmax", 64, 10).smoothness(float(DATA.norms.max()), 0.0)


def test_layers_that_mix_rows_are_refused():
    with pytest.raises(BadJob, match="mixes the rows"):
        DeepModel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), (4,))


@pytest.mark.parametrize("clipped", [True, False])
def test_parties_on_threads_may_share_a_model(clipped):
    rows = np.arange(12)
    starts = [SMALL.start() + k for k in range(8)]

    def summed(start):
        if clipped:
            return SMALL.grid_sum(start, DATA, rows, grid_of(0.5))[0] / 2**20
        return SMALL.gradient_sum(start, DATA, rows)

    alone = [summed(start) for start in starts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(summed, starts * 3))
    for k, found in enumerate(together):
        np.testing.assert_allclose(found, alone[k % 8], rtol=1e-5, atol=1e-6)


def test_rows_of_another_size_are_refused():
    SMALL.check(DATA)
    with pytest.raises(BadData, match="has 64 columns, and these rows have 49"):
        SMALL.check(edge_data(np.ones((3, 49)), np.array([0, 1, 2])))
    with pytest.raises(BadData, match="the largest label is 10"):
        SMALL.check(edge_data(np.ones((3, 64)), np.array([0, 1, 10])))
