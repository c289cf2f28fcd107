"""What is measured beside scikit-learn does the same work."""

import numpy as np

from offbeat.lab.bench import classes, prepare
from offbeat.lab.catalogue import LabOptions


def columns_by_content(block: np.ndarray) -> set[bytes]:
    return {np.ascontiguousarray(column, dtype=np.float64).tobytes() for column in np.asarray(block).T}


def test_both_ways_of_preparing_give_the_same_columns() -> None:
    frame = prepare.mixed_frame(4000, seed=1)
    (ours, later), (theirs, _) = prepare.ours(frame), prepare.theirs(frame)
    assert np.array_equal(later(frame), ours)
    whole = [np.isin(block, (0, 1)).all(axis=0) for block in (ours, theirs)]
    indicators = columns_by_content(ours[:, whole[0]])
    assert columns_by_content(np.asarray(theirs)[:, whole[1]]) <= indicators  # ours marks missing ones by 0/1 as well
    dates = [name for name in frame if name.startswith("date")]
    for name in dates:  # nothing is missing and nothing far out: the same standardised days
        days = (frame[name] - np.datetime64("1970-01-01")).dt.days.to_numpy(float)
        expected = (days - days.mean()) / days.std()
        for block in (ours, np.asarray(theirs)):
            assert min(np.abs(block - expected[:, None]).max(axis=0)) < 1e-9


def test_the_benchmarks_tell_a_ratio_for_every_step(monkeypatch) -> None:
    monkeypatch.setattr(prepare, "QUICK_ROWS", 500)
    rows = prepare.prepare(LabOptions(quick=True)).rows
    assert [row["step"] for row in rows] == ["learn and prepare", "prepare later rows"]
    assert all(row["times"] > 0 and row["rows"] == 500 and row["columns"] == 30 for row in rows)


def test_two_and_ten_classes_are_learned_from_the_same_columns() -> None:
    two, ten = (classes._setting(300, 6, count, 0) for count in (2, 10))
    assert (two.loss.outputs, ten.loss.outputs) == (1, 10)
    assert all(np.array_equal(two.train[name], ten.train[name]) for name in two.names)
    assert classes._pass_ms(two, "saga") > 0
