"""Compiled loops of the softmax loss: all outputs of a row at once, a tile of rows at a time.

Arrays of products and derivatives are outputs x rows. What they do is told in `losses` and, for the search, in
`subspace`; the tests hold them against both.
"""

import math

import numba
import numpy as np
from numba import types

from offbeat.learning.kernels import BLOCK, BLOCK_OUT, INT, READ, REAL, TILE, WORDS, WRITE, compiled

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
EXP_LEAST = -708.0
TAYLOR = tuple(1.0 / math.factorial(k) for k in range(14))


@numba.njit(inline="always")
def exp_into(x, powers, out):  # type: ignore[no-untyped-def]
    """out = exp x, for x of 0 or less: 2^n times Taylor's sum of what is left, to the last digits. A library's exp is
    called for one number after the other; this loop takes several at once, which is most of a softmax's time."""
    for i in range(len(out)):
        value = max(x[i], EXP_LEAST)
        n = np.rint(value * LOG2_E)
        r = (value - n * LN2_HIGH) - n * LN2_LOW
        total = TAYLOR[13]
        total = total * r + TAYLOR[12]
        total = total * r + TAYLOR[11]
        total = total * r + TAYLOR[10]
        total = total * r + TAYLOR[9]
        total = total * r + TAYLOR[8]
        total = total * r + TAYLOR[7]
        total = total * r + TAYLOR[6]
        total = total * r + TAYLOR[5]
        total = total * r + TAYLOR[4]
        total = total * r + TAYLOR[3]
        total = total * r + TAYLOR[2]
        total = total * r + TAYLOR[1]
        out[i] = total * r + TAYLOR[0]
        powers[i] = (np.int64(n) + 1023) << 52
    scale = powers.view(np.float64)
    for i in range(len(out)):
        out[i] *= scale[i]


@numba.njit(inline="always")
def _probabilities(z, first, last, top, total, p):  # type: ignore[no-untyped-def]
    """p = exp z over its sum in each of these rows; `top` takes the largest z, `total` the sum of exp(z - top)."""
    rows = last - first
    for i in range(rows):
        top[i], total[i] = z[0, first + i], 0.0
    for k in range(1, len(z)):
        here = z[k, first:last]
        for i in range(rows):
            top[i] = max(top[i], here[i])
    below, powers = np.empty(rows), np.empty(rows, np.int64)
    for k in range(len(z)):
        here, out = z[k, first:last], p[k, first:last]
        for i in range(rows):
            below[i] = here[i] - top[i]
        exp_into(below, powers, out)
        for i in range(rows):
            total[i] += out[i]
    for i in range(rows):
        below[i] = 1.0 / total[i]
    for k in range(len(z)):
        out = p[k, first:last]
        for i in range(rows):
            out[i] *= below[i]


@numba.njit(inline="always")
def _derivatives(z, labels, weights, first, last, top, total, theta):  # type: ignore[no-untyped-def]
    """theta = the derivatives of these rows; the sum of their losses. Labels and weights begin at row `first`."""
    _probabilities(z, first, last, top, total, theta)
    loss = 0.0
    for i in range(last - first):
        label = int(labels[i])
        value = math.log(total[i]) + top[i] - z[label, first + i]
        theta[label, first + i] -= 1.0
        loss += value * (weights[i] if len(weights) > 0 else 1.0)
    if len(weights) > 0:
        for k in range(len(z)):
            slopes = theta[k, first:last]
            for i in range(last - first):
                slopes[i] *= weights[i]
    return loss


@compiled(types.void, WORDS, READ, INT, READ, READ, INT, REAL, WRITE, WRITE)
def finish_classes(words, own, start, labels, weights, outputs, scale, z, theta):  # type: ignore[no-untyped-def]
    """See `kernels.finish`."""
    back, rows = 1.0 / scale, len(words) // outputs
    for i in range(len(words)):
        z[i] = np.float64(np.int64(words[i])) * back + own[i]
    products, slopes = z.reshape(outputs, rows), theta.reshape(outputs, rows)
    top, total = np.empty(TILE), np.empty(TILE)
    for first in range(0, rows, TILE):
        last = min(first + TILE, rows)
        label = labels[start + first : start + last]
        weight = weights[start + first : start + last] if len(weights) > 0 else weights
        _derivatives(products, label, weight, first, last, top, total, slopes)


