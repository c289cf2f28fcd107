"""VAFL in a calm but slow world: an upload leaves once, however long its answer takes, and nobody slow is given up."""

from collections import Counter

import numpy as np
import pytest

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import VARIANTS, Vafl, one_hot
from offbeat.algorithms.vafl.messages import Ask, Gradient, PredictAsked, Refresh, Upload
from offbeat.learning.embeddings import AdditiveHead, LinearEmbedding, Sgd
from offbeat.party.contract import Broadcast, Send
from offbeat.privacy.embedding import PrivateEmbedding
from offbeat.runtime.simulator import CostModel, Link, Simulator

CLIENTS = ("ana", "bo", "cem", "dan")
WORLDS = {
    "fast": CostModel(),
    "slow server": CostModel(slow={"server": 300.0}),
    "slow client": CostModel(slow={"bo": 1000.0}),
    "far away": CostModel(link=Link(0.1)),
    "farther than patience grows": CostModel(link=Link(1.0)),
}


class Sent:
    """Counts what is sent: uploads and gradients by their release, other messages by their kind."""

    def __init__(self):
        self.uploads, self.gradients, self.kinds = Counter(), Counter(), Counter()

    def handled(self, now_s, party, event, effects):
        for effect in effects:
            if isinstance(effect, Send | Broadcast):
                self.kinds[type(effect.body)] += 1 if isinstance(effect, Send) else len(effect.to)
                if isinstance(effect.body, Upload):
                    self.uploads[party.name, effect.body.release, effect.body.wanted] += 1
                if isinstance(effect.body, Gradient):
                    self.gradients[effect.to, effect.body.release] += 1

    def ended(self, outcome, parties):
        self.outcome = outcome


def parties(**changes):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 8))
    targets = one_hot(np.argmax(x @ rng.normal(size=(8, 3)), axis=1), 3)
    columns = {name: x[:, 2 * i : 2 * i + 2] for i, name in enumerate(CLIENTS)}
    options = {"batch": 8, "passes": 8, "optimiser": Sgd(0.3), "head_optimiser": Sgd(0.3), "retry_s": 0.05} | changes
    server, clients = vafl.build(
        {name: part[:40] for name, part in columns.items()},
        targets[:40],
        {name: LinearEmbedding(2, 3) for name in CLIENTS},
        AdditiveHead(3),
        Vafl(**options),
        test_features={name: part[40:] for name, part in columns.items()},
        test_targets=targets[40:],
    )
    return [server, *clients]


def run(costs, **changes):
    sent, made = Sent(), parties(**changes)
    Simulator(seed=1, costs=costs, checkers=[sent]).run(made)
    return sent, made


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_there_are_as_many_uploads_as_gradients(variant, in_flight, world):
    sent, (server, *clients) = run(WORLDS[world], variant=variant, in_flight=in_flight)
    assert set(sent.uploads.values()) == {1}
    wanted = {(name, release) for name, release, wanted in sent.uploads if wanted}
    unanswered = wanted - sent.gradients.keys()  # under way when the last pass was over, or replaced
    overtaken = {(CLIENTS[client], release) for client, release in server.answers.replaced}
    assert sent.gradients.keys() <= wanted and len(unanswered - overtaken) <= len(CLIENTS) * in_flight
    assert server.verdict == "passes" and all(client.releases.retried == 0 for client in clients)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nobody_is_predicted_without_because_he_is_slow(variant):
    sent, (server, *_) = run(WORLDS["slow client"], variant=variant)
    assert server.prediction.without == {} and {f.verdict for f in sent.outcome.finished.values()} == {"passes"}


def test_requests_are_repeated_rarely_once_their_answers_are_known_to_take_long():
    slow = CostModel(slow={"bo": 60.0})
    sent, (server, *_) = run(slow, variant="vafl-sync", passes=40)
    rounds = server.iteration * len(CLIENTS)
    assert rounds == 800 and sent.kinds[Ask] < 1.1 * rounds
    sent, (server, *_) = run(slow, variant="vafl", delay_bound=0.2, passes=40)
    refreshes = server.requests - sent.kinds[PredictAsked] // len(CLIENTS)
    assert refreshes > 100 and sent.kinds[Refresh] < 1.1 * refreshes


@pytest.mark.parametrize("world", ["slow server", "far away"])
def test_gradients_are_repeated_rarely_once_they_are_known_to_take_long(world):
    sent, _ = run(WORLDS[world], passes=40)
    assert sum(sent.gradients.values()) < 1.1 * len(sent.gradients)


def test_on_a_narrow_link_questions_overtake_uploads_only_at_first():
    """A short question arrives before the long upload that it asks after; the sender learns to wait."""
    sent, _ = run(CostModel(link=Link(1e-3, bandwidth_bytes_s=2e3)), passes=40)
    assert sum(sent.uploads.values()) < 1.1 * len(sent.uploads)


def test_private_uploads_leave_once_too():
    private = PrivateEmbedding(noise=0.5, gradient_noise=1.0, uploads_max=6)
    sent, (server, *_) = run(WORLDS["slow server"], private=private, passes=100)
    assert set(sent.uploads.values()) == {1} and server.verdict == "budget"
