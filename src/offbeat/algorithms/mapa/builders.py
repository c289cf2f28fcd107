"""A cloud and its edges, for MAPA, AUDP, ASGD, CSGD and any other rule."""

from collections.abc import Mapping

from offbeat.algorithms.mapa.cloud import Cloud, Rule
from offbeat.algorithms.mapa.edge import Edge
from offbeat.algorithms.mapa.privacy import EdgePrivacy, Paper, Privacy, Unprotected, privacy_of_edges
from offbeat.algorithms.mapa.rates import AsyncRate, CentralRate, Constants, NoisyRate, Rate, StagedRate, first_clip
from offbeat.algorithms.mapa.rules import GradientStep
from offbeat.errors import BadJob
from offbeat.learning.horizontal import EdgeData, HorizontalModel
from offbeat.party.contract import Party, PartyName
from offbeat.privacy.noise import NoiseSource, SeededNoise, SystemNoise


def parties(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    rule: Rule,
    privacy: Mapping[PartyName, EdgePrivacy],
    *,
    updates: int,
    lag_max: int,
    seed: int | None,
    retry_s: float = 1.0,
) -> list[Party]:
    """A cloud and one edge for each entry of `data`. Without a seed the noise is cryptographic and never repeats."""
    if not data:
        raise BadJob("Horizontal learning needs at least one edge with rows; none was given.")
    cloud = Cloud(model.start(), rule, updates=updates, lag_max=lag_max, edges=tuple(data), linger_s=retry_s)
    edges = [
        Edge(name, model, rows, privacy[name], noise_source(seed, name), retry_s=retry_s) for name, rows in data.items()
    ]
    return [cloud, *edges]


def noise_source(seed: int | None, name: PartyName) -> NoiseSource:
    return SystemNoise() if seed is None else SeededNoise(seed, name)


def mapa(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    *,
    privacy: Privacy,
    constants: Constants,
    updates: int,
    clip: float | None = None,
    shrink: float = 0.5,
    floor: float = 0.0,
    quantile: float = 0.5,
    failure: float = 1e-3,
    strength: float = 1e-4,
    seed: int | None = None,
    retry_s: float = 1.0,
) -> list[Party]:
    """MAPA: stages. The first clip is Eq. 12's unless one is given."""
    rate = StagedRate(
        constants,
        first_clip(constants.deviation, failure) if clip is None else clip,
        shrink=shrink,
        floor=floor,
        quantile=quantile,
        deviation_within_clip=not _as_printed(privacy),
    )
    return _private(model, data, rate, privacy, constants, updates, strength, seed, retry_s)


def audp(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    *,
    privacy: Privacy,
    constants: Constants,
    updates: int,
    clip: float,
    log_free: bool = False,
    strength: float = 1e-4,
    seed: int | None = None,
    retry_s: float = 1.0,
) -> list[Party]:
    """AUDP: one clip for the whole run, a step that falls as 1/sqrt(t)."""
    rate = NoisyRate(constants, clip, log_free)
    return _private(model, data, rate, privacy, constants, updates, strength, seed, retry_s)


def asgd(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    *,
    constants: Constants,
    updates: int,
    strength: float = 1e-4,
    seed: int | None = None,
    retry_s: float = 1.0,
) -> list[Party]:
    """ASGD: asynchronous, no clip and no noise."""
    return _private(model, data, AsyncRate(constants), Unprotected(), constants, updates, strength, seed, retry_s)


def csgd(
    model: HorizontalModel,
    pooled: EdgeData,
    *,
    constants: Constants,
    updates: int,
    strength: float = 1e-4,
    seed: int | None = None,
) -> list[Party]:
    """CSGD: all rows at one place, which pulls and steps in turn, so that no gradient is ever late."""
    rate = CentralRate(constants)
    return _private(model, {"pool": pooled}, rate, Unprotected(), constants, updates, strength, seed, 1.0)


def steady(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    *,
    rate: Rate,
    privacy: Privacy,
    constants: Constants,
    updates: int,
    strength: float = 1e-4,
    seed: int | None = None,
    retry_s: float = 1.0,
) -> list[Party]:
    """Any other rate, for instance `SteadyRate` with a fixed or an adaptive clip."""
    return _private(model, data, rate, privacy, constants, updates, strength, seed, retry_s)


def _private(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    rate: Rate,
    privacy: Privacy,
    constants: Constants,
    updates: int,
    strength: float,
    seed: int | None,
    retry_s: float,
) -> list[Party]:
    recipes = privacy_of_edges(privacy, {name: rows.rows for name, rows in data.items()}, constants.batch)
    rule = GradientStep(rate, strength, constants.lag)
    return parties(model, data, rule, recipes, updates=updates, lag_max=constants.lag_max, seed=seed, retry_s=retry_s)


def _as_printed(privacy: Privacy) -> bool:
    return isinstance(privacy, Paper)
