"""Rounding to a grid: no row passes its bound, whatever its numbers are, and sums are exact."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offbeat.learning.embeddings import Disturbance, LinearEmbedding, Weights
from offbeat.learning.grid import Grid, round_rows, sum_outer, sum_rounded

ANY = st.floats(allow_nan=True, allow_infinity=True, width=64)
GRIDS = st.builds(lambda clip, bound: Grid(clip / bound, bound), st.floats(1e-100, 1e100), st.integers(4, 2**20))


def squared(row):
    """In numbers of any length."""
    return sum(int(value) ** 2 for value in row.ravel().tolist())


@given(rows=arrays(np.float64, (3, 5), elements=ANY), grid=GRIDS)
@settings(max_examples=300, deadline=None)
def test_no_row_passes_the_bound_whatever_it_holds(rows, grid):
    whole = round_rows(rows, grid)
    assert whole.dtype == np.int64
    assert all(squared(row) <= grid.bound**2 for row in whole)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(rows, axis=1)
    assert np.array_equal(sum_rounded(rows, norms, grid), whole.sum(axis=0))


@given(left=arrays(np.float64, (4, 2), elements=ANY), right=arrays(np.float64, (4, 3), elements=ANY), grid=GRIDS)
@settings(max_examples=300, deadline=None)
def test_no_outer_product_passes_the_bound_whatever_it_holds(left, right, grid):
    with np.errstate(all="ignore"):
        alone = [sum_outer(left[i : i + 1], right[i : i + 1], True, grid) for i in range(4)]
        together = sum_outer(left, right, True, grid)
    assert all(squared(part) <= grid.bound**2 for part in alone)
    assert np.array_equal(together, np.sum(alone, axis=0))


@pytest.mark.parametrize("ones", [True, False])
def test_an_outer_product_is_the_clipped_one_to_half_a_step(ones):
    rng, grid = np.random.default_rng(0), Grid(0.5 / 2**20, 2**20)
    left, right = rng.standard_normal((6, 3)), rng.standard_normal((6, 4)) * (rng.random((6, 4)) < 0.5)
    wide = np.hstack([right, np.ones((6, 1))]) if ones else right
    expected = np.zeros((3, wide.shape[1]))
    for a, b in zip(left, wide, strict=True):
        product = np.outer(a, b)
        expected += product * min(1.0, grid.reach(product.size) / np.linalg.norm(product))
    found = sum_outer(left, right, ones, grid)
    assert np.abs(found * grid.step - expected).max() <= 3 * grid.step * 1.001
    assert np.array_equal(found, sum_outer(left, sp.csr_matrix(right), ones, grid))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_no_row_is_lost_at_the_clip(dtype):
    """Long rows are clipped to just within the bound: an inexact norm must not make the test drop them."""
    rng, grid = np.random.default_rng(1), Grid(1.0 / 2**20, 2**20)
    embedding = LinearEmbedding(5000, 1)
    rows = embedding.place(sp.csr_matrix((100 * rng.standard_normal((20, 5000))).astype(dtype)))
    weights = Weights({"weight": np.zeros((1, 5000))}, {})
    for row in range(20):
        forward = embedding.forward(weights, rows, np.array([row]), Disturbance())
        total = embedding.grid_sum(forward, np.ones((1, 1)), grid)["weight"]
        assert 0.999 * 2**20 < np.linalg.norm(total) <= 2**20


def test_entries_that_come_in_two_parts_are_refused():
    """Each part would be rounded, and held to the bound, on its own."""
    doubled = sp.csr_matrix((np.array([3.0, 4.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    with pytest.raises(AssertionError, match="repeated entry"):
        sum_outer(np.ones((1, 2)), doubled, False, Grid(1.0, 100))


def test_a_negative_zero_leaves_no_trace():
    grid = Grid(1e-3, 1000)
    assert np.signbit(round_rows(np.array([[-0.0, -1e-9]]), grid) * grid.step).sum() == 0


@pytest.mark.parametrize("dimension", [1, 100, 10**6, 10**8])
def test_rounding_takes_little_of_a_clip(dimension):
    assert Grid(1.0, 2**20).reach(dimension) >= 2**20 * (1 - 0.005)


def test_a_norm_just_beyond_the_reach_is_cut_and_one_at_it_is_not():
    grid = Grid(1.0, 1000)
    reach = grid.reach(2)
    inside, outside = round_rows(np.array([[reach, 0.0], [1e9, 0.0]]), grid)
    assert inside[0] == outside[0] == np.rint(reach) <= 1000
