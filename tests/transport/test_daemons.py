"""Daemons of three organisations on loopback: proposals, refusals, alignment, training, prediction, failure reports."""

import contextlib
import json
import math
import random
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

import grpc
from town import NAMES, ROWS, SCORES_AGREE, Town, job, labels_at, pooled_scores, serve, wait_until

from offbeat.audit.own_side import audit_own
from offbeat.audit.runs import violations_of
from offbeat.audit.transcripts import verified_text, verify_runs
from offbeat.errors import BadData, BadInput, BadJob, OffbeatError, Refused
from offbeat.jobs.organisations import OrgEmbedding, OrgJob, OrgMethod, OrgModel
from offbeat.learning.scores import area_under_curve
from offbeat.metrics.record import RunRecord
from offbeat.orgs import control
from offbeat.orgs.budget import PrivacyLedger
from offbeat.orgs.client import connect
from offbeat.orgs.party_config import Home, read_home
from offbeat.orgs.replay import replay_own
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.rows import load_table, own_rows, read_model
from offbeat.orgs.runs import Run
from offbeat.orgs.train_embedding import own_private_mode
from offbeat.run.replay import Vouched
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint
from offbeat.runtime.delivery import Bounds
from offbeat.runtime.grpc.dialer import open_channel
from offbeat.runtime.grpc.wire import SERVICE
from offbeat.runtime.recovery import log_path


def replayed(home: Home, run: str, method: str = "") -> str:
    """The verdict to which this party's log of a training leads, when it leads to the same bits."""
    told = replay_own(home, run, Vouched(method))
    assert told["same"], told["sentence"]
    return str(told["verdicts"][f"{home.name}/train"])


def test_from_proposal_to_prediction(town: Town) -> None:
    town.open()
    wanted = job()
    run = town.submit(wanted)
    for name in NAMES:
        status = town.ended(name, run)
        assert (status.phase, status.verdict) == ("done", "target"), (name, status)
    # The run's result: certified, and the same predictions as with pooled tables.
    status = town.ended("bank", run)
    assert status.parties == dict.fromkeys(NAMES, "target") and 0.5 < status.metrics["test_auc"] <= 1.0
    assert status.progress["rows"] == ROWS and status.progress["gap"] <= 1e-6
    pooled = pooled_scores(town, run, wanted)
    model = connect(town.folder / "bank", run)
    joint = model.decision_function(list(pooled))
    assert len(pooled) == ROWS and np.abs(joint - np.array(list(pooled.values()))).max() < SCORES_AGREE
    # One row, an unknown row, probabilities and classes.
    first = next(iter(pooled))
    assert abs(model.predict_proba([first])[0, 1] - 1 / (1 + np.exp(-pooled[first]))) < SCORES_AGREE
    with pytest.warns(UserWarning, match="1 of 2 ids are not known to every party: 'c999'"):
        assert model.predict([first, "c999"]) == [int(pooled[first] >= 0), None]
    with pytest.raises(BadData, match="2 of 2 ids are not known to every party: '1', '2'"):
        model.predict_proba([1, 2])
    assert model.predict_proba([]).shape == (0, 2) and model.decision_function([]).shape == (0,)
    assert model.predict([]) == []
    # Every party's log replays to the same bits; nothing secret lies in a run folder.
    for name in NAMES:
        home = read_home(town.folder / name)
        again = replay_own(home, run, verify=True)
        assert again["same"] is True and list(again["verdicts"].values()) == ["target", "aligned", "predicted"]
        told = audit_own(home.runs / run)
        assert told["masks"]["used_once"] and not violations_of(told)
        assert (told["masks"]["answers"] > 0) == (name != "bank"), "the label holder asks, the others answer"
        found = " ".join(row["finding"] for row in told["attacks"])
        if name == "bank":  # it alone learns sums of products, of its own questions
            assert "learned the total of the others' shares" in found and told["sums"]["complete"] > 0
        else:
            labels = RunRecord.read(home.runs / run).data.rows
            assert f"reads {labels} of {labels} labels" in found and "how many are right is not known here" in found
        assert told["received"][name]["ShareGiven" if name == "bank" else "TablePart"] > 0
        assert (home.runs / run / "report.html").is_file() and (home.runs / run / "record.json").is_file()
        seen = json.loads((home.runs / run / "record.json").read_text())["held_out"]
        assert (seen is not None) == (name == "bank"), "curves of held-out rows are the label holder's alone"
        assert_no_secret(home.runs, [home.identity().key_pem, (home.private / run / "salt").read_bytes()[:32]])
        history = RowLedger(home.private / "ledger").history()
        whats = [str(line["what"]).removeprefix(f"{run}/").split("-")[0] for line in history]
        assert whats[:5] == ["credit", "test", "score", "score", "score"]
    assert area_under_curve(joint, joint > 0) == 1.0
    folders = {name: read_home(town.folder / name).runs / run for name in NAMES}
    assert_signed(folders, town.folder / "bank" / "roster.toml")


