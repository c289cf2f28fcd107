"""A curious initiator against label privacy and budgets: what the metrics, the answers and the accounts give it."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from offbeat.data.holdout import held_out
from offbeat.errors import BadData, BadJob, Refused
from offbeat.estimators import VerticalClassifier
from offbeat.jobs.organisations import OrgJob, OrgMethod, OrgRows, job_from_text
from offbeat.learning.scores import accuracy, answered_metrics
from offbeat.orgs.budget import PrivacyLedger, charges_of, label_digest, private_labels
from offbeat.orgs.disclosure import disclosures
from offbeat.orgs.party_config import Home, example, read_home
from offbeat.orgs.policy import Policy, objections, refuse_job, refuse_prediction, refuse_test_rows
from offbeat.orgs.rows import digest_of_labels, load_table, own_rows, rows_to_test

IDS = np.array([f"C{i}" for i in range(2000)])
COIN = b"tossed by all parties".ljust(32)
TRUTH = np.where(np.random.default_rng(0).random(2000) < 0.3, 1.0, -1.0)
JOB = OrgJob(name="x", parties=("bank", "shop", "tel"), labels_at=("bank",), method=OrgMethod(label_dp_epsilon=0.1))
TARGET = 1234


def fraction(job: OrgJob, share: float) -> OrgJob:
    return msgspec.structs.replace(job, rows=OrgRows(test_fraction=share))


def bank(folder: Path, labels: list[int], column: str = "paid") -> Home:
    (folder / "party.toml").write_text(example("bank", label=column))
    rows = "\n".join(f"C{i},{i % 7},{label}" for i, label in enumerate(labels))
    (folder / "bank.csv").write_text(f"id,x,{column}\n{rows}\n")
    return read_home(folder)


# -- the test set ----------------------------------------------------------------------------------------------------


def test_no_job_chooses_a_test_set_of_one_person() -> None:
    """Before: some seed of the job held out exactly the person wanted, and the accuracy was its label."""
    alone = next(s for s in range(20_000) if np.flatnonzero(held_out(IDS, seed=s, rows=1)).tolist() == [TARGET])
    assert accuracy(np.array([0.7]), TRUTH[[TARGET]]) == (TRUTH[TARGET] > 0), "the attack as it was"
    with pytest.raises(BadJob, match=r"rows\.test_seed is gone"):
        job_from_text(f'name="x"\nparties=["a","b","c"]\nlabels_at=["a"]\n[rows]\ntest_seed={alone}\n')
    assert np.array_equal(rows_to_test(fraction(JOB, 0.2), IDS, COIN), rows_to_test(fraction(JOB, 0.2), IDS, COIN))
    with pytest.raises(Refused, match="'bank' refuses the test set: it has 1 rows"):
        refuse_test_rows(Policy(), "bank", int(rows_to_test(fraction(JOB, 1 / 2000), IDS, COIN).sum()))


def test_two_test_sets_that_differ_by_one_person_are_not_to_be_had() -> None:
    """Tried: fractions of 0.2 and 0.2 + 1/n. Test sets were nested: the difference of two accuracies was one label."""
    sets = [rows_to_test(fraction(JOB, 0.2 + more / 2000), IDS, COIN) for more in range(40)]
    apart = [int((one ^ other).sum()) for one in sets for other in sets if one is not other]
    assert min(apart) > 500 and int(sets[1].sum()) == int(sets[0].sum()) + 1


def test_metrics_under_label_privacy_are_made_of_answers(tmp_path: Path) -> None:
    """Before: the test metrics were computed from the true labels, outside any budget."""
    truth = [int(value) for value in (TRUTH[:400] > 0)]
    home = bank(tmp_path, truth)
    table = load_table(home)
    own = own_rows(home, table, fraction(JOB, 0.5), np.arange(400), [i.to_bytes(16, "big") for i in range(400)])
    assert own.y_test is not None and own.y_train is not None
    assert len(set(own.y_test.tolist())) == len({*own.y_test.tolist(), *own.y_train.tolist()}) == 2
    flipped = np.array([truth[int.from_bytes(token, "big")] for token in own.tokens_test]) != (own.y_test > 0.5)
    assert 0.3 < flipped.mean() < 0.65, "at epsilon 0.1 nearly every other answer is wrong"
    found = answered_metrics(np.where(own.y_test > 0.5, 1.0, -1.0), own.y_test)
    assert set(found) == {"test_auc", "test_accuracy"} and 0 <= found["test_accuracy"] <= 1
    assert np.isnan(found["test_auc"]) or 0 <= found["test_auc"] <= 1  # so few answers may not show both classes


# -- answers ---------------------------------------------------------------------------------------------------------


def test_answers_of_two_columns_say_nothing_about_where_they_differ() -> None:
    """Before: the same draws for both, so that the XOR of answers was the XOR of labels, charged nothing."""
    secret, other = os.urandom(32), np.where(np.random.default_rng(1).random(2000) < 0.3, 1.0, -1.0)
    answers = [
        private_labels(y, IDS.tolist(), 0.1, secret, label_digest(column, IDS.tolist(), y.tolist())) > 0.5
        for column, y in (("paid", TRUTH), ("left", other))
    ]
    agree = np.mean((answers[0] ^ answers[1]) == ((TRUTH > 0) ^ (other > 0)))
    assert abs(agree - 0.5) < 0.06


def test_a_label_that_changes_is_not_found_by_comparing_answers(tmp_path: Path) -> None:
    """Tried: submit the job again after the owner has corrected one label; the answer that moved was that label's."""
    labels = [int(value) for value in (TRUTH[:300] > 0)]
    answers, digests = [], []
    for changed in (False, True):
        labels[7] ^= changed
        home = bank(tmp_path, labels)
        table = load_table(home)
        own = own_rows(home, table, fraction(JOB, 0.0), np.arange(300), [i.to_bytes(16, "big") for i in range(300)])
        assert own.y_train is not None
        answers.append(own.y_train)
        digests.append(digest_of_labels(home, table))
    assert digests[0] != digests[1] and np.count_nonzero(answers[0] != answers[1]) > 100
    ledger = PrivacyLedger(tmp_path / "ledger")
    for digest in digests:
        ledger.spend(charges_of(JOB, "bank", "run", "paid", digest), "run", 1.0, 1e-5, "bank")
    assert ledger.after([], 1e-5) == pytest.approx(0.2, abs=1e-3), "new draws are charged"


