"""Standing scoring sessions between three daemons: the sum of all parts, counted in every ledger."""

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import NAMES, Town, job

from offbeat.errors import PeerFailed, Refused
from offbeat.orgs import control
from offbeat.orgs.party_config import Home, read_home
from offbeat.orgs.rows import load_table, read_model


@pytest.fixture
def trained(town: Town) -> tuple[Town, str]:
    town.open()
    run = town.submit(job(target=1e-3))
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    return town, run


def scored(town: Town, run: str, ids: list[str], who: str = "bank") -> control.Predicted:
    answer = town.ask(who, control.Predict(run, ids))
    assert isinstance(answer, control.Predicted)
    return answer


def asked(town: Town, name: str) -> int:
    lines = town.daemons[name].ledger.history()
    return sum(int(str(line["sum"])) for line in lines if "/score-" in str(line["what"]))


def part(home: Home, run: str, ids: list[str]) -> np.ndarray:
    table = load_table(home)
    places = [table.ids.tolist().index(one) for one in ids]
    return read_model(home.private / run, "model").shares(table, np.array(places))


def test_a_session_tells_the_sum_of_all_parts_and_every_ledger_counts_each_row(trained: tuple[Town, str]) -> None:
    town, run = trained
    expected = sum(part(read_home(town.folder / name), run, ["c1", "c2", "c3"]) for name in NAMES)
    answers = [scored(town, run, ["c1"]), scored(town, run, ["c2", "c3"])]
    scores = [score for answer in answers for score in answer.scores]
    np.testing.assert_allclose(scores, expected, atol=1e-10)
    assert {name: asked(town, name) for name in NAMES} == dict.fromkeys(NAMES, 3)
    assert town.daemons["bank"].lines.made == 2  # one connection to each peer, for all questions
    assert town.daemons["shop"].answering.rows == {"bank": 3}
    unknown = scored(town, run, ["c1", "nobody"])
    assert unknown.known == [True, False] and np.isnan(unknown.scores[1])


def test_a_restarted_party_costs_a_question_and_not_the_session(trained: tuple[Town, str]) -> None:
    town, run = trained
    before = scored(town, run, ["c1"]).scores
    town.restart("shop")
    assert scored(town, run, ["c1"]).scores == before
    assert town.daemons["bank"].asking.retries >= 1
    town.daemons["telecom"].stop()
    with pytest.raises(PeerFailed, match="'telecom'"):
        scored(town, run, ["c1"])
    assert asked(town, "bank") == 2  # nothing was scored the third time


def test_policies_hold_for_every_question(trained: tuple[Town, str]) -> None:
    town, run = trained
    assert scored(town, run, ["c1"], "shop").known == [True]  # predictions_for names everybody
    town.settings("telecom", predictions_for='["bank"]', prediction_rows_most="2", row_cap="2000")
    assert scored(town, run, ["c1", "c2"]).known == [True, True]
    with pytest.raises(Refused, match="at most 2 rows"):
        scored(town, run, ["c1", "c2", "c3"])
    with pytest.raises(Refused, match="not to 'shop'"):
        scored(town, run, ["c1"], "shop")
    town.settings("telecom", row_cap="1")
    with pytest.raises(Refused, match="row_cap"):
        scored(town, run, ["c1"])


def test_only_parties_of_the_run_may_open_a_session_and_only_once(trained: tuple[Town, str]) -> None:
    town, run = trained
    bank = town.daemons["bank"]
    opening = control.OpenScoring(run, "score-1")
    assert isinstance(bank.caller.call("shop", opening), control.ScoringKey)
    with pytest.raises(Refused, match="before"):
        bank.caller.call("shop", opening)
    with pytest.raises(Refused, match="knows no run"):
        bank.caller.call("shop", control.OpenScoring("credit-0", "score-2"))
    with pytest.raises(Refused, match="name no rows"):
        bank.caller.call("shop", control.ScoreAsked(run, "score-1", 0, b"short"))
    assert isinstance(bank.caller.call("shop", control.ScoreAsked(run, "other", 0, b"." * 16)), control.NotOpen)


def test_one_asker_cannot_push_out_the_sessions_of_another(trained: tuple[Town, str]) -> None:
    town, run = trained
    assert scored(town, run, ["c1"]).known == [True]
    for number in range(20):
        town.daemons["shop"].caller.call("telecom", control.OpenScoring(run, f"score-{number}"))
    lanes = town.daemons["telecom"].answering._lanes
    assert sum(asker == "shop" for asker, _ in lanes) == 8
    assert scored(town, run, ["c2"]).known == [True] and town.daemons["bank"].asking.retries == 0


def test_a_party_without_an_open_port_answers_by_letters(tmp_path) -> None:  # type: ignore[no-untyped-def]
    town = Town(tmp_path, silent="telecom").open()
    try:
        run = town.submit(job(target=1e-2))
        assert {town.ended(name, run).phase for name in NAMES} == {"done"}
        assert scored(town, run, ["c1"]).known == [True]
    finally:
        town.close()


def test_a_daemon_tells_how_it_stands_in_numbers(town: Town) -> None:
    path = town.folder / "bank" / "party.toml"
    path.write_text('metrics = "127.0.0.1:0"\n' + path.read_text())
    town.settings("shop", row_cap="5000")
    town.open()
    run = town.submit(job(target=1e-3))
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    scored(town, run, ["c1", "c2"])
    assert town.daemons["bank"].health.answer("/readyz")[0] == 200
    bank, shop = (town.daemons[name].health.answer("/metrics")[2] for name in ("bank", "shop"))
    assert 'offbeat_runs{phase="done"} 1\n' in bank and "offbeat_row_cap 5000\n" in shop
    assert 'offbeat_scoring_rows_answered_total{asker="bank"} 2\n' in shop
    assert "offbeat_scoring_rows_asked_total 2\n" in bank
    assert 'offbeat_peer_calls_total{peer="shop"} 3\n' in bank  # open, keys, one question
    assert f'offbeat_run_gap{{run="{run}"}}' in bank and 'offbeat_messages_total{kind="ShareGiven"}' in shop
    used = [line for line in shop.splitlines() if line.startswith('offbeat_rows_used_total{asker="bank"}')]
    expected = sum(int(str(line["sum"])) for line in town.daemons["shop"].ledger.history())
    assert used == [f'offbeat_rows_used_total{{asker="bank"}} {expected}']
    assert 'offbeat_disk_bytes{what="free"}' in bank and "offbeat_certificate_days_left 82" in bank
    town.daemons["bank"].stop()
    assert town.daemons["bank"].health.answer("/readyz")[::2] == (503, "the daemon is being stopped\n")
