"""A deviating asker and honest parties: what she may send, and what she gets.

Eve holds the labels and the chair. She knows everything but the secrets of the others, and wants Ana's own share.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from offbeat.algorithms import vfb2
from offbeat.errors import UnexpectedEvent
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2
from offbeat.learning.sampling import Schedule
from offbeat.party.contract import Compute, Computed, Received, Send, Started
from offbeat.party.lifecycle import Begin
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import PROBES, PRODUCTS, KeyOffered, ShareAsked, ShareGiven, SumOptions
from offbeat.party.problem import Problem
from offbeat.party.smoothness import length_of
from offbeat.privacy.masks import scale_of

ROWS, WIDTH, SCALE = 256, 5, scale_of(40)
BEGIN = Begin(0, 0.1, 64, 0.0, 0.0, 1.0)


def world(names=("eve", "ana", "bo"), *, labels_at=("eve",), method=vfb2, scheme="pairwise", begin=BEGIN, **options):
    """Parties that know each other's keys and have begun; Bo's block is zero, so a sum with him is Ana's share."""
    rng = np.random.default_rng(1)
    X = {name: rng.normal(size=(ROWS, WIDTH)) for name in names}
    problem = Problem(ROWS, LOGISTIC, L2, 1e-4, np.sign(rng.normal(size=ROWS)))
    blocks = {name: make_block(X[name], penalty=L2, strength=1e-4) for name in names}
    synchronous = options.pop("synchronous", False)
    sums = {key: options.pop(key) for key in ("two_party_insecure", "parties_least", "in_step") if key in options}
    chosen = LinearOptions(batch=64, sums=SumOptions(scheme=scheme, **sums), asynchronous=not synchronous, **options)
    made = method.build(blocks, problem, chosen, labels_at=labels_at, synchronous=synchronous, secrets_seed=1)
    parties = {party.name: party for party in made}
    keys = {name: KeyOffered(party.party.sums.keys.public) for name, party in parties.items()}
    for name, party in parties.items():
        party.handle(Started())
        for other, key in keys.items():
            if other != name and scheme == "pairwise":
                party.handle(Received(other, key))
    for name in set(names) - {"eve"}:
        parties[name].block.set_weights(rng.normal(size=(1, WIDTH + 1)) if name != "bo" else np.zeros((1, WIDTH + 1)))
        if begin is not None:
            parties[name].handle(Received("eve", begin))
    return SimpleNamespace(parties=parties, ana=parties["ana"], bo=parties["bo"], X=X, schedule=Schedule(ROWS, 64, 0))


def told(party, body, sender="eve"):
    """What goes back to those who ask."""
    effects = party.handle(Received(sender, body))
    return [e.body.words for e in effects if isinstance(e, Send) and isinstance(e.body, ShareGiven)]


def ask(kind=PRODUCTS, survey=0, first=0, count=0, epoch=0):
    return ShareAsked(epoch, kind, survey, first, count, 0)


def decoded(words):
    return words.view(np.int64) / SCALE


def is_noise(words):
    """Uniform words: no fixed-point number of a share's size shows, and no byte has a preference."""
    sizes = np.abs(decoded(words))
    assert np.median(sizes) > 2.0**20 and sizes.min() > 1.0
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > 1e-3
    return True


def share_of(world, name, start, stop):
    return world.parties[name].block.share(start, stop)


def refused(party, body, sender="eve", match=""):
    with pytest.raises(UnexpectedEvent, match=f"{sender}.*{match}"):
        party.handle(Received(sender, body))


def probe(party):
    words = length_of(party.block)
    return ask(PROBES, 0, 0, words)


def says(party, body, sender="eve"):
    """Eve says something, and the party does the work that follows; the shares that it gives."""
    queue, given = [Received(sender, body)], []
    while queue:
        for effect in party.handle(queue.pop(0)):
            if isinstance(effect, Compute):
                queue.append(Computed(effect.ticket, effect.job() if effect.job else None))
            elif isinstance(effect, Send) and isinstance(effect.body, ShareGiven):
                given.append(effect.body.words)
    return given
