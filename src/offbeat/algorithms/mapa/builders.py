"""A cloud and its edges, under any rule; and under one that steps along gradients."""

from collections.abc import Mapping

from offbeat.algorithms.mapa.cloud import Cloud, GradientStep, Rule
from offbeat.algorithms.mapa.edge import Edge
from offbeat.algorithms.mapa.privacy import EdgePrivacy, Privacy, Unprotected, privacy_of_edges
from offbeat.algorithms.mapa.rates import Constants, Rate
from offbeat.errors import BadJob
from offbeat.learning.horizontal import EdgeData, HorizontalModel
from offbeat.party.contract import Party, PartyName
from offbeat.privacy.noise import NoiseSource, SeededNoise, SystemNoise

UNPROTECTED = Unprotected()


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


def stepping(
    model: HorizontalModel,
    data: Mapping[PartyName, EdgeData],
    rate: Rate,
    *,
    constants: Constants,
    updates: int,
    privacy: Privacy = UNPROTECTED,
    strength: float = 1e-4,
    seed: int | None = None,
    retry_s: float = 1.0,
) -> list[Party]:
    """A cloud that steps along gradients, by a rate that no other run has used: a `StagedRate` is MAPA, a `NoisyRate`
    AUDP, an `AsyncRate` ASGD, and a `CentralRate` with all rows at one edge CSGD."""
    recipes = privacy_of_edges(privacy, {name: rows.rows for name, rows in data.items()}, constants.batch)
    rule = GradientStep(rate, strength, constants.lag)
    return parties(model, data, rule, recipes, updates=updates, lag_max=constants.lag_max, seed=seed, retry_s=retry_s)
