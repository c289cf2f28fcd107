"""Blocks under arbitrary data and step sequences: dense, sparse and a plain numpy block are one and the same."""

from unittest import mock

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.learning import central
from offbeat.learning.blocks import make_block
from offbeat.learning.directions import Saga, Sgd, Svrg, step
from offbeat.learning.losses import LOSSES
from offbeat.learning.penalties import L2, NONCONVEX, PENALTIES
from offbeat.learning.sampling import BlockSampler
from offbeat.message.codec import decode_state, encode_state

SCALE = 2.0**40
TABLES = {
    "seed": st.integers(0, 2**32 - 1),
    "rows": st.integers(1, 40),
    "width": st.integers(1, 12),
    "density": st.sampled_from([0.0, 0.2, 1.0]),
    "batch": st.integers(1, 9),
}


class PlainBlock:
    """The formulas of `Block.step`, as they stand."""

    def __init__(self, X, penalty, strength):
        self.X, self.penalty, self.strength = X, penalty, strength
        self.w, self.mu = np.zeros(X.shape[1]), np.zeros(X.shape[1])
        self.metric = np.eye(X.shape[1])

    def step(self, start, stop, residual, eta, accumulate=0.0):
        g = self.X[start:stop].T @ residual
        slope = g / (stop - start) + self.mu + self.strength * self.penalty.gradient(self.w)
        self.w = self.w - eta * self.metric @ slope
        self.mu = self.mu + accumulate * g

    def step_by_curvature(self, second, diagonal):
        hessian = (self.X.T * second) @ self.X / len(self.X)
        held = np.maximum(self.penalty.curvature_beyond(self.w / 2), 1e-3 if self.strength else 0.0)
        curvature = (np.diag(np.diag(hessian)) if diagonal else hessian) + self.strength * np.diag(held)
        least = 1e-6 * np.diag(curvature).max()
        if least == 0.0:
            self.metric = np.eye(len(self.w))
        elif diagonal:
            self.metric = np.diag(1.0 / np.maximum(np.diag(curvature), least))
        else:
            self.metric = np.linalg.inv(curvature + least * np.eye(len(self.w)))


def table(seed, rows, width, density):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, width)) * (rng.random((rows, width)) < density)


def directions(method, rows, seed):
    if method == "sgd":
        return [Sgd() for _ in range(3)]
    start = np.random.default_rng(seed).uniform(-1, 1, rows) if method == "svrg" else np.zeros(rows)
    return [(Svrg if method == "svrg" else Saga)(start) for _ in range(3)]


@settings(max_examples=60, deadline=None)
@given(
    **TABLES,
    strength=st.sampled_from([0.0, 1e-3, 0.3]),
    loss=st.sampled_from(LOSSES),
    method=st.sampled_from(["sgd", "svrg", "saga"]),
    penalty=st.sampled_from(PENALTIES),
)
def test_dense_sparse_and_plain_agree(seed, rows, width, density, batch, strength, loss, method, penalty):
    X = table(seed, rows, width, density)
    y = np.random.default_rng(seed).choice([-1.0, 1.0], rows)
    eta = 0.4 / (loss.curvature * max(1.0, float(np.sum(X**2, axis=1).max())))
    if penalty is NONCONVEX and strength:
        strength = 0.13 / eta  # every step pays at once: exactly the dense step
    plain = PlainBlock(X, penalty, strength)
    dense = make_block(X, penalty=penalty, strength=strength)
    sparse = make_block(scipy.sparse.csr_matrix(X), penalty=penalty, strength=strength)
    rules = directions(method, rows, seed)
    if method == "svrg":
        plain.mu = X.T @ rules[0].table / rows
        dense.set_mean_gradient(plain.mu)
        sparse.set_mean_gradient(plain.mu)
    sampler = BlockSampler(rows, batch, np.random.default_rng(seed))
    for _ in range(40):
        start, stop = sampler.next()
        theta = loss.derivative(X[start:stop] @ plain.w, y[start:stop])
        plain.step(start, stop, rules[0].residual(start, stop, theta), eta, rules[0].accumulate)
        step(dense, rules[1], start, stop, theta, eta)
        step(sparse, rules[2], start, stop, theta, eta)
    size = max(1.0, float(np.abs(plain.w).max()))
    for block in (dense, sparse):
        np.testing.assert_allclose(block.weights(), plain.w, atol=1e-11 * size)
        np.testing.assert_allclose(block.mean_gradient(), plain.mu, atol=1e-11 * size)
        np.testing.assert_allclose(block.share(0, rows), X @ plain.w, atol=1e-10 * size)


