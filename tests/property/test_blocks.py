"""Blocks under arbitrary data and steps: dense and sparse blocks do what a plain numpy block does."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.learning import central
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2, NONCONVEX, NONE, elastic_net
from offbeat.learning.sampling import Schedule
from offbeat.message.codec import decode_state, encode_state

SCALE = 2.0**40
METHODS = ("sgd", "svrg", "saga")
PENALTIES = (L2, NONCONVEX, NONE, elastic_net(0.4))
TABLES = {
    "seed": st.integers(0, 2**32 - 1),
    "rows": st.integers(1, 40),
    "width": st.integers(1, 12),
    "density": st.sampled_from([0.0, 0.2, 1.0]),
    "batch": st.integers(1, 9),
    "sparse": st.booleans(),
    "outputs": st.sampled_from([1, 3]),
    "strength": st.sampled_from([0.0, 0.1, 2.0]),
    "method": st.sampled_from(METHODS),
    "penalty": st.sampled_from(PENALTIES),
    "intercept": st.booleans(),
}


class PlainBlock:
    """The formulas of `Block`, as they stand: rows with their means taken off and a one at the end."""

    def __init__(self, X, *, penalty, strength, outputs, method, centre):
        self.penalty, self.strength, self.method = penalty, strength, method
        self.rows, self.width = X.shape
        self.X = np.hstack([X - X.mean(axis=0) if centre else X, np.ones((self.rows, 1))])
        self.w = np.zeros((outputs, self.width + 1))
        self.mu = np.zeros_like(self.w)
        self.table = np.zeros((outputs, self.rows))
        self.metrics = [np.eye(self.width) for _ in range(outputs)]
        self.constant = 0.0

    def share(self, start, stop, w=None):
        return (self.X[start:stop] @ (self.w if w is None else w).T).T.ravel()

    def step(self, start, stop, theta, eta):
        rows = self.X[start:stop]
        for k, derivatives in enumerate(theta.reshape(len(self.w), -1)):
            known = self.table[k, start:stop] if self.method != "sgd" else 0.0
            g = rows.T @ (derivatives - known)
            self._follow(k, g / len(rows) + self._mean(k), eta)
            if self.method == "saga":
                self.mu[k] += g / self.rows
                self.table[k, start:stop] = derivatives

    def step_along_mean(self, eta):
        for k in range(len(self.w)):
            self._follow(k, self._mean(k), eta)

    def _mean(self, k):
        """SGD knows the mean gradient of its last refreshes, and does not step along it."""
        return np.zeros(self.width + 1) if self.method == "sgd" else self.mu[k].copy()

    def _follow(self, k, slope, eta):
        w, metric = self.w[k], self.metrics[k]
        slope[:-1] += self.strength * self.penalty.smooth * self.penalty.gradient(w[:-1])
        w[:-1] -= eta * metric @ slope[:-1]
        w[-1] -= eta * self.constant * slope[-1]
        bend = eta * self.strength * self.penalty.l1 * np.diag(metric)
        w[:-1] = np.sign(w[:-1]) * np.maximum(np.abs(w[:-1]) - bend, 0.0)

    def refresh(self, start, stop, theta):
        theta = theta.reshape(len(self.w), -1)
        self.mu += (theta - self.table[:, start:stop]) @ self.X[start:stop] / self.rows
        self.table[:, start:stop] = theta

    def take_metric(self, second, kind, one_for_all):
        """`one_for_all` outputs, as sparse blocks have it: the mean curvature, and the smallest weights."""
        smallest = np.abs(self.w[:, :-1]).min(axis=0)
        seconds = [second.mean(axis=0)] * len(second) if one_for_all else second
        weights = [smallest] * len(second) if one_for_all else self.w[:, :-1]
        whole = kind == "whole" and self.penalty.l1 == 0.0 and not one_for_all
        self.metrics = [self._metric(h, w, whole) for h, w in zip(seconds, weights, strict=True)]

    def _metric(self, second, w, whole):
        X = self.X[:, :-1]
        hessian = (X.T * second) @ X / self.rows
        held = np.maximum(self.penalty.curvature_beyond(w / 2), 1e-3 if self.strength else 0.0)
        curvature = hessian + self.strength * np.diag(held)
        least = 1e-6 * np.diag(curvature).max()
        if least == 0.0:
            return np.eye(self.width)
        if whole:
            return np.linalg.inv(curvature + least * np.eye(self.width))
        return np.diag(1.0 / np.maximum(np.diag(curvature), least))


def table(seed, rows, width, density):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, width)) * (rng.random((rows, width)) < density)


def pair(X, sparse, *, penalty=L2, strength=0.1, outputs=1, method="svrg", intercept=False):
    """A block, and the plain one that it must equal; with an intercept both move their constants."""
    shared = {"penalty": penalty, "strength": strength, "outputs": outputs, "method": method}
    block = make_block(scipy.sparse.csr_matrix(X) if sparse else X, intercept=intercept, **shared)
    plain = PlainBlock(X, centre=intercept and not sparse, **shared)
    if intercept:
        plain.constant = 0.7
        block.move_constant(np.full(outputs, 0.7))
    return block, plain


def assert_same(block, plain, atol):
    atol = atol * max(1.0, float(np.abs(plain.w).max()), float(np.abs(plain.mu).max()))
    np.testing.assert_allclose(block.weights(), plain.w, atol=atol)
    np.testing.assert_allclose(block.mean_gradient(), plain.mu, atol=atol)
    for last in (1, block.rows):
        for share in (block.share(0, last), block.share_job(0, last)()):
            np.testing.assert_allclose(share, plain.share(0, last), atol=20 * atol)
    np.testing.assert_array_equal(block.table, plain.table)
    np.testing.assert_allclose(plain.table @ plain.X / plain.rows, plain.mu, atol=atol)


def through_lanes(block, start, stop, theta, eta):
    residual = block.residual(start, stop, theta)
    gradient = block.gradient_job(start, stop, residual)()
    block.apply_gradient(gradient, stop - start, eta)


def step_size(plain, sparse):
    """Where a sparse block pays its penalty at once, its step is exactly the dense one."""
    beyond = plain.penalty.curvature_beyond(plain.w[:, :-1] / 2)
    steepest = plain.strength * max((np.diag(m) * b).max() for m, b in zip(plain.metrics, beyond, strict=True))
    return 0.13 / steepest if steepest > 0.0 and sparse else 0.05


@settings(max_examples=150, deadline=None)
@given(**TABLES, kind=st.sampled_from(["none", "diagonal", "whole"]), lanes=st.booleans())
def test_blocks_do_as_the_plain_one(
    seed, rows, width, density, batch, sparse, outputs, strength, method, penalty, intercept, kind, lanes
):
    X = table(seed, rows, width, density)
    rng = np.random.default_rng(seed)
    block, plain = pair(
        X, sparse, penalty=penalty, strength=strength, outputs=outputs, method=method, intercept=intercept
    )
    schedule, eta = Schedule(rows, batch, seed), step_size(plain, sparse)
    for at in range(24):
        if at % 8 == 0 and kind != "none":
            second = 2.0**at * rng.uniform(0.05, 0.25, (outputs, rows))
            plain.take_metric(second, kind, one_for_all=sparse)
            block.step_by_curvature(second, kind)
            eta = step_size(plain, sparse)
        start, stop = schedule.block(at)
        theta = rng.uniform(-1.0, 1.0, outputs * (stop - start))
        if at % 8 == 3:
            block.refresh(start, stop, theta)
            plain.refresh(start, stop, theta)
            continue
        if at % 8 == 5:
            block.step_along_mean(eta)
            plain.step_along_mean(eta)
            continue
        if lanes:
            through_lanes(block, start, stop, theta, eta)
        else:
            block.step(start, stop, theta, eta)
        plain.step(start, stop, theta, eta)
    assert_same(block, plain, 1e-9)
    vectors = rng.standard_normal((width + 1, 2))
    metric = scipy.linalg.block_diag(plain.metrics[0], [[plain.constant]])
    stepped = metric @ vectors
    np.testing.assert_allclose(block.in_metric(vectors), stepped, atol=1e-8 * np.abs(stepped).max())
    norms = np.einsum("ij,jk,ik->i", plain.X, metric, plain.X)
    np.testing.assert_allclose(block.row_norms_squared(0, rows), norms, atol=1e-8 * max(1.0, norms.max()))


@settings(max_examples=60, deadline=None)
@given(**TABLES)
def test_shares_words_and_gradients_at_any_point(
    seed, rows, width, density, batch, sparse, outputs, strength, method, penalty, intercept
):
    X = table(seed, rows, width, density)
    block, plain = pair(X, sparse, outputs=outputs, method=method, intercept=intercept)
    rng = np.random.default_rng(seed)
    own, point = rng.standard_normal((2, outputs, width + 1))
    block.set_weights(own)
    plain.w = own
    start, stop = Schedule(rows, batch, seed).block(batch)
    count = outputs * (stop - start)
    mask = rng.integers(0, 2**64, count + 5, dtype=np.uint64)
    for at in (None, point):
        exact = plain.share(start, stop, at)
        np.testing.assert_allclose(block.share(start, stop, at), exact, atol=1e-12)
        words = block.answer(start, stop, at, None, 0, SCALE, 2.0**20)
        assert np.all(np.abs(words.view(np.int64) / SCALE - exact) <= 0.5 / SCALE + 1e-12)
        masked = block.answer(start, stop, at, mask, 3, SCALE, 2.0**20)
        assert np.all(np.abs((masked - mask[3 : 3 + count] - words).view(np.int64)) <= 8)
    np.testing.assert_allclose(block.share_job(start, stop)(), plain.share(start, stop), atol=1e-12)
    theta = rng.standard_normal(count)
    into = np.ones((outputs, width + 1))
    block.add_gradient(start, stop, theta, into)
    expected = 1.0 + theta.reshape(outputs, -1) @ plain.X[start:stop] / rows
    np.testing.assert_allclose(into, expected, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(**TABLES, kind=st.sampled_from(["none", "diagonal", "whole"]))
def test_a_block_goes_on_from_its_snapshot_to_the_bit(
    seed, rows, width, density, batch, sparse, outputs, strength, method, penalty, intercept, kind
):
    X, rng = table(seed, rows, width, density), np.random.default_rng(seed)
    shared = {"penalty": penalty, "strength": strength, "outputs": outputs, "method": method, "intercept": intercept}
    one, other = (pair(X, sparse, **shared)[0] for _ in range(2))
    one.step_by_curvature(rng.uniform(0.05, 0.25, (outputs, rows)), kind)
    other.step(0, rows, np.ones(outputs * rows), 0.3)
    schedule = Schedule(rows, batch, seed)

    def steps(blocks, numbers):
        for number in numbers:
            start, stop = schedule.block(number)
            theta = rng.uniform(-1.0, 1.0, outputs * (stop - start))
            for block in blocks:
                block.step(start, stop, theta, 0.02)
                block.refresh(start, stop, theta / 2)
                block.step_along_mean(0.01)

    steps([one], range(7))
    other.restore(decode_state(encode_state(one.snapshot())))
    again = rng.uniform(0.05, 0.25, (outputs, rows))
    steps([one, other], range(7, 14))
    for block in (one, other):
        block.step_by_curvature(again, kind)
    steps([one, other], range(14, 18))
    assert np.array_equal(one.weights(), other.weights())
    assert np.array_equal(one.mean_gradient(), other.mean_gradient())
    assert np.array_equal(one.table, other.table)
    assert (one.version, one.metric_kind) == (other.version, other.metric_kind) == (36, kind)


@pytest.mark.parametrize("penalty", [L2, NONCONVEX], ids=lambda penalty: penalty.name)
def test_by_curvature_the_penalty_paid_every_few_steps_rests_where_the_dense_one_does(penalty):
    X = table(0, 60, 20, 0.3) * np.geomspace(0.1, 10.0, 20)
    y = np.random.default_rng(0).choice([-1.0, 1.0], 60)
    dense, sparse = (pair(X, kind, penalty=penalty, strength=0.02, method="saga")[0] for kind in (False, True))
    for block in (dense, sparse):
        block.step_by_curvature(np.full((1, 60), 0.25), "diagonal")
    apart = walk_together(dense, sparse, y, 0.01, 12000)
    size = float(np.linalg.norm(dense.weights()))
    assert 0.0 < max(apart) < 0.05 * size
    assert apart[-1] < 0.005 * size
    if penalty is L2:  # read back exactly, not to second order
        assert apart[-1] < 1e-6 * size
        expected = central.optimum(X, y, LOGISTIC, 0.02)[0]
        np.testing.assert_allclose(sparse.weights()[0, :-1], expected, atol=1e-6 * size)


@pytest.mark.parametrize("eta", [0.02, 0.2, 0.24])
def test_nonconvex_penalty_paid_every_few_steps(eta):
    """Paid after 25, 2 or 2 steps: near the dense trajectory all the way, and at rest in the same place."""
    X = table(0, 60, 20, 0.3)
    y = np.random.default_rng(0).choice([-1.0, 1.0], 60)
    dense, sparse = (pair(X, kind, penalty=NONCONVEX, strength=0.5, method="saga")[0] for kind in (False, True))
    begin = np.append(np.linspace(-1.5, 1.5, 20), 0.0)[None, :]
    for block in (dense, sparse):
        block.set_weights(begin)
    apart = walk_together(dense, sparse, y, eta, int(600 / eta))
    assert 0.0 < max(apart) < 0.02 * np.linalg.norm(begin)
    assert apart[-1] < 0.005 * np.linalg.norm(dense.weights())


def walk_together(one, other, y, eta, steps):
    """How far apart the two are after each step."""
    schedule, apart = Schedule(len(y), 8, 0), []
    for number in range(steps):
        start, stop = schedule.block(number)
        for block in (one, other):
            block.step(start, stop, LOGISTIC.derivative(block.share(start, stop), y[start:stop]), eta)
        apart.append(float(np.linalg.norm(one.weights() - other.weights())))
    return apart


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), strength=st.sampled_from([0.0, 1e-4, 0.05]), eta=st.sampled_from([0.05, 0.5]))
def test_lazy_equals_dense(seed, strength, eta):
    """A coordinate untouched for 10^3 steps arrives where single steps would have brought it."""
    rng = np.random.default_rng(seed)
    X = np.zeros((2, 3))
    X[0, 0] = X[1, 1] = 1.0
    block, plain = pair(X, True, strength=strength)
    plain.w, plain.mu = rng.standard_normal((2, 1, 4))
    block.set_weights(plain.w)
    block.adopt(plain.table, plain.mu)
    for r in rng.standard_normal(1000):
        block.step(0, 1, np.array([r]), eta)
        plain.step(0, 1, np.array([r]), eta)
    np.testing.assert_allclose(block.weights(), plain.w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("strength", "eta", "steps"), [(0.4, 1.0, 2000), (0.0, 1e5, 100)])
def test_many_steps_fold_before_the_scalars_lose_their_digits(strength, eta, steps):
    """eta strength = 0.4: the scale falls under 1e-8 every 36 steps; eta = 1e5: the shift passes 1e6 every 10."""
    block, plain = pair(np.eye(4), True, strength=strength, method="saga")
    plain.mu = np.array([[1e-3, -2e-3, 0.0, 1.0, 0.0]])
    block.adopt(plain.table, plain.mu)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        i = int(rng.integers(4))
        theta = rng.standard_normal(1)
        block.step(i, i + 1, theta, eta)
        plain.step(i, i + 1, theta, eta)
    np.testing.assert_allclose(block.weights(), plain.w, rtol=1e-10)


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
        one = np.array([[1.0, 0.0]])
        plain = block.answer(0, len(exact), one, None, 0, scale, 2.0**20)
        masked = block.answer(0, len(exact), one, mask, at, scale, 2.0**20)
        assert np.array_equal(masked - mask[at : at + len(exact)], plain)
        assert np.all(np.abs(plain.view(np.int64) / scale - exact) <= 0.5 / scale)
