"""The centralised side: optima with certificates, the reference loop, and the fast solver held against it."""

import itertools

import numpy as np
import pytest
import scipy.sparse

from offbeat.errors import BadJob
from offbeat.learning import central
from offbeat.learning.blocks import make_block
from offbeat.learning.directions import Saga, Sgd, Svrg, step
from offbeat.learning.losses import LOGISTIC, LOSSES, SQUARED
from offbeat.learning.penalties import L2, NONCONVEX, NONE, PENALTIES
from offbeat.learning.sampling import BlockSampler
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


def test_best_known_is_stationary_and_no_worse_than_the_convex_point():
    X, _, y = problem()
    w, value = central.best_known(X, y, LOGISTIC, NONCONVEX, 0.01, rng=np.random.default_rng(0))
    assert np.linalg.norm(central.gradient(X, y, w, LOGISTIC, NONCONVEX, 0.01)) < 1e-6
    start, _ = central.optimum(X, y, LOGISTIC, 0.01)
    assert value <= central.objective(X, y, start, LOGISTIC, NONCONVEX, 0.01)


def batches_for(method, passes, seed=0):
    sampler = BlockSampler(ROWS, 16, np.random.default_rng(seed))
    for number in range(passes):
        if method == "svrg" and number:
            yield None
        yield from sampler.one_pass()


def run_by_blocks(X, y, penalty, strength, method, eta, parties):
    """What a federated run does without delays: shares summed, one derivative, a step in every block."""
    cuts = np.linspace(0, WIDTH, parties + 1).astype(int)
    blocks = [make_block(X[:, a:b], penalty=penalty, strength=strength) for a, b in itertools.pairwise(cuts)]
    rules = [{"sgd": Sgd(), "svrg": Svrg(np.zeros(ROWS)), "saga": Saga(np.zeros(ROWS))}[method] for _ in blocks]

    def derivatives(start, stop):
        return LOGISTIC.derivative(sum(block.share(start, stop) for block in blocks), y[start:stop])

    def take_snapshot():
        theta = derivatives(0, ROWS)
        for block, rule in zip(blocks, rules, strict=True):
            mean = np.zeros(block.width)
            block.add_gradient(0, ROWS, theta, mean)
            block.set_mean_gradient(mean)
            rule.adopt(theta)

    if method == "svrg":
        take_snapshot()
    for number, batch in enumerate(b for b in batches_for(method, 4)):
        if batch is None:
            take_snapshot()
            continue
        theta = derivatives(*batch)
        size = eta(number) if callable(eta) else eta
        for block, rule in zip(blocks, rules, strict=True):
            step(block, rule, *batch, theta, size)
    return np.concatenate([block.weights() for block in blocks])


@pytest.mark.parametrize("parties", [3, 8])
@pytest.mark.parametrize("penalty", [L2, NONCONVEX], ids=lambda penalty: penalty.name)
@pytest.mark.parametrize("method", central.METHODS)
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
@pytest.mark.parametrize("method", central.METHODS)
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
    block, svrg = make_block(X, penalty=L2, strength=STRENGTH), Svrg(np.zeros(ROWS))
    sampler = BlockSampler(ROWS, 8, np.random.default_rng(0))
    old = block.weights()
    for _ in range(150):
        frozen = np.concatenate([old[:10], block.weights()[10:]])
        old = block.weights()
        theta = LOGISTIC.derivative(block.share(0, ROWS, frozen), y)
        mean = np.zeros(WIDTH)
        block.add_gradient(0, ROWS, theta, mean)
        svrg.adopt(theta)
        block.set_mean_gradient(mean)
        for start, stop in sampler.one_pass():
            step(block, svrg, start, stop, LOGISTIC.derivative(block.share(start, stop), y[start:stop]), 1.5)
    assert central.objective(X, y, block.weights(), LOGISTIC, L2, STRENGTH) - best < 1e-10