@settings(max_examples=120, deadline=None)
@given(
    **TABLES,
    kind=st.sampled_from(["whole", "diagonal", "sparse"]),
    strength=st.sampled_from([0.0, 0.1, 2.0]),
    method=st.sampled_from(["svrg", "saga"]),
    penalty=st.sampled_from(PENALTIES),
)
def test_by_curvature_blocks_do_as_the_plain_one(kind, seed, rows, width, density, batch, strength, method, penalty):
    X = table(seed, rows, width, density)
    rng = np.random.default_rng(seed)
    y = rng.choice([-1.0, 1.0], rows)
    plain = PlainBlock(X, penalty, strength)
    block = make_block(scipy.sparse.csr_matrix(X) if kind == "sparse" else X, penalty=penalty, strength=strength)
    rules = directions(method, rows, seed)
    plain.mu = X.T @ rules[0].table / rows
    block.set_mean_gradient(plain.mu)
    sampler = BlockSampler(rows, batch, np.random.default_rng(seed))
    for at in range(24):
        if at % 8 == 0:
            second = rng.uniform(0.0, 0.25, rows)
            plain.step_by_curvature(second, diagonal=kind != "whole")
            with mock.patch("offbeat.learning.dense.WHOLE_WIDTH_MOST", 0 if kind == "diagonal" else 128):
                block.step_by_curvature(second)
            steepest = strength * (np.diag(plain.metric) * penalty.curvature_beyond(plain.w / 2)).max()
            eta = 0.13 / steepest if steepest > 0.0 else 0.05  # a sparse block pays at once: exactly the dense step
        start, stop = sampler.next()
        theta = LOSSES[0].derivative(X[start:stop] @ plain.w, y[start:stop])
        plain.step(start, stop, rules[0].residual(start, stop, theta), eta, rules[0].accumulate)
        step(block, rules[1], start, stop, theta, eta)
    size = max(1.0, float(np.abs(plain.w).max()))
    assert np.isfinite(size)
    np.testing.assert_allclose(block.weights(), plain.w, atol=1e-8 * size)
    np.testing.assert_allclose(block.mean_gradient(), plain.mu, atol=1e-8 * size)
    gradient = rng.standard_normal(width)
    stepped = plain.metric @ gradient
    np.testing.assert_allclose(block.in_step_metric(gradient), stepped, atol=1e-8 * np.abs(stepped).max())
    norms = np.einsum("ij,jk,ik->i", X, plain.metric, X)
    np.testing.assert_allclose(block.row_norms_squared(0, rows), norms, atol=1e-8 * max(1.0, norms.max()))


@pytest.mark.parametrize("penalty", [L2, NONCONVEX], ids=lambda penalty: penalty.name)
def test_by_curvature_the_penalty_paid_every_few_steps_rests_where_the_dense_one_does(penalty):
    X = table(0, 60, 20, 0.3) * np.geomspace(0.1, 10.0, 20)
    y = np.random.default_rng(0).choice([-1.0, 1.0], 60)
    dense = make_block(X, penalty=penalty, strength=0.02)
    sparse = make_block(scipy.sparse.csr_matrix(X), penalty=penalty, strength=0.02)
    rules = [Saga(np.zeros(60)), Saga(np.zeros(60))]
    with mock.patch("offbeat.learning.dense.WHOLE_WIDTH_MOST", 0):  # as sparse blocks do
        for block in (dense, sparse):
            block.step_by_curvature(np.full(60, 0.25))
    sampler = BlockSampler(60, 8, np.random.default_rng(0))
    apart = []
    for _ in range(12000):
        start, stop = sampler.next()
        for block, rule in zip((dense, sparse), rules, strict=True):
            theta = LOSSES[0].derivative(block.share(start, stop), y[start:stop])
            step(block, rule, start, stop, theta, 0.01)
        apart.append(float(np.linalg.norm(sparse.weights() - dense.weights())))
    size = float(np.linalg.norm(dense.weights()))
    assert 0.0 < max(apart) < 0.05 * size
    assert apart[-1] < 0.005 * size
    if penalty is L2:  # read back exactly, not to second order
        assert apart[-1] < 1e-6 * size
        expected = central.optimum(X, y, LOSSES[0], 0.02)[0]
        np.testing.assert_allclose(sparse.weights(), expected, atol=1e-6 * size)


def test_by_curvature_a_block_goes_on_from_its_snapshot():
    X = table(3, 40, 9, 0.4)
    for matrix in (X, scipy.sparse.csr_matrix(X)):
        one, other = (make_block(matrix, penalty=NONCONVEX, strength=0.05) for _ in range(2))
        one.step_by_curvature(np.linspace(0.0, 0.25, 40))
        one.set_mean_gradient(np.linspace(-1.0, 1.0, 9))
        one.step(0, 7, np.ones(7), 0.03, 0.01)
        other.restore(decode_state(encode_state(one.snapshot())))
        for block in (one, other):
            block.step(5, 20, np.linspace(-1.0, 1.0, 15), 0.03, 0.01)
        assert np.array_equal(one.weights(), other.weights())
        assert np.array_equal(one.mean_gradient(), other.mean_gradient())


