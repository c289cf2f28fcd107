"""Compiled loops over dense blocks, and the fixed-point arithmetic both kinds of block share.

A dense block is feature-major: X[j, i] is column j of row i, so that a batch of rows is contiguous within each column
and the loops vectorise along rows however narrow the party is.

A model has one or more *outputs* (one for each class of a softmax). Weights are w[k, j], output by output, and the last
column w[k, d] is the block's constant. Products and derivatives of a batch are flat: those of output 0, then of 1, ...

Three rules keep these loops fast and safe:
- slices are taken first and indexed from 0, because a negative-index check would stop vectorisation;
- `fastmath` has no nan or inf assumption, and the range check counts the values *inside* the limit, so that NaN and
  infinities fail it instead of being encoded and sent;
- every input is declared read-only: numba then takes both writable arrays and those that came out of a message, by one
  compiled signature and without compiling again in the middle of a run.
"""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types

from offbeat.learning.losses import derivative_of
from offbeat.learning.penalties import penalty_slope
from offbeat.learning.ranges import WORD_BOUND

FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
COMPILED_TOGETHER = (
    *("losses.py", "penalties.py", "ranges.py", "kernels.py", "sparse.py"),
    *("sparse_kernels.py", "class_kernels.py", "subspace.py"),
)
INT = types.int64
REAL = types.float64
COUNT = types.int64


def given(dtype: Any, ndim: int = 1) -> types.Array:
    """An array the kernel only reads."""
    return types.Array(dtype, ndim, "C", readonly=True)


def taken(dtype: Any, ndim: int = 1) -> types.Array:
    """An array the kernel writes to."""
    return types.Array(dtype, ndim, "C")


READ = given(REAL)
WRITE = taken(REAL)
WORDS = given(types.uint64)
WORDS_OUT = taken(types.uint64)
BLOCK = given(REAL, 2)
BLOCK_OUT = taken(REAL, 2)
METRIC = given(REAL, 3)
TILE = 1024
SGD, SVRG, SAGA = 0, 1, 2
"""Which direction a step follows: see `blocks.Block`."""


def _stamp() -> str:
    """A digest of the sources that are compiled into one another.

    Numba's cache looks at the file of the function alone, and would go on using an old derivative after losses.py
    changed; with the digest in the function's name it cannot.
    """
    folder = Path(__file__).parent
    sources = [(folder / name).read_bytes() for name in COMPILED_TOGETHER]
    return hashlib.sha256(b"".join(sources)).hexdigest()[:12]


STAMP = _stamp()


def compiled(result: Any, *arguments: Any, fastmath: Any = FASTMATH) -> Callable[[Callable[..., Any]], Any]:
    """Compile for exactly these types, cached on disk, releasing the interpreter lock."""

    def compile_now(function: Callable[..., Any]) -> Any:
        function.__qualname__ = f"{function.__name__}_{STAMP}"
        return numba.njit(result(*arguments), nogil=True, cache=True, fastmath=fastmath)(function)

    return compile_now


# -- fixed point ------------------------------------------------------------------------------------------------------


@numba.njit(inline="always")
def encode_masked(z, scale, limit, mask, at, out):  # type: ignore[no-untyped-def]
    """out = round(z * scale) + mask[at:] modulo 2^64; the number of values that were inside the limit."""
    bound = limit if limit * scale <= WORD_BOUND else -1.0
    word = mask[at : at + len(z)]
    inside = 0
    for i in range(len(z)):
        inside += abs(z[i]) < bound
        out[i] = np.uint64(np.int64(np.rint(z[i] * scale))) + word[i]
    return inside


@numba.njit(inline="always")
def encode_plain(z, scale, limit, out):  # type: ignore[no-untyped-def]
    """The same without a mask."""
    bound = limit if limit * scale <= WORD_BOUND else -1.0
    inside = 0
    for i in range(len(z)):
        inside += abs(z[i]) < bound
        out[i] = np.uint64(np.int64(np.rint(z[i] * scale)))
    return inside


