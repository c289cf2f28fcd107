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
| poisson       | e^z - yz + c     | e^z - y                 | none      | counts; c: half the deviance
| gamma         | y e^-z + z + c   | 1 - y e^-z              | none      | amounts above 0; c likewise
| huber         | (z-y)^2, straight from |z-y| = delta on | 2(z-y), at most 2 delta | 2 | `huber(delta)`

`logistic`, `squared-hinge` and `ls-svm` expect labels -1 and +1. Poisson's and gamma's *grow*: their curvature has no
bound, so steps follow the curvature at a known point; `kernels.finish_growing` keeps derivatives within reach of it.
Another, `debiased-logistic`, is the logistic loss for labels that went
through randomised response: value log(1+exp(z)) - t z and derivative 1/(1+exp(-z)) - t, where the target t is the
de-biased answer (outside of [0, 1], with the true 0 or 1 as its mean). With t = 0 or 1 it is `logistic`.

`softmax(K)` is for K classes: z and the derivative have K rows, one for each output, and the label y is the position of
a class. Its value is log(sum_k exp z_k) - z_y, its derivative p - e_y with p = exp z / sum_k exp z_k.
"""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numba
import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob

EXP_MOST = 700.0  # beyond, numbers have no room
LEAP_MOST = 4.0
"""How far a step may move the products of a loss that grows. At the optimum derivatives are at most twice the
curvature, on average, so that nothing is held back there."""
Floats = NDArray[np.float64]
Pointwise = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Loss:
    """A loss of one product and one label; every function works elementwise on arrays. With more than one output,
    products and derivatives are outputs x rows, values and labels one for each row."""

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
    grows: bool = False
    """Whether the curvature has no bound; `curvature` is then that at a product where it is usual."""
    outputs: int = 1
    hessian: Callable[[Floats, Floats, Floats], Floats] | None = None
    """With more than one output: the matrix of second derivatives at (z, y), times a direction."""
    delta: float = 0.0
    """Of Huber's loss alone: how far from the label it is a square."""


# -- their parts -----------------------------------------------------------------------------------------------------


def _sigmoid(t: Floats) -> Floats:
    """1 / (1 + exp(-t)) in two branches, so that neither tail loses its digits."""
    small = np.exp(-np.abs(t))
    return np.where(t >= 0.0, 1.0, small) / (1.0 + small)


def _sigmoid_slope(z: Floats, y: Floats) -> Floats:
    small = np.exp(-np.abs(z))
    return small / (1.0 + small) ** 2


def _logistic_second_from_derivative(theta: Floats) -> Floats:
    size = np.abs(theta)
    second = 1.0 - size
    second *= size
    return second


def _logistic_dual(theta: Floats, y: Floats) -> Floats:
    u = -theta * y
    inside = (u >= 0.0) & (u <= 1.0)
    p = np.where(inside, u, 0.5)
    return np.where(inside, _entropy(p) + _entropy(1.0 - p), -np.inf)


def _entropy(p: Floats) -> Floats:
    return -p * np.log(np.where(p > 0.0, p, 1.0))


def _two(z: Floats, y: Floats) -> Floats:
    return np.full(np.shape(z), 2.0)


def _squared_dual(theta: Floats, y: Floats) -> Floats:
    return -theta * (y + theta / 4.0)


def _hinge_dual(theta: Floats, y: Floats) -> Floats:
    u = -theta * y
    return np.where(u >= 0.0, u - u * u / 4.0, -np.inf)


def _margin_dual(theta: Floats, y: Floats) -> Floats:
    u = -theta * y
    return u - u * u / 4.0


def _poisson_dual(theta: Floats, y: Floats) -> Floats:
    expected = theta + y
    inside = expected >= 0.0
    value = np.where(inside, expected, 1.0)
    return np.where(inside, value + _entropy(value) - y - _entropy(y), -np.inf)


def _gamma_second_from_derivative(theta: Floats) -> Floats:
    """Far from the label it is raised, so that no step moves a product by more than LEAP_MOST."""
    return np.maximum(1.0 - theta, np.abs(theta) / LEAP_MOST)


def _gamma_dual(theta: Floats, y: Floats) -> Floats:
    ratio = 1.0 - theta
    inside = ratio > 0.0
    value = np.where(inside, ratio, 1.0)
    return np.where(inside, value * np.log(y / value) + value - 1.0 - np.log(y), -np.inf)


def _exp(z: Floats) -> Floats:
    return np.asarray(np.exp(np.minimum(z, EXP_MOST)))


def _classes(z: Floats) -> Floats:
    """The probabilities of the classes."""
    shifted = np.exp(z - z.max(axis=0))
    chances: Floats = shifted / shifted.sum(axis=0)
    return chances


def _softmax(z: Floats, y: Floats) -> Floats:
    top = z.max(axis=0)
    at_label = np.take_along_axis(z, y.astype(np.intp)[None, :], axis=0)[0]
    return np.asarray(np.log(np.exp(z - top).sum(axis=0)) + top - at_label)


