"""What private VAFL costs, to the digit; and labels answered at random."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.stats import norm

from offbeat.errors import BadJob
from offbeat.privacy.embedding import PrivateEmbedding, RecordLedger, bought_epsilon, calibrate
from offbeat.privacy.label_response import private_targets, response_probabilities, words_for_other
from offbeat.privacy.noise import SeededNoise


def delta_by_hand(mu, epsilon):
    return norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


def test_epsilon_can_be_recomputed_from_the_statement():
    mechanism = PrivateEmbedding(noise=8.0, gradient_noise=12.0, uploads_max=20, clip=2.0)
    ledger = RecordLedger(mechanism, 5)
    ledger.spend(np.array([0, 1]), step=False)
    for _ in range(3):
        ledger.spend(np.array([1, 2]), step=True)
    said = ledger.statement()
    assert (said["releases"], said["steps"], said["releases_most"]) == (4, 3, 4)
    mu = math.sqrt(
        4 * said["steps"] / said["gradient_noise"] ** 2 + said["releases"] * (2 * said["clip"] / said["noise"]) ** 2
    )
    assert said["mu"] == pytest.approx(mu, rel=1e-12)
    assert delta_by_hand(mu, said["epsilon"]) == pytest.approx(said["delta"], rel=1e-6)


def test_the_record_that_left_most_need_not_be_the_one_that_spent_most():
    ledger = RecordLedger(PrivateEmbedding(noise=4.0, gradient_noise=1.0, uploads_max=9), 2)
    for _ in range(3):
        ledger.spend(np.array([0]), step=False)
    ledger.spend(np.array([1]), step=True)
    said = ledger.statement()
    assert (said["releases"], said["steps"], said["releases_most"]) == (1, 1, 3)


def test_equal_multipliers_are_not_counted_once():
    one = PrivateEmbedding(noise=5.0, gradient_noise=5.0, uploads_max=9)
    assert one.mu(4, 5) == pytest.approx(2 * math.sqrt(9) / 5)


def test_published_values():
    """mu = 1 costs 4.377; 100 uploads at c = 0.1 buy about 20,852, at c = 1 about 284."""
    assert PrivateEmbedding(noise=2 * math.sqrt(2), gradient_noise=2 * math.sqrt(2), uploads_max=1).epsilon(1, 1) == (
        pytest.approx(4.377, abs=1e-3)
    )
    assert bought_epsilon(0.1, 100) == pytest.approx(20_852, rel=1e-3)
    assert bought_epsilon(1.0, 100) == pytest.approx(284, rel=2e-3)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_calibration_spends_the_budget_exactly_at_the_cap(epsilon, share):
    mechanism = calibrate(epsilon, 1e-5, 25, clip=1.5, embedding_share=share)
    assert mechanism.epsilon_max == pytest.approx(epsilon, rel=1e-6)
    assert mechanism.epsilon_max <= epsilon
    assert mechanism.mu(25, 0) ** 2 == pytest.approx(share * mechanism.mu(25, 25) ** 2)


def test_the_cap_is_kept():
    ledger = RecordLedger(PrivateEmbedding(1.0, 1.0, uploads_max=2), 3)
    rows = np.array([0, 2])
    for _ in range(2):
        ledger.spend(rows, step=True)
    assert ledger.open_rows(np.arange(3)).tolist() == [1]
    with pytest.raises(AssertionError, match="cap"):
        ledger.spend(np.array([2]), step=False)


def test_a_crash_may_over_count_never_under_count():
    ledger = RecordLedger(PrivateEmbedding(1.0, 1.0, uploads_max=9), 3)
    ledger.spend(np.array([0]), step=True)
    state = ledger.snapshot()
    restored = RecordLedger(PrivateEmbedding(1.0, 1.0, uploads_max=9), 3)
    restored.restore(state)
    restored.charge_all(2)
    assert restored.released.tolist() == [3, 2, 2]
    assert restored.statement()["epsilon"] > ledger.statement()["epsilon"]


def test_nonsense_is_refused():
    with pytest.raises(BadJob, match="noise = 0"):
        PrivateEmbedding(noise=0, gradient_noise=1, uploads_max=1)
    with pytest.raises(BadJob, match="leaves nothing to learn"):
        PrivateEmbedding(noise=1e12, gradient_noise=1, uploads_max=1).grid  # noqa: B018
    with pytest.raises(BadJob, match="embedding_share"):
        calibrate(1.0, 1e-5, 3, embedding_share=1.0)
    with pytest.raises(BadJob, match="label_dp_epsilon"):
        response_probabilities(0.0, 2)
    with pytest.raises(BadJob, match="at most 100"):
        response_probabilities(1000.0, 2)


@pytest.mark.parametrize("classes", [2, 5])
def test_answers_keep_the_promise_and_the_mean(classes):
    epsilon, rows = 1.0, 200_000
    labels = np.arange(rows) % classes
    targets = labels[:, None].astype(float) if classes == 2 else np.eye(classes)[labels]
    answered = private_targets(targets, epsilon, SeededNoise(1, "labels").stream(0))
    keep, other = response_probabilities(epsilon, classes)
    assert keep / other == pytest.approx(math.exp(epsilon))
    assert keep + (classes - 1) * other == pytest.approx(1.0)
    for label in range(classes):
        mean = answered[labels == label].mean(axis=0)
        spread = answered[labels == label].std(axis=0) / math.sqrt(rows / classes)
        true = np.array([label]) if classes == 2 else np.eye(classes)[label]
        assert np.all(np.abs(mean - true) < 4 * spread)
    if classes > 2:
        np.testing.assert_allclose(answered.sum(axis=1), 1.0)


@pytest.mark.parametrize("classes", [2, 3, 1000])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 7.0, 43.0, 60.0, 100.0])
def test_no_answer_is_more_than_a_factor_of_e_to_the_epsilon_likelier_under_one_label(epsilon, classes):
    """In whole numbers of words; where the exact share is below one word in 2^64, it is one word."""
    other = words_for_other(epsilon, classes)
    keep = 2**64 - (classes - 1) * other
    assert other >= 1
    with localcontext() as context:
        context.prec = 60
        assert Decimal(keep) / other <= Decimal(epsilon).exp()
        if epsilon < 40:
            assert Decimal(keep) / other >= Decimal(epsilon).exp() * (1 - Decimal(2) ** -5)


def test_each_word_answers_as_its_place_says():
    class Words:
        def words(self, count):
            first = 2**64 - 2 * share
            return np.array([0, first - 1, first, first + share - 1, first + share, 2**64 - 1], dtype=np.uint64)

    share = words_for_other(1.0, 3)
    answers = np.argmax(private_targets(np.eye(3)[[0] * 6], 1.0, Words()), axis=1)
    assert answers.tolist() == [0, 0, 1, 1, 2, 2]


def test_numbers_are_not_classes():
    with pytest.raises(BadJob, match="regression"):
        private_targets(np.array([[0.3], [2.0]]), 1.0, SeededNoise(1, "labels").stream(0))
