"""`offbeat run` with VAFL and with horizontal jobs: run folder, report, replay, every runtime, wrong keys."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl.messages import Upload
from offbeat.audit.releases import ReleaseWatch, release_findings
from offbeat.cli import app
from offbeat.errors import BadJob
from offbeat.jobs.horizontal import edge_job_from
from offbeat.jobs.methods import names_of
from offbeat.jobs.reading import job_from
from offbeat.jobs.vertical import vertical_job_from
from offbeat.metrics.record import RunRecord
from offbeat.party.contract import Send, Started
from offbeat.report.wording import privacy_rows
from offbeat.run.folder import job_of

VAFL = """
algorithm = "vafl"
passes = 3
seed = 2
[data]
set = "credit-like@0.02"
parties = ["bank", "shop", "telecom"]
[runtime]
slow = { shop = 4.0 }
"""
EDGES = """
algorithm = "steady"
updates = 30
batch = 40
seed = 3
[model]
row_norm = 4.0
[rate]
step = 0.5
clip = 1.0
[privacy]
epsilon = 8.0
uploads = 12
[data]
set = "digits-like"
edges = 3
limit_rows = 600
"""


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run(tmp_path, text, *settings):
    path = tmp_path / "job.toml"
    path.write_text(text)
    chosen = [word for setting in settings for word in ("--set", setting)]
    return call("run", path, "--json", "--out", tmp_path / "run", *chosen)


def told(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_vafl_job_is_run_reported_and_replayed(tmp_path):
    record = told(run(tmp_path, VAFL))
    assert set(record["parties"]) == {"server", "bank", "shop", "telecom"}
    assert record["verdict"] == "passes" and record["metrics"]["test_auc"] > 0.6
    assert any("label" in warning for warning in record["warnings"])
    weights = load_file(tmp_path / "run" / "checkpoints" / "bank.safetensors")
    assert weights and all(np.isfinite(values).all() for values in weights.values())
    assert "Test AUC" in call("report", tmp_path / "run").stdout
    replayed = call("replay", tmp_path / "run", "--json")
    assert json.loads(replayed.stdout)["same"] is True


def audit_of(folder):
    result = call("audit", folder, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("settings", [(), ("embedding.kind=mlp", "embedding.optimiser=adam"), ("runtime.faults=loss",)])
def test_an_audit_of_vafl_reads_the_labels_and_counts_releases(tmp_path, settings):
    if settings[:1] == ("embedding.kind=mlp",):
        pytest.importorskip("torch", reason="the extra `deep` is not installed")
    told(run(tmp_path, VAFL, *settings))
    found = audit_of(tmp_path / "run")
    assert found["releases"]["used_once"] is True
    right = [row["right"] for row in found["attacks"] if row["attack"] == "labels"]
    assert len(right) == 3 and min(right) > 0.9
    assert all(row["mean"] >= 1 for row in found["attacks"] if row["attack"] == "embeddings")
    assert "curious party" in call("audit", tmp_path / "run").stdout


@pytest.mark.parametrize("settings", [(), ("embedding.kind=mlp", "embedding.optimiser=adam")])
def test_an_audit_of_a_vafl_regression_reads_the_targets(tmp_path, settings):
    if settings:
        pytest.importorskip("torch", reason="the extra `deep` is not installed")
    told(run(tmp_path, VAFL.replace("credit-like@0.02", "known-ridge"), *settings))
    found = audit_of(tmp_path / "run")
    read = [row["correlation"] for row in found["attacks"] if row["attack"] == "targets"]
    assert len(read) == 3 and min(read) > 0.8
    assert "correlation" in call("audit", tmp_path / "run").stdout


def test_an_audit_of_labels_answered_at_random_says_what_derivatives_reveal_then(tmp_path):
    told(run(tmp_path, VAFL, "label_dp_epsilon=2"))
    found = audit_of(tmp_path / "run")
    assert "drawn at random for the row's label" in found["reveals"]["Gradient"]
    assert found["releases"]["used_once"] is True
    ((name, releases, epsilon, *_, remark),) = privacy_rows(RunRecord.read(tmp_path / "run"))
    assert (name, releases, epsilon) == ("server", "1", "2") and "labels alone" in remark and "seeded" in remark


def test_an_audit_notices_a_number_used_for_two_values():
    watch = ReleaseWatch(SimpleNamespace(messages=vafl.MESSAGES))
    for value in (1.0, 1.0, 2.0):
        body = Upload(7, 0, -1, True, np.array([0]), np.array([[value]]))
        watch.handled("bank", Started(), [Send("server", body)])
    assert watch.repeated == 1
    assert watch.violations == ["bank used release number 7 for two different values"]


def test_an_audit_of_edges_compares_the_ledger_with_what_was_sent(tmp_path):
    told(run(tmp_path, EDGES, "runtime.faults=duplicate"))
    found = audit_of(tmp_path / "run")
    assert found["releases"]["used_once"] is True
    assert sum(found["releases"]["by_party"].values()) >= 30
    (learned,) = found["attacks"]
    assert learned["party"] == "cloud" and "No attack was tried" in learned["finding"]


@pytest.mark.parametrize("variant", ["vafl-tsync", "vafl-sync"])
def test_every_variant_by_name(tmp_path, variant):
    assert told(run(tmp_path, VAFL, f"algorithm={variant}", "passes=1"))["algorithm"] == variant


def test_private_embeddings_state_what_they_spent(tmp_path):
    settings = ("embedding.epsilon=8", "embedding.uploads_max=3", "passes=2")
    record = told(run(tmp_path, VAFL, *settings))
    assert set(record["privacy"]) == {"bank", "shop", "telecom"}
    assert all(0 < stated["epsilon"] <= 8.0 + 1e-9 for stated in record["privacy"].values())
    assert audit_of(tmp_path / "run")["releases"]["used_once"] is True
    for name, releases, epsilon, delta, budget, adjacency, remark in privacy_rows(RunRecord.read(tmp_path / "run")):
        stated = record["privacy"][name]
        assert (int(releases), budget, adjacency) == (stated["releases"], "8", "replace-one") and int(releases) > 0
        assert float(epsilon) == pytest.approx(stated["epsilon"], rel=1e-2) and float(delta) == 1e-5
        assert "seeded" in remark and f"gradient: {stated['steps']}" in remark


def test_without_a_number_of_uploads_records_leave_once_and_the_covariance_is_stated(tmp_path):
    record = told(run(tmp_path, VAFL, "embedding.epsilon=8"))
    assert (record["verdict"], round(record["passes"], 9)) == ("passes", 1.0)
    for stated in record["privacy"].values():
        assert (stated["releases"], stated["steps"], stated["covariances"]) == (1, 1, 1)
        assert stated["epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert audit_of(tmp_path / "run")["releases"]["used_once"] is True


def test_an_audit_notices_a_row_that_left_more_often_than_its_ledger_says():
    watch = ReleaseWatch(SimpleNamespace(messages=vafl.MESSAGES))
    watch.seen["bank"] = Counter({4: 3, 5: 1})
    record = SimpleNamespace(privacy={"bank": {"releases": 1, "releases_most": 2}})
    found = release_findings(record, watch)
    assert found["violations"] == ["bank sent 3 releases of one row and its ledger charged 2"]
    record.privacy["bank"]["releases_most"] = 3
    assert release_findings(record, watch)["used_once"] is True


def test_the_names_of_vafl_are_those_of_its_variants():
    assert names_of("embedding") == vafl.VARIANTS


@pytest.mark.parametrize(
    ("kind", "shape"), [("mlp", ""), ("lstm", "embedding.shape=[14, 28]"), ("cnn", "embedding.shape=[2, 14, 14]")]
)
def test_networks_by_name(tmp_path, kind, shape):
    pytest.importorskip("torch", reason="the extra `deep` is not installed")
    text = 'algorithm = "vafl"\npasses = 1\n[data]\nset = "digits-like"\nparties = 2\nlimit_rows = 200\n'
    small = ("embedding.optimiser=adam", "embedding.channels=2" if kind == "cnn" else "embedding.hidden=[8]")
    record = told(run(tmp_path, text, f"embedding.kind={kind}", *small, *([shape] if shape else [])))
    assert record["verdict"] == "passes" and "test_accuracy" in record["metrics"]


def test_networks_replay_with_the_threads_that_the_run_had(tmp_path):
    torch = pytest.importorskip("torch", reason="the extra `deep` is not installed")
    text = 'algorithm = "vafl"\npasses = 1\n[data]\nset = "digits-like"\nparties = 2\nlimit_rows = 400\n'
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        record = told(run(tmp_path, text, "embedding.kind=mlp", "embedding.optimiser=adam", "embedding.hidden=[256]"))
        assert record["machine"]["torch_threads"] == 1
        torch.set_num_threads(2)
        assert json.loads(call("replay", tmp_path / "run", "--json").stdout)["same"] is True
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_vafl_run_on_threads_replays_from_its_logs(tmp_path):
    told(run(tmp_path, VAFL, "runtime.kind=threads", "passes=1"))
    replayed = json.loads(call("replay", tmp_path / "run", "--json").stdout)
    assert (replayed["how"], replayed["same"]) == ("logs", True)


def test_a_horizontal_job_is_run_reported_and_replayed(tmp_path):
    record = told(run(tmp_path, EDGES))
    assert set(record["parties"]) == {"cloud", "edge1", "edge2", "edge3"}
    assert record["verdict"] == "passes" and 0 < record["privacy"]["edge1"]["epsilon"] <= 8.0
    assert load_file(tmp_path / "run" / "checkpoints" / "cloud.safetensors")["parameters"].shape == (7850,)
    assert job_of(tmp_path / "run").privacy.uploads == 12
    assert call("report", tmp_path / "run").exit_code == 0
    assert json.loads(call("replay", tmp_path / "run", "--json").stdout)["same"] is True


@pytest.mark.parametrize("algorithm", ["mapa", "audp", "asgd", "csgd", "fedasync", "fedbuff"])
def test_every_horizontal_method_by_name(tmp_path, algorithm):
    record = told(run(tmp_path, EDGES, f"algorithm={algorithm}", "updates=10"))
    assert record["algorithm"] == algorithm
    assert ("pool" in record["parties"]) == (algorithm == "csgd")


def test_a_horizontal_run_on_threads_replays_from_its_logs(tmp_path):
    told(run(tmp_path, EDGES, "runtime.kind=threads", "updates=10"))
    replayed = json.loads(call("replay", tmp_path / "run", "--json").stdout)
    assert (replayed["how"], replayed["same"]) == ("logs", True)


def test_secret_noise_cannot_be_replayed(tmp_path):
    told(run(tmp_path, EDGES.replace("seed = 3\n", ""), "updates=10"))
    refused = call("replay", tmp_path / "run")
    assert refused.exit_code == 2 and "secret noise" in " ".join(refused.stderr.split())


def test_secret_noise_of_embeddings_from_a_job(tmp_path):
    settings = ("embedding.epsilon=8", "embedding.uploads_max=2", "embedding.secret_noise=true", "passes=1")
    first = told(run(tmp_path, VAFL, *settings))
    assert not any("experiments only" in warning for warning in first["warnings"])
    assert not any(stated["seeded"] for stated in first["privacy"].values())
    for command in ("replay", "audit"):
        refused = call(command, tmp_path / "run")
        assert refused.exit_code == 2 and "secret noise" in " ".join(refused.stderr.split())
    (tmp_path / "again").mkdir()
    assert told(run(tmp_path / "again", VAFL, *settings))["digest"] != first["digest"]


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        (VAFL, "embedding.t=2", "vafl-tsync"),
        (VAFL, "target=1e-6", "has no use for target"),
        (VAFL, "penalty_kind=nonconvex", "penalty_kind is one of none, l1"),
        (VAFL, "embedding.kind=mpl", "'mlp'"),
        (VAFL, "embedding={ epsilon = 3, kind = 'mlp' }", "uploads_max"),
        (VAFL, "embedding.widht=3", "'width'"),
        (VAFL, "embedding.kind=cnn", "needs embedding.shape"),
        (VAFL, "embedding.rates={ bnak = 2.0 }", "'bank'"),
        (VAFL, "runtime.slow={ shpo = 2.0 }", "'shop'"),
        (VAFL, "step=grid", "no step"),
        (VAFL, "algorithm=vafl-tsnc", "'vafl-tsync'"),
        (EDGES, "model.features=65", "784 columns"),
        (EDGES, "model.classes=9", "10 classes"),
        (EDGES, "runtime.kind=processes", "runtime.kind"),
        (EDGES, "runtime.slow={ edge9 = 2.0 }", "no party"),
        (EDGES, "data.splt=iid", "'split'"),
        (EDGES, "data.set=credit-like@0.02", "no test rows"),
    ],
)
def test_wrong_keys_end_in_one_paragraph(tmp_path, text, setting, words):
    result = run(tmp_path, text, setting)
    assert result.exit_code == 2, result.stdout
    assert "Traceback" not in result.stderr and words in " ".join(result.stderr.split())
    assert not (tmp_path / "run").exists()


def test_a_linear_job_refuses_the_table_of_embeddings():
    with pytest.raises(BadJob, match="has no use for embedding"):
        job_from({"algorithm": "vfb2-svrg", "embedding": {"t": 2}})
    with pytest.raises(BadJob, match="horizontal"):
        vertical_job_from({"algorithm": "mapa"})
    with pytest.raises(BadJob, match="Did you mean"):
        edge_job_from({"algorithm": "mappa"})
