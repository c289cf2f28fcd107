"""Joint prediction in the simulator: exact sums, unknown rows, refusals, and a party that is lost."""

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from offbeat.errors import Refused
from offbeat.orgs.predict import Predictor
from offbeat.orgs.tokens import tokens_of
from offbeat.party.masked_sum import SumOptions
from offbeat.runtime.simulator import Simulator
from offbeat.runtime.simulator.faults import Gone

NAMES = ("bank", "shop", "telecom")
SALT = b"salt"


class Scores:
    """Fixed scores by id."""

    def __init__(self, scores: dict[str, float], refuse: str = "") -> None:
        self.by_token = dict(zip(tokens_of(scores, SALT), scores.values(), strict=True))
        self.refuse = refuse

    def scores(self, tokens: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        if self.refuse:
            raise Refused(self.refuse)
        known = np.array([token in self.by_token for token in tokens])
        return np.array([self.by_token.get(token, 0.0) for token in tokens]), known


def predictors(
    tables: dict[str, Scores],
    ids: list[str],
    outputs: int = 1,
    scheme: str = "pairwise",
    *,
    insecure: bool = False,
) -> list[Predictor]:
    names = tuple(tables)
    return [
        Predictor(
            name,
            names,
            names[0],
            scorer,
            run="run/predict/1",
            secret=name.encode().ljust(32, b"."),
            sums=SumOptions(scheme=scheme, two_party_insecure=insecure),
            tokens=tokens_of(ids, SALT) if name == names[0] else (),
            rows=len(ids),
            outputs=outputs,
        )
        for name, scorer in tables.items()
    ]


class ClassScores(Scores):
    """The same with a score for each of three classes."""

    def scores(self, tokens: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        known = np.array([token in self.by_token for token in tokens])
        return np.array([self.by_token.get(token, [0.0] * 3) for token in tokens]), known


OF = {
    "bank": {"a": 0.5, "b": -1.25, "c": 3.0},
    "shop": {"b": 0.125, "a": 2.0},
    "telecom": {"a": -4.0, "b": 1.0, "c": 9.0},
}


def tables() -> dict[str, Scores]:
    return {name: Scores(scores) for name, scores in OF.items()}


@pytest.mark.parametrize("scheme", ["pairwise", "two-tree", "tree"])
def test_scores_are_the_exact_sum_of_shares(scheme: str) -> None:
    parties = predictors(tables(), ["b", "a"], scheme=scheme)
    outcome = Simulator(seed=0).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"predicted"}
    assert parties[0].result is not None
    assert parties[0].result.tolist() == [-0.125, -1.5]
    assert parties[1].result is None and parties[2].result is None


@pytest.mark.parametrize("scheme", ["pairwise", "two-tree", "tree"])
def test_one_sum_carries_the_scores_of_all_classes(scheme: str) -> None:
    several = {name: {id_: [one, -2.0 * one, 0.25] for id_, one in OF[name].items()} for name in OF}
    parties = predictors({name: ClassScores(scores) for name, scores in several.items()}, ["b", "c", "a"], 3, scheme)
    Simulator(seed=0).run(parties)
    assert parties[0].known.tolist() == [True, False, True]
    assert parties[0].result is not None and parties[0].result.shape == (3, 3)
    assert parties[0].result[[0, 2]].tolist() == [[-0.125, 0.25, 0.75], [-1.5, 3.0, 0.75]]


def test_a_row_that_one_party_does_not_know_is_marked() -> None:
    parties = predictors(tables(), ["a", "c", "nobody"])
    outcome = Simulator(seed=0).run(parties)
    assert parties[0].known.tolist() == [True, False, False]
    assert outcome.finished["bank"].reason == "1 of 3 rows scored"


def test_a_refusal_reaches_the_asker_with_its_reason() -> None:
    refusing = tables() | {"shop": Scores({}, refuse="row_cap is reached")}
    parties = predictors(refusing, ["a"])
    outcome = Simulator(seed=0).run(parties)
    assert outcome.finished["bank"].verdict == "refused"
    assert "'shop' declined: row_cap is reached" in outcome.finished["bank"].reason
    assert parties[0].result is None


def test_a_lost_party_ends_the_prediction() -> None:
    gone = (Gone("shop", at_s=0.0, down_s=inf),)
    outcome = Simulator(seed=0, faults=gone, detect_s=0.5).run(predictors(tables(), ["a"]))
    assert outcome.finished["bank"].verdict == "peer-lost"
