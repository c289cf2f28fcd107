"""Models that others compute too: their coefficients against scikit-learn's, and what must change nothing."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression

from offbeat.algorithms.methods import LINEAR
from offbeat.learning import central
from offbeat.learning.losses import softmax
from offbeat.learning.penalties import L2
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
    """Up to the rounding of sums, which a leap multiplies by its coefficients."""
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
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-7 if leap else 1e-9, err_msg=what)


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
