"""A folder that is followed while it is written: what is seen, what is not yet, and how much is kept of it."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from live_samples import PARTIES, Writing, row
from report_samples import hostile_record, sample_record

from offbeat.data.vertical import vertical_from_dataset
from offbeat.errors import BadInput
from offbeat.jobs.vertical import Job
from offbeat.metrics.live import forget_live, read_now
from offbeat.metrics.plain import encode_plain
from offbeat.metrics.record import CURVE_FILE, RECORD_FILE, Certificate
from offbeat.report import live
from offbeat.report.live import KEPT, Follower, Tail, ThinnedRows, View, check_folder
from offbeat.report.live_page import live_page, parts_of, state_of, title_of
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import write_record


def test_a_folder_before_during_and_after_its_run(tmp_path):
    follower = Follower(tmp_path)
    assert follower.look().standing == "waiting"
    (tmp_path / "job.toml").write_text("seed = 7\n")
    assert follower.look().standing == "preparing"
    run = Writing(tmp_path)
    assert follower.look().standing == "preparing"
    run.look(3)
    view = follower.look()
    assert (view.standing, view.looks, view.now.parties) == ("running", 3, PARTIES)
    assert follower.look() is None
    run.certify(0.02)
    view = follower.look()
    assert (view.looks, view.certificate, view.certified_s) == (4, Certificate(0.002, 0.02), 1.5)
    record = run.finish()
    view = follower.look()
    assert (view.standing, view.over, view.looks) == ("ended", True, len(record.curve))
    assert view.record.verdict == record.verdict


def test_a_half_written_line_counts_as_not_yet_written(tmp_path):
    run, follower = Writing(tmp_path), Follower(tmp_path)
    run.look(2)
    line = encode_plain(row(2)) + b"\n"
    with (tmp_path / CURVE_FILE).open("ab", buffering=0) as file:
        file.write(line[:30])
        view = follower.look()
        assert (view.looks, view.damaged) == (2, 0)
        file.write(line[30:])
        view = follower.look()
    assert (view.looks, view.damaged, view.curve[-1]) == (3, 0, row(2))


def test_a_damaged_line_is_left_out_and_told_of(tmp_path):
    run, follower = Writing(tmp_path), Follower(tmp_path)
    run.look()
    with (tmp_path / CURVE_FILE).open("ab") as file:
        file.write(b'{"time_s": "soon"}\nnonsense\n')
    view = follower.look()
    assert (view.looks, view.damaged) == (1, 2)
    assert "2 lines that could not be read" in parts_of(view)["looks"]


def test_another_run_in_the_folder_is_followed_from_its_beginning(tmp_path):
    follower = Follower(tmp_path)
    Writing(tmp_path).look(5)
    assert follower.look().looks == 5
    again = Writing(tmp_path)
    again.look(2)
    assert follower.look().looks == 2
    again.look(7)
    assert follower.look().looks == 9


def test_a_run_whose_process_is_gone_is_broken_off(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run, follower = Writing(tmp_path), Follower(tmp_path)
    assert run.live.now.process == os.getpid()
    run.look()
    assert follower.look().standing == "running"
    mine = (tmp_path / "live.json").read_text()
    (tmp_path / "live.json").write_text(mine.replace(f'"process":{os.getpid()}', f'"process":{gone.pid}'))
    view = follower.look()
    assert (view.standing, view.looks) == ("broken off", 1)
    assert "Its process is gone" in parts_of(view)["standing"]
    (tmp_path / "live.json").write_text(mine.replace(f'"host":"{run.live.now.host}"', '"host":"elsewhere"'))
    assert follower.look().standing == "running"


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="asks the system's own list of processes")
def test_a_process_that_nobody_has_waited_for_is_gone_all_the_same(tmp_path):
    run = Writing(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert ended.stdout.read() == b""
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays in the list
    now = msgspec.structs.replace(run.live.now, process=ended.pid)
    (tmp_path / "live.json").write_bytes(encode_plain(now))
    assert Follower(tmp_path).look().standing == "broken off"
    ended.communicate()


def test_a_run_that_failed_says_why(tmp_path):
    run = Writing(tmp_path)
    run.live.end("failed", "shop <went> away")
    view = Follower(tmp_path).look()
    assert (view.standing, view.reason) == ("failed", "shop <went> away")
    assert "shop &lt;went&gt; away" in parts_of(view)["standing"]


def test_a_record_that_cannot_be_read_is_told_of(tmp_path):
    (tmp_path / RECORD_FILE).write_text("{}")
    view = Follower(tmp_path).look()
    assert view.standing == "unreadable" and "record.json" in view.reason


def test_a_folder_that_vanishes_is_waited_for(tmp_path):
    folder = tmp_path / "run"
    run, follower = Writing(folder), Follower(folder)
    run.look()
    assert follower.look().looks == 1
    folder.rename(tmp_path / "run-before")
    view = follower.look()
    assert (view.standing, view.looks) == ("waiting", 0)


def test_much_is_read_in_parts(tmp_path, monkeypatch):
    run, follower = Writing(tmp_path), Follower(tmp_path)
    run.look(10)
    line = len(encode_plain(row(9)) + b"\n")
    monkeypatch.setattr(live, "READ_MOST", 3 * line)
    seen = [view.looks for view in iter(follower.look, None)]
    assert len(seen) > 2 and seen == sorted(seen) and seen[-1] == 10


def test_a_line_without_end_does_not_stop_the_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "READ_MOST", 10)
    path = tmp_path / "long"
    path.write_bytes(b"x" * 25 + b"\nyes\n")
    tail = Tail(path)
    assert [tail.lines()[1] for _ in range(4)] == [[], [], [b"xxxxx", b"yes"], []]
    assert tail.damaged == 2


def test_of_many_looks_some_are_kept_evenly_with_the_last():
    kept = ThinnedRows()
    for number in range(10_000):
        kept.add(row(number))
    rows = list(kept)
    assert len(rows) <= 2 * KEPT
    assert (rows[0], rows[-1]) == (row(0), row(9_999))
    assert {round(8 * (after.passes - before.passes)) for before, after in pairwise(rows[:-1])} == {32}


def test_certificates_of_processes_are_seen_once_each(tmp_path):
    run, follower = Writing(tmp_path, runtime="processes", clock="wall"), Follower(tmp_path)
    assert follower.look().standing == "preparing"
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "bank.log").write_bytes(b"x" * 2000)
    (tmp_path / "observed").mkdir()
    told = {"objective": 0.5, "gradient_norm": 0.1, "gap": 0.02, "passes": 1.0}
    with (tmp_path / "observed" / "bank.jsonl").open("ab", buffering=0) as file:
        for at_s, snapshot in ((1.0, 0), (2.0, 1), (1.0, 0), (2.0, 1), (3.0, 2)):
            file.write(encode_plain([at_s, {"snapshot": snapshot, **told}]) + b"\n")
        file.write(b"[4.0,")
    view = follower.look()
    assert (view.standing, [seen.time_s for seen in view.curve]) == ("running", [1.0, 2.0, 3.0])
    assert (view.certificate, view.logged) == (Certificate(0.1, 0.02), {"bank": 2000})
    assert "2 kB" in parts_of(view)["parties"] and "1.0 of at most 20 passes" in parts_of(view)["figures"]
    run.live.end("ending")
    forget_live(tmp_path)
    assert not (tmp_path / "observed").exists()


def test_actors_of_a_cluster_show_their_logs(tmp_path):
    Writing(tmp_path, runtime="ray", clock="wall")
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "bank.log").write_bytes(b"x" * 2000)
    view = Follower(tmp_path).look()
    assert (view.standing, view.logged) == ("running", {"bank": 2000})
    assert "how much it has logged." in parts_of(view)["parties"]


def test_folders_that_no_run_can_be_in(tmp_path):
    with pytest.raises(BadInput, match="There is no folder"):
        check_folder(tmp_path / "nowhere")
    check_folder(tmp_path)
    (tmp_path / "letters.txt").write_text("Dear")
    with pytest.raises(BadInput, match="is not a run folder"):
        check_folder(tmp_path)
    (tmp_path / "job.toml").write_text("")
    check_folder(tmp_path)
    (tmp_path / "job.toml").write_text('[[party]]\nfile = "bank.csv"')
    with pytest.raises(BadInput, match="is a job to be run"):
        check_folder(tmp_path)
    (tmp_path / "job.toml").write_text(f'[[party]]\nfile = "{tmp_path}/bank.csv"')
    check_folder(tmp_path)


def test_a_real_run_is_seen_row_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr("offbeat.metrics.live.EVERY_S", 0.0)
    follower, views = Follower(tmp_path), []

    def watch(glance):
        views.append(follower.look())
        return True

    data = vertical_from_dataset("credit-like@0.02", parties=["bank", "shop", "telecom"])
    record = run_experiment(data, Job(algorithm="vfb2-svrg", passes=3, seed=3), folder=tmp_path, watch=watch).record
    assert [view.looks for view in views] == list(range(1, len(views) + 1))
    assert views[-1].now.parties["bank"].messages > 0
    assert views[-1].certificate.duality_gap is not None
    assert read_now(tmp_path).phase == "ending"
    write_record(record, tmp_path)
    assert follower.look().record.digest == record.digest


# -- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture
def view(tmp_path):
    run = Writing(tmp_path)
    run.look(4)
    run.certify(0.02)
    run.look(4)
    return Follower(tmp_path).look()


def test_the_page_shows_how_far_the_run_is_and_who_is_behind(view):
    parts = parts_of(view)
    assert title_of(view) == "afsvrg-vp with 3 parties, simulator, seed 7"
    assert "Running" in parts["standing"]
    assert "1.0 of at most 20 passes" in parts["figures"] and "2,600" in parts["figures"]
    assert "within 0.02 of the best possible, an upper bound. It was there by 2 s." in parts["certificate"]
    assert parts["charts"].count("<svg") == 2 + 2  # two charts, two samples of their strokes
    assert "Certified bound" in parts["looks"] and "Test metric" not in parts["looks"]
    assert "Fewest updates: shop, 25.0 % of those of bank, who made most." in parts["parties"]


def test_the_frame_holds_the_parts_and_nothing_from_elsewhere(view):
    page = live_page(view)
    for name, part in parts_of(view).items():
        assert f'<div id="{name}">' not in part and f'id="{name}">{part}</div>' in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    assert "src=" not in page and "style=" not in page and "onclick" not in page


def test_the_state_is_plain(view):
    state = state_of(view)
    assert state.keys() == {"title", "over", "news_s", "parts"}
    assert all(type(part) is str for part in state["parts"].values())


def test_hostile_names_stay_text(tmp_path):
    record = hostile_record()
    record.write(tmp_path)
    page = live_page(Follower(tmp_path).look())
    assert "<script>alert" not in page and "<img" not in page


def test_horizontal_runs_count_updates(tmp_path):
    run = Writing(tmp_path, algorithm="steady", goal=30, unit="updates")
    run.look(9)
    parts = parts_of(Follower(tmp_path).look())
    assert "1.0 of at most 30 updates" in parts["figures"] and ">Updates</th>" in parts["looks"]
    assert ">updates</text>" in parts["charts"] and ">passes</text>" not in parts["charts"]
    record = msgspec.structs.replace(sample_record(), options={"updates": 30})
    record.write(tmp_path)
    assert ">updates</text>" in parts_of(Follower(tmp_path).look())["charts"]


def test_nothing_to_show_is_said():
    assert "The folder is empty" in live_page(View("run", "waiting"))