@compiled(types.void, WORDS, READ, INT, READ, READ, INT, REAL, REAL, WRITE, WRITE)
def finish(words, own, start, labels, weights, code, delta, scale, z, theta):  # type: ignore[no-untyped-def]
    """z = decoded words + own; theta = derivative of the loss there, times the row's weight where rows have one."""
    back = 1.0 / scale
    for i in range(len(words)):
        z[i] = np.float64(np.int64(words[i])) * back + own[i]
    label = labels[start : start + len(z)]
    for i in range(len(words)):
        theta[i] = derivative_of(code, delta, z[i], label[i])
    if len(weights) > 0:
        weight = weights[start : start + len(z)]
        for i in range(len(words)):
            theta[i] *= weight[i]


REACH = 1.0
"""How far, in units of the product, a loss that grows is believed beyond the last known point."""


@compiled(types.void, READ, INT, READ, READ, READ, INT, WRITE)
def finish_growing(z, start, labels, weights, known, code, theta):  # type: ignore[no-untyped-def]
    """theta = derivative at z of Poisson's (code 6) or gamma's loss, whose growing part is straight from REACH beyond a
    known point on: its curvature is then at most e^REACH times that which the steps were made for, and no step can run
    away. `known`: the curvature of these rows there, weight included. Near the known point nothing differs."""
    steepest = math.exp(REACH)
    for i in range(len(z)):
        y, weight = labels[start + i], weights[start + i] if len(weights) > 0 else 1.0
        base = max(known[i] / weight, 1e-300) if weight > 0.0 else 1.0
        rise = z[i] - math.log(base) if code == 6 else math.log(y / base) - z[i]
        grown = base * (math.exp(rise) if rise <= REACH else steepest * (1.0 + rise - REACH))
        theta[i] = weight * (grown - y if code == 6 else 1.0 - grown)


@numba.njit(inline="always")
def residuals(theta, table, start, mode, out):  # type: ignore[no-untyped-def]
    """out = theta, for SVRG and SAGA less the table's entries; SAGA's table then takes theta."""
    if mode == SGD:
        for i in range(len(out)):
            out[i] = theta[i]
        return
    entry = table[start : start + len(out)]
    for i in range(len(out)):
        out[i] = theta[i] - entry[i]
    if mode == SAGA:
        for i in range(len(out)):
            entry[i] = theta[i]


@compiled(types.void, READ, INT, INT, BLOCK_OUT, WRITE)
def take_residuals(theta, start, mode, table, out):  # type: ignore[no-untyped-def]
    rows = len(theta) // len(table)
    for k in range(len(table)):
        residuals(theta[k * rows : (k + 1) * rows], table[k], start, mode, out[k * rows : (k + 1) * rows])


# -- dense blocks -----------------------------------------------------------------------------------------------------


@numba.njit(inline="always")
def _products(X, start, w, z):  # type: ignore[no-untyped-def]
    """z = rows @ w + constant, four columns at a time so that z is loaded and stored a quarter as often."""
    m = len(z)
    d = len(X)
    stop = start + m
    constant = w[d]
    for i in range(m):
        z[i] = constant
    j = 0
    while j + 4 <= d:
        a, b, c, e = w[j], w[j + 1], w[j + 2], w[j + 3]
        xa = X[j, start:stop]
        xb = X[j + 1, start:stop]
        xc = X[j + 2, start:stop]
        xe = X[j + 3, start:stop]
        for i in range(m):
            z[i] += a * xa[i] + b * xb[i] + c * xc[i] + e * xe[i]
        j += 4
    while j < d:
        a = w[j]
        xa = X[j, start:stop]
        for i in range(m):
            z[i] += a * xa[i]
        j += 1


@numba.njit(inline="always")
def _all_products(X, start, w, z):  # type: ignore[no-untyped-def]
    """Output by output; of several, a tile of rows at a time, so that the columns are read once."""
    rows = len(z) // len(w)
    tile = rows if len(w) == 1 else TILE // 2
    for first in range(0, rows, tile):
        last = min(first + tile, rows)
        for k in range(len(w)):
            _products(X, start + first, w[k], z[k * rows + first : k * rows + last])


@compiled(types.void, BLOCK, INT, BLOCK, WRITE)
def dense_share(X, start, w, z):  # type: ignore[no-untyped-def]
    _all_products(X, start, w, z)


