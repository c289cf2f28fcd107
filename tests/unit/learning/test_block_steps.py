"""Blocks by exact small numbers: shares, fixed point, one step, refusals, snapshots, lanes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse

from offbeat.errors import BadData, BadJob, OutOfRange
from offbeat.learning.blocks import finish_product, make_block
from offbeat.learning.losses import LOGISTIC, LOSSES
from offbeat.learning.penalties import L2, NONCONVEX, NONE, PENALTIES

SCALE = 2.0**40
LIMIT = 2.0**20
X = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
KINDS = {"dense": lambda x: x, "sparse": scipy.sparse.csr_matrix}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def block_with(kind, weights, penalty=L2, strength=0.5):
    block = make_block(kind(X), penalty=penalty, strength=strength)
    block.set_weights(np.array(weights))
    return block


def random_rows(rows=200, width=30, seed=0):
    return scipy.sparse.random(rows, width, density=0.2, random_state=seed, format="csr")


def test_shape_and_cost(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    assert (block.rows, block.width, block.version) == (4, 3, 0)
    assert block.nonzeros(0, 4) == block.nonzeros_total == (4 if scipy.sparse.issparse(kind(X)) else 12)


def test_share(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    assert block.share(0, 4).tolist() == [7.0, -2.0, 0.5, 0.0]
    assert block.share(1, 3, np.array([4.0, 5.0, 6.0])).tolist() == [-5.0, 2.0]


def test_one_step_by_hand(kind):
    """g = (1, 2, 2) from residuals (1, -2, 0); b = 3; eta 0.5; penalty l2 of strength 0.5; mu = (1, 0, 0)."""
    block = block_with(kind, [1.0, 2.0, 3.0])
    block.set_mean_gradient(np.array([1.0, 0.0, 0.0]))
    block.step(0, 3, np.array([1.0, -2.0, 0.0]), 0.5, 0.25)
    expected = np.array([1.0, 2.0, 3.0]) - 0.5 * (np.array([1, 2, 2]) / 3 + [1, 0, 0] + 0.5 * np.array([1, 2, 3]))
    np.testing.assert_allclose(block.weights(), expected, atol=1e-15)
    np.testing.assert_allclose(block.mean_gradient(), [1.25, 0.5, 0.5], rtol=1e-15)
    assert block.version == 1


@pytest.mark.parametrize("eta", [0.5, 2.0, 3.0])
def test_steps_that_shrink_all_the_way_and_beyond(kind, eta):
    """eta * strength = 1 makes the lazy scale exactly zero, more than 1 negative: both must fold, not divide."""
    block = block_with(kind, [1.0, 2.0, 3.0])
    mu = np.array([0.5, 0.0, -1.0])
    block.set_mean_gradient(mu)
    w = np.array([1.0, 2.0, 3.0])
    for _ in range(3):
        block.step(0, 1, np.array([0.1]), eta)
        w = w - eta * (0.1 * X[0] + mu + 0.5 * w)
    np.testing.assert_allclose(block.weights(), w, rtol=1e-14)


def test_add_gradient_sums_to_the_full_gradient(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    theta = np.array([1.0, -2.0, 4.0, 8.0])
    into = np.zeros(3)
    block.add_gradient(0, 1, theta[:1], into)
    block.add_gradient(1, 4, theta[1:], into)
    np.testing.assert_allclose(into, X.T @ theta / 4, rtol=1e-15)


def test_fixed_point_round_trip(kind):
    rng = np.random.default_rng(0)
    block = make_block(kind(random_rows().toarray()), penalty=NONE, strength=0.0)
    block.set_weights(rng.standard_normal(30) * 100)
    mask = rng.integers(0, 2**64, 300, dtype=np.uint64)
    words = block.masked_share(10, 150, None, mask, 7, SCALE, LIMIT)
    plain = block.encoded_share(10, 150, None, SCALE, LIMIT)
    assert np.array_equal(words - mask[7:147], plain)
    exact = block.share(10, 150)
    assert np.max(np.abs(plain.view(np.int64) / SCALE - exact)) <= 2.0**-41
    frozen = block.weights()
    assert np.array_equal(block.masked_share(10, 150, frozen, mask, 7, SCALE, LIMIT), words)


def test_finish_product_decodes_adds_and_differentiates():
    rng = np.random.default_rng(0)
    own, other, labels = rng.standard_normal(50), rng.standard_normal(50), rng.choice([-1.0, 1.0], 50)
    words = np.rint(other * SCALE).astype(np.int64).view(np.uint64)
    for loss in LOSSES:
        z, theta = finish_product(words, own, labels, loss, SCALE)
        np.testing.assert_allclose(z, own + other, atol=2.0**-40)
        np.testing.assert_allclose(theta, loss.derivative(z, labels), rtol=1e-15)
    with pytest.raises(ValueError, match="Lengths differ"):
        finish_product(words, own[:-1], labels, LOGISTIC, SCALE)


def test_read_only_arrays_are_welcome(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    residual, point, mask = np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0]), np.zeros(8, np.uint64)
    for array in (residual, point, mask):
        array.flags.writeable = False
    block.masked_share(0, 2, point, mask, 0, SCALE, LIMIT)
    block.step(0, 2, residual, 0.1, 0.1)
    block.apply_gradient(*block.gradient_job(0, 2, residual)(), 2, 0.1, 0.1)
    into = np.zeros(3)
    block.add_gradient(0, 2, residual, into)
    finish_product(mask[:2], residual, residual, LOGISTIC, SCALE)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**20, -(2.0**20), 1e300])
def test_what_does_not_fit_is_refused(kind, bad):
    block = make_block(kind(X), penalty=L2, strength=0.5)
    weights = np.array([0.0, bad, 0.0])
    mask = np.zeros(4, np.uint64)
    with pytest.raises(OutOfRange, match=r"[14] of 4 rows are not \(rows [01]"):
        block.masked_share(0, 4, weights, mask, 0, SCALE, LIMIT)
    with pytest.raises(OutOfRange, match="Nothing was sent"):
        block.encoded_share(0, 4, weights, SCALE, LIMIT)
    block.set_weights(weights)
    with pytest.raises(OutOfRange):
        block.masked_share(0, 4, None, mask, 0, SCALE, LIMIT)


def test_a_limit_wider_than_the_word_is_refused(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    with pytest.raises(OutOfRange, match="does not fit in 64-bit words"):
        block.encoded_share(0, 4, None, 2.0**60, 2.0**10)


@pytest.mark.parametrize("residual", [np.nan, np.inf])
def test_a_poisoned_step_shows_in_the_next_share(kind, residual):
    for accumulate in (0.0, 0.1):
        block = block_with(kind, [1.0, 2.0, 3.0])
        block.step(0, 2, np.array([residual, 0.0]), 0.1, accumulate)
        with pytest.raises(OutOfRange):
            block.masked_share(0, 1, None, np.zeros(1, np.uint64), 0, SCALE, LIMIT)
    for loss in LOSSES:
        z, theta = finish_product(np.zeros(1, np.uint64), np.array([np.nan]), np.array([1.0]), loss, SCALE)
        assert np.isnan(z[0]) and np.isnan(theta[0])


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 2), (0, 5)])
def test_rows_that_do_not_exist(kind, start, stop):
    block = block_with(kind, [1.0, 2.0, 3.0])
    count = max(stop - start, 0)
    calls = [
        lambda: block.share(start, stop),
        lambda: block.masked_share(start, stop, None, np.zeros(9, np.uint64), 0, SCALE, LIMIT),
        lambda: block.encoded_share(start, stop, None, SCALE, LIMIT),
        lambda: block.step(start, stop, np.zeros(count), 0.1),
        lambda: block.add_gradient(start, stop, np.zeros(count), np.zeros(3)),
        lambda: block.gradient_job(start, stop, np.zeros(count)),
        lambda: block.gather(start, stop),
    ]
    for call in calls:
        with pytest.raises(IndexError, match=r"range of rows within 0\.\.4"):
            call()


def test_lengths_are_checked_before_compiled_code_runs(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    calls = [
        lambda: block.share(0, 2, np.zeros(2)),
        lambda: block.masked_share(0, 2, None, np.zeros(3, np.uint64), 2, SCALE, LIMIT),
        lambda: block.masked_share(0, 2, None, np.zeros(3, np.uint64), -1, SCALE, LIMIT),
        lambda: block.step(0, 2, np.zeros(3), 0.1),
        lambda: block.add_gradient(0, 2, np.zeros(2), np.zeros(2)),
        lambda: block.set_weights(np.zeros(4)),
        lambda: block.set_mean_gradient(np.zeros(4)),
        lambda: block.apply_gradient(None, np.zeros(2), 2, 0.1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="Expected"):
            call()


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
    assert block.share(0, 1, np.array([0.0, 1.0, 0.0])).tolist() == [3.0]
    assert len(twice.data) == 2


def test_smoothness(kind):
    rows = random_rows(400, 20).toarray()
    block = make_block(kind(rows), penalty=L2, strength=0.1)
    whole, single = block.smoothness(0.25, rng=np.random.default_rng(0), rows_at_most=400, iterations=200)
    assert whole == pytest.approx(0.25 * np.linalg.eigvalsh(rows.T @ rows / 400)[-1], rel=1e-6)
    assert single == pytest.approx(0.25 * np.max(np.sum(rows**2, axis=1)), rel=1e-12)
    rough, _ = block.smoothness(0.25, rng=np.random.default_rng(0), rows_at_most=200)
    assert rough == pytest.approx(whole, rel=0.25)


def test_smoothness_of_nothing(kind):
    block = make_block(kind(np.zeros((5, 2))), penalty=L2, strength=0.1)
    assert block.smoothness(0.25, rng=np.random.default_rng(0)) == (0.0, 0.0)


def many_steps(block, count, seed, eta=0.3):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        start = int(rng.integers(0, block.rows - 8))
        block.step(start, start + 8, rng.standard_normal(8), eta, 1.0 / block.rows)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: penalty.name)
def test_snapshot_continues_to_the_bit(kind, penalty):
    def fresh():
        return make_block(kind(random_rows().toarray()), penalty=penalty, strength=0.01)

    block, other = fresh(), fresh()
    many_steps(block, 37, seed=1)
    state = block.snapshot()
    many_steps(other, 5, seed=9)
    other.restore(state)
    many_steps(block, 50, seed=2)
    many_steps(other, 50, seed=2)
    assert np.array_equal(block.weights(), other.weights())
    assert np.array_equal(block.mean_gradient(), other.mean_gradient())
    assert block.version == other.version == 87


def test_a_snapshot_shares_nothing_with_the_block(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    state = block.snapshot()
    block.step(0, 2, np.ones(2), 0.1, 0.1)
    block.restore(state)
    assert block.weights().tolist() == [1.0, 2.0, 3.0] and block.version == 0
    block.weights()[:] = 0.0
    block.mean_gradient()[:] = 5.0
    assert block.weights().tolist() == [1.0, 2.0, 3.0] and not block.mean_gradient().any()


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: penalty.name)
@pytest.mark.parametrize("width", [30, 3000])
@pytest.mark.parametrize("accumulate", [0.0, 1 / 200])
def test_lanes_equal_in_place(kind, penalty, width, accumulate):
    """30 columns: a sparse block's jobs work on all of them; 3000: on those they touch."""
    rows = scipy.sparse.random(200, width, density=6 / width, random_state=3, format="csr").toarray()
    here = make_block(kind(rows), penalty=penalty, strength=0.02)
    lanes = make_block(kind(rows), penalty=penalty, strength=0.02)
    rng = np.random.default_rng(0)
    for _ in range(60):
        start = int(rng.integers(0, 190))
        residual = rng.standard_normal(10)
        job = lanes.share_job(start, start + 10, lanes.gather(start, start + 10))
        np.testing.assert_allclose(job(), here.share(start, start + 10), atol=1e-12)
        here.step(start, start + 10, residual, 0.4, accumulate)
        columns, values = lanes.gradient_job(start, start + 10, residual)()
        lanes.apply_gradient(columns, values, 10, 0.4, accumulate)
        assert columns is None or len(np.unique(columns)) == len(columns)
    np.testing.assert_allclose(lanes.weights(), here.weights(), atol=1e-12)
    np.testing.assert_allclose(lanes.mean_gradient(), here.mean_gradient(), atol=1e-12)
    assert lanes.version == here.version == 60