def _indicators(like: Floats, y: Floats) -> Floats:
    """outputs x rows: 1 at each row's class."""
    return np.asarray(np.arange(len(like))[:, None] == y, dtype=np.float64)


def _softmax_second(z: Floats, y: Floats) -> Floats:
    p = _classes(z)
    return p * (1.0 - p)


def _softmax_hessian(z: Floats, y: Floats, direction: Floats) -> Floats:
    p = _classes(z)
    scaled = p * direction
    return np.asarray(scaled - p * scaled.sum(axis=0))


def _softmax_dual(theta: Floats, y: Floats) -> Floats:
    p = theta + _indicators(theta, y)
    inside = (p >= 0.0).all(axis=0) & (np.abs(p.sum(axis=0) - 1.0) <= 1e-9)
    return np.where(inside, _entropy(np.where(p > 0.0, p, 1.0)).sum(axis=0), -np.inf)


# -- the losses ------------------------------------------------------------------------------------------------------

LOGISTIC = Loss(
    "logistic", 0, 0.25,
    value=lambda z, y: np.asarray(np.logaddexp(0.0, -y * z)),
    derivative=lambda z, y: -y * _sigmoid(-y * z),
    second=_sigmoid_slope,
    dual=_logistic_dual,
    second_from_derivative=_logistic_second_from_derivative,
)  # fmt: skip
SQUARED = Loss(
    "squared", 1, 2.0,
    value=lambda z, y: (z - y) ** 2,
    derivative=lambda z, y: 2.0 * (z - y),
    second=_two,
    dual=_squared_dual,
    binary=False,
)  # fmt: skip
SQUARED_HINGE = Loss(
    "squared-hinge", 2, 2.0,
    value=lambda z, y: np.maximum(0.0, 1.0 - y * z) ** 2,
    derivative=lambda z, y: -2.0 * y * np.maximum(0.0, 1.0 - y * z),
    second=lambda z, y: np.where(y * z < 1.0, 2.0, 0.0),
    dual=_hinge_dual,
)  # fmt: skip
LS_SVM = Loss(
    "ls-svm", 3, 2.0,
    value=lambda z, y: (1.0 - y * z) ** 2,
    derivative=lambda z, y: -2.0 * y * (1.0 - y * z),
    second=_two,
    dual=_margin_dual,
)  # fmt: skip
DEBIASED_LOGISTIC = Loss(
    "debiased-logistic", 4, 0.25,
    value=lambda z, t: np.asarray(np.logaddexp(0.0, z) - t * z),
    derivative=lambda z, t: np.asarray(_sigmoid(z) - t),
    second=_sigmoid_slope,
    dual=lambda theta, t: _logistic_dual(theta + t, np.full(np.shape(t), -1.0)),
    binary=False,
)  # fmt: skip
_SOFTMAX = Loss(
    "softmax", 5, 0.5,
    value=_softmax,
    derivative=lambda z, y: _classes(z) - _indicators(z, y),
    second=_softmax_second,
    dual=_softmax_dual,
    binary=False,
    second_from_derivative=_logistic_second_from_derivative,
    hessian=_softmax_hessian,
)  # fmt: skip
POISSON = Loss(
    "poisson", 6, 1.0,
    value=lambda z, y: np.asarray(_exp(z) - y * z - y - _entropy(y)),
    derivative=lambda z, y: _exp(z) - y,
    second=lambda z, y: _exp(z),
    dual=_poisson_dual,
    binary=False,
    grows=True,
)  # fmt: skip
GAMMA = Loss(
    "gamma", 7, 1.0,
    value=lambda z, y: np.asarray(y * _exp(-z) + z - 1.0 - np.log(y)),
    derivative=lambda z, y: 1.0 - y * _exp(-z),
    second=lambda z, y: y * _exp(-z),
    dual=_gamma_dual,
    binary=False,
    grows=True,
    second_from_derivative=_gamma_second_from_derivative,
)  # fmt: skip


def softmax(classes: int) -> Loss:
    """The loss of so many classes, each with an output of its own. No class is set apart, so all have a penalty."""
    return replace(_SOFTMAX, outputs=classes)


def huber(delta: float) -> Loss:
    """The square of how far a product is from its label, up to `delta`; beyond, a straight line goes on from there, so
    that a few labels far from all others pull no harder than some. Minus its conjugate is that of the square, for
    derivatives of at most 2 delta."""

    def value(z: Floats, y: Floats) -> Floats:
        near = np.clip(z - y, -delta, delta)
        return np.asarray(near * (2.0 * (z - y) - near))

    return Loss(
        "huber", 8, 2.0,
        value=value,
        derivative=lambda z, y: np.asarray(2.0 * np.clip(z - y, -delta, delta)),
        second=lambda z, y: np.where(np.abs(z - y) <= delta, 2.0, 0.0),
        dual=lambda theta, y: np.where(np.abs(theta) <= 2.0 * delta, _squared_dual(theta, y), -np.inf),
        binary=False,
        delta=delta,
    )  # fmt: skip


