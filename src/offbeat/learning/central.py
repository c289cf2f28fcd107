"""The centralised side, on pooled data: what a federated run is held against.

`optimum` and `best_known` say what there is to reach, `certificate` how far a point may be from it, `run` is the
obvious loop that fast and federated code must reproduce, and `fit` is the fast solver that benchmarks compare with.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

from offbeat.errors import BadJob
from offbeat.learning import metric as metrics
from offbeat.learning.blocks import DIRECTIONS
from offbeat.learning.losses import Loss, unknown_name
from offbeat.learning.orders import Order, from_rises, least_rises, slope_by_rises
from offbeat.learning.penalties import L2, NONE, Penalty

Floats = NDArray[np.float64]
SLOPE_LEAST = 1e-10
NEWTON_TRIED_AT = ((1e-4, 8), (1e-6, 8), (SLOPE_LEAST, 100))
"""Where L-BFGS stops, by the largest part of the gradient, and how many Newton steps follow."""
DIRECT_WIDTH_MOST = 1000
THIN_SHARE_MOST = 0.25
RANDOM_STARTS = 2


def products(X: Any, w: Floats, loss: Loss) -> Floats:
    """Of every row with these weights; with several outputs, which are flat in w, outputs x rows."""
    if loss.outputs == 1:
        return np.asarray(X @ w)
    return np.ascontiguousarray(np.asarray(X @ w.reshape(loss.outputs, -1).T).T)


def mean_slope(X: Any, theta: Floats, loss: Loss) -> Floats:
    """The gradient of the mean loss, flat as the weights are, from its derivatives."""
    if loss.outputs == 1:
        slope: Floats = np.asarray(X.T @ theta) / len(theta)
    else:
        slope = np.asarray(X.T @ theta.T).T.ravel() / theta.shape[1]
    return slope


def penalised(w: Floats, loss: Loss, free: int) -> Floats:
    """A view of the weights that have a penalty: not those of the last `free` columns, such as a column of ones."""
    return w.reshape(loss.outputs, -1)[:, : len(w) // loss.outputs - free]


def objective(X: Any, y: Floats, w: Floats, loss: Loss, penalty: Penalty, strength: float, free: int = 0) -> float:
    """f(w) = mean loss + strength * penalty. The last `free` columns, such as a column of ones, have no penalty."""
    return float(np.mean(loss.value(products(X, w, loss), y))) + strength * penalty.value(penalised(w, loss, free))


def gradient(X: Any, y: Floats, w: Floats, loss: Loss, penalty: Penalty, strength: float, free: int = 0) -> Floats:
    """The gradient of f, for dense and sparse X; with an l1 part, the shortest subgradient."""
    slope = mean_slope(X, loss.derivative(products(X, w, loss), y), loss)
    part = penalised(slope, loss, free)
    part[:] = penalty.slope(penalised(w, loss, free), part, strength)
    return slope


def certificate(
    X: Any, y: Floats, w: Floats, loss: Loss, penalty: Penalty, strength: float
) -> tuple[float, float | None]:
    """(gradient norm, duality gap): the gap bounds f(w) - min f from above; None unless the penalty has an l2 part.

    With theta taken at w the gap f(w) - D(theta) is the penalty's slack, |gradient|^2 / (2 strength) for l2: that form
    keeps its digits where the difference of two nearly equal values has none left.
    """
    mean = mean_slope(X, loss.derivative(products(X, w, loss), y), loss)
    norm, gap = float(np.linalg.norm(penalty.slope(w, mean, strength))), penalty.slack(w, mean, strength)
    return norm, None if np.isnan(gap) else gap


def thin(X: Any) -> Any:
    """The same matrix in the form that multiplies faster: few of the cells of bins and categories are not zero."""
    if scipy.sparse.issparse(X) or np.count_nonzero(X) > THIN_SHARE_MOST * X.size:
        return X
    return scipy.sparse.csr_matrix(X)


# -- what there is to reach ------------------------------------------------------------------------------------------


def optimum(
    X: Any,
    y: Floats,
    loss: Loss,
    strength: float,
    *,
    free: int = 0,
    tolerance: float = 1e-10,
    start: Floats | None = None,
) -> tuple[Floats, float]:
    """(w, f) where the gradient norm is at most `tolerance`, for the l2 penalty (none where the strength is 0).

    L-BFGS comes near, Newton's method finishes: f - min f is then at most tolerance^2 / (2 strength). One of Newton's
    steps is worth many of L-BFGS's, so they are tried early; where a few are not enough L-BFGS goes on.
    """
    penalty = L2 if strength > 0.0 else NONE
    near = np.zeros(loss.outputs * X.shape[1]) if start is None else start
    for slope_most, steps in NEWTON_TRIED_AT:
        near = descend(X, y, near, loss, penalty, strength, free=free, slope_most=slope_most)
        w = near
        for _ in range(steps):
            slope = gradient(X, y, w, loss, penalty, strength, free)
            norm = float(np.linalg.norm(slope))
            if norm <= tolerance:
                return w, objective(X, y, w, loss, penalty, strength, free)
            w = _newton_step(X, y, w, slope, loss, strength, free)
    raise BadJob(
        f"The optimum was not found: after {steps} Newton steps the gradient norm is {norm:.3g}, not "
        f"{tolerance:g}. Scale the columns, raise the penalty's strength (now {strength:g}), or ask for less."
    )


def best_known(
    X: Any,
    y: Floats,
    loss: Loss,
    penalty: Penalty,
    strength: float,
    *,
    rng: np.random.Generator,
    free: int = 0,
) -> tuple[Floats, float]:
    """(w, f) of the lowest stationary point that L-BFGS finds from zero, from the l2 optimum and from random points.

    The minimum of a nonconvex objective is not known: report this as the best known value.
    """
    width = loss.outputs * X.shape[1]
    firsts = [np.zeros(width), optimum(X, y, loss, max(strength, 1e-8), free=free, tolerance=1e-6)[0]]
    firsts += [rng.standard_normal(width) for _ in range(RANDOM_STARTS)]
    ends = [descend(X, y, first, loss, penalty, strength, free=free) for first in firsts]
    values = [objective(X, y, w, loss, penalty, strength, free) for w in ends]
    best = int(np.argmin(values))
    return ends[best], values[best]


def descend(
    X: Any, y: Floats, start: Floats, loss: Loss, penalty: Penalty, strength: float, *, iterations: int = 5000,
    free: int = 0, orders: Sequence[Order] = (), slope_most: float = SLOPE_LEAST,
) -> Floats:  # fmt: skip
    """Where L-BFGS comes to from this start; with orders of the weights, of one output, from zero."""
    import scipy.optimize  # a quarter of a second, which a start that needs no such point need not spend

    bend = strength * penalty.l1

    def both(w: Floats) -> tuple[float, Floats]:
        """The objective without its l1 part, which is not smooth, and its gradient."""
        z, pulled = products(X, w, loss), penalised(w, loss, free)
        slope = mean_slope(X, loss.derivative(z, y), loss)
        penalised(slope, loss, free)[:] += strength * penalty.smooth * penalty.gradient(pulled)
        value = float(np.mean(loss.value(z, y))) + strength * penalty.value(pulled)
        return value - bend * float(np.abs(pulled).sum()), slope

    def split(parts: Floats) -> tuple[float, Floats]:
        """At w = up - down, neither of them negative: the l1 part is linear in the two."""
        up, down = parts[: len(start)], parts[len(start) :]
        value, slope = both(up - down)
        slopes = np.concatenate((slope, -slope))
        for part in (slopes[: len(start)], slopes[len(start) :]):
            penalised(part, loss, free)[:] += bend
        return value + bend * float(penalised(up + down, loss, free).sum()), slopes

    def rising(rises: Floats) -> tuple[float, Floats]:
        value, slope = both(from_rises(rises, orders))
        return value, slope_by_rises(slope, orders)

    def least(function: Callable[[Floats], tuple[float, Floats]], first: Floats, bound: Any) -> Floats:
        options: Any = {"maxiter": iterations, "maxfun": 20000, "ftol": 0.0, "gtol": slope_most, "maxcor": 20}
        bounds = None if bound is None else scipy.optimize.Bounds(bound, np.inf)
        found = scipy.optimize.minimize(function, first, jac=True, method="L-BFGS-B", options=options, bounds=bounds)
        return np.asarray(found.x, dtype=np.float64)

    if orders:
        return from_rises(least(rising, np.zeros(len(start)), least_rises(len(start), orders)), orders)
    if bend == 0.0:
        return least(both, start, None)
    up, down = np.split(least(split, np.concatenate((np.maximum(start, 0.0), np.maximum(-start, 0.0))), 0.0), 2)
    return up - down


def _newton_step(X: Any, y: Floats, w: Floats, slope: Floats, loss: Loss, strength: float, free: int) -> Floats:
    """w - t H^-1 slope, t halved until the gradient norm falls (near the optimum f itself has no digits left)."""
    penalty = L2 if strength > 0.0 else NONE
    pulls = np.zeros(len(w))
    penalised(pulls, loss, free)[:] = strength
    z = products(X, w, loss)
    one = loss.outputs == 1
    move = (
        _solve_hessian(X, loss.second(z, y) / len(y), pulls, slope) if one else _solve_all(X, y, z, loss, pulls, slope)
    )
    norm = float(np.linalg.norm(slope))
    size = 1.0
    while size > 1e-6:
        candidate = w - size * move
        if float(np.linalg.norm(gradient(X, y, candidate, loss, penalty, strength, free))) < norm:
            return candidate
        size /= 2.0
    return w - move


def _solve_hessian(X: Any, weights: Floats, pulls: Floats, slope: Floats) -> Floats:
    """(X^T diag(weights) X + diag(pulls))^-1 slope, directly where it is small and by conjugate gradients elsewhere."""
    width = X.shape[1]
    if width <= DIRECT_WIDTH_MOST and not scipy.sparse.issparse(X):
        hessian = (X.T * weights) @ X + np.diag(pulls)
        return np.asarray(np.linalg.lstsq(hessian, slope, rcond=None)[0])
    hessian = scipy.sparse.linalg.LinearOperator(
        (width, width), matvec=lambda u: X.T @ (weights * (X @ u)) + pulls * u, dtype=np.float64
    )
    move, _ = scipy.sparse.linalg.cg(hessian, slope, rtol=1e-4, maxiter=2000)
    return np.asarray(move)


def _solve_all(X: Any, y: Floats, z: Floats, loss: Loss, pulls: Floats, slope: Floats) -> Floats:
    """The same with several outputs, by conjugate gradients."""

    def image(u: Floats) -> Floats:
        assert loss.hessian is not None
        return mean_slope(X, loss.hessian(z, y, products(X, u.ravel(), loss)), loss) + pulls * u.ravel()

    hessian = scipy.sparse.linalg.LinearOperator((len(slope), len(slope)), matvec=image, dtype=np.float64)
    move, _ = scipy.sparse.linalg.cg(hessian, slope, rtol=1e-4, maxiter=2000)
    return np.asarray(move)


# -- the reference loop ----------------------------------------------------------------------------------------------


def run(
    X: Any,
    y: Floats,
    loss: Loss,
    penalty: Penalty,
    strength: float,
    method: str,
    eta: float | Callable[[int], float],
    batches: Iterable[tuple[int, int] | None],
    *,
    start: Floats | None = None,
    metric_at: Callable[[Floats, Floats], Floats] | None = None,
) -> Floats:
    """The weights after these steps, by the plain formulas. Nothing here is fast.

    A None among the batches is a survey: SVRG and SAGA take the derivatives of all rows into their table. SVRG's first
    table is taken at the start; SAGA's is empty until the first survey. `eta` may be a function of the number of steps
    taken. `metric_at`, of the loss's second derivatives and the weights, is the matrix that steps are multiplied by:
    taken at the start, and at a survey if the derivatives tell the curvature. X is an array or a CSR matrix.
    """
    check_method(method)
    w = np.zeros(X.shape[1]) if start is None else start.copy()
    table = loss.derivative(X @ w, y) if method == "svrg" else np.zeros(len(y))
    mean = np.asarray(X.T @ table) / len(y)
    metric = None if metric_at is None else metric_at(np.full(len(y), loss.curvature), w)
    steps = 0
    for batch in batches:
        if batch is None:
            table = loss.derivative(X @ w, y)
            mean = np.asarray(X.T @ table) / len(y)
            if metric_at is not None and loss.second_from_derivative is not None:
                metric = metric_at(loss.second_from_derivative(table), w)
            continue
        rows = slice(*batch)
        theta = loss.derivative(X[rows] @ w, y[rows])
        correction = np.asarray(X[rows].T @ (theta - table[rows])) if method != "sgd" else X[rows].T @ theta
        size = eta(steps) if callable(eta) else eta
        average = mean if method != "sgd" else 0.0
        direction = correction / len(theta) + average + strength * penalty.gradient(w)
        w = w - size * (direction if metric is None else metric @ direction)
        if method == "saga":
            mean = mean + correction / len(y)
            table[rows] = theta
        steps += 1
    return w


def check_method(method: str) -> None:
    if method not in DIRECTIONS:
        raise BadJob(unknown_name("method", method, list(DIRECTIONS)))


# -- the fast solver -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A finished fit. `curve` has one (passes, cpu seconds spent solving, objective) for each look at the objective."""

    weights: Floats
    objective: float
    passes: float
    cpu_s: float
    curve: tuple[tuple[float, float, float], ...]