def test_a_job_sees_the_weights_of_its_gathering(kind):
    block = block_with(kind, [1.0, 2.0, 3.0])
    job = block.share_job(0, 4, block.gather(0, 4))
    block.step(0, 4, np.ones(4), 1.0)
    assert job().tolist() == [7.0, -2.0, 0.5, 0.0]


def test_gathered_weights_are_new_after_whatever_moved_the_block(kind):
    block = make_block(kind(random_rows().toarray()), penalty=NONCONVEX, strength=0.1)
    residual, state = np.ones(10), block.snapshot()
    moves = (
        lambda: block.step(0, 10, residual, 0.5),
        lambda: block.corrected_step(0, 10, residual, np.zeros(200), True, 0.5),
        lambda: block.apply_gradient(*block.gradient_job(5, 15, residual)(), 10, 0.5, 0.1),
        lambda: block.set_weights(np.linspace(-1, 1, 30)),
        lambda: block.set_mean_gradient(np.ones(30)),
        lambda: block.restore(state),
    )
    for move in moves:
        block.gather(0, 20)
        move()
        share = block.share_job(0, 20, block.gather(0, 20))()
        np.testing.assert_allclose(share, block.share(0, 20, block.weights()), atol=1e-13)


def test_open_gradients_are_not_written_over_and_applied_ones_may_be():
    block = make_block(random_rows(), penalty=NONE, strength=0.0)
    rows = random_rows().toarray()
    first, second = (block.gradient_job(start, start + 10, np.ones(10))()[1] for start in (0, 50))
    block.apply_gradient(None, first, 10, 1.0)
    third = block.gradient_job(100, 110, np.ones(10))()[1]
    assert third is first and third is not second
    np.testing.assert_allclose(second, rows[50:60].sum(axis=0), atol=1e-13)
    np.testing.assert_allclose(third, rows[100:110].sum(axis=0), atol=1e-13)
    np.testing.assert_allclose(block.weights(), -rows[:10].sum(axis=0) / 10, atol=1e-13)