GROWING = (POISSON, GAMMA)
LOSSES = (LOGISTIC, SQUARED, SQUARED_HINGE, LS_SVM)
"""What a user may name for one product a row; the de-biased loss comes with `label_dp_epsilon` alone."""


def weighted(loss: Loss, weights: Floats) -> Loss:
    """The same loss of these very rows, each times its weight; empty weights are all 1. For pooled data only."""
    if not len(weights):
        return loss

    def times(function: Pointwise) -> Pointwise:
        return lambda z, y: function(z, y) * weights

    def hessian(z: Floats, y: Floats, direction: Floats) -> Floats:
        assert loss.hessian is not None
        return loss.hessian(z, y, direction) * weights

    value, derivative, second = times(loss.value), times(loss.derivative), times(loss.second)
    return replace(loss, value=value, derivative=derivative, second=second, hessian=hessian if loss.hessian else None)


def loss_named(name: str, delta: float | None = None) -> Loss:
    """The loss of this name, or a BadJob that names the nearest one; `delta`: Huber's."""
    if name == "huber" and delta is not None:
        return huber(delta)
    for loss in (*LOSSES, *GROWING):
        if loss.name == name:
            return loss
    raise BadJob(unknown_name("loss", name, [loss.name for loss in (*LOSSES, *GROWING)]))


def unknown_name(kind: str, name: object, known: list[str]) -> str:
    """One paragraph: what came, the nearest name, and all that there are."""
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {kind} {name!r}.{hint} Expected one of: {', '.join(known)}."


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def derivative_of(code: int, delta: float, z: float, y: float) -> float:
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
    if code == 6:
        return math.exp(z) - y
    if code == 7:
        return 1.0 - y * math.exp(-z)
    if code == 8:
        short = z - y
        return math.copysign(2.0 * delta, short) if abs(short) > delta else 2.0 * short  # NaN stays NaN
    return -2.0 * y * (1.0 - y * z)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def value_of(code: int, delta: float, z: float, y: float) -> float:
    """The loss with this code, for use inside compiled loops."""
    if code == 0:
        t = y * z
        return math.log1p(math.exp(-abs(t))) + max(-t, 0.0)
    if code == 1:
        return (z - y) * (z - y)
    if code == 4:
        return math.log1p(math.exp(-abs(z))) + max(z, 0.0) - y * z
    if code == 6:
        return math.exp(z) - y * z - y + (y * math.log(y) if y > 0.0 else 0.0)
    if code == 7:
        return y * math.exp(-z) + z - 1.0 - math.log(y)
    if code == 8:
        away = abs(z - y)
        return delta * (2.0 * away - delta) if away > delta else away * away
    short = 1.0 - y * z
    return 0.0 if code == 2 and short <= 0.0 else short * short


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def second_of(code: int, delta: float, z: float, y: float) -> float:
    """The second derivative of the loss with this code, for use inside compiled loops."""
    if code == 0 or code == 4:
        small = math.exp(-abs(z))
        return small / ((1.0 + small) * (1.0 + small))
    if code == 6:
        return math.exp(z)
    if code == 7:
        return y * math.exp(-z)
    if code == 2 and y * z >= 1.0:
        return 0.0
    if code == 8 and abs(z - y) > delta:
        return 0.0
    return 2.0


# -- many rows of the logistic loss at once ----------------------------------------------------------------------------

_EXP = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
_LOG = tuple(2.0 / (2 * k + 1) for k in range(10, -1, -1))
_LOG2E, _LN2 = 1.0 / math.log(2.0), math.log(2.0)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _vanishing(t: float) -> float:
    """exp(-|t|), from 1 to nearly 0. The library's own would be called once for every row; this is made of products and
    sums, which loops do for many rows at once. Its error is a few units in the last place."""
    x = -abs(t)
    x = -EXP_MOST if x < -EXP_MOST else x  # a NaN stays one
    twos = np.rint(x * _LOG2E)
    rest, total = x - twos * _LN2, _EXP[0]
    for factor in _EXP[1:]:
        total = total * rest + factor
    return total * np.int64((np.int64(twos) + 1023) << 52).view(np.float64)  # 2^twos


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _log_above_one(small: float) -> float:
    """log(1 + small) for numbers from 0 to 1, likewise: 2 artanh(s), where s is below 0.18."""
    far = small > 0.41
    near = 0.5 * (small - 1.0) if far else small  # 1 + small is twice as much as 1 + near
    s = near / (2.0 + near)
    square, total = s * s, _LOG[0]
    for factor in _LOG[1:]:
        total = total * square + factor
    return total * s + (_LN2 if far else 0.0)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def logistic_rows(z: Floats, y: Floats, values: Floats, slopes: Floats) -> None:
    """What `value_of` and `derivative_of` give for these rows."""
    for i in range(len(z)):
        slopes[i] = _vanishing(z[i])
    for i in range(len(z)):
        values[i] = _log_above_one(slopes[i]) + max(-y[i] * z[i], 0.0)
    for i in range(len(z)):
        slopes[i] = -y[i] * (slopes[i] if y[i] * z[i] >= 0.0 else 1.0) / (1.0 + slopes[i])
