"""A run is seen in its folder while it goes on: its looks as they come, at a bounded rate, and nothing left behind."""

import json
import logging
import os

import pytest

from offbeat.data.vertical import vertical_from_dataset
from offbeat.errors import PeerFailed
from offbeat.families.horizontal import load_edges
from offbeat.jobs.horizontal import edge_job_from
from offbeat.jobs.runtime import RuntimeEntry
from offbeat.jobs.vertical import Job
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.live import EVERY_S, LIVE_FILE, LiveRun, Now, PartyNow, forget_live, live_run, read_now
from offbeat.metrics.plain import encode_plain
from offbeat.metrics.record import CURVE_FILE, Certificate
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import write_record

ABOUT = Now(algorithm="afsvrg-vp", runtime="simulator", clock="virtual", seed=7, goal=6.0)


def lines(folder):
    return (folder / CURVE_FILE).read_bytes().splitlines()


def row(number):
    return CurveRow(float(number), number / 8, 100 * number, 0.5)


def nobody():
    return {}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_looks_are_written_at_a_bounded_rate_and_none_is_lost(tmp_path):
    clock, asked = Clock(), []

    def parties():
        asked.append(clock.now)
        return {"bank": PartyNow(len(asked), 1.5, 3, 10, 1000)}

    live = LiveRun(tmp_path, ABOUT, clock)
    for number in range(100):
        clock.now = number * EVERY_S / 10
        live.look(row(number), None, parties)
    assert len(asked) == 10
    assert len(lines(tmp_path)) == 91
    assert read_now(tmp_path).parties["bank"].updates == 10
    live.end("ending")
    assert [json.loads(line)["time_s"] for line in lines(tmp_path)] == list(range(100))
    assert (read_now(tmp_path).phase, read_now(tmp_path).time_s) == ("ending", 99.0)


def test_a_certificate_is_in_its_row_and_stays_known(tmp_path):
    clock = Clock()
    live = LiveRun(tmp_path, ABOUT, clock)
    live.look(row(0), Certificate(0.1, 0.02), nobody)
    clock.now = 1.0
    live.look(row(1), None, nobody)
    assert [json.loads(line)["gap"] for line in lines(tmp_path)] == [0.02, None]
    assert read_now(tmp_path).certificate == Certificate(0.1, 0.02)


def test_a_run_says_who_is_at_it_and_why_it_failed(tmp_path):
    with pytest.raises(PeerFailed), live_run(tmp_path, ABOUT):
        assert read_now(tmp_path).phase == "preparing"
        assert read_now(tmp_path).process == os.getpid()
        raise PeerFailed("shop went away")
    assert (read_now(tmp_path).phase, read_now(tmp_path).reason) == ("failed", "shop went away")


def test_a_repeated_run_begins_anew(tmp_path):
    with live_run(tmp_path, ABOUT) as live:
        live.look(row(0), None, nobody)
    first = read_now(tmp_path).run
    with live_run(tmp_path, ABOUT) as live:
        live.look(row(5), None, nobody)
        assert read_now(tmp_path).run != first
    assert [json.loads(line)["time_s"] for line in lines(tmp_path)] == [5.0]


def test_what_cannot_be_read_says_nothing(tmp_path):
    assert read_now(tmp_path) is None
    (tmp_path / LIVE_FILE).write_text('{"algorithm": "x"')
    assert read_now(tmp_path) is None
    forget_live(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_ends_the_writing_and_not_the_run(tmp_path, caplog):
    (tmp_path / CURVE_FILE).mkdir()
    with caplog.at_level(logging.WARNING), live_run(tmp_path, ABOUT) as live:
        for number in range(3):
            live.look(row(number), None, nobody)
    assert caplog.text.count("cannot be watched") == 1


# -- real runs -------------------------------------------------------------------------------------------------------


def linear(folder, kind="simulator", algorithm="vfb2-svrg", watch=None):
    data = vertical_from_dataset("credit-like@0.02", parties=["bank", "shop", "telecom"])
    job = Job(algorithm=algorithm, passes=4, seed=3, optimum=False, runtime=RuntimeEntry(kind=kind))
    return run_experiment(data, job, folder=folder, watch=watch)


def vafl(folder, kind="simulator"):
    data = vertical_from_dataset("credit-like@0.02", parties=["bank", "shop", "telecom"])
    return run_experiment(data, Job(algorithm="vafl", passes=2, seed=2, runtime=RuntimeEntry(kind=kind)), folder=folder)


def edges(folder, kind="simulator"):
    tree = {
        "algorithm": "steady", "updates": 30, "batch": 40, "seed": 3, "model": {"row_norm": 4.0},
        "rate": {"step": 0.5, "clip": 1.0}, "privacy": {"epsilon": 8.0, "uploads": 12}, "runtime": {"kind": kind},
        "data": {"set": "digits-like", "edges": 3, "limit_rows": 600},
    }  # fmt: skip
    job = edge_job_from(tree, "test", None)
    return run_experiment(load_edges(job), job, folder=folder)


@pytest.mark.parametrize("kind", ["simulator", "threads"])
@pytest.mark.parametrize("run", [linear, vafl, edges])
def test_the_looks_as_they_came_are_those_of_the_curve(run, kind, tmp_path):
    record = run(tmp_path, kind).record
    came, curve = lines(tmp_path), [encode_plain(row) for row in record.curve]
    assert came and set(came) <= set(curve)
    assert kind == "threads" or came == curve[: len(came)]
    now = read_now(tmp_path)
    assert now.phase == "ending" and set(now.parties) == set(record.parties)
    assert all(party.messages is not None and party.bytes is not None for party in now.parties.values())
    write_record(record, tmp_path)
    assert lines(tmp_path) == curve
    assert not (tmp_path / LIVE_FILE).exists()


def test_the_folder_shows_a_run_while_it_goes_on(tmp_path):
    seen = []

    def watch(glance):
        seen.append((len(lines(tmp_path)), read_now(tmp_path)))
        return True

    record = linear(tmp_path, watch=watch).record
    phases = [now.phase for _, now in seen]
    assert phases == ["running"] * len(phases)
    assert seen[0][0] == 1
    assert seen[-1][1].parties.keys() == record.parties.keys()
    assert any(json.loads(line)["gap"] is not None for line in lines(tmp_path))


def test_being_watched_changes_nothing(tmp_path):
    assert linear(tmp_path).record.digest == linear(None).record.digest
