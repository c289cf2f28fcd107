"""The console's words and pictures, without a daemon."""

from collections import Counter

from offbeat.jobs.organisations import OrgJob, OrgMethod
from offbeat.orgs.console.overview import Overview, Proposal, Scores, Uses
from offbeat.orgs.console.page import console_page, parts_of
from offbeat.orgs.console.policy_words import costs, sentences
from offbeat.orgs.control import Predicted, RunStatus
from offbeat.orgs.policy import Policy

PARTIES = ("bank", "shop", "telecom")


def job(**method):
    return OrgJob(name="credit", parties=PARTIES, labels_at=("bank",), method=OrgMethod(**method))


def test_an_empty_policy_says_that_nobody_may_do_anything():
    told = " ".join(sentences(Policy(), has_labels=True))
    assert "It takes part in no job, proposed by its owner or by nobody else." in told
    assert "Its labels may be learned by nobody." in told and "led by nobody else" in told
    assert "accepted at once" in told and "It keeps no privacy budget." in told


def test_a_policy_says_what_it_allows_to_whom():
    policy = Policy(
        jobs=("credit",), initiators=("bank",), approve="by hand", row_cap=50, epsilon=4.0, columns_never=("name",),
        predictions_for=("any",), derivatives=False, predict_without=True,
    )  # fmt: skip
    told = " ".join(sentences(policy, has_labels=False))
    for part in (
        "the job credit, proposed by its owner or by bank", "waits until its owner accepts it by hand",
        "at most 50 sums", "epsilon = 4.0", "never used: name", "everyone on the roster, at most 100,000 rows",
        "takes no derivatives", "also without a party",
    ):  # fmt: skip
        assert part in told


def test_a_proposal_is_priced_for_the_one_who_decides():
    def spent(charges, delta):
        return 1.0 + sum(kind.epsilon for charge in charges for kind in charge.releases or {})

    private = costs(job(label_dp_epsilon=2.0), "bank", Policy(epsilon=4.0), spent)
    assert private[0] == "It adds noise to your labels; epsilon = 3 of 4 would then be spent in all."
    plain = costs(job(passes=30.0), "bank", Policy(row_cap=10), spent)
    assert plain[0] == "Your labels are told to shop and telecom."
    assert "about 30 sums at most" in plain[2] and "your cap is 10" in plain[2]
    assert costs(job(), "shop", Policy(), spent)[0] == "You would learn the labels of bank."


def overview(**changes):
    seen = {
        "party": "shop", "version": "1.0", "problem": "", "days_left": 100, "peers": [], "runs": [], "jobs": {},
        "proposals": [], "curves": {}, "policy": ["It takes part in no job."], "policy_file": "party.toml",
        "by_hand": True, "decisions": [], "uses": Uses(), "epsilon": None, "spent": 0.0,
    }  # fmt: skip
    return Overview(**{**seen, **changes})


def test_what_others_wrote_cannot_become_part_of_the_page():
    wild = "<script>alert(1)</script>"
    run = RunStatus(wild, "credit", wild, "failed", wild, wild)
    proposal = Proposal("credit-1", job(), wild, [wild], [wild], [wild])
    scores = Scores(wild, [wild], Predicted([1.0], [True], None, None, []))
    decided = {"at": wild, "run": wild, "accepted": True, "by": wild, "reason": wild}
    seen = overview(runs=[run], proposals=[proposal], scores=scores, problem=wild, decisions=[decided], policy=[wild])
    page = console_page(seen)
    assert wild not in page and "&lt;script&gt;alert(1)" in page


def test_a_run_under_way_shows_its_progress_its_curve_and_how_to_stop_it():
    going = RunStatus("credit-1", "credit", "bank", "training", progress={"passes": 12.0, "gap": 1e-3, "rows": 400})
    asked = RunStatus("credit-2", "credit", "shop", "accepted", progress={"awaiting": ["bank", "telecom"]})
    seen = overview(
        runs=[going, asked], jobs={"credit-1": job(passes=60.0)}, curves={"credit-1": [(1.0, 0.1), (12.0, 1e-3)]}
    )
    told = parts_of(seen)["running"]
    assert "12.0 of at most 60 passes" in told and "Common rows 400, certified within 0.001." in told
    assert told.count("<svg") == 1 and told.count('action="stop"') == 2
    assert "The owners of bank and telecom have not decided yet." in told


def test_ledgers_become_pictures_once_there_is_something_to_see():
    uses = Uses({"bank": [(0.0, 0.0), (0.0, 100.0), (3600.0, 400.0)]}, Counter({"bank": 400}))
    told = parts_of(overview(uses=uses, epsilon=4.0, spent=3.0))["ledgers"]
    assert "<svg" in told and "epsilon over all jobs: 3 of 4 spent, 1 left" in told and "<meter" in told
    soon = Uses({"bank": [(0.0, 0.0), (0.0, 100.0)]}, Counter({"bank": 100}))
    assert "<svg" not in parts_of(overview(uses=soon))["ledgers"]
