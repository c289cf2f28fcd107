"""The block with an intercept against a plain block whose last column is written out as ones."""

import numpy as np
import pytest
import scipy.sparse as sp

from offbeat.errors import OutOfRange
from offbeat.learning import central
from offbeat.learning.blocks import make_block
from offbeat.learning.directions import Saga, Sgd, Svrg
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2, NONCONVEX

ROWS, WIDTH = 60, 7


@pytest.fixture(params=["dense", "sparse"])
def matrix(request):
    X = np.random.default_rng(3).standard_normal((ROWS, WIDTH)) * 0.4
    return X if request.param == "dense" else sp.csr_matrix(np.where(np.abs(X) > 0.3, X, 0.0))


def pair(matrix, penalty=L2, metric=1.0):
    """Ours, and the same with the ones written out."""
    ours = make_block(matrix, penalty=penalty, strength=0.01, intercept=True)
    ours.metric = metric
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    return ours, make_block(np.hstack([dense, np.ones((ROWS, 1))]), penalty=penalty, strength=0.01)


@pytest.mark.parametrize(  # a sparse block pays the nonconvex penalty later, by design: see its own tests
    ("matrix", "penalty"), [("dense", L2), ("dense", NONCONVEX), ("sparse", L2)], indirect=["matrix"]
)
@pytest.mark.parametrize("direction", [Sgd, lambda: Svrg(np.linspace(-0.2, 0.2, ROWS)), lambda: Saga(np.zeros(ROWS))])
def test_with_the_plain_metric_it_is_the_plain_column(matrix, penalty, direction):
    ours, plain = pair(matrix, penalty)
    directions = direction(), direction()
    mean = np.linspace(-0.1, 0.1, WIDTH + 1)
    rng = np.random.default_rng(0)
    for block in (ours, plain):
        block.set_mean_gradient(mean)
    for _ in range(40):
        start = int(rng.integers(0, ROWS - 9))
        theta = rng.standard_normal(9) * 0.3
        for block, own in zip((ours, plain), directions, strict=True):
            own.step(block, start, start + 9, theta, 0.1)
    assert ours.weights() == pytest.approx(plain.weights(), abs=1e-12)
    assert ours.mean_gradient() == pytest.approx(plain.mean_gradient(), abs=1e-12)
    assert ours.version == plain.version == 40
    assert ours.share(5, 30) == pytest.approx(plain.share(5, 30), abs=1e-12)


def test_shares_words_and_gradients_are_those_of_a_column_of_ones(matrix):
    ours, plain = pair(matrix)
    weights = np.linspace(-1, 1, WIDTH + 1)
    for block in (ours, plain):
        block.set_weights(weights)
    mask = np.arange(100, dtype=np.uint64) * np.uint64(2**57)
    for point in (None, weights[::-1].copy()):
        assert ours.share(0, ROWS, point) == pytest.approx(plain.share(0, ROWS, point), abs=1e-12)
        words = [b.masked_share(3, 20, point, mask, 5, 2.0**40, 1e6).astype(np.int64) for b in (ours, plain)]
        assert np.abs(words[0] - words[1]).max() <= 1  # one more rounding
        words = [b.encoded_share(3, 20, point, 2.0**40, 1e6).astype(np.int64) for b in (ours, plain)]
        assert np.abs(words[0] - words[1]).max() <= 1
    theta = np.linspace(0, 1, 12)
    sums = [np.zeros(WIDTH + 1), np.zeros(WIDTH + 1)]
    for block, into in zip((ours, plain), sums, strict=True):
        block.add_gradient(8, 20, theta, into)
    assert sums[0] == pytest.approx(sums[1], abs=1e-14)


def test_lanes_take_the_same_step(matrix):
    ours, _ = pair(matrix, metric=0.3)
    other, _ = pair(matrix, metric=0.3)
    residual = np.linspace(-1, 1, 10)
    ours.step(4, 14, residual, 0.2, 1 / ROWS)
    other.apply_gradient(*other.gradient_job(4, 14, residual)(), 10, 0.2, 1 / ROWS)
    assert other.weights() == pytest.approx(ours.weights(), abs=1e-13)
    assert other.share_job(0, 9, other.gather(0, 9))() == pytest.approx(ours.share(0, 9), abs=1e-12)


def test_any_metric_leads_to_the_same_optimum(matrix):
    y = np.where(np.random.default_rng(1).random(ROWS) < 0.8, 1.0, -1.0)
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    best, _ = central.optimum(np.hstack([dense, np.ones((ROWS, 1))]), y, LOGISTIC, 0.01)
    block, _ = pair(matrix, metric=0.2)
    for _ in range(4000):
        block.step(0, ROWS, LOGISTIC.derivative(block.share(0, ROWS), y), 1.0)
    assert block.weights() == pytest.approx(best, abs=1e-8)


def test_the_metric_follows_the_other_columns():
    flat = make_block(np.full((50, 3), 0.01), penalty=L2, strength=0.1, intercept=True)
    steep = make_block(np.full((50, 3), 5.0), penalty=L2, strength=0.1, intercept=True)
    assert flat.metric == pytest.approx(4 * 3e-4, rel=1e-6)
    assert steep.metric == 1.0
    assert flat.row_norms_squared(0, 2) == pytest.approx([3e-4 + flat.metric] * 2)
    assert flat.in_step_metric(np.ones(4)) == pytest.approx([1, 1, 1, flat.metric])


def test_restored_it_goes_on_to_the_bit(matrix):
    ours, _ = pair(matrix, metric=0.5)
    ours.step(0, 20, np.linspace(0, 1, 20), 0.3, 1 / ROWS)
    copy, _ = pair(matrix, metric=0.5)
    copy.restore(ours.snapshot())
    for block in (ours, copy):
        block.step(10, 30, np.linspace(-1, 1, 20), 0.3, 1 / ROWS)
    assert copy.weights().tolist() == ours.weights().tolist()


def test_an_intercept_out_of_range_is_refused(matrix):
    ours, _ = pair(matrix)
    ours.set_weights(np.append(np.zeros(WIDTH), 50.0))
    with pytest.raises(OutOfRange, match="intercept below 40"):
        ours.encoded_share(0, 5, None, 2.0**40, 40.0)
