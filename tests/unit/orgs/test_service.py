"""The scoring service's parts: callers and quotas, questions that go out together, batches that are taken up again."""

import asyncio
import errno
import json
import threading

import pytest

from offbeat.errors import BadInput, PeerFailed, Refused
from offbeat.orgs.control import Predicted
from offbeat.orgs.service import batches as batches_module
from offbeat.orgs.service.batches import HEAD, Batches
from offbeat.orgs.service.callers import Caller, CallersFile, Quotas, TooMuch
from offbeat.orgs.service.gathering import Gathering
from offbeat.orgs.service.openapi import openapi, page

DAY_S = 86_400.0


def scored(ids):
    """A score that follows from the id; ids with an x are known to nobody."""
    return Predicted([float(len(i)) for i in ids], ["x" not in i for i in ids], [0.5] * len(ids), ["no", "yes"], [])


# -- callers ---------------------------------------------------------------------------------------------------------


def test_a_token_is_known_by_its_digest_alone_and_ends_when_its_caller_is_removed(tmp_path):
    file = CallersFile(tmp_path)
    token = file.new("web", 100, 5.0)
    assert file.with_token(token).name == "web"
    assert CallersFile(tmp_path).with_token(token).rows_a_day == 100
    assert file.with_token(token + "x") is None and file.with_token("") is None
    assert token not in (tmp_path / "callers.json").read_text()
    assert (tmp_path / "callers.json").stat().st_mode & 0o077 == 0
    with pytest.raises(BadInput, match="there is a caller 'web' already"):
        file.new("web", 1, 1.0)
    file.remove("web")
    assert file.with_token(token) is None
    with pytest.raises(BadInput, match="no caller 'web'"):
        file.remove("web")


def test_a_quota_holds_over_restarts_and_begins_anew_each_day(tmp_path):
    file = CallersFile(tmp_path)
    caller = file.with_token(file.new("web", 10, 100.0))
    now_s = [20_000 * DAY_S + 5.0]
    quotas = Quotas(tmp_path, lambda: now_s[0])
    assert quotas.take(caller, 7) == 3
    with pytest.raises(TooMuch, match="has 3 left and asks for 4") as caught:
        quotas.take(caller, 4)
    assert caught.value.again_s == DAY_S - 5.0
    again = Quotas(tmp_path, lambda: now_s[0])
    assert again.left(caller) == 3
    now_s[0] += DAY_S
    assert again.left(caller) == 10 and again.taken() == {}


def test_calls_come_at_a_rate_after_a_burst(tmp_path):
    file = CallersFile(tmp_path)
    caller = file.with_token(file.new("web", 10, 2.0))
    now_s = [1000.0]
    quotas = Quotas(tmp_path, lambda: now_s[0])
    for _ in range(4):  # two seconds' worth
        quotas.called(caller)
    with pytest.raises(TooMuch, match="2 times a second") as caught:
        quotas.called(caller)
    assert caught.value.again_s == 0.5
    now_s[0] += 0.5
    quotas.called(caller)
    with pytest.raises(TooMuch):
        quotas.called(caller)


def test_files_of_old_days_are_deleted(tmp_path):
    (tmp_path / "callers").mkdir()
    for day in range(40):
        (tmp_path / "callers" / f"2020-01-{day:02d}.jsonl").write_text("")
    Quotas(tmp_path).taken()
    assert len(list((tmp_path / "callers").iterdir())) == 31


# -- gathering -------------------------------------------------------------------------------------------------------


class Gate:
    """Answers when it is opened; remembers what it was asked."""

    def __init__(self):
        self.asked, self.open = [], threading.Event()

    def ask(self, ids):
        self.asked.append(list(ids))
        assert self.open.wait(30)
        if "secret" in ids:
            raise Refused("not that one.")
        if "broken" in ids:
            raise PeerFailed("away.")
        return scored(ids)


def gathered(questions, places=1):
    gate = Gate()

    async def all_at_once():
        gathering = Gathering(gate.ask, places)
        tasks = [asyncio.create_task(gathering.scores(list(ids))) for ids in questions]
        while len(gate.asked) < 1:
            await asyncio.sleep(0)
        gate.open.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        gathering.close()
        return answers

    return asyncio.run(all_at_once()), gate.asked