def assert_signed(folders: dict[str, Path], roster: Path) -> None:
    """A stranger with the folders is convinced; whoever changes one of them is named."""
    told = verify_runs(list(folders.values()), roster)
    assert (told["state"], told["parties"]) == ("holds", []), verified_text(told)
    assert len(told["links"]) == 3 * 6, "alignment, training and test, each with six directions"
    job_file, log = folders["shop"] / "job.toml", log_path(folders["telecom"], "telecom")
    job_file.write_text(job_file.read_text().replace('name = "credit"', 'name = "other"'))
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(bytes(content))
    told = verify_runs(list(folders.values()), roster)
    assert (told["state"], told["parties"]) == ("CHANGED", ["shop", "telecom"]), verified_text(told)
    assert "job.toml of 'shop' is not the job that the messages belong to" in verified_text(told)
    assert "the log of 'telecom' has other messages than it signed" in verified_text(told)


def assert_no_secret(folder: Path, secrets: list[bytes]) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"PRIVATE KEY" not in content, path
            assert all(secret not in content and secret.hex().encode() not in content for secret in secrets), path


def test_a_job_outside_a_policy_is_refused_before_any_data_is_touched(town: Town) -> None:
    town.settings("telecom", methods='["vfb2-saga"]')
    for name in NAMES:
        (town.folder / name / "table.csv").unlink()
    town.open()
    with pytest.raises(Refused, match=r"'telecom' refuses the job 'credit' of 'bank'.*not 'vfb2-svrg'"):
        town.submit(job())
    runs = town.ask("shop", control.ListRuns())
    assert isinstance(runs, control.Runs)
    assert [(status.phase, status.verdict) for status in runs.runs] == [("failed", "refused")]
    assert "'telecom' refuses" in runs.runs[0].reason


