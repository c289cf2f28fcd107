"""The best point in the affine span of a few known points: what a *leap* goes to.

Where the products of every row with a base point and with some directions are known, the objective on

    w(a) = base + sum_i a_i direction_i,       z(a) = z_base + sum_i a_i z_i (+ a constant),

can be evaluated and minimised exactly by whoever holds the labels, without asking anybody: the loss needs the products
alone, and the l2 penalty needs the inner products of base and directions, a handful of scalars. Narkiss and Zibulevsky,
"Sequential subspace optimization method for large-scale unconstrained problems" (2005).

To keep it cheap, Newton's method runs on some of the rows (they are in random order), with a linear term that makes the
gradient at its start that of all rows; then all rows are looked at once, and if much is left to gain, it runs again
from there. The result is never worse than the start.

With several outputs, products are those of output 0, then of 1, ...; a direction moves all outputs, and each output has
a constant of its own. Those of a softmax add up to nothing, since the same number added to all changes nothing.
"""

from dataclasses import dataclass

import numpy as np
from numba import types
from numpy.typing import NDArray

from offbeat.learning.class_kernels import curvature_classes, evaluate_classes, mean_size
from offbeat.learning.kernels import BLOCK, BLOCK_OUT, INT, READ, REAL, TILE, WRITE, compiled
from offbeat.learning.losses import GAMMA, LOGISTIC, POISSON, Loss, derivative_of, logistic_rows, second_of, value_of

Floats = NDArray[np.float64]
SOME_ROWS, SOME_ROWS_LEAST = 8192, 2048
"""How many rows Newton's method looks at; several outputs share them, down to the least."""
ROUNDS_MOST = 3
NEWTON_STEPS_MOST = 12
CONSTANT_STEPS_MOST = 50
HALVINGS_MOST = 30
LOGISTIC_CODE = LOGISTIC.code
PIVOT_LEAST = 1e-11
ENOUGH = 1e-4
"""Of what the leap has gained: when less than this is left to gain, the search ends."""
ROUNDING = 1e-14
"""Of the objective: what is less cannot be told from the rounding of a mean over many rows, and is not searched for."""
MUCH = 0.1
"""Of what all rounds have gained: after a round that gained less than this, the search ends."""
EVEN = 1e-13
"""How much of their mean size the derivatives may add up to, where the model has a constant."""
CONSTANT_BEYOND = 50.0
"""How far beyond the largest product and label a constant may lie: further out, exponentials have vanished."""
SLIGHTEST = 1e-9
"""Of that range: a move of the constant below this that does not even out more is rounding."""


@dataclass(frozen=True)
class Quadratic:
    """The penalty on the span: strength / 2 * |base + sum a_i direction_i|^2, from inner products."""

    strength: float
    square: float  # |base|^2
    linear: Floats  # <direction_i, base>
    products: Floats  # <direction_i, direction_j>

    def value(self, a: Floats) -> float:
        return 0.5 * self.strength * (self.square + 2.0 * float(a @ self.linear) + float(a @ self.products @ a))

    def slope(self, a: Floats) -> Floats:
        return self.strength * (self.linear + self.products @ a)

    def rounding(self, a: Floats) -> float:
        """How far the value may be off: steps that went far are taken back by large terms that cancel."""
        size = np.abs(a)
        terms = self.square + 2.0 * float(size @ np.abs(self.linear)) + float(size @ np.abs(self.products) @ size)
        return float(np.finfo(np.float64).eps) * self.strength * terms


@dataclass(frozen=True)
class Best:
    """Where the search ended."""

    coefficients: Floats
    constants: Floats  # one for each output
    products: Floats  # of every row, there
    derivatives: Floats
    loss: float  # the mean, there
    objective: float  # with the penalty


