"""Blocks by exact small numbers: shares, fixed point, one step, refusals, snapshots, lanes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse

from offbeat.errors import BadData, BadJob, OutOfRange
from offbeat.learning.blocks import finish_product, make_block
from offbeat.learning.losses import LOGISTIC, LOSSES
from offbeat.learning.penalties import L2, NONCONVEX, NONE, PENALTIES, elastic_net

SCALE = 2.0**40
LIMIT = 2.0**20
X = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
KINDS = {"dense": lambda x: x, "sparse": scipy.sparse.csr_matrix}
ALL_PENALTIES = (*PENALTIES, elastic_net(0.3))


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def block_with(kind, weights, penalty=L2, strength=0.5, method="svrg", table=X):
    block = make_block(kind(table), penalty=penalty, strength=strength, method=method)
    block.set_weights(with_constant(weights))
    return block


def with_constant(weights, constant=0.0):
    return np.append(np.asarray(weights, dtype=float), constant)[None, :]


def random_rows(rows=200, width=30, seed=0):
    return scipy.sparse.random(rows, width, density=0.2, random_state=seed, format="csr")


def test_shape_and_cost(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    assert (block.rows, block.width, block.outputs, block.version) == (4, 3, 1, 0)
    assert block.nonzeros(0, 4) == block.nonzeros_total == (4 if scipy.sparse.issparse(kind(X)) else 12)
    assert block.weights().shape == block.mean_gradient().shape == (1, 4)
    assert block.table.shape == (1, 4)


def test_share(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    assert block.share(0, 4).tolist() == [7.0, -2.0, 0.5, 0.0]
    assert block.share(1, 3, with_constant([4.0, 5.0, 6.0], 0.25)).tolist() == [-4.75, 2.25]


def test_shares_of_several_outputs_follow_one_another(kind):
    block = make_block(kind(X), penalty=L2, strength=0.5, outputs=2)
    block.set_weights(np.array([[1.0, 2.0, 3.0, 0.0], [0.0, 1.0, 0.0, 10.0]]))
    assert block.share(0, 2).tolist() == [7.0, -2.0, 10.0, 9.0]
    mask = np.arange(5, dtype=np.uint64)
    assert (block.answer(0, 2, None, mask, 1, 4.0, LIMIT).view(np.int64)).tolist() == [29, -6, 43, 40]


def test_one_step_by_hand(kind):
    """g = (1, 2, 2) from residuals (1, -2, 0); b = 3; eta 0.5; penalty l2 of strength 0.5; mu = (1, 0, 0)."""
    block = block_with(kind, [1.0, 2.0, 3.0], method="saga")
    block.adopt(np.zeros((1, 4)), with_constant([1.0, 0.0, 0.0]))
    block.step(0, 3, np.array([1.0, -2.0, 0.0]), 0.5)
    expected = np.array([1.0, 2.0, 3.0]) - 0.5 * (np.array([1, 2, 2]) / 3 + [1, 0, 0] + 0.5 * np.array([1, 2, 3]))
    np.testing.assert_allclose(block.weights(), with_constant(expected), atol=1e-15)
    np.testing.assert_allclose(block.mean_gradient(), with_constant([1.25, 0.5, 0.5], -0.25), rtol=1e-15)
    assert block.table.tolist() == [[1.0, -2.0, 0.0, 0.0]]
    assert block.version == 1


def test_one_step_of_an_elastic_net_by_hand(kind):
    """l2 part 0.5 * 0.5 w, then every weight comes nearer to zero by eta 0.5 * strength 0.5 * 0.5 = 0.125."""
    block = block_with(kind, [1.0, 0.1, -3.0], penalty=elastic_net(0.5))
    block.step(0, 1, np.array([1.0]), 0.5)
    smooth = np.array([1.0, 0.1, -3.0]) - 0.5 * (X[0] + 0.25 * np.array([1.0, 0.1, -3.0]))
    assert smooth == pytest.approx([0.375, 0.0875, -3.625])
    assert block.weights() == pytest.approx(with_constant([0.25, 0.0, -3.5]))
    assert block.weights()[0, 1] == 0.0
    block.step_along_mean(0.5)
    assert block.weights() == pytest.approx(with_constant([0.25 * 0.875 - 0.125, 0.0, -3.5 * 0.875 + 0.125]))


@pytest.mark.parametrize("eta", [0.5, 2.0, 3.0])
def test_steps_that_shrink_all_the_way_and_beyond(kind, eta):
    """eta * strength = 1 makes the lazy scale exactly zero, more than 1 negative: both must fold, not divide."""
    block = block_with(kind, [1.0, 2.0, 3.0])
    mu = np.array([0.5, 0.0, -1.0])
    block.adopt(np.zeros((1, 4)), with_constant(mu))
    w = np.array([1.0, 2.0, 3.0])
    for _ in range(3):
        block.step(0, 1, np.array([0.1]), eta)
        w = w - eta * (0.1 * X[0] + mu + 0.5 * w)
    np.testing.assert_allclose(block.weights(), with_constant(w), rtol=1e-14)


def test_add_gradient_sums_to_the_full_gradient(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    theta = np.array([1.0, -2.0, 4.0, 8.0])
    into = np.zeros((1, 4))
    block.add_gradient(0, 1, theta[:1], into)
    block.add_gradient(1, 4, theta[1:], into)
    np.testing.assert_allclose(into, with_constant(X.T @ theta / 4, theta.mean()), rtol=1e-15)


def test_a_displacement_is_added_to_what_the_weights_have_become(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    block.step(0, 2, np.ones(2), 0.1)
    before = block.weights()
    block.add_to_weights(with_constant([0.0, -1.0, 2.0], 0.5))
    np.testing.assert_allclose(block.weights(), before + with_constant([0.0, -1.0, 2.0], 0.5), rtol=1e-14)


def test_fixed_point_round_trip(kind):
    rng = np.random.default_rng(0)
    block = block_with(kind, rng.standard_normal(30) * 100, NONE, 0.0, table=random_rows().toarray())
    mask = rng.integers(0, 2**64, 300, dtype=np.uint64)
    words = block.answer(10, 150, None, mask, 7, SCALE, LIMIT)
    plain = block.answer(10, 150, None, None, 0, SCALE, LIMIT)
    assert np.array_equal(words - mask[7:147], plain)
    exact = block.share(10, 150)
    assert np.max(np.abs(plain.view(np.int64) / SCALE - exact)) <= 2.0**-41
    assert np.array_equal(block.answer(10, 150, block.weights(), mask, 7, SCALE, LIMIT), words)


def test_finish_product_decodes_adds_and_differentiates():
    rng = np.random.default_rng(0)
    own, other, labels = rng.standard_normal(50), rng.standard_normal(50), rng.choice([-1.0, 1.0], 60)
    weights = rng.uniform(0.5, 2.0, 60)
    words = np.rint(other * SCALE).astype(np.int64).view(np.uint64)
    for loss in LOSSES:
        z, theta = finish_product(words, own, 7, labels, loss, SCALE)
        np.testing.assert_allclose(z, own + other, atol=2.0**-40)
        np.testing.assert_allclose(theta, loss.derivative(z, labels[7:57]), rtol=1e-15)
        _, weighted = finish_product(words, own, 7, labels, loss, SCALE, weights)
        np.testing.assert_allclose(weighted, weights[7:57] * theta, rtol=1e-15)
    with pytest.raises(ValueError, match="Lengths differ"):
        finish_product(words, own[:-1], 7, labels, LOGISTIC, SCALE)


def test_read_only_arrays_are_welcome(kind):
    block = block_with(kind, [1.0, 2.0, 3.0], method="saga")
    theta, point, mask = np.array([1.0, 2.0]), with_constant([1.0, 2.0, 3.0]), np.zeros(8, np.uint64)
    for array in (theta, point, mask):
        array.flags.writeable = False
    block.answer(0, 2, point, mask, 0, SCALE, LIMIT)
    block.step(0, 2, theta, 0.1)
    block.refresh(0, 2, theta)
    block.apply_gradient(block.gradient_job(0, 2, block.residual(0, 2, theta))(), 2, 0.1)
    block.set_weights(point)
    block.add_to_weights(point)
    block.adopt(np.zeros((1, 4)), point)
    block.add_gradient(0, 2, theta, np.zeros((1, 4)))
    finish_product(mask[:2], theta, 0, theta, LOGISTIC, SCALE)
    assert (theta.tolist(), point.tolist(), mask.any()) == ([1.0, 2.0], [[1.0, 2.0, 3.0, 0.0]], False)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**20, -(2.0**20), 1e300])
def test_what_does_not_fit_is_refused(kind, bad):
    block = make_block(kind(X), penalty=L2, strength=0.5)
    weights = with_constant([0.0, bad, 0.0])
    mask = np.zeros(4, np.uint64)
    with pytest.raises(OutOfRange, match="one is too large"):
        block.answer(0, 4, weights, mask, 0, SCALE, LIMIT)
    with pytest.raises(OutOfRange, match="Nothing was sent"):
        block.answer(0, 4, weights, None, 0, SCALE, LIMIT)
    block.set_weights(weights)
    with pytest.raises(OutOfRange):
        block.answer(0, 4, None, mask, 0, SCALE, LIMIT)
    block.set_weights(with_constant([0.0, 0.0, 0.0], bad))
    with pytest.raises(OutOfRange, match="one is too large"):
        block.answer(0, 4, None, mask, 0, SCALE, LIMIT)


def test_a_share_of_any_output_that_does_not_fit_is_refused(kind):
    block = make_block(kind(X), penalty=L2, strength=0.5, outputs=3)
    weights = np.zeros((3, 4))
    weights[1:, 1] = -LIMIT
    with pytest.raises(OutOfRange, match="one is too large"):
        block.answer(0, 3, weights, None, 0, SCALE, LIMIT)


def test_a_limit_wider_than_the_word_is_refused(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    with pytest.raises(OutOfRange, match="does not fit in 64-bit words"):
        block.answer(0, 4, None, None, 0, 2.0**60, 2.0**10)


@pytest.mark.parametrize("method", ["sgd", "svrg", "saga"])
@pytest.mark.parametrize("theta", [np.nan, np.inf])
def test_a_poisoned_step_shows_in_the_next_share(kind, theta, method):
    block = block_with(kind, [1.0, 2.0, 3.0], method=method)
    block.step(0, 2, np.array([theta, 0.0]), 0.1)
    with pytest.raises(OutOfRange):
        block.answer(0, 1, None, np.zeros(1, np.uint64), 0, SCALE, LIMIT)
    for loss in LOSSES:
        z, derivative = finish_product(np.zeros(1, np.uint64), np.array([np.nan]), 0, np.array([1.0]), loss, SCALE)
        assert np.isnan(z[0]) and np.isnan(derivative[0])


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 2), (0, 5)])
def test_rows_that_do_not_exist(kind, start, stop):
    block = block_with(kind, [1.0, 2.0, 3.0])
    theta = np.zeros(max(stop - start, 0))
    calls = [
        lambda: block.share(start, stop),
        lambda: block.answer(start, stop, None, np.zeros(9, np.uint64), 0, SCALE, LIMIT),
        lambda: block.answer(start, stop, None, None, 0, SCALE, LIMIT),
        lambda: block.step(start, stop, theta, 0.1),
        lambda: block.refresh(start, stop, theta),
        lambda: block.residual(start, stop, theta),
        lambda: block.add_gradient(start, stop, theta, np.zeros((1, 4))),
        lambda: block.gradient_job(start, stop, theta),
        lambda: block.share_job(start, stop),
    ]
    for call in calls:
        with pytest.raises(IndexError, match=r"range of rows within 0\.\.4"):
            call()


def test_lengths_are_checked_before_compiled_code_runs(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    calls = [
        lambda: block.share(0, 2, np.zeros((1, 3))),
        lambda: block.answer(0, 2, None, np.zeros(3, np.uint64), 2, SCALE, LIMIT),
        lambda: block.answer(0, 2, None, np.zeros(3, np.uint64), -1, SCALE, LIMIT),
        lambda: block.step(0, 2, np.zeros(3), 0.1),
        lambda: block.refresh(0, 2, np.zeros(3)),
        lambda: block.residual(0, 2, np.zeros(1)),
        lambda: block.gradient_job(0, 2, np.zeros(3)),
        lambda: block.add_gradient(0, 2, np.zeros(2), np.zeros((1, 3))),
        lambda: block.set_weights(np.zeros((1, 3))),
        lambda: block.set_weights(np.zeros((2, 4))),
        lambda: block.add_to_weights(np.zeros((1, 5))),
        lambda: block.adopt(np.zeros((1, 4)), np.zeros((1, 3))),
        lambda: block.adopt(np.zeros((1, 3)), np.zeros((1, 4))),
        lambda: block.apply_gradient((None, np.zeros((1, 3))), 2, 0.1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="Expected"):
            call()
    assert block.version == 0 and block.weights().tolist() == [[1.0, 2.0, 3.0, 0.0]]


def test_bad_tables_are_refused():
    with pytest.raises(BadData, match="NaN or infinity"):
        make_block(np.array([[1.0, np.nan]]), penalty=L2, strength=0.1)
    with pytest.raises(BadData, match="NaN or infinity"):
        make_block(scipy.sparse.csr_matrix([[1.0, np.inf]]), penalty=L2, strength=0.1)
    with pytest.raises(BadData, match="rows and columns"):
        make_block(np.zeros(3), penalty=L2, strength=0.1)
    with pytest.raises(BadJob, match="strength"):
        make_block(X, penalty=L2, strength=-1.0)


def test_duplicate_entries_of_a_sparse_matrix_are_summed():
    twice = scipy.sparse.csr_matrix((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    block = make_block(twice, penalty=NONE, strength=0.0)
    assert block.nonzeros_total == 1
    assert block.share(0, 1, with_constant([0.0, 1.0, 0.0])).tolist() == [3.0]
    assert len(twice.data) == 2


def test_a_snapshot_shares_nothing_with_the_block(kind):
    block = block_with(kind, [1.0, 2.0, 3.0], method="saga")
    state = block.snapshot()
    block.step(0, 2, np.ones(2), 0.1)
    block.restore(state)
    assert block.weights().tolist() == [[1.0, 2.0, 3.0, 0.0]] and block.version == 0
    assert not block.table.any()
    block.step(0, 2, np.ones(2), 0.1)
    block.restore(state)
    block.weights()[:] = 0.0
    block.mean_gradient()[:] = 5.0
    assert block.weights().tolist() == [[1.0, 2.0, 3.0, 0.0]] and not block.mean_gradient().any()


@pytest.mark.parametrize("penalty", ALL_PENALTIES, ids=lambda penalty: penalty.name)
@pytest.mark.parametrize("width", [30, 3000])
@pytest.mark.parametrize("method", ["sgd", "svrg", "saga"])
def test_lanes_equal_in_place(kind, penalty, width, method):
    """30 columns: a sparse block's jobs work on all of them; 3000: on those they touch."""
    rows = scipy.sparse.random(200, width, density=6 / width, random_state=3, format="csr").toarray()
    here, lanes = (make_block(kind(rows), penalty=penalty, strength=0.02, method=method) for _ in range(2))
    rng = np.random.default_rng(0)
    for block in (here, lanes):
        block.move_constant(np.array([0.4]))
        block.step_by_curvature(np.full((1, 200), 0.25), "diagonal")
    for _ in range(60):
        start = int(rng.integers(0, 190))
        theta = rng.standard_normal(10)
        np.testing.assert_allclose(lanes.share_job(start, start + 10)(), here.share(start, start + 10), atol=1e-11)
        here.step(start, start + 10, theta, 0.01)
        columns, values = lanes.gradient_job(start, start + 10, lanes.residual(start, start + 10, theta))()
        lanes.apply_gradient((columns, values), 10, 0.01)
        assert (columns is None) == (width == 30 or here.nonzeros_total == 200 * width)
        assert columns is None or len(np.unique(columns)) == len(columns) == len(values) - 1
    np.testing.assert_allclose(lanes.weights(), here.weights(), atol=1e-11)
    np.testing.assert_allclose(lanes.mean_gradient(), here.mean_gradient(), atol=1e-12)
    assert np.array_equal(lanes.table, here.table)
    assert lanes.version == here.version == 60


