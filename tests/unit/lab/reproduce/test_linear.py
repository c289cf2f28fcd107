"""The measuring behind the redrawn tables: the crossing rule, the band, resuming, and a comparison end to end."""

import json
import math

import pytest

from offbeat.data.vertical import vertical_from_dataset
from offbeat.errors import BadInput
from offbeat.lab.catalogue import LabOptions, catalogue
from offbeat.lab.reproduce import afsgd, vfb2
from offbeat.lab.reproduce.measure import Course, Crossing, Kept, Pair, base_job, compare_pair
from offbeat.lab.reproduce.vfb2_sets import SETS
from offbeat.learning.blocks import DIRECTIONS
from offbeat.metrics.curves import CurveRow
from offbeat.run.observer import Progress

ROW_KEYS = ("setting", "ours", "published", "verdict")


def glance(below: float, time_s: float = 0.0, passes: float = 1.0) -> Progress:
    return Progress(time_s, passes, 1.0, below)


def test_one_lucky_look_does_not_end_a_run():
    crossing = Crossing(target=1e-3, passes=10)
    assert crossing.watch(glance(1e-1))
    assert crossing.watch(glance(1e-4))
    assert crossing.watch(glance(1e-2))
    assert crossing.watch(glance(2e-3))  # the geometric mean of 1e-4, 1e-2, 2e-3 is 1.3e-3
    assert not crossing.watch(glance(1e-5))


@pytest.mark.parametrize("last", [glance(math.nan), glance(1.0, passes=11), glance(1.0, time_s=3.0)])
def test_a_run_ends_when_it_has_diverged_or_lost(last):
    assert not Crossing(target=1e-3, passes=10, limit_s=2.0).watch(last)


@pytest.mark.parametrize(("parties", "slowness", "rate"), [(4, 0.4, 1.30), (4, 3, 3.25), (8, 1, 1.88), (16, 3, 3.81)])
def test_the_band_is_the_ratio_of_update_rates(parties, slowness, rate):
    assert afsgd._band(parties, slowness) == pytest.approx(rate, abs=0.006)


def test_what_was_measured_is_not_measured_again(tmp_path):
    calls, said = [], []
    for _ in range(2):
        kept = Kept(tmp_path / "deep" / "pieces.json", said.append)
        assert kept.get("a", lambda: calls.append(1) or {"ratio": 2.0}) == {"ratio": 2.0}
    assert calls == [1]
    assert len(said) == 1 and "1 finished pieces" in said[0]
    assert json.loads((tmp_path / "deep" / "pieces.json").read_text()) == {"a": {"ratio": 2.0}}


@pytest.mark.parametrize("content", ['{"a": 1', "[1, 2]", "\x00"])
def test_damaged_pieces_are_named(tmp_path, content):
    (tmp_path / "pieces.json").write_text(content)
    with pytest.raises(BadInput, match=r"pieces\.json .* is damaged"):
        Kept(tmp_path / "pieces.json", print)


def test_a_slow_party_costs_rounds_more_than_it_costs_workers():
    data = vertical_from_dataset("known-logistic", 4)
    course = Course(data, base_job(batch=16))
    pair = Pair("afsaga-vp", "fsaga-vp", 1e-3)
    even, _ = compare_pair(course, pair, seeds=[0], multiples=[1.0])
    slow, detail = compare_pair(course, pair, seeds=[0], multiples=[1.0], slow={data.names[2]: 8.0})
    assert even.median is not None and slow.median is not None
    assert slow.median > even.median
    assert {detail[name]["step"] for name in detail} == {detail["fsaga-vp"]["step"]}  # one multiple: one step for both


def test_vfb2_needs_as_many_bytes_as_predicted(monkeypatch):
    monkeypatch.setattr(vfb2, "load", lambda *_: vertical_from_dataset("known-logistic", _[3]))
    rows = vfb2.bytes_per_pass(LabOptions()).rows
    for row in rows:
        assert row["published"] < row["ours"] < 4 * row["published"]  # surveys, questions and versions on top


def test_every_reproduction_of_the_linear_papers_is_listed():
    names = set(catalogue("reproduce"))
    assert {"afsgd-table2", "afsgd-fig6", "afsgd-fig7", "vfb2-table2", "vfb2-fig2", "vfb2-fig3", "vfb2-fig4"} <= names
    row = afsgd._table_row(afsgd.TABLE_2[0], "SAGA", 1.95, {"1x": {"ratio": 0.9}, "4x": {"ratio": 2.1}}, True)
    assert set(ROW_KEYS) <= set(row)
    assert row["verdict"] == "above print"


def looks(*below: float) -> list[CurveRow]:
    return [CurveRow(float(at), 2.0 * at, 8 * at, suboptimality=y) for at, y in enumerate(below)]


def test_curves_are_drawn_by_the_rule_that_judges_them():
    drawn = vfb2._smoothed(looks(1.0, 0.01, 0.01, 1e-6), "passes")
    assert [x for x, _ in drawn] == [0.0, 2.0, 4.0, 6.0]
    assert [y for _, y in drawn] == pytest.approx([1.0, 1e-1, 1e-4 ** (1 / 3), 1e-10 ** (1 / 3)])


def test_one_panel_for_each_pair_and_one_for_the_passes():
    curves = {f"{family}-{method}": looks(1.0, 0.1) for family in ("vfb2", "vfb") for method in DIRECTIONS}
    panels = vfb2._panels("D1", curves)
    assert [len(panel.curves) for panel in panels] == [2, 2, 2, 3]
    rows = vfb2._curve_rows(SETS[0], 13, curves | {"vfb2-sgd": looks(*[1.0] * 4, *[0.1] * 9)})
    assert [row["verdict"] for row in rows] == ["not ahead"] * 3
