"""Private products over three daemons: the plan's noise and no more leaves, budgets are charged first, and the model is
the one of a run in one place where there is no noise to speak of."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from town import NAMES, Town, job
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.errors import Refused
from offbeat.families import private_products
from offbeat.jobs.organisations import OrgJob, OrgModel, OrgRows
from offbeat.jobs.private_products import ProductsEntry
from offbeat.learning.blocks import make_block
from offbeat.learning.penalties import L2
from offbeat.orgs import control
from offbeat.orgs.party_config import read_home
from offbeat.orgs.replay import replay_own
from offbeat.orgs.rows import load_table, own_rows, read_model
from offbeat.orgs.train import vertical_of
from offbeat.runtime.checkpoint import read_checkpoint

STRENGTH = 0.05
METHODS = 'methods = ["vfb2-svrg", "vfb2-saga", "vfb2-sgd"]'


def wanted(epsilon: float, **products: Any) -> OrgJob:
    terms: Any = {"algorithm": "vfb-sgd", "product_epsilon": epsilon, "product_delta": 1e-5, "target": 1e-6}
    asked = job(**terms, passes=60.0)
    return msgspec.structs.replace(
        asked,
        model=OrgModel(strength=STRENGTH, loss="ls-svm"),
        rows=OrgRows(test_fraction=0.0),
        products=ProductsEntry(**products),
    )


def opened(folder: Path, **policies: str) -> Town:
    town = Town(folder)
    for name in NAMES:
        settings = folder / name / "party.toml"
        more = f'methods = ["vfb-sgd"]\n{policies.get(name, "")}'
        settings.write_text(settings.read_text().replace(METHODS, more).replace("colluders_least = 0 ", "# "))
    return town.open()


def in_one_place(town: Town, run: str, asked: OrgJob) -> dict[str, Any]:
    """The plan's steps without noise, by every party's rows, as only a test can have them together."""
    rows, labels = {}, np.empty(0)
    for name in NAMES:
        home = read_home(town.folder / name)
        kept = read_checkpoint(home.private / run, "alignment")
        assert kept is not None
        own = own_rows(home, load_table(home), asked, kept["rows"], kept["tokens"])
        plan = private_products.planned(vertical_of(asked), len(NAMES), len(own.tokens_train), [own.train.shape[1]])
        assert plan is not None
        rows[name] = private_products.cut_to_norm(plan, own.train)
        labels = labels if own.y_train is None else own.y_train
    blocks = {name: make_block(X, penalty=L2, strength=STRENGTH, method="sgd") for name, X in rows.items()}
    constant = float(labels.mean())
    for _ in range(plan.steps):
        products = sum(np.clip(block.share(0, block.rows), -plan.clip, plan.clip) for block in blocks.values())
        constant = float(np.mean(labels - products))
        theta = np.clip(2.0 * (products + constant - labels), -4.0, 4.0)
        for block in blocks.values():
            block.step(0, block.rows, theta, plan.step / block.width)
    products = sum(np.clip(block.share(0, block.rows), -plan.clip, plan.clip) for block in blocks.values())
    found = {name: block.weights()[0] for name, block in blocks.items()}
    found["bank"][-1] = float(np.mean(labels - products))
    return found


def test_daemons_train_with_private_products_within_their_owners_budgets(tmp_path: Path) -> None:
    strict = "product_epsilon_most = 4.0\nepsilon = 5.0"
    town = opened(tmp_path, shop=strict, telecom="colluders_least = 9")
    try:
        with pytest.raises(Refused, match="this job's are exact"):
            exact = msgspec.structs.replace(job(algorithm="vfb-sgd"), model=OrgModel(strength=STRENGTH, loss="ls-svm"))
            town.submit(exact)
        with pytest.raises(Refused, match="wants noise that suffices if 1 others help"):
            town.submit(wanted(4.0))
        assert not (tmp_path / "shop" / "private" / "ledger" / "privacy.jsonl").exists()
        run = town.submit(wanted(4.0, colluders=1, rounds=3))
        for name in NAMES:
            status = town.ended(name, run)
            assert (status.verdict, status.phase) == ("passes", "done"), status
            assert "epsilon 4 at delta 1e-05" in status.reason and status.metrics == {}
        _the_record_says_what_was_promised(tmp_path, run)
        charged = (tmp_path / "shop" / "private" / "ledger" / "privacy.jsonl").read_text().splitlines()
        assert [json.loads(line)["what"] for line in charged] == ["columns"]
        with pytest.raises(Refused, match="'shop' has a privacy budget of 5"):
            town.submit(wanted(4.0, colluders=1, rounds=3))
        with pytest.raises(Refused, match="which no budget covers"):
            town.ask("bank", control.Predict(run, ["c1"]))
        with pytest.raises(Refused, match="which no budget covers"):
            town.ask("bank", control.Predict(run, ["c1"]))
    finally:
        town.close()
    assert replay_own(read_home(tmp_path / "shop"), run, verify=True)["same"]


def _the_record_says_what_was_promised(folder: Path, run: str) -> None:
    for name in NAMES:
        record = json.loads((folder / name / "runs" / run / "record.json").read_text())
        said = record["privacy"][name]
        assert said["epsilon"] == pytest.approx(4.0, rel=1e-6) and said["seeded"] is False
        assert said["releases"] == 3 and "1 more that help it or leave their noise out" in said["warning"]
        assert set(record["certificate"].values()) == {None} and "Products are private" in record["promises"][0]
    revealed = {row["message"]: row["reveals"] for row in record["reveals"]}
    assert "a noisy total" in revealed["ShareGiven"]
    audited = CliRunner().invoke(app, ["audit", str(folder / "shop" / "runs" / run), "--json"])
    assert audited.exit_code == 0, audited.output
    assert "with noise" in audited.stdout or "noisy" in audited.stdout


def test_without_noise_to_speak_of_the_model_is_that_of_one_place(tmp_path: Path) -> None:
    town = opened(tmp_path)
    try:
        asked = wanted(1e6, rounds=5, clip=2.0)
        run = town.submit(asked)
        assert {town.ended(name, run).verdict for name in NAMES} == {"passes"}
        expected = in_one_place(town, run, asked)
        for name in NAMES:
            weights = read_model(read_home(tmp_path / name).private / run, "model").weights
            np.testing.assert_allclose(weights, expected[name], atol=5e-3)
        scored = town.ask("bank", control.Predict(run, ["c1", "c2"]))  # these owners have bounded nothing
        assert isinstance(scored, control.Predicted) and scored.known == [True, True]
    finally:
        town.close()
