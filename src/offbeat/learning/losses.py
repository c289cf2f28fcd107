"""The losses of the linear models: value, derivative in the product, smoothness constant, dual term.

With the product z = <w, x> of one row and its label y,

    objective  f(w) = (1/n) sum_i value(z_i, y_i) + strength * penalty(w)
    gradient        = (1/n) X^T derivative(z, y)  + strength * penalty'(w)

so the derivative is the only quantity that crosses from one party to another. For the l2 penalty the dual of f is

    D(theta) = mean_i dual(theta_i, y_i) - |A|^2 / (2 * strength),      A = X^T theta / n,

where dual is minus the convex conjugate of the loss, and -inf outside of its domain. At theta = derivative(z, y) the
difference f(w) - D(theta) equals |gradient|^2 / (2 * strength) (Fenchel's equality).

| name          | value            | derivative              | curvature |
|---------------|------------------|-------------------------|-----------|
| logistic      | log(1+exp(-yz))  | -y / (1 + exp(yz))      | 1/4       |
| squared       | (z-y)^2          | 2(z-y)                  | 2         | AFSGD-VP, Eq. 21: there is no 1/2
| squared-hinge | max(0, 1-yz)^2   | -2y max(0, 1-yz)        | 2         |
| ls-svm        | (1-yz)^2         | -2y(1-yz)               | 2         |

All but `squared` expect labels -1 and +1. A fifth, `debiased-logistic`, is the logistic loss for labels that went
through randomised response: value log(1+exp(z)) - t z and derivative 1/(1+exp(-z)) - t, where the target t is the
de-biased answer (outside of [0, 1], with the true 0 or 1 as its mean). With t = 0 or 1 it is `logistic`.
"""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob

Floats = NDArray[np.float64]
Pointwise = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Loss:
    """A loss of one product and one label; every function works elementwise on arrays."""

    name: str
    code: int
    """What the compiled kernels know it by: see `derivative_of`."""
    curvature: float
    """Lipschitz constant of the derivative in z."""
    value: Pointwise
    derivative: Pointwise
    second: Pointwise
    """Second derivative in z (one of its values where it jumps)."""
    dual: Pointwise
    """Minus the convex conjugate at theta: dual(theta, y)."""
    binary: bool = True
    """Whether labels must be -1 and +1."""
    second_from_derivative: Callable[[Floats], Floats] | None = None
    """The second derivative from the first, where that needs no label and changes slowly with z."""
    flattens: bool = False
    """Whether the curvature falls as z grows: then a step sized for the largest one has some slack."""


def _sigmoid(t: Floats) -> Floats:
    """1 / (1 + exp(-t)) in two branches, so that neither tail loses its digits."""
    small = np.exp(-np.abs(t))
    return np.where(t >= 0.0, 1.0, small) / (1.0 + small)


def _logistic(z: Floats, y: Floats) -> Floats:
    return np.asarray(np.logaddexp(0.0, -y * z))


def _logistic_derivative(z: Floats, y: Floats) -> Floats:
    return -y * _sigmoid(-y * z)


def _logistic_second(z: Floats, y: Floats) -> Floats:
    small = np.exp(-np.abs(z))
    return small / (1.0 + small) ** 2


def _logistic_second_from_derivative(theta: Floats) -> Floats:
    size = np.abs(theta)
    return size * (1.0 - size)


def _logistic_dual(theta: Floats, y: Floats) -> Floats:
    u = -theta * y
    inside = (u >= 0.0) & (u <= 1.0)
    p = np.where(inside, u, 0.5)
    return np.where(inside, _entropy(p) + _entropy(1.0 - p), -np.inf)


def _entropy(p: Floats) -> Floats:
    return -p * np.log(np.where(p > 0.0, p, 1.0))


def _debiased(z: Floats, t: Floats) -> Floats:
    return np.asarray(np.logaddexp(0.0, z) - t * z)


def _debiased_derivative(z: Floats, t: Floats) -> Floats:
    return np.asarray(_sigmoid(z) - t)


def _debiased_dual(theta: Floats, t: Floats) -> Floats:
    return _logistic_dual(theta + t, np.full(np.shape(t), -1.0))


def _squared(z: Floats, y: Floats) -> Floats:
    return (z - y) ** 2


