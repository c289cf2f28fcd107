"""What an owner allows, and how settings are read: every refusal says why."""

from pathlib import Path

import msgspec
import pytest

from offbeat import VerticalClassifier, VerticalRegressor
from offbeat.errors import BadInput, BadJob, Refused
from offbeat.jobs.organisations import OrgJob, OrgMethod, OrgModel, OrgNetwork, job_from_text
from offbeat.jobs.vertical import Job
from offbeat.orgs.disclosure import disclosures
from offbeat.orgs.party_config import example, read_home
from offbeat.orgs.policy import (
    Policy,
    objections,
    refuse_job,
    refuse_prediction,
    refuse_rows,
    refuse_sizes,
    refuse_test_rows,
)
from offbeat.orgs.preflight import check_home
from offbeat.orgs.train import sums_of, vertical_of
from offbeat.party.masked_sum import SumOptions
from offbeat.runtime.grpc.identity import Member, PinnedRoster, new_identity, write_private, write_roster

JOB = OrgJob(name="credit", parties=("bank", "shop", "telecom"), labels_at=("bank",))
OPEN = Policy(jobs=("any",), initiators=("any",), leaders=("any",), labels_for=("any",), predictions_for=("any",))

WITHOUT_SOMEBODY = msgspec.structs.replace(JOB, network=OrgNetwork(on_loss="continue"))


def policy(**changes: object) -> Policy:
    return msgspec.structs.replace(OPEN, **changes)


@pytest.mark.parametrize(
    ("policy", "job", "reason"),
    [
        (policy(jobs=("other",)), JOB, "allows the jobs 'other'"),
        (policy(initiators=("telecom",)), JOB, "lets 'telecom' propose"),
        (policy(initiators=()), JOB, "lets nobody propose"),
        (policy(peers=("bank",)), JOB, "not allow work with 'telecom'"),
        (policy(methods=("vfb2-svrg",)), JOB, "not 'vfb2-saga'"),
        (policy(secure_sum=("two-tree",)), JOB, "not 'pairwise'"),
        (OPEN, msgspec.structs.replace(JOB, method=OrgMethod(secure_sum="two-tree")), "'pairwise', not 'two-tree'"),
        (policy(parties_least=4), JOB, "at least 4 parties, the job has 3"),
        (OPEN, WITHOUT_SOMEBODY, "allows on_loss 'wait', 'stop', not 'continue'"),
        (policy(passes_most=10), JOB, "allows 10 passes, the job wants 60"),
        (policy(derivatives=False), JOB, "would tell it their labels"),
        (policy(leaders=("telecom",)), JOB, "lets 'telecom' lead the matching of ids, not 'bank'"),
        (policy(epsilon=1.0), JOB, "adds no noise"),
    ],
)
def test_each_bound_of_a_policy_refuses_with_its_reason(policy: Policy, job: OrgJob, reason: str) -> None:
    with pytest.raises(Refused, match="'shop' refuses the job 'credit' of 'bank'") as refused:
        refuse_job(policy, job, "shop", "bank", lambda charges, delta: 0.0)
    assert reason in str(refused.value)
    assert refused.value.exit_code == 4


def test_a_label_holder_names_those_who_may_learn_its_labels() -> None:
    told = "its policy does not let 'telecom' learn its labels (labels_for)"
    assert objections(policy(labels_for=("shop",)), JOB, "bank", "shop") == [told]
    assert objections(policy(labels_for=()), JOB, "shop", "bank") == []
    private = msgspec.structs.replace(JOB, method=OrgMethod(label_dp_epsilon=1.0))
    assert objections(policy(labels_for=(), epsilon=2.0), private, "bank", "shop") == []


def test_the_default_policy_gives_nothing_to_anybody_and_names_all_objections_at_once() -> None:
    reasons = objections(Policy(), JOB, "shop", "bank")
    assert [reason.split(" ")[2] for reason in reasons] == ["allows", "lets", "lets"]
    assert "learn its labels" in objections(Policy(), JOB, "bank", "bank")[-1]
    assert objections(OPEN, JOB, "shop", "bank") == []
    assert len(objections(policy(jobs=(), peers=(), methods=()), JOB, "shop", "bank")) == 3
    assert objections(OPEN, JOB, "stranger", "bank") == ["'stranger' is not one of its parties"]
    with pytest.raises(Refused, match="gives predictions to nobody"):
        refuse_prediction(Policy(), JOB, "shop", "bank", 1)


def test_a_party_that_brings_very_many_ids_is_refused() -> None:
    refuse_sizes(policy(ids_ratio_most=10.0), "shop", {"shop": 200, "bank": 2000})
    with pytest.raises(Refused, match="'shop' has 200 ids and 'bank' brings 2001; its policy allows 10 times"):
        refuse_sizes(policy(ids_ratio_most=10.0), "shop", {"shop": 200, "bank": 2001})


