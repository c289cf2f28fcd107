"""The centralised side: optima with certificates, the reference loop, and the fast solver held against it."""

import itertools
from unittest import mock

import numpy as np
import pytest
import scipy.sparse

from offbeat.errors import BadJob
from offbeat.learning import central
from offbeat.learning import metric as metrics
from offbeat.learning.blocks import DIRECTIONS, make_block
from offbeat.learning.losses import LOGISTIC, LOSSES, SQUARED
from offbeat.learning.penalties import L2, NONCONVEX, NONE, PENALTIES, elastic_net
from offbeat.learning.sampling import Schedule
from offbeat.learning.steps import decayed

ROWS, WIDTH, STRENGTH = 400, 25, 1e-3


def problem(density=0.3):
    X = scipy.sparse.random(ROWS, WIDTH, density=density, random_state=1, format="csr")
    rng = np.random.default_rng(0)
    y = np.where(X @ rng.standard_normal(WIDTH) + 0.3 * rng.standard_normal(ROWS) > 0, 1.0, -1.0)
    return X.toarray(), X, y


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_gradient_is_the_slope_of_the_objective(loss):
    X, sparse, y = problem()
    w = np.random.default_rng(2).standard_normal(WIDTH)
    for penalty in PENALTIES:
        gradient = central.gradient(X, y, w, loss, penalty, 0.1)
        np.testing.assert_allclose(central.gradient(sparse, y, w, loss, penalty, 0.1), gradient, atol=1e-14)
        move = np.random.default_rng(3).standard_normal(WIDTH) * 1e-6
        rise = [central.objective(X, y, w + sign * move, loss, penalty, 0.1) for sign in (1, -1)]
        assert (rise[0] - rise[1]) / 2 == pytest.approx(float(gradient @ move), rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_optimum_is_certified(loss):
    X, sparse, y = problem()
    w, value = central.optimum(X, y, loss, STRENGTH)
    norm, gap = central.certificate(X, y, w, loss, L2, STRENGTH)
    assert norm <= 1e-10 and gap is not None and gap / value <= 1e-13
    other, same = central.optimum(sparse, y, loss, STRENGTH)
    assert same == pytest.approx(value, rel=1e-13)
    np.testing.assert_allclose(other, w, atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_gap_is_primal_minus_dual(loss):
    """The identity P(w) - D(theta(w)) = |gradient|^2 / (2 strength), near and far from the optimum."""
    X, _, y = problem()
    best, least = central.optimum(X, y, loss, STRENGTH)
    for away in (0.0, 0.01, 1.0):
        w = best + away * np.random.default_rng(5).standard_normal(WIDTH)
        primal = central.objective(X, y, w, loss, L2, STRENGTH)
        theta = loss.derivative(X @ w, y)
        mean = X.T @ theta / len(y)
        dual = np.mean(loss.dual(theta, y)) - mean @ mean / (2 * STRENGTH)
        _, gap = central.certificate(X, y, w, loss, L2, STRENGTH)
        assert gap == pytest.approx(primal - dual, rel=1e-10, abs=1e-14)
        assert primal - least <= gap + 1e-14


def test_the_last_columns_may_be_free_of_the_penalty():
    """A column of ones: the objective, its gradient, and an optimum where that column has no pull."""
    X, _, y = problem()
    ones = np.hstack([X, np.ones((ROWS, 1))])
    w = np.random.default_rng(2).standard_normal(WIDTH + 1)
    value = central.objective(ones, y, w, LOGISTIC, L2, 0.1, free=1)
    assert value == pytest.approx(np.mean(LOGISTIC.value(ones @ w, y)) + 0.05 * w[:-1] @ w[:-1], rel=1e-13)
    slope = central.gradient(ones, y, w, LOGISTIC, L2, 0.1, free=1)
    theta = LOGISTIC.derivative(ones @ w, y)
    np.testing.assert_allclose(slope, ones.T @ theta / ROWS + 0.1 * np.append(w[:-1], 0.0), atol=1e-14)
    for data in (ones, scipy.sparse.csr_matrix(ones)):
        best, _ = central.optimum(data, y, LOGISTIC, STRENGTH, free=1)
        theta = LOGISTIC.derivative(ones @ best, y)
        assert abs(theta.mean()) < 1e-10
        assert np.linalg.norm(X.T @ theta / ROWS + STRENGTH * best[:-1]) < 1e-10


@pytest.mark.parametrize("free", [0, 1])
def test_the_optimum_of_an_elastic_net_has_no_gap(free):
    X, _, y = problem()
    data, net = np.hstack([X, np.ones((ROWS, free))]), elastic_net(0.5)
    w, value = central.best_known(data, y, LOGISTIC, net, 0.02, rng=np.random.default_rng(0), free=free)
    assert np.linalg.norm(central.gradient(data, y, w, LOGISTIC, net, 0.02, free)) < 1e-7
    assert 0 < np.count_nonzero(w) < WIDTH
    if not free:
        norm, gap = central.certificate(data, y, w, LOGISTIC, net, 0.02)
        assert norm < 1e-7 and 0.0 <= gap < 1e-12
        other = w + 0.1
        _, gap = central.certificate(data, y, other, LOGISTIC, net, 0.02)
        assert central.objective(data, y, other, LOGISTIC, net, 0.02) - value <= gap


def test_no_gap_without_a_convex_penalty():
    X, _, y = problem()
    assert central.certificate(X, y, np.zeros(WIDTH), LOGISTIC, NONCONVEX, STRENGTH)[1] is None
    assert central.certificate(X, y, np.zeros(WIDTH), LOGISTIC, NONE, 0.0)[1] is None


def test_ridge_optimum_is_the_normal_equations():
    X, _, _ = problem()
    y = np.random.default_rng(0).standard_normal(ROWS)
    w, _ = central.optimum(X, y, SQUARED, STRENGTH)
    expected = np.linalg.solve(2 * X.T @ X / ROWS + STRENGTH * np.eye(WIDTH), 2 * X.T @ y / ROWS)
    np.testing.assert_allclose(w, expected, atol=1e-9)


def test_an_optimum_at_infinity_is_said_so():
    X = np.array([[1.0], [-1.0]])
    with pytest.raises(BadJob, match="was not found"):
        central.optimum(X, np.array([1.0, -1.0]), LOGISTIC, 0.0, tolerance=1e-300)


def test_an_optimum_over_bins_takes_few_products(monkeypatch):
    """Newton's steps come early, and columns that are mostly zero are multiplied as such."""
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 12, size=(900, 20))
    X = np.hstack([(bins == value).astype(float) for value in range(12)])
    y = np.where((bins[:, :4] - 5.5).sum(axis=1) + rng.logistic(scale=4, size=900) > 0, 1.0, -1.0)
    assert scipy.sparse.issparse(central.thin(X)) and central.thin(bins) is bins
    seen, products = [], central.products
    monkeypatch.setattr(central, "products", lambda *given: seen.append(1) or products(*given))
    w, _ = central.optimum(central.thin(X), y, LOGISTIC, 1e-4, tolerance=1e-8)
    assert np.linalg.norm(central.gradient(X, y, w, LOGISTIC, L2, 1e-4)) <= 1e-8
    assert len(seen) < 100


def test_best_known_is_stationary_and_no_worse_than_the_convex_point():
    X, _, y = problem()
    w, value = central.best_known(X, y, LOGISTIC, NONCONVEX, 0.01, rng=np.random.default_rng(0))
    assert np.linalg.norm(central.gradient(X, y, w, LOGISTIC, NONCONVEX, 0.01)) < 1e-6
    start, _ = central.optimum(X, y, LOGISTIC, 0.01)
    assert value <= central.objective(X, y, start, LOGISTIC, NONCONVEX, 0.01)


def batches_for(method, passes, seed=0):
    schedule = Schedule(ROWS, 16, seed)
    for number in range(passes * schedule.blocks_a_pass):
        if method == "svrg" and number and number % schedule.blocks_a_pass == 0:
            yield None
        yield schedule.block(number)


def run_by_blocks(X, y, penalty, strength, method, eta, parties):
    """What a federated run does without delays: shares summed, one derivative, a step in every block."""
    cuts = np.linspace(0, WIDTH, parties + 1).astype(int)
    shared = {"penalty": penalty, "strength": strength, "method": method}
    blocks = [make_block(X[:, a:b], **shared) for a, b in itertools.pairwise(cuts)]

    def derivatives(start, stop):
        return LOGISTIC.derivative(sum(block.share(start, stop) for block in blocks), y[start:stop])

    def take_snapshot():
        theta = derivatives(0, ROWS)
        for block in blocks:
            block.refresh(0, ROWS, theta)

    if method == "svrg":
        take_snapshot()
    for number, batch in enumerate(b for b in batches_for(method, 4)):
        if batch is None:
            take_snapshot()
            continue
        theta = derivatives(*batch)
        size = eta(number) if callable(eta) else eta
        for block in blocks:
            block.step(*batch, theta, size)
    return np.concatenate([block.weights()[0, :-1] for block in blocks])


@pytest.mark.parametrize("parties", [3, 8])
@pytest.mark.parametrize("penalty", [L2, NONCONVEX], ids=lambda penalty: penalty.name)
@pytest.mark.parametrize("method", DIRECTIONS)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_collaborator_equals_central(method, penalty, parties, kind):
    """Without delay the blocks together follow the centralised trajectory."""
    X, sparse, y = problem()
    eta, strength = 0.5, (0.3 if penalty is NONCONVEX else STRENGTH)
    step_rule = (lambda t: decayed(eta, strength, t)) if method == "sgd" and penalty is L2 else eta
    expected = central.run(X, y, LOGISTIC, penalty, strength, method, step_rule, batches_for(method, 4))
    got = run_by_blocks(sparse.tocsc() if kind == "sparse" else X, y, penalty, strength, method, step_rule, parties)
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_run_takes_sparse_rows_and_a_start():
    X, sparse, y = problem()
    start = np.full(WIDTH, 0.1)
    runs = [
        central.run(data, y, LOGISTIC, L2, STRENGTH, "svrg", 0.5, batches_for("svrg", 2), start=start)
        for data in (X, sparse)
    ]
    np.testing.assert_allclose(runs[0], runs[1], atol=1e-13)
    assert np.array_equal(start, np.full(WIDTH, 0.1))
    with pytest.raises(BadJob, match="Unknown method 'adam'"):
        central.run(X, y, LOGISTIC, L2, STRENGTH, "adam", 0.5, [])


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: penalty.name)
@pytest.mark.parametrize("method", DIRECTIONS)
def test_row_solver_equals_the_reference_loop(method, penalty):
    X, sparse, y = problem()
    eta, strength = 0.45, 0.3
    orders = np.random.default_rng(7)
    batches = []
    for number in range(3):
        if method == "svrg" and number:
            batches.append(None)
        batches += [(int(i), int(i) + 1) for i in orders.permutation(ROWS)]
    step_rule = (lambda t: decayed(eta, strength, t)) if method == "sgd" and penalty is L2 else eta
    expected = central.run(X, y, LOGISTIC, penalty, strength, method, step_rule, batches)
    for data in (X, sparse):
        passes = 6 if method == "svrg" else 3
        fit = central.fit(data, y, LOGISTIC, penalty, strength, method=method, eta=eta, passes=passes, seed=7)
        assert fit.passes == passes
        np.testing.assert_allclose(fit.weights, expected, atol=1e-11)


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("method", ["svrg", "saga"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_fit_reaches_its_target(method, batch, kind):
    X, sparse, y = problem()
    data = sparse if kind == "sparse" else X
    _, best = central.optimum(X, y, LOGISTIC, STRENGTH)
    target = best + 1e-8
    fit = central.fit(
        data, y, LOGISTIC, L2, STRENGTH, method=method, eta=0.4 * batch**0.6, passes=400, batch=batch, target=target
    )
    assert fit.objective <= target and fit.passes < 400
    assert fit.objective == central.objective(data, y, fit.weights, LOGISTIC, L2, STRENGTH)
    assert fit.curve[-1] == (fit.passes, fit.cpu_s, fit.objective)


def test_svrg_mixed_cut():
    """Blocks frozen at different times make a snapshot as good as any: it need only be one fixed point."""
    X, _, y = problem()
    _, best = central.optimum(X, y, LOGISTIC, STRENGTH)
    block = make_block(X, penalty=L2, strength=STRENGTH, method="svrg")
    schedule, number = Schedule(ROWS, 8, 0), itertools.count()
    old = block.weights()
    for _ in range(150):
        frozen = np.hstack([old[:, :10], block.weights()[:, 10:]])
        old = block.weights()
        theta = LOGISTIC.derivative(block.share(0, ROWS, frozen), y)
        mean = np.zeros_like(frozen)
        block.add_gradient(0, ROWS, theta, mean)
        block.adopt(theta[None, :], mean)
        for _ in range(schedule.blocks_a_pass):
            start, stop = schedule.block(next(number))
            block.step(start, stop, LOGISTIC.derivative(block.share(start, stop), y[start:stop]), 1.5)
    assert central.objective(X, y, block.weights()[0, :-1], LOGISTIC, L2, STRENGTH) - best < 1e-10


def test_the_reference_loop_multiplies_its_steps_by_a_metric():
    """As a block does by its diagonal: at the start, and anew at every snapshot, where the derivatives tell."""
    X, _, y = problem()
    X = X * np.geomspace(0.2, 5.0, WIDTH)

    def metric_at(second, w):
        return np.diag(1.0 / ((second @ X**2) / ROWS + STRENGTH))

    expected = central.run(
        X, y, LOGISTIC, L2, STRENGTH, "svrg", 0.1, [None, *batches_for("svrg", 3)], metric_at=metric_at
    )
    block = make_block(X, penalty=L2, strength=STRENGTH, method="svrg")
    for batch in [None, *batches_for("svrg", 3)]:
        if batch is None:
            theta = LOGISTIC.derivative(block.share(0, ROWS), y)
            block.refresh(0, ROWS, theta)
            with mock.patch.object(metrics, "NEWS", -1.0):
                block.step_by_curvature(LOGISTIC.second_from_derivative(theta)[None, :], "diagonal")
            continue
        block.step(*batch, LOGISTIC.derivative(block.share(*batch), y[slice(*batch)]), 0.1)
    np.testing.assert_allclose(block.weights()[0, :-1], expected, atol=1e-10)