@compiled(REAL, READ, BLOCK, READ, REAL, READ, READ, INT, REAL, WRITE, WRITE, WRITE)
def evaluate(base, directions, a, constant, labels, weights, code, delta, z, theta, slope):  # type: ignore[no-untyped-def]
    """The mean loss at z = base + a directions + constant; theta takes its derivatives, row by row, and slope their
    mean times each direction and, last, their mean. One reading of the directions, a tile of rows at a time."""
    rows, count, total = len(base), len(a), 0.0
    values = np.empty(TILE)
    slope[:] = 0.0
    for first in range(0, rows, TILE):
        last = min(first + TILE, rows)
        here, slopes = z[first:last], theta[first:last]
        for i in range(last - first):
            here[i] = base[first + i] + constant
        for k in range(count):
            factor, row = a[k], directions[k, first:last]
            for i in range(last - first):
                here[i] += factor * row[i]
        label, worth = labels[first:last], values[: last - first]
        if code == LOGISTIC_CODE:
            logistic_rows(here, label, worth, slopes)
        else:
            for i in range(last - first):
                worth[i] = value_of(code, delta, here[i], label[i])
                slopes[i] = derivative_of(code, delta, here[i], label[i])
        if len(weights) > 0:
            weight = weights[first:last]
            for i in range(last - first):
                worth[i] *= weight[i]
                slopes[i] *= weight[i]
        total += worth.sum()
        for k in range(count):
            row, product = directions[k, first:last], 0.0
            for i in range(last - first):
                product += row[i] * slopes[i]
            slope[k] += product
        slope[count] += slopes.sum()
    for k in range(count + 1):
        slope[k] /= rows
    return total / rows


@compiled(types.void, BLOCK, READ, READ, READ, INT, REAL, INT, BLOCK_OUT)
def curvature(directions, z, labels, weights, code, delta, rows, into):  # type: ignore[no-untyped-def]
    """The Hessian of the mean loss over the first rows, in the directions and, last, in the constant."""
    count = len(directions)
    second = np.empty(rows)
    for i in range(rows):
        second[i] = second_of(code, delta, z[i], labels[i]) * (weights[i] if len(weights) > 0 else 1.0)
    scaled = np.empty(rows)
    for k in range(count + 1):
        if k < count:
            for i in range(rows):
                scaled[i] = second[i] * directions[k, i]
        else:
            scaled[:] = second
        for j in range(k + 1):
            total = 0.0
            if j < count:
                for i in range(rows):
                    total += scaled[i] * directions[j, i]
            else:
                total = scaled.sum()
            into[k, j] = total / rows
            into[j, k] = into[k, j]


@compiled(types.void, BLOCK, READ, REAL, WRITE)
def solve(matrix, slope, least, step):  # type: ignore[no-untyped-def]
    """step = -matrix^-1 slope by Cholesky's factors with pivots; directions that the others span already are left out.

    By hand, for a library's last digits depend on its threads, and runs must replay.
    """
    d = len(slope)
    work, scale = matrix.copy(), np.empty(d)
    for i in range(d):
        scale[i] = 1.0 / np.sqrt(matrix[i, i]) if matrix[i, i] > 0.0 else 0.0
    for i in range(d):
        for j in range(d):
            work[i, j] *= scale[i] * scale[j]
    order = np.arange(d)
    rank = 0
    for k in range(d):
        best = k
        for i in range(k, d):
            if work[order[i], order[i]] > work[order[best], order[best]]:
                best = i
        if not work[order[best], order[best]] > least:
            break
        order[k], order[best] = order[best], order[k]
        p = order[k]
        root = np.sqrt(work[p, p])
        work[p, p] = root
        for i in range(k + 1, d):
            r = order[i]
            work[r, p] /= root
        for i in range(k + 1, d):
            r = order[i]
            for j in range(k + 1, i + 1):
                s = order[j]
                work[r, s] -= work[r, p] * work[s, p]
                work[s, r] = work[r, s]
        rank += 1
    forward = np.zeros(d)
    for k in range(rank):
        p = order[k]
        total = slope[p] * scale[p]
        for j in range(k):
            total -= work[p, order[j]] * forward[j]
        forward[k] = total / work[p, p]
    step[:] = 0.0
    for k in range(rank - 1, -1, -1):
        p = order[k]
        total = forward[k]
        for i in range(k + 1, rank):
            total -= work[order[i], p] * (-step[order[i]] / scale[order[i]])
        step[p] = -total / work[p, p] * scale[p]