def test_nobody_moves_alone_between_organisations() -> None:
    two = OrgJob(name="credit", parties=("bank", "shop"), labels_at=("bank",))
    assert sums_of(JOB, 3).in_step and not sums_of(two).in_step
    apart = job_from_text(
        'name = "credit"\nparties = ["bank", "shop", "tel"]\nlabels_at = ["bank"]\n[network]\nin_step = false\n'
    )
    (reason,) = objections(OPEN, apart, "shop", "bank")
    assert "wants shares in step (in_step), and this job waits for no slow party" in reason
    assert objections(policy(in_step=False), apart, "shop", "bank") == [] and not sums_of(apart, 3).in_step
    assert any("can tell parties' shares apart" in told for told in disclosures(apart))
    assert not any("shares apart" in told for told in disclosures(JOB))


def test_tiny_intersections_and_foreign_predictions_are_refused() -> None:
    refuse_rows(Policy(rows_least=3), "shop", 3)
    with pytest.raises(Refused, match="2 training rows are shared"):
        refuse_rows(Policy(rows_least=3), "shop", 2)
    refuse_prediction(Policy(predictions_for=("bank",)), JOB, "shop", "bank", 10)
    with pytest.raises(Refused, match="to 'bank', not to 'telecom'"):
        refuse_prediction(Policy(predictions_for=("bank",)), JOB, "shop", "telecom", 10)
    with pytest.raises(Refused, match="at most 5 rows"):
        refuse_prediction(policy(prediction_rows_most=5), JOB, "shop", "bank", 6)


def test_a_test_set_of_few_rows_is_refused_and_none_is_fine() -> None:
    for rows in (0, 25, 26):
        refuse_test_rows(Policy(), "bank", rows)
    for rows in (1, 24):
        with pytest.raises(Refused, match=f"'bank' refuses the test set: it has {rows} rows"):
            refuse_test_rows(Policy(), "bank", rows)


def test_owners_agree_to_passes_and_not_to_seconds() -> None:
    """In one place a run of few rows goes on for some seconds; owners have said yes to a number of passes."""
    method = OrgMethod(target=1e-9)
    assert Job(target=method.target, passes=method.passes).seconds_least == 20.0
    assert vertical_of(msgspec.structs.replace(JOB, method=method)).seconds_least == 0.0


def test_a_job_comes_back_from_its_own_text_with_the_same_digest() -> None:
    job = msgspec.structs.replace(JOB, method=OrgMethod(target=1e-9, batch=32), model=OrgModel(strength=0.25))
    assert job_from_text(job.text) == job
    assert job_from_text(job.text).digest == job.digest != JOB.digest


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("labels_at = ['nobody']", "one or more of"),
        ("labels_at = []", "one or more of"),
        ("parties = ['bank']", "at least two"),
        ("parties = ['bank', 'shop']", "no sum hides"),
        ("parties = ['bank', 'Shop', 'x']", "cannot be a party's name"),
        ("extra = 1", "unknown key 'extra' at the top level"),
        ("name = 3", "name must be a name of letters a to z, digits, - and _"),
        ("[method]\nalgorithm = 'vfb2-svgr'", "vfb2-svrg"),
        ("[method]\npasses = -1", "method.passes must be a finite number above 0; got -1"),
        ("[method]\nin_flight = 1000000", "method.in_flight must be a whole number between 1 and 1024"),
        ("[method]\nlabel_dp_epsilon = 2000.0", "method.label_dp_epsilon must be a number between 1e-06 and 100"),
        ("[method]\nstep = inf", "method.step must be a finite number"),
        ('[method]\ntarget = "small"', "method.target must be a finite number above 0; got 'small'"),
        ("[method]\nstepp = 1", "unknown key 'stepp' under [method]. Did you mean 'step'"),
        ("[method]\nalgorithm = 'afsvrg-vp'", "labels at every party"),
        ("[rows]\ntest_seed = 3", "rows.test_seed is gone"),
        ("[model]\nloss = 'squared'", "does not go with"),
        ("[model]\npenalty = 'none'", "strength = 0"),
        ("[model]\nloss = 'softmax'", "loss = 'softmax' and classes = N go together"),
        ("[model]\nclasses = 3", "only label holders can count them. Got loss 'logistic' and classes 3"),
        ("[model]\ntask = 'regression'\nloss = 'huber'", "needs huber_delta: how far from its label"),
        ("[model]\nhuber_delta = 1.0", 'huber_delta is for loss = "huber"'),
        ("[model]\nl1_ratio = 0.5\npenalty = 'nonconvex'", "mixes absolute values into the penalty 'l2'"),
        ("[model]\ntask = 'regression'\nloss = 'poisson'\nl1_ratio = 0.5", "grows without bound"),
        ("[model]\ntask = 'regression'\nloss = 'gamma'\n[method]\nalgorithm = 'vfb2-sgd'", "svrg or saga"),
        ("[model]\nstrength = 'auto'", "`offbeat job path"),
        ("[model]\nl1_ratio = 0.5\n[method]\nalgorithm = 'vafl'", "takes the losses 'logistic' and 'squared'"),
        ("[method]\nalgorithm = 'vafl'\nstart = 'credit-1'", "start is for the linear methods"),
        ("[method]\nstart = '../other'", "method.start must be a name of letters a to z"),
        ("[method]\nearly_stopping = 3", "ends by passes, target or request"),
        ("start = 'credit-1'", "start belongs under [method]"),
        ("[[party]]\nname = 'bank'\nfile = 'bank.csv'", "job.toml is a job for one place"),
        ("name = ", "not valid TOML"),
        ("name = " + "[" * 3000, "brackets are nested too deeply"),
        ("[method]\nseed = " + "9" * 5000, "not valid TOML"),
    ],
)
def test_a_wrong_job_names_the_key(change: str, reason: str) -> None:
    base = {"name": "'credit'", "parties": "['bank', 'shop', 'telecom']", "labels_at": "['bank']"}
    key = change.partition(" =")[0]
    text = "\n".join(f"{k} = {v}" for k, v in base.items() if k != key) + "\n" + change
    with pytest.raises(BadJob) as wrong:
        job_from_text(text, "job.toml")
    assert reason in str(wrong.value)
    assert wrong.value.exit_code == 2


