"""Several runs on the same axes, and an honest word where they cannot be compared."""

import msgspec
import pytest
from report_samples import plain_text, sample_curve, sample_record, synchronous_record

from offbeat.metrics.record import DataRecord
from offbeat.report.compare import (
    Comparison,
    comparison,
    comparison_page,
    write_comparison,
)


@pytest.fixture
def runs():
    return Comparison({"async": sample_record(), "sync": synchronous_record()}, target=1e-4)


def test_the_table_is_exact(runs):
    assert plain_text(comparison(runs), width=120).splitlines() == [
        "run                  async       sync",
        "─────────────────────────────────────",
        "method           afsvrg-vp   fsvrg-vp",
        "verdict             target     target",
        "objective         0.431773   0.431773",
        "bound              9.1e-07    9.1e-07",
        "Test AUC            0.7731     0.7731",
        "Test accuracy       0.8204     0.8204",
        "passes                12.5       12.5",
        "time                48.2 s       93 s",
        "time to 0.0001      23.2 s     50.2 s",
        "sent               31.5 MB    31.5 MB",
        "lag mean             10.37       0.00",
        "lag max                 28          0",
    ]


def test_runs_may_race_to_targets_of_their_own(runs):
    paired = Comparison(runs.records, targets={"async": 1e-4, "sync": 1e-2})
    assert paired.time_to_target("async") == runs.time_to_target("async")
    assert paired.time_to_target("sync") < runs.time_to_target("sync")
    assert "time to 0.01 or 0.0001" in plain_text(comparison(paired), width=120)
    page = comparison_page(paired, first="before <all>")
    assert page.count(">target</text>") == 6 and "before &lt;all&gt;" in page
    assert "time to" not in plain_text(comparison(Comparison(runs.records)), width=120)


def test_many_runs_are_set_five_abreast():
    many = Comparison({f"run-{number}": sample_record(seed=number) for number in range(8)})
    lines = plain_text(comparison(many), width=100).splitlines()
    assert [line.split() for line in lines if line.startswith("run ")] == [
        ["run", "run-0", "run-1", "run-2", "run-3", "run-4"],
        ["run", "run-5", "run-6", "run-7"],
    ]
    assert not any(line.startswith("time to") for line in lines)


def test_the_quantity_is_one_that_all_runs_measured(runs):
    assert runs.quantity == "suboptimality"
    blind = sample_record(curve=tuple(_without(row, "suboptimality") for row in sample_curve()))
    assert Comparison({"a": sample_record(), "b": blind}).quantity == "objective"
    assert Comparison({"a": sample_record(), "b": sample_record(curve=())}).quantity is None
    assert Comparison({}).quantity is None


def _without(row, name):
    return type(row)(**{field: getattr(row, field) for field in row.__struct_fields__ if field != name})


def test_equal_runs_have_no_caveats(runs):
    assert runs.caveats() == []


def test_unequal_runs_are_called_so():
    other = sample_record(clock="wall", data=DataRecord(source="something else"), curve=sample_curve()[::4])
    caveats = Comparison({"a": sample_record(), "b": other}).caveats()
    assert [caveat.split(":")[0] for caveat in caveats] == [
        "These runs did not use the same data",
        "Some times are virtual and some are of a wall clock",
        "These runs were not looked at equally often (2 to 8 looks a pass)",
    ]
    assert "! These runs did not use the same data" in plain_text(
        comparison(Comparison({"a": sample_record(), "b": other})), width=120
    )


def test_a_private_run_beside_one_that_is_not_is_said():
    private = msgspec.structs.replace(sample_record(), privacy={"edge1": {"epsilon": 2.0}})
    labels = msgspec.structs.replace(sample_record(), options={"label_dp_epsilon": 1.0})
    for other in (private, labels):
        (caveat,) = Comparison({"a": sample_record(), "b": other}).caveats()
        assert "differentially private" in caveat
    assert Comparison({"a": private, "b": labels}).caveats() == []


def test_the_page_draws_all_curves_on_each_axis(runs):
    text = comparison_page(runs, title="A <b> title", lead="why")
    assert text.count('class="chart lines"') == 3
    assert text.count('class="chart bars"') == 2
    assert text.count("<tr>") == 3
    assert "A &lt;b&gt; title" in text
    assert "async: from 0.261 at 0 s" in text
    assert "sync: from 0.261 at 0 s" in text
    assert text.count(">target</text>") == 3


def test_both_runs_share_one_time_scale(runs):
    text = comparison_page(runs)
    ours, theirs = text.split('class="chart bars"')[1:]
    # bars begin at 118 and the longest ends at 470; the note follows 8 further on: 118 + 352 * 48.25 / 93 + 8 = 308.62
    assert 'x="308.62" y="22" class="tick">4,800 updates' in ours
    assert 'x="478" y="22" class="tick">1,200 updates' in theirs


def test_runs_without_a_common_quantity_say_so():
    bare = Comparison({"a": sample_record(curve=())})
    assert "There is no quantity that all of these runs measured." in comparison_page(bare)


def test_the_page_is_written(runs, tmp_path):
    assert write_comparison(runs, tmp_path / "new" / "compare.html").is_file()


def test_runs_that_minimise_different_things_are_told_of():
    weak, strong = (sample_record(options={"penalty": size, "loss": "auto"}) for size in (1e-4, 1e-2))
    (told,) = Comparison({"weak": weak, "strong": strong}).caveats()
    assert told.startswith("These runs minimise different things (penalty 0.0001 or 0.01):")
    network = sample_record(options={"penalty": 1e-4, "loss": "auto", "embedding": {"kind": "mlp"}})
    (told,) = Comparison({"linear": weak, "network": network}).caveats()
    assert "(model linear or mlp)" in told
    assert Comparison({"once": weak, "again": weak}).caveats() == []