def _squared_derivative(z: Floats, y: Floats) -> Floats:
    return 2.0 * (z - y)


def _constant_second(z: Floats, y: Floats) -> Floats:
    return np.full(np.shape(z), 2.0)


def _squared_dual(theta: Floats, y: Floats) -> Floats:
    return -theta * (y + theta / 4.0)


def _hinge(z: Floats, y: Floats) -> Floats:
    return np.maximum(0.0, 1.0 - y * z) ** 2


def _hinge_derivative(z: Floats, y: Floats) -> Floats:
    return -2.0 * y * np.maximum(0.0, 1.0 - y * z)


def _hinge_second(z: Floats, y: Floats) -> Floats:
    return np.where(y * z < 1.0, 2.0, 0.0)


def _hinge_dual(theta: Floats, y: Floats) -> Floats:
    u = -theta * y
    return np.where(u >= 0.0, u - u * u / 4.0, -np.inf)


def _margin(z: Floats, y: Floats) -> Floats:
    return (1.0 - y * z) ** 2


def _margin_derivative(z: Floats, y: Floats) -> Floats:
    return -2.0 * y * (1.0 - y * z)


def _margin_dual(theta: Floats, y: Floats) -> Floats:
    u = -theta * y
    return u - u * u / 4.0


LOGISTIC = Loss(
    "logistic", 0, 0.25, _logistic, _logistic_derivative, _logistic_second, _logistic_dual,
    second_from_derivative=_logistic_second_from_derivative, flattens=True,
)  # fmt: skip
SQUARED = Loss("squared", 1, 2.0, _squared, _squared_derivative, _constant_second, _squared_dual, binary=False)
SQUARED_HINGE = Loss("squared-hinge", 2, 2.0, _hinge, _hinge_derivative, _hinge_second, _hinge_dual)
LS_SVM = Loss("ls-svm", 3, 2.0, _margin, _margin_derivative, _constant_second, _margin_dual)
DEBIASED_LOGISTIC = Loss(
    "debiased-logistic", 4, 0.25, _debiased, _debiased_derivative, _logistic_second, _debiased_dual, binary=False,
    flattens=True,
)  # fmt: skip

LOSSES = (LOGISTIC, SQUARED, SQUARED_HINGE, LS_SVM)
"""What a user may name; the de-biased loss comes with `label_dp_epsilon` alone."""


def loss_named(name: str) -> Loss:
    """The loss of this name, or a BadJob that names the nearest one."""
    for loss in LOSSES:
        if loss.name == name:
            return loss
    raise BadJob(unknown_name("loss", name, [loss.name for loss in LOSSES]))


def unknown_name(kind: str, name: object, known: list[str]) -> str:
    """One paragraph: what came, the nearest name, and all that there are."""
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {kind} {name!r}.{hint} Expected one of: {', '.join(known)}."


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def derivative_of(code: int, z: float, y: float) -> float:
    """The derivative of the loss with this code, for use inside compiled loops."""
    if code == 0:
        t = y * z
        small = math.exp(-abs(t))
        return -y * (small if t >= 0.0 else 1.0) / (1.0 + small)
    if code == 1:
        return 2.0 * (z - y)
    if code == 2:
        short = 1.0 - y * z
        return 0.0 if short <= 0.0 else -2.0 * y * short  # not max(0, short): that would swallow a NaN
    if code == 4:
        small = math.exp(-abs(z))
        return (1.0 if z >= 0.0 else small) / (1.0 + small) - y
    return -2.0 * y * (1.0 - y * z)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def value_of(code: int, z: float, y: float) -> float:
    """The loss with this code, for use inside compiled loops."""
    if code == 0:
        t = y * z
        return math.log1p(math.exp(-abs(t))) + max(-t, 0.0)
    if code == 1:
        return (z - y) * (z - y)
    if code == 4:
        return math.log1p(math.exp(-abs(z))) + max(z, 0.0) - y * z
    short = 1.0 - y * z
    return 0.0 if code == 2 and short <= 0.0 else short * short


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def second_of(code: int, z: float, y: float) -> float:
    """The second derivative of the loss with this code, for use inside compiled loops."""
    if code == 0 or code == 4:
        small = math.exp(-abs(z))
        return small / ((1.0 + small) * (1.0 + small))
    if code == 2 and y * z >= 1.0:
        return 0.0
    return 2.0
