"""A privacy budget over jobs, labels answered at random once for ever, and noise that only its owner can repeat."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from offbeat.errors import BadJob, Refused
from offbeat.jobs.organisations import OrgEmbedding, OrgJob, OrgMethod, job_from_text
from offbeat.orgs.budget import COLUMNS, LABELS, Charge, PrivacyLedger, charges_of, label_digest, private_labels
from offbeat.orgs.keyed_noise import KeyedNoise
from offbeat.privacy.accountant import GaussianRelease, PureRelease, epsilon

JOB = OrgJob(name="credit", parties=("bank", "shop", "telecom"), labels_at=("bank",))
SECRET = bytes(range(32))


def labels(epsilon: float, key: str = "labels") -> list[Charge]:
    return [Charge(LABELS, {PureRelease(epsilon): 1}, key)]


def columns(run: str, noise: float = 2.0) -> list[Charge]:
    return [Charge(COLUMNS, {GaussianRelease(noise): 3}, f"columns {run}")]


def test_labels_are_paid_for_once_columns_every_time_and_all_of_it_from_one_account(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path)
    for run in ("a", "b"):
        ledger.spend(labels(2.0), run, 3.0, 1e-5, "bank")
        ledger.spend(columns(run), run, None, 1e-5, "bank")
    both = {PureRelease(2.0): 1, GaussianRelease(2.0): 6}
    assert ledger.after([], 1e-5) == epsilon(both, 1e-5) > epsilon({GaussianRelease(2.0): 6}, 1e-5)
    assert ledger.after(columns("c"), 1e-5) == epsilon({**both, GaussianRelease(2.0): 9}, 1e-5)
    with pytest.raises(Refused, match=r"'bank' has a privacy budget of 3 at delta 1e-05 over all jobs, and with this"):
        ledger.spend(columns("c"), "c", 3.0, 1e-5, "bank")
    ledger.spend(columns("b"), "b", 3.0, 1e-5, "bank")  # the same run again, after a restart
    assert PrivacyLedger(tmp_path).history() == ledger.history() and len(ledger.history()) == 3


def test_pure_epsilons_add_up_and_a_column_that_is_not_known_yet_counts_as_paid(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path)
    ledger.spend(labels(2.0, "labels 2.0 'paid' digest"), "a", 3.0, 1e-5, "bank")
    assert ledger.after(labels(2.0, "labels 2.0"), 1e-5) == pytest.approx(2.0, abs=1e-4)
    assert ledger.after(labels(0.5, "labels 0.5"), 1e-5) == pytest.approx(2.5, abs=1e-4)
    with pytest.raises(Refused, match="with this job 4 would be spent"):
        ledger.spend(labels(2.0, "labels 2.0 'paid' other digest"), "b", 3.0, 1e-5, "bank")
    (tmp_path / "privacy.jsonl").open("a").write('{"what": "labels", "run": "old", "epsilon": 0.5}\n')
    assert ledger.after([], 1e-5) == pytest.approx(2.5, abs=1e-4), "lines of an earlier version count"


def test_the_secret_of_the_answers_stays_and_is_the_owners_alone(tmp_path: Path) -> None:
    secret = PrivacyLedger(tmp_path).secret()
    assert secret == PrivacyLedger(tmp_path).secret() and len(secret) == 32
    assert (tmp_path / "labels.secret").stat().st_mode & 0o077 == 0


def test_an_id_has_the_same_answer_in_every_order_and_job() -> None:
    y = np.where(np.arange(2000) % 3 == 0, 1.0, -1.0)
    ids = [f"c{i}" for i in range(2000)]
    answers = private_labels(y, ids, 1.0, SECRET, "column")
    order = np.random.default_rng(0).permutation(2000)
    assert np.array_equal(private_labels(y[order], [ids[i] for i in order], 1.0, SECRET, "column"), answers[order])
    assert not np.array_equal(private_labels(y, ids, 1.0, bytes(32), "column"), answers)
    kept = np.mean((answers > 0.5) == (y > 0))
    assert abs(kept - np.e / (np.e + 1)) < 0.03, "randomised response keeps so many"
    assert abs(answers.mean() - (y > 0).mean()) < 0.06, "and is de-biased"


def test_noise_is_the_same_for_its_owner_and_for_nobody_else() -> None:
    one, again = KeyedNoise(SECRET, "embedding"), KeyedNoise(SECRET, "embedding")
    drawn = one.stream(3, b"whole numbers").words(5000)
    assert np.array_equal(drawn, again.stream(3, b"whole numbers").words(5000)) and not one.seeded
    others = [
        one.stream(4, b"whole numbers"),
        one.stream(3, b"other numbers"),
        KeyedNoise(SECRET, "gradient").stream(3, b"whole numbers"),
        KeyedNoise(bytes(32), "embedding").stream(3, b"whole numbers"),
    ]
    assert all(np.count_nonzero(other.words(5000) == drawn) == 0 for other in others)


def test_what_a_job_takes_of_a_party() -> None:
    assert [(c.what, c.releases) for c in charges_of(JOB, "bank")] == [(LABELS, None)]
    assert [(c.what, c.releases) for c in charges_of(JOB, "shop")] == [(COLUMNS, None)]
    private = msgspec.structs.replace(JOB, method=OrgMethod(label_dp_epsilon=2.0))
    assert charges_of(private, "bank", "run", "paid", "digest") == [
        Charge(LABELS, {PureRelease(2.0): 1}, "labels 2.0 'paid' digest")
    ]
    vafl = msgspec.structs.replace(
        JOB,
        method=OrgMethod(algorithm="vafl", label_dp_epsilon=2.0),
        embedding=OrgEmbedding(epsilon=3.0, uploads_max=5),
    )
    (shop,) = charges_of(vafl, "shop", "run")
    assert shop.what == COLUMNS and shop.releases and epsilon(shop.releases, 1e-5) == pytest.approx(3.0)
    assert [charge.what for charge in charges_of(vafl, "bank")] == [LABELS, COLUMNS], "its scores are of its columns"
    (once,) = charges_of(msgspec.structs.replace(vafl, embedding=OrgEmbedding(epsilon=3.0)), "shop", "run")
    assert once.releases and epsilon(once.releases, 1e-5) == pytest.approx(3.0)
    assert sorted(once.releases.values()) == [1, 1, 2], "a step, a covariance, an upload and one for the score"


def test_a_column_is_known_by_its_labels_whatever_the_order_of_its_rows() -> None:
    one = label_digest("paid", ["a", "b"], [1, 0])
    assert one == label_digest("paid", ["b", "a"], [0, 1]) and len(one) == 64
    others = [("paid", ["a", "b"], [1, 1]), ("left", ["a", "b"], [1, 0]), ("paid", ["a", "c"], [1, 0])]
    assert one not in [label_digest(*other) for other in others]


@pytest.mark.parametrize(
    ("method", "more", "reason"),
    [
        ('label_dp_epsilon = 1.0\nalgorithm = "vfb2-svrg"', 'labels_at = ["bank", "shop"]', "one label holder"),
        ('algorithm = "vafl"', 'labels_at = ["bank", "shop"]', "its server"),
        ('algorithm = "vafl"\n[model]\nloss = "squared-hinge"', 'labels_at = ["bank"]', "'logistic' and 'squared'"),
        ('algorithm = "vafl"\n[embedding]\nkind = "mlp"\nepsilon = 1.0', 'labels_at = ["bank"]', "uploads_max"),
        (
            'algorithm = "vafl"\n[embedding]\nkind = "mlp"\nepsilon = 1.0\nuploads_max = 1',
            'labels_at = ["bank"]',
            "nothing would be trained",
        ),
        ('label_dp_epsilon = 1.0\n[model]\nloss = "squared-hinge"', 'labels_at = ["bank"]', "logistic loss"),
    ],
)
def test_what_does_not_go_together_is_refused(method: str, more: str, reason: str) -> None:
    text = f'name = "credit"\nparties = ["bank", "shop", "telecom"]\n{more}\n[method]\n{method}\n'
    with pytest.raises(BadJob, match=reason):
        job_from_text(text)