def test_a_method_of_the_owners_own_trains_where_every_policy_names_it(town: Town, monkeypatch: Any) -> None:
    """The linear method of docs/how-to/add-an-algorithm.md. The policy is asked again when the party is built."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "add-an-algorithm.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"to `telling\.py`:\n\n```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (town.folder / "telling.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(town.folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in NAMES:
        town.settings(name, methods='["telling:METHOD"]')
    town.open()
    try:
        run = town.submit(job(algorithm="telling:METHOD", target=1e-6))
        assert {town.ended(name, run).verdict for name in NAMES} == {"target"}
        assert replayed(read_home(town.folder / "shop"), run, "telling:METHOD") == "target"
    finally:
        sys.modules.pop("telling", None)
    town.settings("shop", methods='["any"]')
    with pytest.raises(Refused, match=r"'shop' does not build its party of .*its policy does not name that code"):
        replayed(read_home(town.folder / "shop"), run, "telling:METHOD")
    assert "telling" not in sys.modules


def test_a_tiny_intersection_is_refused_everywhere_with_the_reason(town: Town) -> None:
    town.settings("shop", rows_least=str(ROWS + 1))
    town.open()
    run = town.submit(job())
    assert town.ended("shop", run).phase == "refused"
    status = town.ended("bank", run)
    assert status.kind == "Refused" and f"{ROWS} rows are shared" in status.reason and "'shop'" in status.reason
    assert town.ended("telecom", run).phase == "refused"
    for name in ("shop", "telecom"):  # they know that it is too few, and not which
        assert "fewer than 241 rows are shared" in town.ended(name, run).reason
        assert read_checkpoint(read_home(town.folder / name).private / run, "alignment") is None


def everything_of(folder: Path) -> str:
    return "".join(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_a_peers_failure_reaches_the_others_without_its_data(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    """A cell, a column's name, a path: the owner's log has them, under the number that the others are told."""
    table = town.folder / "telecom" / "table.csv"
    table.write_text(table.read_text().replace("\nc1,", "\nc1,seventeen", 1))
    town.open()
    with pytest.raises(BadData, match=r"'telecom' failed while answering \(BadData\).*under ([0-9a-f]{8})") as failed:
        town.submit(job())
    number = str(failed.value)[-8:]
    (line,) = [record.getMessage() for record in caplog.records if f"[{number}]" in record.getMessage()]
    assert "seventeen" in line and "telecom0" in line and "table.csv" in line
    for name in ("bank", "shop"):
        seen = everything_of(town.folder / name / "runs")
        assert number in seen and not any(word in seen for word in ("seventeen", "telecom0", "table.csv", str(table)))


@pytest.mark.parametrize("where", ["shop", "bank"])
def test_an_error_nobody_foresaw_ends_the_run_everywhere(
    town: Town, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(home, *rest):  # type: ignore[no-untyped-def]
        if home.name == where:
            raise OverflowError("math range error")
        return own_rows(home, *rest)

    monkeypatch.setattr("offbeat.orgs.runs.own_rows", failing)
    town.open()
    run = town.submit(job())
    for name in NAMES:
        status = town.ended(name, run)
        assert status.phase == "failed", (name, status)
        assert ("math range error" in status.reason) == (name == where), (name, status)
        assert f"'{where}'" in status.reason and "log" in status.reason, (name, status)
    assert town.ended("bank", run).kind == "OffbeatError"
    assert any(record.exc_info and record.exc_info[0] is OverflowError for record in caplog.records)


def test_a_party_without_an_open_port_takes_part(tmp_path: Path) -> None:
    town = Town(tmp_path, silent="telecom").open()
    try:
        run = town.submit(job(target=1e-6))
        assert {town.ended(name, run).phase for name in NAMES} == {"done"}
        scored = connect(town.folder / "bank", run).decision_function(["c1", "c2"])
        assert np.isfinite(scored).all()
    finally:
        town.close()


def test_predictions_keep_to_policy_and_cap(town: Town) -> None:
    town.settings("shop", predictions_for='["bank"]', prediction_rows_most="3", row_cap="1000")
    town.open()
    run = town.submit(job(target=1e-3, passes=40.0))
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    bank, telecom = connect(town.folder / "bank", run), connect(town.folder / "telecom", run)
    assert np.isfinite(bank.decision_function(["c1"])).all()
    with pytest.raises(Refused, match="at most 3 rows"):
        bank.decision_function(["c1", "c2", "c3", "c4"])
    with pytest.raises(Refused, match="to 'bank', not to 'telecom'"):
        telecom.decision_function(["c1"])
    # The rows' cap is over training and predictions together.
    ledger = RowLedger(read_home(town.folder / "shop").private / "ledger")
    assert ledger.counts(["c1"])[0] > 1
    ledger.use(["c1"], np.array([1000]), what="elsewhere", asker="bank", who="shop")
    with pytest.raises(Refused, match="row_cap"):
        bank.decision_function(["c1"])
    with pytest.raises(BadInput, match="knows no run"):
        connect(town.folder / "bank", "nothing").decision_function(["c1"])


def test_a_prediction_goes_on_without_a_party_where_all_policies_allow_it(tmp_path: Path) -> None:
    names = (*NAMES, "utility")
    town = Town(tmp_path, names=names)
    for name in names:
        town.settings(name, predict_without="true")
    town.open()
    try:
        run = town.submit(msgspec.structs.replace(job(target=1e-3, passes=40.0), parties=names))
        assert {town.ended(name, run).phase for name in names} == {"done"}
        model = connect(town.folder / "bank", run)
        whole = model.decision_function(["c1", "c2"])
        town.daemons.pop("utility").stop()
        answer = town.ask("bank", control.Predict(run, ["c1", "c2"]))
        assert isinstance(answer, control.Predicted)
        assert answer.without == ["utility"] and answer.known == [True, True]
        home = read_home(town.folder / "utility")
        table = load_table(home)
        places = [table.ids.tolist().index(i) for i in ("c1", "c2")]
        missing = read_model(home.private / run, "model").shares(table, np.array(places))
        assert np.abs(np.array(answer.scores) + missing - whole).max() < 1e-9
    finally:
        town.close()


AGREED = "credit-20260101-000000-aaaaaa"


def agree(town: Town, *, at_bank: bool = True) -> Run:
    """All have accepted a run of the bank's; nobody was told to begin."""
    wanted, salt, bank = job(target=1e-3), b"s" * 32, town.daemons["bank"]
    bank.leading.agree(["shop", "telecom"], control.Propose(AGREED, wanted.text, salt))
    if at_bank:
        run = bank._accept(AGREED, wanted, "bank", salt)
        run.begin_with({name: bank.leading.counted(run, name).ids for name in NAMES})
        return run
    return bank._new_run(AGREED, wanted, "bank")