@compiled(COUNT, BLOCK, INT, BLOCK, WORDS, INT, REAL, REAL, WORDS_OUT)
def dense_masked(X, start, w, mask, at, scale, limit, out):  # type: ignore[no-untyped-def]
    z = np.empty(len(out))
    _all_products(X, start, w, z)
    return encode_masked(z, scale, limit, mask, at, out)


@compiled(COUNT, READ, REAL, REAL, WORDS_OUT)
def encode(z, scale, limit, out):  # type: ignore[no-untyped-def]
    return encode_plain(z, scale, limit, out)


@compiled(COUNT, READ, WORDS, REAL, REAL, WORDS_OUT)
def encode_under(z, mask, scale, limit, out):  # type: ignore[no-untyped-def]
    return encode_masked(z, scale, limit, mask, 0, out)


@numba.njit(inline="always")
def _column_product(X, j, start, residual):  # type: ignore[no-untyped-def]
    x = X[j, start : start + len(residual)]
    total = 0.0
    for i in range(len(residual)):
        total += x[i] * residual[i]
    return total


@compiled(types.void, BLOCK, INT, READ, REAL, BLOCK_OUT)
def dense_gradient(X, start, residual, factor, into):  # type: ignore[no-untyped-def]
    """into += factor * rows^T residual, the constant's column of ones last."""
    rows, d = len(residual) // len(into), len(X)
    for j in range(d):
        for k in range(len(into)):
            into[k, j] += factor * _column_product(X, j, start, residual[k * rows : (k + 1) * rows])
    for k in range(len(into)):
        into[k, d] += factor * residual[k * rows : (k + 1) * rows].sum()


@numba.njit(inline="always")
def soft(w, threshold):  # type: ignore[no-untyped-def]
    """The proximal step of threshold * |w|."""
    return w - threshold if w > threshold else w + threshold if w < -threshold else 0.0


@numba.njit(inline="always")
def _follow(metric, slope, eta, l1, w):  # type: ignore[no-untyped-def]
    """w -= eta metric slope, then the step of l1 |w|. No metric is 1, a metric of one row is a diagonal."""
    d = len(slope)
    if len(metric) == 0:
        for j in range(d):
            w[j] -= eta * slope[j]
    elif len(metric) == 1:
        for j in range(d):
            w[j] -= eta * metric[0, j] * slope[j]
    else:
        for j in range(d):
            row = metric[j]
            total = 0.0
            for k in range(d):
                total += row[k] * slope[k]
            w[j] -= eta * total
    if l1 > 0.0:
        for j in range(d):
            w[j] = soft(w[j], eta * l1 * (metric[0, j] if len(metric) == 1 else 1.0))


@compiled(types.void, BLOCK, INT, READ, BLOCK_OUT, INT, REAL, REAL, INT, REAL, METRIC, READ, BLOCK_OUT, BLOCK_OUT)
def dense_step(  # type: ignore[no-untyped-def]
    X, start, theta, table, mode, eta, strength, penalty, l1, metric, intercept, w, mu
):
    """For every output, with g = rows^T residual of its derivatives (see `residuals`):

    w -= eta metric (g / b + mu + strength penalty'(w)); SAGA: mu += g / n. A metric without rows is 1. The constant has
    no penalty, and a metric of its own: 0 where it is not this block's to move.
    """
    outputs, d = len(w), len(X)
    rows = len(theta) // outputs
    residual, slope = np.empty(rows), np.empty(d)
    accumulate = 1.0 / X.shape[1] if mode == SAGA else 0.0
    for k in range(outputs):
        residuals(theta[k * rows : (k + 1) * rows], table[min(k, len(table) - 1)], start, mode, residual)
        wk, muk = w[k], mu[k]
        for j in range(d):
            g = _column_product(X, j, start, residual)
            slope[j] = g / rows + muk[j] + strength * penalty_slope(penalty, wk[j])
            muk[j] += accumulate * g
        _follow(metric[min(k, len(metric) - 1)], slope, eta, l1, wk)
        total = residual.sum()
        if intercept[k] > 0.0:
            wk[d] -= eta * intercept[k] * (total / rows + muk[d])
        muk[d] += accumulate * total  # also where the constant rests: this block may be told to move it later