@pytest.mark.parametrize("whole", [False, True])
def test_by_curvature_a_gradient_from_a_lane_is_the_step_itself(whole):
    width = 8 if whole else 400
    X = table(4, 40, width, 0.5 if whole else 0.01)
    direct, laned = (make_block(scipy.sparse.csr_matrix(X), penalty=NONCONVEX, strength=0.05) for _ in range(2))
    for block in (direct, laned):
        block.step_by_curvature(np.full(40, 0.25))
    residual = np.linspace(-1.0, 1.0, 12)
    direct.step(3, 15, residual, 0.03)
    columns, values = laned.gradient_job(3, 15, residual)()
    assert (columns is None) == whole
    laned.apply_gradient(columns, values, 12, 0.03)
    np.testing.assert_allclose(laned.weights(), direct.weights(), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(laned.share_job(0, 40, laned.gather(0, 40))(), direct.share(0, 40), atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), strength=st.sampled_from([0.0, 1e-4, 0.05]), eta=st.sampled_from([0.05, 0.5]))
def test_lazy_equals_dense(seed, strength, eta):
    """A coordinate untouched for 10^3 steps arrives where single steps would have brought it."""
    rng = np.random.default_rng(seed)
    X = np.zeros((2, 3))
    X[0, 0] = X[1, 1] = 1.0
    block = make_block(scipy.sparse.csr_matrix(X), penalty=L2, strength=strength)
    w, mu = rng.standard_normal(3), rng.standard_normal(3)
    block.set_weights(w)
    block.set_mean_gradient(mu)
    for r in rng.standard_normal(1000):
        block.step(0, 1, np.array([r]), eta)
        w = w - eta * (r * X[0] + mu + strength * w)
    np.testing.assert_allclose(block.weights(), w, rtol=1e-10, atol=1e-10)


def test_many_steps_fold_before_the_scalars_lose_their_digits():
    """eta strength = 0.4: the scale falls under 1e-8 every 36 steps; eta = 1e5: the shift passes 1e6 every 10."""
    X = np.eye(4)
    for strength, eta, steps in ((0.4, 1.0, 2000), (0.0, 1e5, 100)):
        block = make_block(scipy.sparse.csr_matrix(X), penalty=L2, strength=strength)
        plain = PlainBlock(X, L2, strength)
        plain.mu = np.array([1e-3, -2e-3, 0.0, 1.0])
        block.set_mean_gradient(plain.mu)
        rng = np.random.default_rng(0)
        for _ in range(steps):
            i = int(rng.integers(4))
            residual = rng.standard_normal(1)
            block.step(i, i + 1, residual, eta, 0.01)
            plain.step(i, i + 1, residual, eta, 0.01)
        np.testing.assert_allclose(block.weights(), plain.w, rtol=1e-10)


@pytest.mark.parametrize("eta", [0.02, 0.2, 0.24])
def test_nonconvex_penalty_paid_every_few_steps(eta):
    """Paid after 25, 2 or 2 steps: near the dense trajectory all the way, and at rest in the same place."""
    X = table(0, 60, 20, 0.3)
    y = np.random.default_rng(0).choice([-1.0, 1.0], 60)
    dense = make_block(X, penalty=NONCONVEX, strength=0.5)
    sparse = make_block(scipy.sparse.csr_matrix(X), penalty=NONCONVEX, strength=0.5)
    rules = [Saga(np.zeros(60)), Saga(np.zeros(60))]
    for block in (dense, sparse):
        block.set_weights(np.linspace(-1.5, 1.5, 20))
    sampler = BlockSampler(60, 8, np.random.default_rng(0))
    apart = []
    for _ in range(int(600 / eta)):
        start, stop = sampler.next()
        for block, rule in zip((dense, sparse), rules, strict=True):
            theta = LOSSES[0].derivative(block.share(start, stop), y[start:stop])
            step(block, rule, start, stop, theta, eta)
        apart.append(float(np.linalg.norm(sparse.weights() - dense.weights())))
    assert 0.0 < max(apart) < 0.02 * np.linalg.norm(np.linspace(-1.5, 1.5, 20))
    assert apart[-1] < 0.005 * np.linalg.norm(dense.weights())


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**20) + 1, 2.0**20 - 1), min_size=1, max_size=30),
    bits=st.integers(8, 42),
    at=st.integers(0, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_fixed_point_round_trip(values, bits, at, seed):
    """Each word is within half a unit of the last place, and sums do not depend on order or masks."""
    exact = np.array(values)
    scale = 2.0**bits
    mask = np.random.default_rng(seed).integers(0, 2**64, len(exact) + 6, dtype=np.uint64)
    for X in (exact[:, None], scipy.sparse.csr_matrix(exact[:, None])):
        block = make_block(X, penalty=L2, strength=0.1)
        one = np.ones(1)
        plain = block.encoded_share(0, len(exact), one, scale, 2.0**20)
        masked = block.masked_share(0, len(exact), one, mask, at, scale, 2.0**20)
        assert np.array_equal(masked - mask[at : at + len(exact)], plain)
        assert np.all(np.abs(plain.view(np.int64) / scale - exact) <= 0.5 / scale)