# -- budgets ---------------------------------------------------------------------------------------------------------

VAFL = 'name="x"\nparties=["bank","shop","tel"]\nlabels_at=["bank"]\n[method]\nalgorithm="vafl"\n[embedding]\n'
OPEN = Policy(jobs=("any",), initiators=("any",), leaders=("any",), methods=("vafl",), epsilon=1.0)


def test_a_delta_of_the_jobs_choice_buys_nothing(tmp_path: Path) -> None:
    """Before: epsilon 0.01 at delta 0.999999 passed a policy of epsilon 1, with next to no noise."""
    job = job_from_text(VAFL + "epsilon=0.01\ndelta=0.999999\nuploads_max=1000000\n")
    with pytest.raises(Refused, match=r"budget of 1 at delta 1e-05 over all jobs, and with this job 88\.\d+ would"):
        refuse_job(OPEN, job, "shop", "bank", PrivacyLedger(tmp_path).after)
    fine = job_from_text(VAFL + "epsilon=0.9\ndelta=1e-5\nuploads_max=10\n")
    refuse_job(OPEN, fine, "shop", "bank", PrivacyLedger(tmp_path).after)


@pytest.mark.parametrize("left", [b"", b"first\n"])
def test_an_account_that_was_set_back_spends_nothing_anew(tmp_path: Path, left: bytes) -> None:
    """Before: without `privacy.jsonl`, or with the copy of a backup, the whole budget, or what was spent since, was
    there again."""
    job, file = job_from_text(VAFL + "epsilon=0.4\nuploads_max=3\n"), tmp_path / "privacy.jsonl"
    PrivacyLedger(tmp_path).spend(charges_of(job, "shop", "one"), "one", 1.0, 1e-5, "shop")
    first = file.read_bytes()
    PrivacyLedger(tmp_path).spend(charges_of(job, "shop", "two"), "two", 1.0, 1e-5, "shop")
    file.write_bytes(first if left else b"")
    for ledger in (PrivacyLedger(tmp_path), PrivacyLedger(tmp_path)):
        with pytest.raises(BadData, match=r"privacy\.jsonl has lost [12] of 2 charges"):
            ledger.after([], 1e-5)
        with pytest.raises(BadData, match="an older copy was put back"):
            ledger.spend(charges_of(job, "shop", "three"), "three", 1.0, 1e-5, "shop")