@pytest.mark.parametrize("width", [100, 500])
def test_jobs_on_threads_do_not_disturb_one_another(kind, width):
    """Forty gradient and share jobs on four threads, while the party itself goes on stepping."""
    rows = scipy.sparse.random(400, width, density=10 / width, random_state=3, format="csr").toarray()
    block = make_block(kind(rows), penalty=L2, strength=0.01)
    block.set_weights(np.linspace(-1, 1, width))
    before, residual = block.weights(), np.linspace(-1, 1, 10)
    starts = range(0, 400, 10)
    with ThreadPoolExecutor(4) as pool:
        gradients = [pool.submit(block.gradient_job(start, start + 10, residual)) for start in starts]
        shares = [pool.submit(block.share_job(start, start + 10, block.gather(start, start + 10))) for start in starts]
        for start in starts:
            block.step(start, start + 10, residual, 0.1, 0.01)
    for start, gradient, share in zip(starts, gradients, shares, strict=True):
        columns, values = gradient.result()
        whole = np.zeros(width)
        whole[slice(None) if columns is None else columns] = values
        np.testing.assert_allclose(whole, rows[start : start + 10].T @ residual, atol=1e-13)
        np.testing.assert_allclose(share.result(), rows[start : start + 10] @ before, atol=1e-12)


def test_columns_beyond_the_block_are_refused():
    block = block_with(scipy.sparse.csr_matrix, [1.0, 2.0, 3.0])
    with pytest.raises(IndexError, match="columns below 3"):
        block.apply_gradient(np.array([3], np.uint32), np.array([1.0]), 1, 0.1)


def test_reading_the_weights_does_not_move_them():
    """The nonconvex penalty is owed for several steps; looking must not change when it is paid."""
    blocks = [make_block(random_rows(), penalty=NONCONVEX, strength=0.01) for _ in range(2)]
    for block in blocks:
        block.set_weights(np.linspace(-2, 2, 30))
    for number in range(10):
        many_steps(blocks[0], 3, seed=number)
        many_steps(blocks[1], 3, seed=number)
        blocks[1].weights()
        blocks[1].snapshot()
    assert np.array_equal(blocks[0].weights(), blocks[1].weights())
