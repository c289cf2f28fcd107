"""From descriptions of releases to (epsilon, delta).

Two adjacencies are offered and every figure names its own. *Replace-one*: one record is changed for another; the
default. *Add-remove*: one record comes or goes; what most libraries print, and about half as large.

    release                          add-remove pair                         replace-one pair
    Gaussian, every record           N(0, s^2) against N(1, s^2)             N(0, s^2) against N(2, s^2)
    Gaussian, Poisson at rate p      N(0, s^2) against (1-p)N(0)+pN(1)       (1-p)N(0)+pN(-1) against (1-p)N(0)+pN(1)
    pure epsilon, Poisson at rate p  log(1 + p(e^epsilon - 1)), either way

Here s is the *noise multiplier*: the deviation of the noise over the bound on one record's contribution (its clip).
The replace-one pair with sampling is the worst one in any dimension; docs/explanation/mapa-privacy.md proves it.
Full-batch Gaussians are composed exactly (Gaussian differential privacy); all else goes through privacy-loss
distributions with pessimistic rounding (dp-accounting), and Renyi divergences are there to check them.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from offbeat.errors import BadInput

Adjacency = Literal["replace-one", "add-remove"]
SHIFT: dict[Adjacency, float] = {"replace-one": 2.0, "add-remove": 1.0}
"""How far one record moves a sum, in clips."""
ADJACENCIES: tuple[Adjacency, ...] = tuple(SHIFT)

LOSS_GRID = 1e-4  # the finest grid to which privacy losses are rounded up
LOSS_STEPS = 100_000  # and about how many of its steps epsilon should have, when epsilon is large
TAIL_DEVIATIONS = 10.0  # how far out the loss of one release is resolved; what lies beyond counts as delta


class GaussianRelease(msgspec.Struct, frozen=True):
    """A sum of per-record vectors of bounded norm, plus normal noise.

    `noise_multiplier` is the noise's deviation over that bound. `sampling_rate` below 1 says that each record took part
    by its own secret coin (Poisson sampling), which the receiver does not see.
    """

    noise_multiplier: float
    sampling_rate: float = 1.0


class PureRelease(msgspec.Struct, frozen=True):
    """A release that is epsilon-private for its batch (the Laplace mechanism), with secret Poisson sampling or none."""

    epsilon: float
    sampling_rate: float = 1.0


Release = GaussianRelease | PureRelease


# -- Gaussian differential privacy: exact ---------------------------------------------------------------------------


def gdp_delta(mu: float, epsilon: float) -> float:
    """The delta of a mu-Gaussian-private mechanism at this epsilon: the exact curve, not an approximation."""
    if mu <= 0:
        return 0.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return max(0.0, math.exp(first) * -math.expm1(min(second - first, 0.0)))


def _root(excess: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    from scipy.optimize import brentq  # a quarter of a second, which a start without privacy need not spend

    return float(brentq(excess, low, high, xtol=xtol, rtol=1e-14))


def gdp_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a mu-Gaussian-private mechanism at this delta."""
    _check_delta(delta)
    if mu <= 0 or gdp_delta(mu, 0.0) <= delta:
        return 0.0
    upper = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1.0
    return _root(lambda epsilon: gdp_delta(mu, epsilon) - delta, 0.0, upper, xtol=1e-12)


