"""Compiled loops over dense blocks, and the fixed-point arithmetic both kinds of block share.

A dense block is feature-major: X[j, i] is column j of row i, so that a batch of rows is contiguous within each column
and the loops vectorise along rows however narrow the party is.

Three rules keep these loops fast and safe:
- slices are taken first and indexed from 0, because a negative-index check would stop vectorisation;
- `fastmath` has no nan or inf assumption, and the range check counts the values *inside* the limit, so that NaN and
  infinities fail it instead of being encoded and sent;
- every input is declared read-only: numba then takes both writable arrays and those that came out of a message, by one
  compiled signature and without compiling again in the middle of a run.
"""

import hashlib
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
COMPILED_TOGETHER = ("losses.py", "penalties.py", "ranges.py", "kernels.py", "sparse.py", "sparse_kernels.py")
INT = types.int64
REAL = types.float64
FLAG = types.boolean
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


@compiled(types.void, WORDS, READ, READ, INT, REAL, WRITE, WRITE)
def finish(words, own, labels, code, scale, z, theta):  # type: ignore[no-untyped-def]
    """z = decoded words + own; theta = derivative of the loss there."""
    back = 1.0 / scale
    for i in range(len(words)):
        z[i] = np.float64(np.int64(words[i])) * back + own[i]
    for i in range(len(words)):
        theta[i] = derivative_of(code, z[i], labels[i])


@numba.njit(inline="always")
def differences(table, start, theta, exchange, out):  # type: ignore[no-untyped-def]
    """out = theta - table[start:]; with `exchange`, the table then takes theta."""
    entry = table[start : start + len(theta)]
    for i in range(len(theta)):
        out[i] = theta[i] - entry[i]
    if exchange:
        for i in range(len(theta)):
            entry[i] = theta[i]


@compiled(types.void, WRITE, INT, READ, FLAG, WRITE)
def correct(table, start, theta, exchange, out):  # type: ignore[no-untyped-def]
    differences(table, start, theta, exchange, out)


# -- dense blocks -----------------------------------------------------------------------------------------------------


@numba.njit(inline="always")
def _products(X, start, w, z):  # type: ignore[no-untyped-def]
    """z = rows @ w, four columns at a time so that z is loaded and stored a quarter as often."""
    m = len(z)
    d = len(w)
    stop = start + m
    for i in range(m):
        z[i] = 0.0
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


@compiled(types.void, BLOCK, INT, READ, WRITE)
def dense_share(X, start, w, z):  # type: ignore[no-untyped-def]
    _products(X, start, w, z)


@compiled(COUNT, BLOCK, INT, READ, WORDS, INT, REAL, REAL, WORDS_OUT)
def dense_masked(X, start, w, mask, at, scale, limit, out):  # type: ignore[no-untyped-def]
    z = np.empty(len(out))
    _products(X, start, w, z)
    return encode_masked(z, scale, limit, mask, at, out)


@compiled(COUNT, BLOCK, INT, READ, REAL, REAL, WORDS_OUT)
def dense_encoded(X, start, w, scale, limit, out):  # type: ignore[no-untyped-def]
    z = np.empty(len(out))
    _products(X, start, w, z)
    return encode_plain(z, scale, limit, out)


@numba.njit(inline="always")
def _column_product(X, j, start, residual):  # type: ignore[no-untyped-def]
    x = X[j, start : start + len(residual)]
    total = 0.0
    for i in range(len(residual)):
        total += x[i] * residual[i]
    return total


@compiled(types.void, BLOCK, INT, READ, REAL, WRITE)
def dense_gradient(X, start, residual, factor, into):  # type: ignore[no-untyped-def]
    """into += factor * rows^T residual."""
    for j in range(len(into)):
        into[j] += factor * _column_product(X, j, start, residual)


@numba.njit(inline="always")
def _step(X, start, residual, eta, accumulate, strength, penalty, metric, w, mu):  # type: ignore[no-untyped-def]
    share = 1.0 / len(residual)
    if len(metric) == 0:
        for j in range(len(w)):
            g = _column_product(X, j, start, residual)
            w[j] -= eta * (g * share + mu[j] + strength * penalty_slope(penalty, w[j]))
            mu[j] += accumulate * g
    else:
        slope = np.empty(len(w))
        for j in range(len(w)):
            g = _column_product(X, j, start, residual)
            slope[j] = g * share + mu[j] + strength * penalty_slope(penalty, w[j])
            mu[j] += accumulate * g
        _follow(metric, slope, eta, w)


@numba.njit(inline="always")
def _follow(metric, slope, eta, w):  # type: ignore[no-untyped-def]
    """w -= eta metric slope; a metric of one row is a diagonal."""
    if len(metric) == 1:
        for j in range(len(w)):
            w[j] -= eta * metric[0, j] * slope[j]
        return
    for j in range(len(w)):
        row = metric[j]
        total = 0.0
        for k in range(len(w)):
            total += row[k] * slope[k]
        w[j] -= eta * total


@compiled(types.void, BLOCK, INT, READ, REAL, REAL, REAL, INT, BLOCK, WRITE, WRITE)
def dense_step(X, start, residual, eta, accumulate, strength, penalty, metric, w, mu):  # type: ignore[no-untyped-def]
    """w -= eta metric (g / b + mu + strength penalty'(w)); mu += accumulate g; with g = rows^T residual. An empty
    metric is 1."""
    _step(X, start, residual, eta, accumulate, strength, penalty, metric, w, mu)


@compiled(types.void, BLOCK, INT, READ, WRITE, FLAG, REAL, REAL, REAL, INT, BLOCK, WRITE, WRITE)
def dense_corrected_step(  # type: ignore[no-untyped-def]
    X, start, theta, table, exchange, eta, accumulate, strength, penalty, metric, w, mu
):
    """The same, with residual = theta - table[start:] and the exchange of the table's entries in one go."""
    residual = np.empty(len(theta))
    differences(table, start, theta, exchange, residual)
    _step(X, start, residual, eta, accumulate, strength, penalty, metric, w, mu)


@compiled(types.void, READ, REAL, REAL, REAL, REAL, INT, BLOCK, WRITE, WRITE)
def dense_apply(g, batch_rows, eta, accumulate, strength, penalty, metric, w, mu):  # type: ignore[no-untyped-def]
    """The same step from a gradient computed elsewhere."""
    share = 1.0 / batch_rows
    slope = np.empty(len(w))
    for j in range(len(w)):
        slope[j] = g[j] * share + mu[j] + strength * penalty_slope(penalty, w[j])
        mu[j] += accumulate * g[j]
    if len(metric) == 0:
        for j in range(len(w)):
            w[j] -= eta * slope[j]
    else:
        _follow(metric, slope, eta, w)


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


@compiled(types.void, BLOCK, READ, BLOCK_OUT)
def dense_hessian(X, factor, into):  # type: ignore[no-untyped-def]
    """into = the sum over all rows of factor * row row^T."""
    for j in range(len(X)):
        for k in range(j + 1):
            into[j, k] = _weighted_product(X[j], X[k], factor)
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