def test_many_small_jobs_do_not_add_up_to_more_than_the_budget(tmp_path: Path) -> None:
    """Tried: jobs that each fit, from two threads' worth of daemons over one home."""
    job, spent = job_from_text(VAFL + "epsilon=0.3\nuploads_max=3\n"), 0
    for number in range(30):
        ledger = PrivacyLedger(tmp_path)
        try:
            ledger.spend(charges_of(job, "shop", f"run {number}"), f"run {number}", 1.0, 1e-5, "shop")
            spent += 1
        except Refused:
            assert ledger.after(charges_of(job, "shop", "more"), 1e-5) > 1.0
    assert 5 < spent < 15 and PrivacyLedger(tmp_path).after([], 1e-5) <= 1.0, (
        "Gaussian releases compose: nine, not three"
    )


def test_a_budget_stops_predictions_by_models_that_were_trained_before_it() -> None:
    """Tried: train without noise while there is no budget, and ask for scores when there is one. They were given, and
    charged to nobody."""
    bare, private = (
        job_from_text('name="x"\nparties=["bank","shop","tel"]\nlabels_at=["bank"]\n'),
        job_from_text(VAFL + "epsilon=0.9\ndelta=1e-5\nuploads_max=10\n"),
    )
    open_, budget = Policy(predictions_for=("any",)), Policy(predictions_for=("any",), epsilon=1.0)
    refuse_prediction(open_, bare, "shop", "bank", 10)
    for holder, what in (("shop", "columns"), ("bank", "labels")):
        with pytest.raises(Refused, match=f"privacy budget of 1, and .* add no noise to its {what}"):
            refuse_prediction(budget, bare, holder, "tel", 10)
    refuse_prediction(budget, bare, "shop", "shop", 10)  # its own question tells nobody else
    refuse_prediction(budget, private, "shop", "tel", 10)  # one noisy score of each record is in the account


def test_a_run_that_is_killed_and_begun_again_is_charged_once_and_a_failed_one_stays_charged(tmp_path: Path) -> None:
    job = job_from_text(VAFL + "epsilon=0.8\nuploads_max=3\n")
    for _ in range(3):
        PrivacyLedger(tmp_path).spend(charges_of(job, "shop", "run"), "run", 1.0, 1e-5, "shop")
    with pytest.raises(Refused, match="would be spent"):
        PrivacyLedger(tmp_path).spend(charges_of(job, "shop", "next"), "next", 1.0, 1e-5, "shop")


# -- who may learn labels ----------------------------------------------------------------------------------------------

NOBODY = Policy(jobs=("any",), initiators=("tel",), leaders=("any",))


