"""Models that others compute too: their coefficients against scikit-learn's, and what must change nothing."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from sklearn.linear_model import ElasticNet, GammaRegressor, LogisticRegression, PoissonRegressor, Ridge

from offbeat import VerticalRegressor
from offbeat.algorithms.methods import LINEAR
from offbeat.errors import BadJob
from offbeat.learning import central
from offbeat.learning.losses import GAMMA, LOGISTIC, POISSON, SQUARED, huber, softmax, weighted
from offbeat.learning.penalties import L2, elastic_net
from offbeat.party.linear_options import LinearOptions
from offbeat.runtime.simulator import Simulator
from offbeat.testing.small_problem import SmallProblem, build_parties, method_named, weights_of

ROWS, WIDTH, CLASSES, STRENGTH = 600, 9, 4, 2e-2
VARIANCE_REDUCED = [name for name, method in LINEAR.items() if method.direction != "sgd"]


def classes_problem(sparse=False, holders=1):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((ROWS, WIDTH))
    if sparse:
        X = X * (rng.random(X.shape) < 0.4)
    scores = X @ rng.standard_normal((WIDTH, CLASSES)) + rng.standard_normal(CLASSES)
    y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(np.float64)
    names = ("ana", "bo", "cy")
    columns = dict(zip(names, np.array_split(rng.permutation(WIDTH), 3), strict=True))
    data = scipy.sparse.csr_matrix(X) if sparse else X
    return SmallProblem(data, y, softmax(CLASSES), STRENGTH, columns, labels_at=names[:holders], intercept=True)


def solved(problem, method, target=1e-8, **changes):
    """The weights over the pooled columns and, last, the constant; outputs x (width + 1)."""
    options = LinearOptions(method=method_named(method).direction, passes=200, target=target, **changes)
    parties = build_parties(method, problem, options, 3)
    outcome = Simulator(seed=3).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"target"}, outcome.finished
    gaps = [value["gap"] for _, _, name, value in outcome.observations if name == "certificate"]
    assert gaps[-1] <= target
    return problem.pooled(weights_of(parties)).reshape(problem.loss.outputs, -1)


def apart(found, expected):
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("method", VARIANCE_REDUCED)
def test_softmax_has_the_coefficients_of_scikit_learn(method, sparse):
    problem = classes_problem(sparse, holders=1 if method.startswith("vfb-") else 2)
    theirs = LogisticRegression(C=1 / (ROWS * STRENGTH), tol=1e-12, max_iter=10_000).fit(problem.dense(), problem.y)
    found = solved(problem, method)
    assert apart(found[:, :-1], theirs.coef_) <= 1e-4
    centred = theirs.intercept_ - theirs.intercept_.mean()
    assert apart(found[:, -1] - found[:, -1].mean(), centred) <= 1e-4


def after_passes(problem, method, leap):
    """The model after a few passes of steps over all rows, of a length that is given: no batch is drawn."""
    options = LinearOptions(method=method_named(method).direction, passes=12, step=0.2, batch=ROWS, leap=leap)
    parties = build_parties(method, problem, options, 3)
    Simulator(seed=3).run(parties)
    return problem.pooled(weights_of(parties)).reshape(problem.loss.outputs, -1)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("method", "leap"), [("vfb-saga", False), ("fsvrg-vp", False), ("vfb-svrg", True)])
def test_parties_columns_and_rows_in_another_order_give_the_same_model(method, sparse, leap):
    """Up to rounding, which a leap multiplies by its coefficients. Steps by the curvature need small ones. The plain
    steps of sparse blocks lead along moves that are nearly one: coefficients are as large as their price allows (see
    leap.py), which follows the rounding, so more bits in the sums do not help."""
    problem = classes_problem(sparse)
    before = after_passes(problem, method, leap)
    order = np.random.default_rng(1).permutation(ROWS)
    columns = {name: problem.columns[name][::-1] for name in ("cy", "ana", "bo")}
    others = {
        "parties and columns": replace(problem, columns=columns),
        "rows": replace(problem, X=problem.X[order], y=problem.y[order]),
    }
    for what, other in others.items():
        after = after_passes(other, method, leap)
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-7 if leap and sparse else 1e-9, err_msg=what)


ORDERS = {"logistic": LOGISTIC, "squared": SQUARED, "huber": huber(0.5), "poisson": POISSON, "gamma": GAMMA}


@pytest.mark.parametrize("leap", [False, True], ids=["", "leaps"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("name", ORDERS)
def test_another_order_gives_the_same_model_whatever_the_loss(name, weighted, leap):
    X, score, columns, rng = drawn_blocks()
    y = {"logistic": np.sign(score), "poisson": rng.poisson(np.exp(score)), "gamma": np.exp(score)}.get(name, score)
    weights = rng.choice([0.5, 1.0, 2.0], ROWS) if weighted else np.ones(ROWS)
    kept = weights / weights.mean() if weighted else np.empty(0)
    terms = {"labels_at": ("ana",), "intercept": True}
    problem = SmallProblem(X, y.astype(float), ORDERS[name], STRENGTH, columns, weights=kept, **terms)
    before = after_passes(problem, "vfb-saga", leap)
    order = np.random.default_rng(1).permutation(ROWS)
    rows = replace(problem, X=X[order], y=problem.y[order], weights=kept[order] if weighted else kept)
    others = replace(problem, columns={party: columns[party][::-1] for party in ("cy", "ana", "bo")})
    for other in (rows, others):
        np.testing.assert_allclose(after_passes(other, "vfb-saga", leap), before, rtol=0, atol=1e-9)
    assert np.abs(before).max() > 0.05


def test_the_gap_of_a_softmax_run_bounds_what_is_left():
    problem = classes_problem()
    _, least = central.optimum(problem.with_ones(), problem.y, problem.loss, STRENGTH, free=1)
    options = LinearOptions(method="saga", passes=200, target=1e-8)
    parties = build_parties("vfb2-saga", problem, options, 0)
    outcome = Simulator(seed=0).run(parties)
    looks = [value for _, _, name, value in outcome.observations if name == "certificate"]
    assert len(looks) > 3
    for look in looks:
        assert -1e-12 <= look["objective"] - least <= look["gap"] * (1 + 1e-9) + 1e-12
    kept = problem.objective(problem.pooled(weights_of(parties)))
    assert kept == pytest.approx(looks[-1]["objective"], abs=1e-9)


def test_the_pooled_optimum_is_where_the_gradient_is_nothing():
    problem = classes_problem()
    w, value = central.optimum(problem.with_ones(), problem.y, problem.loss, STRENGTH, free=1)
    slope = central.gradient(problem.with_ones(), problem.y, w, problem.loss, L2, STRENGTH, free=1)
    assert np.linalg.norm(slope) <= 1e-10
    assert value == pytest.approx(problem.objective(w), rel=1e-14)


# -- weights, counts, amounts, exact zeros -----------------------------------------------------------------------------


def drawn_blocks(sparse=False):
    rng = np.random.default_rng(11)
    X = rng.standard_normal((ROWS, WIDTH))
    if sparse:
        X = X * (rng.random(X.shape) < 0.4)
    score = X @ (0.4 * rng.standard_normal(WIDTH)) + 0.7
    columns = dict(zip(("ana", "bo", "cy"), np.array_split(rng.permutation(WIDTH), 3), strict=True))
    return (scipy.sparse.csr_matrix(X) if sparse else X), score, columns, rng


def one_output(y, loss, sparse=False, weights=None, **changes):
    X, _, columns, _ = drawn_blocks(sparse)
    scaled = np.empty(0) if weights is None else weights / weights.mean()
    terms = {"labels_at": ("ana", "bo"), "intercept": True, "weights": scaled, **changes}
    return SmallProblem(X, y, loss, STRENGTH, columns, **terms)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("method", ["vfb2-saga", "vfb-svrg", "afsvrg-vp", "fsaga-vp"])
def test_weighted_classes_have_the_coefficients_of_scikit_learn(method, sparse):
    _, score, _, rng = drawn_blocks(sparse)
    y, weights = (
        np.where(rng.random(ROWS) < 1 / (1 + np.exp(-score)), 1.0, -1.0),
        rng.choice([0.0, 0.5, 1.0, 4.0], ROWS),
    )
    problem = one_output(y, LOGISTIC, sparse, weights)
    theirs = LogisticRegression(C=1 / (weights.sum() * STRENGTH), tol=1e-12, max_iter=10_000)
    theirs.fit(problem.dense(), y, weights)
    found = solved(problem, method, target=1e-9)[0]
    assert apart(found, np.append(theirs.coef_, theirs.intercept_)) <= 1e-4


@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED, softmax(3), POISSON, huber(0.5)], ids=lambda loss: loss.name)
def test_a_weight_of_two_is_the_row_twice(loss):
    X, score, columns, rng = drawn_blocks()
    y = {
        "logistic": np.sign(score),
        "squared": score,
        "softmax": np.arange(ROWS) % 3.0,
        "poisson": rng.poisson(np.exp(score)),
        "huber": score + rng.standard_t(1, ROWS),
    }
    labels, twice = y[loss.name].astype(float), rng.random(ROWS) < 0.3
    weights = np.where(twice, 2.0, 1.0)
    terms = {"labels_at": ("ana",), "intercept": True}
    by_weight = SmallProblem(X, labels, loss, STRENGTH, columns, weights=weights / weights.mean(), **terms)
    more = np.concatenate([X, X[twice]]), np.concatenate([labels, labels[twice]])
    by_rows = SmallProblem(*more, loss, STRENGTH, columns, **terms)
    found = [solved(problem, "vfb2-saga", target=1e-12) for problem in (by_weight, by_rows)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("method", ["vfb2-saga", "vfb-svrg", "afsvrg-vp", "fsaga-vp"])
@pytest.mark.parametrize(
    ("loss", "kind"), [(POISSON, PoissonRegressor), (GAMMA, GammaRegressor)], ids=["poisson", "gamma"]
)
def test_counts_and_amounts_have_the_coefficients_of_scikit_learn(loss, kind, method, sparse):
    """Counts over an exposure are rates with the exposure as their weight, in both."""
    _, score, _, rng = drawn_blocks(sparse)
    exposure = rng.uniform(0.3, 3.0, ROWS)
    counts = rng.poisson(exposure * np.exp(score)) / exposure
    y = counts if loss is POISSON else np.exp(score) * rng.gamma(2.0, 0.5, ROWS) + 1e-3
    problem = one_output(y, loss, sparse, exposure)
    theirs = kind(alpha=STRENGTH, tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(
        problem.dense(), y, exposure
    )
    found = solved(problem, method)[0]
    assert apart(found, np.append(theirs.coef_, theirs.intercept_)) <= 1e-4


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("loss", [POISSON, GAMMA], ids=lambda loss: loss.name)
def test_counts_and_amounts_of_any_size_end_at_their_target(loss, scale):
    _, score, _, rng = drawn_blocks()
    mean = scale * np.exp(2.0 * score)
    y = np.maximum(rng.poisson(mean), np.arange(ROWS) == 0).astype(float) if loss is POISSON else mean
    for intercept in (True, False):
        solved(one_output(y, loss, intercept=intercept), "vfb2-saga", target=1e-6 * max(1.0, scale))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED], ids=lambda loss: loss.name)
@pytest.mark.parametrize("method", ["vfb2-saga", "fsvrg-vp"])
def test_an_elastic_net_has_the_coefficients_and_the_zeros_of_scikit_learn(loss, method, sparse):
    _, score, _, rng = drawn_blocks(sparse)
    y = score + rng.standard_normal(ROWS)
    y, ratio = (np.where(y > 0.7, 1.0, -1.0) if loss is LOGISTIC else y), 0.6
    strength = 0.1 if loss is LOGISTIC else 0.5
    problem = replace(one_output(y, loss, sparse), penalty=elastic_net(ratio), strength=strength)
    if loss is LOGISTIC:
        terms = {"C": 1 / (ROWS * strength), "solver": "saga", "l1_ratio": ratio}
        theirs = LogisticRegression(tol=1e-10, max_iter=100_000, **terms)
    else:  # its loss has a half, ours has none
        theirs = ElasticNet(alpha=strength / 2, l1_ratio=ratio, tol=1e-12, max_iter=100_000)
    theirs.fit(problem.dense(), y)
    found = solved(problem, method, target=1e-11)[0]
    coefficients = theirs.coef_.ravel()
    assert apart(found, np.append(coefficients, theirs.intercept_)) <= 1e-4
    assert 0 < (coefficients == 0.0).sum() < WIDTH
    np.testing.assert_array_equal(found[:-1] == 0.0, coefficients == 0.0)


def huber_by_scipy(problem):
    """The minimum by formulas of its own, and a general minimiser."""
    X, y, delta = problem.with_ones(), problem.y, problem.loss.delta
    weights = problem.weights if len(problem.weights) else np.ones(len(y))

    def both(w):
        away = X @ w - y
        inside = np.abs(away) <= delta
        value = np.where(inside, away**2, 2 * delta * np.abs(away) - delta**2)
        slope = np.where(inside, 2 * away, 2 * delta * np.sign(away))
        pull = np.append(w[:-1], 0.0)
        return np.mean(weights * value) + STRENGTH / 2 * pull @ pull, X.T @ (weights * slope) / len(y) + STRENGTH * pull

    options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-16, "gtol": 1e-10}
    return scipy.optimize.minimize(both, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options=options).x


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("method", VARIANCE_REDUCED)
def test_hubers_loss_has_the_coefficients_of_a_general_minimiser(method, sparse):
    """Every tenth label is far from all others, and one delta has most rows beyond it."""
    _, score, _, rng = drawn_blocks(sparse)
    y = score + 0.5 * rng.standard_normal(ROWS) + 30.0 * (rng.random(ROWS) < 0.1)
    weights = rng.choice([0.5, 1.0, 2.0], ROWS)
    for delta, by, target in ((0.7, None, 1e-8), (0.1, weights, 1e-10)):
        problem = one_output(y, huber(delta), sparse, by)
        assert apart(solved(problem, method, target)[0], huber_by_scipy(problem)) <= 1e-4


def test_hubers_loss_with_a_delta_beyond_all_errors_is_the_squared_one_and_its_gap_bounds_what_is_left():
    _, score, _, rng = drawn_blocks()
    y = score + rng.standard_normal(ROWS)
    far, squared = (solved(one_output(y, loss), "vfb2-saga", target=1e-12) for loss in (huber(1e3), SQUARED))
    np.testing.assert_allclose(far, squared, atol=1e-6)
    problem = one_output(y, huber(0.3))
    _, least = central.optimum(problem.with_ones(), y, problem.loss, STRENGTH, free=1)
    parties = build_parties("vfb2-saga", problem, LinearOptions(method="saga", passes=200, target=1e-9), 0)
    outcome = Simulator(seed=0).run(parties)
    looks = [value for _, _, name, value in outcome.observations if name == "certificate"]
    for look in looks:
        assert -1e-12 <= look["objective"] - least <= look["gap"] * (1 + 1e-9) + 1e-12
    assert looks[-1]["gap"] <= 1e-9


def test_hubers_loss_and_an_elastic_net_end_at_their_target_with_exact_zeros():
    _, score, _, rng = drawn_blocks()
    y = score + 0.3 * rng.standard_t(2, ROWS)
    problem = replace(one_output(y, huber(0.5)), penalty=elastic_net(0.7), strength=0.3)
    found = solved(problem, "vfb2-saga", target=1e-9)
    loss = weighted(problem.loss, problem.weights)
    best = central.descend(problem.with_ones(), y, np.zeros(WIDTH + 1), loss, problem.penalty, 0.3, free=1)
    assert apart(found[0], best) <= 1e-4
    assert 0 < (found[0] == 0.0).sum() < WIDTH


def test_what_a_growing_loss_cannot_go_with_is_said():
    problem = one_output(np.ones(ROWS), POISSON)
    for options, words in (
        (LinearOptions(method="sgd"), "stochastic gradients alone would run away"),
        (LinearOptions(by_curvature=False), "by_curvature = false would run away"),
    ):
        with pytest.raises(BadJob, match=f"needs steps by the curvature.*{words}"):
            build_parties("vfb2-svrg", problem, options, 0)
    with pytest.raises(BadJob, match="goes with the penalty l2 or none, so far; got elastic-net"):
        build_parties("vfb2-svrg", replace(problem, penalty=elastic_net(0.5)), LinearOptions(), 0)


@pytest.mark.parametrize(("size", "middle"), [(1e-6, 0.0), (1e6, 0.0), (1e5, 1e6), (1.0, 1e9)])
@pytest.mark.parametrize("intercept", [True, False])
def test_labels_of_any_size_are_learned_in_their_own_units(size, middle, intercept):
    """The model is scikit-learn's, in the labels' units; the record says in which units the certificate is."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((400, 6))
    y = size * (X @ np.arange(1.0, 7.0) + rng.standard_normal(400)) + (middle if intercept else 0.0)
    blocks = {"a": X[:, :2], "b": X[:, 2:3], "c": X[:, 3:]}
    ours = VerticalRegressor(penalty=1e-3, target=1e-10, intercept=intercept, prepare="none").fit(blocks, y)
    theirs = Ridge(alpha=0.5e-3 * len(y), fit_intercept=intercept).fit(X, y)
    found = np.concatenate([ours.coef_[name] for name in blocks])
    assert np.abs(found / theirs.coef_ - 1.0).max() < 1e-4
    assert np.abs(ours.predict(blocks) - theirs.predict(X)).max() < 1e-4 * y.std()
    assert ours.record_.verdict == "target"
    assert any("in units of" in note for note in ours.record_.data.notes) == (size != 1.0 or intercept)


def test_hubers_loss_takes_labels_of_any_size_in_their_own_units():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((400, 6))
    y = X @ np.arange(1.0, 7.0) + rng.standard_normal(400) + 40.0 * (rng.random(400) < 0.1)
    blocks, terms = {"a": X[:, :2], "b": X[:, 2:3], "c": X[:, 3:]}, {"penalty": 1e-3, "loss": "huber"}
    models = []
    for size in (1.0, 1e6):
        ours = VerticalRegressor(**terms, huber_delta=1.5 * size, target=1e-10, prepare="none").fit(blocks, size * y)
        models.append(np.append(np.concatenate(list(ours.coef_.values())), ours.intercept_) / size)
    assert apart(models[1], models[0]) <= 1e-5
    assert apart(models[0][:-1], np.arange(1.0, 7.0)) <= 0.05  # the far labels have hardly moved it
