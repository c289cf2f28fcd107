"""`offbeat bench core`: what is counted as an update is updates, and nothing that comes before them."""

import pytest

from offbeat.data.vertical import vertical_from_dataset
from offbeat.families.setting import prepare
from offbeat.lab.bench import core
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2

PARTIES = 4
EVENTS = 3 * (PARTIES - 1) + 2
"""Of one update: at every other party derivatives and a step, and its answer; at the label holder derivatives and the
time of its own step."""


def test_the_difference_of_two_runs_is_of_updates_alone():
    data = vertical_from_dataset("known-logistic", PARTIES)
    setting = prepare(data, loss=LOGISTIC, penalty=L2, strength=1e-4, intercept=False, seed=0)
    (_, few, before), (_, many, after) = (core._updates(setting, until_s) for until_s in (0.5, 1.5))
    assert 0 < few < many
    assert (after - before) / (many - few) == pytest.approx(EVENTS, rel=0.02)
    rows = core.update_rows("known-logistic", setting)
    assert rows[0].solver == "one update, us"
    assert f"{PARTIES} parties" in rows[0].note and all(row.cpu_s is not None for row in rows)
