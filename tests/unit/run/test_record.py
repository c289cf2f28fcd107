"""What a record says of a run: its last certificate, how it ended, what was disclosed, and nothing that is not so."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from offbeat.algorithms import vfb2
from offbeat.algorithms.vafl import messages as vafl_messages
from offbeat.data.vertical import vertical_from_arrays
from offbeat.families.contract import Part
from offbeat.jobs.runtime import RuntimeEntry
from offbeat.jobs.vertical import Job
from offbeat.report.summary import summary
from offbeat.report.wording import verdict
from offbeat.run.experiment import run_experiment
from offbeat.run.record import COEFFICIENTS_TOLD, largest_coefficients, reveals_of


def generated(rows=600):
    rng = np.random.default_rng(4)
    blocks = {name: rng.standard_normal((rows, 3)) for name in ("bank", "shop", "telecom")}
    score = np.hstack(list(blocks.values())).sum(axis=1) + rng.logistic(size=rows)
    return vertical_from_arrays(blocks, np.where(score > 0, 1.0, -1.0), ["bank"], test_fraction=0.25)


def record_of(runtime=None, **keys):
    job = Job(**{"algorithm": "vfb2-svrg", "passes": 12.0, "penalty": 1e-3, "optimum": False, **keys})
    return run_experiment(generated(), job if runtime is None else replaced(job, runtime)).record


def replaced(job, runtime):
    return Job(**{**{name: getattr(job, name) for name in job.__struct_fields__}, "runtime": runtime})


# -- the last certificate ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["vfb2-svrg", "afsaga-vp", "fsvrg-vp"])
def test_the_curve_ends_with_the_certificate_that_ended_the_run(algorithm):
    record = record_of(algorithm=algorithm, passes=80.0, target=1e-5)
    assert record.verdict == "target"
    gaps = [row.gap for row in record.curve if row.gap is not None]
    assert gaps[-1] == record.certificate.duality_gap <= 1e-5
    for axis in ("time_s", "passes", "bytes"):
        values = [getattr(row, axis) for row in record.curve]
        assert values == sorted(values)
    assert record.curve[-1].time_s <= record.seconds


def test_a_certificate_after_the_last_look_is_no_look():
    """Times to a target are those of looks: a row for a certificate must not add to them."""
    record = record_of(passes=80.0, target=1e-5, optimum=True)
    added = [row for row in record.curve if row.objective is None]
    assert added == list(record.curve[len(record.curve) - len(added) :]) and len(added) == 1
    assert added[0].suboptimality is None and added[0].test_metric is None


# -- how it ended ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["simulator", "threads"])
def test_a_limit_of_time_is_a_verdict_and_no_failure(kind):
    record = record_of(RuntimeEntry(kind=kind, until_s=0.05), passes=1e6)
    assert (record.verdict, record.exit_code) == ("time", 0)
    assert record.reason.startswith("stopped at the limit of 0.05 ") and record.reason.endswith("is kept")
    assert not any("did not end by itself" in warning for warning in record.warnings)
    assert verdict(record)[0] == "Used all its time"


def test_a_model_that_nobody_certified_before_the_limit_is_not_called_certified():
    record = record_of(RuntimeEntry(until_s=1e-3), algorithm="vfb2-sgd")
    assert record.verdict == "time" and record.certificate.duality_gap is None
    assert record.reason.endswith("none was certified yet: the model as it was is kept")


def test_a_limit_of_time_ends_vafl_by_the_same_verdict():
    job = Job(algorithm="vafl", passes=1e6, step=0.1, runtime=RuntimeEntry(until_s=0.5))
    record = run_experiment(generated(), job).record
    assert (record.verdict, record.exit_code) == ("time", 0)
    assert not any("did not end by itself" in warning for warning in record.warnings)


# -- warnings ----------------------------------------------------------------------------------------------------------


def test_faults_that_a_runtime_does_not_know_were_not_injected():
    record = record_of(RuntimeEntry(kind="threads", faults="crash"), passes=2.0)
    told = " ".join(record.warnings)
    assert "does not know runtime.faults" in told and "injected on purpose" not in told
    assert "injected on purpose: loss" in " ".join(record_of(RuntimeEntry(faults="loss"), passes=2.0).warnings)


def test_with_private_labels_it_is_the_answer_that_shows():
    record = record_of(label_dp_epsilon=2.0, passes=4.0)
    assert record.warnings[0] == (
        "Random answers in place of the labels are disclosed: the labels stay at bank, but shop, telecom received "
        "derivatives whose sign is the answer that was drawn for the label, not the label."
    )
    said = {row.message: row.reveals for row in record.reveals}
    for message in ("Backward", "TablePart"):
        assert "answer that was drawn at random for the label" in said[message], message
        assert "its sign is the label" not in said[message]
    console = Console(width=2000, file=StringIO())
    console.print(summary(record))
    text = console.file.getvalue()
    assert "Labels are disclosed" not in text and "sign is the label" not in text
    everywhere = record_of(algorithm="afsaga-vp", label_dp_epsilon=2.0, passes=2.0)
    assert everywhere.warnings[0].startswith("Random answers in place of the labels were given to every party")


def test_what_a_message_reveals_depends_on_private_labels_only_where_it_says_so():
    plain = reveals_of(vfb2.Backward)
    assert "its sign is the label" in plain and "label_dp_epsilon" not in plain
    assert reveals_of(vfb2.Stepped, private_labels=True) == reveals_of(vfb2.Stepped)
    assert "not the label" in reveals_of(vafl_messages.Gradient, private_labels=True)


def test_the_largest_coefficients_of_each_party_are_told_by_name():
    weights = np.array([0.5, -3.0, 0.0, *np.full(12, 0.1)])
    named = [f"c{place}" for place in range(15)]
    told = largest_coefficients(
        {
            "bank": Part({"weights": weights}, named),
            "shop": Part({"weights": weights}),  # columns without names
            "deep": Part({"trained": weights}, named),
            "several": Part({"weights": np.ones((3, 15))}, named),
        }
    )
    assert list(told) == ["bank"] and len(told["bank"]) == COEFFICIENTS_TOLD
    assert list(told["bank"].items())[:3] == [("c1", -3.0), ("c0", 0.5), ("c3", 0.1)] and "c2" not in told["bank"]