@pytest.mark.parametrize("width", [3, 300])
def test_a_job_sees_the_weights_of_its_making(kind, width):
    wide = np.zeros((4, width))
    wide[:, :3] = X
    block = block_with(kind, [1.0, 2.0, 3.0] + [0.0] * (width - 3), table=wide)
    block.move_constant(np.ones(1))
    job = block.share_job(0, 4)
    block.step(0, 4, np.ones(4), 1.0)
    block.set_weights(block.weights() + 1.0)
    assert job().tolist() == [7.0, -2.0, 0.5, 0.0]


@pytest.mark.parametrize("width", [100, 500])
def test_jobs_on_threads_do_not_disturb_one_another(kind, width):
    """Forty gradient and share jobs on four threads, while the party itself goes on stepping."""
    rows = scipy.sparse.random(400, width, density=10 / width, random_state=3, format="csr").toarray()
    block = block_with(kind, np.linspace(-1, 1, width), strength=0.01, method="saga", table=rows)
    before, residual = block.weights()[0, :-1], np.linspace(-1, 2, 10)
    starts = range(0, 400, 10)
    with ThreadPoolExecutor(4) as pool:
        gradients = [pool.submit(block.gradient_job(start, start + 10, residual)) for start in starts]
        shares = [pool.submit(block.share_job(start, start + 10)) for start in starts]
        for start in starts:
            block.step(start, start + 10, residual, 0.1)
    for start, gradient, share in zip(starts, gradients, shares, strict=True):
        columns, values = gradient.result()
        whole = np.zeros(width)
        whole[slice(None) if columns is None else columns] = values.ravel()[:-1]
        np.testing.assert_allclose(whole, rows[start : start + 10].T @ residual, atol=1e-13)
        assert values.ravel()[-1] == pytest.approx(5.0)
        np.testing.assert_allclose(share.result(), rows[start : start + 10] @ before, atol=1e-12)


def test_reading_the_weights_does_not_move_them():
    """The nonconvex penalty is owed for several steps; looking must not change when it is paid."""
    blocks = [make_block(random_rows(), penalty=NONCONVEX, strength=0.01, method="saga") for _ in range(2)]
    rng = np.random.default_rng(0)
    for block in blocks:
        block.set_weights(with_constant(np.linspace(-2, 2, 30)))
    for number in range(30):
        start, theta = int(rng.integers(0, 190)), rng.standard_normal(8)
        for block in blocks:
            block.step(start, start + 8, theta, 0.3)
        if number % 3 == 0:
            blocks[1].weights()
            blocks[1].share(0, 5)
            blocks[1].snapshot()
    assert np.array_equal(blocks[0].weights(), blocks[1].weights())