@pytest.mark.parametrize("holders", [("bank", "tel"), ("tel", "bank", "shop"), ("bank", "shop", "tel")])
def test_whoever_says_that_it_has_labels_too_is_told_those_of_others(holders: tuple[str, ...]) -> None:
    """Before: a proposal that listed everybody under labels_at passed a policy whose labels_for names nobody, and the
    bank's derivatives, whose signs are its labels, went to whoever had made a column up."""
    job = msgspec.structs.replace(JOB, labels_at=holders, method=OrgMethod())
    assert objections(NOBODY, job, "bank", "tel") == [
        "its policy does not let 'shop', 'tel' learn its labels (labels_for)"
    ]
    named = msgspec.structs.replace(NOBODY, labels_for=("shop", "tel"))
    assert objections(named, job, "bank", "tel") == []
    assert any("labels of 'bank'" in told and "'tel'" in told for told in disclosures(job))


def test_answers_that_keep_every_label_do_not_pass_for_hidden_labels() -> None:
    """Before: label_dp_epsilon = 100 (or many jobs at 2.0, 2.01, ...) passed a policy that lets nobody learn its labels
    and keeps no budget. At 100 not one of 2,000 labels is another."""
    kept = private_labels(TRUTH, IDS.tolist(), 100.0, bytes(32), "digest")
    assert np.array_equal(np.sign(kept - 0.5), TRUTH), "the attack as it was"
    for epsilon in (2.0, 100.0):
        job = msgspec.structs.replace(JOB, method=OrgMethod(label_dp_epsilon=epsilon))
        (reason,) = objections(NOBODY, job, "bank", "tel")
        assert "'shop', 'tel' learn its labels (labels_for), and without a privacy budget (epsilon)" in reason
    budget = msgspec.structs.replace(NOBODY, epsilon=4.0)
    assert objections(budget, job, "bank", "tel") == []
    with pytest.raises(Refused, match="budget of 4 at delta 1e-05"):
        refuse_job(budget, job, "bank", "tel", lambda charges, delta: 100.0)


def test_a_run_that_fails_does_not_tell_that_all_labels_are_the_same(tmp_path: Path) -> None:
    """Before: the leader brought 99 people whose label it knew, and one more. The run failed at the label holder,
    before anything was charged, if that one had the same label, and went on if not."""
    known = [0] * 99
    for label in (0, 1):
        home = bank(tmp_path, [*known, label, *(int(value) for value in (TRUTH[:300] > 0))])
        own = own_rows(
            home, load_table(home), fraction(JOB, 0.0), np.arange(100), [bytes([i]) * 16 for i in range(100)]
        )
        assert own.y_train is not None and len(own.y_train) == 100 and len(set(own.y_train.tolist())) == 2
        assert own.classes == (0, 1)
    plain = msgspec.structs.replace(JOB, method=OrgMethod())
    home = bank(tmp_path, [*known, 0, *(int(value) for value in (TRUTH[:300] > 0))])
    with pytest.raises(BadData, match="needs two classes or more"):  # without answers nothing is promised
        own_rows(home, load_table(home), fraction(plain, 0.0), np.arange(100), [bytes([i]) * 16 for i in range(100)])


# -- round the answers -----------------------------------------------------------------------------------------------


def test_weights_of_rows_do_not_tell_the_labels_that_answers_hide(tmp_path: Path) -> None:
    """Tried: a column of weights that balances the classes, beside label_dp_epsilon. Derivatives and curvatures tell
    every party the weight of each row, so the label, whatever the answer was."""
    truth = [int(value) for value in (TRUTH[:400] > 0)]
    rows, share = np.arange(400), float(np.mean(truth))
    (tmp_path / "party.toml").write_text(
        example("bank", label="paid").replace('label = "paid"', 'label = "paid"\nweight = "w"')
    )
    lines = "\n".join(f"C{i},{i % 7},{0.5 / (share if y else 1 - share)},{y}" for i, y in enumerate(truth))
    (tmp_path / "bank.csv").write_text(f"id,x,w,paid\n{lines}\n")
    home, tokens = read_home(tmp_path), [i.to_bytes(16, "big") for i in range(400)]
    plain = msgspec.structs.replace(JOB, method=OrgMethod())
    weights = own_rows(home, load_table(home), fraction(plain, 0.0), rows, tokens).weights
    assert ((weights > 1) == (np.array(truth) == 1)).all(), "what every party would read"
    with pytest.raises(BadJob, match="labels that are not answered at random"):
        own_rows(home, load_table(home), fraction(JOB, 0.0), rows, tokens)


