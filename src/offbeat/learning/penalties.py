"""The penalties g of f(w) = mean loss + strength * g(w). They separate over coordinates, so each party adds its own.

| name        | g(w)                           | g'(w_j)             | curvature |
|-------------|--------------------------------|---------------------|-----------|
| l2          | |w|^2 / 2                      | w_j                 | 1         | convex; f strongly convex
| elastic-net | r |w|_1 + (1-r) |w|^2 / 2      | (1-r) w_j + r sign  | 1 - r     | convex; exact zeros
| nonconvex   | sum_j w_j^2 / (2 (1+w_j^2))    | w_j / (1+w_j^2)^2   | 1         | second derivative in [-1/4, 1]
| none        | 0                              | 0                   | 0         |

The *slack* of a penalty at weights w and slope A (the gradient of the mean loss) is

    sum_j  strength g(w_j) + (strength g)*(-A_j) + w_j A_j   >= 0

where * is the convex conjugate. With derivatives taken at w, the slacks of all parties' blocks add up to the duality
gap of the whole problem, whatever the convex loss: for l2 a block's slack is |A + strength w|^2 / (2 strength).

With `orders` some of the weights must rise or fall, and g is infinite where they do not (orders.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numba
import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob
from offbeat.learning.losses import unknown_name
from offbeat.learning.orders import Order, in_order

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Penalty:
    name: str
    code: int
    """What the compiled kernels know its smooth part by: see `penalty_slope`."""
    curvature: float
    """Lipschitz constant of the smooth part's gradient."""
    convex: bool
    value: Callable[[Floats], float]
    gradient: Callable[[Floats], Floats]
    """Of the smooth part."""
    curvature_beyond: Callable[[Floats], Floats]
    """The largest absolute second derivative at weights at least as large as these."""
    smooth: float = 1.0
    """What the smooth part is multiplied by."""
    l1: float = 0.0
    """What the sum of absolute values is multiplied by."""
    orders: tuple[Order, ...] = ()
    """Of the weights of one block."""

    @property
    def is_smooth(self) -> bool:
        """Whether steps need nothing but its gradient."""
        return self.l1 == 0.0 and not self.orders

    def slope(self, w: Floats, mean: Floats, strength: float) -> Floats:
        """The gradient of f in a block whose mean loss has this gradient; with an l1 part, the shortest subgradient;
        with orders, how far a step of length 1 would lead."""
        smooth = mean + strength * self.smooth * self.gradient(w)
        if self.orders:
            return w - in_order(w - smooth, self.orders)
        if self.l1 == 0.0:
            return smooth
        bend = strength * self.l1
        return np.where(w == 0.0, np.sign(smooth) * np.maximum(np.abs(smooth) - bend, 0.0), smooth + bend * np.sign(w))

    def slack(self, w: Floats, mean: Floats, strength: float) -> float:
        """See above; NaN where the conjugate is not finite everywhere or the penalty is not convex."""
        quadratic = strength * self.smooth * self.curvature
        if not (self.convex and quadratic > 0.0):
            return float("nan")
        bend, pull = strength * self.l1, -mean
        soft = np.sign(pull) * np.maximum(np.abs(pull) - bend, 0.0)
        if self.orders:
            soft = in_order(soft, self.orders)
            return max(float(np.sum((quadratic * w - soft) ** 2 / (2.0 * quadratic) + w * (soft - pull))), 0.0)
        parts = (quadratic * w - soft) ** 2 / (2.0 * quadratic) + bend * np.abs(w) + w * (soft - pull)
        return float(np.sum(np.maximum(parts, 0.0)))


def _l2(w: Floats) -> float:
    return 0.5 * float(np.vdot(w, w))


def _nonconvex(w: Floats) -> float:
    square = w * w
    return 0.5 * float(np.sum(square / (1.0 + square)))


def _nonconvex_curvature_beyond(w: Floats) -> Floats:
    """(1 - 3w^2) / (1+w^2)^3 falls from 1 to -1/4 at w = 1, and rises to 0 from there."""
    square = w * w
    second = (1.0 - 3.0 * square) / (1.0 + square) ** 3
    return np.where(square < 1.0, np.maximum(second, 0.25), -second)


L2 = Penalty("l2", 0, 1.0, True, _l2, np.array, np.ones_like)
NONCONVEX = Penalty(
    "nonconvex", 1, 1.0, False, _nonconvex, lambda w: w / (1.0 + w * w) ** 2, _nonconvex_curvature_beyond
)
NONE = Penalty("none", 2, 0.0, True, lambda w: 0.0, np.zeros_like, np.zeros_like)

PENALTIES = (L2, NONCONVEX, NONE)

ORDERED = replace(L2, name="l2, in order")
"""What a run minimises where some party's weights must rise or fall; each party knows its own orders."""


def elastic_net(l1_ratio: float) -> Penalty:
    """The mixture of |w|_1, with this weight, and |w|^2 / 2, with the rest."""
    if not 0.0 <= l1_ratio < 1.0:
        raise BadJob(
            f"l1_ratio must be at least 0 and below 1; got {l1_ratio}. At 1 there is no l2 part, and without one no "
            "certificate: use 0.99 where you want the lasso."
        )
    if l1_ratio == 0.0:
        return L2

    def value(w: Floats) -> float:
        return l1_ratio * float(np.abs(w).sum()) + (1.0 - l1_ratio) * _l2(w)

    def curvature_beyond(w: Floats) -> Floats:
        return np.full_like(w, 1.0 - l1_ratio)

    return replace(
        L2, name="elastic-net", value=value, curvature_beyond=curvature_beyond, smooth=1.0 - l1_ratio, l1=l1_ratio
    )


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
