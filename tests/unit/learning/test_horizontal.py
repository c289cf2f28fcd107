"""The compiled sums against per-row gradients built one by one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

from offbeat.errors import BadData, BadJob
from offbeat.learning import grid, horizontal
from offbeat.learning.grid import Grid
from offbeat.learning.horizontal import LinearModel, edge_data, smoothness_by_power
from offbeat.privacy.clipping import clipped_sum

MODELS = [("logistic", 2), ("hinge", 4), ("squared-hinge", 4), ("softmax", 4)]


def problem(loss, classes, seed=0, rows=30, features=5, dtype=np.float64):
    rng = np.random.default_rng(seed)
    data = edge_data(rng.standard_normal((rows, features)).astype(dtype), rng.integers(0, classes, rows))
    model = LinearModel(loss, features, classes)
    return model, data, rng.standard_normal(model.dimension)


def grid_of(clip):
    return Grid(clip / 2**20, 2**20)


def row_gradient(model, parameters, data, row):
    """Numerically, from the loss of that one row."""
    one = edge_data(data.features[row : row + 1], data.labels[row : row + 1])
    gradient = np.empty(parameters.size)
    for j in range(parameters.size):
        step = np.zeros(parameters.size)
        step[j] = 1e-6
        gradient[j] = (model.loss(parameters + step, one) - model.loss(parameters - step, one)) / 2e-6
    return gradient


@pytest.mark.parametrize("loss,classes", MODELS)
@pytest.mark.parametrize("clip", [0.3, 2.0])
def test_sums_equal_the_obvious_ones(loss, classes, clip):
    model, data, parameters = problem(loss, classes)
    rows = np.array([0, 3, 3, 7, 29])
    gradients = np.array([row_gradient(model, parameters, data, row) for row in rows])
    assert np.allclose(model.gradient_sum(parameters, data, rows), gradients.sum(axis=0), atol=1e-5)
    grid = grid_of(clip)
    found, within = model.grid_sum(parameters, data, rows, grid)
    assert found.dtype == np.int64
    assert np.allclose(found * grid.step, clipped_sum(gradients, clip), atol=1e-4)
    assert within == (np.linalg.norm(gradients, axis=1) <= clip).sum()


@pytest.mark.parametrize("loss,classes", MODELS)
def test_the_first_gradient_has_the_norm_that_the_models_form_tells(loss, classes):
    model, data, _ = problem(loss, classes)
    for row in (0, 11):
        measured = np.linalg.norm(model.gradient_sum(model.start(), data, np.array([row])))
        assert measured == pytest.approx(model.first_gradient_norm(data.norms[row]))


@pytest.mark.parametrize("loss,classes", MODELS)
def test_a_sum_on_the_grid_is_the_exact_sum_of_single_rows(loss, classes):
    model, data, parameters = problem(loss, classes)
    alone = [model.grid_sum(parameters, data, np.array([row]), grid_of(0.7))[0] for row in range(30)]
    together, _ = model.grid_sum(parameters, data, np.arange(30), grid_of(0.7))
    backwards, _ = model.grid_sum(parameters, data, np.arange(30)[::-1], grid_of(0.7))
    assert np.array_equal(together, np.sum(alone, axis=0)) and np.array_equal(together, backwards)


@given(
    seed=st.integers(0, 1000), clip=st.floats(1e-100, 1e100), scale=st.floats(0.0, 1e200), bound=st.integers(8, 2**20)
)
@settings(max_examples=100, deadline=None)
def test_one_row_never_contributes_more_than_the_bound(seed, clip, scale, bound):
    model, data, parameters = problem("squared-hinge", 3, seed)
    total, _ = model.grid_sum(scale * parameters, data, np.array([seed % 30]), Grid(clip / bound, bound))
    assert sum(value**2 for value in total.tolist()) <= bound**2


@pytest.mark.parametrize("loss,classes", MODELS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e308])
def test_a_poisoned_model_releases_nothing_unbounded(loss, classes, poison):
    model, data, parameters = problem(loss, classes)
    parameters[0] = poison
    total, _ = model.grid_sum(parameters, data, np.arange(30), grid_of(1.0))
    assert np.linalg.norm(total) <= 30 * 2**20


def test_single_precision_rows_agree():
    model, data, parameters = problem("softmax", 4)
    single = edge_data(data.features.astype(np.float32), data.labels)
    one, _ = model.grid_sum(parameters, data, np.arange(30), grid_of(1.0))
    two, _ = model.grid_sum(parameters, single, np.arange(30), grid_of(1.0))
    assert single.features.dtype == np.float32
    assert np.allclose(one / 2**20, two / 2**20, atol=1e-4)


@pytest.mark.parametrize("loss,classes", MODELS)
def test_start_loss_and_bounds(loss, classes):
    model, data, _ = problem(loss, classes)
    assert model.loss(model.start(), data) == pytest.approx(model.start_loss)
    norm_max = float(data.norms.max())
    bound = model.gradient_norm_max(norm_max)
    if math.isfinite(bound):
        rng = np.random.default_rng(1)
        for _ in range(20):
            parameters = 10 * rng.standard_normal(model.dimension)
            for row in range(data.rows):
                total = model.gradient_sum(parameters, data, np.array([row]))
                assert np.linalg.norm(total) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("loss,classes", [m for m in MODELS if m[0] != "hinge"])
def test_smoothness_bounds_the_change_of_the_gradient(loss, classes):
    model, data, parameters = problem(loss, classes)
    rng = np.random.default_rng(2)
    bound = model.smoothness(float(data.norms.max()), 0.0)
    everything = np.arange(data.rows)
    for _ in range(20):
        step = rng.standard_normal(model.dimension)
        one = model.gradient_sum(parameters, data, everything)
        two = model.gradient_sum(parameters + step, data, everything)
        assert np.linalg.norm(two - one) / data.rows <= bound * np.linalg.norm(step)


def test_power_iteration_finds_what_the_bound_only_bounds():
    rng = np.random.default_rng(5)
    data = edge_data(rng.standard_normal((200, 6)), rng.integers(0, 2, 200))
    model = LinearModel("logistic", 6)
    rows = np.column_stack([data.features, np.ones(200)])
    exact = float(np.linalg.eigvalsh(rows.T @ rows / 200)[-1]) / 4  # the Hessian at 0
    found = smoothness_by_power(model, model.start(), data, 60)
    assert found == pytest.approx(exact, rel=1e-3)
    assert found < model.smoothness(float(data.norms.max()), 0.0) / 3


def test_accuracy_counts_agreement():
    model = LinearModel("logistic", 1)
    data = edge_data(np.array([[1.0], [-1.0], [2.0], [-2.0]]), np.array([1, 0, 0, 0]))
    assert model.accuracy(np.array([1.0, 0.0]), data) == 0.75


@pytest.mark.parametrize(
    "features,labels",
    [
        (np.ones((3, 2)), np.ones(2)),
        (np.array([[np.nan, 1.0]]), np.zeros(1)),
        (np.ones((2, 2)), np.array([0.5, 1.0])),
        (np.ones((2, 2)), np.array([-1, 1])),
    ],
)
def test_bad_rows_are_named(features, labels):
    with pytest.raises(BadData):
        edge_data(features, labels)


def test_bad_models_are_named():
    with pytest.raises(BadJob, match="hinge"):
        LinearModel("hing", 3)
    with pytest.raises(BadJob, match="two classes"):
        LinearModel("logistic", 3, 5)


@pytest.mark.parametrize(
    ("columns", "label", "words"),
    [(3, 1, "has 5 columns, and these rows have 3"), (5, 4, "the largest label is 4"), (7, 9, "5 columns")],
)
def test_rows_of_another_size_never_reach_the_kernel(columns, label, words):
    """It looks at no bounds: other rows of memory would go into the sum, past the clip."""
    model = LinearModel("softmax", 5, 4)
    data = edge_data(np.ones((6, columns)), np.array([0, 1, 0, 1, 0, label]))
    with pytest.raises(BadData, match=words):
        model.check(data)
    with pytest.raises(BadData, match=words):
        model.gradient_sum(model.start(), data, np.arange(6))
    with pytest.raises(BadData, match=words):
        model.grid_sum(model.start(), data, np.arange(6), grid_of(1.0))


@pytest.mark.parametrize("module", [grid, horizontal])
def test_what_a_fast_function_calls_states_its_own_arithmetic(module):
    """Numba hands a caller's fastmath on to what states none: then the bits depend on which caller came first."""
    compiled = {name: made for name, made in vars(module).items() if isinstance(made, Dispatcher)}
    called = [
        name
        for caller in compiled.values()
        if caller.targetoptions.get("fastmath")
        for name in caller.py_func.__code__.co_names
        if name in compiled
    ]
    assert compiled and all("fastmath" in compiled[name].targetoptions for name in called)
    assert module is grid or set(called) == {"_scores", "_residual"}