@compiled(REAL, READ, BLOCK, READ, READ, READ, READ, WRITE, WRITE, WRITE)
def evaluate_classes(base, directions, a, constants, labels, weights, z, theta, slope):  # type: ignore[no-untyped-def]
    """See `subspace.evaluate`; one constant for each output."""
    outputs, count, sum_of_losses = len(constants), len(a), 0.0
    rows = len(base) // outputs
    products, slopes = z.reshape(outputs, rows), theta.reshape(outputs, rows)
    top, total = np.empty(TILE), np.empty(TILE)
    slope[:] = 0.0
    for first in range(0, rows, TILE):
        last = min(first + TILE, rows)
        for k in range(outputs):
            here, before = products[k, first:last], base[k * rows + first : k * rows + last]
            for i in range(last - first):
                here[i] = before[i] + constants[k]
            for d in range(count):
                factor, row = a[d], directions[d, k * rows + first : k * rows + last]
                if factor != 0.0:
                    for i in range(last - first):
                        here[i] += factor * row[i]
        weight = weights[first:last] if len(weights) > 0 else weights
        sum_of_losses += _derivatives(products, labels[first:last], weight, first, last, top, total, slopes)
        for k in range(outputs):
            here = slopes[k, first:last]
            for d in range(count):
                row, product = directions[d, k * rows + first : k * rows + last], 0.0
                for i in range(last - first):
                    product += row[i] * here[i]
                slope[d] += product
            slope[count + k] += here.sum()
    for d in range(len(slope)):
        slope[d] /= rows
    return sum_of_losses / rows


@compiled(REAL, READ)
def mean_size(values):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(values)):
        total += abs(values[i])
    return total / len(values)


@numba.njit(inline="always")
def _bend(direction, p, weights, mean, bent):  # type: ignore[no-untyped-def]
    """bent = the loss's Hessian in each row times this direction."""
    outputs, rows = p.shape
    mean[:] = 0.0
    for k in range(outputs):
        out, chance, row = bent[k], p[k], direction[k * rows : (k + 1) * rows]
        for i in range(rows):
            out[i] = chance[i] * row[i]
            mean[i] += out[i]
    for k in range(outputs):
        out, chance = bent[k], p[k]
        for i in range(rows):
            out[i] -= chance[i] * mean[i]
        if len(weights) > 0:
            for i in range(rows):
                out[i] *= weights[i]


@numba.njit(inline="always")
def _bend_constants(p, weights, into):  # type: ignore[no-untyped-def]
    """into = the sum over the rows of the loss's Hessian: that of the constants."""
    outputs, rows = p.shape
    scaled = np.empty(rows)
    for k in range(outputs):
        chance = p[k]
        for i in range(rows):
            scaled[i] = chance[i] * (weights[i] if len(weights) > 0 else 1.0)
        for other in range(k + 1):
            row, product = p[other], 0.0
            for i in range(rows):
                product += scaled[i] * row[i]
            into[k, other] = into[other, k] = -product
        into[k, k] += scaled.sum()


@compiled(types.void, BLOCK, READ, READ, INT, BLOCK_OUT)
def curvature_classes(directions, z, weights, outputs, into):  # type: ignore[no-untyped-def]
    """See `subspace.curvature`; the last rows of the Hessian are those of the outputs' constants."""
    count, rows = len(directions), len(z) // outputs
    p, bent = np.empty((outputs, rows)), np.empty((outputs, rows))
    top, total = np.empty(TILE), np.empty(TILE)
    products = z.reshape(outputs, rows)
    for first in range(0, rows, TILE):
        _probabilities(products, first, min(first + TILE, rows), top, total, p)
    mean, constants = np.empty(rows), np.empty((outputs, outputs))
    _bend_constants(p, weights, constants)
    for k in range(outputs):
        for other in range(outputs):
            into[count + k, count + other] = constants[k, other] / rows
    for d in range(count):
        _bend(directions[d], p, weights, mean, bent)
        flat = bent.reshape(outputs * rows)
        for other in range(d + 1):
            row, product = directions[other], 0.0
            for i in range(len(row)):
                product += row[i] * flat[i]
            into[d, other] = into[other, d] = product / rows
        for k in range(outputs):
            into[d, count + k] = into[count + k, d] = bent[k].sum() / rows
