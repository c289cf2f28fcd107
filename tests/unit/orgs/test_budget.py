"""A privacy budget over jobs, labels answered at random once for ever, and noise that only its owner can repeat."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from offbeat.errors import BadJob, Refused
from offbeat.jobs.organisations import COLUMNS, LABELS, Embedding, Job, Method, job_from_text, wanted_of
from offbeat.orgs.budget import PrivacyLedger, private_labels
from offbeat.orgs.keyed_noise import KeyedNoise

JOB = Job(name="credit", parties=("bank", "shop", "telecom"), labels_at=("bank",))
SECRET = bytes(range(32))


def test_labels_of_one_epsilon_are_paid_for_once_and_columns_every_time(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path)
    for run in ("a", "b"):
        ledger.spend(LABELS, 2.0, run, 3.0, "bank")
        ledger.spend(COLUMNS, 2.0, run, 4.0, "bank")
    assert ledger.after(LABELS, 2.0) == 2.0 and ledger.after(LABELS, 0.5) == 2.5
    assert ledger.after(COLUMNS, 1.0) == 5.0
    with pytest.raises(Refused, match=r"budget of 3 for its labels; with this job 3\.5 would be spent"):
        ledger.spend(LABELS, 1.5, "c", 3.0, "bank")
    ledger.spend(COLUMNS, 2.0, "b", 4.0, "bank")  # the same run again, after a restart
    assert PrivacyLedger(tmp_path).history() == ledger.history() and len(ledger.history()) == 4


def test_the_secret_of_the_answers_stays_and_is_the_owners_alone(tmp_path: Path) -> None:
    secret = PrivacyLedger(tmp_path).secret()
    assert secret == PrivacyLedger(tmp_path).secret() and len(secret) == 32
    assert (tmp_path / "labels.secret").stat().st_mode & 0o077 == 0


def test_an_id_has_the_same_answer_in_every_order_and_job() -> None:
    y = np.where(np.arange(2000) % 3 == 0, 1.0, -1.0)
    ids = [f"c{i}" for i in range(2000)]
    answers = private_labels(y, ids, 1.0, SECRET)
    order = np.random.default_rng(0).permutation(2000)
    assert np.array_equal(private_labels(y[order], [ids[i] for i in order], 1.0, SECRET), answers[order])
    assert not np.array_equal(private_labels(y, ids, 1.0, bytes(32)), answers)
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
    assert wanted_of(JOB, "bank") == (LABELS, None) and wanted_of(JOB, "shop") == (COLUMNS, None)
    private = msgspec.structs.replace(JOB, method=Method(label_dp_epsilon=2.0))
    assert wanted_of(private, "bank") == (LABELS, 2.0)
    vafl = msgspec.structs.replace(
        JOB, method=Method(algorithm="vafl"), embedding=Embedding(epsilon=3.0, uploads_max=5)
    )
    assert wanted_of(vafl, "shop") == (COLUMNS, 3.0)


@pytest.mark.parametrize(
    ("method", "more", "reason"),
    [
        ('label_dp_epsilon = 1.0\nalgorithm = "vfb2-svrg"', 'labels_at = ["bank", "shop"]', "one label holder"),
        ('algorithm = "vafl"', 'labels_at = ["bank", "shop"]', "its server"),
        ('algorithm = "vafl"\n[model]\nloss = "squared-hinge"', 'labels_at = ["bank"]', "'logistic' and 'squared'"),
        ('algorithm = "vafl"\n[embedding]\nepsilon = 1.0', 'labels_at = ["bank"]', "uploads_max"),
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
