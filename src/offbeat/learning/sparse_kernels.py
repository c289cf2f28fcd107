"""Compiled loops over sparse blocks: CSR rows with uint32 columns, and weights that are kept lazily.

A step moves every coordinate (by the penalty and by the mean gradient), yet must cost no more than the non-zeros it
touches. So the weights are never stored as such. With two scalars s and c for the whole block,

    w_j = s v_j + c mu_j            pairs[j] = (v_j, mu_j), side by side so that one cache line serves both

and a step w <- rho w - eta mu - ..., rho = 1 - eta strength, is s <- rho s, c <- rho c - eta plus work on the touched
columns alone. When mu_j moves by delta, v_j moves by -(c/s) delta and w_j stays. `fold` rewrites v = w, s = 1, c = 0.

Where steps have a metric, its entries multiply what mu_j and the values stand for, which the caller sees to, and what
the penalty is owed, which happens here; an empty metric means 1 everywhere. `owed` and `code` are those of a penalty
that s does not take care of.

No `fastmath` here: a row's gathers do not vectorise, and reordering them only made the loops slower.
"""

import numba
from numba import types

from offbeat.learning.kernels import INT, READ, REAL, WRITE, compiled, given, residuals, taken
from offbeat.learning.penalties import after_penalty, penalty_slope

OFFSETS = given(types.int64)
COLUMNS = given(types.uint32)
COLUMNS_OUT = taken(types.uint32)
SLOTS = taken(types.int32)
PAIRS = given(REAL, 2)
PAIRS_OUT = taken(REAL, 2)
LAZY = (REAL, REAL, INT, REAL, READ)
"""What, with the pairs, makes the weights: s, c, the code of the penalty that is owed, how much, and the metric."""


@numba.njit(inline="always")
def _weight(pairs, s, c, code, owed, metric, j):  # type: ignore[no-untyped-def]
    return after_penalty(code, s * pairs[j, 0] + c * pairs[j, 1], owed * metric[j] if len(metric) > 0 else owed)


@compiled(types.void, OFFSETS, COLUMNS, READ, INT, PAIRS, *LAZY, WRITE, fastmath=False)
def lazy_share(offsets, columns, values, start, pairs, s, c, code, owed, metric, z):  # type: ignore[no-untyped-def]
    """Without the block's constant, which the caller adds."""
    for i in range(len(z)):
        first, last = offsets[start + i], offsets[start + i + 1]
        column, x = columns[first:last], values[first:last]
        by_v = 0.0
        by_mu = 0.0
        if owed == 0.0:
            for k in range(len(column)):
                j = column[k]
                by_v += x[k] * pairs[j, 0]
                by_mu += x[k] * pairs[j, 1]
            z[i] = s * by_v + c * by_mu
        else:
            for k in range(len(column)):
                j = column[k]
                by_v += x[k] * _weight(pairs, s, c, code, owed, metric, j)
            z[i] = by_v


@compiled(types.void, OFFSETS, COLUMNS, READ, INT, READ, WRITE, fastmath=False)
def plain_share(offsets, columns, values, start, w, z):  # type: ignore[no-untyped-def]
    for i in range(len(z)):
        first, last = offsets[start + i], offsets[start + i + 1]
        column, x = columns[first:last], values[first:last]
        total = 0.0
        for k in range(len(column)):
            total += x[k] * w[column[k]]
        z[i] = total


@numba.njit(inline="always")
def _move_both(offsets, columns, values, start, residual, by_v, by_mu, pairs):  # type: ignore[no-untyped-def]
    for i in range(len(residual)):
        first, last = offsets[start + i], offsets[start + i + 1]
        column, x = columns[first:last], values[first:last]
        r = residual[i]
        for k in range(len(column)):
            j = column[k]
            g = r * x[k]
            pairs[j, 0] -= by_v * g
            pairs[j, 1] += by_mu * g


@numba.njit(inline="always")
def _move_v(offsets, columns, values, start, residual, by_v, pairs):  # type: ignore[no-untyped-def]
    """The same where the mean gradient does not move (SGD, SVRG)."""
    for i in range(len(residual)):
        first, last = offsets[start + i], offsets[start + i + 1]
        column, x = columns[first:last], values[first:last]
        r = by_v * residual[i]
        for k in range(len(column)):
            pairs[column[k], 0] -= r * x[k]


