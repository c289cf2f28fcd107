"""Directions: the residuals by hand, SAGA's scalar table against dense gradients, tables across a snapshot."""

import numpy as np
import pytest
import scipy.sparse

from offbeat.learning.blocks import make_block
from offbeat.learning.directions import Saga, Sgd, Svrg, step
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2
from offbeat.learning.sampling import BlockSampler


def test_residuals_by_hand():
    theta = np.array([1.0, 2.0])
    assert Sgd().residual(1, 3, theta) is theta
    assert Sgd().accumulate == Svrg(np.zeros(4)).accumulate == 0.0
    assert Svrg(np.array([9.0, 0.5, -1.0, 9.0])).residual(1, 3, theta).tolist() == [0.5, 3.0]
    saga = Saga(np.array([9.0, 0.5, -1.0, 9.0]))
    assert saga.residual(1, 3, theta).tolist() == [0.5, 3.0]
    assert saga.table.tolist() == [9.0, 1.0, 2.0, 9.0]
    assert saga.accumulate == 0.25


def test_svrg_adopts_a_table():
    svrg = Svrg(np.zeros(3))
    svrg.adopt(np.array([1.0, 2.0, 3.0]))
    assert svrg.residual(0, 3, np.ones(3)).tolist() == [0.0, -1.0, -2.0]


def test_saga_does_not_write_to_the_table_it_was_given():
    table = np.zeros(3)
    Saga(table).residual(0, 3, np.ones(3))
    assert not table.any()


@pytest.mark.parametrize("make", [Svrg, Saga])
def test_snapshots(make):
    direction = make(np.array([1.0, 2.0, 3.0]))
    state = direction.snapshot()
    direction.residual(0, 2, np.array([5.0, 6.0]))
    other = make(np.zeros(3))
    other.restore(state)
    assert other.residual(0, 3, np.zeros(3)).tolist() == [-1.0, -2.0, -3.0]
    assert state["table"].tolist() == [1.0, 2.0, 3.0]
    Sgd().restore(Sgd().snapshot())


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("make", [lambda table: Sgd(), Svrg, Saga], ids=["sgd", "svrg", "saga"])
def test_one_call_does_what_two_do(make, kind):
    """`step` fuses `residual` and `Block.step`, to the bit, and leaves the same table."""
    rng = np.random.default_rng(0)
    X = kind(rng.standard_normal((50, 7)) * (rng.random((50, 7)) < 0.5))
    fused, apart = (make_block(X, penalty=L2, strength=0.1) for _ in range(2))
    table = rng.standard_normal(50)
    one, two = make(table), make(table)
    for _ in range(20):
        start, stop = 3, int(rng.integers(4, 50))
        theta = rng.standard_normal(stop - start)
        theta.flags.writeable = False
        step(fused, one, start, stop, theta, 0.3)
        apart.step(start, stop, two.residual(start, stop, theta), 0.3, two.accumulate)
    assert np.array_equal(fused.weights(), apart.weights())
    assert np.array_equal(fused.mean_gradient(), apart.mean_gradient())
    assert one.snapshot().keys() == two.snapshot().keys()
    assert all(np.array_equal(one.snapshot()[name], two.snapshot()[name]) for name in one.snapshot())


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix], ids=["dense", "sparse"])
def test_a_table_of_another_length_is_refused(kind):
    block = make_block(kind(np.ones((4, 2))), penalty=L2, strength=0.1)
    with pytest.raises(ValueError, match="table over the rows"):
        step(block, Saga(np.zeros(5)), 0, 2, np.zeros(2), 0.1)
    with pytest.raises(IndexError):
        step(block, Saga(np.zeros(4)), 2, 5, np.zeros(3), 0.1)


@pytest.mark.parametrize("make", [Svrg, Saga])
def test_rows_and_lengths_are_checked(make):
    with pytest.raises(IndexError):
        make(np.zeros(4)).residual(2, 5, np.zeros(3))
    with pytest.raises(ValueError, match="Expected 2 values"):
        make(np.zeros(4)).residual(2, 4, np.zeros(3))


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix], ids=["dense", "sparse"])
def test_saga_scalar_vs_dense(kind):
    """One scalar a row does what a table of whole gradients does, over 10^4 steps; the mean does not drift."""
    rng = np.random.default_rng(0)
    rows, width, eta, strength = 60, 8, 0.4, 1e-2
    X = rng.standard_normal((rows, width)) * (rng.random((rows, width)) < 0.4)
    y = rng.choice([-1.0, 1.0], rows)
    block, saga = make_block(kind(X), penalty=L2, strength=strength), Saga(np.zeros(rows))
    w, table, mean = np.zeros(width), np.zeros((rows, width)), np.zeros(width)
    sampler = BlockSampler(rows, 2, rng)
    for _ in range(10_000):
        start, stop = sampler.next()
        batch = slice(start, stop)
        step(block, saga, start, stop, LOGISTIC.derivative(block.share(start, stop), y[batch]), eta)
        gradients = LOGISTIC.derivative(X[batch] @ w, y[batch])[:, None] * X[batch]
        difference = (gradients - table[batch]).sum(axis=0)
        w = w - eta * (difference / (stop - start) + mean + strength * w)
        mean = mean + difference / rows
        table[batch] = gradients
    assert np.max(np.abs(block.weights() - w)) < 1e-12
    assert np.max(np.abs(block.mean_gradient() - X.T @ saga.table / rows)) < 1e-9