class Search:
    """One minimisation. Its variables are one coefficient for each direction and, last, each output's constant."""

    def __init__(
        self,
        loss: Loss,
        labels: Floats,
        weights: Floats,
        base: Floats,
        directions: Floats,
        penalty: Quadratic,
        constant: bool,
    ) -> None:
        self.loss, self.labels, self.weights = loss, labels, weights
        self.base, self.directions, self.penalty, self.constant = base, directions, penalty, constant
        self.count, self.outputs = len(directions), loss.outputs
        self.some = max(2 * SOME_ROWS // loss.outputs, SOME_ROWS_LEAST) if loss.outputs > 1 else SOME_ROWS
        self.at = np.full(self.count + self.outputs, np.nan)

    @property
    def origin(self) -> Floats:
        """The base itself."""
        return np.zeros(self.count + self.outputs)

    def value(self, a: Floats) -> float:
        """The objective; `z`, `theta`, `slope` and `mean_loss` are those of the point looked at last."""
        if not np.array_equal(a, self.at):
            self.at = a
            self.z, self.theta, self.mean_loss, self.slope = self._evaluate(self.base, self.directions, a)
            self._add_penalty(self.slope, a)
            self.objective = self.mean_loss + self.penalty.value(a[: self.count])
        return self.objective

    def _evaluate(self, base: Floats, directions: Floats, a: Floats) -> tuple[Floats, Floats, float, Floats]:
        """(products, derivatives, mean loss, its slope) at these variables."""
        z, theta, slope = np.empty_like(base), np.empty_like(base), np.empty_like(a)
        count = len(directions)
        if self.outputs > 1:
            data = (base, directions, a[:count], a[count:], self.labels, self.weights)
            return z, theta, float(evaluate_classes(*data, z, theta, slope)), slope
        one = (base, directions, a[:-1], float(a[-1]), self.labels, self.weights, self.loss.code, self.loss.delta)
        return z, theta, float(evaluate(*one, z, theta, slope)), slope

    def _curvature(self, directions: Floats) -> Floats:
        """The Hessian of the mean loss at the point looked at last."""
        size = len(directions) + self.outputs
        into = np.empty((size, size))
        if self.outputs > 1:
            curvature_classes(directions, self.z, self.weights, self.outputs, into)
        else:
            curvature(directions, self.z, self.labels, self.weights, self.loss.code, self.loss.delta, len(self.z), into)
        return into

    def _add_penalty(self, slope: Floats, a: Floats) -> None:
        slope[: self.count] += self.penalty.slope(a[: self.count])
        if not self.constant:
            slope[self.count :] = 0.0

    def stay(self, point: Floats | None = None) -> Best:
        """The base itself, or another point, with the best constant."""
        return self._best(self.origin if point is None else point)

    def run(self, start: Floats | None = None) -> Best:
        """Search from the base, or from another start."""
        a = self.origin if start is None else start
        first = value = self.value(a)
        some = self._some_rows() if len(self.labels) > self.some else self
        for _ in range(ROUNDS_MOST):
            tilt = np.zeros_like(a)
            if some is not self:
                some.value(a)
                tilt = self.slope - some.slope
            moved, left = some.descend(a, tilt)
            enough = max(ENOUGH * (first - value), ROUNDING * abs(value))
            if left <= enough or not self._lower(a, moved, value):
                break
            gained, a, value = value - self.objective, self.at, self.objective
            if some is self or gained < MUCH * (first - value):
                break
        return self._best(a)

    def _some_rows(self) -> "Search":
        weights = self.weights[: self.some] if len(self.weights) else self.weights
        rows = (self.labels[: self.some], weights, self._first(self.base[None])[0])
        return Search(self.loss, *rows, self._first(self.directions), self.penalty, self.constant)

    def _first(self, products: Floats) -> Floats:
        """Those of the first rows, of every output."""
        every = products.reshape(len(products), self.outputs, len(self.labels))
        return np.ascontiguousarray(every[:, :, : self.some]).reshape(len(products), self.outputs * self.some)

    def _lower(self, a: Floats, moved: Floats, value: float) -> bool:
        """Go to `moved`, or part of the way; whether the objective has fallen."""
        for _ in range(HALVINGS_MOST):
            if self.value(moved) < value:
                return True
            moved = (a + moved) / 2.0
        return False

    def descend(self, a: Floats, tilt: Floats) -> tuple[Floats, float]:
        """Where Newton's method ends on these rows, with a linear term; and what that gains."""
        first = value = self.value(a) + float(tilt @ a)
        for number in range(NEWTON_STEPS_MOST):
            self.value(a)
            slope, step = self.slope + tilt, np.empty_like(a)
            solve(self._hessian(), slope, PIVOT_LEAST, step)
            left = -float(slope @ step)
            if not left > max(ENOUGH * (first - value) * (number > 0), ROUNDING * abs(value)):
                break
            size = 1.0
            while size > 1e-6 and not self.value(a + size * step) + float(tilt @ (a + size * step)) < value:
                size /= 2.0
            if size <= 1e-6:
                break
            a = a + size * step
            value = self.value(a) + float(tilt @ a)
        return a, first - value

    def _hessian(self) -> Floats:
        into = self._curvature(self.directions)
        into[: self.count, : self.count] += self.penalty.strength * self.penalty.products
        if not self.constant:
            into[self.count :], into[:, self.count :] = 0.0, 0.0
        return into

    def _best(self, a: Floats) -> Best:
        self.value(a)
        constants = a[self.count :]
        if self.constant:
            constants = self._centred(constants + (self._even_out() if self.outputs == 1 else self._even_out_all()))
            self.at = np.full_like(a, np.nan)
        objective = self.mean_loss + self.penalty.value(a[: self.count])
        return Best(a[: self.count], constants, self.z, self.theta, self.mean_loss, objective)

    def _even_out(self) -> Floats:
        """Shift the constant alone until the derivatives add up to nothing: the certificate counts on it.

        Newton's method between bounds: their sum rises with the constant, and a step beyond a bound is a bisection.
        """
        high = float(np.abs(self.z).max() + np.abs(self.labels).max()) + CONSTANT_BEYOND
        low, slightest, shift = -high, SLIGHTEST * high, 0.0
        for _ in range(CONSTANT_STEPS_MOST):
            uneven = float(self.theta.mean())
            if not abs(uneven) > EVEN * float(np.abs(self.theta).mean()):
                break
            low, high = (shift, high) if uneven < 0.0 else (low, shift)
            move = self._to_even(uneven, max(float(self._curvature(np.empty((0, len(self.z))))[0, 0]), 1e-300))
            if not low < shift + move < high:
                move = (low + high) / 2.0 - shift
            z, theta, mean_loss = self._shifted(np.array([move]))
            if abs(move) < slightest and not abs(float(theta.mean())) < abs(uneven):
                break
            self.z, self.theta, self.mean_loss, shift = z, theta, mean_loss, shift + move
        return np.array([shift])

    def _to_even(self, uneven: float, curvature: float) -> float:
        """Newton's step; where the loss grows, what evens out at once, since exp(z + c) = exp(z) exp(c)."""
        if self.loss is POISSON:
            return float(np.log1p(-min(uneven / curvature, 1.0 - 1e-12)))
        if self.loss is GAMMA:
            return -float(np.log1p(uneven / curvature))
        return -uneven / curvature

    def _even_out_all(self) -> Floats:
        """The same for several outputs: Newton's method, each step shortened until the derivatives are more even."""
        shift, none = np.zeros(self.outputs), np.empty((0, len(self.z)))
        uneven = self.slope[self.count :]  # the mean of each output's derivatives
        for _ in range(CONSTANT_STEPS_MOST):
            before, size, step = float(np.abs(uneven).max()), 1.0, np.empty(self.outputs)
            if not before > EVEN * mean_size(self.theta):
                break
            solve(self._curvature(none), uneven, PIVOT_LEAST, step)
            found = self._evaluate(self.z, none, step)
            while size > 1e-6 and not np.abs(found[3]).max() < before:
                size /= 2.0
                found = self._evaluate(self.z, none, size * step)
            if size <= 1e-6:
                break
            (self.z, self.theta, self.mean_loss, uneven), shift = found, shift + size * step
        return shift

    def _centred(self, constants: Floats) -> Floats:
        """Several constants that add up to nothing, with the products that go with them: no loss feels their sum."""
        if self.outputs == 1:
            return constants
        middle = float(constants.mean())
        self.z = self.z - middle
        return constants - middle

    def _shifted(self, move: Floats) -> tuple[Floats, Floats, float]:
        """(products, derivatives, mean loss) with the constants moved by so much."""
        return self._evaluate(self.z, np.empty((0, len(self.z))), move)[:3]
