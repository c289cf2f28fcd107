"""Nobody looks into another process, and yet a run between processes shows its certificates while it goes on."""

from offbeat.families.vertical_data import load_data
from offbeat.jobs.runtime import RuntimeEntry
from offbeat.jobs.vertical import DataEntry, Job
from offbeat.metrics.live import LIVE_FILE, OBSERVED
from offbeat.report.live import Follower
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import write_record


def certificates(curve):
    """All but their times: a process writes one down a moment after it was computed."""
    return [(row.passes, row.objective, row.gradient_norm, row.gap) for row in curve if row.gradient_norm is not None]


def test_the_certificates_as_they_came_are_those_of_the_curve(tmp_path):
    entry = DataEntry(set="credit-like@0.02", parties=["bank", "shop", "telecom"])
    job = Job(
        algorithm="vfb2-svrg", passes=4, seed=3, optimum=False, data=entry, runtime=RuntimeEntry(kind="processes")
    )
    record = run_experiment(load_data(job), job, folder=tmp_path).record
    follower = Follower(tmp_path)
    view = follower.look()
    certified = certificates(record.curve)
    assert len(certified) >= 3
    assert certificates(view.curve)[: len(certified)] == certified
    assert set(view.logged) == {"bank", "shop", "telecom"} and all(view.logged.values())
    write_record(record, tmp_path)
    assert not (tmp_path / OBSERVED).exists() and not (tmp_path / LIVE_FILE).exists()
    assert follower.look().record.digest == record.digest
