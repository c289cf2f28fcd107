"""Private products between organisations: which jobs, which policies, what is charged, and whose noise it is."""

import msgspec
import numpy as np
import pytest

from offbeat.errors import BadJob, Refused
from offbeat.jobs.organisations import OrgJob, OrgRows, job_from_text
from offbeat.orgs.budget import COLUMNS, LABELS, PrivacyLedger, charges_of
from offbeat.orgs.disclosure import disclosures
from offbeat.orgs.keyed_noise import KeyedNoise
from offbeat.orgs.policy import Policy, objections, refuse_job, refuse_prediction
from offbeat.privacy.accountant import gdp_epsilon
from offbeat.privacy.products import NoisyShares, ProductPlan

TEXT = """
name = "credit"
parties = ["bank", "shop", "telecom", "town"]
labels_at = ["bank"]

[method]
algorithm = "vfb-sgd"
product_epsilon = 2.0
product_delta = 1e-6

[model]
loss = "ls-svm"

[rows]
test_fraction = 0

[products]
rounds = 4
"""
JOB = job_from_text(TEXT)
EXACT = OrgJob(name="credit", parties=JOB.parties, labels_at=("bank",), rows=OrgRows(test_fraction=0.0))
OPEN = Policy(
    jobs=("any",), initiators=("any",), leaders=("any",), labels_for=("any",), predictions_for=("any",),
    methods=("vfb-sgd", "vfb2-saga"),
)  # fmt: skip


def policy(**changes):
    return msgspec.structs.replace(OPEN, **changes)


@pytest.mark.parametrize(
    ("line", "instead", "reason"),
    [
        ('algorithm = "vfb-sgd"', 'algorithm = "vfb2-saga"', 'works with algorithm = "vfb-sgd"'),
        ("product_delta = 1e-6", "passes = 10", "passes does not go with product_epsilon"),
        ("product_delta = 1e-6", "target = 1e-3", "Leave target out"),
        ("product_delta = 1e-6", 'secure_sum = "two-tree"', "Leave secure_sum out"),
        ("product_delta = 1e-6", 'start = "credit-1"', "Leave start out"),
        ("product_epsilon = 2.0", "", "set product_epsilon"),
        ('loss = "ls-svm"', 'loss = "logistic"', 'goes with loss = "ls-svm"'),
        ('loss = "ls-svm"', 'loss = "ls-svm"\npenalty = "nonconvex"', "the penalties 'l2' and 'none'"),
        ('labels_at = ["bank"]', 'labels_at = ["bank", "shop"]', "needs one label holder"),
        ("test_fraction = 0", "test_fraction = 0.2", "Set test_fraction = 0 under"),
        ("rounds = 4", "colluders = 3", "must be between 0 and 2 with 4 parties"),
        ("[products]", '[network]\non_loss = "continue"\n\n[products]', 'take on_loss = "wait"'),
    ],
)
def test_what_does_not_go_with_private_products_is_refused(line, instead, reason):
    with pytest.raises(BadJob) as refused:
        job_from_text(TEXT.replace(line, instead))
    assert reason in str(refused.value)


def test_a_job_without_private_products_has_the_text_that_it_always_had():
    assert "product" not in EXACT.text
    assert job_from_text(JOB.text) == JOB and "[products]" in JOB.text


@pytest.mark.parametrize(
    ("policy", "job", "reason"),
    [
        (policy(product_epsilon_most=2.0), EXACT, "wants private products, and this job's are exact"),
        (policy(product_epsilon_most=1.0), JOB, "allows private products of epsilon 1 in one run"),
        (policy(product_epsilon_most=2.0, delta=1e-9), JOB, "at its delta of 1e-09"),
        (policy(colluders_least=1), JOB, "if 1 others help whoever asks (colluders_least)"),
        (policy(colluders_least=99), JOB, "if 2 others help whoever asks"),
        (policy(passes_most=3.0), JOB, "allows 3 passes, the job wants 4"),
        (policy(epsilon=1.5), JOB, "has a privacy budget of 1.5"),
        (policy(epsilon=1.5), EXACT, "product_epsilon under [method]"),
    ],
)
def test_an_owner_demands_private_products_and_bounds_them(policy, job, reason, tmp_path):
    with pytest.raises(Refused) as refused:
        refuse_job(policy, job, "shop", "bank", PrivacyLedger(tmp_path).after)
    assert reason in str(refused.value)