@compiled(types.void, BLOCK, REAL, REAL, REAL, REAL, INT, REAL, METRIC, READ, BLOCK_OUT, BLOCK_OUT)
def dense_apply(  # type: ignore[no-untyped-def]
    g, rows, eta, accumulate, strength, penalty, l1, metric, intercept, w, mu
):
    """The same step from gradients computed elsewhere."""
    outputs, d = len(w), w.shape[1] - 1
    slope = np.empty(d)
    for k in range(outputs):
        wk, muk = w[k], mu[k]
        for j in range(d):
            slope[j] = g[k, j] / rows + muk[j] + strength * penalty_slope(penalty, wk[j])
            muk[j] += accumulate * g[k, j]
        _follow(metric[min(k, len(metric) - 1)], slope, eta, l1, wk)
        if intercept[k] > 0.0:
            wk[d] -= eta * intercept[k] * (g[k, d] / rows + muk[d])
        muk[d] += accumulate * g[k, d]


@numba.njit(inline="always")
def _weighted_product(x, y, factor):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(factor)):
        total += factor[i] * x[i] * y[i]
    return total


@compiled(types.void, BLOCK, READ, WRITE)
def dense_squares(X, factor, into):  # type: ignore[no-untyped-def]
    """into = for each column the sum over all rows of factor * value^2."""
    for j in range(len(into)):
        into[j] = _weighted_product(X[j], X[j], factor)


@compiled(types.void, BLOCK, BLOCK, BLOCK_OUT)
def all_dense_squares(X, factors, into):  # type: ignore[no-untyped-def]
    """The same for several outputs, output by output: each has factors of its own, and the columns are read once."""
    square = np.empty(TILE)
    into[:] = 0.0
    for first in range(0, X.shape[1], TILE):
        last = min(first + TILE, X.shape[1])
        for j in range(len(X)):
            x = X[j, first:last]
            for i in range(last - first):
                square[i] = x[i] * x[i]
            for k in range(len(factors)):
                factor, total = factors[k, first:last], 0.0
                for i in range(last - first):
                    total += square[i] * factor[i]
                into[k, j] += total


@compiled(types.void, BLOCK, READ, BLOCK_OUT)
def dense_hessian(X, factor, into):  # type: ignore[no-untyped-def]
    """into = the sum over the first rows of factor * row row^T, a tile of rows at a time so that it stays at hand."""
    rows, d = len(factor), len(X)
    into[:] = 0.0
    scaled = np.empty(TILE)
    for first in range(0, rows, TILE):
        last = min(first + TILE, rows)
        weight = factor[first:last]
        for j in range(d):
            x = X[j, first:last]
            for i in range(len(weight)):
                scaled[i] = weight[i] * x[i]
            for k in range(j + 1):
                y = X[k, first:last]
                total = 0.0
                for i in range(len(weight)):
                    total += scaled[i] * y[i]
                into[j, k] += total
    for j in range(d):
        for k in range(j):
            into[k, j] = into[j, k]


@compiled(types.void, BLOCK, BLOCK_OUT)
def invert(matrix, into):  # type: ignore[no-untyped-def]
    """into = the inverse of a symmetric positive definite matrix, by Cholesky's factors.

    By hand, for a library's last digits depend on its threads and on the machine, and runs must replay anywhere.
    """
    d = len(matrix)
    lower = np.zeros((d, d))
    for j in range(d):
        for i in range(j, d):
            total = matrix[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            lower[i, j] = np.sqrt(total) if i == j else total / lower[j, j]
    inverse = np.zeros((d, d))  # of the lower factor
    for j in range(d):
        inverse[j, j] = 1.0 / lower[j, j]
        for i in range(j + 1, d):
            total = 0.0
            for k in range(j, i):
                total -= lower[i, k] * inverse[k, j]
            inverse[i, j] = total / lower[i, i]
    for i in range(d):
        for j in range(i + 1):
            total = 0.0
            for k in range(i, d):
                total += inverse[k, i] * inverse[k, j]
            into[i, j] = total
            into[j, i] = total
