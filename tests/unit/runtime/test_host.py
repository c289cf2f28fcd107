"""A party on its host, without any network: what its folder holds when it ends, and who comes back from it."""

from math import inf

import numpy as np
import pytest

from offbeat.message.codec import Codec
from offbeat.party.contract import Compute, Computed, Finish, Message, Observe, Send, Started, Wake, Woken
from offbeat.runtime.eventlog import read_log
from offbeat.runtime.host import HostOptions, PartyHost
from offbeat.runtime.recovery import carry_over, header_of, log_path, recover


class Unsaid(Message, frozen=True, tag=True, array_like=True):
    """Reveals: nothing; it is never sent."""


class Said(Message, frozen=True, tag=True, array_like=True):
    """Reveals: a number."""

    number: int


CODEC = Codec([Unsaid])


class Worker:
    """Does so many jobs, one after the other, and sums up their results; each result is another one if done again."""

    name = "ana"

    def __init__(self, jobs, draw=None):
        self.jobs, self.sum, self.started = jobs, 0, []
        self.draw = draw or iter(range(100, 200))

    def handle(self, event):
        if type(event) is Started:
            self.started.append(event.resumed)
        if type(event) is Computed:
            self.sum += event.result
            self.jobs -= 1
        if type(event) is Woken:
            return []
        return [Compute(self.jobs, 0, 0, lambda: next(self.draw)), Wake(1e6)] if self.jobs else [Finish("passes", "")]

    def snapshot(self):
        return {"jobs": self.jobs, "sum": self.sum}

    def restore(self, state):
        self.jobs, self.sum = state["jobs"], state["sum"]


def carried(party, folder, **options):
    host = PartyHost(party, CODEC, HostOptions(folder=folder, resume=True, **options), lambda step: None)
    host.begin()
    host.run()
    host.close()
    return host


class Teller(Worker):
    """Also tells the record numbers out of arrays."""

    def handle(self, event):
        return [Observe("losses", {"mean": np.float64(0.5), "each": np.arange(2.0)}), *super().handle(event)]


def test_a_number_out_of_an_array_that_was_observed_is_kept_in_a_checkpoint(tmp_path):
    carried(Teller(3), tmp_path, keep_results=True, checkpoint_s=0.0)
    again = recover(Teller(3), CODEC, tmp_path)
    told = [(name, float(value["mean"]), list(value["each"])) for _, name, value in again.drive.observed]
    assert told == [("losses", 0.5, [0.0, 1.0])] * 4


@pytest.mark.parametrize("checkpoint_s", [0.0, inf])
@pytest.mark.parametrize("keep_log", [True, False])
def test_a_finished_party_comes_back_finished(keep_log, checkpoint_s, tmp_path):
    first = Worker(5)
    host = carried(first, tmp_path, keep_log=keep_log, keep_results=True, checkpoint_s=checkpoint_s)
    again = recover(Worker(5, draw=iter(())), CODEC, tmp_path)
    assert again.drive.finished == Finish("passes", "") and again.drive.party.sum == first.sum == 510
    assert (again.drive.digest, again.drive.events) == (host.drive.digest, 6)
    logs = [path.name for path in (tmp_path / "events").iterdir()]
    assert len(logs) == 1 and (logs == ["ana.log"]) == keep_log


@pytest.mark.parametrize("checkpoint_s", [0.0, inf])
def test_a_result_that_cannot_be_had_twice_comes_from_the_log(checkpoint_s, tmp_path):
    first = Worker(5)
    carried(first, tmp_path, keep_results=True, checkpoint_s=checkpoint_s)
    again = recover(Worker(5, draw=iter(())), CODEC, tmp_path, from_start=True)
    assert again.drive.party.sum == first.sum and again.marks == 1


def test_a_party_keeps_its_memory_for_another_run_with_other_options(tmp_path):
    carried(Worker(5), tmp_path, keep_log=False, keep_results=True, run_name="one")
    again = Worker(9)
    carry_over(again, CODEC, tmp_path, "two")
    assert (again.jobs, again.sum) == (0, 510)
    host = carried(again, tmp_path, keep_log=False, run_name="two")
    assert again.started == [True] and host.drive.finished == Finish("passes", "")
    (log,) = (tmp_path / "events").iterdir()
    assert header_of(log).run == "two" and log != log_path(tmp_path, "ana")


class Talker(Worker):
    """Says something at every event."""

    def handle(self, event):
        return [Send("peer", Said(self.sum)), *super().handle(event)]


@pytest.mark.parametrize("batch_events", [1, 32])
def test_an_event_is_on_the_disk_before_what_it_caused_leaves(batch_events, tmp_path):
    """What is charged while an event is handled is charged again by whoever reads the log: nothing leaves sooner."""
    left = []

    def send(written):
        left.append(written)
        kinds = [type(record).__name__ for _, record in read_log(log_path(tmp_path, "ana"))]
        assert sum(kind in ("LogStarted", "LogComputed") for kind in kinds) >= len(left)

    options = HostOptions(folder=tmp_path, resume=True, batch_events=batch_events, fsync=True)
    host = PartyHost(Talker(5), Codec((Said,)), options, send)
    host.begin()
    host.run()
    host.close()
    assert len(left) == 6