def test_what_an_owner_wants_is_accepted(tmp_path):
    helped = job_from_text(TEXT.replace("rounds = 4", "rounds = 4\ncolluders = 2"))
    strict = policy(product_epsilon_most=2.0, epsilon=2.0, delta=1e-6, colluders_least=99)
    refuse_job(strict, helped, "shop", "bank", PrivacyLedger(tmp_path).after)
    assert objections(policy(product_epsilon_most=2.0), JOB, "shop", "bank") == []  # a larger delta, a smaller epsilon


def test_all_runs_are_composed_in_one_account_and_the_third_is_refused(tmp_path):
    """The epsilon of k runs is that of a Gaussian with the root of k times the shift."""
    ledger, mine = PrivacyLedger(tmp_path), policy(epsilon=3.0, delta=1e-6)
    (charge,) = charges_of(JOB, "shop", "first")
    assert charge.what == COLUMNS and charge.releases is not None
    mu = 2.0 / next(iter(charge.releases)).noise_multiplier
    assert gdp_epsilon(mu, 1e-6) == pytest.approx(2.0, rel=1e-6)
    assert gdp_epsilon(2**0.5 * mu, 1e-6) < 3.0 < gdp_epsilon(3**0.5 * mu, 1e-6)
    for run in ("first", "second"):
        refuse_job(mine, JOB, "shop", "bank", ledger.after)
        ledger.spend(charges_of(JOB, "shop", run), run, mine.epsilon, mine.delta, "shop")
    assert ledger.after([], 1e-6) == pytest.approx(gdp_epsilon(2**0.5 * mu, 1e-6), rel=1e-3)
    with pytest.raises(Refused, match="has a privacy budget of 3 at delta 1e-06 over all jobs"):
        refuse_job(mine, JOB, "shop", "bank", ledger.after)
    with pytest.raises(Refused, match="would be spent"):
        ledger.spend(charges_of(JOB, "shop", "third"), "third", mine.epsilon, mine.delta, "shop")
    assert len(ledger.history()) == 2


def test_a_label_holders_columns_are_charged_too_and_its_labels_are_bare():
    labels, columns = charges_of(JOB, "bank", "run")
    assert (labels.what, labels.releases) == (LABELS, None)
    assert columns.what == COLUMNS and columns.releases is not None
    assert [charge.releases for charge in charges_of(EXACT, "bank", "run")] == [None]


def test_a_run_never_releases_more_than_it_was_charged():
    (charge,) = charges_of(JOB, "shop")
    (charged,) = charge.releases or {}
    for rows in (100, 5_000, 200_000):
        for steps in (1, 4, 40):
            plan = ProductPlan(2.0, 1e-6, 4, rows, steps, 0.2, 0.1)
            assert plan.release().noise_multiplier >= charged.noise_multiplier


def test_a_budget_gives_no_predictions_by_a_model_of_private_products():
    for strict in (policy(epsilon=9.0), policy(product_epsilon_most=9.0)):
        with pytest.raises(Refused, match="which no budget covers"):
            refuse_prediction(strict, JOB, "shop", "bank", 1)
    with pytest.raises(Refused, match="wants private products"):
        refuse_prediction(policy(product_epsilon_most=9.0), EXACT, "shop", "bank", 1)
    refuse_prediction(OPEN, JOB, "shop", "bank", 1)


def test_whoever_submits_reads_what_is_promised_and_what_is_not():
    told = " ".join(disclosures(JOB))
    assert "(2, 1e-06)-differentially private against any one party, over the whole run" in told
    assert "4 times at most" in told and "Predictions by the model have no noise" in told
    assert "rotation" not in told and "The labels of 'bank' for all training rows are told" in told
    helped = msgspec.structs.replace(JOB, products=msgspec.structs.replace(JOB.products, colluders=2))
    assert "against any one party together with 2 others" in " ".join(disclosures(helped))


def test_noise_is_the_same_after_a_crash_and_another_for_another_share():
    """A second draw would average the first away; the same draw on two shares would show their difference."""
    plan = ProductPlan(2.0, 1e-3, 3, 50, 4, 0.2, 0.1)
    share = np.linspace(-0.05, 0.05, 50)

    def words(secret, number, given):
        return NoisyShares(plan, KeyedNoise(secret, "products")).words(number, given)

    first = words(b"a" * 32, 1, share)
    assert np.array_equal(first, words(b"a" * 32, 1, share))
    moved = words(b"a" * 32, 1, share + 2.0**-8)
    grid = np.rint((share + 2.0**-8) * 2.0**plan.fraction_bits) - np.rint(share * 2.0**plan.fraction_bits)
    assert not np.isin((moved - first).view(np.int64), grid.astype(np.int64)).any()
    for other in (words(b"b" * 32, 1, share), words(b"a" * 32, 2, share)):
        assert np.count_nonzero(first == other) == 0
