"""Proposals that wait for their owner: nothing is read before the decision, and both decisions reach the initiator."""

import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import NAMES, Town, job, wait_until

from offbeat.errors import BadInput, Refused
from offbeat.orgs import control, leading


@pytest.fixture
def by_hand(town: Town, monkeypatch: pytest.MonkeyPatch) -> Town:
    monkeypatch.setattr(leading, "WORD_PAUSE_S", 0.05)
    town.settings("shop", approve='"by hand"')
    town.settings("telecom", approve='"by hand"')
    return town.open()


def phase(town: Town, name: str, run: str) -> str:
    return town.daemons[name].runs[run].status.phase


def submitted(town: Town) -> control.Submitted:
    answer = town.ask("bank", control.Submit(job(target=1e-2).text))
    assert isinstance(answer, control.Submitted)
    return answer


def test_a_run_begins_when_every_owner_has_accepted_it(by_hand: Town) -> None:
    town, answer = by_hand, submitted(by_hand)
    run = answer.run
    assert answer.awaited == ["shop", "telecom"]
    assert (phase(town, "shop", run), phase(town, "telecom", run)) == ("waiting", "waiting")
    assert town.daemons["shop"].runs[run].own.kept("table") is None  # its table has not been looked at
    with pytest.raises(BadInput, match="who decides"):
        town.ask("shop", control.Decide(run, True, " "))
    town.ask("shop", control.Decide(run, True, "Ada", "as agreed"))
    wait_until(lambda: town.daemons["bank"].runs[run].status.progress.get("awaiting") == ["telecom"])
    town.restart("telecom")  # a proposal is not forgotten
    town.restart("bank")
    assert phase(town, "telecom", run) == "waiting"
    town.ask("telecom", control.Decide(run, True, "Tom"))
    wait_until(lambda: phase(town, "bank", run) == "done")
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    (line,) = town.daemons["shop"].approvals.history()
    assert (line["run"], line["accepted"], line["by"], line["reason"]) == (run, True, "Ada", "as agreed")
    with pytest.raises(BadInput, match="nothing to decide"):
        town.ask("shop", control.Decide(run, False, "Ada"))


def test_a_refusal_ends_the_run_everywhere_with_its_reason(by_hand: Town) -> None:
    town, run = by_hand, submitted(by_hand).run
    town.ask("telecom", control.Decide(run, True, "Tom"))
    town.ask("shop", control.Decide(run, False, "Ada", "not this quarter"))
    wait_until(lambda: town.daemons["bank"].runs[run].status.ended)
    wait_until(lambda: town.daemons["telecom"].runs[run].status.ended)
    assert phase(town, "shop", run) == "refused"
    assert "not this quarter" in town.daemons["bank"].runs[run].status.reason


def test_what_the_policy_does_not_allow_never_waits_and_is_checked_again_at_the_decision(by_hand: Town) -> None:
    town, run = by_hand, submitted(by_hand).run
    town.settings("shop", approve='"by hand"', passes_most="1.0")
    with pytest.raises(Refused, match="allows 1 passes"):
        town.ask("shop", control.Decide(run, True, "Ada"))
    assert phase(town, "shop", run) == "waiting"
    with pytest.raises(Refused, match="allows 1 passes"):
        submitted(town)
    for _ in range(2):
        town.settings("shop", approve='"by hand"')
        submitted(town)
    with pytest.raises(Refused, match="3 proposals"):
        submitted(town)