def test_what_waits_goes_out_together_and_everybody_gets_its_own_rows():
    answers, asked = gathered([["a"], ["bb", "ccc"], ["dddd"]])
    assert asked == [["a"], ["bb", "ccc", "dddd"]]
    assert [answer.scores for answer in answers] == [[1.0], [2.0, 3.0], [4.0]]


def test_a_free_place_is_taken_at_once():
    answers, asked = gathered([["a"], ["bb"]], places=2)
    assert sorted(asked) == [["a"], ["bb"]]
    assert [answer.scores for answer in answers] == [[1.0], [2.0]]


def test_a_refusal_meets_the_one_whose_rows_were_refused():
    answers, asked = gathered([["a"], ["secret"], ["bb"]])
    assert asked == [["a"], ["secret", "bb"], ["secret"], ["bb"]]
    assert answers[0].scores == [1.0] and answers[2].scores == [2.0]
    assert isinstance(answers[1], Refused)


def test_a_party_that_is_away_fails_all_that_asked_together():
    answers, _ = gathered([["a"], ["broken"], ["bb"]])
    assert [type(answer) for answer in answers] == [Predicted, PeerFailed, PeerFailed]


# -- batches ---------------------------------------------------------------------------------------------------------


def begun(batches, ids, caller="web"):
    folder = batches.room(caller)
    (folder / "ids.txt").write_text("".join(f"{i}\n" for i in ids))
    return batches.begin(folder, caller, len(ids)).name


def ended(batches, name):
    batches._workers.shutdown(wait=True)
    return batches.state(name, "web")


def test_a_batch_is_scored_part_by_part_in_order(tmp_path):
    asked = []

    def ask(ids):
        asked.append(len(ids))
        return scored(ids)

    batches = Batches(tmp_path, "run-1", ask, rows_in_part=4)
    ids = ["a", "bb", "x", 'q"u,ote', "eeeee", "f"]
    state = ended(batches, begun(batches, ids))
    assert (state.standing, state.done, sorted(asked)) == ("done", 6, [2, 4])
    text = batches.rows_file(state.name).read_bytes()
    assert len(text) == state.size
    assert text == HEAD + b'a,1.0,0.5\nbb,2.0,0.5\nx,,\n"q""u,ote",7.0,0.5\neeeee,5.0,0.5\nf,1.0,0.5\n'


def test_a_batch_is_taken_up_where_it_was_left_and_half_a_part_is_written_again(tmp_path):
    first = Batches(tmp_path, "run-1", scored, rows_in_part=2)
    name = begun(first, ["a", "bb", "ccc", "dddd"])
    whole = ended(first, name)
    text = first.rows_file(name).read_bytes()
    state_file = tmp_path / "batches" / name / "state.json"
    kept = json.loads(state_file.read_text())
    size = len(HEAD + b"a,1.0,0.5\nbb,2.0,0.5\n")
    state_file.write_text(json.dumps({**kept, "standing": "working", "done": 2, "size": size}))
    first.rows_file(name).write_bytes(text[: size + 3])  # killed while it wrote
    asked = []
    again = Batches(tmp_path, "run-1", lambda ids: asked.append(ids) or scored(ids), rows_in_part=2)
    again.start()
    assert ended(again, name) == whole
    assert asked == [["ccc", "dddd"]]
    assert again.rows_file(name).read_bytes() == text


def test_a_peer_that_is_away_delays_a_batch_and_a_refusal_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(batches_module, "PAUSE_S", 0.0)
    troubles = [PeerFailed("away."), PeerFailed("away.")]

    def ask(ids):
        if troubles:
            raise troubles.pop()
        return scored(ids)

    batches = Batches(tmp_path, "run-1", ask)
    assert ended(batches, begun(batches, ["a"])).standing == "done"

    def refuse(ids):
        raise Refused("row_cap.")

    refused = Batches(tmp_path, "run-1", refuse)
    state = ended(refused, begun(refused, ["a"]))
    assert (state.standing, state.reason, state.done) == ("failed", "row_cap.", 0)