@compiled(types.void, OFFSETS, COLUMNS, READ, INT, READ, WRITE, INT, REAL, REAL, PAIRS_OUT, WRITE, fastmath=False)
def lazy_step(  # type: ignore[no-untyped-def]
    offsets, columns, values, start, theta, table, mode, by_v, by_mu, pairs, residual
):
    """v -= by_v g and mu += by_mu g on the touched columns, g = rows^T residual; see `residuals`."""
    residuals(theta, table, start, mode, residual)
    if by_mu == 0.0:
        _move_v(offsets, columns, values, start, residual, by_v, pairs)
    else:
        _move_both(offsets, columns, values, start, residual, by_v, by_mu, pairs)


@compiled(types.void, COLUMNS, READ, REAL, REAL, PAIRS_OUT, fastmath=False)
def lazy_apply(columns, gradient, by_v, by_mu, pairs):  # type: ignore[no-untyped-def]
    for k in range(len(columns)):
        j = columns[k]
        pairs[j, 0] -= by_v * gradient[k]
        pairs[j, 1] += by_mu * gradient[k]


@compiled(types.void, OFFSETS, COLUMNS, READ, INT, READ, REAL, WRITE, fastmath=False)
def sparse_gradient(offsets, columns, values, start, residual, factor, into):  # type: ignore[no-untyped-def]
    """into += factor * rows^T residual."""
    for i in range(len(residual)):
        first, last = offsets[start + i], offsets[start + i + 1]
        column, x = columns[first:last], values[first:last]
        r = factor * residual[i]
        for k in range(len(column)):
            into[column[k]] += r * x[k]


@compiled(INT, OFFSETS, COLUMNS, READ, INT, READ, SLOTS, COLUMNS_OUT, WRITE, fastmath=False)
def compact_gradient(offsets, columns, values, start, residual, slots, touched, gradient):  # type: ignore[no-untyped-def]
    """rows^T residual on the columns it touches, each once; how many. `slots` is all zero before and after."""
    count = 0
    for i in range(len(residual)):
        first, last = offsets[start + i], offsets[start + i + 1]
        column, x = columns[first:last], values[first:last]
        r = residual[i]
        for k in range(len(column)):
            j = column[k]
            slot = slots[j]
            if slot == 0:
                touched[count] = j
                gradient[count] = 0.0
                count += 1
                slot = count
                slots[j] = slot
            gradient[slot - 1] += r * x[k]
    for k in range(count):
        slots[touched[k]] = 0
    return count


@compiled(types.void, COLUMNS, PAIRS, *LAZY, WRITE, fastmath=False)
def gather_each(columns, pairs, s, c, code, owed, metric, out):  # type: ignore[no-untyped-def]
    """The weight behind each of these non-zeros."""
    for k in range(len(columns)):
        out[k] = _weight(pairs, s, c, code, owed, metric, columns[k])


@compiled(types.void, OFFSETS, READ, INT, READ, WRITE)
def gathered_share(offsets, values, start, weights, z):  # type: ignore[no-untyped-def]
    """z = rows @ w from weights gathered for each non-zero, in order."""
    base = offsets[start]
    for i in range(len(z)):
        first, last = offsets[start + i], offsets[start + i + 1]
        x, w = values[first:last], weights[first - base : last - base]
        total = 0.0
        for k in range(len(x)):
            total += x[k] * w[k]
        z[i] = total


@compiled(types.void, PAIRS, *LAZY, WRITE)
def unfold(pairs, s, c, code, owed, metric, w):  # type: ignore[no-untyped-def]
    """w = s v + c mu, after what the penalty is owed."""
    for j in range(len(w)):
        w[j] = _weight(pairs, s, c, code, owed, metric, j)


@compiled(types.void, PAIRS_OUT, *LAZY, REAL)
def fold(pairs, s, c, code, owed, metric, now):  # type: ignore[no-untyped-def]
    """v = w, so that the scalars become 1 and 0 and nothing is owed; then one exact step `now` of the penalty."""
    for j in range(len(pairs)):
        value = _weight(pairs, s, c, code, owed, metric, j)
        due = now * metric[j] if len(metric) > 0 else now
        pairs[j, 0] = value - due * penalty_slope(code, value)


@compiled(types.void, OFFSETS, COLUMNS, READ, READ, WRITE, fastmath=False)
def sparse_squares(offsets, columns, values, factor, into):  # type: ignore[no-untyped-def]
    """into = for each column the sum over all rows of factor * value^2."""
    into[:] = 0.0
    for i in range(len(factor)):
        for k in range(offsets[i], offsets[i + 1]):
            into[columns[k]] += factor[i] * values[k] * values[k]


@compiled(types.void, COLUMNS, READ, READ, WRITE, fastmath=False)
def scaled_values(columns, values, metric, out):  # type: ignore[no-untyped-def]
    """out = each value times its column's metric."""
    for k in range(len(values)):
        out[k] = values[k] * metric[columns[k]]
