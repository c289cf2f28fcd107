"""What a cloud and its edges refuse: each message names its sender in the error, and changes nothing."""

import math
import tracemalloc

import numpy as np
import pytest

from offbeat.algorithms.mapa import Cloud, Edge, Goodbye, GradientStep, Halt, Hello, Leaving, Model, Upload
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.algorithms.mapa.rates import Constants, NoisyRate, StagedRate, SteadyRate
from offbeat.errors import UnexpectedEvent
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.message.codec import encode_state
from offbeat.party.contract import Finish, PeerLost, Received, Started, Wake, Woken
from offbeat.privacy.clipping import AdaptiveClip
from offbeat.privacy.ledger import Budget, GaussianRelease
from offbeat.privacy.mechanism import Gaussian, NoNoise, PaperNoise
from offbeat.privacy.noise import SeededNoise

MODEL = LinearModel("logistic", 2)
RNG = np.random.default_rng(0)
DATA = edge_data(RNG.standard_normal((50, 2)), RNG.integers(0, 2, 50))
CONSTANTS = Constants.from_public(MODEL, norm_max=4.0, strength=1e-4, lag_max=6, batch=5)
SOUND = EdgePrivacy(Gaussian(5.0, 0.2, 50), Budget(50.0, 1e-5), ((GaussianRelease(5.0, 0.2), 100),))


def cloud(rate=None, edges=("a", "b")):
    rule = GradientStep(rate or SteadyRate(0.5, clip=2.0), 0.0)
    return Cloud(np.zeros(3), rule, updates=10, lag_max=3, edges=edges)


def edge(privacy=SOUND):
    party = Edge("a", MODEL, DATA, privacy, SeededNoise(0, "a"))
    party.handle(Started())
    return party


def refused(party, sender, body, words):
    before = encode_state(party.snapshot())
    with pytest.raises(UnexpectedEvent, match=words) as refusal:
        party.handle(Received(sender, body))
    assert sender in str(refusal.value)
    assert encode_state(party.snapshot()) == before


@pytest.mark.parametrize("rate", [NoisyRate(CONSTANTS, 1.0), StagedRate(CONSTANTS, 4.0)])
@pytest.mark.parametrize("noise", [-1.0, math.nan, math.inf, 1e300])
def test_noise_that_no_edge_adds(noise, rate):
    refused(cloud(rate), "a", Hello(noise, 0), "its noise for a clip of one")


@pytest.mark.parametrize("noise", [0.0, 1e30])
def test_steps_stay_numbers_with_any_noise_that_is_taken(noise):
    for rate in (NoisyRate(CONSTANTS, 1e100), StagedRate(CONSTANTS, 1e100), StagedRate(CONSTANTS, 1.0)):
        party = cloud(rate)
        party.handle(Received("a", Hello(noise, 0)))
        party.handle(Received("a", Upload(np.ones(3), 0, 1, -1.0)))
        assert party.version == 1 and np.isfinite(party.parameters).all()


@pytest.mark.parametrize("number", [-1, 2**62, 2**63 - 1])
def test_numbers_of_uploads_have_a_range(number):
    for body in (Hello(0.1, number), Upload(np.ones(3), 0, number, -1.0), Leaving(number)):
        refused(cloud(), "a", body, f"the upload number {number}")


@pytest.mark.parametrize("fraction", [math.nan, math.inf])
@pytest.mark.parametrize("rate", [SteadyRate(0.5, adaptive=AdaptiveClip()), StagedRate(CONSTANTS, 4.0)])
def test_a_fraction_of_rows_that_is_no_number_moves_no_clip(rate, fraction):
    party, clip = cloud(rate), rate.clip
    party.handle(Received("a", Upload(np.ones(3), 0, 1, fraction)))
    assert (party.version, party.dropped, party.rule.clip) == (0, 1, clip)


def test_strangers_do_not_end_a_run():
    party = cloud(edges=())
    assert not [e for e in party.handle(Received("zoe", Leaving(0))) if isinstance(e, Finish)]
    assert party.handle(Received("zoe", Goodbye())) == [] and party.ending is None


def test_a_run_without_edges_ends_whatever_made_them_leave():
    party = cloud()
    party.handle(Received("a", Goodbye()))
    assert party.handle(Received("b", Goodbye()))[-1].verdict == "peer-lost"
    party = cloud()
    party.handle(PeerLost("b"))
    assert [type(e) for e in party.handle(Received("a", Leaving(3)))][1:] == [Wake]
    assert party.handle(Woken())[-1].verdict == "peer-lost"


# -- the edge ---------------------------------------------------------------------------------------------------------


def model(**changes):
    parts = {"parameters": np.zeros(3), "version": 0, "clip": 1.0, "stage": 0, "answers": 0, "lag": 0} | changes
    return Model(**parts)


@pytest.mark.parametrize("privacy", [SOUND, EdgePrivacy(PaperNoise(0.5, 10)), EdgePrivacy(NoNoise(5))])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": np.zeros(4)}, "the same model"),
        ({"parameters": np.zeros((3, 1))}, "the same model"),
        ({"parameters": np.zeros(3, dtype=np.int64)}, "the same model"),
        ({"parameters": np.array([0.0, np.nan, 0.0])}, "not finite"),
        ({"clip": 0.0}, "a clip of 0"),
        ({"clip": -1.0}, "a clip of -1"),
        ({"clip": math.nan}, "a clip of nan"),
        ({"version": -1}, "the version number -1"),
        ({"version": 2**62}, "the version number"),
        ({"lag": -1}, "the lag number -1"),
        ({"answers": 2**62}, "the upload number"),
    ],
)
def test_models_that_are_none(changes, words, privacy):
    refused(edge(privacy), "cloud", model(**changes), words)


@pytest.mark.parametrize("privacy", [SOUND, EdgePrivacy(PaperNoise(0.5, 10))])
def test_noise_needs_a_finite_clip(privacy):
    refused(edge(privacy), "cloud", model(clip=math.inf), "a clip of inf")


def test_a_cloud_cannot_keep_an_edge_busy_by_naming_many_uploads():
    party = edge()
    tracemalloc.start()
    refused(party, "cloud", model(answers=2**40), "of which this edge knows 0")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert edge(EdgePrivacy(NoNoise(5))).handle(Received("cloud", model(answers=2**40)))


def test_only_the_cloud_is_listened_to():
    for body in (model(), Halt("passes", "done")):
        refused(edge(), "b", body, "from b has no place here")