def test_the_word_to_begin_is_written_once_and_by_one_thread_at_a_time(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def looked_at(folder: Path, name: str, state: Any) -> None:
        with ThreadPoolExecutor(1) as another:
            written.append((name, another.submit(shop._lock.acquire, False).result()))
        write_checkpoint(folder, name, state)

    run = agree(town.open())
    shop, sizes = town.daemons["shop"].runs[AGREED], read_checkpoint(run.private, "begun")["ids"]  # type: ignore[index]
    monkeypatch.setattr("offbeat.orgs.runs.write_checkpoint", looked_at)
    shop.begin_with(sizes)
    shop.begin_with(sizes)
    assert written == [("begun", False)]


def test_a_run_that_was_agreed_on_but_not_begun_begins_after_a_restart(town: Town) -> None:
    """The initiator dies between the last acceptance and the word to begin."""
    town.open()
    agree(town)
    town.restart("bank")
    wait_until(lambda: AGREED in town.daemons["bank"]._threads)
    assert {town.ended(name, AGREED).phase for name in NAMES} == {"done"}


@pytest.mark.parametrize("back_first", ["bank", "shop"])
def test_a_run_begins_when_those_who_were_away_before_it_did_are_back(
    town: Town, monkeypatch: pytest.MonkeyPatch, back_first: str
) -> None:
    monkeypatch.setattr("offbeat.orgs.leading.WORD_PAUSE_S", 0.1)
    town.open()
    agree(town)
    for name in ("bank", "shop"):
        town.daemons[name].stop()
    town.restart(back_first)
    if back_first == "bank":  # it begins, and waits for the shop
        wait_until(lambda: AGREED in town.daemons["bank"]._threads)
    town.restart("shop" if back_first == "bank" else "bank")
    for name in NAMES:
        wait_until(lambda: AGREED in town.daemons[name]._threads)  # noqa: B023
    assert {town.ended(name, AGREED).phase for name in NAMES} == {"done"}


def test_an_agreed_run_that_its_initiator_never_heard_of_ends_at_the_others(town: Town) -> None:
    """The initiator died before the last acceptance, so nobody else will ever begin it."""
    town.open()
    agree(town, at_bank=False)
    town.restart("shop")
    wait_until(lambda: town.daemons["shop"].runs[AGREED].status.ended)
    status = town.ended("shop", AGREED)
    assert status.phase == "failed" and f"'bank' knows no run '{AGREED}' of 'shop'" in status.reason


def test_a_party_that_has_ended_a_run_before_it_began_ends_it_for_all(town: Town) -> None:
    town.open()
    run = agree(town)
    town.ask("shop", control.Stop(AGREED))
    town.daemons["bank"].leading.lead(run)
    assert town.ended("shop", AGREED).phase == "stopped"
    for name in ("bank", "telecom"):
        assert "'shop' did not begin" in town.ended(name, AGREED).reason


def test_two_runs_of_one_job_are_tested_on_the_same_rows(town: Town) -> None:
    town.open()
    tested, tokens = [], []
    for _ in range(2):
        run = town.submit(job(target=1e-3))
        assert {town.ended(name, run).phase for name in NAMES} == {"done"}
        home = read_home(town.folder / "shop")
        kept = read_checkpoint(home.private / run, "alignment")
        assert kept is not None
        table = load_table(home)
        own = own_rows(home, table, job(), kept["rows"], kept["tokens"], kept["coin"])
        ids = dict(zip(kept["tokens"], table.ids[kept["rows"]], strict=True))
        tested.append({ids[token] for token in own.tokens_test})
        tokens.append(set(own.tokens_test))
    assert tested[0] == tested[1] and not tokens[0] & tokens[1]


def test_a_row_cap_ends_a_training_that_asks_too_often(town: Town) -> None:
    town.settings("shop", row_cap="5")
    town.open()
    run = town.submit(job())
    assert town.ended("shop", run).verdict == "row-cap"
    assert "row_cap" in town.ended("shop", run).reason
    for name in ("bank", "telecom"):
        assert town.ended(name, run).verdict == "peer-lost" and "'shop' ended early" in town.ended(name, run).reason


# -- other methods, and private labels -------------------------------------------------------------------------------


def vafl(**embedding: object) -> OrgJob:
    return msgspec.structs.replace(
        job(algorithm="vafl", passes=80.0),
        embedding=OrgEmbedding(**embedding),
        model=OrgModel(strength=1e-3),  # type: ignore[arg-type]
    )


def allow_vafl(town: Town) -> None:
    for name in NAMES:
        town.settings(name, methods='["vafl"]')


def test_vafl_over_the_daemons_predicts_as_the_pooled_model_does(town: Town) -> None:
    """The label holder is server and client at once; the trained parts are summed under masks when they predict."""
    allow_vafl(town)
    town.open()
    wanted = vafl()
    run = town.submit(wanted)
    for name in NAMES:
        status = town.ended(name, run)
        assert (status.phase, status.verdict) == ("done", "passes"), (name, status)
    assert 0.5 < town.ended("bank", run).metrics["test_auc"] <= 1.0
    pooled = pooled_scores(town, run, wanted)
    joint = connect(town.folder / "bank", run).decision_function(list(pooled))
    assert np.corrcoef(joint, list(pooled.values()))[0, 1] > 0.98
    for name in NAMES:
        home = read_home(town.folder / name)
        assert replayed(home, run) == "passes"
        warnings = json.loads((home.runs / run / "record.json").read_text())["warnings"]
        assert any("'bank' learned one number of every row" in warning for warning in warnings)
        told = audit_own(home.runs / run)
        found = " ".join(row["finding"] for row in told["attacks"])
        assert not violations_of(told) and ("was sent derivatives of " in found) == (name != "bank")
    assert RowLedger(read_home(town.folder / "shop").ledger).counts([f"c{i}" for i in range(ROWS)]).max() > 40


def test_vafl_with_networks_over_the_daemons(town: Town) -> None:
    pytest.importorskip("torch", reason="needs the extra 'deep'")
    allow_vafl(town)
    town.open()
    run = town.submit(vafl(kind="mlp", hidden=(8,)))
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    # A coin of all parties draws the 60 test rows anew in each run: what was learned is seen on all rows.
    labels = labels_at(town)
    scores = connect(town.folder / "bank", run).predict_proba(list(labels))[:, 1]
    assert np.isfinite(scores).all() and area_under_curve(scores, np.array(list(labels.values())) > 0) > 0.75
    assert replayed(read_home(town.folder / "shop"), run) == "passes"


@pytest.mark.parametrize(("kind", "shape"), [("cnn", (1, 8, 8)), ("lstm", (16, 4))])
def test_pictures_and_series_over_the_daemons(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    pytest.importorskip("torch", reason="needs the extra 'deep'")
    town = Town(tmp_path, columns=64)
    allow_vafl(town)
    town.open()
    try:
        wanted = msgspec.structs.replace(
            vafl(kind=kind, hidden=(4,), channels=2), method=OrgMethod(algorithm="vafl", passes=4.0)
        )
        with pytest.raises(BadJob, match=f"a {kind} at 'bank' needs data.shape"):
            town.submit(wanted)
        for name in NAMES:
            path = town.folder / name / "party.toml"
            path.write_text(path.read_text().replace("[data]", f"[data]\nshape = {list(shape)}"))
            town.restart(name)
        run = town.submit(wanted)
        assert {town.ended(name, run).phase for name in NAMES} == {"done"}
        assert np.isfinite(connect(town.folder / "bank", run).predict_proba(["c1", "c2"])).all()
        assert replayed(read_home(town.folder / "shop"), run) == "passes"
    finally:
        town.close()


def test_a_private_embedding_is_held_to_the_budget_of_its_owner(town: Town) -> None:
    allow_vafl(town)
    text = (town.folder / "shop" / "party.toml").read_text()
    (town.folder / "shop" / "party.toml").write_text(text.replace("# epsilon = 4.0", "epsilon = 5.0"))
    town.open()
    with pytest.raises(Refused, match="adds no noise to its columns"):
        town.submit(vafl())
    wanted = vafl(epsilon=4.0, uploads_max=8)
    run = town.submit(wanted)
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    home = read_home(town.folder / "shop")
    record = json.loads((home.runs / run / "record.json").read_text())
    assert 0 < record["privacy"]["shop"]["epsilon"] <= 4.0 and not record["privacy"]["shop"].get("seeded")
    assert replayed(home, run) == town.ended("shop", run).verdict
    pooled, asker = pooled_scores(town, run, wanted), connect(town.folder / "bank", run)
    joint, some = asker.decision_function(list(pooled)), list(pooled)[5:9]
    noise = own_private_mode(wanted).noise * math.sqrt(len(NAMES))
    assert np.std(joint - list(pooled.values())) > 0.8 * noise, "each party's part of a score has noise"
    assert np.array_equal(asker.decision_function(some), joint[5:9]), "and the same noise whenever it is asked for"
    with pytest.raises(Refused, match=r"budget of 5 at delta 1e-05 over all jobs, and with this job 5\.992 would"):
        town.submit(wanted)


def test_private_labels_are_answered_once_and_paid_for_once(town: Town) -> None:
    text = (town.folder / "bank" / "party.toml").read_text()
    (town.folder / "bank" / "party.toml").write_text(text.replace("# epsilon = 4.0", "epsilon = 4.0"))
    town.open()
    with pytest.raises(Refused, match="adds no noise to its labels"):
        town.submit(job())
    wanted = job(target=1e-6, label_dp_epsilon=3.0)
    first = town.submit(wanted)
    assert {town.ended(name, first).phase for name in NAMES} == {"done"}
    home = read_home(town.folder / "bank")
    record = json.loads((home.runs / first / "record.json").read_text())
    assert record["privacy"]["bank"]["epsilon"] == 3.0 and record["held_out"] is None
    assert not any("Labels are disclosed" in warning for warning in record["warnings"])
    (promise,) = record["promises"]
    assert promise.startswith("The labels at bank were answered at random (3-label-privacy).")
    again = town.submit(wanted)  # the same answers: nothing more is spent
    assert {town.ended(name, again).phase for name in NAMES} == {"done"}
    with pytest.raises(Refused, match="with this job 5 would be spent"):
        town.submit(job(label_dp_epsilon=2.0))
    assert replayed(home, first) == "target"


def test_what_is_for_the_owner_is_not_for_peers(town: Town) -> None:
    town.open()
    shop = town.daemons["shop"]
    for request in (control.ListRuns(), control.Submit(job().text), control.Stop("x"), control.Predict("x", ["c1"])):
        with pytest.raises(Refused, match="only its owner"):
            shop.caller.call("bank", request)
    mine = town.submit(job(target=1e-3))
    with pytest.raises(OffbeatError, match=r"'bank' knows no run 'unknown' of 'shop'\.$") as refused:
        shop.caller.call("bank", control.BeginRun("unknown", {}))
    assert mine not in str(refused.value)
    with pytest.raises(Refused, match="larger than a peer's may be"):
        shop.caller.call("bank", control.Reply(1, bytes(2**21)))
    for name in ("../../escape", "credit-..", "credit-\0", "credit-\x1b[2J", "credit-\n[policy]", "credit-<img>"):
        with pytest.raises(OffbeatError, match="not a name for job"):
            shop.caller.call("bank", control.Propose(name, job().text, b"s" * 32))
    assert {town.ended(name, mine).phase for name in NAMES} == {"done"}


def test_a_stop_ends_the_run_everywhere(town: Town) -> None:
    town.open()
    run = town.submit(job(target=1e-300, passes=1000.0))
    town.ask("bank", control.Stop(run))
    for name in NAMES:
        status = town.ended(name, run)
        assert status.phase == "stopped" and "stopped by the owner of 'bank'" in status.reason, (name, status)


def test_a_stopped_training_keeps_its_best_certified_model(town: Town) -> None:
    """The same moment everywhere: the parts add up to what was certified, and they predict."""
    for name in NAMES:
        town.settings(name, passes_most="1e9")
    town.open()
    wanted = job(target=1e-300, passes=1e6)
    run = town.submit(wanted)
    wait_until(lambda: town.daemons["bank"].runs[run].status.progress.get("gap", 1.0) < 1e-8)
    town.ask("bank", control.Stop(run))
    for name in NAMES:
        status = town.ended(name, run)
        assert (status.phase, status.kept) == ("stopped", True), (name, status)
    pooled = pooled_scores(town, run, wanted)
    joint = connect(town.folder / "bank", run).decision_function(list(pooled))
    assert np.abs(joint - np.array(list(pooled.values()))).max() < 1e-3
    assert replayed(read_home(town.folder / "shop"), run) == "stopped"


def test_the_stop_of_a_party_that_does_not_lead_is_its_own(town: Town) -> None:
    for name in NAMES:
        town.settings(name, passes_most="1e9")
    town.open()
    run = town.submit(job(target=1e-300, passes=1e6))
    wait_until(lambda: town.daemons["bank"].runs[run].status.phase == "training")
    town.ask("shop", control.Stop(run))
    assert town.ended("shop", run).phase == "stopped" and not town.ended("shop", run).kept
    with pytest.raises(Refused, match="Submit the job again"):
        connect(town.folder / "shop", run).decision_function(["c1"])
    wait_until(lambda: any(line["what"] == run and "sum" in line for line in town.daemons["shop"].ledger.history()))


def test_a_row_cap_ends_a_run_and_refuses_the_next(town: Town) -> None:
    town.settings("shop", row_cap="25")
    town.open()
    run = town.submit(job(target=1e-300, passes=1000.0))
    ended = town.ended("shop", run)
    assert ended.phase == "failed" and "lets a row enter at most 25 sums (row_cap)" in ended.reason, ended
    ids = [f"c{i}" for i in range(ROWS)]
    wait_until(lambda: any(line["what"] == run and "sum" in line for line in town.daemons["shop"].ledger.history()))
    assert town.daemons["shop"].ledger.counts(ids).max() == 25
    again = town.submit(job(target=1e-300, passes=1000.0))
    ended = town.ended("shop", again)
    assert ended.phase == "refused" and "a row of this run has none left" in ended.reason, ended
    assert town.daemons["shop"].ledger.counts(ids).max() == 25


def test_what_a_job_costs_is_charged_before_its_training_begins(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: dict[tuple[str, str], list[str]] = {}
    session = Run.session

    def watched(self: Run, what: str, *more: Any) -> Any:
        begun[self.home.name, what] = [line["key"] for line in PrivacyLedger(self.home.ledger).history()]
        return session(self, what, *more)

    monkeypatch.setattr(Run, "session", watched)
    town.open()
    run = town.submit(job(target=1e-3, label_dp_epsilon=2.0))
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    assert begun["bank", "align"] == [] and begun["shop", "train"] == []
    assert [key.split()[:2] for key in begun["bank", "train"]] == [["labels", "2.0"]]


# -- daemons as processes, killed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["vfb2-svrg", pytest.param("vafl", marks=pytest.mark.slow)])
def test_a_daemon_killed_in_the_middle_goes_on_when_it_is_started_again(tmp_path: Path, method: str) -> None:
    town = Town(tmp_path)
    wanted, verdict = (job(), "target") if method == "vfb2-svrg" else (vafl(), "passes")
    if method == "vafl":
        allow_vafl(town)
    children = {name: serve(town, name) for name in ("bank", "telecom")}
    try:
        town.open("shop")
        run = town.submit(wanted)
        for victim in ("telecom", "bank"):  # a collaborator, then the initiator and label holder
            log = town.folder / victim / "runs" / run / "events" / f"{victim}.log"
            before = log.stat().st_size if log.is_file() else 0
            wait_until(lambda log=log, before=before: log.is_file() and log.stat().st_size > before + 4_000)
            children[victim].send_signal(signal.SIGKILL)
            children[victim].wait()
            children[victim] = serve(town, victim)

        def all_done() -> bool:
            return all(town.ask(name, control.Status(run)).ended for name in NAMES)  # type: ignore[attr-defined]

        wait_until(all_done)
        statuses = {name: town.ask(name, control.Status(run)) for name in NAMES}
        assert {(s.phase, s.verdict) for s in statuses.values()} == {("done", verdict)}, statuses  # type: ignore[attr-defined]
        pooled = pooled_scores(town, run, wanted)
        joint = connect(town.folder / "bank", run).decision_function(list(pooled))
        if method == "vfb2-svrg":
            assert np.abs(joint - np.array(list(pooled.values()))).max() < SCORES_AGREE
        assert np.corrcoef(joint, list(pooled.values()))[0, 1] > 0.98
        assert all(replayed(read_home(town.folder / name), run) == verdict for name in NAMES)
    finally:
        town.close()
        for child in children.values():
            child.terminate()
            child.wait()


# -- a daemon under fire ----------------------------------------------------------------------------------------------


def memory_kb(child: "subprocess.Popen[bytes]") -> int:
    (line,) = [x for x in Path(f"/proc/{child.pid}/status").read_text().splitlines() if x.startswith("VmRSS")]
    return int(line.split()[1])


def damaged(rng: random.Random) -> bytes:
    """Noise, or a request with some bytes changed, cut off or repeated."""
    good = control.encode(
        rng.choice([control.Ping(), control.BeginRun("x", {}), control.Propose("credit-1", job().text, b"s" * 32)])
    )
    raw = bytearray(good if rng.random() < 0.7 else rng.randbytes(rng.randint(0, 300)))
    for _ in range(rng.randint(1, 6)):
        if raw:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw[: rng.randint(0, len(raw))] if rng.random() < 0.3 else raw)


def fire_at(town: Town, child: "subprocess.Popen[bytes]", shots: int) -> int:
    """Damaged requests and greetings of a member, a stranger's bytes that are not even TLS; the kB of memory grown."""
    rng = random.Random(20210301)
    identity, roster = read_home(town.folder / "shop").identity(), town.roster
    wire = open_channel(identity, roster, roster.member("bank"), Bounds())
    call = wire.unary_unary(f"/{SERVICE}/{control.METHOD}")
    join = wire.stream_stream(f"/{SERVICE}/Join")
    for _ in range(shots // 10):  # the allocators' own growth comes first
        call(damaged(rng), timeout=10)
    before = memory_kb(child)
    for shot in range(shots):
        call(damaged(rng), timeout=10)
        if shot % 50 == 0:
            with contextlib.suppress(grpc.RpcError):
                list(join(iter([damaged(rng)]), timeout=10))
        if shot % 200 == 0:
            with socket.create_connection(("127.0.0.1", town.ports["bank"]), 5) as stranger:
                stranger.sendall(rng.randbytes(400))
    grown_kb = memory_kb(child) - before
    wire.close()
    return grown_kb


@pytest.mark.parametrize("shots", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_daemon_under_fire_stays_up_and_its_memory_bounded(tmp_path: Path, shots: int) -> None:
    town = Town(tmp_path)
    child = serve(town, "bank")
    try:
        grown_kb = fire_at(town, child, shots)
        print(f"{shots} damaged requests: {grown_kb} kB more memory")
        assert grown_kb < 32 * 1024
        runs = town.ask("bank", control.ListRuns())
        assert isinstance(runs, control.Runs) and len(runs.runs) <= 24
        told = (town.folder / "bank" / "daemon.log").read_text()
        assert child.poll() is None and "was refused" in told and told.count("was refused") < 100
    finally:
        child.terminate()
        child.wait()