def test_balanced_classes_do_not_tell_the_labels_that_answers_hide_in_one_place() -> None:
    rng = np.random.default_rng(0)
    blocks = {name: rng.standard_normal((200, 2)) for name in ("bank", "shop", "tel")}
    model = VerticalClassifier(labels_at=["bank"], class_weight="balanced", label_dp_epsilon=0.1)
    with pytest.raises(BadJob, match="class_weight follows from the labels"):
        model.fit(blocks, TRUTH[:200])


def test_a_lost_secret_does_not_answer_labels_anew_at_the_old_price(tmp_path: Path) -> None:
    """Tried: restore the ledger without `labels.secret`. New answers were drawn, and the account had them as paid."""
    ledger, digest = PrivacyLedger(tmp_path), label_digest("paid", IDS.tolist(), TRUTH.tolist())
    before = private_labels(TRUTH, IDS.tolist(), 0.1, ledger.secret(), digest)
    (tmp_path / "labels.secret").unlink()  # nothing is charged yet: nobody has seen an answer
    secret = ledger.secret()
    assert np.count_nonzero(private_labels(TRUTH, IDS.tolist(), 0.1, secret, digest) != before) > 500
    ledger.spend(charges_of(JOB, "bank", "run", "paid", digest), "run", 1.0, 1e-5, "bank")
    (tmp_path / "labels.secret").unlink()
    with pytest.raises(BadData, match=r"labels\.secret is gone, and labels were answered with it"):
        ledger.secret()


def test_who_wants_private_products_gives_no_exact_ones_by_an_older_model() -> None:
    """Tried: train before the owner sets product_epsilon_most, and ask for scores afterwards: exact products."""
    exact = job_from_text('name="x"\nparties=["bank","shop","tel"]\nlabels_at=["bank"]\n')
    open_ = Policy(predictions_for=("any",))
    refuse_prediction(open_, exact, "shop", "bank", 10)
    wants = msgspec.structs.replace(open_, product_epsilon_most=3.0)
    with pytest.raises(Refused, match=r"wants private products .* a score is a row's product without noise"):
        refuse_prediction(wants, exact, "shop", "bank", 10)
    refuse_prediction(wants, exact, "shop", "shop", 10)  # its own share stays with it


@pytest.mark.parametrize(("epsilon", "delta"), [("1e308", "1e-5"), ("1e-300", "1e-300"), ("1.0", "5e-324")])
def test_a_budget_that_nobody_can_compute_is_a_wrong_job(epsilon: str, delta: str) -> None:
    """Tried: the search for the noise of such a budget ended with an error of a library, in every owner's log."""
    with pytest.raises(BadJob, match=r"embedding\.(epsilon|delta)"):
        job_from_text(VAFL + f"epsilon={epsilon}\ndelta={delta}\nuploads_max=10\n")
    for edge in ("epsilon=1e6\ndelta=1e-100\n", "epsilon=1e-6\ndelta=1e-100\n", "epsilon=1e-6\ndelta=0.999\n"):
        assert charges_of(job_from_text(VAFL + edge + "uploads_max=9223372036854775807\n"), "shop", "run")[0].releases


def test_a_job_that_has_links_beat_without_end_is_a_wrong_job() -> None:
    """Tried: loss_s = 1e-9. Every party wrote a sign of life on every link as fast as it could."""
    with pytest.raises(BadJob, match=r"network\.loss_s"):
        job_from_text('name="x"\nparties=["a","b","c"]\nlabels_at=["a"]\n[network]\nloss_s=1e-9\n')
