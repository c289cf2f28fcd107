"""The console's words and pictures, without a daemon."""

from collections import Counter

import pytest

from offbeat.jobs.organisations import OrgJob, OrgMethod
from offbeat.orgs.budget import composed, spent_so_far
from offbeat.orgs.console.overview import Overview, Proposal, Scores, Spending, Uses
from offbeat.orgs.console.page import audit_page, card_page, console_page, parts_of
from offbeat.orgs.console.policy_pages import costs, sentences
from offbeat.orgs.control import Predicted, RunStatus
from offbeat.orgs.policy import Policy
from offbeat.privacy.accountant import PureRelease
from offbeat.privacy.ledger import plain, together

PARTIES = ("bank", "shop", "telecom")


def job(**method):
    return OrgJob(name="credit", parties=PARTIES, labels_at=("bank",), method=OrgMethod(**method))


def test_an_empty_policy_says_that_nobody_may_do_anything():
    told = " ".join(sentences(Policy(), has_labels=True))
    assert "It takes part in no job, proposed by its owner alone." in told
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
        "by_hand": True, "decisions": [], "policy_changes": [], "uses": Uses(), "most_used": 0, "row_cap": 0,
        "budget": Spending(None, 1e-5),
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


def test_what_is_not_known_is_not_said_to_be_nothing():
    down = overview(problem="the daemon has not been started.", runs=[], proposals=[], peers=[], days_left=-2)
    told = parts_of(down)
    for part in ("proposals", "running", "finished", "scores"):
        assert "Not known: the daemon does not answer." in told[part]
    assert "ended 2 days ago" in told["daemon"] and "nobody else" in told["peers"]
    assert "No run is under way." in parts_of(overview(runs=[]))["running"]


def test_ledgers_are_pictures_and_say_what_is_left():
    uses = Uses({"bank": [(0.0, 0.0), (0.0, 100.0), (3600.0, 400.0)]}, Counter({"bank": 400}))
    budget = Spending(4.0, 1e-5, [(0.0, 1.0), (7200.0, 3.0)])
    told = parts_of(overview(uses=uses, budget=budget, most_used=7, row_cap=20))["ledgers"]
    assert told.count("<svg") == 3 and told.count("<meter") == 2
    assert "epsilon at delta 1e-05, over all jobs: 3 of 4 spent, 1 left." in told
    assert "The most used row has entered 7 of at most 20 sums, 13 left." in told
    soon = Uses({"bank": [(0.0, 0.0), (0.0, 100.0)]}, Counter({"bank": 100}))
    early = parts_of(overview(uses=soon, budget=Spending(None, 1e-5, [(0.0, 1.0)])))["ledgers"]
    assert early.count("<svg") == 1, "bars at once; a curve once there is a minute to draw"
    assert "the policy has no epsilon. Jobs with noise have spent epsilon = 1 at delta 1e-05." in early


def test_an_ended_run_links_to_its_pages():
    done, failed = (RunStatus(f"credit-{phase}", "credit", "bank", phase) for phase in ("done", "failed"))
    told = parts_of(overview(runs=[done, failed]))["finished"]
    assert [page for page in ("report", "audit", "card") if f'href="runs/credit-done/{page}"' in told] == [
        "report", "audit", "card",
    ]  # fmt: skip
    assert "credit-failed/" not in told


def test_what_was_spent_is_composed_charge_by_charge():
    lines = [
        {"at": f"2026-01-0{day}T00:00:00+00:00", "releases": plain({PureRelease(0.5): 1}), "key": str(day)}
        for day in (1, 2, 3)
    ]
    seen = spent_so_far(lines, 1e-5)
    assert [at for at, _ in seen] == [0.0, 86_400.0, 172_800.0]
    slowly = [composed(together(*({PureRelease(0.5): 1} for _ in range(count))), 1e-5) for count in (1, 2, 3)]
    assert [spent for _, spent in seen] == slowly and slowly[0] == pytest.approx(0.5, rel=1e-3)
    assert len(spent_so_far(lines * 40, 1e-5)) == 30 and spent_so_far([], 1e-5) == []


def test_a_card_and_an_audit_become_pages_in_which_names_stay_text():
    card = card_page("# Model card: r\n\nTold\\_here by \\<b\\>.\n\n## Data\n\n- one\n- two\n")
    assert "<h1>Model card: r</h1>" in card and "<p>Told_here by &lt;b&gt;.</p>" in card
    assert "<h2>Data</h2><ul><li>one</li><li>two</li></ul>" in card
    audit = audit_page("Audit of r: x\n\nReceived\n  bank: 2 <i>\n")
    assert "<h2>Received</h2><ul><li>bank: 2 &lt;i&gt;</li></ul>" in audit
