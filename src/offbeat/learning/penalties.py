"""The penalties g of f(w) = mean loss + strength * g(w). They separate over coordinates, so each party adds its own.

| name      | g(w)                         | g'(w_j)             | curvature |
|-----------|------------------------------|---------------------|-----------|
| l2        | |w|^2 / 2                    | w_j                 | 1         | convex; f is `strength`-strongly convex
| nonconvex | sum_j w_j^2 / (2 (1+w_j^2))  | w_j / (1+w_j^2)^2   | 1         | second derivative in [-1/4, 1]
| none      | 0                            | 0                   | 0         |
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob
from offbeat.learning.losses import unknown_name

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Penalty:
    name: str
    code: int
    """What the compiled kernels know it by: see `penalty_slope`."""
    curvature: float
    """Lipschitz constant of the gradient."""
    convex: bool
    value: Callable[[Floats], float]
    gradient: Callable[[Floats], Floats]
    curvature_beyond: Callable[[Floats], Floats]
    """The largest absolute second derivative at weights at least as large as these."""


def _l2(w: Floats) -> float:
    return 0.5 * float(np.dot(w, w))


def _nonconvex(w: Floats) -> float:
    square = w * w
    return 0.5 * float(np.sum(square / (1.0 + square)))


def _nonconvex_gradient(w: Floats) -> Floats:
    return w / (1.0 + w * w) ** 2


def _nonconvex_curvature_beyond(w: Floats) -> Floats:
    """(1 - 3w^2) / (1+w^2)^3 falls from 1 to -1/4 at w = 1, and rises to 0 from there."""
    square = w * w
    second = (1.0 - 3.0 * square) / (1.0 + square) ** 3
    return np.where(square < 1.0, np.maximum(second, 0.25), -second)


def _nothing(w: Floats) -> float:
    return 0.0


L2 = Penalty("l2", 0, 1.0, True, _l2, np.array, np.ones_like)
NONCONVEX = Penalty("nonconvex", 1, 1.0, False, _nonconvex, _nonconvex_gradient, _nonconvex_curvature_beyond)
NONE = Penalty("none", 2, 0.0, True, _nothing, np.zeros_like, np.zeros_like)

PENALTIES = (L2, NONCONVEX, NONE)


def penalty_named(name: str) -> Penalty:
    """The penalty of this name, or a BadJob that names the nearest one."""
    for penalty in PENALTIES:
        if penalty.name == name:
            return penalty
    raise BadJob(unknown_name("penalty", name, [penalty.name for penalty in PENALTIES]))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def penalty_slope(code: int, w: float) -> float:
    """The gradient of the penalty with this code at one coordinate, for use inside compiled loops."""
    if code == 0:
        return w
    if code == 1:
        return w / ((1.0 + w * w) * (1.0 + w * w))
    return 0.0


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def after_penalty(code: int, w: float, owed: float) -> float:
    """Where the penalty, `owed` = eta * strength summed over several steps, would have brought this weight.

    u with u + owed g'(u) = w; for the nonconvex penalty by one Newton step. A weight at rest under a constant slope,
    which moved on by owed g'(u) while the penalty was not paid, is thereby read back as u itself, up to third
    derivatives.
    """
    if owed == 0.0:
        return w
    if code == 0:
        return w / (1.0 + owed)
    q = 1.0 / (1.0 + w * w)
    return w - owed * w * q * q / (1.0 + owed * (1.0 - 3.0 * w * w) * q * q * q)
