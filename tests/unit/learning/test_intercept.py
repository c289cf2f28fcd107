"""The constant of a block: a column of ones without penalty, and columns centred against it."""

import numpy as np
import pytest
import scipy.sparse as sp

from offbeat.learning import central
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2, NONCONVEX, NONE

ROWS, WIDTH = 60, 7


@pytest.fixture(params=["dense", "sparse"])
def matrix(request):
    X = np.random.default_rng(3).standard_normal((ROWS, WIDTH)) * 0.4 + 0.2
    return X if request.param == "dense" else sp.csr_matrix(np.where(np.abs(X) > 0.3, X, 0.0))


def with_intercept(matrix, metric=0.2, penalty=L2, method="sgd"):
    block = make_block(matrix, penalty=penalty, strength=0.01, method=method, intercept=True)
    block.move_constant(np.array([metric]))
    return block


def plain(matrix):
    return matrix.toarray() if sp.issparse(matrix) else matrix


def test_dense_columns_are_centred_and_sparse_ones_are_not(matrix):
    block = with_intercept(matrix)
    assert block.means == pytest.approx(np.zeros(WIDTH) if sp.issparse(matrix) else matrix.mean(axis=0))
    assert not make_block(matrix, penalty=L2, strength=0.1).means.any()
    weights = np.linspace(-1, 1, WIDTH + 1)[None, :]
    expected = (plain(matrix) - block.means) @ weights[0, :-1] + weights[0, -1]
    assert block.share(0, ROWS, weights) == pytest.approx(expected)


def test_the_table_given_is_not_written_to():
    X = np.ascontiguousarray(np.arange(12.0).reshape(3, 4).T).T
    make_block(X, penalty=L2, strength=0.1, intercept=True)
    assert np.array_equal(X, np.arange(12.0).reshape(3, 4))


def test_no_penalty_touches_the_constant(matrix):
    for penalty in (L2, NONCONVEX, NONE):
        block = with_intercept(matrix, penalty=penalty, method="svrg")
        weights = np.append(np.ones(WIDTH), 3.0)[None, :]
        block.set_weights(weights)
        block.step(0, ROWS, np.zeros(ROWS), 0.5)
        assert block.weights()[0, -1] == 3.0
        pulled = 1.0 - 0.5 * 0.01 * penalty.gradient(np.ones(1))[0]
        assert block.weights()[0, :-1] == pytest.approx(np.full(WIDTH, pulled), rel=1e-4)


def test_only_a_block_that_was_told_so_moves_its_constant(matrix):
    block = make_block(matrix, penalty=L2, strength=0.01, intercept=True)
    block.set_weights(np.append(np.zeros(WIDTH), 2.0)[None, :])
    block.step(0, 10, np.ones(10), 0.1)
    assert block.weights()[0, -1] == 2.0 and block.weights()[0, :-1].any()
    block.move_constant(np.array([0.5]))
    block.step(0, 10, np.ones(10), 0.1)
    assert block.weights()[0, -1] == pytest.approx(2.0 - 0.1 * 0.5)


def test_any_metric_leads_to_the_same_optimum(matrix):
    """Centred or not, the model is the same: the constant takes up what the means contribute."""
    y = np.where(np.random.default_rng(1).random(ROWS) < 0.8, 1.0, -1.0)
    best, _ = central.optimum(np.hstack([plain(matrix), np.ones((ROWS, 1))]), y, LOGISTIC, 0.01, free=1)
    for metric in (0.2, 2.0):
        block = with_intercept(matrix, metric)
        for _ in range(6000):
            block.step(0, ROWS, LOGISTIC.derivative(block.share(0, ROWS), y), 1.0)
        found = block.weights()[0]
        found[-1] -= found[:-1] @ block.means
        assert found == pytest.approx(best, abs=1e-8)


def test_columns_that_add_up_to_one_no_longer_compete_with_the_constant():
    """A category's columns: centred, they are orthogonal to the ones."""
    X = np.eye(3)[np.random.default_rng(0).integers(0, 3, 50)]
    block = make_block(X, penalty=L2, strength=0.1, intercept=True)
    into = np.zeros((1, 4))
    block.add_gradient(0, 50, np.ones(50), into)
    assert into[0] == pytest.approx([0.0, 0.0, 0.0, 1.0], abs=1e-15)


def test_the_metric_counts_in_norms_and_vectors(matrix):
    block = with_intercept(matrix, metric=0.3)
    centred = plain(matrix) - block.means
    assert block.row_norms_squared(2, 9) == pytest.approx((centred[2:9] ** 2).sum(axis=1) + 0.3)
    assert block.in_metric(np.ones((WIDTH + 1, 2)))[-1] == pytest.approx([0.3, 0.3])


def test_each_output_has_a_constant_of_its_own(matrix):
    block = make_block(matrix, penalty=L2, strength=0.01, outputs=3, intercept=True, method="sgd")
    block.move_constant(np.array([1.0, 0.0, 0.5]))
    block.step(0, 4, np.repeat([1.0, 2.0, 3.0], 4), 0.1)
    assert block.weights()[:, -1] == pytest.approx([-0.1, 0.0, -0.15])


def test_restored_it_goes_on_to_the_bit(matrix):
    ours, copy = (with_intercept(matrix, metric, method="saga") for metric in (0.5, 9.0))
    ours.step(0, 20, np.linspace(0, 1, 20), 0.3)
    copy.restore(ours.snapshot())
    for block in (ours, copy):
        block.step(10, 30, np.linspace(-1, 1, 20), 0.3)
    assert copy.weights().tolist() == ours.weights().tolist()
    assert copy.mean_gradient().tolist() == ours.mean_gradient().tolist()
