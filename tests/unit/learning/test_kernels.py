"""Compiled loops against numpy: curvature, inverses, fixed point, and sizes around their tiles and unrolled columns."""

import numpy as np
import pytest
import scipy.sparse

from offbeat.learning import kernels, sparse_kernels

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("width", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("outputs", [1, 3])
def test_dense_products(width, outputs):
    """Four columns at a time, and those that are left."""
    X, w = RNG.standard_normal((width, 20)), RNG.standard_normal((outputs, width + 1))
    z = np.empty(outputs * 11)
    kernels.dense_share(X, 5, w, z)
    expected = X[:, 5:16].T @ w[:, :-1].T + w[:, -1]
    np.testing.assert_allclose(z, expected.T.ravel(), atol=1e-13)


@pytest.mark.parametrize("outputs", [1, 3])
def test_dense_gradient(outputs):
    X, residual = RNG.standard_normal((6, 20)), RNG.standard_normal((outputs, 11))
    into = np.ones((outputs, 7))
    kernels.dense_gradient(X, 5, residual.ravel(), 0.5, into)
    expected = 1.0 + 0.5 * residual @ np.vstack([X[:, 5:16], np.ones(11)]).T
    np.testing.assert_allclose(into, expected, atol=1e-13)


@pytest.mark.parametrize("rows", [1, kernels.TILE - 1, kernels.TILE, 2 * kernels.TILE + 7])
def test_dense_hessian_and_squares(rows):
    X, factor = RNG.standard_normal((5, rows + 3)), RNG.uniform(0.0, 1.0, rows)
    into = np.full((5, 5), 9.0)
    kernels.dense_hessian(X, factor, into)
    np.testing.assert_allclose(into, (X[:, :rows] * factor) @ X[:, :rows].T, rtol=1e-10, atol=1e-11)
    assert np.array_equal(into, into.T)
    squares = np.empty(5)
    kernels.dense_squares(np.ascontiguousarray(X[:, :rows]), factor, squares)
    np.testing.assert_allclose(squares, np.diag(into), rtol=1e-12)


@pytest.mark.parametrize("width", [0, 1, 2, 30])
def test_invert(width):
    root = RNG.standard_normal((width, width))
    matrix = root @ root.T + 0.1 * np.eye(width)
    into = np.empty((width, width))
    kernels.invert(matrix, into)
    np.testing.assert_allclose(into @ matrix, np.eye(width), atol=1e-9)
    assert np.array_equal(into, into.T)


@pytest.mark.parametrize("mode", [kernels.SGD, kernels.SVRG, kernels.SAGA])
def test_take_residuals(mode):
    theta, table = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 10))
    before, out = table.copy(), np.empty(12)
    kernels.take_residuals(theta.ravel(), 2, mode, table, out)
    expected = theta if mode == kernels.SGD else theta - before[:, 2:6]
    assert np.array_equal(out.reshape(3, 4), expected)
    before[:, 2:6] = theta if mode == kernels.SAGA else before[:, 2:6]
    assert np.array_equal(table, before)


def test_encode_counts_what_is_inside():
    z = np.array([0.25, -0.75, 3.0, -3.0, np.nan, np.inf])
    out = np.empty(6, np.uint64)
    with np.errstate(invalid="ignore"):
        assert kernels.encode(z, 4.0, 3.0, out) == 2
    assert out[:2].view(np.int64).tolist() == [1, -3]
    assert kernels.encode(z, 2.0**62, 3.0, out) == 0  # the limit itself does not fit the word


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_soft(threshold):
    got = [kernels.soft.py_func(w, threshold) for w in (-2.0, -0.5, 0.0, 0.4, 0.5, 2.0)]
    assert got == [threshold - 2.0, threshold - 0.5, 0.0, max(0.4 - threshold, 0.0), 0.5 - threshold, 2.0 - threshold]


def test_names_of_compiled_loops_change_with_their_sources():
    """Otherwise an old derivative would go on living in the cache."""
    assert kernels.dense_step.py_func.__qualname__ == f"dense_step_{kernels.STAMP}"
    assert sparse_kernels.lazy_step.py_func.__qualname__ == f"lazy_step_{kernels.STAMP}"
    folder = {f"offbeat.learning.{name.removesuffix('.py')}" for name in kernels.COMPILED_TOGETHER}
    assert {kernels.__name__, sparse_kernels.__name__} <= folder


def csr(rows=40, width=15):
    matrix = scipy.sparse.random(rows, width, density=0.2, random_state=1, format="csr")
    return matrix.toarray(), (matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data)


def test_sparse_squares_and_scaled_values():
    X, (offsets, columns, values) = csr()
    factor, metric = RNG.uniform(size=40), RNG.uniform(size=15)
    into, out = np.full(15, 9.0), np.empty(len(values))
    sparse_kernels.sparse_squares(offsets, columns, values, factor, into)
    np.testing.assert_allclose(into, factor @ X**2, rtol=1e-12)
    sparse_kernels.scaled_values(columns, values, metric, out)
    np.testing.assert_allclose(out, values * metric[columns], rtol=1e-15)


def test_compact_gradient_lists_each_column_once_and_leaves_its_slots_clean():
    X, (offsets, columns, values) = csr()
    residual, slots = RNG.standard_normal(9), np.zeros(15, np.int32)
    touched, gradient = np.empty(len(columns), np.uint32), np.empty(len(columns))
    count = sparse_kernels.compact_gradient(offsets, columns, values, 4, residual, slots, touched, gradient)
    assert sorted(touched[:count].tolist()) == np.flatnonzero(X[4:13].any(axis=0)).tolist()
    np.testing.assert_allclose(gradient[:count], (X[4:13].T @ residual)[touched[:count]], atol=1e-14)
    assert not slots.any()


@pytest.mark.parametrize("metric", [np.empty(0), np.linspace(0.5, 2.0, 15)], ids=["plain", "metric"])
@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("owed", [0.0, 0.1])
def test_lazy_weights_are_the_same_wherever_they_are_read(metric, code, owed):
    """Products, gathered weights, unfolded weights and folded pairs."""
    X, (offsets, columns, values) = csr()
    pairs, lazy = RNG.standard_normal((15, 2)), (0.7, -0.3, code, owed, metric)
    w, z, gathered = np.empty(15), np.empty(9), np.empty(offsets[13] - offsets[4])
    sparse_kernels.unfold(pairs, *lazy, w)
    raw, due = 0.7 * pairs[:, 0] - 0.3 * pairs[:, 1], owed * (metric if len(metric) else 1.0)
    slope = w if code == 0 else w / (1 + w * w) ** 2
    np.testing.assert_allclose(w + due * slope, raw, atol=1e-14 if code == 0 else 1e-2)
    sparse_kernels.lazy_share(offsets, columns, values, 4, pairs, *lazy, z)
    np.testing.assert_allclose(z, X[4:13] @ w, atol=1e-13)
    sparse_kernels.gather_each(columns[offsets[4] : offsets[13]], pairs, *lazy, gathered)
    sparse_kernels.gathered_share(offsets, values, 4, gathered, z)
    np.testing.assert_allclose(z, X[4:13] @ w, atol=1e-13)
    folded = pairs.copy()
    sparse_kernels.fold(folded, *lazy, 0.2)
    now = 0.2 * (metric if len(metric) else 1.0)
    np.testing.assert_allclose(folded[:, 0], w - now * slope, atol=1e-14)
    assert np.array_equal(folded[:, 1], pairs[:, 1])