def test_a_full_disk_delays_a_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(batches_module, "PAUSE_S", 0.0)
    write, fits = batches_module.write_durably, [True, True, False, False, True, True, False]

    def written(path, content):
        if fits and not fits.pop(0):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(batches_module, "write_durably", written)
    batches = Batches(tmp_path, "run-1", scored, rows_in_part=2)
    state = ended(batches, begun(batches, ["a", "bb", "ccc"]))
    assert (state.standing, state.done, fits) == ("done", 3, [])
    assert batches.rows_file(state.name).read_bytes() == HEAD + b"a,1.0,0.5\nbb,2.0,0.5\nccc,3.0,0.5\n"
    assert json.loads((tmp_path / "batches" / state.name / "state.json").read_bytes())["standing"] == "done"


def test_what_nobody_foresaw_ends_a_batch_and_does_not_leave_it_at_work_for_ever(tmp_path, caplog):
    def broken(ids):
        raise ZeroDivisionError("secret detail")

    batches = Batches(tmp_path, "run-1", broken)
    state = ended(batches, begun(batches, ["a"]))
    assert (state.standing, "secret" in state.reason, "secret detail" in caplog.text) == ("failed", False, True)


def test_old_batches_of_other_runs_go_too(tmp_path):
    elsewhere = Batches(tmp_path, "run-0", scored)
    names = [begun(elsewhere, ["a"]) for _ in range(2)]
    ended(elsewhere, names[0])
    state_file = tmp_path / "batches" / names[0] / "state.json"
    state_file.write_text(json.dumps({**json.loads(state_file.read_text()), "at_s": 1.0}))
    Batches(tmp_path, "run-1", scored).start()
    assert [path.name for path in (tmp_path / "batches").iterdir()] == names[1:]


def test_batches_are_their_callers_and_are_deleted_once_over(tmp_path):
    batches = Batches(tmp_path, "run-1", scored)
    name = begun(batches, ["a"])
    ended(batches, name)
    with pytest.raises(BadInput, match="no batch"):
        batches.state(name, "other")
    batches.remove(name, "web")
    assert not (tmp_path / "batches" / name).exists()
    with pytest.raises(BadInput, match="no batch"):
        batches.state(name, "web")


def test_half_an_upload_is_gone_after_a_restart(tmp_path):
    batches = Batches(tmp_path, "run-1", scored)
    folder = batches.room("web")
    (folder / "ids.txt").write_text("a\n")
    Batches(tmp_path, "run-1", scored).start()
    assert not folder.exists()


def test_an_upload_to_another_runs_service_survives_a_start(tmp_path):
    elsewhere = Batches(tmp_path, "run-0", scored)
    arriving, unwritten = elsewhere.room("web"), elsewhere.folder / "batch-0"
    unwritten.mkdir()  # its state is about to be written
    Batches(tmp_path, "run-1", scored).start()
    assert arriving.is_dir() and unwritten.is_dir()


def test_one_service_of_a_run_at_a_time(tmp_path):
    first = Batches(tmp_path, "run-1", scored)
    first.hold()
    with pytest.raises(BadInput, match="scoring service for run 'run-1'"):
        Batches(tmp_path, "run-1", scored).hold()
    Batches(tmp_path, "run-2", scored).hold()
    first.stop()
    Batches(tmp_path, "run-1", scored).hold()


def test_two_services_over_one_home_give_a_caller_one_quota(tmp_path):
    web = Caller("web", "digest", rows_a_day=10)
    here, there = Quotas(tmp_path), Quotas(tmp_path)
    assert (here.take(web, 4), there.take(web, 4)) == (6, 2)
    with pytest.raises(TooMuch, match="has 2 left"):
        here.take(web, 4)
    assert here.left(web) == there.left(web) == 2


# -- the description -------------------------------------------------------------------------------------------------


def test_every_reference_of_the_description_is_there_and_the_page_shows_every_route():
    described = openapi("credit-1", "1.0")
    text = json.dumps(described)
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(described["components"]["schemas"])
    shown = str(page(described))
    assert all(path in shown for path in described["paths"])
    assert "http-equiv" in shown.lower() and "<script src" not in shown
