"""Any message, at any moment, from anybody, in VAFL: a party takes it, or refuses it and names the sender, unchanged.
Whatever the server asks for, no row leaves a client more often than its ledger says."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from arbitrary import Letters, check_refusals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import VARIANTS, Vafl
from offbeat.algorithms.vafl.messages import MESSAGES, Refreshed, Upload
from offbeat.learning.embeddings import Adam, AdditiveHead, LinearEmbedding, Sgd
from offbeat.party.contract import Send
from offbeat.privacy.embedding import PrivateEmbedding

CLIENTS = ("ana", "bo", "cem")
ROWS = 12
PRIVATE = PrivateEmbedding(noise=0.5, gradient_noise=1.0, uploads_max=4)
KINDS = {
    "plain": {},
    "two under way": {"in_flight": 2, "delay_bound": 0.2, "optimiser": Adam(0.05)},
    "private": {"private": PRIVATE, "delay_bound": 0.5},
    "cold": {"initial_upload": False, "rates": {"ana": 50.0}, "chunk": 3},
}


class Elsewhere(LinearEmbedding):
    """Does not say that it begins at zero: so there is a first upload in private mode too."""

    begins_at_zero = False


@cache
def drawn(variant, kind):
    """How to build the parties, and what they say to each other in a whole run."""
    build = builder(variant, kind)
    return build, Letters(build, MESSAGES)


def builder(variant, kind):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS + 5, 6))
    targets = vafl.one_hot(rng.integers(0, 3, ROWS + 5), 3)
    columns = {name: x[:, 2 * i : 2 * i + 2] for i, name in enumerate(CLIENTS)}
    options = {"batch": 4, "passes": 4.0, "optimiser": Sgd(0.3), "head_optimiser": Sgd(0.3)} | KINDS[kind]

    def build():
        server, clients = vafl.build(
            {name: part[:ROWS] for name, part in columns.items()},
            targets[:ROWS],
            {name: Elsewhere(2, 3) for name in CLIENTS},
            AdditiveHead(3),
            Vafl(variant=variant, **options),
            test_features={name: part[ROWS:] for name, part in columns.items()},
            test_targets=targets[ROWS:],
        )
        return [server, *clients]

    return build


class CountedRows:
    """How often each row has left since the middle of the run, against what the ledger has counted since then."""

    def __init__(self):
        self.left, self.releases, self.before = Counter(), set(), None

    def __call__(self, party, effects):
        if getattr(party, "ledger", None) is None:
            return
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.body, Upload | Refreshed):
                self._count(effect.body)
        assert party.ledger.released.max() < 2**62 and party.ledger.released.min() >= 0
        assert all(times <= party.ledger.released[row] for row, times in self.left.items())
        assert all(times <= PRIVATE.uploads_max for times in self.left.values())

    def _count(self, body):
        if body.release not in self.releases:
            self.releases.add(body.release)
            self.left.update(body.rows.tolist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_anything_is_taken_or_refused_without_a_trace(variant, kind, data):
    name = data.draw(st.sampled_from(["server", "server", "ana", "bo"]))
    build, letters = drawn(variant, kind)
    check_refusals(data, build, letters, name, timers=data.draw(st.booleans()), after=CountedRows())