def gdp_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose epsilon at this delta is at most the given one."""
    _check_delta(delta)
    upper = 1.0
    while gdp_delta(upper, epsilon) < delta:
        upper *= 2
    return _root(lambda mu: gdp_delta(mu, epsilon) - delta, 1e-12, upper, xtol=1e-13)


def gaussian_mu(releases: Mapping[GaussianRelease, int], adjacency: Adjacency) -> float:
    """mu of full-batch Gaussian releases composed: squares of shift over deviation add up."""
    return SHIFT[adjacency] * math.sqrt(sum(count / release.noise_multiplier**2 for release, count in releases.items()))


# -- any mixture of releases ----------------------------------------------------------------------------------------


def epsilon(releases: Mapping[Release, int], delta: float, adjacency: Adjacency = "replace-one") -> float:
    """The epsilon, at this delta, of everything in `releases` (description -> how many), each allowed to depend on
    those before it."""
    _check_delta(delta)
    _check_adjacency(adjacency)
    counted = {release: count for release, count in releases.items() if count > 0}
    if not counted:
        return 0.0
    gaussians = {r: n for r, n in counted.items() if isinstance(r, GaussianRelease) and r.sampling_rate >= 1.0}
    if len(gaussians) == len(counted):
        return gdp_epsilon(gaussian_mu(gaussians, adjacency), delta)
    return _composed_epsilon(tuple(counted.items()), delta, adjacency)


@lru_cache(maxsize=1024)
def _composed_epsilon(releases: tuple[tuple[Release, int], ...], delta: float, adjacency: Adjacency) -> float:
    """Half a second each time, and asked again: by the search for a noise, by edges of one size, by a replay."""
    return float(_composed(dict(releases), adjacency).get_epsilon_for_delta(delta))


def delta(releases: Mapping[Release, int], at_epsilon: float, adjacency: Adjacency = "replace-one") -> float:
    """The delta, at this epsilon, of everything in `releases`."""
    _check_adjacency(adjacency)
    counted = {release: count for release, count in releases.items() if count > 0}
    return float(_composed(counted, adjacency).get_delta_for_epsilon(at_epsilon)) if counted else 0.0


def calibrate_multiplier(
    at_epsilon: float, at_delta: float, releases: int, sampling_rate: float = 1.0, adjacency: Adjacency = "replace-one"
) -> float:
    """The smallest noise multiplier (to one part in a thousand, rounded up) with which `releases` Gaussian releases
    stay within (epsilon, delta)."""
    _check_calibration(at_epsilon, at_delta, releases, sampling_rate)
    if sampling_rate >= 1.0:
        return SHIFT[adjacency] * math.sqrt(releases) / gdp_mu(at_epsilon, at_delta) * (1 + 1e-9)

    def excess(log_multiplier: float) -> float:
        release = GaussianRelease(math.exp(log_multiplier), sampling_rate)
        return math.log(max(epsilon({release: releases}, at_delta, adjacency), 1e-9) / at_epsilon)

    low, high = _bracket(excess, math.log(_first_guess(at_epsilon, at_delta, releases, sampling_rate, adjacency)))
    root = _root(excess, low, high, xtol=5e-4)
    while excess(root) > 0:
        root += 5e-4
    return math.exp(root)


def calibrate_pure(
    at_epsilon: float, at_delta: float, releases: int, sampling_rate: float = 1.0, adjacency: Adjacency = "replace-one"
) -> float:
    """The largest epsilon of one pure release (to one part in a thousand, rounded down) of which `releases` fit."""
    _check_calibration(at_epsilon, at_delta, releases, sampling_rate)

    def excess(log_pure: float) -> float:
        return epsilon({PureRelease(math.exp(log_pure), sampling_rate): releases}, at_delta, adjacency) - at_epsilon

    low = math.log(at_epsilon / releases)  # plain composition always fits
    high = low
    while excess(high) <= 0:
        low, high = high, high + 0.7
    root = _root(excess, low, high, xtol=5e-4)
    while excess(root) > 0:
        root -= 5e-4
    return math.exp(root)


def _first_guess(at_epsilon: float, at_delta: float, releases: int, rate: float, adjacency: Adjacency) -> float:
    """Central-limit value: only a place to begin the search."""
    mu = gdp_mu(at_epsilon, at_delta) / (SHIFT[adjacency] * rate * math.sqrt(releases))
    return max(0.35, float(math.log1p(mu * mu) ** -0.5))


def _bracket(excess: Any, start: float) -> tuple[float, float]:
    low = high = start
    if excess(start) > 0:
        while excess(high) > 0:
            low, high = high, high + 0.15
    else:
        while excess(low) <= 0:
            low, high = low - 0.15, low
    return low, high


# -- privacy-loss distributions -------------------------------------------------------------------------------------


def _composed(releases: Mapping[Release, int], adjacency: Adjacency) -> Any:
    total = None
    grid = _grid(releases, adjacency)
    for release, count in releases.items():
        part = _loss_distribution(release, adjacency, grid).self_compose(count)
        total = part if total is None else total.compose(part)
    return total


def _grid(releases: Mapping[Release, int], adjacency: Adjacency) -> float:
    """Losses are rounded up to multiples of this: fine for a useful epsilon, coarser for one in the hundreds.

    One kind of pure release has only two losses: then the grid is laid through them and nothing is rounded.
    """
    grid = max(LOSS_GRID, _rough_epsilon(releases, adjacency) / LOSS_STEPS)
    release = next(iter(releases))
    if len(releases) > 1 or isinstance(release, GaussianRelease):
        return grid
    return _amplified(release) / math.ceil(_amplified(release) / grid)


def _rough_epsilon(releases: Mapping[Release, int], adjacency: Adjacency) -> float:
    def bound(order: float) -> float:
        total = sum(count * _renyi(release, order, adjacency) for release, count in releases.items())
        return total + math.log(1e6) / (order - 1)

    return min(bound(order) for order in (1.1, 1.5, 3.0, 8.0, 32.0))


def _amplified(release: PureRelease) -> float:
    return math.log1p(release.sampling_rate * math.expm1(release.epsilon))


@lru_cache(maxsize=8)
def _loss_distribution(release: Release, adjacency: Adjacency, grid: float) -> Any:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    fine: dict[str, Any] = {"value_discretization_interval": grid}
    if isinstance(release, PureRelease):
        return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(_amplified(release), 0.0), **fine)
    if release.sampling_rate >= 1.0:
        return pld.from_gaussian_mechanism(release.noise_multiplier, sensitivity=SHIFT[adjacency], **fine)
    if adjacency == "add-remove":
        return pld.from_gaussian_mechanism(release.noise_multiplier, sampling_prob=release.sampling_rate, **fine)
    return pld.PrivacyLossDistribution(_replace_one_losses(release, grid))


def _replace_one_losses(release: GaussianRelease, grid: float) -> Any:
    """Connect the dots (Doroshenko and others 2022) through the exact curve of the replace-one pair."""
    from dp_accounting.pld import pld_pmf

    multiplier, rate = release.noise_multiplier, release.sampling_rate
    highest = replace_one_loss(np.array(1.0 + TAIL_DEVIATIONS * multiplier), multiplier, rate)
    steps = math.ceil(float(highest) / grid)
    deltas = replace_one_delta(np.arange(-steps, steps + 1, dtype=np.float64) * grid, multiplier, rate)
    falling = np.minimum.accumulate(deltas)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, -steps, steps, falling)


def replace_one_loss(x: npt.NDArray[np.float64], multiplier: float, rate: float) -> npt.NDArray[np.float64]:
    """log of (1-p)N(0)+pN(1) over (1-p)N(0)+pN(-1) at x, both with deviation `multiplier`. It rises with x."""
    keep = math.log1p(-rate) if rate < 1.0 else -math.inf
    drop = math.log(rate) - 0.5 / multiplier**2
    raised = x / multiplier**2
    return np.logaddexp(keep, drop + raised) - np.logaddexp(keep, drop - raised)


def replace_one_delta(epsilons: npt.NDArray[np.float64], multiplier: float, rate: float) -> npt.NDArray[np.float64]:
    """P[x > t] - e^epsilon Q[x > t], where t is the point with loss epsilon: the pair's exact curve.

    With y = exp(t/s^2) and E = e^epsilon the loss equation is c y^2 + (1-p)(1-E) y - E c = 0, c = p exp(-1/(2 s^2)).
    The loss is odd in x, so t(-epsilon) = -t(epsilon). All in logarithms: epsilon may be in the thousands.
    """
    keep, drop = math.log1p(-rate), math.log(rate) - 0.5 / multiplier**2
    size = np.abs(epsilons)
    with np.errstate(divide="ignore"):
        linear = keep + size + np.log(-np.expm1(-size))  # log of (1-p)(E-1)
    root = 0.5 * np.logaddexp(2 * linear, math.log(4) + size + 2 * drop)
    t = np.sign(epsilons) * multiplier**2 * (np.logaddexp(linear, root) - math.log(2) - drop)
    centre = keep + log_ndtr(-t / multiplier)
    upper = np.logaddexp(centre, math.log(rate) + log_ndtr((1 - t) / multiplier))
    lower = np.logaddexp(centre, math.log(rate) + log_ndtr((-1 - t) / multiplier))
    curve: npt.NDArray[np.float64] = np.exp(upper) * -np.expm1(np.minimum(epsilons + lower - upper, 0.0))
    return np.clip(curve, 0.0, 1.0)


# -- Renyi divergences -----------------------------------------------------------------------------------------------


def _renyi(release: Release, order: float, adjacency: Adjacency) -> float:
    if isinstance(release, PureRelease):
        return _renyi_pure(_amplified(release), order)
    s, p = release.noise_multiplier, release.sampling_rate
    if p >= 1.0:
        return order * SHIFT[adjacency] ** 2 / (2 * s * s)
    if adjacency == "replace-one":
        return _renyi_integral(order, s, p, -1.0)
    return max(_renyi_integral(order, s, p, 0.0), _renyi_integral(order, s, p, 0.0, swapped=True))


def _renyi_pure(pure_epsilon: float, order: float) -> float:
    """Randomised response is the worst epsilon-private mechanism."""
    yes, no = -math.log1p(math.exp(-pure_epsilon)), -math.log1p(math.exp(pure_epsilon))
    return float(np.logaddexp(order * yes + (1 - order) * no, order * no + (1 - order) * yes)) / (order - 1)


def _renyi_integral(order: float, s: float, p: float, other_mean: float, swapped: bool = False) -> float:
    """Order-alpha divergence of (1-p)N(0)+pN(1) from (1-p)N(0)+pN(other_mean), by the trapezoid rule."""
    reach = 12 * s + order + 2
    x, step = np.linspace(-reach, reach, 40_001, retstep=True)
    centre = -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2 * math.pi))
    keep, drop = math.log1p(-p), math.log(p) - 0.5 / s**2
    first = centre + np.logaddexp(keep, drop + x / s**2)
    second = centre if other_mean == 0 else centre + np.logaddexp(keep, drop - x / s**2)
    if swapped:
        first, second = second, first
    logs = order * first + (1 - order) * second
    top = float(logs.max())
    return (top + math.log(float(np.exp(logs - top).sum()) * float(step))) / (order - 1)


# -- checks ---------------------------------------------------------------------------------------------------------


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise BadInput(f"delta must lie strictly between 0 and 1; {delta!r} does not. A common choice is 1e-5.")


def _check_adjacency(adjacency: str) -> None:
    if adjacency not in ADJACENCIES:
        raise BadInput(f"The adjacency must be one of {', '.join(ADJACENCIES)}; {adjacency!r} is neither.")


def _check_calibration(at_epsilon: float, at_delta: float, releases: int, sampling_rate: float) -> None:
    _check_delta(at_delta)
    if at_epsilon <= 0 or releases < 1 or not 0 < sampling_rate <= 1:
        raise BadInput(
            "Calibration needs epsilon above 0, at least one release and a sampling rate in (0, 1]; "
            f"got epsilon {at_epsilon!r}, {releases!r} releases, rate {sampling_rate!r}."
        )