def fit(
    X: Any,
    y: Floats,
    loss: Loss,
    penalty: Penalty,
    strength: float,
    *,
    method: str,
    eta: float,
    passes: int,
    batch: int = 1,
    seed: int = 0,
    target: float | None = None,
) -> Fit:
    """Solve with compiled loops, until the objective is at most `target` or for so many passes over the data.

    At batch 1 one fused loop goes over freshly shuffled rows; a larger batch goes through the same blocks that parties
    use. SVRG takes a snapshot before every pass, and its snapshots count as passes.
    """
    check_method(method)
    from offbeat.learning.central_loops import solver

    rng = np.random.default_rng(seed)
    work = solver(X, y, loss, penalty, strength, method, batch, rng)
    curve: list[tuple[float, float, float]] = []
    done, cpu_s = 0.0, 0.0
    while done < passes:
        cpu_s += work.one_pass(eta)
        done += 2.0 if method == "svrg" else 1.0
        last = done >= passes
        if target is None and not last:
            continue
        value = objective(X, y, work.weights(), loss, penalty, strength)
        curve.append((done, cpu_s, value))
        if (target is not None and value <= target) or not np.isfinite(value):
            break
    return Fit(work.weights(), curve[-1][2], done, cpu_s, tuple(curve))


def fit_by_curvature(
    X: Any,
    y: Floats,
    start: Floats,
    loss: Loss,
    penalty: Penalty,
    strength: float,
    *,
    eta: float,
    batch: int,
    passes: float,
    norm_most: float,
    snapshot_passes: int = 1,
    seed: int = 0,
) -> Fit:
    """SVRG from this start, each coordinate's steps divided by its curvature at the last snapshot, until the gradient
    norm is at most `norm_most` at a snapshot or for so many passes."""
    from offbeat.learning.central_loops import BatchSolver

    work = BatchSolver(X, y, loss, penalty, strength, "svrg", batch, np.random.default_rng(seed))
    work.begin_at(start)
    done, cpu_s = 0.0, 0.0
    while True:
        weights = work.weights()
        norm = float(np.linalg.norm(gradient(X, y, weights, loss, penalty, strength)))
        if norm <= norm_most or done >= passes or not np.isfinite(norm):
            value = objective(X, y, weights, loss, penalty, strength)
            return Fit(weights, value, done, cpu_s, ((done, cpu_s, value),))
        for number in range(snapshot_passes):
            cpu_s += work.one_pass(eta, snapshot=number == 0, metric=metrics.DIAGONAL)
        done += 1.0 + snapshot_passes
