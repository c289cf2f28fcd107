"""Between organisations each owner reads its own part of a model, and nobody else's; together they are the model."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import NAMES, Town, job
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.data.table import Table
from offbeat.errors import BadInput
from offbeat.orgs.client import connect
from offbeat.orgs.own_part import own_part, own_parts, own_scorecard
from offbeat.orgs.party_config import Home, home_of, read_home
from offbeat.orgs.rows import load_table

IDS = [f"c{i}" for i in range(20)]


def rows_of(home: Home) -> Table:
    table = load_table(home)
    rows = np.array([table.ids.tolist().index(one) for one in IDS])
    return replace(table, ids=table.ids[rows], features=np.asarray(table.features)[rows], labels=None)


def test_each_owner_reads_its_own_part_and_the_parts_add_up(town: Town) -> None:
    for name in NAMES:
        town.settings(name, prepare='{ how = "bins", bins = 3 }')
    town.open()
    run = town.submit(job(target=1e-6))
    assert all(town.ended(name, run).phase == "done" for name in NAMES)
    homes = {name: read_home(town.folder / name) for name in NAMES}
    joint = connect(town.folder / "bank", run).decision_function(IDS)
    # Parts of scores: of the own columns, and None of rows that the party lacks.
    parts = {name: own_parts(homes[name], run, [*IDS, "c999"]) for name in NAMES}
    assert all(mine[-1] is None for mine in parts.values())
    np.testing.assert_allclose(np.sum([mine[:-1] for mine in parts.values()], axis=0, dtype=float), joint, atol=1e-9)
    # Points: those of all parties are the score.
    cards = {n: own_scorecard(homes[n], run, points=600.0, odds=50.0, double=20.0, good=None) for n in NAMES}
    points = np.sum([cards[name].score({name: rows_of(homes[name])}) for name in NAMES], axis=0)
    exact = 600 - 20 / np.log(2) * (np.log(50) + joint)  # for the first class
    assert np.abs(points - exact).max() <= sum(card.rounding for card in cards.values()) + 1.0
    assert all(line.good is None for card in cards.values() for line in card.lines)
    assert "label counts by bin" in cards["shop"].notes[0] and cards["shop"].good == "the negative class"
    assert cards["bank"].good == 0 and set(own_part(homes["shop"], run).coefficients) == {"shop"}
    # The commands.
    told = CliRunner().invoke(app, ["export", str(homes["shop"].runs / run), "--onnx", str(town.folder / "parts")])
    assert told.exit_code == 0, told.output
    assert [file.name for file in (town.folder / "parts").iterdir()] == ["shop.onnx"]
    for option in ("--coefficients", "--scorecard"):
        told = CliRunner().invoke(app, ["export", str(homes["shop"].runs / run), option, "-"])
        assert told.exit_code == 0 and "shop0 < " in told.stdout and "bank" not in told.stdout
    home = str(town.folder / "bank")
    given = CliRunner().invoke(app, ["predict", run, "--id", "c1", "--parts", "--home", home, "--json"])
    (row,) = json.loads(given.stdout)["rows"]
    assert row["part of bank"] == pytest.approx(parts["bank"][1]) and not any("shop" in key for key in row)
    refused = CliRunner().invoke(app, ["worth", str(homes["bank"].runs / run)])
    assert refused.exit_code == 2 and "one organisation's side of a run" in refused.stderr
    with pytest.raises(BadInput, match="expected its party"):
        home_of(town.folder)