def test_the_example_settings_are_complete_and_readable(tmp_path: Path) -> None:
    (tmp_path / "party.toml").write_text(example("bank", label="default"))
    home = read_home(tmp_path)
    assert home.config.data.label == "default" and home.source == str(tmp_path / "bank.csv")
    written = set(example("bank").split("[policy]")[1].replace("=", " ").split())
    assert not {field for field in Policy.__struct_fields__ if field not in written}


def test_settings_with_an_unknown_key_are_refused(tmp_path: Path) -> None:
    (tmp_path / "party.toml").write_text(example("bank") + "\nrow_kap = 3\n")
    with pytest.raises(BadInput, match=r"party\.toml.*row_kap.*policy.*Did you mean 'row_cap'"):
        read_home(tmp_path)
    with pytest.raises(BadInput, match="offbeat party init"):
        read_home(tmp_path / "nowhere")


def test_a_name_in_the_policy_that_nobody_has_is_doubted_before_any_job(tmp_path: Path) -> None:
    keys, names = tmp_path / "keys", ("bank", "shop", "telecom")
    identities = {name: new_identity(name) for name in names}
    write_private(keys / "bank.key", identities["bank"].key_pem)
    (keys / "bank.crt").write_bytes(identities["bank"].certificate_pem)
    members = tuple(Member(name, identity.certificate_pem, "") for name, identity in identities.items())
    write_roster(tmp_path / "roster.toml", PinnedRoster(members))
    (tmp_path / "party.toml").write_text(example("bank", initiators=("shpo",)))
    told = [found for found in check_home(read_home(tmp_path), reach=False) if "shpo" in found.detail]
    assert [(found.what, found.state) for found in told] == [("policy", "warning")]
    assert "Did you mean 'shop'" in told[0].detail


def test_nobody_reaches_masks_that_bind_to_nothing_without_naming_them(tmp_path: Path) -> None:
    """`two-tree`, the papers' scheme: no default has it, whoever names it reads what it lacks."""
    (tmp_path / "party.toml").write_text(example("shop"))
    written = read_home(tmp_path).config.policy
    assert {Policy().secure_sum, written.secure_sum} == {("pairwise",)}
    assert {OrgMethod().secure_sum, Job().secure_sum, SumOptions().scheme} == {"pairwise"}
    assert {VerticalClassifier().secure_sum, VerticalRegressor().secure_sum} == {"pairwise"}
    literal = msgspec.structs.replace(JOB, method=OrgMethod(secure_sum="two-tree"))
    assert "bound to nothing that was told" in disclosures(literal)[-1] and "two-tree" not in " ".join(disclosures(JOB))
    assert not [found for found in check_home(read_home(tmp_path), reach=False) if "secure_sum" in found.detail]
    named = example("shop").replace('secure_sum = ["pairwise"]', 'secure_sum = ["pairwise", "two-tree"]')
    (tmp_path / "party.toml").write_text(named)
    (warned,) = [found for found in check_home(read_home(tmp_path), reach=False) if "secure_sum" in found.detail]
    assert warned.state == "warning" and "bound to nothing that was told" in warned.detail
